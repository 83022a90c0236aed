"""What does a model know of positions, and does that go on past the positions it was trained on?

A learned table has rows that training never touched: they are as they were drawn, whatever the model made of the rest.

The rest is read off the encoding itself: what it adds to embeddings of zero (the table P) and to each head's scores,
and how it rotates queries and keys of ones. Each gives a kernel K(t, s): how like each other it makes two positions.

Is the step from position p to p + k the same step everywhere? Where it is, a model that has learned what "k further on"
is at trained positions knows it at all others. Two properties say so. They are one property: rows that some rotation
carries each to its next are rows whose products P_t . P_s depend on t - s alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.encodings import ENCODINGS, EncodingSettings
from headcount.encodings.base import Encoding, EncodingInUse, HasPositions, Positions, build_encoding
from headcount.errors import InputError
from headcount.models.transformer import initialise
from headcount.results import Contradiction, Count, Positive, Result, Share, Size
from headcount.seeds import integer

RowState = Literal["trained", "never trained", "past the table"]
ActsOn = Literal["embeddings", "queries and keys", "scores", "nothing"]
Array = NDArray[np.float64]
Matrix = tuple[tuple[float | None, ...], ...]
KERNELS: dict[ActsOn, str] = {
    "embeddings": "K(t, s) = P(t) · P(s)",
    "queries and keys": "K(t, s) = q · k turned by t and s, all entries of q and k being 1",
    "scores": "K(t, s) = mean bias over the heads",
    "nothing": "K(t, s) = 0",
}
FEWEST_ROWS, MOST = 3, 512
"""Positions on one page: two steps, one to fit a map on and one to test it on; and K has the square of these."""


@dataclass(frozen=True)
class TableRow:
    """One row of a learned table."""

    position: Count
    state: RowState
    """Weight decay and averaging move a row that was never trained as well, but do not turn it."""
    norm: Size
    moved: Size | None
    """How far it is from its initial value; None if that is not known."""
    cosine: float | None
    """Of the angle to its initial value; 1: it was shrunk or stretched at most."""


@dataclass(frozen=True)
class PositionsShown(Result):
    """The positions of one model; in an encoder-decoder, those of the encoder."""

    ROWS: ClassVar[tuple[str, ...]] = ("rows",)
    SCHEMA: ClassVar[int] = 2

    name: str
    weights_sha256: str
    n_positions: Positive
    n_trained: Count
    """Positions met in training: 0 to one less than this."""
    random_positions: int | None
    """Training drew its positions from this many; None if it counted from 0."""
    encoding: EncodingProfile
    rows: tuple[TableRow, ...]
    """Of a learned table; empty for other encodings."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the rows and the encoding with the number of positions."""
        if self.rows and [each.position for each in self.rows] != list(range(self.n_positions)):
            yield "rows", f"those of the positions 0 to {self.n_positions - 1}"
        known = [each for each in self.rows if each.state != "past the table"]
        if any((each.state == "trained") != (each.position < self.n_trained) for each in known):
            yield "rows", f"rows trained up to position {self.n_trained - 1}, and no further"
        if not self.encoding.is_of(self.n_positions):
            yield "encoding", f"tables of {self.n_positions} positions"


