"""Does the model get the order of its input from something other than attention?

Published report 003 pooled over [min, least difference of neighbours, mean difference, first, last] to improve
extrapolation. Such differences give the model the order of neighbours, so it reached 98 to 100 % even without
positions. With all heads ablated, attention cannot compare anything. If a model without heads still prefers sorted
sequences to copies with an adjacent swap, an experiment on it tests neither attention nor the encoding. The check asks
which of two sequences has the larger margin, not which class is output, because without heads all logits may be
shifted.
"""

import numpy as np

from headcount.auditing.audited_model import AuditedClassifier
from headcount.auditing.check import CONCLUSIONS, Check, Finding, not_applicable, passed, warned
from headcount.formatting import percent
from headcount.hooks.gates import Gates, closed_gates
from headcount.tasks.base import Examples

N_PAIRS = 200
"""Number of pairs of sequences to compare: the 95 % CI of a fraction of them is then at most 14 points wide."""
MIN_PREFERRED = 0.85
"""The check warns if, without heads, the sorted sequence is preferred in at least this fraction of pairs. For sound
models it is in at most 67 %, and for a model that pools over differences of neighbours in 95 %."""
MAX_TIE = 1e-6
"""If the logits of a pair differ by no more than this, neither sequence is preferred."""


def run(model: AuditedClassifier) -> Finding:
    """Count pairs in which the model prefers a sorted sequence to one with an adjacent swap, even without heads."""
    sites = model.opened.sites
    if not sites:
        return not_applicable("the model has no heads")
    task, rng, longest = model.task, model.rng("pooled order"), model.trained_lengths[1]
    pairs = task.cropped(rng, task.sample_of_length(rng, longest, task.local_negative, N_PAIRS), longest)
    whole = _preferred(model, pairs)
    with Gates(sites, closed_gates(sites, sites.heads)):
        headless = _preferred(model, pairs)
    finding = (
        f"in {N_PAIRS} pairs of a sorted sequence and its copy with two neighbours swapped, the model without any head "
        f"prefers the sorted one in {percent(headless)} (50 % by chance), and with all heads in {percent(whole)}"
    )
    if headless < MIN_PREFERRED:
        return passed(finding, headless=headless, whole=whole, n=N_PAIRS)
    return warned(
        f"{finding}: the model gets the order from something other than attention",
        cause="consistent with a pooling over differences of neighbours, or with a convolution, both of which compare "
        "neighbours without attention",
        fix="use a pooling that does not compare neighbours (mean, max, one token), or do not report the accuracy as a "
        "result about position encodings",
        headless=headless,
        whole=whole,
        n=N_PAIRS,
    )


def _preferred(model: AuditedClassifier, pairs: tuple[Examples, Examples]) -> float:
    """Return the fraction of pairs where the sorted sequence has the larger margin for the last class (ties half)."""
    logits = [model.classify(each).logits.astype(float) for each in pairs]
    swapped, in_order = (each[:, -1] - each[:, :-1].max(axis=1) for each in logits)
    leads = in_order - swapped
    return float((leads > MAX_TIE).mean() + 0.5 * (np.abs(leads) <= MAX_TIE).mean())


PART = Check(
    "HC506",
    "Does the model get the order of its input from something other than attention?",
    classes=run,
    affects=CONCLUSIONS,
)
