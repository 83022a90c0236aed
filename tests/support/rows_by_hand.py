"""Tidy rows of runs that were never trained, with values that a test knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headcount.studies.tidy import COLUMNS, Row


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
