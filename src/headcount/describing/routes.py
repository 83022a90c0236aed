"""Which heads move an event such as the carry through a model, and which residual streams hold it on its way?

A way of the event, such as `1s to 10s`, leads from the place where it arises to a place of the answer that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Picture, Row, Sentence
from headcount.describing.words import counted, percent, some
from headcount.figures.routes import draw_routes
from headcount.tasks.base import with_article

if TYPE_CHECKING:
    from headcount.analysis.routes import DonorTest, PatchShare, Routes, Way

HEADS, STREAMS, FIGURE = "heads", "streams", "map"
"""The last parts of three ids: of the table of heads, of the table of residual streams, and of the figure."""
PREFIX = "routes-"
WHOLE, PART, NOTHING = 0.9, 0.1, 0.05
"""Shares of the logit gap from which on a patch moves a whole event (such as a carry), a part of it, or anything."""


def describe(result: Routes, title: str = "") -> list[Block]:
    """Return report blocks on the routes of an event, such as the carry from 1s to 10s: sentences, figure, tables."""
    title = title or result.name
    sentences = conclusions(result, title, f"{PREFIX}{HEADS}")
    alt, caption = sentences[0].text, f"Where the {result.event} travels"
    picture = Picture(f"{PREFIX}{FIGURE}", caption, alt, lambda: draw_routes([result], [title]))
    return [Conclusions(tuple(sentences)), *([picture] if result.heads else []), *tables(result, title)]


def tables(result: Routes, title: str, prefix: str = PREFIX) -> list[DataTable]:
    """Return tables of the shares of the event (a carry) that heads and residual streams move; none if not measured."""
    every = [_head_table(result, title, prefix), _stream_table(result, title, prefix)]
    return [table for table in every if table.rows]


def conclusions(result: Routes, title: str, rests_on: str = "") -> list[Sentence]:
    """Return sentences on which heads move the event (a carry) on each route, such as from the 1s to the 10s.

    Further sentences are on random donor examples, on attention blocks without a share, and on what holds by
    construction. `rests_on` is the id of the table that the sentences refer to.
    """
    rests_on = rests_on if result.heads else ""
    sentences = [_way_sentence(result, way, title, rests_on) for way in result.ways]
    measured = [way for way in result.ways if any(each.way == way.name for each in result.heads)]
    if not measured:
        return sentences
    texts = (*_donor_texts(result), *_idle_blocks(result), *_by_construction(result, measured))
    return [*sentences, *(Sentence(text, rests_on) for text in texts)]


def _way_sentence(result: Routes, way: Way, title: str, rests_on: str) -> Sentence:
    event, route = result.event, f"from {with_article(way.source)} into {with_article(way.read)}"
    shares = sorted((each for each in result.heads if each.way == way.name), key=lambda each: -each.moved.share)
    if not shares:
        text = f"It was not measured which heads of {title} move the {event} {route}. That needs sets of four similar "
        text += f"examples that are all answered right, and only {way.n:,} of {way.n_drawn:,} sets are."
        return Sentence(text, rests_on, is_decided=False)
    movers = result.movers(way.name)
    carriers, parts = ([each for each in movers if each.moved.role == role] for role in ("carrier", "part"))
    n = f"n = {way.n:,} pairs of examples with and without the {event}"
    if carriers:
        top, others = carriers[0], carriers[1:]
        moved = f"patching its output alone moves {_part(top, n)}{_at(result, top)}"
        verb = "carries" if len(others) == 1 else "carry"
        more = f" {some([_named(each) for each in others])} {verb} it as well, each patched alone." if others else ""
        return Sentence(f"{top.what} of {title} carries the {event} {route}: {moved}.{more}", rests_on)
    if parts:
        text = f"No single head of {title} carries the {event} {route}, but {some([_named(each) for each in parts])} "
        verb = "moves a part of the logit gap" if len(parts) == 1 else "each move a part of the logit gap"
        return Sentence(f"{text}{verb} ({n}).", rests_on)
    top = shares[0]
    text = f"It is undecided which head of {title} moves the {event} {route}: {top.what} moves most, {_part(top, n)}."
    if not top.placebo.is_absent:
        text += f" But a placebo patch, which changes a token and not the {event}, also moves "
        text += f"{percent(top.placebo.share, 0)}."
    return Sentence(text, rests_on, is_decided=False)


def _part(each: PatchShare, n: str) -> str:
    moved = each.moved
    share = f"{100 * moved.share:.0f} % of the logit gap between the two answers"
    return f"{share} (95 % CI {100 * moved.low:.0f}-{100 * moved.high:.0f}, {n})"


def _named(each: PatchShare) -> str:
    return f"{each.what} ({percent(each.moved.share, 0)})"


def _at(result: Routes, head: PatchShare) -> str:
    """Return a clause with the positions at which patching this head moves a part of the gap; empty without any."""
    places = [
        each
        for each in result.queries
        if (each.what, each.way) == (head.what, head.way) and each.moved.share >= PART and each.moved.low > 0
    ]
    if not places:
        return ""
    shares = some([f"{percent(each.moved.share, 0)} at {each.position}" for each in places])
    return f"; patched at a single position, it moves {shares}"


def _donor_texts(result: Routes) -> list[str]:
    """Return sentences on whether answers take over the event (a carry) of a random example that is patched in."""
    texts = []
    carriers = {
        (each.what, way.read)
        for way in result.ways
        for each in result.heads
        if way.chain == 1 and each.way == way.name and each.moved.role == "carrier"
    }
    for test in result.donors:
        if (test.head, test.read) not in carriers:
            continue
        followed, kept = _counts(test)
        texts.append(
            f"With {test.head}'s output patched in from a random other example, the {test.read} of the answer follow "
            f"the {result.event} of that example in {followed} cases. If both examples have the same {result.event}, "
            f"the {test.read} stay right in {kept} cases."
        )
    return texts


def _counts(test: DonorTest) -> tuple[str, str]:
    return (
        f"{test.followed.correct:,} of {test.followed.n:,}",
        f"{test.unchanged.correct:,} of {test.unchanged.n:,}",
    )


def _idle_blocks(result: Routes) -> list[str]:
    """Return a sentence that names the attention blocks whose share is close to 0 on every route; none if none is."""
    most: dict[str, float] = {}
    for each in result.blocks:
        most[each.what] = max(most.get(each.what, 0.0), each.moved.high, -each.moved.low)
    idle = [block for block, share in most.items() if share < NOTHING]
    if not idle:
        return []
    largest = percent(max(most[block] for block in idle), 0)
    blocks = f"{some(idle)}, patched together," if len(idle) == 1 else f"each of the blocks {some(idle)}"
    return [f"All heads of {blocks} move at most {largest} of the logit gap on any route (upper end of the 95 % CI)."]


def _by_construction(result: Routes, ways: Sequence[Way]) -> list[str]:
    """Return sentences on what the architecture alone decides about routes, whatever the model has learned."""
    texts = []
    if any(each.what.startswith("X") for each in result.blocks):
        texts.append(
            "By construction, all cross-attention heads together move everything that the decoder takes from the "
            "question, because it reads the question through them alone."
        )
    if all(way.is_written_before for way in ways):
        texts.append(
            f"By construction, the decoder cannot read the {result.event} from its own answer: it writes the place of "
            f"the answer that needs the {result.event} before the place where the {result.event} arises."
        )
    return texts


def _head_table(result: Routes, title: str, prefix: str) -> DataTable:
    """Return a table of the share of the event (a carry) that each head moves on each route, such as 1s to 10s."""
    ways = [way.name for way in result.ways]
    by_head: dict[str, dict[str, PatchShare]] = {}
    for each in (*result.heads, *result.blocks):
        by_head.setdefault(each.what, {})[each.way] = each
    most = {what: max(each.moved.high for each in shares.values()) for what, shares in by_head.items()}
    shown = [what for what, shares in by_head.items() if any(_is_shown(each) for each in shares.values())]
    rows: list[Row] = []
    for what in sorted(shown, key=lambda what: ("H" not in what, -most[what])):
        name = what if "H" in what else f"{what}, all heads"
        rows.append((name, *(_share_cell(by_head[what].get(way)) for way in ways)))
    placebo = max((abs(each.placebo.share) for each in (*result.heads, *result.blocks)), default=0.0)
    n_hidden = counted(len(by_head) - len(shown), "head or block", "heads or blocks")
    note = (
        "A share is the part of the logit gap between the two answers that a patch of the head's output moves, with "
        "its 95 % CI corrected for all heads and routes. Bold: the whole interval is at least 50 %. Placebo patches, "
        f"which change a token and not the {result.event}, move at most {percent(placebo)}. Not shown: {n_hidden} with "
        f"less than 5 % on every route.{_negative(result)}{_few(result)}"
    )
    caption = f"Share of the {result.event} that each head of {title} moves (%), by route"
    return DataTable(f"{prefix}{HEADS}", caption, ("head", *ways), tuple(rows), note)


def _is_shown(each: PatchShare) -> bool:
    """Return whether a share is shown in the table: its interval reaches 5 % of the gap on either side of 0."""
    return max(each.moved.high, -each.moved.low) >= NOTHING


def _negative(result: Routes) -> str:
    """Return a sentence that explains negative shares; empty if no share in the table is negative."""
    shares = (each.moved.share for each in (*result.heads, *result.blocks))
    if min(shares, default=0.0) > -0.005:
        return ""
    return f" A head with a negative share moves the answer away from the {result.event}, so it is not on the route."


def _few(result: Routes) -> str:
    """Return a sentence that names routes with too few examples for accurate intervals; empty if there are none."""
    few = [f"{way.name} (n = {way.n})" for way in result.ways if way.n and not way.has_enough]
    text = f" Too few pairs of examples make the intervals too narrow for {some(few)}: measure more of them with --n."
    return text if few else ""


def _share_cell(each: PatchShare | None) -> Cell:
    if each is None:
        return Cell("not judged", None, "weak")
    low, high = (f"{100 * end:z.0f}" for end in (each.moved.low, each.moved.high))
    is_carrier, is_none = each.moved.role == "carrier", each.moved.role == "none"
    text = f"{100 * each.moved.share:z.0f} [{low}, {high}]"
    return Cell(text, each.moved.share, "strong" if is_carrier else "weak" if is_none else "")


def _stream_table(result: Routes, title: str, prefix: str) -> DataTable:
    """Return a table of where the model holds the event (a carry): the share that each residual stream moves."""
    ways = [way.name for way in result.ways]
    by_place: dict[tuple[str, str], dict[str, PatchShare]] = {}
    for each in result.streams:
        by_place.setdefault((each.what, each.position or "all positions"), {})[each.way] = each
    rows: list[Row] = [
        (stream, place, *(_plain_cell(shares.get(way)) for way in ways))
        for (stream, place), shares in by_place.items()
        if max(abs(each.moved.share) for each in shares.values()) >= NOTHING
    ]
    note = "Each residual stream is patched at one position alone, from the example with the other answer. "
    note += f"Not shown: {counted(len(by_place) - len(rows), 'position')} with less than 5 % on every route."
    held = f"Where {title} holds the {result.event}"
    caption = f"{held}: share of the logit gap (%) that each residual stream moves at one position"
    return DataTable(f"{prefix}{STREAMS}", caption, ("residual stream", "position", *ways), tuple(rows), note)


def _plain_cell(each: PatchShare | None) -> Cell:
    if each is None:
        return Cell("not judged", None, "weak")
    return Cell(f"{100 * each.moved.share:z.0f}", each.moved.share, "strong" if each.moved.share >= WHOLE else "")
