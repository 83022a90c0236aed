"""Are teacher forcing and decoding right on different examples?

A decoder's first wrong token is the same under teacher forcing and when it decodes, so in a sound pipeline both are
right on the same examples. Two published reports had 99.9 % under teacher forcing and 35 % when decoding, and blamed
errors that accumulate in decoding, which is impossible. The check compares teacher forcing with decoding example by
example, and reports the place and the condition where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headcount.auditing.answer_formats import fitting_format
from headcount.auditing.audited_model import AuditedSequenceModel, Hits
from headcount.auditing.check import FAIL, WARN, Check, Finding, passed
from headcount.stats import Proportion
from headcount.tasks.base import natural_order, with_article

MAX_ROUNDING_SHARE = 0.005
"""Fraction of examples that may be right only under teacher forcing, because rounding decides between equal logits."""
MAX_GAINED = 0.1
"""Fraction of answers that may be right only when decoded, for example because decoding chooses among digits only."""
MIN_GROUP = 10
"""A condition, such as a token of the answer, is tested only if this many examples meet it, and as many do not."""
MIN_DIFFERENCE = 0.2
"""A condition is reported if the share of disagreements is higher by more than this on examples that meet it."""


def run(model: AuditedSequenceModel) -> Finding:
    """Compare teacher forcing with decoding, example by example: both must be right on the same examples."""
    forced, decoded = model.answers.forced_right & model.begins_as_given, model.right
    differs = Proportion.count(forced != decoded)
    if not differs.correct:
        finding = "teacher forcing and decoding are right on the same examples"
        return passed(finding, n=differs.n, right=int(decoded.sum()))
    finding = (
        f"teacher forcing is right on {int(forced.sum()):,} of {differs.n:,} and decoding on {int(decoded.sum()):,}; "
        f"they disagree on {differs.correct:,}{_first_place(model, forced, decoded)}"
        f"{_condition(model, forced != decoded)}"
    )
    cause, fix = _cause(forced, decoded)
    if (decoded & ~forced).sum() > (forced & ~decoded).sum() and (fitting := fitting_format(model)) is not None:
        finding = f"{finding}; {fitting}"
        cause = f"encode() writes examples in another format than training and generate(), where {fitting.name} fit"
        fix = f"write {fitting.name} in encode()"
    evidence = {"one_pass": float(forced.mean()), "decoded": float(decoded.mean()), "apart": differs.rate}
    lost, gained = Proportion.count(forced & ~decoded), Proportion.count(decoded & ~forced)
    verdict = FAIL if lost.low > MAX_ROUNDING_SHARE or gained.low > MAX_GAINED else WARN
    return Finding(verdict, finding, cause, fix, evidence)


def _cause(forced: Hits, decoded: Hits) -> tuple[str, str]:
    """Return why teacher-forced and decoded answers may differ, and the fix, by which of them are right more often."""
    if (forced & ~decoded).sum() >= (decoded & ~forced).sum():
        return (
            "consistent with a generate() that feeds the model differently than training, a decoder that sees the "
            "token it has to predict, or labels that leave tokens out; accumulating errors cannot cause this",
            "feed generate() as encode() does, start token included, and use every token of the answer as a label",
        )
    return (
        "consistent with labels that contain more than the answer, such as padding after its end, with labels that are "
        "off by one place, or with a generate() that chooses among fewer tokens than one pass does",
        "label everything that is no part of the answer with -100, and label each position with the token after it",
    )


def _first_place(model: AuditedSequenceModel, forced: Hits, decoded: Hits) -> str:
    """Return in words the place at which decoded answers first go wrong most often, where teacher forcing is right."""
    rows = forced & ~decoded & (model.decoded >= 0).all(axis=1)
    if not rows.any():
        return ""
    first = (model.decoded[rows] != model.right_answers[rows]).argmax(axis=1)
    place, count = int(np.bincount(first).argmax()), int(np.bincount(first).max())
    where = with_article(model.places[place])
    return f", and the first wrong decoded token is at {where} in {count:,} of {int(rows.sum()):,}"


def _condition(model: AuditedSequenceModel, differs: Hits) -> str:
    """Describe the condition under which teacher forcing and decoding disagree most often; empty if none stands out."""
    largest, sentence = MIN_DIFFERENCE, ""
    for condition, holds in _conditions(model):
        if min(int(holds.sum()), int((~holds).sum())) < MIN_GROUP:
            continue
        difference = float(differs[holds].mean() - differs[~holds].mean())
        if difference > largest + 1e-9:
            largest = difference
            sentence = (
                f"; most often where {condition}: {int(differs[holds].sum()):,} of {int(holds.sum()):,}, "
                f"against {int(differs[~holds].sum()):,} of {int((~holds).sum()):,} elsewhere"
            )
    return sentence


def _conditions(model: AuditedSequenceModel) -> Iterator[tuple[str, Hits]]:
    """Yield conditions as texts, each with the examples that meet it: a token at a place, or a group of the task."""
    right = model.right_answers
    for place, name in enumerate(model.places):
        for token in np.unique(right[:, place]).tolist():
            yield f"the {name} token is {model.token(token)}", right[:, place] == token
    for token in np.unique(right).tolist():
        yield f"the right answer contains {model.token(token)}", (right == token).any(axis=1)
    for facet, labels in model.task.facets(model.examples).items():
        for group in sorted(set(labels), key=natural_order):
            yield f"{facet} = {group}", np.array(labels) == group


PART = Check(
    "HC106",
    "Are teacher forcing and decoding right on different examples?",
    sequences=run,
    needs_decoding=True,
    is_quick=True,
)
