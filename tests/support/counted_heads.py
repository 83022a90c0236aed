"""Sites with other numbers of heads than a model has: such must be seen through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from headcount.hooks.head_check import check_heads
from headcount.hooks.sites import Sites


def recounted(sites: Sites, share: float) -> Sites:
    """The same sites with another number of heads at each."""
    return Sites(
        {
            name: replace(site, heads=tuple(map(name.head, range(int(len(site.heads) * share)))))
            for name, site in sites.items()
        }
    )


def require_refused(model: nn.Module, sites: Sites, inputs: Any) -> None:
    """Twice and half as many heads are seen through at every site."""
    twice, half = recounted(sites, 2), recounted(sites, 0.5)
    for check in check_heads(model, twice, inputs, twice).values():
        assert "attention pattern" in check.fault
    for check in check_heads(model, half, inputs, half).values():
        assert "several attention patterns" in check.fault