@dataclass(frozen=True)
class EncodingsShown(Result):
    """Every encoding there is, at the same positions."""

    ROWS: ClassVar[tuple[str, ...]] = ("encodings",)
    SCHEMA: ClassVar[int] = 2

    name: str | None
    trained: str | None
    """The encoding that is shown as the run has trained it; all others are as they are drawn."""
    n_positions: Positive
    n_trained: Count | None
    """Positions that the run met in training."""
    encodings: tuple[EncodingProfile, ...]

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the encodings with their names and with the number of positions."""
        names = [each.name for each in self.encodings]
        if len(set(names)) != len(names) or not all(each.is_of(self.n_positions) for each in self.encodings):
            yield "encodings", f"different ones, with tables of {self.n_positions} positions"
        if self.trained not in (None, *names):
            yield "trained", f"one of {', '.join(names)}"


def positions_of(model: HasPositions, n_positions: int | None = None) -> PositionsShown:
    """The encoding of a model; without `n_positions`, at about twice as many as it was trained on."""
    found = model.encoding_in_use()
    encoding, trained = found.encoding, found.n_trained
    most = min(MOST, encoding.n_rows or MOST) if encoding.refuses_past_table else MOST
    n = min(max(2 * trained, 32), 128, most) if n_positions is None else n_positions
    if n_positions is not None and not FEWEST_ROWS <= n <= most:
        raise InputError(
            f"cannot show {n} positions",
            f"there can be {FEWEST_ROWS} to {most}" + (", the rows of this learned table" if most < MOST else ""),
        )
    profile = replace(profile_encoding(found.name, encoding, n, trained), hard_codes=found.hard_codes)
    return PositionsShown(
        name=model.name,
        weights_sha256=model.weights_sha256,
        n_positions=n,
        n_trained=trained,
        random_positions=found.random_positions,
        encoding=profile,
        rows=_rows(found, n),
    )


def all_encodings(
    model: HasPositions | None = None, *, d_model: int = 64, n_heads: int = 4, n_positions: int = 64
) -> EncodingsShown:
    """Every encoding as it is drawn from a fixed seed; the one that a model uses, as the model has trained it."""
    own = positions_of(model, n_positions) if model else None
    profiles = {own.encoding.name: own.encoding} if own else {}
    for name in ENCODINGS.names():
        if name in profiles:
            continue
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(integer(0, f"fresh {name}"))
            settings = EncodingSettings(encoding=name, n_positions=n_positions)
            fresh = build_encoding(settings, d_model, n_heads).apply(initialise).eval()
        profiles[name] = profile_encoding(name, fresh, n_positions, None)
    names = ENCODINGS.names()
    return EncodingsShown(
        name=own.name if own else None,
        trained=own.encoding.name if own else None,
        n_positions=n_positions,
        n_trained=own.n_trained if own else None,
        encodings=tuple(profiles[name] for name in (*(profiles.keys() - set(names)), *names)),
    )


def _rows(found: EncodingInUse, n: int) -> tuple[TableRow, ...]:
    """Of a learned table, how far each row moved, where it is known from where."""
    now, first = table_of(found.encoding, n), None if found.initial is None else table_of(found.initial, n)
    if now is None or not learns(found.encoding):
        return ()
    n_rows, norms = found.encoding.n_rows or MOST, np.linalg.norm(now, axis=1)
    states: list[RowState] = [
        "past the table" if p >= n_rows else "trained" if p < found.n_trained else "never trained" for p in range(n)
    ]
    if first is None:
        return tuple(TableRow(p, states[p], float(norms[p]), None, None) for p in range(n))
    moved = np.linalg.norm(now - first, axis=1)
    cosines = (first * now).sum(axis=1) / np.maximum(norms * np.linalg.norm(first, axis=1), 1e-30)
    return tuple(
        TableRow(*row) for row in zip(range(n), states, norms.tolist(), moved.tolist(), cosines.tolist(), strict=True)
    )


@dataclass(frozen=True)
class EncodingProfile:
    """One encoding at the positions 0 to n - 1."""

    name: str
    hard_codes: str
    """The structure of the task that it gives away; empty if it is generic."""
    acts_on: ActsOn
    at_length: int | None
    """The length of the sequence, for an encoding that depends on it."""
    table: Matrix | None
    """What it adds to the embeddings, [position][dimension]; None if nothing."""
    kernel_is: str
    kernel: Matrix
    """K(t, s), [t][s]: how like each other it makes two positions; None where s is hidden from t."""
    curves: tuple[Curve, ...]
    """Each head's bias against the distance; for an encoding without one, K itself."""
    shift: Shift

    def is_of(self, n: int) -> bool:
        """Whether the tables and the curves are of so many positions."""
        square = [len(self.kernel), *map(len, self.kernel)] == [n] * (n + 1)
        parts = [part for curve in self.curves for part in (curve.mean, curve.low, curve.high)]
        return square and len(self.table or self.kernel) == n and all(len(part) == 2 * n - 1 for part in parts)


