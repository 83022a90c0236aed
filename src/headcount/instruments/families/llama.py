"""Llama, Mistral, Qwen2: several query heads may share keys and values; heads are query heads."""

from __future__ import annotations

from headcount.instruments.families.base import Blocks, Family

PART = Family(
    "decoders laid out like Llama",
    ("llama", "mistral", "qwen2"),
    (Blocks("layers.*.self_attn", "o_proj", query="q_proj", key="k_proj", value="v_proj"),),
    is_grouped=True,
)
