"""What an encoder-decoder can be told to be."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from headcount.config import PartOf, config
from headcount.encodings import ENCODINGS

Count = Annotated[int, Field(ge=1)]


@config
class EncoderDecoderConfig:
    """Shape of the model."""

    d_model: Count = 128
    """Width of the residual stream."""
    n_heads: Count = 4
    """Heads in each attention block."""
    n_encoder_layers: Count = 2
    """Encoder layers."""
    n_decoder_layers: Count = 2
    """Decoder layers."""
    d_ff: Count = 512
    """Width of the feed-forward layers."""
    norm: Literal["pre", "post"] = "pre"
    """LayerNorm before each block (pre) or after the residual sum (post, as the 2017 paper)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of activations dropped in training."""
    encoding: Annotated[str, PartOf(ENCODINGS)] = "learned"
    """How the model knows positions."""
    n_positions: Count = 64
    """Rows of a learned position table."""

    @field_validator("n_heads")
    @classmethod
    def _divides(cls, n_heads: int, info: ValidationInfo) -> int:
        d_model = info.data.get("d_model", n_heads)
        if d_model % n_heads:
            allowed = [n for n in range(1, d_model + 1) if d_model % n == 0]
            raise ValueError(f"must divide d_model ({d_model}): {', '.join(map(str, allowed))}")
        return n_heads
