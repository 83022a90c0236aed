"""What the audit costs: its quick form beside the verbs that it runs with, and the whole of it on a stranger's model.

Of `train`, the quick form runs once, beside the evaluation in the end; here that is held against 300 steps, where a
training takes two thousand.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from headcount import api
from headcount.auditing.audit import quick_audit
from headcount.training.device import n_threads

ADAPTER = Path(__file__).parents[1] / "tests" / "foreign_adder" / "adder_adapter.py"
SHARE, SECONDS = 0.05, 60.0
"""Of a verb's time, and for the whole audit of an adapter, at most."""


def measure() -> Iterator[dict[str, Any]]:
    """Processor time, one thread."""
    adder, sorter = api.open_model("sample:addition"), api.open_model("sample:sortedness")
    with tempfile.TemporaryDirectory() as folder, n_threads(1):
        trained: Callable[[], Any] = lambda: api.train(  # noqa: E731
            "addition", steps=300, out=f"{folder}/run", threads=1, quiet=True, device="cpu"
        )
        verbs: dict[str, tuple[Callable[[], Any], Any]] = {
            "train (300 steps)": (trained, adder),
            "ablate sample:addition": (lambda: api.ablate_heads(adder, quiet=True), adder),
            "stretch sample:sortedness": (lambda: api.stretch(sorter, quiet=True), sorter),
        }
        quick_audit(adder)  # checks are imported once
        for name, (verb, model) in verbs.items():
            whole, quick = _timed(verb), _timed(partial(quick_audit, model))
            yield _row(f"quick checks beside {name}, as a share of it", quick, whole, quick / whole, SHARE)
        audited = _timed(lambda: api.audit(f"{ADAPTER}:Adder", quiet=True))
    question = "the whole audit of an adapter (24 heads, 500 sums), against a minute"
    yield _row(question, audited, SECONDS, audited / SECONDS, 1)


def _timed(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _row(question: str, ours: float, other: float, ratio: float, most: float) -> dict[str, Any]:
    return {
        "question": f"{question} (1 thread)",
        "ours": f"{ours:.2f} s",
        "other": f"{other:.1f} s",
        "ratio": ratio,
        "promise": f"at most {most:g}",
        "kept": ratio <= most,
    }
