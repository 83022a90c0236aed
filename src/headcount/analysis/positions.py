"""Show how a model represents position, and whether this representation extrapolates beyond trained positions.

In a learned table, the rows of positions that training never used keep their initial values (up to weight decay).

The encoding itself is probed with constant inputs. Embeddings of zero show the vectors that the encoding adds (the
table P), queries and keys of ones show how it rotates them, and the bias of each head is read directly. Each of
these gives a kernel K(t, s): the similarity of the positions t and s.

Is the step from position p to p + k the same everywhere? Then a relation that a model learns at trained positions
also holds at all others. Two equivalent properties show this: some rotation maps each row of P to the next, and the
products P_t . P_s depend only on t - s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.analysis.attention_measures import rounded
from headcount.encodings import ENCODINGS, EncodingSettings
from headcount.encodings.base import Encoding, EncodingInUse, Positions, build_encoding
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
    "queries and keys": "K(t, s) = q · k, rotated by t and s, where all entries of q and k are 1",
    "scores": "K(t, s) = mean bias over the heads",
    "nothing": "K(t, s) = 0",
}
FEWEST_ROWS, MOST = 3, 512
"""Smallest and largest number of positions; with three, a map is fitted to one step and tested on the other."""


@dataclass(frozen=True)
class TableRow:
    """One row of a learned position table: whether training used it, and how far training moved it."""

    position: Count
    state: RowState
    """Whether training used the row; `past the table` if the table has no row for this position."""
    norm: Size
    moved: Size | None
    """Euclidean distance of the row from its initial value; None if the initial value is unknown."""
    cosine: float | None
    """Cosine similarity of the row to its initial value; None if unknown. It is 1 if the row was only rescaled."""


@dataclass(frozen=True)
class PositionsShown(Result):
    """The position encoding of one model: its kernel (similarity of positions), curves and errors.

    An encoder-decoder is described by the encoding of its encoder.
    """

    ROWS: ClassVar[tuple[str, ...]] = ("rows",)
    SCHEMA: ClassVar[int] = 2

    name: str
    weights_sha256: str
    n_positions: Positive
    n_trained: Count
    """Number of positions that training used: 0 to n_trained - 1."""
    random_positions: int | None
    """Number of positions from which training drew position ids at random; None if ids counted from 0."""
    encoding: EncodingProfile
    rows: tuple[TableRow, ...]
    """The rows of a learned position table; empty for other encodings."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the rows, the encoding and the number of positions disagree."""
        if self.rows and [row.position for row in self.rows] != list(range(self.n_positions)):
            yield "rows", f"one row for each position from 0 to {self.n_positions - 1}"
        in_table = [row for row in self.rows if row.state != "past the table"]
        if any((row.state == "trained") != (row.position < self.n_trained) for row in in_table):
            yield "rows", f"rows that are trained up to position {self.n_trained - 1} and not beyond"
        if not self.encoding.has_size(self.n_positions):
            yield "encoding", f"tables and curves of {self.n_positions} positions"


