"""Is the ranking of heads the same on other examples, and with another replacement?

Published report 000 ranked heads on a single example. The most important heads differ from report to report, and a
head's drop depends on what replaces its output: zero ablation also removes a constant that later layers need, and mean
ablation does not. A ranking that is reversed on other examples says nothing about the heads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headcount.auditing.audited_model import AuditedModel
from headcount.auditing.check import CONCLUSIONS, Check, Evidence, Finding, not_applicable, passed, warned
from headcount.auditing.head_sweep import HeadSweep
from headcount.stats import rank_correlations

MIN_CORRELATION = 0.3
"""Minimum rank correlation of two rankings of heads that count as agreeing."""
MIN_RANGE = 0.05
"""Minimum difference between the largest and smallest drop of a head: with less, there is nothing to rank."""
MAX_NO_DROP = 0.03
"""A head's drop below this, on half of the examples, counts as zero: it is one or two examples."""
N_SPLITS = 100
"""Number of random splits of the examples into halves; the median of their rank correlations is used."""
MIN_HEADS = 6
"""Minimum number of heads: with fewer, a rank correlation says little."""


def run(model: AuditedModel) -> Finding:
    """Compare the ranking of heads on two halves of the examples, and under zero and mean ablation."""
    if (n_heads := len(model.opened.sites.heads)) < MIN_HEADS:
        return not_applicable(f"the model has {n_heads} heads, too few for a ranking")
    sweep = model.head_sweep
    n = sweep.n
    drops = sweep.drops(sweep.zero)
    if np.ptp(drops) < MIN_RANGE:
        finding = f"the drops of {n_heads} heads differ by less than {100 * MIN_RANGE:.0f} points: nothing to rank"
        return passed(finding, n=n, largest_drop=float(drops.max()))
    halves, other = between_halves(sweep, model.rng("halves")), float(_agreement(drops, sweep.drops(sweep.mean)))
    evidence: Evidence = {"between_halves": halves, "zero_and_mean": other, "n": n, "largest_drop": float(drops.max())}
    if halves < MIN_CORRELATION:
        return warned(
            f"the ranking of {n_heads} heads by their drops in accuracy depends on the examples: its rank correlation "
            f"between two halves of {n} examples is {halves:.2f}",
            cause="the drops differ less between heads than between sets of examples",
            fix="rank heads on more examples, with confidence intervals, or do not rank them",
            **evidence,
        )
    if other < MIN_CORRELATION:
        return warned(
            f"the ranking of {n_heads} heads by their drops in accuracy depends on the kind of ablation: its rank "
            f"correlation between zero and mean ablation is {other:.2f} on {n} examples",
            cause="some heads add a constant that later layers need, and zero ablation removes it, too",
            fix="state the kind of ablation, and give the ranking for zero, mean and resample ablation",
            **evidence,
        )
    correlations = f"{halves:.2f} between halves of {n} examples and {other:.2f} between zero and mean ablation"
    return passed(f"the rank correlation of the drops of {n_heads} heads is {correlations}", **evidence)


def between_halves(sweep: HeadSweep, rng: np.random.Generator) -> float:
    """Return the rank correlation of heads' drops between two random halves of the examples; median over splits."""
    correlations = []
    for _ in range(N_SPLITS):
        order = rng.permutation(sweep.n)
        one, other = (sweep.drops(sweep.zero, half) for half in np.array_split(order, 2))
        correlations.append(_agreement(one, other))
    return float(np.median(correlations))


def _agreement(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank correlation of two lists of drops, one per head; drops close to zero count as equal."""
    return rank_correlations(*(np.where(np.abs(drops) < MAX_NO_DROP, 0.0, drops) for drops in (one, other)))


PART = Check(
    "HC703",
    "Is the ranking of heads the same on other examples, and with another replacement?",
    sequences=run,
    classes=run,
    affects=CONCLUSIONS,
)
