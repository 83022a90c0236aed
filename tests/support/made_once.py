"""Folders that take long to make: one process makes them, and every process of a test run gets a copy."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a copy of the folder that `make` fills in the first process that asks for it."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    original, unfinished = base / "made-once" / name, base / "made-once" / f"{name}.unfinished"
    original.parent.mkdir(exist_ok=True)
    with original.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not original.exists():
            make(unfinished)
            unfinished.rename(original)
    return Path(shutil.copytree(original, factory.mktemp("runs") / name))
