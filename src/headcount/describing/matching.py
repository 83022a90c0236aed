"""Which heads of two models match? A table with a row per head of one model, and its partner in the other model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scipy.special import stdtrit

from headcount.describing.blocks import Block, Cell, DataTable, Picture, Row
from headcount.describing.words import interval_cell, short
from headcount.figures.matching import draw_matching
from headcount.figures.style import HALF_CI

if TYPE_CHECKING:
    from headcount.analysis.matching import Matching
    from headcount.analysis.matching_verdicts import Likeness, Pair

COLUMNS = ("head", "partner", "verdict", "overlap", "by chance", "p", "CKA", "by chance", "p", "restored [95 % CI]")
NOTE = (
    "Overlap compares the attention of two heads, CKA their outputs. By chance: 95 of 100 best pairings with untrained "
    "or relabelled models stay below this value. Restored: the share of the head's drop under mean ablation that its "
    "partner's output restores; here, “by chance” is the largest share with heads of untrained models. By others: the "
    "largest share that another head of the other model restores."
)


def describe(result: Matching) -> list[Block]:
    """Return a figure and a table of all heads of one model with their partners in another model."""
    caption = f"Heads of {result.name} beside heads of {result.other}"
    alt = f"{result.words}. The table below has the numbers of each pair."
    return [Picture("matching-map", caption, alt, lambda: draw_matching(result)), match_table(result)]


def match_table(result: Matching) -> DataTable:
    """Return a table of heads with their partners: similarity of attention and outputs, share restored, verdict."""
    pairs = [pair for kind in result.kinds for pair in kind.pairs]
    transplant = next((pair.transplant for pair in pairs if pair.transplant), None)
    measured = ""
    if transplant is not None:
        measured = f" Shares were measured on {transplant.n:,} examples, with means over {transplant.n_mean:,} inputs."
    rows = list[Row]()
    for pair in pairs:
        partner = "none" if pair.partner is None else short(pair.partner)
        likeness = *_likeness(pair.attention, result.n), *_likeness(pair.outputs, result.n)
        rows.append((short(pair.head), partner, pair.verdict, *likeness, *_restored(pair)))
    caption = (
        f"{result.name} beside {result.other}: overlap ± {HALF_CI} over {result.n:,} examples; p is corrected for the "
        "number of heads, intervals are not"
    )
    columns = (*COLUMNS, "by chance", "by others")
    return DataTable("matching", caption, columns, tuple(rows), f"{result.words}. {NOTE}{measured}", n_keys=2)


def _likeness(likeness: Likeness | None, n: int) -> tuple[Cell, Cell, Cell]:
    """Return three cells: the similarity of two heads over n examples, the similarity by chance, and the p-value."""
    if likeness is None:
        return Cell(""), Cell(""), Cell("")
    half = "" if likeness.se is None else f" ± {float(stdtrit(n - 1, 0.975)) * likeness.se:.3f}"
    chance = max(likeness.untrained, likeness.relabelled)
    return (
        Cell(f"{likeness.value:.3f}{half}", likeness.value),
        Cell(f"≤ {chance:.3f}", chance),
        Cell(f"{likeness.p:.2g}", likeness.p),
    )


def _restored(pair: Pair) -> tuple[Cell, Cell, Cell]:
    """Return three cells on the share of a head's drop under ablation that its partner's output restores.

    The first cell has the share. The second has the largest share that a head of an untrained model restores, the
    third the largest share that any other head of the partner's model restores.
    """
    if pair.transplant is None:
        return Cell(""), Cell(""), Cell("")
    if (restored := pair.transplant.restored) is None:
        return Cell("nothing to restore"), Cell(""), Cell("")
    others = Cell("") if restored.others is None else Cell(f"≤ {restored.others:.2f}", restored.others)
    share = interval_cell(restored.share, restored.low, restored.high, scale=1, digits=2)
    return share, Cell(f"≤ {restored.untrained:.2f}", restored.untrained), others
