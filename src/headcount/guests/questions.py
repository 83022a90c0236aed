"""An exam as the subject of an experiment: its examples in blocks of like length that memory has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.subjects import Block, Metric, Subject, mean_total, named
from headcount.errors import InputError
from headcount.guests.exams.base import Asked, Exam
from headcount.instruments.sites import Sites
from headcount.instruments.sweep import rows_at_once
from headcount.seeds import stream

ROOM = 2**25
"""Numbers of one forward pass' answers: 128 MB in single precision; what modules keep meanwhile is some times that."""
Function = Callable[[Tensor, NDArray[np.int64]], Tensor]


def subject_of_exam(
    model: nn.Module,
    sites: Sites,
    exam: Exam,
    rows: NDArray[np.int64] | None = None,
    metric: str | Function | None = None,
    *,
    data: str | None = None,
    at_once: int | None = None,
) -> Subject:
    """A model on some examples of an exam, all unless told; a metric is a name, or a function of output and numbers."""
    rows = np.arange(len(exam)) if rows is None else rows
    if len(rows) < 2:
        raise InputError(f"{len(rows)} examples are too few", "at least 2")
    chosen = (
        Metric(getattr(metric, "__name__", "score"), False, "") if callable(metric) else named(metric, exam.metrics)
    )
    by_length = rows[np.argsort(exam.lengths[rows], kind="stable")]
    longest = int(exam.lengths[rows].max())
    most_rows = max(2, min(ROOM // (longest * exam.width), rows_at_once(sites, longest)))
    size = max(1, min(at_once or most_rows, most_rows // exam.n_rows))
    blocks, place = [], {int(row): i for i, row in enumerate(rows)}
    parts = np.array_split(by_length, max(1, min(-(-len(rows) // size), len(rows) // 2)))
    for part, asked in (each for some in parts for each in _asked(exam, some)):
        here = np.array([place[int(row)] for row in part])
        score = _bound(metric, part) if callable(metric) else asked.scores[chosen.name]
        blocks.append(Block(here, asked.inputs, score, asked.loss, asked.real))
    total, decode = mean_total if callable(metric) else exam.total(chosen), exam.decode
    return Subject(
        model=model,
        sites=sites,
        blocks=tuple(blocks),
        metric=chosen,
        data=data or exam.data,
        floor=exam.floor(rows) if chosen is exam.metrics[0] else 0.0,
        total=total if total is mean_total else (lambda scores, some: total(scores, rows[some])),
        most_rows=most_rows,
        decode=None if decode is None else (lambda some: decode(rows[some])),
    )


def _asked(exam: Exam, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Asked]]:
    """If it can be helped, no block has as many rows as a sequence is long: rows are told by that."""
    asked = exam.ask(rows)
    lengths = {size for each in asked.inputs for size in each.shape[1:]}
    if len(asked.inputs[0]) in lengths and len(rows) >= 4:
        for part in np.array_split(rows, 2):
            yield from _asked(exam, part)
    else:
        yield rows, asked


def halves(exam: Exam, n: int | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Examples to choose heads on, and others to measure on; `n` in all."""
    order = stream(0, "halves of an exam").permutation(len(exam))[: _up_from_none(n)]
    if len(order) < 4:
        raise InputError(f"{len(order)} examples are too few to choose on some and measure on others", "at least 4")
    middle = len(order) // 2
    return np.sort(order[:middle]), np.sort(order[middle:])


def some_of(exam: Exam, n: int | None) -> NDArray[np.int64]:
    """`n` examples, drawn, or all."""
    if n is None or n >= len(exam):
        return np.arange(len(exam))
    return np.sort(stream(0, "some of an exam").permutation(len(exam))[: _up_from_none(n)])


def _up_from_none(n: int | None) -> int | None:
    """Fewer than none are none, and not all but so many."""
    return None if n is None else max(0, n)


def _bound(metric: Function, rows: NDArray[np.int64]) -> Callable[[Tensor], Tensor]:
    return lambda output: metric(output, rows)