@torch.no_grad()
def profile_encoding(name: str, encoding: Encoding, n: int, trained: int | None) -> EncodingProfile:
    """An encoding at `n` positions, of which it was trained on the first `trained`."""
    table, ids = table_of(encoding, n), torch.arange(n)
    bias = encoding.bias(ids[:, None], ids[None, :])  # added to the scores, [query, key, head]
    biases = [] if bias is None else [_array(head) for head in bias.expand(n, n, -1).unbind(-1)]
    acts_on, kernel = _kernel(encoding, n, table, biases)
    # Only what is learned has rows that are not worth fitting to.
    fitted = min(trained, n) if trained and learns(encoding) else n
    few = kernel[:trained, :trained] if trained and min(trained, n) >= FEWEST_ROWS else None
    curves = [curve_of(bias, f"head {i}") for i, bias in enumerate(biases)] or [curve_of(kernel, "K")]
    return EncodingProfile(
        name=name,
        hard_codes=encoding.hard_codes,
        acts_on=acts_on,
        at_length=n if encoding.needs_length else None,
        table=None if table is None else _matrix(table),
        kernel_is=KERNELS[acts_on],
        kernel=_matrix(kernel),
        curves=tuple(curves),
        shift=Shift(
            variance_beyond_distance=variance_beyond_distance(kernel),
            variance_beyond_distance_trained=None if few is None else variance_beyond_distance(few),
            deviation=float(np.nanmax(np.abs(kernel - _diagonal_means(kernel)))),
            rotation_error=None if table is None else rotation_error(table, encoding.step(n)),
            largest_entry=None if table is None else float(np.abs(table).max()),
            linear=None if table is None or fitted < FEWEST_ROWS else fit_shift(table[:fitted]),
        ),
    )


def learns(encoding: Encoding) -> bool:
    """Whether training changes it."""
    return any(each.requires_grad for each in encoding.parameters())


@torch.no_grad()
def table_of(encoding: Encoding, n: int) -> Array | None:
    """What is added to embeddings of zero, [position, dimension]; None if nothing is."""
    nothing, in_order = torch.zeros(1, n, encoding.d_model), Positions.in_order(n, torch.device("cpu"))
    added = encoding.add_to_embeddings(nothing, in_order)[0]
    return _array(added) if added.any() else None


