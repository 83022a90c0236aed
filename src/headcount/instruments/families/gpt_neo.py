"""GPT-Neo."""

from __future__ import annotations

from headcount.instruments.families.base import Blocks, Family

PART = Family(
    "GPT-Neo",
    ("gpt_neo",),
    (Blocks("h.*.attn.attention", "out_proj", query="q_proj", key="k_proj", value="v_proj"),),
)
