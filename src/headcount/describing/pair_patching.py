"""How does one answer change if heads get their outputs from another example? The answers, and a ranking of heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Picture, Row, Sentence
from headcount.describing.words import percent, short, some
from headcount.figures.pair_patching import draw_pair_patch
from headcount.tasks.base import with_article

if TYPE_CHECKING:
    from headcount.analysis.pair_patching import PairPatch

RANKING, PLACES, FIGURE = "patch-ranking", "patch-places", "patch-heads"
MOST = 8
"""Number of heads in the printed ranking; the result file has all of them."""


def describe(result: PairPatch) -> list[Block]:
    """Return report blocks on patched heads: the changed answer, and the heads that change it most if patched alone."""
    names = some([short(head) for head in result.heads])
    at = f" at {some(list(result.at))}" if result.at else ""
    first = result.places[0]
    heading = f"With the output of {names}{at} patched in from {result.donor}, {result.name}"
    if result.patched_answer:
        others = f"without the patch, its answer is {result.own_answer}; to {result.donor}, it is {result.donor_answer}"
        texts = [f"{heading} answers {result.receiver} with {result.patched_answer}; {others}."]
    else:
        moved = first.patched_difference - first.own_difference
        text = f"{heading} shifts its logits on {result.receiver} by {moved:+.2f} from {first.own!r} towards "
        texts = [f"{text}{first.donor!r}."]
    texts.append(
        f"At {with_article(first.place)}, the patch closes {percent(first.share)} of the logit gap between "
        f"{first.own!r}, the token of the unpatched answer, and {first.donor!r}, the token of the answer on the donor "
        f"{result.donor} (logit difference {first.own_difference:.1f} without the patch, "
        f"{first.patched_difference:.1f} with it, {first.donor_difference:.1f} on the donor). This result is about one "
        "pair of examples."
    )
    caption = f"Share of the logit gap at {with_article(first.place)} that each head closes when it is patched alone"
    picture = Picture(FIGURE, caption, texts[0], lambda: draw_pair_patch(result))
    return [
        Conclusions(tuple(Sentence(text, PLACES) for text in texts)),
        _place_table(result),
        _ranking_table(result, caption),
        picture,
    ]


def _place_table(result: PairPatch) -> DataTable:
    rows: list[Row] = []
    for each in result.places:
        logits = each.own_difference, each.patched_difference, each.donor_difference
        cells = [*(Cell(f"{value:.2f}", value) for value in logits), Cell(percent(each.share), each.share)]
        rows.append((each.place, each.own, each.donor, *cells))
    columns = ("position", "own", "donor's", "own (logits)", "patched (logits)", "donor (logits)", "gap closed")
    note = (
        "Own: the token that the model answers without the patch. Donor's: its token on the donor, the example whose "
        "head outputs are put in. Logits: logit of the donor's token minus logit of the own token, while the decoder "
    )
    note += "is fed the right answer."
    return DataTable(PLACES, "Positions at which the two answers differ", columns, tuple(rows), note)


def _ranking_table(result: PairPatch, caption: str) -> DataTable:
    rows = tuple((short(each.head), Cell(percent(each.share), each.share)) for each in result.ranking[:MOST])
    note = f"The first {len(rows)} of {len(result.ranking)} heads; each is patched alone, at all positions."
    return DataTable(RANKING, caption, ("head", "gap closed"), rows, note)
