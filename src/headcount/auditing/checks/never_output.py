"""Is a token never output where it is right?

The published reports 001 and 002 gave their loss `ignore_index=0`, because 0 was the id of padding; but it was also the
id of the digit 0. The digit was never a label, so the model never outputs it, and every answer that contains a 0 is
wrong. An accuracy that ignores the same id does not show this. The check fails if a token is never output where it is
right, although other tokens are mostly right at the same places.
"""

import numpy as np

from headcount.auditing.audited_model import AuditedSequenceModel
from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.decoded_answers import MIN_OTHERS_RIGHT, constant_columns, missing_tokens


def run(model: AuditedSequenceModel) -> Finding:
    """Fail if there are tokens that the model never outputs at the places where they are right."""
    right, (hits, is_counted) = model.right_answers, model.token_hits
    others, missing = missing_tokens(model)
    constants = constant_columns(model)
    if not missing and others.low < MIN_OTHERS_RIGHT:
        return not_applicable(f"too few tokens are predicted right: {others.correct:,} of {others.n:,}")
    if not missing:
        return passed("the model outputs every token where it is right", tokens=len(np.unique(right)), places=others.n)
    # A column may be constant because all but one of its tokens are missing; then it has no fault of its own.
    is_checked = np.array([constants.get(column) not in missing for column in range(right.shape[1])])
    is_missing = np.isin(right, missing) & is_checked & model.required_tokens
    n_right, n_output = int((is_missing & is_counted).sum()), int((is_missing & is_counted & hits).sum())
    still_right = ~is_missing.any(axis=1)
    names = ", ".join(map(model.token, missing))
    return failed(
        f"the model {'never' if not n_output else 'hardly ever'} outputs {names}: {n_output:,} times at the "
        f"{n_right:,} places of answers where this would be right (other tokens are right at {others.correct:,} of "
        f"{others.n:,} places); {int((~still_right).sum()):,} of {len(still_right):,} right answers contain it",
        cause="consistent with a loss that ignores this token (ignore_index, often because it is also the padding id)",
        fix="give padding an id of its own, and let the loss ignore only that id",
        right_despite_fault=still_right,
        tokens=names,
        predicted=float(still_right.mean()),
        measured=float(model.right.mean()),
    )


PART = Check("HC102", "Is a token never output where it is right?", sequences=run, is_quick=True)
