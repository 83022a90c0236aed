"""GPT-NeoX (Pythia): one layer for queries, keys and values, head by head."""

from __future__ import annotations

from headcount.instruments.families.base import Blocks, Family

PART = Family(
    "GPT-NeoX, so Pythia too",
    ("gpt_neox",),
    (Blocks("layers.*.attention", "dense", fused="query_key_value", by_head=True),),
)
