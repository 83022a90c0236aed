"""Which statements about heads hold over seeds? Important blocks and layers, rankings, removal, routes, functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headcount.describing.blocks import DataTable, Paragraph, Picture, Row, Sentence
from headcount.describing.comparison import holds_in_most, k_of_n, ranking_sentences, value_text
from headcount.describing.study_answers import (
    DROP,
    HEAD_MEASURES,
    LEFT,
    TOGETHER,
    Answer,
    PartResults,
    in_words,
    measured,
    runs_bar,
    spread,
    variant_prefix,
)
from headcount.describing.words import counted, interval, number, percent, some
from headcount.figures.cards import Bar, draw_bars
from headcount.figures.head_findings import draw_agreement, draw_places, draw_site_routes
from headcount.limits import SIGNIFICANT
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.studies.head_findings import FunctionFinding, PlaceFinding, RouteFinding, VariantFindings
    from headcount.studies.summary import Concordance, Order, RankingSummary, VariantSummary

LEVELS = {"site": "attention blocks", "layer": "layers", "head": "single heads", "index": "index within a block"}
STACKS = {"E": "encoder", "D": "decoder self-attention", "X": "cross-attention", "L": "attention"}


# --- which blocks and layers matter? ----------------------------------------------------------------------------------


def places(part: PartResults) -> Answer | None:
    """Return the answer on which attention blocks contain a head that matters, in all, some or none of the seeds.

    A head matters if ablating it costs more than 1 point.
    """
    variants = [each for each in part.findings.variants if each.at("site")] if part.findings else []
    if not variants:
        return None
    sentences = list[Sentence]()
    for each in variants:
        about = variant_prefix(part, each.variant)
        sentences += [
            replace(one, text=f"{about}{one.text}", rests_on="places-table") for one in _place_sentences(each, "site")
        ]
        sentences += [
            replace(one, text=f"{about}{one.text}", rests_on="places-table") for one in _place_sentences(each, "layer")
        ]
    first = variants[0]
    bars = [runs_bar(each.place, each.counts) for each in first.at("site")]
    pictures = [
        Picture(
            f"places-figure{i or ''}",
            f"{variant_prefix(part, each.variant)}The largest drop of one head in each block and layer".strip(),
            in_words([runs_bar(place.place, place.counts) for place in each.places]),
            partial(draw_places, each),
        )
        for i, each in enumerate(variants)
    ]
    told = (
        f"A block or layer matters in a run if ablating at least one of its heads ({first.replacement} ablation) costs "
        "more than 1 point, by the whole 95 % CI of the drop. The intervals are not corrected for the number of heads."
    )
    return Answer(
        "blocks",
        "Which attention blocks matter?",
        tuple(sentences),
        (*pictures, _places_table(part, variants), Paragraph(told)),
        partial(draw_bars, bars, "seeds in which it matters (%)"),
        in_words(bars),
        rank=0,
    )


def _place_sentences(findings: VariantFindings, level: str) -> Iterator[Sentence]:
    """Yield sentences that name the blocks (or layers) which contain a head that matters in most seeds, or in few."""
    places = findings.at(level)
    best: PlaceFinding | None = None
    groups: dict[bool | None, list[PlaceFinding]] = {True: [], False: [], None: []}
    for each in places:
        groups[holds_in_most(each.counts)].append(each)
    costs = "a head whose ablation alone costs over 1 point"
    examples = f", {findings.n_examples:,} examples" if findings.n_examples else ""
    if most := groups[True]:
        verb = "contains" if len(most) == 1 else "contain"
        yield Sentence(f"{_names(most)} {verb} {costs} in {_counts_text(most, examples)}.")
    else:
        best = max(places, key=lambda each: each.counts.rate)
        open_ = "No attention block" if level == "site" else "No layer"
        yield Sentence(
            f"{open_} is shown to contain {costs} in most seeds: {best.place} does in {k_of_n(best.counts)} seeds.",
            is_decided=False,
        )
    if few := groups[False]:
        verb = "contains" if len(few) == 1 else "contain"
        yield Sentence(f"{_names(few)} {verb} such a head in only {_counts_text(few)}, so not in most seeds.")
    if open_places := [each for each in groups[None] if each is not best]:
        texts = [f"{each.place} in {k_of_n(each.counts)}" for each in open_places]
        others = "other attention blocks" if level == "site" else "other layers"
        text = f"It is undecided whether {others} contain such a head in most seeds: {some(texts, 8)} seeds."
        yield Sentence(text, is_decided=False)


def _names(places: Sequence[PlaceFinding]) -> str:
    names = some([each.place for each in places], 12)
    return names[0].upper() + names[1:]


def _counts_text(places: Sequence[PlaceFinding], examples: str = "") -> str:
    """Return in how many seeds each of these blocks or layers has a head that matters, with 95 % CIs, as text.

    Equal counts are written once: `5 of 5 seeds (95 % CI 56.6-100)`.
    """
    n, low, high = places[0].counts.n, min(each.counts.low for each in places), max(each.counts.high for each in places)
    same = len({each.counts for each in places}) == 1
    doubt = interval(low, high) if same else f"95 % CI of each within {number(100 * low)}-{number(100 * high)}"
    numbers = str(places[0].counts.correct) if same else some([str(each.counts.correct) for each in places], 12)
    return f"{numbers} of {n} seeds ({doubt}{examples})"


def _places_table(part: PartResults, variants: Sequence[VariantFindings]) -> DataTable:
    rows: list[Row] = [
        (
            f"{variant_prefix(part, each.variant)}{place.place}",
            k_of_n(place.counts),
            k_of_n(place.idle),
            value_text(place.median, "points"),
            ", ".join(number(100 * drop) for drop in place.drops),
        )
        for each in variants
        for place in each.places
    ]
    columns = (
        "block or layer",
        "seeds with a head over 1 point",
        "seeds with all heads under 1 point",
        "median of the largest drop",
        "largest drop in every seed",
    )
    caption = "Blocks and layers over seeds"
    return DataTable("places-table", caption, columns, tuple(rows))


# --- orders and rankings ----------------------------------------------------------------------------------------------


def _drop_ranking(part: PartResults, variant: str) -> RankingSummary | None:
    """Return the rankings of a variant's heads by drop in every seed, under the ablation that other answers use."""
    found = next((each for each in part.findings.variants if each.variant == variant), None) if part.findings else None
    wanted = found.replacement if found else None
    rankings = [
        each
        for each in part.summary.rankings
        if (each.measure, each.variant) == (DROP, variant) and "step " not in each.subject
    ]
    return next(
        (each for each in rankings if wanted and wanted in each.subject.split(", ")), rankings[0] if rankings else None
    )


