"""Attention as it is read while a model runs: which queries and keys a piece of it is about, and how a key counts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.heads import HeadSite
from headcount.models.attention import MultiHeadAttention, Weights
from headcount.models.masking import AttentionMask
from headcount.models.transformer import Classifier, Model

Places = NDArray[np.int64]
"""Of each query or key, which of the task's it is; -1 for none, such as a token that the task does not have."""
WEIGHTINGS = ("attention weight", "norm-weighted attention")
"""How a key may count: without and with norms."""
AT_ONCE, PAIRS_AT_ONCE = 256, 2**20
"""Examples, and pairs of a query and a key, in one forward pass."""
SMALLEST = 1e-30
"""A row that attends nowhere stays 0."""


@dataclass(frozen=True)
class AttentionChunk:
    """Weights of some queries at one site, in some examples of a task."""

    site: HeadSite
    rows: NDArray[np.int64]
    """Which of the examples."""
    weights: Weights
    queries: slice
    keys: slice
    """Which of the model's own positions; over keys that are left out, weights are 0."""
    shape: tuple[int, int]
    """How many queries and keys the site has."""
    query_places: Places
    key_places: Places
    sees: Bool[Tensor, "query key"]
    """Which of these keys each query may see."""


@dataclass(frozen=True)
class Alike:
    """Examples in which each position of the model means the same, and what it means."""

    rows: NDArray[np.int64]
    words: str
    """Which of the examples these are; empty for all."""
    source: tuple[str, ...]
    decoder_input: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    """What is predicted at each position of the decoder."""


@dataclass(frozen=True)
class Written:
    """What the keys of a site hold, and what becomes of it in the residual stream."""

    values: Float[Tensor, "example head key d_head"]
    output: Float[Tensor, "head d_model d_head"]
    """Each head's part of the output projection."""


def rows_at_once(width: int) -> int:
    """Examples so many tokens wide that fit into a forward pass."""
    return max(1, min(AT_ONCE, PAIRS_AT_ONCE // width**2))


ShowChunk = Callable[[AttentionChunk], None]


@dataclass
class ChunkReader:
    """Hands on what one of headcount's own models shows: its positions are those of its task."""

    model: Model
    norms: ValueNorms
    show: ShowChunk
    rows: NDArray[np.int64] = field(default_factory=lambda: np.arange(0))
    widths: tuple[int, ...] = ()
    _done: dict[HeadSite, int] = field(default_factory=dict)

    def begin(self, rows: NDArray[np.int64], widths: tuple[int, ...]) -> None:
        """These of the examples come next, so many tokens wide in each stack, from their first query on."""
        self.rows, self.widths = rows, widths
        self._done.clear()

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """The next queries."""
        weights, first = self.norms.share(site, weights, keys), self._done.get(site, 0)
        queries = slice(first, first + weights.shape[2])
        self._done[site] = queries.stop
        shape = self.widths[-1] if site.stack == "decoder" else self.widths[0], n_keys
        places = np.arange(queries.start, queries.stop), np.arange(keys.start, keys.stop)
        sees = visible_keys(self.model, site, queries, keys, n_keys, weights.device)
        self.show(AttentionChunk(site, self.rows, weights, queries, keys, shape, *places, sees))


def visible_keys(
    model: Model, site: HeadSite, queries: slice, keys: slice, n_keys: int, device: torch.device
) -> Bool[Tensor, "query key"]:
    """Which of these keys each of these queries may see, where nothing is padding."""
    if isinstance(model, Classifier):
        is_causal = model.config.causal or model.positions.forces_causal
    else:
        is_causal = site.stack == "decoder" or model.source_positions.forces_causal
    masking = AttentionMask() if site.kind == "cross" else AttentionMask(causal=is_causal, window=model.config.window)
    mask = masking.mask_for(queries, keys, n_keys, n_keys, device)
    shape = queries.stop - queries.start, keys.stop - keys.start
    return torch.ones(shape, dtype=torch.bool, device=device) if mask is None else mask[0, 0]


class ValueNorms(ExitStack):
    """||f(x_j)|| of every head and key, of the last pass made inside the context.

    A large weight on a key whose value is small adds little. What key j adds at query i is a_ij f(x_j), where f is the
    head's value projection and then its part of the output projection; its norm is a_ij ||f(x_j)|| (Kobayashi et al.
    2020, "Attention is not only a weight", arXiv 2004.10102). Shown is each key's share of these norms, so that rows
    sum to 1 like those of weights, and equal them where all norms are alike.
    """

    def __init__(self, model: Model, is_wanted: bool = True) -> None:
        super().__init__()
        found = {site: block.attention for site, block in model.blocks.items()} if is_wanted else {}
        self.attentions = {site: each for site, each in found.items() if isinstance(each, MultiHeadAttention)}
        self.values: dict[HeadSite, Float[Tensor, "batch head length d_head"]] = {}
        self._norms: dict[HeadSite, Float[Tensor, "batch head key"]] = {}

    def __enter__(self) -> Self:
        for site, attention in self.attentions.items():
            self.callback(attention.value.register_forward_hook(partial(self._keep, site)).remove)
        return super().__enter__()

    def _keep(self, site: HeadSite, module: nn.Module, args: tuple[Any, ...], value_BKF: Tensor) -> None:
        self.values[site] = value_BKF.unflatten(-1, (-1, self.attentions[site].d_head)).transpose(1, 2)
        self._norms.pop(site, None)

    def share(self, site: HeadSite, weights: Weights, keys: slice = slice(None)) -> Weights:
        """Each key's share of the norms that a query gathers; where these are not wanted, the weights as they are."""
        if not self.attentions:
            return weights
        if site not in self._norms:
            attention = self.attentions[site]
            output_HED = attention.output.weight.detach().T.unflatten(0, (-1, attention.d_head))
            self._norms[site] = (self.values[site] @ output_HED).norm(dim=-1)
        weighted = weights * self._norms[site][:, :, keys].to(weights)[:, :, None]
        return weighted / weighted.sum(dim=-1, keepdim=True).clamp(min=SMALLEST)
