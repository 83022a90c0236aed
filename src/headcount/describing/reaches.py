"""How far a model reaches: the longest length at which it is shown to be right, and where that ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from headcount.describing.blocks import Cell
from headcount.describing.words import interval, percent
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import LengthResult, Stretch

RIGHT = 0.9
"""A model is right at a length if the whole interval of its accuracy lies above this, ..."""
HARDEST = "adjacent"
"""... where one pair of neighbours has changed places."""
EXERCISE = ("sinusoidal", "learned", "none")
"""Encodings that the exercise compares."""
NAMES = {
    "adjacent": "single adjacent swaps",
    "shuffle": "full shuffles",
    "moved_one": "sequences with one number moved",
    "transpositions": "random transpositions",
}
"""Of kinds of negatives, in sentences."""


@dataclass(frozen=True)
class Reach:
    """One model on one kind of negative; lengths are those that were tried."""

    kind: str
    cells: tuple[LengthResult, ...]
    """From the shortest to the longest."""
    last: LengthResult | None
    """The longest at which it, and every shorter one, is right; None if not even the shortest is."""
    open: tuple[LengthResult, ...]
    """Beyond that, those whose interval lies on both sides of the border, up to ..."""
    first_wrong: LengthResult | None
    """... the first that is shown not to be right; None if there is none."""

    @property
    def length(self) -> int:
        """0 if it is right nowhere."""
        return self.last.length if self.last else 0

    @property
    def most(self) -> int:
        """How far it may reach, for all that is known."""
        return self.open[-1].length if self.open else self.length

    @property
    def is_whole(self) -> bool:
        """Whether it is right at every length that was tried."""
        return self.last is not None and self.last is self.cells[-1]


def reach_of(result: Stretch, kind: str = HARDEST) -> Reach | None:
    """None if this kind was not tried."""
    cells = tuple(sorted((cell for cell in result.cells if cell.negative == kind), key=lambda cell: cell.length))
    if not cells:
        return None
    wrong = next((i for i, cell in enumerate(cells) if is_wrong(cell)), len(cells))
    right = next((i for i, cell in enumerate(cells) if not is_right(cell)), len(cells))
    last = cells[right - 1] if right else None
    return Reach(kind, cells, last, cells[right:wrong], cells[wrong] if wrong < len(cells) else None)


def causes_of(result: Stretch, reach: Reach) -> tuple[LengthResult, LengthResult, LengthResult] | None:
    """The first length beyond its reach, then a trained length with that one's last ids, and with its gaps, alone."""
    wrong, longest = reach.first_wrong, result.trained[1] if result.trained else 0
    if wrong is None or wrong.length <= longest or reach.last is None:
        return None
    ids = next((each.cell for each in result.ids if each.first + longest == wrong.length), None)
    gaps = next((cell for cell in result.cropped_results if cell.length == wrong.length), None)
    return (wrong, ids, gaps) if ids and gaps else None


def is_right(cell: LengthResult) -> bool:
    """By the whole interval."""
    return cell.low > RIGHT and not cell.constant


def is_wrong(cell: LengthResult) -> bool:
    """By the whole interval; one answer to everything is never right."""
    return cell.constant or cell.high <= RIGHT


def is_plain(result: Stretch) -> bool:
    """Whether it is the exercise's model, but for its encoding: given nothing, and no other attention."""
    return not result.hard_codes and result.label == f"{result.encoding}, {result.pooling}"


def hardest(results: Sequence[Stretch]) -> str:
    """The kind to judge by, of those that were tried."""
    kinds = [cell.negative for result in results for cell in result.cells]
    return HARDEST if HARDEST in kinds or not kinds else kinds[-1]


def named(kind: str) -> str:
    """A kind of negative, in sentences."""
    return NAMES.get(kind, kind.replace("_", " "))


def at(cell: LengthResult) -> str:
    """`98.5 %, 95 % interval 95.7 to 99.5, n = 200`, or the one answer that everything gets."""
    if cell.constant:
        return f"it answers “{cell.constant_class}” to everything, n = {cell.n:,}"
    return f"{percent(cell.accuracy)}, {interval(cell.low, cell.high)}, n = {cell.n:,}"


def accuracy_cell(result: LengthResult) -> Cell:
    """`98.5 [95.7, 99.5]`, bold where the model is right; or the one answer that everything gets."""
    if result.constant:
        return Cell(f"one answer: {result.constant_class}", 100 * result.accuracy, "weak")
    text = f"{100 * result.accuracy:.1f} [{100 * result.low:.1f}, {100 * result.high:.1f}]"
    return Cell(text, 100 * result.accuracy, "strong" if is_right(result) else "")


def within_training(cells: Sequence[LengthResult], trained: tuple[int, int] | None) -> LengthResult | None:
    """Pool the results of one kind of negative over all training lengths; None if there is none."""
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
    """Sum the counts of each class over lengths."""
    return tuple(
        Proportion.of(sum(each.correct for each in same), sum(each.n for each in same))
        for same in zip(*shares, strict=True)
    )


def up_to(reach: Reach) -> str:
    """`up to 16`, `at no length`, `at every length tried, up to 1,024`."""
    if reach.is_whole:
        return f"at every length tried, up to {reach.length:,}"
    if reach.open:
        return f"{f'up to {reach.length:,}' if reach.last else 'nowhere for sure'} (perhaps to {reach.most:,})"
    return f"up to {reach.length:,}" if reach.last else "at no length"
