"""Fewer draws for tests of everything but the numbers that rest on them."""

from __future__ import annotations

from functools import partial

import pytest

from headcount.analysis.matching import Effort
from headcount.analysis.specialisation import specialise
from headcount.api import heads, pruning

N_ORDERS = 3
EFFORT = Effort(untrained=3, relabelled=5, transplants=1)


def work_little(patch: pytest.MonkeyPatch) -> None:
    """Resample less, take means over fewer inputs, and compare heads with few controls and random orders."""
    patch.setattr("headcount.stats.N_RESAMPLES", 199)
    patch.setattr("headcount.experiments.experiment.N_MEANS", 256)
    patch.setattr(heads, "specialise", partial(specialise, controls=(2, 1)))
    patch.setattr(heads.head_roles, "__kwdefaults__", {**(heads.head_roles.__kwdefaults__ or {}), "n_controls": 2})
    patch.setattr(pruning, "ORDERS", N_ORDERS)
    defaults = {**(pruning.prune_heads.__kwdefaults__ or {}), "n_orders": N_ORDERS}
    patch.setattr(pruning.prune_heads, "__kwdefaults__", defaults)
    patch.setattr(Effort.__init__, "__defaults__", (EFFORT.untrained, EFFORT.relabelled, EFFORT.transplants, 0))
