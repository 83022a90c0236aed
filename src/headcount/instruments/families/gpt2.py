"""GPT-2: queries, keys and values come from one layer, all queries first."""

from __future__ import annotations

from headcount.instruments.families.base import Blocks, Family

PART = Family("decoders laid out like GPT-2", ("gpt2",), (Blocks("h.*.attn", "c_proj", fused="c_attn"),))
