"""Is a token never output where it is right?

Reports 001 and 002 gave the loss `ignore_index=0`, for 0 was their padding, and digit 0 with it: 0 was never a target,
so the model never outputs it, and every answer with a 0 in it is wrong. Accuracy that is counted with the same mask
does not show that. It is seen in the answers: other tokens are right at the same places, and this one never is.
"""

import numpy as np

from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.observed import Hits, Observed
from headcount.stats import Proportion
from headcount.training.answers import RARELY

ENOUGH = 20
"""Times that a token has to be right."""
OTHERS = 0.5
"""Share of other tokens that are right at the same places, at least: a model that learned little misses them all."""


def look(observed: Observed) -> Finding:
    """Token by token, over all places that the model predicts."""
    right, (hits, is_known) = observed.right_answers, _hits(observed)
    others, missing = _missing(observed)
    constant = _constant_places(observed)
    if not missing and others.low < OTHERS:
        return not_applicable(f"tokens of any kind are seldom right: {others.correct:,} of {others.n:,}")
    if not missing:
        return passed("every token is output where it is right", tokens=len(np.unique(right)), places=others.n)
    # A place may be constant because all but one of its tokens are missing; then there is no other fault in it.
    counts = np.array([constant.get(place) not in missing for place in range(right.shape[1])])
    lacks = np.isin(right, missing) & counts
    n_right, n_output = int((lacks & is_known).sum()), int((lacks & is_known & hits).sum())
    spared = ~lacks.any(axis=1)
    names = ", ".join(map(observed.token, missing))
    return failed(
        f"{names} {'is' if len(missing) == 1 else 'are'} {'never' if not n_output else 'hardly ever'} output: "
        f"in {n_output:,} of {n_right:,} places where that is right, and other tokens in {others.correct:,} of "
        f"{others.n:,}; {int((~spared).sum()):,} of {len(spared):,} right answers have it",
        cause="consistent with a loss that ignores this token (ignore_index, often because it is also the padding id)",
        fix="give padding an id of its own, and let the loss ignore that id alone",
        spared=spared,
        tokens=names,
        predicted=float(spared.mean()),
        measured=float(observed.right.mean()),
    )


def _hits(observed: Observed) -> tuple[Hits, Hits]:
    """[example, place]: right, and whether that is known; decoded, or from one pass where that gave no answer."""
    found = observed.sequences
    if found.free is None:
        return found.teacher_forced_hits, found.asked
    is_answer = (found.free >= 0).all(axis=1, keepdims=True)
    return np.where(is_answer, found.free_hits, found.teacher_forced_hits), is_answer | found.asked


def _constant_places(observed: Observed) -> dict[int, int]:
    """By place that is not predicted as it seems, its one token."""
    if not observed.decodes:
        return {}
    free = observed.free[(observed.free >= 0).all(axis=1)]
    found = {}
    for place in range(free.shape[1] if len(free) else 0):
        token = int(np.bincount(free[:, place]).argmax())
        others = Proportion.count(free[:, place] != token)
        if not others.correct or others.high < RARELY:
            found[place] = token
    return found


def is_constant_for_lack_of_others(observed: Observed, place: int, token: int) -> bool:
    """Whether a place is constant only because every other token that is right there is never output anywhere."""
    _, missing = _missing(observed)
    others = np.setdiff1d(observed.right_answers[:, place], [token])
    return token not in missing and bool(np.isin(others, missing).all())


def _missing(observed: Observed) -> tuple[Proportion, list[int]]:
    """How often tokens that are not missing are right, at places that vary, and the missing ones."""
    right, (hits, is_known), constant = observed.right_answers, _hits(observed), _constant_places(observed)
    counts = is_known & np.array([place not in constant for place in range(right.shape[1])])
    missing = []
    for token in np.unique(right[counts]).tolist():
        mine = counts & (right == token)
        at_its_places = counts & (right != token) & mine.any(axis=0)
        own = Proportion.count(hits[mine])
        is_rare = own.n >= ENOUGH and (not own.correct or own.high < RARELY)
        if is_rare and at_its_places.any() and Proportion.count(hits[at_its_places]).low > OTHERS:
            missing.append(token)
    rest = counts & ~np.isin(right, missing)
    return Proportion.count(hits[rest]) if rest.any() else Proportion.of(0, 1), missing


PART = Check(
    "HC102",
    "Is a token never output where it is right?",
    look,
    asks="sequence",
    is_quick=True,
    explains=("HC104", "HC106", "HC303", "HC304", "HC702", "HC703", "HC802"),
)