def layers(part: PartResults) -> Answer | None:
    """Return the answer on whether later layers matter more: in how many seeds their heads have a larger mean drop."""
    sentences, bars = list[Sentence](), list[Bar]()
    for variant in part.summary.names:
        ranking = _drop_ranking(part, variant)
        orders = [each for each in ranking.orders if each.level == "layer"] if ranking else []
        sentences += [_order_sentence(each, variant_prefix(part, variant)) for each in orders]
        if not bars:
            bars = [bar for each in orders for bar in _order_bars(each)]
    if not sentences:
        return None
    told = (
        "A layer ranks above another one in a run if the mean drop of its heads is larger, with the heads of encoder "
        "and decoder taken together. The sign test asks whether it does so more often than by chance; p-values are "
        "Holm-corrected for all pairs of blocks or layers."
    )
    draw = partial(draw_bars, bars, "seeds in which it costs more (%)")
    question = "Does a later layer matter more?"
    return Answer("layers", question, tuple(sentences), (Paragraph(told),), draw, in_words(bars), rank=4)


def _order_bars(order: Order) -> list[Bar]:
    others = Proportion.of(order.runs.n - order.runs.correct, order.runs.n)
    return [runs_bar(order.first, order.runs), runs_bar(order.second, others)]


def _order_sentence(order: Order, about: str) -> Sentence:
    test = f"sign test, p = {order.p_holm:.2g} after Holm correction"
    if order.p_holm < SIGNIFICANT:
        text = f"{about}Heads of {order.first} cost more than heads of {order.second} in {k_of_n(order.runs)} seeds "
        return Sentence(f"{text}({test}).")
    text = f"{about}It is undecided whether heads of {order.first} or of {order.second} cost more: heads of "
    return Sentence(f"{text}{order.first} do in {k_of_n(order.runs)} seeds ({test}).", is_decided=False)


