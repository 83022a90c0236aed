"""Is the order of heads by what they cost the same on other examples, and with another replacement?

Report 000 ranked heads on a single example. The heads that matter differ from report to report, and what a head costs
depends on what replaces it: by zero a constant is missing that later layers count on, by its mean it is not. An order
that other examples turn round is the order of those examples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headcount.auditing.check import CONCLUSIONS, Check, Evidence, Finding, not_applicable, passed, warned
from headcount.auditing.head_sweep import HeadSweep
from headcount.auditing.observed import Observed
from headcount.stats import rank_correlations

LOW = 0.3
"""A rank correlation below is no agreement."""
APART = 0.05
"""The costliest head and the cheapest are at least so far apart, or there is nothing to rank."""
NOTHING = 0.03
"""What costs less on a half counts as nothing there: one or two examples."""
N_SPLITS = 100
"""Ways to make halves."""
FEWEST = 6
"""Heads; of fewer, a rank correlation says little."""


def run(observed: Observed) -> Finding:
    """Over halves of the examples, and zero beside mean."""
    if (n_heads := len(observed.model.sites.heads)) < FEWEST:
        return not_applicable(f"it has {n_heads} heads, too few for an order")
    sweep = observed.head_sweep
    n = sweep.n
    drops = sweep.drops(sweep.zero)
    if np.ptp(drops) < APART:
        most = f"no two of {n_heads} heads differ by {100 * APART:.0f} points in what they cost alone"
        return passed(f"{most}: there is nothing to rank", n=n, largest_drop=float(drops.max()))
    halves, other = between_halves(sweep, observed.rng("halves")), float(_agreement(drops, sweep.drops(sweep.mean)))
    evidence: Evidence = {"between_halves": halves, "zero_and_mean": other, "n": n, "largest_drop": float(drops.max())}
    if halves < LOW:
        return warned(
            f"the order of {n_heads} heads by what they cost depends on the examples: between two halves of "
            f"{n} examples its rank correlation is {halves:.2f}",
            cause="heads differ in cost by less than examples do",
            fix="rank heads on more examples, with intervals, or do not rank them",
            **evidence,
        )
    if other < LOW:
        return warned(
            f"the order of {n_heads} heads by what they cost depends on the replacement: between zero and mean its "
            f"rank correlation is {other:.2f} on {n} examples",
            cause="some heads add a constant that later layers count on, and zero takes that away, too",
            fix="say by what heads were replaced, and give the order for zero, mean and resample",
            **evidence,
        )
    told = f"the order of {n_heads} heads has a rank correlation of {halves:.2f} between halves of {n} examples"
    return passed(f"{told} and of {other:.2f} between zero and mean", **evidence)


def between_halves(sweep: HeadSweep, rng: np.random.Generator) -> float:
    """The median rank correlation over many ways to make halves."""
    found = []
    for _ in range(N_SPLITS):
        order = rng.permutation(sweep.n)
        one, other = (sweep.drops(sweep.zero, part) for part in np.array_split(order, 2))
        found.append(_agreement(one, other))
    return float(np.median(found))


def _agreement(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank correlation, where drops that are next to nothing are ties."""
    return rank_correlations(*(np.where(np.abs(drops) < NOTHING, 0.0, drops) for drops in (one, other)))


PART = Check(
    "HC703", "Is the order of heads the same on other examples, and with another replacement?", run, affects=CONCLUSIONS
)
