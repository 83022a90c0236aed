"""Is a place of the answer constant though right answers vary there?

Three reports fed the decoder target[:-1] and asked for target[1:], without a start token: the first digit was never a
target, and generation began with a 0 of its own. Their authors saw 99.9 % in training, 35 to 41 % when generating, and
wrote of cascading errors or rare carries.
"""

from headcount.auditing.check import Check, Finding, failed, passed, warned
from headcount.auditing.observed import Observed
from headcount.auditing.written_answers import is_constant_for_lack_of_others
from headcount.stats import Proportion
from headcount.training.answers import RARELY

ENOUGH = 0.05
"""Right answers that have another token there, at least."""
SELDOM = 0.2
"""Of the answers that a constant place leaves right: if fewer are, it is not what is wrong."""


def run(observed: Observed) -> Finding:
    """Place by place; a model with one answer to everything has another fault."""
    free, right, n = observed.free, observed.right_answers, observed.n
    constant = []
    for place in range(free.shape[1]):
        token = int(free[0, place])
        others, varied = Proportion.count(free[:, place] != token), float((right[:, place] != token).mean())
        is_constant = others.high < RARELY and varied > ENOUGH and token >= 0
        if is_constant and not is_constant_for_lack_of_others(observed, place, token):
            constant.append((place, token, n - others.correct))
    if not constant:
        return passed("every place of the answer varies as right answers do", places=free.shape[1], n=n)
    told = [
        f"the {observed.places[place]} digit is {observed.token(token)} in {count:,} of {n:,} answers, "
        f"and in {int((right[:, place] == token).sum()):,} of the right ones"
        for place, token, count in constant
    ]
    still_right = (right[:, [place for place, _, _ in constant]] == [token for _, token, _ in constant]).all(axis=1)
    is_first = constant[0][0] == 0
    left = Proportion.count(observed.right[still_right]) if still_right.any() else None
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
        places=", ".join(observed.places[place] for place, _, _ in constant),
        predicted=float(still_right.mean()),
        measured=float(observed.right.mean()),
    )


PART = Check(
    "HC101",
    "Is a place of the answer constant though right answers vary there?",
    run,
    asks="sequence",
    needs_decoding=True,
    is_quick=True,
    explains=("HC106", "HC107", "HC303", "HC304", "HC702", "HC703", "HC802"),
)
