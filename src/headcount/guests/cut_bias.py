"""T5's position biases, which are computed once for all heads of all layers and handed from layer to layer.

Whatever a layer has lost, it takes and hands on the biases of all the heads that there once were, and uses its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn


class _PicksBias:
    """What is put before an attention class; `places` are its heads' among all."""

    places: Tensor
    n_all: int

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        **more: Any,
    ) -> tuple[Any, ...]:
        """As without the mixin, but biases come and go whole."""
        own = None if position_bias is None else position_bias.index_select(1, self.places)
        output, own, *rest = super().forward(hidden_states, mask, key_value_states, own, **more)  # type: ignore[misc]
        whole = self.__dict__.pop("_whole", None) if position_bias is None else position_bias
        if whole is None:  # cross-attention has no biases, and hands on zeros
            whole = own[:, :1].expand(-1, self.n_all, -1, -1)
        return output, whole, *rest

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """Called by the first layer of a stack, amid its forward pass."""
        whole: Tensor = super().compute_bias(*args, **kwargs)  # type: ignore[misc]
        self.__dict__["_whole"] = whole
        return whole.index_select(1, self.places)

    def __reduce__(self) -> tuple[Any, ...]:  # a class made on the spot cannot be found by its name
        return _blank, (type(self).__mro__[2],), self.__dict__


def pick_bias(attention: nn.Module, places: Sequence[int], n_all: int, device: torch.device) -> None:
    """Let an attention module of fewer heads than there were use the biases at these places."""
    if not isinstance(attention, _PicksBias):
        kind: Any = type(attention)
        attention.__class__ = _picking(kind)
    attention.n_all = n_all  # type: ignore[assignment]
    attention.register_buffer("places", torch.tensor(places, dtype=torch.long, device=device), persistent=False)


@cache
def _picking(kind: Any) -> type[nn.Module]:
    return type(f"Cut{kind.__name__}", (_PicksBias, kind), {})


def _blank(kind: Any) -> nn.Module:
    made = _picking(kind)
    return made.__new__(made)
