"""What a position does to the model: one encoding, one file.

An encoding takes position ids, not lengths: whoever calls it may choose them. It may touch the embeddings, the queries
and keys, or the scores, and nothing else in the model knows which encoding is in use.
"""

from typing import Annotated, Literal

from pydantic import Field

from headcount.config import NameIn, config
from headcount.registry import Registry

ENCODINGS = Registry("headcount.encodings")
Count = Annotated[int, Field(ge=1)]


@config
class EncodingSettings:
    """How a stack knows positions: the settings that encodings share. No torch here, so that help is instant."""

    encoding: Annotated[str, NameIn(ENCODINGS)] = "learned"
    """How the model knows positions."""
    n_positions: Count = 64
    """Rows of a learned position table."""
    past_table: Literal["error", "clamp", "untrained"] = "error"
    """What a learned table does past its end: refuse, repeat its last row, or go on with rows as they are drawn."""
    clip_distance: Count = 4
    """Distance from which on a clipped relative bias tells no more apart."""
