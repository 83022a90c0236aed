"""Why does a head attend where it does? What its weights match and copy, and what weights cannot show."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Picture, Row, Sentence
from headcount.describing.words import counted, percent, some
from headcount.figures.weights import draw_heads_weights, pages_of
from headcount.formatting import fixed

if TYPE_CHECKING:
    from headcount.analysis.weights import HeadWeights
    from headcount.analysis.weights_circuits import Grid, HeadReading
    from headcount.analysis.weights_composition import Composition, Compositions
    from headcount.analysis.weights_probes import Probe, Probes

WELL, LITTLE = 0.9, 0.5
"""Bounds of R²: tokens and positions explain attention scores well from the first on, poorly below the second."""
SHOWN_PATHS, SHOWN_PAIRS = 6, 10
"""Largest number of paths between heads that a sentence names, and of pairs of heads in the table of compositions."""


def describe(result: HeadWeights) -> list[Block]:
    """Return report blocks on a model's weights: sentences, figures of heads, and tables of heads and of probes."""
    sentences = [*_head_sentences(result), *_composition_sentences(result.compositions)]
    blocks: list[Block] = [Conclusions(tuple(sentences))]
    for name, heads in pages_of(result).items():
        caption = f"What the weights of {name} match and copy"
        alt = f"{caption}: the table below has the strongest pair of each picture."
        blocks.append(Picture(f"weights-{name}", caption, alt, partial(draw_heads_weights, result, heads)))
    blocks += [_head_table(result), *_pair_table(result.compositions)]
    return [*blocks, *(_probe_blocks(result.probes) if result.probes else ())]


def _head_sentences(result: HeadWeights) -> Iterator[Sentence]:
    heads, n = result.heads, len(result.heads)
    well = [head for head in heads if head.explained >= WELL]
    little = [head for head in heads if head.explained < LITTLE]
    text = (
        f"For {len(well)} of {counted(n, 'head')} of {result.name}, the weights and the tokens and positions of query "
        f"and key explain at least {percent(WELL, 0)} of the variance of the attention scores within a query (R²; mean "
        f"inputs of {result.n:,} examples)."
    )
    if little:
        text += f" For {some([head.short for head in little])}, they explain under {percent(LITTLE, 0)}, so the "
        text += "pictures of these heads are not reliable."
    yield Sentence(text, "weights")
    for part, words in (("positions", "the positions"), ("tokens", "the tokens")):
        head = max(heads, key=lambda each: getattr(each, part))
        strongest = (head.match_positions if part == "positions" else head.match_tokens).largest()
        if strongest is None:
            continue
        query, key, score = strongest
        yield Sentence(
            f"{head.short} depends most on {part}: {words} alone account for {percent(getattr(head, part), 0)} of the "
            f"variance of its attention scores. Its largest score is that of query {query} and key {key}, {score:.1f} "
            "above the mean over keys.",
            "weights",
        )
    copying = [h for h in heads if h.copying is not None and abs(h.copying) > (h.copying_chance or 0)]
    n_direct = sum(head.is_direct for head in heads)
    if not n_direct:
        return
    with_path = f"{counted(n_direct, 'head')} with a direct path to the logits"
    if copying:
        named = some([f"{head.short} ({head.copying:+.2f})" for head in copying])
        text = f"Of {with_path}, these have a copying score beyond 95 % of random orders of the tokens: {named}. By "
        text += "chance, 5 % of heads would. A score of +1 means that attending to a token raises the token's logit, "
        text += "-1 that it lowers it."
    else:
        text = f"No head has a copying score beyond 95 % of random orders of the tokens ({with_path}). The score says "
        text += "whether attending to a token raises or lowers the token's logit."
    yield Sentence(text, "weights")


