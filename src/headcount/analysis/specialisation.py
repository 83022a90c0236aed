"""What is each head for? Its attention to what the task calls by name, over many examples, each mean with its error.

The task names the targets (operator, aligned column, left neighbour, ...), the column that each query is about and a
condition (a carry comes in, the sequence is sorted). Every measure is told overall, by column, and apart for examples
where the condition holds and where it does not. Over all columns the two are compared within columns, each counting
alike, and only over columns that meet both: no carry ever comes into the 1s, which must not pass for an effect of
carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from headcount.analysis.clusters import Estimate, Stratum, Sums, estimate
from headcount.analysis.head_measures import Measured, measure
from headcount.analysis.labels import ALL, DIFFERENCE, THRESHOLDS, Measure, Thresholds, label
from headcount.analysis.watched import watch
from headcount.errors import InputError
from headcount.heads import HeadId
from headcount.results import Result
from headcount.runs.run import Run
from headcount.tasks.base import Looks

Both = tuple[Estimate, Estimate | None]
"""A mean, and what even attention would give."""


@dataclass(frozen=True)
class HeadStats:
    """One head."""

    head: str
    short: str
    stack: str
    layer: int
    kind: str
    label: str
    """What it looks at, where a threshold says so; else nothing."""
    measures: tuple[Measure, ...]

    def find(self, measure: str, column: str = ALL, condition: str = ALL) -> Measure | None:
        """One number, if it was measured."""
        wanted = measure, column, condition
        return next((m for m in self.measures if (m.measure, m.column, m.condition) == wanted), None)


@dataclass(frozen=True)
class Specialisation(Result):
    """Every head of a model."""

    run: str
    model: str
    """The digest of the weights."""
    n: int
    """Examples."""
    data: str
    """Which examples."""
    thresholds: Thresholds
    heads: tuple[HeadStats, ...]


def specialise(
    run: Run, length: int | None = None, *, progress: Callable[[int, int], None] | None = None
) -> Specialisation:
    """Measure every head: on the test set or, of a classifier, on fresh sequences of this length."""
    if not run.model.heads:
        raise InputError(f"{run.name} has no heads to measure", "choose a run that was not stripped of all of them")
    watched = watch(run, length)
    measured, heads = measure(run, watched, progress), list[HeadStats]()
    for site in (site for site in run.model.sites if site in measured):
        looks = run.task.looks(site.stack, site.kind, watched.examples)
        here = [head for head in run.model.heads if head.site == site]
        heads += [_stats(head, i, measured[site], looks) for i, head in enumerate(here)]
    return Specialisation(run.name, run.digest, len(watched), watched.data, THRESHOLDS, tuple(heads))


def _stats(head: HeadId, i: int, measured: Mapping[str, Measured], looks: Looks) -> HeadStats:
    found = tuple(m for name, each in measured.items() for m in _means(name, each, i, looks))
    site, named = head.site, label(found, looks.condition.when)
    return HeadStats(str(head), head.short, site.stack, site.layer, site.kind, named, found)


def _means(name: str, measured: Measured, i: int, looks: Looks) -> Iterator[Measure]:
    """One measure of head `i` in every case that two examples or more belong to."""
    found: dict[tuple[str, str], Both] = {}
    condition = looks.condition
    for column, which, strata in _cases(looks, measured.counts):
        got = estimate(measured.sums[:, i], measured.counts, strata)
        if got.n < 2:
            continue
        even = None if measured.even is None else estimate(measured.even, measured.counts, strata)
        found[column, which] = got, even
        yield _record(name, column, which, got, even)
        if which == condition.no and (column, condition.yes) in found:
            yes, even_yes = found[column, condition.yes]
            differs = None if even is None or even_yes is None else even_yes - even
            yield _record(name, column, DIFFERENCE, yes - got, differs)


def _record(name: str, column: str, which: str, got: Estimate, even: Estimate | None) -> Measure:
    mean, se = (float(f"{value:.6g}") for value in (got.mean, got.se))
    return Measure(name, column, which, mean, se, got.n, None if even is None else round(even.mean, 6))


def _cases(looks: Looks, counts: Sums) -> Iterator[tuple[str, str, list[Stratum]]]:
    """Overall and by column, each with and without the condition: a column, a condition, and what is pooled."""
    holds, whole = looks.condition.holds, np.ones(counts.shape, dtype=bool)
    # A query that is about no column belongs to no side of a condition that is about columns.
    named = len(looks.columns) or 1
    yes, no = (np.pad(side, ((0, 0), (0, counts.shape[1] - named))) for side in (holds, ~holds))
    sides = {looks.condition.yes: yes, looks.condition.no: no}
    columns = [whole & (np.arange(counts.shape[1]) == i) for i in range(named)]
    met = [column for column in columns if all(counts[column & side].any() for side in sides.values())]
    yield ALL, ALL, [whole]
    if met:
        yield from ((ALL, name, [column & side for column in met]) for name, side in sides.items())
    for name, column in zip(looks.columns, columns, strict=False):
        yield name, ALL, [column]
        yield from ((name, which, [column & side]) for which, side in sides.items())
