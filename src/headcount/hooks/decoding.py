"""Determine the first position of each forward pass while a model decodes.

Code that replaces a head's output at certain positions needs to know which positions of the sequence a forward pass
has. Without a cache, every pass begins at position 0. With a cache, a pass has the next position only and begins where
the last pass ended.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from headcount.heads import HeadSite
from headcount.hooks.sites import Sites

CACHE = "past_key_values"
"""The name of the cache argument of Hugging Face models."""


class DecodingPositions:
    """Determines the position in the sequence at which each forward pass begins, for each attention block.

    The position is exact if the model gets a cache that knows its length. For other models, a pass over several
    positions begins at 0. A pass over a single position begins where the last pass ended, or at 0 if the encoder has
    run since then (a new input).
    """

    def __init__(self) -> None:
        self._cached: int | None = None
        self._ends: dict[HeadSite, int] = {}

    def first(self, site: HeadSite, n_queries: int) -> int:
        """Return the position of the first query of the current pass; call this once per pass and attention block."""
        begins = 0 if n_queries > 1 else self._ends.get(site, 0)
        if site.stack == "encoder":
            begins = 0
        elif self._cached is not None:
            begins = self._cached
        self._ends[site] = begins + n_queries
        return begins

    @contextmanager
    def watching(self, model: nn.Module, sites: Sites) -> Iterator[None]:
        """Return a context in which all forward passes of this model are followed; call `first` inside it."""
        with ExitStack() as hooks:
            hooks.callback(model.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
            hooks.callback(model.register_forward_hook(self._leave, always_call=True).remove)
            for site in sites:
                if site.stack == "encoder":
                    hooks.callback(sites[site].projection.register_forward_pre_hook(self._restart).remove)
            yield

    def _enter(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if CACHE in inspect.signature(model.forward).parameters:
            length = getattr(kwargs.get(CACHE), "get_seq_length", int)  # without a cache, the pass begins at 0
            self._cached = int(length())

    def _leave(self, model: nn.Module, args: Any, output: Any) -> None:
        self._cached = None

    def _restart(self, projection: nn.Module, args: Any) -> None:
        self._ends.clear()
