"""How much faster does headcount ablate every head of a Hugging Face GPT-2 than other tools, on one thread?

Sweeps run on a few examples, where it helps to share a batch among ablations, and on many, where it does not. `gpt2.py`
runs the sweeps, in the environment of the other tools.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import Ratio
from benchmarks.sweeps import compare, run_race

ROUNDS = {8: 15, 256: 3}
"""Number of rounds for each number of examples."""
WAYS = {"hooks": "a loop of plain PyTorch hooks", "lens": "TransformerLens", "nnsight": "nnsight"}
LEAST = {(8, "hooks"): 1.5}
"""Smallest ratio that is promised, by number of examples and tool; 1 for the others."""


def measure() -> Iterator[Ratio]:
    """Compare the processor time of whole sweeps; rounds alternate."""
    for n_rows, n_rounds in ROUNDS.items():
        sweeps = run_race("benchmarks.gpt2", str(n_rows), str(n_rounds))
        shape = f"4x8, d_model {sweeps['d_model']}), {n_rows} rows of {sweeps['tokens']} tokens"
        for name, tool in WAYS.items():
            question = f"sweep over 32 heads of a GPT-2 ({shape}, against {tool}"
            yield compare(sweeps, name, question, LEAST.get((n_rows, name), 1.0))
