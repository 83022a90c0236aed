"""Does something else than attention supply the order?

Report 003 pooled over [min, least difference of neighbours, mean difference, first, last] to mend extrapolation; such
differences hand the order to the model, and without any positions it scored 98 to 100 % too. With all heads ablated,
nothing can be compared by attention: a model that still tells adjacent swaps from sorted sequences has the order from
elsewhere, and an experiment on it tests neither attention nor the encoding.
"""

from typing import cast

from headcount.auditing.check import Check, Finding, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.hooks.gates import Gates, closed_gates
from headcount.stats import Proportion
from headcount.tasks.base import ClassTask, Examples

N_PAIRS = 200
WELL, LESS = 0.9, 0.05
"""Share that is right without heads, and what may be lost with them."""


def run(observed: Observed) -> Finding:
    """Pairs of an adjacent swap and its sorted self, with and without heads."""
    sites = observed.model.sites
    if not sites:
        return not_applicable("it has no heads")
    pairs = _pairs(observed)
    whole = _right(observed, pairs)
    with Gates(sites, closed_gates(sites, sites.heads)):
        headless = _right(observed, pairs)
    told = f"without any head it is right on {100 * headless.rate:.1f} % of {N_PAIRS} adjacent swaps and their sorted "
    told += f"selves, with all heads on {100 * whole.rate:.1f} %"
    numbers = {"headless": headless.rate, "whole": whole.rate, "n": headless.n}
    if headless.rate < WELL or headless.rate < whole.rate - LESS:
        return passed(told, **numbers)
    return warned(
        f"{told}: the order comes from something else than attention",
        cause="consistent with a pooling over differences of neighbours, or a convolution, which compares them itself",
        fix="pool without comparing places (mean, max, one token), or do not tell it as a result about encodings",
        **numbers,
    )


def _pairs(observed: Observed) -> tuple[Examples, Examples]:
    task, rng = cast(ClassTask, observed.task), observed.rng("pooled order")
    longest = observed.trained_lengths[1]
    return task.cropped(rng, task.sample_of_length(rng, longest, task.local_negative, N_PAIRS), longest)


def _right(observed: Observed, pairs: tuple[Examples, Examples]) -> Proportion:
    hits = [observed.classify(each).hits for each in pairs]
    return Proportion.of(int(sum(each.sum() for each in hits)), sum(map(len, hits)))


PART = Check("HC506", "Does something else than attention supply the order?", run, asks="class")