def _composition_sentences(result: Compositions) -> Iterator[Sentence]:
    """Yield sentences on how paths from head to head, found by patching, rank by composition score (from weights)."""
    n, paths = len(result.pairs), result.patched_paths
    if not result.pairs:
        return
    rests_on, warning = "weights-compositions", "A composition score is no evidence of a path between two heads."
    if not any(pair.path is not None for pair in result.pairs):
        other = "In the packaged adder, the scores do not find the paths that patching finds"
        yield Sentence(f"{warning} {other} (`headcount weights sample:addition`).", rests_on)
        return
    ranks = [f"{_pair(each)} ({_path(each)}) is {_ordinal(result.rank(each))}" for each in paths[:SHOWN_PATHS]]
    verb = "moves" if len(paths) == 1 else "move"
    text = f"Patching finds {counted(len(paths), 'path')} between heads that {verb} 10 % of the logit gap or more."
    text += f" Ranked by composition score among {counted(n, 'pair')} of heads, {some(ranks)}." if paths else ""
    first = result.pairs[0]
    if first.path is not None:
        moved = percent(max(first.path.share, 0.0))
        text += f" The pair with the largest score, {_pair(first)}, moves {moved} of the logit gap. {warning}"
    yield Sentence(text, rests_on)


def _pair(each: Composition) -> str:
    return f"{each.sender} → {each.receiver}"


def _path(each: Composition) -> str:
    assert each.path is not None, "the path was patched"
    return f"{percent(each.path.share, 0)} of the gap, {each.way}"


