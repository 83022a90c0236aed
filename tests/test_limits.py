"""What does not fit is refused before it is made."""

from __future__ import annotations

import pytest

from headcount import limits
from headcount.errors import InputError


def test_there_is_some_memory() -> None:
    free = limits.available_memory()
    assert free is None or free > 10**7


def test_what_does_not_fit_says_how_much_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_memory", lambda: 23 * 10**9)
    limits.require_room(22 * 10**9, "a model")
    with pytest.raises(InputError, match="a model needs about 400 GB; this machine has 23 GB free\n  try less"):
        limits.require_room(400 * 10**9, "a model", "try less")
    monkeypatch.setattr(limits, "available_memory", lambda: None)
    limits.require_room(400 * 10**9, "a model of unknown fate")
