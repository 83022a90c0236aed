"""The layers of a transformer: a residual stream, and blocks that read from it and add to it."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.heads import HeadSite
from headcount.models.attention import KeyValueCache, Mask, MultiHeadAttention
from headcount.models.config import EncoderDecoderConfig

Stream = Float[Tensor, "batch length d_model"]
Rows = Float[Tensor, "#batch length d_model"]
"""A stream, or one row that many rows of a memory share."""
WeightsBySite = dict[HeadSite, Tensor]
Caches = dict[HeadSite, KeyValueCache]


class Residual(nn.Module):
    """Adds a block's output to the stream, with LayerNorm before the block or after the sum."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Rows, block: Callable[[Tensor], Tensor]) -> Stream:
        """The stream after the block."""
        if self.pre:
            return x + self.dropout(block(self.norm(x)))
        return self.norm(x + self.dropout(block(x)))


class AttentionBlock(nn.Module):
    """One attention site in the stream."""

    def __init__(self, config: EncoderDecoderConfig, site: HeadSite) -> None:
        super().__init__()
        self.site = site
        self.attention = MultiHeadAttention(config.d_model, config.n_heads)
        self.residual = Residual(config)

    def forward(
        self,
        x: Rows,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        *,
        mask: Mask | None = None,
        weights: WeightsBySite | None = None,
        caches: Caches | None = None,
    ) -> Stream:
        """The stream after attention; a `weights` dict receives this site's attention weights."""
        cache = None if caches is None else caches.setdefault(self.site, KeyValueCache())

        def look(normed: Tensor) -> Tensor:
            update, site_weights = self.attention(
                normed, memory, mask=mask, need_weights=weights is not None, cache=cache
            )
            if weights is not None:
                weights[self.site] = site_weights
            return update

        return self.residual(x, look)


class FeedForward(nn.Module):
    """Two linear layers applied to each position alone."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
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

    def __init__(self, config: EncoderDecoderConfig, layer: int) -> None:
        super().__init__()
        self.self_attention = AttentionBlock(config, HeadSite("encoder", layer, "self"))
        self.feed_forward = FeedForward(config)

    def forward(self, x: Stream, mask: Mask | None, weights: WeightsBySite | None) -> Stream:
        """The stream after this layer."""
        return self.feed_forward(self.self_attention(x, mask=mask, weights=weights))


class DecoderLayer(nn.Module):
    """Look back, look at the source, then think."""

    def __init__(self, config: EncoderDecoderConfig, layer: int) -> None:
        super().__init__()
        self.self_attention = AttentionBlock(config, HeadSite("decoder", layer, "self"))
        self.cross_attention = AttentionBlock(config, HeadSite("decoder", layer, "cross"))
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x: Rows,
        memory: Float[Tensor, "batch source d_model"],
        *,
        mask: Mask | None,
        memory_mask: Bool[Tensor, "#batch #head #query #source"] | None,
        weights: WeightsBySite | None,
        caches: Caches | None,
    ) -> Stream:
        """The stream after this layer."""
        x = self.self_attention(x, mask=mask, weights=weights, caches=caches)
        x = self.cross_attention(x, memory, mask=memory_mask, weights=weights, caches=caches)
        return self.feed_forward(x)
