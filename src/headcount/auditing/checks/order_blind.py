"""Do answers depend on the order of the input where they should, and not where they should not?

Without positions and causal mask, and with a symmetric pooling, a model's output depends on the set of its numbers
only. The model cannot tell a sequence from its sorted copy, and 50 % on such pairs is certain without any measurement.
Sums are the opposite case: a+b and b+a have the same answer, and a model trained on one order may fail on the other.
"""

import numpy as np

from headcount.auditing.audited_model import AuditedClassifier, AuditedSequenceModel
from headcount.auditing.check import Check, Finding, failed, not_applicable, passed, warned
from headcount.formatting import percent
from headcount.stats import Proportion, mcnemar

N_PAIRS, N_SUMS = 100, 400
"""Number of pairs of sequences, and number of sums, to compare."""
MAX_LOGIT_DIFFERENCE = 1e-4
"""A difference of logits up to this fraction of their spread over all sequences counts as rounding."""
MIN_SAME = 0.95
"""The model does not see the order if at least this fraction of (shuffled, sorted) pairs have equal logits."""
MIN_LOGIT_SPREAD = 1e-6
"""If logits vary by less than this fraction of the largest logit, the model ignores the numbers altogether."""
MAX_ORDER_DIFFERENCE, MAX_CHANCE = 0.02, 0.001
"""Largest acceptable difference in accuracy between the two orders, and the p-value below which it is significant."""


def check_classes(model: AuditedClassifier) -> Finding:
    """Fail if shuffled sequences have the logits of their sorted copies: the model does not see the order."""
    task, rng, longest = model.task, model.rng("order blind"), model.trained_lengths[1]
    pair = task.cropped(rng, task.sample_of_length(rng, longest, task.negatives[0], N_PAIRS), longest)
    shuffled, in_order = (model.classify(each).logits.astype(float) for each in pair)
    differences = np.abs(shuffled - in_order).max(axis=1)
    spread = float(np.abs(shuffled - shuffled.mean(axis=0)).max())
    if spread < MIN_LOGIT_SPREAD * max(1.0, float(np.abs(shuffled).max())):
        return not_applicable(
            "the logits are the same for all sequences, so the effect of the order of their numbers cannot be tested"
        )
    same = Proportion.count(differences <= MAX_LOGIT_DIFFERENCE * spread)
    finding = f"{same.correct} of {same.n} shuffled sequences have the same logits as their sorted copies"
    if same.rate < MIN_SAME:
        return passed(finding, same=same.correct, n=same.n)
    return failed(
        f"{finding}: the model does not see the order of its numbers, so it is wrong on one sequence of each such pair",
        cause="consistent with attention without positions and without a causal mask, under a symmetric pooling: "
        "the output depends on which numbers there are, not on their order",
        fix="add positions to the embeddings (and check that they reach the attention blocks), or use a causal mask",
        same=same.correct,
        n=same.n,
    )


def check_sequences(model: AuditedSequenceModel) -> Finding:
    """Compare accuracy on sums with the smaller operand first and with the larger operand first."""
    if not model.is_commutative:
        return not_applicable("the right answer depends on the order of the numbers in the question")
    pairs = model.examples[:N_SUMS]
    ascending = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
    if not len(ascending):
        return not_applicable("no test example has two different operands")
    up, down = model.right_on(ascending), model.right_on(np.ascontiguousarray(ascending[:, ::-1]))
    n_lost, n_won, n = int((up & ~down).sum()), int((~up & down).sum()), len(up)
    finding = f"{n_lost + n_won} of {n} answers change from right to wrong or vice versa when the operands are swapped"
    rates = {"smaller_first": float(up.mean()), "larger_first": float(down.mean()), "changed": n_lost + n_won, "n": n}
    if abs(n_lost - n_won) <= MAX_ORDER_DIFFERENCE * n or mcnemar(n_lost, n_won) >= MAX_CHANCE:
        return passed(finding, **rates)
    return warned(
        f"{finding}: {percent(up.mean())} are right with the smaller operand first, "
        f"{percent(down.mean())} with the larger first",
        cause="consistent with training on sums in one order, such as pairs that were sorted",
        fix="train and test on both a+b and b+a, in one split",
        **rates,
    )


PART = Check(
    "HC505",
    "Do answers depend on the order of the input where they should, and not where they should not?",
    sequences=check_sequences,
    classes=check_classes,
)
