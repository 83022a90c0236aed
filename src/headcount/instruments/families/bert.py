"""BERT and those that kept its layout: z is computed by `attention.self` and projected by `attention.output.dense`."""

from __future__ import annotations

from headcount.instruments.families.base import Blocks, Family

PART = Family(
    "encoders laid out like BERT",
    ("bert", "roberta", "electra", "xlm-roberta", "camembert"),
    (Blocks("encoder.layer.*.attention.self", "..output.dense", query="query", key="key", value="value"),),
)
