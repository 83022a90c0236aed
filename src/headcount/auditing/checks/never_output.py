"""Is a token never output where it is right?

Reports 001 and 002 gave the loss `ignore_index=0`, for 0 was their padding, and digit 0 with it: 0 was never a target,
so the model never outputs it, and every answer with a 0 in it is wrong. Accuracy that is counted with the same mask
does not show that. It is seen in the answers: other tokens are right at the same places, and this one never is.
"""

import numpy as np

from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.observed import Observed
from headcount.auditing.written_answers import OTHERS, constant_places, has_to_be_written, missing_tokens, token_hits


def run(observed: Observed) -> Finding:
    """Token by token, over all places that the model predicts."""
    right, (hits, is_known) = observed.right_answers, token_hits(observed)
    others, missing = missing_tokens(observed)
    constant = constant_places(observed)
    if not missing and others.low < OTHERS:
        return not_applicable(f"tokens of any kind are seldom right: {others.correct:,} of {others.n:,}")
    if not missing:
        return passed("every token is output where it is right", tokens=len(np.unique(right)), places=others.n)
    # A place may be constant because all but one of its tokens are missing; then there is no other fault in it.
    counts = np.array([constant.get(place) not in missing for place in range(right.shape[1])])
    lacks = np.isin(right, missing) & counts & has_to_be_written(observed)
    n_right, n_output = int((lacks & is_known).sum()), int((lacks & is_known & hits).sum())
    still_right = ~lacks.any(axis=1)
    names = ", ".join(map(observed.token, missing))
    return failed(
        f"{names} {'is' if len(missing) == 1 else 'are'} {'never' if not n_output else 'hardly ever'} output: "
        f"in {n_output:,} of {n_right:,} places where that is right, and other tokens in {others.correct:,} of "
        f"{others.n:,}; {int((~still_right).sum()):,} of {len(still_right):,} right answers have it",
        cause="consistent with a loss that ignores this token (ignore_index, often because it is also the padding id)",
        fix="give padding an id of its own, and let the loss ignore that id alone",
        right_despite_fault=still_right,
        tokens=names,
        predicted=float(still_right.mean()),
        measured=float(observed.right.mean()),
    )


PART = Check(
    "HC102",
    "Is a token never output where it is right?",
    run,
    asks="sequence",
    is_quick=True,
    explains=("HC104", "HC106", "HC303", "HC304", "HC702", "HC703", "HC802"),
)
