"""What does a model know of positions, and does that go on past the positions it was trained on?

A learned table has rows that training never touched: they are as they were drawn, whatever the model made of the rest.
What an encoding does at all, and whether a step is the same step everywhere, is in touches.py and shifts.py.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from headcount.analysis.shifts import FEWEST_ROWS, Array
from headcount.analysis.touches import EncodingShown, learns, show_encoding, table_of
from headcount.encodings import ENCODINGS
from headcount.encodings._randomised import Randomised
from headcount.encodings._settings import EncodingSettings
from headcount.encodings.base import Encoding, build_encoding
from headcount.encodings.learned import Learned
from headcount.errors import InputError
from headcount.models.blocks import initialise
from headcount.results import Result
from headcount.runs.run import Run, build
from headcount.seeds import integer

RowState = Literal["trained", "never trained", "past the table"]
MOST = 512
"""Positions on one page; K has its square of numbers."""


@dataclass(frozen=True)
class TableRow:
    """One row of a learned table."""

    position: int
    state: RowState
    """Weight decay and averaging move a row that was never trained as well, but do not turn it."""
    norm: float
    moved: float
    """How far it is from its initial value."""
    cosine: float
    """Of the angle to its initial value; 1: it was shrunk or stretched at most."""


@dataclass(frozen=True)
class PositionsShown(Result):
    """The positions of one run; in an encoder-decoder, those of the encoder."""

    run: str
    model: str
    """The digest of the weights."""
    n_positions: int
    n_trained: int
    """Positions met in training: 0 to one less than this."""
    random_positions: int | None
    """Training drew its positions from this many; None if it counted from 0."""
    encoding: EncodingShown
    rows: tuple[TableRow, ...]
    """Of a learned table; empty for other encodings."""


@dataclass(frozen=True)
class EncodingsShown(Result):
    """Every encoding there is, at the same positions."""

    run: str | None
    trained: str | None
    """The encoding that is shown as the run has trained it; all others are as they are drawn."""
    n_positions: int
    n_trained: int | None
    """Positions that the run met in training."""
    encodings: tuple[EncodingShown, ...]


def positions_of(run: Run, n_positions: int | None = None) -> PositionsShown:
    """The encoding of a run; without `n_positions`, at about twice as many as it was trained on."""
    encoding, random_positions = _encoding_of(run.model)
    gives = ", ".join(getattr(run.model, "gives", ())) or encoding.gives
    trained = random_positions or run.task.longest
    n = _how_many(encoding, trained, n_positions)
    return PositionsShown(
        run=run.name,
        model=run.digest,
        n_positions=n,
        n_trained=trained,
        random_positions=random_positions,
        encoding=replace(show_encoding(run.config.model.encoding, encoding, n, trained), gives=gives),
        rows=_rows(run, encoding, n, trained),
    )


def all_encodings(
    run: Run | None = None, *, d_model: int = 64, n_heads: int = 4, n_positions: int = 64
) -> EncodingsShown:
    """Every encoding as it is drawn from a fixed seed; the one that a run uses, as the run has trained it."""
    own = positions_of(run, n_positions) if run else None
    return EncodingsShown(
        run=own.run if own else None,
        trained=own.encoding.name if own else None,
        n_positions=n_positions,
        n_trained=own.n_trained if own else None,
        encodings=tuple(
            own.encoding
            if own and own.encoding.name == name
            else show_encoding(name, _fresh(name, d_model, n_heads, n_positions), n_positions, None)
            for name in ENCODINGS.names()
        ),
    )


def _encoding_of(model: Any) -> tuple[Encoding, int | None]:
    """A model's encoding, and out of how many ids it draws if they are random."""
    found = model.positions if hasattr(model, "positions") else model.source_positions
    # Random positions hand the tokens other ids; what an id does is up to the encoding inside.
    n_ids = found.n_ids if isinstance(found, Randomised) else None
    inner = found.inner if isinstance(found, Randomised) else found
    return copy.deepcopy(inner).cpu().eval(), n_ids


def _fresh(name: str, d_model: int, n_heads: int, n: int) -> Encoding:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(0, f"fresh {name}"))
        made = build_encoding(EncodingSettings(encoding=name, n_positions=n), d_model, n_heads)
        return made.apply(initialise).eval()


def _how_many(encoding: Encoding, trained: int, asked: int | None) -> int:
    refuses = isinstance(encoding, Learned) and encoding.past_table == "error"
    most = min(MOST, _n_rows(encoding)) if refuses else MOST
    if asked is None:
        return min(max(2 * trained, 32), 128, most)
    if not FEWEST_ROWS <= asked <= most:
        raise InputError(
            f"cannot show {asked} positions",
            f"there can be {FEWEST_ROWS} to {most}" + (", the rows of this learned table" if most < MOST else ""),
        )
    return asked


def _rows(run: Run, encoding: Encoding, n: int, trained: int) -> tuple[TableRow, ...]:
    now = table_of(encoding, n)
    if now is None or not learns(encoding):
        return ()
    first = table_of(_encoding_of(build(run.config)[1])[0], n)
    assert first is not None, "a table of zeros would have been drawn"
    moved, norms = _lengths(now - first), _lengths(now)
    cosines = (first * now).sum(axis=1) / np.maximum(norms * _lengths(first), 1e-30)
    n_rows = _n_rows(encoding)
    return tuple(
        TableRow(p, _state(p, trained, n_rows), float(norms[p]), float(moved[p]), float(cosines[p])) for p in range(n)
    )


def _state(position: int, trained: int, n_rows: int) -> RowState:
    if position >= n_rows:
        return "past the table"
    return "trained" if position < trained else "never trained"


def _n_rows(encoding: Encoding) -> int:
    return int(encoding.rows.num_embeddings) if isinstance(encoding, Learned) else MOST


def _lengths(rows: Array) -> Array:
    return np.sqrt(np.square(rows).sum(axis=1))
