"""Nothing stands in: the head adds nothing to the residual stream, just as if it were cut out."""

from __future__ import annotations

from headcount.instruments.kinds.base import Kind

PART = Kind("the head says nothing, as if it were cut out", lambda material: None)