def agreement(part: PartResults) -> Answer | None:
    """Return the answer on which rankings by drop agree over seeds: of blocks, layers, heads, or head indices."""
    sentences, pictures = list[Sentence](), list[Picture]()
    card: tuple[list[Concordance], list[str]] | None = None
    for i, variant in enumerate(part.summary.names):
        ranking = _drop_ranking(part, variant)
        if ranking is None or not ranking.concordances:
            continue
        about = variant_prefix(part, variant)
        ordered = [each for level in LEVELS if (each := ranking.at(level)) is not None]  # type: ignore[arg-type]
        names = [LEVELS[each.level] for each in ordered]
        sentences += [_agreement_sentence(ordered, about), *ranking_sentences(ranking)]
        alt = "; ".join(
            f"{name}: W = {each.w:.2f}, p = {each.p:.2g}" for name, each in zip(names, ordered, strict=True)
        )
        caption = f"{about}Agreement of rankings by the drop of heads over seeds"
        pictures.append(Picture(f"agreement-figure{i or ''}", caption, alt, partial(draw_agreement, ordered, names)))
        card = card or (ordered, names)
    if card is None:
        return None
    bars = [
        Bar(name, each.w, f"{each.w:.2f}", is_marked=each.p >= SIGNIFICANT) for each, name in zip(*card, strict=True)
    ]
    told = (
        "Kendall's W measures how far rankings agree: it is 1 if all runs rank in the same way, and 1/n on average for "
        "random rankings of n runs. The p-value comes from a permutation test. The index of a head within its block "
        "has no meaning, because training starts from random weights, so rankings of indices should not agree."
    )
    draw = partial(draw_bars, bars, f"Kendall's W (orange: p ≥ {SIGNIFICANT:g})")
    return Answer(
        "agreement",
        "Which rankings of heads agree over seeds?",
        tuple(sentences),
        (*pictures, Paragraph(told)),
        draw,
        pictures[0].alt,
        rank=1,
    )


def _agreement_sentence(concordances: Sequence[Concordance], about: str) -> Sentence:
    """Return a sentence on which rankings (of blocks, layers, heads, ...) agree over seeds, and which do not."""
    n = concordances[0].n_runs

    def named(each: Concordance) -> str:
        return f"{LEVELS[each.level]} (Kendall's W = {each.w:.2f})"

    holds = [named(each) for each in concordances if each.p < SIGNIFICANT]
    others = [named(each) for each in concordances if each.p >= SIGNIFICANT]
    if not holds:
        text = f"{about}Over {n} seeds, rankings by drop are not shown to agree for {' or for '.join(others)}."
        return Sentence(text, is_decided=False)
    text = f"{about}Over {n} seeds, the ranking by drop agrees for {some(holds)}"
    return Sentence(f"{text}{f', but is not shown to agree for {some(others)}' if others else ''}.")


# --- what can be removed? ---------------------------------------------------------------------------------------------


def removal(part: PartResults) -> Answer | None:
    """Return the answer on how many heads can be removed together, and on the score that is left without them.

    It also counts critical heads (over 10 points alone) and redundant heads (under 1 point alone), and has the score
    without all heads that are harmless alone.
    """
    sentences, bars = list[Sentence](), list[Bar]()
    for variant in part.summary.names:
        chosen = {name: _first(part, name, variant) for name in (*HEAD_MEASURES, TOGETHER, LEFT)}
        if not any(chosen.values()):
            continue
        about = variant_prefix(part, variant)
        texts = _removal_texts(chosen)
        sentences += [Sentence(f"{about}{text}") for text in texts]
        if not bars:
            bars = [
                Bar(name, each.median, f"{each.median:g}", min(each.values), max(each.values))
                for name in HEAD_MEASURES
                if (each := chosen[name]) is not None
            ]
    if not sentences:
        return None
    bars = [replace(bar, name=bar.name.removeprefix("heads that are ").removesuffix(" heads")) for bar in bars]
    told = (
        "Critical heads cost more than 10 points when ablated alone, redundant heads less than 1 point, by the whole "
        "95 % CI. Heads that are harmless alone need not be harmless together: the removable heads were chosen one "
        "after the other, with a new measurement after each removal."
    )
    draw = partial(draw_bars, bars, "heads: median and range") if bars else None
    return Answer(
        "removal", "How many heads can be removed?", tuple(sentences), (Paragraph(told),), draw, in_words(bars), rank=2
    )


def _first(part: PartResults, measure: str, variant: str) -> VariantSummary | None:
    """Return the summary over seeds of a measure of one variant; of several kinds of ablation, zero ablation."""
    rows = measured(part.summary, measure, variant)
    zero = [each for each in rows if each.about.get("replacement") == "zero"]
    return next(iter(zero or rows), None)