@dataclass(frozen=True)
class EncodingsShown(Result):
    """Every position encoding that is available, at the same positions, for a side-by-side figure."""

    ROWS: ClassVar[tuple[str, ...]] = ("encodings",)
    SCHEMA: ClassVar[int] = 2

    name: str | None
    trained: str | None
    """Name of the encoding that has a model's trained values, while others have initial ones; None without a model."""
    n_positions: Positive
    n_trained: Count | None
    """Number of positions that the model's training used; None without a model."""
    encodings: tuple[EncodingProfile, ...]

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the encodings, their names and the number of positions disagree."""
        names = [encoding.name for encoding in self.encodings]
        if len(set(names)) != len(names) or not all(one.has_size(self.n_positions) for one in self.encodings):
            yield "encodings", f"each encoding once, with tables of {self.n_positions} positions"
        if self.trained not in (None, *names):
            yield "trained", f"one of {', '.join(names)}"


def positions_of(
    name: str, weights_sha256: str, in_use: EncodingInUse, n_positions: int | None = None
) -> PositionsShown:
    """Compute the kernel (similarity of positions), curves and errors of a model's position encoding.

    The kernel is computed at `n_positions` positions, by default twice as many as training used.
    """
    encoding, trained = in_use.encoding, in_use.n_trained
    most = min(MOST, encoding.n_rows or MOST) if encoding.refuses_past_table else MOST
    n = min(max(2 * trained, 32), 128, most) if n_positions is None else n_positions
    if n_positions is not None and not FEWEST_ROWS <= n <= most:
        raise InputError(
            f"the number of positions must be from {FEWEST_ROWS} to {most}, got {n}",
            *([f"choose fewer: the learned table of this model has {most} rows"] if most < MOST else []),
        )
    profile = replace(profile_encoding(in_use.name, encoding, n, trained), hard_codes=in_use.hard_codes)
    return PositionsShown(
        name=name,
        weights_sha256=weights_sha256,
        n_positions=n,
        n_trained=trained,
        random_positions=in_use.random_positions,
        encoding=profile,
        rows=_rows(in_use, n),
    )


def all_encodings(
    own: PositionsShown | None = None, *, d_model: int = 64, n_heads: int = 4, n_positions: int = 64
) -> EncodingsShown:
    """Compute the kernel (similarity of positions), curves and errors of every available position encoding.

    The encodings have initial values from a fixed seed and are computed at `n_positions` positions. If a model's `own`
    encoding is given, that one keeps its trained values, and the others are computed at its positions.
    """
    n_positions = own.n_positions if own else n_positions
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


def _rows(in_use: EncodingInUse, n: int) -> tuple[TableRow, ...]:
    """Return whether training used each row of a learned table and how far it moved; empty for other encodings."""
    now, first = table_of(in_use.encoding, n), None if in_use.initial is None else table_of(in_use.initial, n)
    if now is None or not learns(in_use.encoding):
        return ()
    n_rows, norms = in_use.encoding.n_rows or MOST, np.linalg.norm(now, axis=1)
    states: list[RowState] = [
        "past the table" if p >= n_rows else "trained" if p < in_use.n_trained else "never trained" for p in range(n)
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
    """What one position encoding gives at positions 0 to n - 1 as numbers for figures: vectors, kernel and biases.

    The kernel is the similarity of two positions.
    """

    name: str
    hard_codes: str
    """Structure of the task that is built into the encoding, such as a window; empty for a generic encoding."""
    acts_on: ActsOn
    at_length: int | None
    """Length of the sequence for which the encoding was computed, if it depends on the length; otherwise None."""
    table: Matrix | None
    """Vectors that the encoding adds to the embeddings, [position][dimension]; None if it adds none."""
    kernel_is: str
    """Formula that defines the kernel, such as `K(t, s) = P(t) · P(s)`."""
    kernel: Matrix
    """Kernel K(t, s), [t][s]: the similarity of positions t and s; None where a query at t cannot see a key at s."""
    curves: tuple[DistanceCurve, ...]
    """Values by distance of positions: the bias of each head or, for an encoding without a bias, of the kernel K."""
    shift: ShiftInvariance
    """How much the kernel varies between pairs of positions at the same distance t - s."""

    def has_size(self, n: int) -> bool:
        """Return whether all tables and curves of this encoding have `n` positions."""
        square = [len(self.kernel), *map(len, self.kernel)] == [n] * (n + 1)
        parts = [part for curve in self.curves for part in (curve.mean, curve.low, curve.high)]
        return square and len(self.table or self.kernel) == n and all(len(part) == 2 * n - 1 for part in parts)


@torch.no_grad()
def profile_encoding(name: str, encoding: Encoding, n: int, trained: int | None) -> EncodingProfile:
    """Compute the kernel (similarity of positions), curves and errors of a position encoding at `n` positions.

    Training used the first `trained` of them; None means that there was no training.
    """
    table, ids = table_of(encoding, n), torch.arange(n)
    bias = encoding.bias(ids[:, None], ids[None, :])  # added to the scores, [query, key, head]
    biases = [] if bias is None else [_array(head) for head in bias.expand(n, n, -1).unbind(-1)]
    acts_on, kernel = _kernel(encoding, n, table, biases)
    # Only a learned table has untrained rows, which are excluded from the fit.
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
        shift=ShiftInvariance(
            variance_beyond_distance=variance_beyond_distance(kernel),
            variance_beyond_distance_trained=None if few is None else variance_beyond_distance(few),
            deviation=float(np.nanmax(np.abs(kernel - _diagonal_means(kernel)))),
            rotation_error=None if table is None else rotation_error(table, encoding.step(n)),
            largest_entry=None if table is None else float(np.abs(table).max()),
            linear=None if table is None or fitted < FEWEST_ROWS else fit_shift(table[:fitted]),
        ),
    )


def learns(encoding: Encoding) -> bool:
    """Return whether a position encoding has trainable parameters."""
    return any(parameter.requires_grad for parameter in encoding.parameters())


@torch.no_grad()
def table_of(encoding: Encoding, n: int) -> Array | None:
    """Return the vectors that the encoding adds to the embeddings, [position, dimension]; None if all are zero."""
    zeros, in_order = torch.zeros(1, n, encoding.d_model), Positions.in_order(n, torch.device("cpu"))
    added = encoding.add_to_embeddings(zeros, in_order)[0]
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
    return tuple(tuple(None if np.isnan(x) else rounded(x) for x in row) for row in array)


@dataclass(frozen=True)
class LinearShift:
    """How well linear maps and rotations predict each row of a position table from the row before: relative errors."""

    n_rows: Positive
    d_model: Positive
    fitted: Size
    """Error of one linear map fitted to all steps between rows. With fewer steps than dimensions, it is always 0."""
    held_out: Size
    """Error of a linear map on a step between rows that was left out of its fit; 1 is no better than predicting 0."""
    rotation: Size
    """Error of the best rotation fitted to all steps between rows. A rotation keeps all angles and lengths."""


@dataclass(frozen=True)
class ShiftInvariance:
    """How far an encoding is from shift invariance, which means that K(t, s) depends only on the distance t - s."""

    variance_beyond_distance: Share
    """Fraction of the variance of K(t, s), t ≠ s, that t - s does not explain; 0 if K depends only on t - s."""
    variance_beyond_distance_trained: Share | None
    """Fraction of the variance of K(t, s) among trained positions that t - s does not explain; None if untrained."""
    deviation: Size
    """Largest difference between a K(t, s) and the mean over all pairs of positions with the same t - s."""
    rotation_error: Size | None
    """Largest absolute entry of P(p + k) - R_k P(p), where R_k shifts sinusoids by k; None without a table P."""
    largest_entry: Size | None
    """Largest absolute entry of the position table, for comparison with the rotation error; None without a table."""
    linear: LinearShift | None
    """Errors of linear maps and rotations from each row of the table to the next; None without enough rows."""


@dataclass(frozen=True)
class DistanceCurve:
    """The kernel K(t, s), or the bias of one head, at each distance s - t from -(n - 1) to n - 1.

    `mean`, `low` and `high` are the mean, smallest and largest value over all pairs at a distance. The three are equal
    if only the distance matters, and None where the key is hidden.
    """

    label: str
    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]


def variance_beyond_distance(kernel: Array) -> float:
    """Return the fraction of the variance of K(t, s) that the distance t - s does not explain.

    Hidden pairs, where K is NaN, are left out. Pairs t = s are left out too: every position is most similar to itself,
    which would count as explained variance.

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
    """Return the matrix R_k that shifts sinusoidal position vectors by k tokens.

    R_k rotates the i-th pair (sin, cos) by the angle k * step * w_i, where w_i is the frequency of the pair. The last
    row is zero if d_model is odd.
    """
    matrix = np.zeros((d_model, d_model))
    for i in range(0, d_model - 1, 2):
        angle = k * step * 10000.0 ** (-i / d_model)
        cos, sin = np.cos(angle), np.sin(angle)
        matrix[i : i + 2, i : i + 2] = [[cos, sin], [-sin, cos]]
    return matrix


