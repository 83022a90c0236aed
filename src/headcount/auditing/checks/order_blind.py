"""Do answers change with the order where they must, and stay where they must?

Without positions, with a symmetric pooling and no causal mask, a model is a function of the multiset of its numbers:
it cannot tell a sequence from its sorted self, and 50 % on such pairs is a theorem and no result. Sums are the other
way round: a+b and b+a have one answer, and a model that was trained on one order may fail on the other.
"""

from typing import cast

import numpy as np

from headcount.auditing.check import Check, Finding, failed, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.stats import Proportion, mcnemar
from headcount.tasks.base import ClassTask

N_PAIRS, N_SUMS = 100, 400
SAME, NEARLY_ALL = 1e-4, 0.95
"""Logits so near, as a share of how far they are apart on other numbers, are the same; in so many of the pairs."""
MUCH, ALPHA = 0.02, 0.001
"""Points between the two orders of operands, and the chance of so much by luck."""


def run(observed: Observed) -> Finding:
    """Sequences and their sorted selves; or sums and their swaps."""
    if observed.task.output_type == "class":
        return _told_apart(observed)
    if observed.is_commutative:
        return _swapped(observed)
    return not_applicable("the order of its tokens is all that there is to the answer")


def _told_apart(observed: Observed) -> Finding:
    task, rng = cast(ClassTask, observed.task), observed.rng("order blind")
    longest = observed.trained_lengths[1]
    broken, mended = task.cropped(rng, task.sample_of_length(rng, longest, task.negatives[0], N_PAIRS), longest)
    one, other = (observed.classify(each).logits.astype(float) for each in (broken, mended))
    apart, between = np.abs(one - other).max(axis=1), float(np.abs(one - one.mean(axis=0)).max())
    if between < 1e-6 * max(1.0, float(np.abs(one).max())):
        return not_applicable("its logits are the same whatever the numbers are, so that order is not to be seen")
    same = Proportion.count(apart <= SAME * between)
    told = f"{same.correct} of {same.n} shuffled sequences get the logits of their sorted selves"
    if same.rate < NEARLY_ALL:
        return passed(told, same=same.correct, n=same.n)
    return failed(
        f"{told}: the model does not see the order of its numbers, so that 50 % on such pairs is certain beforehand",
        cause="consistent with attention without positions and without a causal mask, under a symmetric pooling: "
        "a function of which numbers there are, in whatever order",
        fix="add positions to the embeddings (and check that they arrive), or mask what lies ahead",
        same=same.correct,
        n=same.n,
    )


def _swapped(observed: Observed) -> Finding:
    """The same sums twice, the smaller operand first and last."""
    pairs = observed.examples[:N_SUMS]
    ascending = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
    if not len(ascending):
        return not_applicable("no test example has two different operands")
    up, down = observed.right_on(ascending), observed.right_on(np.ascontiguousarray(ascending[:, ::-1]))
    lost, won, n = int((up & ~down).sum()), int((~up & down).sum()), len(up)
    told = f"with operands swapped {lost + won} of {n} answers change from right to wrong or back"
    numbers = {"smaller_first": float(up.mean()), "larger_first": float(down.mean()), "changed": lost + won, "n": n}
    if abs(lost - won) <= MUCH * n or mcnemar(lost, won) >= ALPHA:
        return passed(told, **numbers)
    return warned(
        f"{told}: {100 * up.mean():.1f} % are right with the smaller operand first, "
        f"{100 * down.mean():.1f} % with the larger first",
        cause="consistent with training on sums in one order, such as unordered pairs that were written sorted",
        fix="train and test on both a+b and b+a, in one split",
        **numbers,
    )


PART = Check(
    "HC505",
    "Do answers change with the order where they must, and stay where they must?",
    run,
    explains=("HC301", "HC302", "HC303", "HC304", "HC601", "HC602"),
)
