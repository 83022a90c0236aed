"""At which position of its sequence a pass begins, while a model decodes.

Whoever replaces a head's output position by position has to know where a pass is. Without a cache every pass begins at
0; with one, a pass brings the next position only, and begins where the last one ended.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from headcount.heads import HeadSite
from headcount.hooks.sites import Sites

CACHE = "past_key_values"
"""How Hugging Face models call what they are given of earlier passes."""


class DecodingPositions:
    """Tells the first position of each pass at a site: exactly where the model is given a cache that tells its length.

    Of other models: a pass over several positions begins at 0. A pass over a single one begins where the site's last
    pass ended, or at 0 if the encoder has run since (a new question).
    """

    def __init__(self) -> None:
        self._cached: int | None = None
        self._ends: dict[HeadSite, int] = {}

    def first(self, site: HeadSite, n_queries: int) -> int:
        """The position of the first of a pass's queries; to be asked once a pass."""
        begins = 0 if n_queries > 1 else self._ends.get(site, 0)
        if site.stack == "encoder":
            begins = 0
        elif self._cached is not None:
            begins = self._cached
        self._ends[site] = begins + n_queries
        return begins

    @contextmanager
    def watching(self, model: nn.Module, sites: Sites) -> Iterator[None]:
        """While this model runs."""
        with ExitStack() as hooks:
            hooks.callback(model.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
            hooks.callback(model.register_forward_hook(self._leave, always_call=True).remove)
            for site in sites:
                if site.stack == "encoder":
                    hooks.callback(sites[site].projection.register_forward_pre_hook(self._restart).remove)
            yield

    def _enter(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if CACHE in inspect.signature(model.forward).parameters:
            length = getattr(kwargs.get(CACHE), "get_seq_length", int)  # given none, it begins at 0
            self._cached = int(length())

    def _leave(self, model: nn.Module, args: Any, output: Any) -> None:
        self._cached = None

    def _restart(self, projection: nn.Module, args: Any) -> None:
        self._ends.clear()
