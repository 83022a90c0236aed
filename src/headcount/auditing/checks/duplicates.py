"""Is the same example in the test set twice?

Drawn each by itself, test sets repeat examples, or have a sum and its swap, as those of the newer reports could: then
fewer different examples were tested than n says, and intervals are too narrow.
"""

import numpy as np

from headcount.auditing.check import CONCLUSIONS, Check, Finding, passed, warned
from headcount.auditing.observed import Observed, row_keys


def run(observed: Observed) -> Finding:
    """Exactly, and swapped."""
    examples, n = observed.examples, observed.n
    again = n - len(set(row_keys(examples)))
    different = n - again
    if observed.is_commutative:
        different = len(set(row_keys(np.sort(examples, axis=1))))
    swapped = n - again - different
    if different == n:
        return passed(f"all {n:,} test examples are different", n=n)
    counts = {"as they are": again, "with operands swapped": swapped}
    told = " and ".join(f"{count:,} {how}" for how, count in counts.items() if count)
    return warned(
        f"of {n:,} test examples only {different:,} are different; the others are there again: {told}",
        cause="the test set was drawn with replacement, or a sum and its swap were taken for two examples",
        fix="draw test examples without repeats, a sum and its swap being one, or give intervals for those that differ",
        again=again,
        swapped=swapped,
        different=different,
        n=n,
    )


PART = Check("HC402", "Is the same example in the test set twice?", run, is_quick=True, affects=CONCLUSIONS)
