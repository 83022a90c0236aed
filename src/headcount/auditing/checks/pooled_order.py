"""Does something else than attention supply the order?

Report 003 pooled over [min, least difference of neighbours, mean difference, first, last] to mend extrapolation; such
differences hand the order to the model, and without any positions it scored 98 to 100 % too. With all heads ablated,
nothing can be compared by attention: a model that still prefers sorted sequences to their adjacent swaps has the order
from elsewhere, and an experiment on it tests neither attention nor the encoding. Which of the two it prefers is asked,
not what it answers, for without heads all logits may be shifted.
"""

from typing import cast

import numpy as np

from headcount.auditing.check import CONCLUSIONS, Check, Finding, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.hooks.gates import Gates, closed_gates
from headcount.tasks.base import ClassTask, Examples

N_PAIRS = 200
WELL = 0.85
"""Share of pairs, without heads; sound models of ours come to 0.67 at most, one that pools differences to 0.95."""
SAME = 1e-6
"""Logits that are no further apart are equal: neither of the two is preferred."""


def run(observed: Observed) -> Finding:
    """Pairs of an adjacent swap and its sorted self, with and without heads."""
    sites = observed.model.sites
    if not sites:
        return not_applicable("it has no heads")
    pairs = _pairs(observed)
    whole = _preferred(observed, pairs)
    with Gates(sites, closed_gates(sites, sites.heads)):
        headless = _preferred(observed, pairs)
    told = f"without any head it prefers the sorted one of {100 * headless:.1f} % of {N_PAIRS} pairs of a sequence and "
    told += f"its adjacent swap (50 % by chance), with all heads of {100 * whole:.1f} %"
    if headless < WELL:
        return passed(told, headless=headless, whole=whole, n=N_PAIRS)
    return warned(
        f"{told}: the order comes from something else than attention",
        cause="consistent with a pooling over differences of neighbours, or a convolution, which compares them itself",
        fix="pool without comparing places (mean, max, one token), or do not tell it as a result about encodings",
        headless=headless,
        whole=whole,
        n=N_PAIRS,
    )


def _pairs(observed: Observed) -> tuple[Examples, Examples]:
    task, rng = cast(ClassTask, observed.task), observed.rng("pooled order")
    longest = observed.trained_lengths[1]
    return task.cropped(rng, task.sample_of_length(rng, longest, task.local_negative, N_PAIRS), longest)


def _preferred(observed: Observed, pairs: tuple[Examples, Examples]) -> float:
    """The share of pairs whose second one has more of a lead for the last class; a tie counts half."""
    logits = [observed.classify(each).logits.astype(float) for each in pairs]
    broken, mended = (each[:, -1] - each[:, :-1].max(axis=1) for each in logits)
    apart = mended - broken
    return float((apart > SAME).mean() + 0.5 * (np.abs(apart) <= SAME).mean())


PART = Check("HC506", "Does something else than attention supply the order?", run, asks="class", affects=CONCLUSIONS)
