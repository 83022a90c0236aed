"""Which check explains which: one table, read from top to bottom, with a reason for each row.

If a check fails, the checks that a row names as its effects have no cause of their own: their warnings and failures are
reported as explained. No check is an effect of a check below it, so the table has no cycles.

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
"""Checks that restate a low accuracy: no better than a constant answer, no room for heads, a ranking of heads that is
noise, and a figure that differs from the author's."""
DECODED_FIGURES = ("HC106", *LOW_ACCURACY)
"""LOW_ACCURACY, and the check that compares decoded answers with teacher forcing."""


class Cause(NamedTuple):
    """A check whose failure explains failures and warnings of other checks, with the reason."""

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
        "Answers that are moved by one place have a wrong length, a made-up place and tokens where they are not right.",
    ),
    Cause(
        "HC107",
        ("HC101", "HC104", "HC304", *DECODED_FIGURES),
        "A token that is given to the decoder is the same in every answer, and no start token stands before it.",
    ),
    Cause(
        "HC104",
        ("HC101", "HC102", "HC105", "HC108", "HC304", *DECODED_FIGURES),
        "The first tokens follow from the start token, so a wrong one spoils places, tokens and the length of answers.",
    ),
    Cause(
        "HC105",
        ("HC101", "HC102", "HC301", "HC304", *DECODED_FIGURES),
        "Texts that are cut off, run on or cannot be read lack tokens and places, and may all be alike.",
    ),
    Cause(
        "HC305",
        ("HC301", "HC302", "HC303", "HC304", "HC505", "HC601", "HC602"),
        "Outputs that do not depend on the input are the same for every example, in any order and of any kind.",
    ),
    Cause(
        "HC505",
        ("HC301", "HC302", "HC303", "HC304", "HC601", "HC602"),
        "A model that cannot see the order of its input can learn no more than cues, or one answer.",
    ),
    Cause(
        "HC301",
        ("HC101", "HC102", "HC108", "HC302", "HC304", "HC601", "HC602", *LOW_ACCURACY),
        "One answer to everything is constant at each place, at each length and for each kind of example.",
    ),
    Cause(
        "HC602",
        ("HC303", "HC304", "HC601"),
        "A model that answers by one cue misses examples that the cue does not tell apart, however sure it is.",
    ),
    Cause(
        "HC304",
        ("HC101", "HC102", "HC108", "HC302", "HC601", *LOW_ACCURACY),
        "A model that learned nothing, or another format, outputs a few tokens or classes whatever the question.",
    ),
    Cause(
        "HC101",
        ("HC108", *DECODED_FIGURES),
        "Answers whose right token differs at the constant place are wrong there, however the decoder is fed.",
    ),
    Cause(
        "HC102",
        ("HC108", *DECODED_FIGURES),
        "Answers that need the missing token are wrong, and a place that mostly needs it looks untrained.",
    ),
    Cause(
        "HC108",
        LOW_ACCURACY,
        "Answers are right only where the untrained place is right by chance.",
    ),
    Cause(
        "HC303",
        ("HC702", "HC703", "HC802"),
        "An accuracy no better than a constant answer leaves heads nothing to lose and matches no reported figure.",
    ),
    Cause(
        "HC601",
        ("HC603",),
        "A rule that misses examples with one change is wrong on such examples wherever they are looked for.",
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
        "Without room for drops, heads cannot be ranked or found to be needed together.",
    ),
    Cause(
        "HC803",
        ("HC802",),
        "A scoring that skips places or tokens gives a figure that exact match does not give.",
    ),
)