def rotation_error(table: Array, step: float = 1.0) -> float:
    """Return the largest absolute entry of P(p + k) - R_k P(p), over all positions p and steps k of a position table P.

    R_k is the rotation that shifts sinusoids by k positions.
    """
    n, d_model = table.shape
    paired = d_model - d_model % 2
    errors = [table[k:] - table[: n - k] @ rotation(step, k, d_model).T for k in range(1, n)]
    return float(max(np.abs(error[:, :paired]).max() for error in errors))


def fit_shift(rows: Array) -> LinearShift:
    """Fit one linear map and one rotation from each row of a position table to the next; return their errors."""
    here, there = rows[:-1], rows[1:]
    size = np.linalg.norm(there)
    errors = [_predict(np.delete(here, i, 0), np.delete(there, i, 0), here[i]) - there[i] for i in range(len(here))]
    left, _, right = np.linalg.svd(here.T @ there)
    return LinearShift(
        n_rows=len(rows),
        d_model=rows.shape[1],
        fitted=float(np.linalg.norm(_predict(here, there, here) - there) / size),
        held_out=float(np.linalg.norm(errors) / size),
        # Orthogonal Procrustes problem (Schönemann 1966).
        rotation=float(np.linalg.norm(here @ (left @ right) - there) / size),
    )


def curve_of(kernel: Array, label: str) -> DistanceCurve:
    """Return the mean, smallest and largest kernel value K(t, s) at each distance s - t of two positions."""
    n = len(kernel)
    diagonals = [np.diagonal(kernel, offset) for offset in range(1 - n, n)]
    visible = [values[np.isfinite(values)] for values in diagonals]
    mean, low, high = (
        tuple(rounded(float(statistic(values))) if len(values) else None for values in visible)
        for statistic in (np.mean, np.min, np.max)
    )
    return DistanceCurve(label, mean, low, high)


def _predict(here: Array, there: Array, new: Array) -> Array:
    # Singular values below 1e-6 are rounding errors of single precision.
    return new @ np.linalg.lstsq(here, there, rcond=1e-6)[0]


def _diagonal_means(kernel: Array) -> Array:
    """Return a matrix with each K(t, s) replaced by the mean over visible pairs at the same distance; NaN if hidden."""
    n, visible = len(kernel), np.isfinite(kernel)
    distance = np.arange(n) - np.arange(n)[:, None] + n - 1
    count = np.bincount(distance[visible], minlength=2 * n - 1)
    total = np.bincount(distance[visible], weights=kernel[visible], minlength=2 * n - 1)
    return np.where(visible, (total / np.maximum(count, 1))[distance], np.nan)
