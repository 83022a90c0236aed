"""Does the test set contain the same example twice?

If test examples are drawn independently, a test set repeats examples or has both a+b and b+a, as in some published
reports. Fewer different examples are then tested than n says, and confidence intervals are too narrow.
"""

import numpy as np

from headcount.auditing.audited_model import AuditedModel, row_keys
from headcount.auditing.check import CONCLUSIONS, Check, Finding, passed, warned


def run(model: AuditedModel) -> Finding:
    """Count test examples that occur twice, exactly or with their operands swapped; warn if there are any."""
    examples, n = model.examples, model.n
    n_repeated = n - len(set(row_keys(examples)))
    n_different = n - n_repeated
    if model.is_commutative:
        n_different = len(set(row_keys(np.sort(examples, axis=1))))
    n_swapped = n - n_repeated - n_different
    if n_different == n:
        return passed(f"all {n:,} test examples are different", n=n)
    counts = {"repeated exactly": n_repeated, "repeated with operands swapped": n_swapped}
    repeats = " and ".join(f"{count:,} are {how}" for how, count in counts.items() if count)
    return warned(
        f"only {n_different:,} of {n:,} test examples are distinct: {repeats}",
        cause="the test set was drawn with replacement, or a+b and b+a were counted as two examples",
        fix="draw test examples without repeats and count a+b and b+a as one, or compute confidence intervals from "
        "the number of distinct examples",
        again=n_repeated,
        swapped=n_swapped,
        different=n_different,
        n=n,
    )


PART = Check(
    "HC402",
    "Does the test set contain the same example twice?",
    sequences=run,
    classes=run,
    is_quick=True,
    affects=CONCLUSIONS,
)
