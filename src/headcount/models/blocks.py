"""The layers of a transformer: a residual stream, and blocks that read from it and add to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn

from headcount.heads import HeadId, HeadSite
from headcount.models.attention import KeyValueCache
from headcount.models.config import StackConfig
from headcount.models.lost import LostAttention
from headcount.models.multi_head import MultiHeadAttention
from headcount.models.sight import Sight
from headcount.models.weights import WeightReader

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
        self.heads: tuple[HeadId, ...] = tuple(site.head(i) for i in kept)
        sharpens = config.softmax == "log-length"
        self.attention = (
            MultiHeadAttention(config.d_model, config.n_heads, kept=kept, sharpens=sharpens)
            if kept
            else LostAttention(config.d_model)
        )
        self.residual = Residual(config, reads=bool(kept))

    def forward(
        self,
        x: Rows,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        *,
        sight: Sight | None = None,
        weights: WeightReader | None = None,
        caches: Caches | None = None,
    ) -> Stream:
        """The stream after attention; `weights` is shown this site's attention weights."""
        cache = None if caches is None else caches.setdefault(self.site, KeyValueCache())
        read = None if weights is None else partial(weights.read, self.site)
        return self.residual(x, lambda normed: self.attention(normed, memory, sight=sight, read=read, cache=cache))


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


class EncoderLayer(nn.Module):
    """Look around, then think."""

    def __init__(self, config: StackConfig, site: HeadSite) -> None:
        super().__init__()
        self.self_attention = AttentionBlock(config, site)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Stream, sight: Sight | None = None, weights: WeightReader | None = None) -> Stream:
        """The stream after this layer."""
        return self.feed_forward(self.self_attention(x, sight=sight, weights=weights))


class DecoderLayer(nn.Module):
    """Look back, look at the source, then think."""

    def __init__(self, config: StackConfig, layer: int) -> None:
        super().__init__()
        self.self_attention = AttentionBlock(config, HeadSite("decoder", layer, "self"))
        self.cross_attention = AttentionBlock(config, HeadSite("decoder", layer, "cross"))
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x: Rows,
        memory: Float[Tensor, "batch source d_model"],
        *,
        sight: Sight | None = None,
        memory_sight: Sight | None = None,
        weights: WeightReader | None = None,
        caches: Caches | None = None,
    ) -> Stream:
        """The stream after this layer."""
        x = self.self_attention(x, sight=sight, weights=weights, caches=caches)
        x = self.cross_attention(x, memory, sight=memory_sight, weights=weights, caches=caches)
        return self.feed_forward(x)


def initialise(module: nn.Module) -> None:
    """Linear layers as Glorot and Bengio 2010 have them, without a bias."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
