"""ViT: an encoder of patches of an image."""

from __future__ import annotations

from headcount.instruments.families.base import Blocks, Family

PART = Family(
    "vision transformers",
    ("vit",),
    (Blocks("layers.*.attention", "o_proj", query="q_proj", key="k_proj", value="v_proj"),),
    inputs=("pixel_values",),
)
