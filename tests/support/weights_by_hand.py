"""Results about the weights of heads, written by hand."""

from __future__ import annotations

from typing import Any

from routes_by_hand import share

from headcount.analysis.weights import HeadWeights
from headcount.analysis.weights_circuits import Grid, HeadReading
from headcount.analysis.weights_composition import Composition, Compositions
from headcount.analysis.weights_probes import Baseline, Probe, Probes
from headcount.heads import HeadId
from headcount.stats import Proportion


def grid(rows: tuple[str, ...], columns: tuple[str, ...] | None = None) -> Grid:
    """Return a matrix that is largest on its diagonal; the first row does not see the last column."""
    columns = rows if columns is None else columns
    values = [[4.0 if i == j else -0.5 for j in range(len(columns))] for i in range(len(rows))]
    cells: list[list[float | None]] = [*values]  # type: ignore[list-item]
    if len(columns) > 1:
        cells[0][-1] = None
    return Grid(rows, columns, tuple(map(tuple, cells)))


def reading(name: str, tokens: tuple[str, ...] = ("0", "1", "2"), **changes: Any) -> HeadReading:
    head = HeadId.parse(name)
    is_direct = head.site.stack == "decoder"
    copying: dict[str, Any] = {"copying": 0.8, "copying_chance": 0.5} if is_direct else {}
    fields: dict[str, Any] = {
        "head": str(head),
        "short": head.short,
        "explained": 0.93,
        "positions": 0.7,
        "tokens": 0.1,
        "mixed": 0.12,
        "copied_tokens": 0.8,
        "copied_positions": 0.1,
        "copying": None,
        "copying_chance": None,
        "match_positions": grid(("a 1s", "+", "b 1s")),
        "match_tokens": grid(tokens),
        "copies": grid(tokens),
        "is_direct": is_direct,
    }
    return HeadReading(**fields | copying | changes)


PAIRS = (
    Composition("E1H3", "X0H2", "V", 0.2, share(0.05), "1s to 10s"),
    Composition("E0H2", "E1H0", "Q", 0.1, share(0.86), "1s to 100s"),
    Composition("E0H2", "E1H3", "V", 0.05, share(0.18), "1s to 10s"),
)


def probes(**changes: Any) -> Probes:
    guess, right = Proportion.of(55, 100), Proportion.of(200, 200)
    fields: dict[str, Any] = {
        "event": "carry",
        "n_fit": 300,
        "n_held_out": 200,
        "baselines": (Baseline("10s", 0.55, right),),
        "cells": (
            Probe("E0.input", "1s", "10s", right, guess, 1.0, 1.0),
            Probe("E1.stream", "1s", "10s", right, guess, 0.01, 0.03),
            Probe("D1.stream", "1s", "10s", right, guess),
            Probe("E0.input", "10s", "10s", guess, guess, 0.0, 0.01),
        ),
        "n_decodable": 3,
        "n_moved": 2,
        "n_idle": 1,
    }
    return Probes(**fields | changes)


def weights(name: str = "runs/adder", **changes: Any) -> HeadWeights:
    """Return a model whose E0H2 and X0H1 match and copy, and whose D0H0 the weights do not explain."""
    fields: dict[str, Any] = {
        "name": name,
        "weights_sha256": "digest",
        "n": 512,
        "norm": "pre",
        "heads": (reading("E0H2"), reading("X0H1"), reading("D0H0", explained=0.2, copying=0.1)),
        "compositions": Compositions(0.09, PAIRS),
        "probes": probes(),
    }
    return HeadWeights(**fields | changes)
