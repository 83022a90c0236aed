"""A table of the checks whose failure explains the failures of other checks, with the reason in each row.

If a check fails, its row lists the checks that fail as a consequence (its effects): their warnings and failures are
reported as explained. No check is an effect of a check in a later row, so the table has no cycles.

Pairs that could be mistaken for each other, and how they are decided:

- HC107 before HC101: a decoder that is given the first token makes that place constant, not the other way round.
- HC104 before HC105 and HC102: HC104 reproduces the decoded answers from another start token. This identifies the
  fault, while a wrong length (HC105) and a missing token (HC102) only describe the answers.
- HC505 before HC301: a model that cannot see the order of its input cannot learn the task and ends up with one answer.
  One answer does not give a shuffled sequence the logits of its sorted copy.
- HC304 before HC101 and HC102: a model that learned nothing outputs constant places and few tokens. HC304 does not fail
  if other places or tokens are mostly right.
"""

from __future__ import annotations

from typing import NamedTuple

LOW_ACCURACY = ("HC303", "HC702", "HC703", "HC802")
"""Checks that only restate a low accuracy: accuracy no better than a constant answer (HC303) or too low for ablations
to lower it (HC702), a ranking of heads that is noise (HC703), and a figure that differs from the author's (HC802)."""
DECODED_FIGURES = ("HC106", *LOW_ACCURACY)
"""The checks in LOW_ACCURACY, and HC106, which compares decoded answers with teacher forcing."""


class Cause(NamedTuple):
    """A row of the table of causes: a check whose failure explains failures and warnings of other checks."""

    id: str
    effects: tuple[str, ...]
    """Ids of the checks that follow from this check."""
    reason: str


CAUSES = (
    Cause(
        "HC306",
        ("HC101", "HC102", "HC103", "HC104", "HC105", "HC108", "HC301", "HC302", *DECODED_FIGURES),
        "If logits are NaN, argmax returns a fixed token or class, so answers are constant and wrong.",
    ),
    Cause(
        "HC306",
        ("HC201", "HC202", "HC204", "HC304", "HC305", "HC504", "HC505", "HC506", "HC601", "HC602", "HC701", "HC704"),
        "Logits, losses and effects of heads cannot be compared if they are NaN.",
    ),
    Cause(
        "HC205",
        ("HC106", "HC201", "HC204", "HC305", "HC505", "HC506", "HC701", "HC702", "HC703", "HC704", "HC802"),
        "Logits that are copied from the given answers depend on neither the question, its order nor the heads.",
    ),
    Cause(
        "HC201",
        ("HC101", "HC102", "HC103", "HC104", "HC105", "HC301", "HC304", *DECODED_FIGURES),
        "A decoder that learned to copy its input has nothing to copy when it decodes, so its answers are wrong.",
    ),
    Cause(
        "HC204",
        ("HC101", "HC102", "HC106", "HC108", "HC301", "HC303", "HC304"),
        "A decoder that cannot see the question can only learn how answers look on average.",
    ),
    Cause(
        "HC103",
        ("HC101", "HC102", "HC104", "HC105", "HC304", *DECODED_FIGURES),
        "Answers that are shifted by one place have a wrong length, one made-up token, and all others in wrong places.",
    ),
    Cause(
        "HC107",
        ("HC101", "HC104", "HC304", *DECODED_FIGURES),
        "A token that is given to the decoder is the same in every answer, and no start token stands before it.",
    ),
    Cause(
        "HC104",
        ("HC101", "HC102", "HC105", "HC108", "HC304", *DECODED_FIGURES),
        "A decoder continues from its start token, so a wrong one spoils places, tokens and the length of answers.",
    ),
    Cause(
        "HC105",
        ("HC101", "HC102", "HC301", "HC304", *DECODED_FIGURES),
        "Decoded texts that are cut off, run on or cannot be read lack tokens and places, and may all be alike.",
    ),
    Cause(
        "HC305",
        ("HC301", "HC302", "HC303", "HC304", "HC505", "HC601", "HC602"),
        "Outputs that do not depend on the input are the same for every example, in any order and of any kind.",
    ),
    Cause(
        "HC505",
        ("HC301", "HC302", "HC303", "HC304", "HC601", "HC602"),
        "A model that cannot see the order of its input can only learn surface cues, or one constant answer.",
    ),
    Cause(
        "HC301",
        ("HC101", "HC102", "HC108", "HC302", "HC304", "HC601", "HC602", *LOW_ACCURACY),
        "If all examples get one answer, the answer is constant at each place, length and kind of example.",
    ),
    Cause(
        "HC602",
        ("HC303", "HC304", "HC601"),
        "A model that answers by one surface cue, such as length, is wrong where the cue says nothing about the class.",
    ),
    Cause(
        "HC304",
        ("HC101", "HC102", "HC108", "HC302", "HC601", *LOW_ACCURACY),
        "A model that learned nothing, or another answer format, outputs the same few tokens for any question.",
    ),
    Cause(
        "HC101",
        ("HC108", *DECODED_FIGURES),
        "If the model always outputs one token at a place, all answers that need another token there are wrong.",
    ),
    Cause(
        "HC102",
        ("HC108", *DECODED_FIGURES),
        "Answers with a token that is never output are wrong, and a place that mostly has this token looks untrained.",
    ),
    Cause(
        "HC108",
        LOW_ACCURACY,
        "If one place of the answer was not trained, an answer is right only if that place is right by chance.",
    ),
    Cause(
        "HC303",
        ("HC702", "HC703", "HC802"),
        "If accuracy is no better than a constant answer, ablating heads cannot lower it, and it matches no reported "
        "figure.",
    ),
    Cause(
        "HC601",
        ("HC603",),
        "A model that fails on examples with one changed place also fails on those that the search finds.",
    ),
    Cause(
        "HC203",
        ("HC202", "HC603"),
        "Padding that has the id of a symbol is read as that symbol, so answers change with padding.",
    ),
    Cause(
        "HC504",
        ("HC202",),
        "Positions that depend on the length of the sequence also change with its padding.",
    ),
    Cause(
        "HC702",
        ("HC703", "HC704"),
        "If accuracy is so low that it cannot fall, heads can neither be ranked nor shown to matter together.",
    ),
    Cause(
        "HC803",
        ("HC802",),
        "An author's scoring that skips places or tokens gives another figure than exact match.",
    ),
)
