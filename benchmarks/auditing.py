"""How long does the audit take: its quick checks beside the verbs that run them, and the whole audit of an adapter?

The verb `train` runs the quick checks once, at the end. Here they are compared with a training of 300 steps; usual
trainings have two thousand.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import Ratio, timed
from headcount import api
from headcount.auditing.audit import quick_audit
from headcount.training.device import n_threads

ADAPTER = Path(__file__).parents[1] / "tests" / "foreign_adder" / "adder_adapter.py"
SHARE, SECONDS = 0.05, 60.0
"""Largest share of a verb's time for the quick checks, and largest time for the whole audit of an adapter."""


def measure() -> Iterator[Ratio]:
    """Compare processor times on one thread."""
    adder, sorter = api.open_model("sample:addition"), api.open_model("sample:sortedness")
    with tempfile.TemporaryDirectory() as folder, n_threads(1):
        settings: dict[str, Any] = {"steps": 300, "out": f"{folder}/run", "threads": 1, "device": "cpu"}
        verbs: dict[str, tuple[Callable[[], Any], Any]] = {
            "train (300 steps)": (lambda: api.train("addition", quiet=True, **settings), adder),
            "ablate sample:addition": (lambda: api.ablate_heads(adder, quiet=True), adder),
            "stretch sample:sortedness": (lambda: api.stretch(sorter, quiet=True), sorter),
        }
        quick_audit(adder)  # a first run imports the checks
        for name, (verb, model) in verbs.items():
            (_, whole), (_, quick) = timed(verb), timed(partial(quick_audit, model))
            question = f"quick checks beside {name}, as a share of it (1 thread)"
            yield Ratio.at_most(question, f"{quick:.2f} s", f"{whole:.1f} s", quick / whole, SHARE)
        _, seconds = timed(lambda: api.audit(f"{ADAPTER}:Adder", quiet=True))
    question = "the whole audit of an adapter (24 heads, 500 sums), against a minute (1 thread)"
    yield Ratio.at_most(question, f"{seconds:.2f} s", f"{SECONDS:.1f} s", seconds / SECONDS, 1)
