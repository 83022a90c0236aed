"""What does an encoding do? Read off the encoding itself, by asking it about positions and nothing else.

What does it add to embeddings of zero (the table P), and to each head's scores? How does it turn queries and keys of
ones? Either gives a kernel K(t, s): how like each other the encoding makes two positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from headcount.analysis.shifts import Array, Curve, Shift, curve_of, measure_shift
from headcount.encodings.base import Encoding, Positions
from headcount.encodings.length_normalised import PLACES, LengthNormalised

Matrix = tuple[tuple[float | None, ...], ...]
Touch = Literal["embeddings", "queries and keys", "scores", "nothing"]

KERNELS: dict[Touch, str] = {
    "embeddings": "K(t, s) = P(t) · P(s)",
    "queries and keys": "K(t, s) = q · k turned by t and s, all entries of q and k being 1",
    "scores": "K(t, s) = mean bias over the heads",
    "nothing": "K(t, s) = 0",
}


@dataclass(frozen=True)
class EncodingShown:
    """One encoding at the positions 0 to n - 1."""

    name: str
    gives: str
    """The structure of the task that it gives away; empty if it is generic."""
    touches: Touch
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


def show_encoding(name: str, encoding: Encoding, n: int, trained: int | None) -> EncodingShown:
    """An encoding at `n` positions, of which it was trained on the first `trained`."""
    table, biases = table_of(encoding, n), _biases(encoding, n)
    touches, kernel = _kernel(encoding, n, table, biases)
    by_length = isinstance(encoding, LengthNormalised)
    # Only what is learned has rows that are not worth fitting to.
    fitted = min(trained, n) if trained and learns(encoding) else n
    curves = [curve_of(bias, f"head {i}") for i, bias in enumerate(biases)] or [curve_of(kernel, "K")]
    return EncodingShown(
        name=name,
        gives=encoding.gives,
        touches=touches,
        at_length=n if by_length else None,
        table=None if table is None else _matrix(table),
        kernel_is=KERNELS[touches],
        kernel=_matrix(kernel),
        curves=tuple(curves),
        shift=measure_shift(kernel, table, trained=trained, fitted=fitted, step=PLACES / n if by_length else 1.0),
    )


def learns(encoding: Encoding) -> bool:
    """Whether training changes it."""
    return any(True for _ in encoding.parameters())


@torch.no_grad()
def table_of(encoding: Encoding, n: int) -> Array | None:
    """What is added to embeddings of zero, [position, dimension]; None if nothing is."""
    added = encoding.embed(torch.zeros(1, n, encoding.d_model), Positions.in_order(n, torch.device("cpu")))[0]
    return _array(added) if added.any() else None


@torch.no_grad()
def _biases(encoding: Encoding, n: int) -> list[Array]:
    """What is added to the scores of each head, [query, key]; NaN where the key is hidden."""
    ids = torch.arange(n)
    bias = encoding.bias(ids[:, None], ids[None, :])
    return [] if bias is None else [_array(head) for head in bias.expand(n, n, -1).unbind(-1)]


@torch.no_grad()
def _kernel(encoding: Encoding, n: int, table: Array | None, biases: list[Array]) -> tuple[Touch, Array]:
    if table is not None:
        return "embeddings", table @ table.T
    if biases:
        return "scores", np.mean(biases, axis=0)
    ids, ones = torch.arange(n)[None], torch.ones(1, encoding.n_heads, n, encoding.d_model // encoding.n_heads)
    query, key = encoding.turn(ones, ones, ids, ids)
    if torch.equal(query, ones) and torch.equal(key, ones):
        return "nothing", np.zeros((n, n))
    return "queries and keys", _array(query[0, 0]) @ _array(key[0, 0]).T


def _array(tensor: Tensor) -> Array:
    values = tensor.double().numpy()
    return np.where(np.isfinite(values), values, np.nan)


def _matrix(array: Array) -> Matrix:
    return tuple(tuple(None if np.isnan(x) else float(f"{x:.6g}") for x in row) for row in array)