def _kernel(encoding: Encoding, n: int, table: Array | None, biases: list[Array]) -> tuple[ActsOn, Array]:
    if table is not None:
        return "embeddings", table @ table.T
    if biases:
        return "scores", np.mean(biases, axis=0)
    ids, ones = torch.arange(n)[None], torch.ones(1, encoding.n_heads, n, encoding.d_model // encoding.n_heads)
    query, key = encoding.rotate_qk(ones, ones, ids, ids)
    if torch.equal(query, ones) and torch.equal(key, ones):
        return "nothing", np.zeros((n, n))
    return "queries and keys", _array(query[0, 0]) @ _array(key[0, 0]).T


def _array(tensor: Tensor) -> Array:
    values = tensor.double().numpy()
    return np.where(np.isfinite(values), values, np.nan)


def _matrix(array: Array) -> Matrix:
    return tuple(tuple(None if np.isnan(x) else float(f"{x:.6g}") for x in row) for row in array)


@dataclass(frozen=True)
class LinearShift:
    """The best maps from each row to its next among the first `n_rows`; errors are shares of the rows' own size."""

    n_rows: Positive
    d_model: Positive
    fitted: Size
    """Of one linear map for all steps. With fewer steps than dimensions some map always fits: 0 means nothing then."""
    held_out: Size
    """Of a linear map on a step that it was not fitted on; 1 is no better than answering 0."""
    rotation: Size
    """Of the best rotation, which keeps all angles and lengths."""


@dataclass(frozen=True)
class Shift:
    """How far an encoding is from one in which only t - s matters."""

    variance_beyond_distance: Share
    """Share of the variance of K(t, s), t ≠ s, that t - s does not explain; 0: it depends on t - s alone."""
    variance_beyond_distance_trained: Share | None
    """The same among trained positions; None if nothing was trained."""
    deviation: Size
    """Largest distance of K(t, s) from the mean over all pairs with the same t - s."""
    rotation_error: Size | None
    """Largest entry of P(p + k) - R_k P(p) over all p and k, R_k being the sinusoids' rotation; None if no table."""
    largest_entry: Size | None
    """Of the table, to hold that error against."""
    linear: LinearShift | None


@dataclass(frozen=True)
class Curve:
    """K(t, s), or one head's bias, against the distance s - t from -(n - 1) to n - 1; None where the key is hidden."""

    label: str
    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    """Over all pairs at that distance; low, mean and high are one if only the distance matters."""


def variance_beyond_distance(kernel: Array) -> float:
    """The share of the variance over pairs t ≠ s that their distance does not explain; NaN marks hidden pairs.

    Pairs t = s are left out: any position is most like itself, and that alone would count as explained.

    >>> variance_beyond_distance(np.array([[9.0, 1.0, 2.0], [1.0, 9.0, 1.0], [2.0, 1.0, 9.0]]))
    0.0
    """
    counted = np.isfinite(kernel) & ~np.eye(len(kernel), dtype=bool)
    values = kernel[counted]
    total = np.square(values - values.mean()).sum()
    if total <= 1e-12 * np.square(values).sum():
        return 0.0
    return float(np.square(values - _diagonal_means(kernel)[counted]).sum() / total)


def rotation(step: float, k: int, d_model: int) -> Array:
    """R_k in float64: turns the i-th pair (sin, cos) by the angle k step w_i. An odd last dimension has no partner."""
    turned = np.zeros((d_model, d_model))
    for i in range(0, d_model - 1, 2):
        angle = k * step * 10000.0 ** (-i / d_model)
        cos, sin = np.cos(angle), np.sin(angle)
        turned[i : i + 2, i : i + 2] = [[cos, sin], [-sin, cos]]
    return turned


def rotation_error(table: Array, step: float = 1.0) -> float:
    """The largest entry of P(p + k) - R_k P(p) over all positions p and steps k."""
    n, d_model = table.shape
    paired = d_model - d_model % 2
    misses = [table[k:] - table[: n - k] @ rotation(step, k, d_model).T for k in range(1, n)]
    return float(max(np.abs(miss[:, :paired]).max() for miss in misses))


def fit_shift(rows: Array) -> LinearShift:
    """The best maps from each row to its next."""
    here, there = rows[:-1], rows[1:]
    size = np.linalg.norm(there)
    misses = [_predict(np.delete(here, i, 0), np.delete(there, i, 0), here[i]) - there[i] for i in range(len(here))]
    left, _, right = np.linalg.svd(here.T @ there)
    return LinearShift(
        n_rows=len(rows),
        d_model=rows.shape[1],
        fitted=float(np.linalg.norm(_predict(here, there, here) - there) / size),
        held_out=float(np.linalg.norm(misses) / size),
        # Schönemann 1966: the orthogonal matrix nearest to carrying one set of rows to another.
        rotation=float(np.linalg.norm(here @ (left @ right) - there) / size),
    )


def curve_of(kernel: Array, label: str) -> Curve:
    """K(t, s) by s - t."""
    n = len(kernel)
    diagonals = [np.diagonal(kernel, offset) for offset in range(1 - n, n)]
    seen = [values[np.isfinite(values)] for values in diagonals]
    mean, low, high = (
        tuple(float(f"{pick(values):.6g}") if len(values) else None for values in seen)
        for pick in (np.mean, np.min, np.max)
    )
    return Curve(label, mean, low, high)


def _predict(here: Array, there: Array, asked: Array) -> Array:
    # Smaller singular values are the rounding errors of single precision.
    return asked @ np.linalg.lstsq(here, there, rcond=1e-6)[0]


def _diagonal_means(kernel: Array) -> Array:
    """At each pair, the mean over all seen pairs at its distance."""
    n, seen = len(kernel), np.isfinite(kernel)
    distance = np.arange(n) - np.arange(n)[:, None] + n - 1
    count = np.bincount(distance[seen], minlength=2 * n - 1)
    total = np.bincount(distance[seen], weights=kernel[seen], minlength=2 * n - 1)
    return np.where(seen, (total / np.maximum(count, 1))[distance], np.nan)
