"""The settings that encodings share; no torch here, so that help is instant."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headcount.config import PartOf, config
from headcount.encodings import ENCODINGS

Count = Annotated[int, Field(ge=1)]


@config
class EncodingSettings:
    """How a stack knows positions."""

    encoding: Annotated[str, PartOf(ENCODINGS)] = "learned"
    """How the model knows positions."""
    n_positions: Count = 64
    """Rows of a learned position table."""
    past_table: Literal["error", "clamp", "untrained"] = "error"
    """What a learned table does past its end: refuse, repeat its last row, or go on with rows as they are drawn."""
    clip_distance: Count = 4
    """Distance from which on a clipped relative bias tells no more apart."""
