"""Sweeps over all heads of a Hugging Face GPT-2, one thread: ours, against the ways people do it today.

A few examples, where ablations that share a batch should pay, and many, where they cannot. `gpt2.py` has the ways; it
runs in the environment of the other tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.sweeps import compare, run_race

ROUNDS = {8: 15, 256: 3}
"""Of each number of examples."""
WAYS = {"hooks": "a loop of plain PyTorch hooks", "lens": "TransformerLens", "nnsight": "nnsight"}
LEAST = {(8, "hooks"): 1.5}


def measure() -> Iterator[dict[str, Any]]:
    """Processor time of whole sweeps, rounds alternating."""
    for rows, rounds in ROUNDS.items():
        timed = run_race("benchmarks.gpt2", str(rows), str(rounds))
        for name, who in WAYS.items():
            shape = f"4x8, d_model {timed['d_model']}), {rows} rows of {timed['tokens']}"
            question = f"sweep over 32 heads of a GPT-2 ({shape}"
            yield compare(timed, name, f"{question} tokens, against {who}", LEAST.get((rows, name), 1.0))