def _ordinal(n: int) -> str:
    """Return a rank as an ordinal number.

    >>> _ordinal(1), _ordinal(12), _ordinal(22), _ordinal(103)
    ('1st', '12th', '22nd', '103rd')
    """
    ending = {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th") if n % 100 not in (11, 12, 13) else "th"
    return f"{n}{ending}"


# --- tables -----------------------------------------------------------------------------------------------------------


def _head_table(result: HeadWeights) -> DataTable:
    rows: list[Row] = []
    for head in result.heads:
        shares = (head.explained, head.positions, head.tokens, head.mixed)
        copied = (head.copied_tokens, head.copied_positions)
        rows.append(
            (
                head.short,
                *(_share(share, is_weak=head.explained < LITTLE) for share in shares),
                _strongest(head.match_positions),
                _strongest(head.match_tokens),
                *(_share(share) for share in copied),
                _copying(head),
            )
        )
    columns = (
        *("head", "explained (R², %)", "positions (%)", "tokens (%)", "mixed (%)"),
        *("strongest positions", "strongest tokens", "copied: tokens (%)", "copied: positions (%)", "copying"),
    )
    exact = (
        "R² is 100 where inputs are exactly token plus position: in a first layer with LayerNorm after the sum, or if "
        "positions are biases of the scores."
    )
    note = (
        "Explained: percentage of the variance of attention scores over the keys of a query. Positions, tokens, mixed "
        f"and an unexplained rest add up to 100. {exact} Strongest: the query and key with the largest score above the "
        "mean of the query's keys. Copied: percentage of the variance of what the head would copy from each key. "
        "Copying: +1 raises the logit of the key's token on the direct path to the logits, -1 lowers it; in brackets, "
        "the value that 5 % of random orders of tokens exceed. The cell is empty for a head without a direct path."
    )
    caption = f"What the weights of {result.name} match and copy (mean inputs of {result.n:,} examples)"
    return DataTable("weights", caption, columns, tuple(rows), note)


def _share(share: float, *, is_weak: bool = False) -> Cell:
    return Cell(f"{100 * share:z.0f}", share, "weak" if is_weak else "")


def _strongest(grid: Grid) -> str:
    strongest = grid.largest()
    return "" if strongest is None else f"{strongest[0]} → {strongest[1]} ({strongest[2]:+.1f})"


def _copying(head: HeadReading) -> Cell:
    if head.copying is None or head.copying_chance is None:
        return Cell("")
    is_strong = abs(head.copying) > head.copying_chance
    return Cell(f"{head.copying:+.2f} (±{head.copying_chance:.2f})", head.copying, "strong" if is_strong else "")


def _pair_table(result: Compositions) -> list[DataTable]:
    """Return a table of pairs of heads: those with the largest composition scores, and the paths found by patching."""
    shown = list(dict.fromkeys([*result.patched_paths[:SHOWN_PATHS], *result.pairs[:SHOWN_PAIRS]]))
    if not shown:
        return []
    is_patched = any(pair.path is not None for pair in result.pairs)
    rows: list[Row] = []
    for pair in shown:
        rank, score = result.rank(pair), Cell(f"{pair.score:+.3f}", pair.score)
        moved = Cell(percent(pair.path.share, 0), pair.path.share) if pair.path else Cell("")
        rows.append((_pair(pair), pair.kind, score, Cell(str(rank), rank), *((moved, pair.way) if is_patched else ())))
    patched = ("moved by this path", "route") if is_patched else ()
    columns = ("path", "through", "composition score", f"rank of {len(result.pairs)}", *patched)
    note = (
        f"Frobenius ratio less that of random matrices ({result.baseline:.3f}; Elhage et al. 2021), for the largest of "
        "Q, K and V. The scores depend on weights alone and not on what heads attend to, so they are no evidence of a "
        "path. Patching is: “moved” is the share of the logit gap that patching this path alone moves."
    )
    return [
        DataTable(
            "weights-compositions", "Composition scores, and paths that patching found", columns, tuple(rows), note
        )
    ]


# --- probes -----------------------------------------------------------------------------------------------------------


def _probe_blocks(probes: Probes) -> list[Block]:
    event = probes.event
    raw = some([f"{percent(each.raw.rate)} into the {each.read}" for each in probes.baselines])
    text = f"Warning: a linear probe on the raw one-hot tokens of the question, without any model, decodes the {event} "
    warning = (
        f"{text}with an accuracy of {raw} (n = {probes.n_held_out:,}). So a probe that decodes the {event} shows that "
        f"the tokens are still there, not that the model uses the {event}."
    )
    cells = f"At {probes.n_decodable} of {counted(len(probes.cells), 'place')} (a residual stream at one position), a "
    cells += f"probe decodes the {event} with an accuracy above 90 %, by the whole 95 % CI."
    if probes.n_moved:
        cells += f" Of these places, {probes.n_moved} were patched, and {probes.n_idle} of them move nothing: the "
        cells += "whole 95 % CI of their share of the logit gap lies below 10 % on every route."
    else:
        cells += f" It is not known whether the model uses the {event} there: measure it with `headcount routes`, then "
        cells += "run this command again."
    return [Paragraph(warning), Conclusions((Sentence(cells, "weights-probes"),)), _probe_table(probes)]


def _probe_table(probes: Probes) -> DataTable:
    reads = [each.read for each in probes.baselines]
    by_place: dict[tuple[str, str], dict[str, Probe]] = {}
    for cell in probes.cells:
        by_place.setdefault((cell.stream, cell.position), {})[cell.read] = cell
    rows: list[Row] = [("raw input", "all", *(_probe_cell(each.raw.rate, None) for each in probes.baselines))]
    rows += [("guessing", "", *(_probe_cell(each.guessing, None) for each in probes.baselines))]
    for (stream, position), cells in by_place.items():
        rows.append((stream, position, *(_probe_cell(cells[read].accuracy.rate, cells[read].moved) for read in reads)))
    shuffled = max((cell.shuffled.rate for cell in probes.cells), default=0.0)
    half = max((cell.accuracy.high - cell.accuracy.low for cell in probes.cells), default=0.0) / 2
    note = (
        f"Held-out accuracy (n = {probes.n_held_out:,}; the widest 95 % CI is ±{percent(half)}); in brackets, the "
        "largest share of the logit gap that a patch of this place moves (`headcount routes`). The probes are logistic "
        f"regressions, fitted on {probes.n_fit:,} examples. With shuffled labels, their accuracy is at most "
        f"{percent(shuffled)}."
    )
    caption = f"Linear probes of the {probes.event} into each place of the answer: accuracy (%)"
    return DataTable("weights-probes", caption, ("stream", "place", *reads), tuple(rows), note, n_keys=2)


def _probe_cell(accuracy: float, moved: float | None) -> Cell:
    share = "" if moved is None else f" ({100 * moved:z.0f} moved)"
    return Cell(f"{fixed(100 * accuracy)}{share}", accuracy)
