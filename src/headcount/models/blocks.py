"""The layers of a transformer: a residual stream, and blocks that read from it and add to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.heads import HeadId, HeadSite
from headcount.models.attention import AttentionReader, KeyValueCache, MultiHeadAttention
from headcount.models.config import StackConfig
from headcount.models.masking import AttentionMask

Stream = Float[Tensor, "batch length d_model"]
Rows = Float[Tensor, "#batch length d_model"]
"""A stream, or one row that many rows of a memory share."""
Caches = dict[HeadSite, KeyValueCache]


class Residual(nn.Module):
    """Adds a block's output to the stream, with LayerNorm before the block or after the sum.

    There is no use in a LayerNorm before a block that `reads` nothing.
    """

    def __init__(self, config: StackConfig, *, reads: bool = True) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model) if reads or not self.pre else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Rows, block: Callable[[Tensor], Tensor]) -> Stream:
        """The stream after the block."""
        if self.pre:
            return x + self.dropout(block(self.norm(x)))
        return self.norm(x + self.dropout(block(x)))


class AttentionBlock(nn.Module):
    """One attention site in the stream."""

    def __init__(self, config: StackConfig, site: HeadSite) -> None:
        super().__init__()
        self.site, kept = site, config.kept(site)
        scalable_softmax = config.softmax == "log-length"
        self.attention = (
            MultiHeadAttention(config.d_model, config.n_heads, kept=kept, scalable_softmax=scalable_softmax)
            if kept
            else HeadlessAttention(config.d_model)
        )
        self.residual = Residual(config, reads=bool(kept))

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """Those that are there, in the order of their outputs."""
        return tuple(map(self.site.head, self.attention.kept))

    def drop_attention(self) -> None:
        """Without heads, only the bias of the output projection is left; and a LayerNorm before that has no use."""
        assert isinstance(self.attention, MultiHeadAttention), "it had some"
        headless = HeadlessAttention(self.attention.output.out_features)
        headless.output["bias"] = self.attention.output.bias
        self.attention = headless
        if self.residual.pre:
            self.residual.norm = nn.Identity()

    def forward(
        self,
        x: Rows,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        *,
        masking: AttentionMask | None = None,
        weights: AttentionReader | None = None,
        caches: Caches | None = None,
    ) -> Stream:
        """The stream after attention; `weights` is shown this site's attention weights."""
        cache = None if caches is None else caches.setdefault(self.site, KeyValueCache())
        read = None if weights is None else partial(weights.read, self.site)
        return self.residual(x, lambda normed: self.attention(normed, memory, masking=masking, read=read, cache=cache))


class FeedForward(nn.Module):
    """Two linear layers applied to each position alone."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(config.d_model, config.d_ff), nn.ReLU(inplace=True), nn.Linear(config.d_ff, config.d_model)
        )
        self.residual = Residual(config)

    def forward(self, x: Stream) -> Stream:
        """The stream after the layers."""
        return self.residual(x, self.layers)


class Layer(nn.Module):
    """Self-attention, in a decoder cross-attention to the source, then a feed-forward network."""

    def __init__(self, config: StackConfig, site: HeadSite, cross_site: HeadSite | None = None) -> None:
        super().__init__()
        self.self_attention = AttentionBlock(config, site)
        self.cross_attention = None if cross_site is None else AttentionBlock(config, cross_site)
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x: Rows,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        *,
        masking: AttentionMask | None = None,
        memory_masking: AttentionMask | None = None,
        weights: AttentionReader | None = None,
        caches: Caches | None = None,
    ) -> Stream:
        """The stream after this layer."""
        x = self.self_attention(x, masking=masking, weights=weights, caches=caches)
        if self.cross_attention is not None:
            x = self.cross_attention(x, memory, masking=memory_masking, weights=weights, caches=caches)
        return self.feed_forward(x)


def initialise(module: nn.Module) -> None:
    """Linear layers as Glorot and Bengio 2010 have them, without a bias."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


class HeadlessAttention(nn.Module):
    """Stands where multi-head attention stood: of the output projection only the bias is left."""

    kept: tuple[int, ...] = ()

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.output = nn.ParameterDict({"bias": torch.zeros(d_model)})  # by the name that it has in the projection

    def forward(
        self,
        x: Float[Tensor, "#batch query d_model"],
        memory: Float[Tensor, "batch key d_model"] | None = None,
        **ignored: object,
    ) -> Float[Tensor, "batch query d_model"]:
        """The same for every position, and for as many rows as attention would have made."""
        rows = x if memory is None else memory
        return self.output["bias"].expand(len(rows), x.shape[1], -1)
