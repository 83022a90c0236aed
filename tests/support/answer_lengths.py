"""A result of `stretch` on a model that answers token by token, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from headcount.analysis.answer_lengths import AnswerLength, AnswerStretch, GroupLength
from headcount.stats import Proportion


def answer_stretch(
    name: str = "runs/long",
    lengths: Sequence[int] = (5, 20),
    kinds: Sequence[str] = ("uniform", "all carry"),
    n: int = 20,
    label: str = "relative, coupled ids",
) -> AnswerStretch:
    """All answers of the first kind are right, and half of those of the others."""
    cells = tuple(
        AnswerLength(length, kind, Proportion.of(n if kind == kinds[0] else n // 2, n), 1.5)
        for length in lengths
        for kind in kinds
    )
    totals = {length: sum(cell.exact.correct for cell in cells if cell.length == length) for length in lengths}
    groups = tuple(GroupLength(length, "0-3", Proportion.of(totals[length], n * len(kinds))) for length in lengths)
    return AnswerStretch(
        *(name, "0" * 64, "relative", ("a window of ±1",), label, 0, (1, 10), "digits", "carry chain", cells, groups),
        n_decoded=len(cells),
    )
