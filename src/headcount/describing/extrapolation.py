"""Up to which length is a model accurate, and do the confidence intervals decide it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from headcount.describing.blocks import Cell
from headcount.describing.words import interval, interval_cell, percent
from headcount.limits import ACCURATE
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import LengthResult, Stretch

HARDEST = "adjacent"
"""The hardest kind of negative (unsorted sequence): two neighbours are swapped."""
PATTERNS = "patterns"
"""The kind of test example that contains hard sequences of both classes, sorted and unsorted."""
EXERCISE = ("sinusoidal", "learned", "none")
"""The position encodings that the university exercise compares; "none" is no encoding."""
KIND_WORDS = {
    "adjacent": "single adjacent swaps",
    "shuffle": "full shuffles",
    "moved_one": "sequences with one number moved",
    "patterns": "hard patterns (runs of equal numbers, small steps, jumps)",
    "transpositions": "random transpositions",
}
"""Maps each kind of test example to the words for it in sentences."""


@dataclass(frozen=True)
class Extrapolation:
    """How far one model extrapolates on one kind of negative (unsorted sequence): accurate and inaccurate lengths."""

    kind: str
    cells: tuple[LengthResult, ...]
    """The results at all tested lengths, the shortest first."""
    last_accurate: LengthResult | None
    """The result at the longest length up to which the model is accurate at all lengths; None if it never is."""
    undecided: tuple[LengthResult, ...]
    """Results between the last accurate and the first inaccurate length: their 95 % CIs contain `ACCURATE`."""
    first_inaccurate: LengthResult | None
    """The result at the first length where the model is shown to be inaccurate; None if there is none."""

    @property
    def length(self) -> int:
        """Return the longest length up to which the model is accurate at every tested length; 0 if it never is."""
        return self.last_accurate.length if self.last_accurate else 0

    @property
    def longest_possible(self) -> int:
        """Return the longest length up to which the model may be accurate, if undecided lengths count as accurate."""
        return self.undecided[-1].length if self.undecided else self.length

    @property
    def is_complete(self) -> bool:
        """Return whether the model is accurate at every tested length."""
        return self.last_accurate is not None and self.last_accurate is self.cells[-1]

    @property
    def words(self) -> str:
        """Return in words up to which length the model is accurate, such as `up to 16` or `at no length`."""
        if self.is_complete:
            return f"at every tested length, up to {self.length:,}"
        certain = f"up to {self.length:,}" if self.last_accurate else "at no length"
        return f"{certain} for certain (possibly up to {self.longest_possible:,})" if self.undecided else certain


def extrapolation_of(result: Stretch, kind: str = HARDEST) -> Extrapolation | None:
    """Return how far a model extrapolates on one kind of negative (unsorted sequence), or None if it was not tested."""
    cells = tuple(sorted((cell for cell in result.cells if cell.negative == kind), key=lambda cell: cell.length))
    if not cells:
        return None
    n_accurate = next((i for i, cell in enumerate(cells) if not is_accurate(cell)), len(cells))
    end = next((i for i, cell in enumerate(cells) if is_inaccurate(cell)), len(cells))
    last = cells[n_accurate - 1] if n_accurate else None
    return Extrapolation(kind, cells, last, cells[n_accurate:end], cells[end] if end < len(cells) else None)


def is_accurate(cell: LengthResult) -> bool:
    """Return whether a model is accurate at a length: the whole 95 % CI of its accuracy lies above 90 % (`ACCURATE`).

    A model that gives one answer to every example is never accurate.
    """
    return cell.low > ACCURATE and not cell.constant


def is_inaccurate(cell: LengthResult) -> bool:
    """Return whether a model is inaccurate at a length: the whole 95 % CI of its accuracy lies below `ACCURATE`.

    A model that gives one answer to every example is always inaccurate.
    """
    return cell.constant or cell.high <= ACCURATE


def is_decided(cell: LengthResult) -> bool:
    """Return whether the 95 % CI decides that the model is accurate, or that it is inaccurate, at this length."""
    return is_accurate(cell) or is_inaccurate(cell)


def is_plain(result: Stretch) -> bool:
    """Return whether a model differs from the standard sortedness model only in its position encoding and pooling.

    Such a model has ordinary attention, and no built-in structure of the task.
    """
    return not result.hard_codes and result.label == f"{result.encoding}, {result.pooling}"


def hardest_kind(results: Sequence[Stretch]) -> str:
    """Return the hardest kind of negative (unsorted sequence) that any of these results has."""
    kinds = [cell.negative for result in results for cell in result.cells]
    return HARDEST if HARDEST in kinds or not kinds else kinds[-1]


def kind_words(kind: str) -> str:
    """Return the words for a kind of negative (unsorted sequence) in sentences.

    >>> kind_words("adjacent"), kind_words("two_blocks")
    ('single adjacent swaps', 'two blocks')
    """
    return KIND_WORDS.get(kind, kind.replace("_", " "))


def accuracy_words(cell: LengthResult) -> str:
    """Return in words the accuracy at a length with its interval and n, or the one answer that every example gets."""
    if cell.constant:
        return f"it answers “{cell.constant_class}” to everything, n = {cell.n:,}"
    return f"{percent(cell.accuracy)}, {interval(cell.low, cell.high)}, n = {cell.n:,}"


def accuracy_cell(result: LengthResult | None, missing: str = "not measured") -> Cell:
    """Return a table cell such as `98.5 [95.7, 99.5]`, in bold if the model is accurate, or its one answer to all.

    `missing` is the text of the cell if there is no result.
    """
    if result is None:
        return Cell(missing, None, "weak")
    if result.constant:
        return Cell(f"one answer: {result.constant_class}", 100 * result.accuracy, "weak")
    mark = "strong" if is_accurate(result) else ""
    return interval_cell(result.accuracy, result.low, result.high, mark=mark)  # type: ignore[arg-type]


def at_training_lengths(cells: Sequence[LengthResult], trained: tuple[int, int] | None) -> LengthResult | None:
    """Return the accuracy over all training lengths together, or None if no training length was tested.

    `cells` are the results on one kind of negative (unsorted sequence), one for each length.
    """
    inside = [cell for cell in cells if trained and trained[0] <= cell.length <= trained[1]]
    if not inside:
        return None
    recall = _pooled([cell.recall for cell in inside])
    right = Proportion.of(sum(share.correct for share in recall), sum(cell.n for cell in inside))
    answers = {cell.constant_class for cell in inside}
    return replace(
        inside[-1],
        accuracy=right.rate,
        low=right.low,
        high=right.high,
        n=right.n,
        constant=len(answers) == 1 and inside[-1].constant,
        constant_class=inside[-1].constant_class if len(answers) == 1 else None,
        recall=recall,
        answers=_pooled([cell.answers for cell in inside]),
        margin=tuple(fmean(values) for values in zip(*(cell.margin for cell in inside), strict=True)),
    )


def _pooled(shares: Sequence[Sequence[Proportion]]) -> tuple[Proportion, ...]:
    """Return the share of each class over all lengths; `shares` has the shares of the classes at each length."""
    return tuple(
        Proportion.of(sum(each.correct for each in by_length), sum(each.n for each in by_length))
        for by_length in zip(*shares, strict=True)
    )


def failure_causes(
    result: Stretch, extrapolation: Extrapolation
) -> tuple[LengthResult, LengthResult, LengthResult] | None:
    """Return three results that show why a model fails at its first inaccurate length.

    The first result is the accuracy at the inaccurate length. The other two are accuracies on sequences of the longest
    training length: one with the position ids of the inaccurate length, one with gaps between neighbouring numbers as
    small as there. Return None if the model does not fail beyond its training lengths, or if this was not measured.
    """
    first, longest = extrapolation.first_inaccurate, result.trained[1] if result.trained else 0
    if first is None or first.length <= longest or extrapolation.last_accurate is None:
        return None
    ids = next((each.cell for each in result.ids if each.first + longest == first.length), None)
    gaps = next((cell for cell in result.cropped_results if cell.length == first.length), None)
    return (first, ids, gaps) if ids and gaps else None
