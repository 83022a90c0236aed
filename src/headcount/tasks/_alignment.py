"""What a head could be looking at in a sum.

Of 374+814, in the decoder's cross-attention, while the 10s of the answer are being said:

    source            3 7 4 + 8 1 4
    aligned column      x       x          both digits that make this digit of the answer
    carry column          x       x        the next lower column, which makes the carry into this one
    operator                x
    first token       x

A digit in the encoder has its aligned column in the other operand alone. In the decoder's self-attention the token
that was just said stands on the diagonal, so it is called the previous output there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headcount.tasks._carries import Carries, column_name
from headcount.tasks.base import Condition, Looks, Position, Target

Numbers = NDArray[np.float64]
"""NaN where there is none: it equals nothing, itself neither."""


def addition_looks(queries: Sequence[Position], keys: Sequence[Position], carries: Carries) -> Looks:
    """The targets between these queries (in the decoder: what each says) and keys, and where a carry comes in."""
    columns = _numbers([p.column for p in queries])
    written = list(dict.fromkeys(p.column for p in queries if p.column is not None))
    about = np.array([-1 if p.column is None else written.index(p.column) for p in queries])
    carry_in = np.pad(carries.out, ((0, 0), (1, 0)))[:, written]
    condition = Condition("carry in", "no carry in", "a carry comes in", carry_in)
    is_source = any(p.role == "operator" for p in keys)
    targets = _in_the_source(queries, keys, columns) if is_source else _in_the_answer(keys)
    return Looks(targets, tuple(map(column_name, written)), about, condition)


def _in_the_source(queries: Sequence[Position], keys: Sequence[Position], columns: Numbers) -> dict[str, Target]:
    key_columns = _numbers([p.column for p in keys])
    operands, key_operands = (_numbers([p.operand for p in positions]) for positions in (queries, keys))
    is_operator = np.array([p.role == "operator" for p in keys])
    return {
        "operator": lambda q, k: is_operator[k],
        "diagonal": lambda q, k: q == k,
        "aligned column": lambda q, k: (columns[q] == key_columns[k]) & (operands[q] != key_operands[k]),
        "carry column": lambda q, k: columns[q] - 1 == key_columns[k],
        "first token": lambda q, k: k == 0,
    }


def _in_the_answer(keys: Sequence[Position]) -> dict[str, Target]:
    is_digit = np.array([p.role == "sum" for p in keys])
    return {
        "previous output": lambda q, k: (q == k) & is_digit[k],
        "first token": lambda q, k: k == 0,
    }


def _numbers(found: Sequence[int | None]) -> Numbers:
    return np.array([np.nan if number is None else number for number in found])
