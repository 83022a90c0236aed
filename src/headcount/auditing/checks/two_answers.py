"""Do one pass, fed the right answer, and real decoding disagree on which examples are right?

Fed the right answer, a decoder's first wrong token is the one that it writes running freely: in a sound pipeline both
ways are right on the same examples. Two reports saw 99.9 % the one way and 35 % the other, and wrote of errors that add
up in generation, which cannot be. It is seen by comparing the two, example by example, with the place where they part
and the condition under which they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from headcount.auditing.check import FAIL, WARN, Check, Finding, passed
from headcount.auditing.fed_answers import fitting_format
from headcount.auditing.observed import Hits, Observed
from headcount.auditing.written_answers import begins_as_given
from headcount.stats import Proportion
from headcount.tasks.base import SequenceTask

ROUNDING = 0.005
"""Share of examples that two logits of one size may decide one way or the other."""
FEWER_TOKENS = 0.1
"""Share of answers that may be right only when decoded: a loop that chooses among digits is spared other tokens."""
LEAST = 10
"""Examples on each side of a condition."""
CLEARLY = 0.2
"""By how much the share has to differ between the two sides."""


def run(observed: Observed) -> Finding:
    """Exact match both ways, example by example."""
    forced, free = observed.sequences.forced_right & begins_as_given(observed), observed.right
    apart = Proportion.count(forced != free)
    if not apart.correct:
        return passed("one pass and decoding are right on the same examples", n=apart.n, right=int(free.sum()))
    finding = (
        f"one pass, fed the right answer, is right on {int(forced.sum()):,} of {apart.n:,} and decoding on "
        f"{int(free.sum()):,}; they disagree on {apart.correct:,}{_first_place(observed, forced, free)}"
        f"{_condition(observed, forced != free)}"
    )
    cause, fix = _cause(forced, free)
    if (free & ~forced).sum() > (forced & ~free).sum() and (fitting := fitting_format(observed)) is not None:
        finding = f"{finding}; {fitting}"
        cause = f"encode() does not write examples as training did and as generate() does: {fitting.name} fit"
        fix = f"write {fitting.name} in encode()"
    evidence = {"one_pass": float(forced.mean()), "decoded": float(free.mean()), "apart": apart.rate}
    lost, gained = Proportion.count(forced & ~free), Proportion.count(free & ~forced)
    verdict = FAIL if lost.low > ROUNDING or gained.low > FEWER_TOKENS else WARN
    return Finding(verdict, finding, cause, fix, evidence)


def _cause(forced: Hits, free: Hits) -> tuple[str, str]:
    """By which of the two is right where they disagree."""
    if (forced & ~free).sum() >= (free & ~forced).sum():
        return (
            "consistent with a generate() that feeds the model otherwise than in training, a decoder that sees the "
            "token it is to predict, or labels that leave tokens out; errors that add up in generation cannot do this",
            "feed generate() as encode() does, start token included, and ask for every token of the answer",
        )
    return (
        "consistent with labels that ask for more than the answer, such as padding after its end, that are off by "
        "one place, or with a generate() that chooses among fewer tokens than one pass does",
        "label what is no part of the answer with -100, and let the label of a position be the token after it",
    )


def _first_place(observed: Observed, forced: Hits, free: Hits) -> str:
    """Where answers part that one pass has right, as far as what was decoded is an answer."""
    rows = forced & ~free & (observed.free >= 0).all(axis=1)
    if not rows.any():
        return ""
    first = (observed.free[rows] != observed.right_answers[rows]).argmax(axis=1)
    place, count = int(np.bincount(first).argmax()), int(np.bincount(first).max())
    return f", first at the {observed.places[place]} in {count:,} of {int(rows.sum()):,}"


def _condition(observed: Observed, apart: Hits) -> str:
    """That under which they disagree most, against all others."""
    best, told = CLEARLY, ""
    for words, holds in _conditions(observed):
        if min(int(holds.sum()), int((~holds).sum())) < LEAST:
            continue
        difference = float(apart[holds].mean() - apart[~holds].mean())
        if difference > best + 1e-9:
            best = difference
            told = (
                f"; most where {words}: {int(apart[holds].sum()):,} of {int(holds.sum()):,}, "
                f"against {int(apart[~holds].sum()):,} of {int((~holds).sum()):,}"
            )
    return told


def _conditions(observed: Observed) -> Iterator[tuple[str, Hits]]:
    """What holds in some examples: a token at a place or anywhere, and the task's own groups."""
    right = observed.right_answers
    for place, name in enumerate(observed.places):
        for token in np.unique(right[:, place]).tolist():
            yield f"the {name} token is {observed.token(token)}", right[:, place] == token
    for token in np.unique(right).tolist():
        yield f"the right answer has a {observed.token(token)} in it", (right == token).any(axis=1)
    for facet, labels in cast(SequenceTask, observed.task).facets(observed.examples).items():
        for group in sorted(set(labels)):
            yield f"{facet} = {group}", np.array(labels) == group


PART = Check(
    "HC106",
    "Do one pass, fed the right answer, and real decoding disagree on which examples are right?",
    run,
    asks="sequence",
    needs_decoding=True,
    is_quick=True,
)
