"""Is a place of the answer constant though right answers vary there?

Three reports fed the decoder target[:-1] and asked for target[1:], without a start token: the first digit was never a
target, and generation began with a 0 of its own. Their authors saw 99.9 % in training, 35 to 41 % when generating, and
wrote of cascading errors or rare carries.
"""

from typing import cast

import numpy as np

from headcount.auditing.check import Check, Finding, failed, passed, warned
from headcount.auditing.observed import Observed
from headcount.auditing.written_answers import Place, answer_places, is_constant_for_lack_of_others
from headcount.stats import Proportion

ENOUGH = 0.05
"""Right answers that have another token there, at least."""
SELDOM = 0.2
"""Of the answers that a constant place leaves right: if fewer are, it is not what is wrong."""


def run(observed: Observed) -> Finding:
    """Place by place; a model with one answer to everything has another fault."""
    n, places = observed.n, answer_places(observed)
    constant = [each for each in places if _is_faulty(observed, each)]
    if not constant:
        return passed("every place of the answer varies as right answers do", places=len(places), n=n)
    told = [
        f"the {each.name} is {observed.token(cast(int, each.constant))} in "
        f"{int((each.predicted == each.constant).sum()):,} of {n:,} answers, "
        f"and in {int((each.right == each.constant).sum()):,} of the right ones"
        for each in constant
    ]
    still_right = np.all([(each.right == each.constant) | (each.predicted < 0) for each in constant], axis=0)
    is_first = constant[0].is_first
    left = Proportion.count(observed.right_without_separators[still_right]) if still_right.any() else None
    if left is not None and left.high < SELDOM:
        return warned(
            f"{'; '.join(told)}; of the {left.n:,} answers which that leaves right, {left.correct:,} are",
            cause="consistent with a model that has learned little: more is wrong than this place",
            fix="look at the loss first, and whether the trained weights are those that are measured",
            n=n,
        )
    return failed(
        "; ".join(told),
        cause="consistent with a decoder that was trained without a start token: fed target[:-1] and asked for "
        "target[1:], it never learns the first token, and generation begins with one that is made up"
        if is_first
        else "consistent with a place that the loss never asked for",
        fix="feed [start, *answer[:-1]], ask for the whole answer, and begin generation with the start token"
        if is_first
        else "ask for every place of the answer in the loss, and decode every one",
        right_despite_fault=still_right,
        places=", ".join(each.name.removesuffix(" digit") for each in constant),
        predicted=float(still_right.mean()),
        measured=float(observed.right.mean()),
    )


def _is_faulty(observed: Observed, place: Place) -> bool:
    """Whether one token stands there in nearly all answers, and right answers have others."""
    rows, token = place.predicted >= 0, place.constant
    if token is None or not place.is_shown or (place.right[rows] != token).mean() <= ENOUGH:
        return False
    return place.column is None or not is_constant_for_lack_of_others(observed, place.column, token)


PART = Check(
    "HC101",
    "Is a place of the answer constant though right answers vary there?",
    run,
    asks="sequence",
    needs_decoding=True,
    is_quick=True,
    explains=("HC106", "HC107", "HC303", "HC304", "HC702", "HC703", "HC802"),
)
