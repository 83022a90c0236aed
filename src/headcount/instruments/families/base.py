"""What there is to know of a family of models: where its heads are, and what they are made of.

Everything is written as paths from the family's base model (`model.bert`, `model.transformer`, or the model itself).
"""

from __future__ import annotations

from dataclasses import dataclass

TEXT = ("input_ids", "attention_mask")
BOTH = ("input_ids", "decoder_input_ids", "attention_mask", "decoder_attention_mask")


@dataclass(frozen=True)
class Blocks:
    """The attention blocks of one stack and kind."""

    path: str
    """Of the module that computes z; `*` stands for the layer."""
    projection: str
    """Of the output projection, whose input is z; from the same module, `..` leading to the one above it."""
    stack: str = "layer"
    kind: str = "self"
    n_heads: str = "num_attention_heads"
    """What the configuration calls the number of (query) heads."""
    query: str = ""
    key: str = ""
    value: str = ""
    """The layers whose outputs are the heads' queries, keys and values, side by side."""
    fused: str = ""
    """Or one layer for all three."""
    by_head: bool = False
    """Whether a fused layer has q, k and v of one head beside each other; else all queries, all keys, all values."""
    returns: int = 2
    """How many things the module returns, the first being its output."""

    def projection_path(self) -> str:
        """From the base model."""
        up = len(self.projection) - len(self.projection.lstrip("."))
        parts = self.path.split(".")
        kept = parts[: len(parts) - up // 2] if up else parts
        return ".".join([*kept, *self.projection.lstrip(".").split(".")])


@dataclass(frozen=True)
class Family:
    """One way to lay out a model."""

    summary: str
    model_types: tuple[str, ...]
    """What configurations call it."""
    blocks: tuple[Blocks, ...]
    inputs: tuple[str, ...] = TEXT
    """What a pass is given, in the order in which tensors may be given without names."""
    is_grouped: bool = False
    """Whether several query heads may share a key and value head."""
    takes_turns: bool = False
    """Whether one block serves several layers, called once for each."""
    has_position_bias: bool = False
    """Whether blocks hand a bias for every head from layer to layer."""
