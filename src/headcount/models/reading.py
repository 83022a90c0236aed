"""Read attention weights from headcount's own models during a forward pass, chunk by chunk."""

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
"""The position in the task's input of each query or key; -1 for a token that only the model has, such as [CLS]."""
WEIGHTINGS = ("attention weight", "norm-weighted attention")
"""Two ways to weight a key: by its attention weight, or by the weight times the norm of the transformed value."""
AT_ONCE, PAIRS_AT_ONCE = 256, 2**20
"""Largest number of examples, and of query-key pairs, in one forward pass."""
SMALLEST = 1e-30
"""Lower bound of a denominator, so that a row without any attention stays 0."""


@dataclass(frozen=True)
class AttentionChunk:
    """The attention weights of a chunk of queries in one attention block, for some examples of a task."""

    site: HeadSite
    rows: NDArray[np.int64]
    """The indices of the examples."""
    weights: Weights
    queries: slice
    """The positions of the queries in the model's input."""
    keys: slice
    """The positions of the keys in the model's input; keys outside the slice have weight 0."""
    shape: tuple[int, int]
    """The number of queries and of keys of the whole attention block, not only of this chunk."""
    query_places: Places
    key_places: Places
    sees: Bool[Tensor, "query key"]
    """Which keys each query may see."""


@dataclass(frozen=True)
class AlignedExamples:
    """Examples that can be averaged position by position, because each position has the same meaning in all of them."""

    rows: NDArray[np.int64]
    """The indices of the examples."""
    words: str
    """A description of the selection, such as "the sequences of 8 in "; empty if all examples are aligned."""
    source: tuple[str, ...]
    """The label of each source position."""
    decoder_input: tuple[str, ...] = ()
    """The label of each position of the decoder input."""
    steps: tuple[str, ...] = ()
    """The label of what the decoder predicts at each position."""


@dataclass(frozen=True)
class ValueOutputs:
    """The values of one attention block, and the parts of the output projection that transform the values."""

    values: Float[Tensor, "example head key d_head"]
    output: Float[Tensor, "head d_model d_head"]
    """The columns of the output projection that belong to each head."""


def examples_per_pass(width: int) -> int:
    """Return how many examples of `width` tokens fit into one forward pass."""
    return max(1, min(AT_ONCE, PAIRS_AT_ONCE // width**2))


ShowChunk = Callable[[AttentionChunk], None]


@dataclass
class ChunkReader:
    """An attention reader for headcount's own models, whose positions are those of the task."""

    model: Model
    norms: ValueNorms
    show: ShowChunk
    rows: NDArray[np.int64] = field(default_factory=lambda: np.arange(0))
    widths: tuple[int, ...] = ()
    _done: dict[HeadSite, int] = field(default_factory=dict)

    def begin(self, rows: NDArray[np.int64], widths: tuple[int, ...]) -> None:
        """Start a new batch: set the indices of its examples and the number of tokens of each stack."""
        self.rows, self.widths = rows, widths
        self._done.clear()

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Pass the weights of the next queries to `show` as an `AttentionChunk`."""
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
    """Return which keys each query may see in a sequence without padding."""
    if isinstance(model, Classifier):
        is_causal = model.config.causal or model.positions.forces_causal
    else:
        is_causal = site.stack == "decoder" or model.source_positions.forces_causal
    masking = AttentionMask() if site.kind == "cross" else AttentionMask(causal=is_causal, window=model.config.window)
    mask = masking.mask_for(queries, keys, n_keys, n_keys, device)
    shape = queries.stop - queries.start, keys.stop - keys.start
    return torch.ones(shape, dtype=torch.bool, device=device) if mask is None else mask[0, 0]


class ValueNorms(ExitStack):
    """A context manager that records the norm ||f(x_j)|| for every head and key of the last forward pass.

    A large weight on a key with a small value contributes little. Key j contributes a_ij f(x_j) to query i, where f is
    the head's value projection followed by the head's part of the output projection. The norm of the contribution is
    a_ij ||f(x_j)|| (Kobayashi et al. 2020, "Attention is not only a weight", arXiv 2004.10102). `share` divides these
    norms by their sum over keys, so that rows sum to 1; if all norms are equal, the result equals the weights.
    """

    def __init__(self, model: Model, is_wanted: bool = True) -> None:
        super().__init__()
        blocks = model.blocks.items() if is_wanted else ()
        self.attentions = {
            site: block.attention for site, block in blocks if isinstance(block.attention, MultiHeadAttention)
        }
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
        """Return norm-weighted attention, whose rows sum to 1; without norms, return the attention weights."""
        if not self.attentions:
            return weights
        if site not in self._norms:
            attention = self.attentions[site]
            output_HED = attention.output.weight.detach().T.unflatten(0, (-1, attention.d_head))
            self._norms[site] = (self.values[site] @ output_HED).norm(dim=-1)
        weighted = weights * self._norms[site][:, :, keys].to(weights)[:, :, None]
        return weighted / weighted.sum(dim=-1, keepdim=True).clamp(min=SMALLEST)
