"""What results and figures are called: by what was asked, so that none is ever put over another.

>>> result_name("ablation", kinds=("zero",), n=500), result_name("ablation", kinds=None, n=None)
('ablation-zero-n500', 'ablation')
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from headcount.heads import HeadId
from headcount.runs.folder import digest
from headcount.runs.storage import read_bytes

BARE = ("kinds", "metric", "negatives", "lengths", "data")
"""Settings whose value says what it is."""


def result_name(verb: str, **asked: Any) -> str:
    """The verb, then each setting that was given (None, False and nothing are the defaults)."""
    parts = [_part(name, value) for name, value in asked.items() if value is not None and value is not False]
    return _safe("-".join([verb, *filter(None, parts)]))


def file_name(*texts: str) -> str:
    """A name for examples: readable, and another for all other texts."""
    name = "_".join(texts).replace(" ", "_")
    is_told = not any("_" in text for text in texts) and (len(texts) == 1 or " " not in "".join(texts))
    return _safe(name, name if is_told else repr(texts))


def _safe(name: str, meaning: str | None = None) -> str:
    """A name for every file system; one that is longer, or does not tell its meaning, ends in the digest of that."""
    plain, meaning = re.sub(r"[^\w.,+=-]", "-", name), name if meaning is None else meaning
    plain = plain if not plain.startswith(".") else f"_{plain}"
    if name == plain == meaning and len(name) <= 80:
        return name
    return f"{plain[:60]}-{digest(meaning.encode(errors='surrogatepass'))[:12]}"


def _part(name: str, value: Any) -> str:
    said = "" if value is True else _said(value)
    return said if said and name in BARE else f"{name.replace('_', '-')}{said}"


def _said(value: Any) -> str:
    """A value in letters that a file's name may have; what is longer than that by its digest."""
    if isinstance(value, Path):
        return f"{value.stem}-{digest(read_bytes(value))[:8]}"  # another file of that name is another question
    if isinstance(value, HeadId):
        return value.short
    if isinstance(value, str):
        return value
    if callable(value):
        code = getattr(value, "__code__", None)
        said = repr((code.co_code, code.co_consts, code.co_names)) if code else repr(value)
        return f"{getattr(value, '__name__', 'score')}-{digest(said.encode())[:8]}"
    if isinstance(value, np.ndarray):
        return digest(repr((value.shape, value.dtype)).encode() + value.tobytes())[:8]
    return "-".join(map(_said, value)) if isinstance(value, Iterable) else str(value)
