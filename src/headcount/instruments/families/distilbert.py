"""DistilBERT."""

from __future__ import annotations

from headcount.instruments.families.base import Blocks, Family

PART = Family(
    "DistilBERT",
    ("distilbert",),
    (Blocks("transformer.layer.*.attention", "out_lin", query="q_lin", key="k_lin", value="v_lin"),),
)
