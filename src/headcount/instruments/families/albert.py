"""ALBERT: one block is called once per layer, so its heads are told apart by the call."""

from __future__ import annotations

from headcount.instruments.families.base import Blocks, Family

PART = Family(
    "encoders whose layers share one block",
    ("albert",),
    (
        Blocks(
            "encoder.albert_layer_groups.*.albert_layers.*.attention", "dense", query="query", key="key", value="value"
        ),
    ),
    takes_turns=True,
)
