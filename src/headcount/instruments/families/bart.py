"""BART and Marian."""

from __future__ import annotations

from headcount.instruments.families.base import BOTH, Blocks, Family


def _blocks(path: str, stack: str, kind: str = "self") -> Blocks:
    return Blocks(
        path, "out_proj", stack, kind, f"{stack}_attention_heads", query="q_proj", key="k_proj", value="v_proj"
    )


PART = Family(
    "encoder-decoders laid out like BART",
    ("bart", "mbart", "marian"),
    (
        _blocks("encoder.layers.*.self_attn", "encoder"),
        _blocks("decoder.layers.*.self_attn", "decoder"),
        _blocks("decoder.layers.*.encoder_attn", "decoder", "cross"),
    ),
    inputs=BOTH,
)
