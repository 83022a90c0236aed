"""Tidy rows of runs that were never trained, with values that a test knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headcount.bands import band_of, role_of
from headcount.stats import PairedDifference
from headcount.studies.emergence import Emergence, emergence
from headcount.studies.rows import COLUMNS, Row


def row(seed: int, value: float | None, measure: str = "accuracy", **columns: Any) -> Row:
    about = {"task": "addition", "seed": seed, "verb": "evaluate", "file": "evaluation", "unit": "share"}
    run = f"runs/{'-'.join(map(str, columns.values()))}-{seed}"
    return {**dict.fromkeys(COLUMNS), "run": run, **about, "measure": measure, "value": value, **columns}


def rows_of(values: dict[str, Sequence[float]], **columns: Any) -> list[Row]:
    """Rows of one measure: by encoding, a value for each seed."""
    return [
        row(seed, value, encoding=name, **columns) for name, some in values.items() for seed, value in enumerate(some)
    ]


def head_rows(drops: dict[str, Sequence[float]], **columns: Any) -> list[Row]:
    """Rows of the drop of each head under zero ablation, a value for each seed."""
    return [
        row(seed, drop, "drop", head=head, site=head[:2], layer=int(head[1]), replacement="zero", **columns)
        for head, values in drops.items()
        for seed, drop in enumerate(values)
    ]


def judged_rows(intervals: dict[str, Sequence[tuple[float, float, float]]], n: int = 1000, **columns: Any) -> list[Row]:
    """Rows of the drop of each head with its interval and its band: (drop, low, high) for each seed."""
    rows = []
    for head, seeds in intervals.items():
        about = {"head": head, "site": head[:2], "layer": int(head[1]), "replacement": "zero", "metric": "exact"}
        for seed, (drop, low, high) in enumerate(seeds):
            band = band_of(PairedDifference(drop, low, high, 1.0))
            numbers = {"low": low, "high": high, "n": n, "verdict": band, "unit": "points", "file": "ablation"}
            rows.append(
                row(seed, drop, "drop", **{"verb": "ablate", **about, **numbers, **columns, "run": f"run{seed}"})
            )
    return rows


def route_rows(shares: dict[str, Sequence[tuple[float, float, float]]], way: str = "1s to 10s") -> list[Row]:
    """Rows of the share of the carry that heads (`E0H1`) or blocks (`E0`) move: (share, low, high) for each seed."""
    rows = []
    for what, seeds in shares.items():
        is_head = "H" in what
        about = {"head": what if is_head else None, "site": what[:2], "layer": int(what[1]), "way": way}
        measure = "share of the carry" if is_head else "share of the carry, all heads of a block"
        for seed, (share, low, high) in enumerate(seeds):
            numbers = {"low": low, "high": high, "verdict": role_of(low, high), "unit": "fraction", "file": "routes"}
            rows.append(row(seed, share, measure, **{"verb": "routes", **about, **numbers, "run": f"run{seed}"}))
    return rows


def snapshot_rows(
    drops: Mapping[Any, Sequence[tuple[float, dict[str, tuple[float, float, float]]]]], last: int = 1000
) -> list[Row]:
    """Rows of snapshots: by step (None: the trained model), the accuracy and the drops of heads for each seed.

    A model with an accuracy of at most 10 % has nothing to lose: its heads have no band.
    """
    rows = []
    for step, seeds in drops.items():
        for seed, (accuracy, heads) in enumerate(seeds):
            place = {"run": f"run{seed}", "step": step, "verb": "ablate", "file": "ablation", "metric": "exact"}
            score = {**place, "low": accuracy, "high": accuracy, "n": 1000}
            rows.append(row(seed, accuracy, "score with all heads", **score))
            for each in judged_rows({head: [interval] for head, interval in heads.items()}):
                verdict = each["verdict"] if accuracy > 0.1 else None
                rows.append({**each, **place, "seed": seed, "verdict": verdict})
    n_seeds = max(map(len, drops.values()))
    return [*rows, *(row(seed, last, "steps", run=f"run{seed}", verb="train", unit="steps") for seed in range(n_seeds))]


COSTLY, HARMLESS, OPEN = (0.3, 0.25, 0.35), (0.001, -0.002, 0.004), (0.01, 0.005, 0.02)
"""Drops with their intervals: critical, redundant, and undecided about 1 point."""


def over_training(seeds: int, n_snapshots: int = 3) -> Emergence:
    """Return snapshots of some seeds: nothing to lose first, then one head counts, from the second snapshot on."""
    idle, busy = {"E0H0": HARMLESS, "X0H1": HARMLESS}, {"E0H0": COSTLY, "X0H1": HARMLESS}
    steps = [100 * (i + 1) for i in range(n_snapshots)]
    drops = {
        step: [(0.05, idle) if i == 0 else (min(0.99, 0.5 + 0.1 * i + 0.01 * seed), busy) for seed in range(seeds)]
        for i, step in enumerate(steps)
    }
    found = emergence(snapshot_rows(drops, last=steps[-1]))
    assert found is not None
    return found
