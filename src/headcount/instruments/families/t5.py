"""T5: the first block of a stack has a bias for every head and distance, which it hands on to the others."""

from __future__ import annotations

from headcount.instruments.families.base import BOTH, Blocks, Family

_PARTS = {"query": "q", "key": "k", "value": "v", "returns": 3}

PART = Family(
    "encoder-decoders laid out like T5",
    ("t5", "mt5"),
    (
        Blocks("encoder.block.*.layer.0.SelfAttention", "o", "encoder", **_PARTS),  # type: ignore[arg-type]
        Blocks("decoder.block.*.layer.0.SelfAttention", "o", "decoder", **_PARTS),  # type: ignore[arg-type]
        Blocks("decoder.block.*.layer.1.EncDecAttention", "o", "decoder", "cross", **_PARTS),  # type: ignore[arg-type]
    ),
    inputs=BOTH,
    has_position_bias=True,
)
