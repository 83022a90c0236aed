"""Read attention weights from headcount's own models during a forward pass, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.encodings.base import Positions
from headcount.heads import HeadSite
from headcount.models.attention import MultiHeadAttention, Weights
from headcount.models.masking import AttentionMask
from headcount.models.transformer import Classifier, DecoderOnly, EncoderDecoder, Model

Places = NDArray[np.int64]
"""For each query or key of a model, its position in the task's example; -1 for tokens that only the model has ([CLS]).
"""
WEIGHTINGS = ("attention weight", "norm-weighted attention")
"""Two measures of attention to a key: its attention weight, or the weight times the norm of the key's contribution."""
AT_ONCE, PAIRS_AT_ONCE = 256, 2**20
"""Largest number of examples, and largest number of query-key pairs, in one forward pass."""
SMALLEST = 1e-30
"""Smallest denominator when weights are normalised, so that a query without any attention keeps weights of 0."""


@dataclass(frozen=True)
class AttentionChunk:
    """The attention weights of consecutive queries (a chunk) in one attention block, for some examples of a task."""

    site: HeadSite
    rows: NDArray[np.int64]
    """The indices of the examples."""
    weights: Weights
    queries: slice
    """The positions of the queries in the model's input."""
    keys: slice
    """The positions of the keys in the model's input; keys outside the slice have weight 0."""
    shape: tuple[int, int]
    """The number of queries and the number of keys of the whole attention block, not only of this chunk."""
    query_places: Places
    key_places: Places
    sees: Bool[Tensor, "query key"]
    """True for the keys that each query may see."""


@dataclass(frozen=True)
class AlignedExamples:
    """Examples that can be averaged position by position, because each position has the same meaning in all of them."""

    rows: NDArray[np.int64]
    """The indices of the examples."""
    words: str
    """The selected examples in words, such as "the sequences of 8 tokens in "; empty if all examples are selected."""
    source: tuple[str, ...]
    """One label per source position, such as the name of an operand's digit."""
    decoder_input: tuple[str, ...] = ()
    """One label per position of the decoder input; empty for a classifier."""
    steps: tuple[str, ...] = ()
    """One label per position of the decoder input, for the answer token predicted there; empty for a classifier."""


@dataclass(frozen=True)
class ValueOutputs:
    """The value vectors of one attention block, and the parts of its output projection that transform them."""

    values: Float[Tensor, "example head key d_head"]
    output: Float[Tensor, "head d_model d_head"]
    """For each head, the columns of the output projection's weight matrix that belong to the head."""


def examples_per_pass(width: int) -> int:
    """Return how many examples of `width` tokens fit into one forward pass."""
    return max(1, min(AT_ONCE, PAIRS_AT_ONCE // width**2))


ShowChunk = Callable[[AttentionChunk], None]


@dataclass
class ChunkReader:
    """Receives the attention weights of one of headcount's own models and hands them to `show` in chunks.

    In these models, a position of the input is a position of the task's example.
    """

    model: Model
    norms: ValueNorms
    show: ShowChunk
    rows: NDArray[np.int64] = field(default_factory=lambda: np.arange(0))
    widths: tuple[int, ...] = ()
    source: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0))
    """The tokens of the model's first input."""
    _done: dict[HeadSite, int] = field(default_factory=dict)

    def begin(self, rows: NDArray[np.int64], inputs: Sequence[torch.Tensor]) -> None:
        """Start a new batch: `rows` are the indices of its examples, `inputs` the tokens of each stack."""
        self.rows, self.widths, self.source = rows, tuple(tokens.shape[1] for tokens in inputs), inputs[0]
        self._done.clear()

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Call `show` with an `AttentionChunk` of the attention weights of an attention block's next queries."""
        weights, first = self.norms.share(site, weights, keys), self._done.get(site, 0)
        queries = slice(first, first + weights.shape[2])
        self._done[site] = queries.stop
        n_queries = self.widths[-1] if site.stack == "decoder" else self.widths[0]
        shape = n_keys if isinstance(self.model, DecoderOnly) else n_queries, n_keys
        places = np.arange(queries.start, queries.stop), np.arange(keys.start, keys.stop)
        if isinstance(self.model, DecoderOnly):
            sees = ids_visible(self.model, self.source, queries, keys, n_keys)
        else:
            sees = visible_keys(self.model, site, queries, keys, n_keys, weights.device)
        self.show(AttentionChunk(site, self.rows, weights, queries, keys, shape, *places, sees))


def visible_keys(
    model: EncoderDecoder | Classifier, site: HeadSite, queries: slice, keys: slice, n_keys: int, device: torch.device
) -> Bool[Tensor, "query key"]:
    """Return a mask [query, key] of the keys that each query of an attention block may see, without padding."""
    if isinstance(model, Classifier):
        is_causal = model.config.causal or model.positions.forces_causal
    else:
        is_causal = site.stack == "decoder" or cast(EncoderDecoder, model).source_positions.forces_causal
    masking = AttentionMask() if site.kind == "cross" else AttentionMask(causal=is_causal, window=model.config.window)
    mask = masking.mask_for(queries, keys, n_keys, n_keys, device)
    shape = queries.stop - queries.start, keys.stop - keys.start
    return torch.ones(shape, dtype=torch.bool, device=device) if mask is None else mask[0, 0]


def ids_visible(
    model: DecoderOnly, source: Tensor, queries: slice, keys: slice, n_keys: int
) -> Bool[Tensor, "query key"]:
    """Return a mask of the keys that each query of a decoder-only model may see in at least one of these examples."""
    ids = model.ids(source, n_keys - source.shape[1])
    where = Positions(ids, ids.new_full((1,), n_keys))
    masking = AttentionMask(causal=True, id_window=model.config.window, queries=where, keys=where)
    mask = masking.mask_for(queries, keys, n_keys, n_keys, source.device)
    assert mask is not None, "it is causal"
    return mask.any(dim=0)[0]


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
        """Return norm-weighted attention of one attention block, whose rows sum to 1.

        If the norms were not recorded, return the attention weights unchanged.
        """
        if not self.attentions:
            return weights
        if site not in self._norms:
            attention = self.attentions[site]
            output_HED = attention.output.weight.detach().T.unflatten(0, (-1, attention.d_head))
            self._norms[site] = (self.values[site] @ output_HED).norm(dim=-1)
        weighted = weights * self._norms[site][:, :, keys].to(weights)[:, :, None]
        return weighted / weighted.sum(dim=-1, keepdim=True).clamp(min=SMALLEST)
