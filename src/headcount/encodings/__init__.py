"""Position encodings: one encoding per file.

An encoding takes position ids, not lengths, so the caller may choose the ids. It may change the embeddings, the queries
and keys, or the attention scores. No other part of the model knows which encoding is in use.
"""

from typing import Annotated, Literal

from pydantic import Field

from headcount.config import NameIn, config
from headcount.registry import Registry

ENCODINGS = Registry("headcount.encodings")
Count = Annotated[int, Field(ge=1)]


@config
class EncodingSettings:
    """The settings of position encodings; they are defined here, without torch, so that `--help` is fast."""

    encoding: Annotated[str, NameIn(ENCODINGS)] = "learned"
    """Position encoding."""
    n_positions: Count = 64
    """Number of rows of a learned position table."""
    past_table: Literal["error", "clamp", "untrained"] = "error"
    """What a learned table does past its end: raise an error, repeat its last row, or use untrained random rows."""
    clip_distance: Count = 4
    """Largest distance that the relative encoding distinguishes; all farther keys share one bias."""
