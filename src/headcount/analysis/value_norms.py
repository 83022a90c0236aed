"""How much does each key add to what a head writes? Norm-weighted attention.

A large weight on a key whose value is small adds little. What key j adds at query i is a_ij f(x_j), where f is the
head's value projection and then its part of the output projection; its norm is a_ij ||f(x_j)|| (Kobayashi et al. 2020,
"Attention is not only a weight", arXiv 2004.10102). Shown is each key's share of these norms, so that rows sum to 1
like those of weights, and equal them where all norms are alike.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from jaxtyping import Float
from torch import Tensor, nn

from headcount.heads import HeadSite
from headcount.models.attention import Weights
from headcount.models.build import Model
from headcount.models.multi_head import MultiHeadAttention

Norms = Float[Tensor, "batch head key"]
WEIGHTINGS = ("attention weight", "norm-weighted attention")
"""How a key may count: without and with norms."""
SMALLEST = 1e-30
"""A row that looks nowhere stays 0."""


def norm_shares(weights: Weights, norms: Norms) -> Weights:
    """Each key's share of the norms that a query gathers."""
    weighted = weights * norms[:, :, None]
    return weighted / weighted.sum(dim=-1, keepdim=True).clamp(min=SMALLEST)


class ValueNorms:
    """||f(x_j)|| of every head and key, of the last pass made inside the context."""

    def __init__(self, model: Model) -> None:
        self._attentions = {site: model.blocks[site].attention for site in model.sites}
        self._norms: dict[HeadSite, Norms] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for site, attention in self._attentions.items():
            assert isinstance(attention, MultiHeadAttention)  # it has heads
            hook = attention.value.register_forward_hook(partial(self._keep, site, attention))
            self._stack.callback(hook.remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _keep(
        self, site: HeadSite, attention: MultiHeadAttention, module: nn.Module, args: tuple[Any, ...], value: Tensor
    ) -> None:
        value_BKHE = value.unflatten(-1, (-1, attention.d_head))
        output_HED = attention.output.weight.T.unflatten(0, (-1, attention.d_head))
        added_BHKD = value_BKHE.transpose(1, 2) @ output_HED
        self._norms[site] = added_BHKD.norm(dim=-1).detach()

    def share(self, site: HeadSite, weights: Weights, keys: slice = slice(None)) -> Weights:
        """These weights of a site, norm-weighted."""
        return norm_shares(weights, self._norms[site][:, :, keys].to(weights))
