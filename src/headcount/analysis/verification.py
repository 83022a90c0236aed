"""Verify a model's answers by the strongest method that works: check all examples or contexts, or search for errors.

A context is the tokens that one position sees.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from headcount.analysis.context_proof import ContextCertificate, context_shape, prove
from headcount.analysis.counterexamples import CounterexampleSearch, search
from headcount.analysis.exhaustive_check import LARGEST_DOMAIN, Certificate, check_every_example, domain_size
from headcount.analysis.worst_margins import WorstMargins, worst_margins
from headcount.experiments.models import OpenModel
from headcount.training.contexts import Undecidable

Verification = Certificate | ContextCertificate | WorstMargins | CounterexampleSearch
"""The outcome of verifying a model, by any method; each has a `verdict` and a list of `wrong` answers."""
VERIFICATIONS: tuple[type[Verification], ...] = (Certificate, ContextCertificate, WorstMargins, CounterexampleSearch)
Counting = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""A function that opens a progress bar with a title, and gives a function that is called with (done, total)."""


def verify(model: OpenModel, *, seconds: float, seed: int, counting: Counting) -> Verification:
    """Verify a model by the strongest method that works for it.

    A finite task is checked on every example. A classifier whose positions see a bounded context is checked on every
    context or, with mean pooling, on the worst sequence of each length. For other models, wrong answers are searched
    for, during the given number of seconds.
    """
    n_examples = domain_size(model)
    if n_examples is not None and n_examples <= LARGEST_DOMAIN:
        with counting("checking every example") as progress:
            return check_every_example(model, progress=progress)
    try:
        if n_examples is not None:
            raise Undecidable(
                f"the task has {n_examples:,} examples, and at most {LARGEST_DOMAIN:,} are checked one by one"
            )
        learner, _ = context_shape(model)
        if learner.model.pooling.combines == "mean":
            return worst_margins(model)
        with counting("checking every context") as progress:
            return prove(model, seed=seed, progress=progress)
    except Undecidable as reason:
        with counting("searching") as progress:
            return search(model, seconds=seconds, seed=seed, why_not_proved=str(reason), progress=progress)
