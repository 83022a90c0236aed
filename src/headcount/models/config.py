"""What a model can be told to be."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from headcount.config import PartOf, config
from headcount.encodings._settings import EncodingSettings
from headcount.poolings import POOLINGS

Count = Annotated[int, Field(ge=1)]


@config
class StackConfig(EncodingSettings):
    """What the layers of any model have in common."""

    d_model: Count = 128
    """Width of the residual stream."""
    n_heads: Count = 4
    """Heads in each attention block."""
    d_ff: Count = 512
    """Width of the feed-forward layers."""
    norm: Literal["pre", "post"] = "pre"
    """LayerNorm before each block (pre) or after the residual sum (post, as the 2017 paper)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of activations dropped in training."""
    softmax: Literal["plain", "log-length"] = "plain"
    """Plain, or scores multiplied by a learned multiple of the log of how many tokens are in sight."""
    window: Count | None = None
    """Self-attention looks no farther than this many tokens; none: everywhere. GIVES locality away."""

    @field_validator("n_heads")
    @classmethod
    def _divides(cls, n_heads: int, info: ValidationInfo) -> int:
        d_model = info.data.get("d_model", n_heads)
        if d_model % n_heads:
            allowed = [n for n in range(1, d_model + 1) if d_model % n == 0]
            raise ValueError(f"must divide d_model ({d_model}): {', '.join(map(str, allowed))}")
        return n_heads


@config
class EncoderDecoderConfig(StackConfig):
    """Shape of the model."""

    n_encoder_layers: Count = 2
    """Encoder layers."""
    n_decoder_layers: Count = 2
    """Decoder layers."""


@config
class ClassifierConfig(StackConfig):
    """Shape of the model."""

    d_model: Count = 64
    """Width of the residual stream."""
    d_ff: Count = 256
    """Width of the feed-forward layers."""
    n_layers: Count = 2
    """Layers."""
    causal: bool = False
    """No token looks ahead."""
    pooling: Annotated[str, PartOf(POOLINGS)] = "max"
    """How a sequence becomes one vector."""
    numbers: Literal["table", "fourier"] = "fourier"
    """Numbers enter by a free vector each, or by waves of their value, which know that 54 is near 55."""
    random_positions: Count | None = None
    """Give the tokens a random subset of this many ids, in order; none: count from 0."""
    n_positions: Count = 16
    """Rows of a learned position table."""
    past_table: Literal["error", "clamp", "untrained"] = "untrained"
    """What a learned table does past its end: refuse, repeat its last row, or go on with rows as they are drawn."""


MODEL_CONFIGS: dict[str, type[StackConfig]] = {"sequence": EncoderDecoderConfig, "class": ClassifierConfig}
"""Which model, by what the task asks for."""
