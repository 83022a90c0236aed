"""An exam as the subject of an experiment: its examples in blocks of like length that memory has room for.

Examples of like length are shuffled before they share a block, for resampling takes what stands in for a head from
another row of the block: that should be no neighbour in a text, and no row of the same class in a sorted table.
"""

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
N_REFERENCE = 16_384
"""Most examples that means are taken over."""
WORK = 2**40
"""Multiplications that they may cost, or as much as silencing every head costs: about a minute of one core."""
REFERENCE_BYTES = 2**28
"""And what their inputs may take of memory."""
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
    score_by = metric if callable(metric) else chosen.name
    most_rows = _most_rows(sites, exam, rows)
    blocks = _blocks(exam, rows, score_by, at_once or most_rows, most_rows)
    total, decode = mean_total if callable(metric) else exam.total(chosen), exam.decode
    return Subject(
        model=model,
        sites=sites,
        blocks=blocks,
        metric=chosen,
        data=data or exam.data,
        floor=exam.floor(rows) if chosen is exam.metrics[0] else 0.0,
        total=total if total is mean_total else (lambda scores, some: total(scores, rows[some])),
        most_rows=most_rows,
        decode=None if decode is None else (lambda some: decode(rows[some])),
        reference=_reference(model, sites, exam, rows, score_by, at_once, blocks),
        clusters=None if exam.clusters is None else exam.clusters[rows],
        broken=0.0 if any(each.is_share for each in exam.metrics) else None,
    )


def _most_rows(sites: Sites, exam: Exam, rows: NDArray[np.int64]) -> int:
    """Of one forward pass."""
    longest = int(exam.lengths[rows].max())
    return max(2, min(ROOM // (longest * exam.width), rows_at_once(sites, longest)))


def _blocks(
    exam: Exam, rows: NDArray[np.int64], metric: str | Function, at_once: int, most_rows: int
) -> tuple[Block, ...]:
    """Of like length, else shuffled; each knows the places of its examples among `rows`."""
    size = max(1, min(at_once, most_rows // exam.n_rows))
    order = stream(0, "blocks of an exam").permutation(len(rows))
    by_length = order[np.argsort(exam.lengths[rows[order]], kind="stable")]
    blocks = []
    for some in np.array_split(by_length, max(1, min(-(-len(rows) // size), len(rows) // 2))):
        for places, asked in _asked(exam, rows, some):
            score = _bound(metric, rows[places]) if callable(metric) else asked.scores[metric]
            in_text = None if exam.clusters is None else rows[places]
            blocks.append(Block(places, asked.inputs, score, asked.loss, asked.real, in_text))
    return tuple(blocks)


def _reference(
    model: nn.Module,
    sites: Sites,
    exam: Exam,
    rows: NDArray[np.int64],
    metric: str | Function,
    at_once: int | None,
    measured: tuple[Block, ...],
) -> tuple[Block, ...]:
    """Further inputs to take means over: fresh ones, or those that are left of the exam and the measured ones.

    None if there are no more than those that are measured, or no more can be afforded.
    """
    more = _affordable(model, sites, exam, rows) - len(rows)
    if more <= 0 or (exam.fresh is None and len(rows) == len(exam)):
        return ()
    if exam.fresh is not None:
        asked = exam.fresh(more + len(rows))
        spare, measured = np.arange(len(asked)), ()
    else:
        asked, spare = exam, np.setdiff1d(np.arange(len(exam)), rows)
        spare = np.sort(stream(0, "reference").permutation(spare)[:more])
    most_rows = _most_rows(sites, asked, spare)
    return (*_blocks(asked, spare, metric, at_once or most_rows, most_rows), *measured)


def _affordable(model: nn.Module, sites: Sites, exam: Exam, rows: NDArray[np.int64]) -> int:
    """Examples that means can be taken over, in about a minute or the time that silencing every head takes."""
    longest = int(exam.lengths.argmax())
    work = sum(each.numel() for each in model.parameters()) * exam.n_rows * max(1, int(exam.lengths[longest]))
    size = sum(each.numel() * each.element_size() for each in exam.ask(np.array([longest])).inputs)
    return min(N_REFERENCE, max(WORK // work, len(rows) * len(sites.heads)), REFERENCE_BYTES // size)


def _asked(exam: Exam, rows: NDArray[np.int64], places: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Asked]]:
    """If it can be helped, no block has as many rows as a sequence is long: rows are told by that."""
    asked = exam.ask(rows[places])
    lengths = {size for each in asked.inputs for size in each.shape[1:]}
    if len(asked.inputs[0]) in lengths and len(places) >= 4:
        for part in np.array_split(places, 2):
            yield from _asked(exam, rows, part)
    else:
        yield places, asked


def halves(exam: Exam, n: int | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Examples to choose heads on, and others to measure on; `n` in all.

    They are drawn at random, but not from one running text: there the first half is chosen on, and the second measured,
    for what is chosen on a window has in part been measured on its neighbour.
    """
    order = stream(0, "halves of an exam").permutation(len(exam))[: _up_from_none(n)]
    if len(order) < 4:
        raise InputError(f"{len(order)} examples are too few to choose on some and measure on others", "at least 4")
    if exam.clusters is not None:
        order = np.sort(order)
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