def _removal_texts(chosen: dict[str, VariantSummary | None]) -> Iterator[str]:
    removable, left, kept, alone = (chosen[name] for name in (HEAD_MEASURES[3], LEFT, TOGETHER, HEAD_MEASURES[2]))
    if removable is not None:
        text = f"A median of {removable.median:g} heads can be removed together ({spread(removable)}, "
        yield f"{text}n = {removable.n} seeds)."
    if left is not None and alone is not None:
        text = f"Without all heads that are harmless alone (median {alone.median:g} heads), a median score of "
        yield f"{text}{value_text(left.median, left.unit)} is left ({spread(left)}, n = {left.n} seeds)."
    if kept is not None:
        text = f"Without the removable heads, a median score of {value_text(kept.median, kept.unit)} is left "
        yield f"{text}({spread(kept)}, n = {kept.n} seeds)."
    for name in HEAD_MEASURES[:2]:
        each = chosen[name]
        if each is not None:
            verb = f"A median of {each.median:g} heads are {name.removesuffix(' heads')}"
            yield f"{verb} ({spread(each)}, n = {each.n} seeds)."


# --- routes and functions ---------------------------------------------------------------------------------------------


def routes(part: PartResults) -> Answer | None:
    """Return the answer on which attention block moves the largest share of the event on each route, over seeds.

    A route leads from the place where the event, such as a carry, arises to a place of the answer: `1s to 10s`.
    """
    variants = [each for each in part.findings.variants if each.routes] if part.findings else []
    if not variants:
        return None
    event = variants[0].routes[0].event
    sentences, bars, pictures, rows = list[Sentence](), list[Bar](), list[Picture](), list[Row]()
    for i, each in enumerate(variants):
        about = variant_prefix(part, each.variant)
        leaders = []
        for way in dict.fromkeys(route.way for route in each.routes):
            of_way = sorted(
                (route for route in each.routes if route.way == way), key=lambda route: -route.leads.correct
            )
            leaders.append((way, of_way[0]))
            into = way.replace(" to ", " into ")
            decided = holds_in_most(of_way[0].leads)
            text = f"{about}From {into}, {of_way[0].site} moves the largest share of the {event} in "
            text += f"{k_of_n(of_way[0].leads)} seeds"
            text += "." if decided else "; it is undecided which block does in most seeds."
            sentences.append(Sentence(text, "routes-table", is_decided=decided is True))
            rows += [
                (
                    f"{about}{into}",
                    route.site,
                    k_of_n(route.leads),
                    k_of_n(route.takes_part),
                    percent(route.median, 0),
                    ", ".join(f"{100 * share:.0f}" for share in route.shares),
                )
                for route in of_way
            ]
        absent = _never(each)
        sentences += [Sentence(f"{about}{absent}", "routes-table")] if absent else []
        sentences.insert(0, _route_answer(event, leaders, about)) if i == 0 else None
        if not bars:
            bars = [runs_bar(f"{way}: {route.site}", route.leads) for way, route in leaders]
        pictures.append(
            Picture(
                f"routes-figure{i or ''}",
                f"{about}The share of the {event} that each attention block moves",
                in_words(bars),
                partial(draw_site_routes, each),
            )
        )
    columns = (
        *("route", "block", "seeds with the largest share", "seeds with at least a tenth", "median share"),
        "share in every seed (%)",
    )
    table = DataTable("routes-table", f"Routes of the {event} over seeds", columns, tuple(rows), n_keys=2)
    told = (
        f"All heads of a block are patched together: they get their outputs on a similar example with (or without) the "
        f"{event}. The share is the part of the logit gap between the two answers that this moves. Blocks follow each "
        "other on a route, so their shares do not add up to 100 %. By construction, all cross-attention blocks "
        "together move everything that the decoder takes from the encoder."
    )
    return Answer(
        "routes",
        f"Which route does the {event} take?",
        tuple(sentences),
        (*pictures, table, Paragraph(told)),
        partial(draw_bars, bars, "seeds in which it moves most (%)"),
        in_words(bars),
        rank=3,
    )


def _route_answer(event: str, routes: Sequence[tuple[str, RouteFinding]], about: str) -> Sentence:
    """Return a sentence on which block moves the largest share of the event (a carry) in most seeds, on each route."""
    settled = [f"{route.site} from {way}" for way, route in routes if holds_in_most(route.leads)]
    n = routes[0][1].leads.n
    if not settled:
        counts = [f"{route.site} from {way} in {route.leads.correct} of {n}" for way, route in routes]
        text = f"{about}No block is shown to move the largest share of the {event} in most of {n} seeds. The most "
        return Sentence(f"{text}frequent ones are {some(counts, 6)}.", is_decided=False)
    least = min(route.leads.low for _, route in routes if holds_in_most(route.leads))
    counts = [f"{route.leads.correct} of {n}" for _, route in routes if holds_in_most(route.leads)]
    text = f"{about}In most seeds, the same block moves the largest share of the {event}: {some(settled, 6)} "
    text += f"({some(counts)} seeds, 95 % CI from {number(100 * least)} %)."
    if len(settled) < len(routes):
        text += f" For {counted(len(routes) - len(settled), 'other route')}, this is undecided."
    return Sentence(text)


def _never(findings: VariantFindings) -> str:
    """Return a sentence that names the blocks which move less than a tenth of the event (a carry) in every seed."""
    sites = dict.fromkeys(route.site for route in findings.routes)
    idle = [
        site for site in sites if all(route.takes_part.correct == 0 for route in findings.routes if route.site == site)
    ]
    if not idle:
        return ""
    runs = max((route.takes_part for route in findings.routes if route.site in idle), key=lambda each: each.n)
    event = findings.routes[0].event
    return (
        f"{some(idle)} move{'s' if len(idle) == 1 else ''} at least a tenth of the {event} on some route in "
        f"{k_of_n(runs)} seeds."
    )


def functions(part: PartResults) -> Answer | None:
    """Return the answer on which functions (such as moving the carry) some head of a block has in most seeds."""
    variants = [each for each in part.findings.variants if each.functions] if part.findings else []
    if not variants:
        return None
    sentences, rows, bars = list[Sentence](), list[Row](), list[Bar]()
    for i, each in enumerate(variants):
        about = variant_prefix(part, each.variant)
        ranked = sorted(each.functions, key=lambda one: (-one.runs.rate, KINDS.index(one.kind), one.site))
        # A head that carries an event also moves a part of it, so this function is not listed twice.
        carried = {
            (one.function.partition(" the ")[2], one.site): one.runs.correct for one in ranked if one.kind == "carries"
        }
        ranked = [
            one
            for one in ranked
            if one.kind != "moves" or carried.get((one.function.partition(" the ")[2], one.site)) != one.runs.correct
        ]
        sentences += _function_sentences(ranked, about)
        if i == 0:
            bars = [runs_bar(f"{one.site} {_briefly(one)}", one.runs) for one in ranked[:6]]
        rows += [
            (f"{about}{one.function}", one.site, k_of_n(one.runs), str(one.n_indices), ", ".join(one.heads))
            for one in ranked
        ]
    columns = ("function", "block", "seeds with such a head", "different heads", "the head in each of these seeds")
    table = DataTable("functions-table", "Functions of heads over seeds", columns, tuple(rows), n_keys=2)
    told = (
        "A head carries an event if patching its output alone moves at least half of the logit gap between the answers "
        "with and without the event, by the whole 95 % CI. It moves a part of the event if this share is at least a "
        "tenth. Heads whose placebo patch moves the answer as well are left out. Labels come from `headcount heads "
        "--stats`. The most frequent functions were selected on these runs, so their intervals are a little too narrow "
        "for a claim about new seeds."
    )
    draw = partial(draw_bars, bars, "seeds with such a head (%)")
    question = "Do heads have the same function?"
    return Answer("functions", question, tuple(sentences), (table, Paragraph(told)), draw, in_words(bars), rank=5)


KINDS = ("carries", "label", "moves")


def _briefly(one: FunctionFinding) -> str:
    """Return the function of a head in a few words, as the name of a bar in a small figure.

    >>> from headcount.stats import Proportion
    >>> from headcount.studies.head_findings import FunctionFinding
    >>> runs = Proportion.of(1, 1)
    >>> _briefly(FunctionFinding("carries the carry from 1s to 10s", "carries", "E0", runs, ("E0H1",)))
    'carries 1s to 10s'
    >>> _briefly(FunctionFinding("is labelled “operator”", "label", "E0", runs, ("E0H1",)))
    'operator'
    """
    if one.kind == "label":
        return one.function.partition("“")[2].rstrip("”")
    return f"{one.kind} {one.function.partition(' from ')[2]}"


def _function_sentences(ranked: Sequence[FunctionFinding], about: str) -> Iterator[Sentence]:
    """Yield a sentence for each function that a head of some block has in most seeds, or for the most frequent one."""
    settled = [one for one in ranked if holds_in_most(one.runs)]
    for one in settled:
        letter, layer = one.site[0], one.site[1:]
        where = f"{one.site} ({STACKS[letter]}, layer {layer})"
        text = f"{about}In {k_of_n(one.runs)} seeds, a head of {where} {one.function}"
        heads = counted(one.n_indices, "different head")
        different = f"; over seeds, {heads} of the block do" if one.n_indices > 1 else ""
        yield Sentence(f"{text}{different}.", "functions-table")
    if not settled:
        best = ranked[0]
        text = f"{about}No function is shown to belong to a head of one block in most seeds. Most often, a head of "
        yield Sentence(
            f"{text}{best.site} {best.function} in {k_of_n(best.runs)} seeds.", "functions-table", is_decided=False
        )
