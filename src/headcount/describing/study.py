"""What does a study say? One sentence and one picture per question, then the details of each question, folded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from headcount.describing.blocks import (
    Block,
    Card,
    Cards,
    Conclusions,
    DataTable,
    Paragraph,
    Picture,
    Row,
    Section,
    Sentence,
)
from headcount.describing.cards import split_doubt
from headcount.describing.comparison import describe as describe_comparison
from headcount.describing.comparison import holds_in_most, k_of_n, ranking_sentences, value_text
from headcount.describing.emergence import describe as describe_emergence
from headcount.describing.emergence import short_answer
from headcount.describing.report import Report
from headcount.describing.words import counted, interval, number, percent, some
from headcount.figures.cards import Bar, draw_bars
from headcount.figures.head_findings import draw_agreement, draw_places, draw_site_routes
from headcount.stats import Proportion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headcount.studies.emergence import Emergence
    from headcount.studies.head_findings import (
        FunctionFinding,
        HeadFindings,
        PlaceFinding,
        RouteFinding,
        VariantFindings,
    )
    from headcount.studies.summary import Concordance, Order, RankingSummary, SeedSummary, VariantSummary

MOST_CARDS = 8
SIGNIFICANT = 0.05
DROP = "drop"
LEVELS = {"site": "attention blocks", "layer": "layers", "head": "single heads", "index": "index within a block"}
LOWER = ("validation loss", "training loss", "wrong answers", "failed checks", "seconds of training")
"""Measures of which a smaller value is better."""
HEAD_MEASURES = ("critical heads", "redundant heads", "heads that are harmless alone", "removable heads")
LEFT = "score without all harmless heads"
TOGETHER = "score without the removable heads"
RIGHT = ("proved", "exact match", "accuracy")
STACKS = {"E": "encoder", "D": "decoder self-attention", "X": "cross-attention", "L": "attention"}
OPEN = "This is undecided: the 95 % CI includes half of all seeds."


@dataclass(frozen=True)
class PartResults:
    """What the finished runs of one part of a study say together."""

    name: str
    """Name of the part; empty if the study has only one part."""
    summary: SeedSummary
    findings: HeadFindings | None = None
    emergence: Emergence | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to one question of a study, with the picture of its card and its details."""

    id: str
    question: str
    sentences: tuple[Sentence, ...]
    """The first one is the answer; the others are details."""
    blocks: tuple[Block, ...] = ()
    draw: Callable[[], Figure] | None = None
    alt: str = ""
    rank: int = 0
    """Answers of a lower rank get a card first."""


def answers(part: PartResults) -> list[Answer]:
    """Return the answers that the results of a part give, in the order of reading."""
    makers = (_right, _places, _layers, _agreement, _removal, _routes, _functions, _emergence, _variants)
    return [answer for make in makers if (answer := make(part)) is not None]


def short_answers(parts: Sequence[PartResults]) -> Iterator[Conclusions]:
    """Yield the first sentence of every answer, for the end of a study in the terminal."""
    for part in parts:
        about = f"{part.name}: " if part.name else ""
        first = [answer.sentences[0] for answer in answers(part)]
        yield Conclusions(tuple(replace(each, text=f"{about}{each.text}", rests_on="") for each in first))


def build_study_report(
    title: str, question: str, parts: Sequence[PartResults], made: str, others: Sequence[Section] = ()
) -> Report:
    """Build the page of a study: cards with one sentence and one picture each, then folded sections.

    `others` are further sections, which follow the answers.
    """
    cards, sections, tables = list[Card](), list[Section](), list[Section]()
    for part in parts:
        prefix, about = (f"{_slug(part.name)}-", f"{part.name}: ") if part.name else ("", "")
        found = answers(part)
        n_cards = max(1, MOST_CARDS // len(parts))
        chosen = sorted(found, key=lambda each: each.rank)[:n_cards]
        for answer in found:
            section_id = f"{prefix}{answer.id}"
            blocks = tuple(_with_prefix(block, prefix) for block in (Conclusions(answer.sentences), *answer.blocks))
            heading = f"{about}{answer.question}"
            sections.append(Section(section_id, heading, blocks, answer.sentences[0]))
            if answer in chosen:
                text, note = split_doubt(answer.sentences[0].text)
                shown = Sentence(text, is_decided=answer.sentences[0].is_decided)
                cards.append(Card(section_id, heading, shown, note, answer.draw, answer.alt))
        measures = list(dict.fromkeys(each.measure for each in part.summary.variants))
        every = tuple(_with_prefix(block, prefix) for block in describe_comparison(part.summary, measures))
        tables.append(Section(f"{prefix}measures", f"{about}Every measure", every))
    first = Section("summary", "Summary", (Cards(tuple(cards)),))
    return Report(title, question, (first, *sections, *others, *tables), made)


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def _with_prefix(block: Block, prefix: str) -> Block:
    """Give ids that no other part of the page has."""
    if isinstance(block, DataTable | Picture):
        return replace(block, id=f"{prefix}{block.id}")
    if isinstance(block, Conclusions):
        linked = (replace(each, rests_on=each.rests_on and f"{prefix}{each.rests_on}") for each in block.sentences)
        return Conclusions(tuple(linked))
    return block


def _of(summary: SeedSummary, measure: str, variant: str | None = None) -> list[VariantSummary]:
    """Return the summaries of a measure of trained models; those of snapshots are left out."""
    rows = [each for each in summary.variants if each.measure == measure and "step " not in each.subject]
    return [each for each in rows if variant is None or each.variant == variant]


def _about(part: PartResults, variant: str) -> str:
    return f"{variant}: " if len(part.summary.names) > 1 else ""


def _bar(name: str, runs: Proportion, *, is_marked: bool = False) -> Bar:
    text = f"{runs.correct} of {runs.n}"
    return Bar(name, 100 * runs.rate, text, 100 * runs.low, 100 * runs.high, is_marked)


def _alt(bars: Sequence[Bar]) -> str:
    return "; ".join(f"{bar.name}: {bar.text}" for bar in bars)


# --- is every answer right? -------------------------------------------------------------------------------------------


def _right(part: PartResults) -> Answer | None:
    """Say in how many seeds every answer is right, or how accurate the models are."""
    if len(part.summary.names) > 1:
        return None  # the comparison of variants says it
    measure = next((name for name in RIGHT if _of(part.summary, name)), None)
    if measure is None:
        return None
    (first, *_) = _of(part.summary, measure)
    values = f"{first.n} seeds"
    if measure == "proved":
        proved = next((each.runs for each in first.verdicts if each.verdict == "proved"), None)
        total = sum(each.runs.correct for each in first.verdicts)
        others = [f"{each.verdict} in {each.runs.correct}" for each in first.verdicts if each.verdict != "proved"]
        if proved is None:
            text = f"In 0 of {total} seeds, every answer is proved right ({some(others)})."
            return Answer("right", "Is every answer right?", (Sentence(text),), rank=6)
        more = f" It is {some(others)}." if others else ""
        text = f"In {k_of_n(proved)} seeds, every answer is proved right.{more}"
        decided = holds_in_most(proved) is not None
    else:
        text = f"The median {measure} is {value_text(first.median, first.unit)} ({_spread(first)}, n = {values})."
        decided = True
    bars = [
        Bar(f"seed {seed}", 100 * value, percent(value)) for seed, value in zip(first.seeds, first.values, strict=True)
    ]
    bars.sort(key=lambda bar: bar.value)
    return Answer(
        "right",
        "Is every answer right?",
        (Sentence(text, is_decided=decided),),
        draw=partial(draw_bars, bars, f"{measure} (%)"),
        alt=_alt(bars),
        rank=6,
    )


def _spread(each: VariantSummary) -> str:
    """Write the range of all values and the interval of their mean."""
    scale = 100 if each.unit in ("share", "points") else 1
    digits = 1 if scale == 100 or any(not float(value).is_integer() for value in each.values) else 0
    ends = [number(scale * end, digits) for end in (min(each.values), max(each.values))]
    text = f"every seed {ends[0]}" if ends[0] == ends[1] else f"range {ends[0]}-{ends[1]}"
    if each.low is not None and each.high is not None:
        text += f", mean {number(scale * each.mean)}, 95 % CI {number(scale * each.low)}-{number(scale * each.high)}"
    return text


# --- which blocks and layers matter? ----------------------------------------------------------------------------------


def _places(part: PartResults) -> Answer | None:
    """Say which attention blocks have a head that counts in all, in none or in some of the seeds."""
    variants = [each for each in part.findings.variants if each.at("site")] if part.findings else []
    if not variants:
        return None
    sentences = list[Sentence]()
    for each in variants:
        about = _about(part, each.variant)
        sentences += [
            replace(one, text=f"{about}{one.text}", rests_on="places-table") for one in _place_sentences(each, "site")
        ]
        sentences += [
            replace(one, text=f"{about}{one.text}", rests_on="places-table") for one in _place_sentences(each, "layer")
        ]
    first = variants[0]
    bars = [_bar(each.place, each.counts) for each in first.at("site")]
    pictures = [
        Picture(
            f"places{i or ''}",
            f"{_about(part, each.variant)}The largest drop of one head in each block and layer".strip(),
            _alt([_bar(place.place, place.counts) for place in each.places]),
            partial(draw_places, each),
        )
        for i, each in enumerate(variants)
    ]
    told = (
        f"A block or layer counts in a run if ablating at least one of its heads ({first.replacement} ablation) costs "
        "more than 1 point by the whole 95 % CI. The intervals of single heads are not corrected for their number."
    )
    return Answer(
        "blocks",
        "Which attention blocks matter?",
        tuple(sentences),
        (*pictures, _places_table(part, variants), Paragraph(told)),
        partial(draw_bars, bars, "seeds in which it counts (%)"),
        _alt(bars),
        rank=0,
    )


def _place_sentences(findings: VariantFindings, level: str) -> Iterator[Sentence]:
    """Group the places by what the seeds decide: they count in most seeds, in few, or that is undecided."""
    places = findings.at(level)
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
        verb = "does" if len(few) == 1 else "do"
        yield Sentence(f"{_names(few)} {verb} in {_counts_text(few)} only: not in most seeds.")
    if open_places := groups[None]:
        texts = [f"{each.place} in {k_of_n(each.counts)}" for each in open_places]
        yield Sentence(f"Whether others do in most seeds is undecided: {some(texts, 8)} seeds.", is_decided=False)


def _names(places: Sequence[PlaceFinding]) -> str:
    names = some([each.place for each in places], 12)
    return names[0].upper() + names[1:]


def _counts_text(places: Sequence[PlaceFinding], examples: str = "") -> str:
    """Write k of n seeds once if all places have the same, else for each place, with the bounds of all intervals."""
    n, low, high = places[0].counts.n, min(each.counts.low for each in places), max(each.counts.high for each in places)
    doubt = (
        interval(low, high)
        if len({each.counts for each in places}) == 1
        else (f"95 % CI of each within {number(100 * low)}-{number(100 * high)}")
    )
    numbers = (
        some(list(dict.fromkeys(str(each.counts.correct) for each in places)), 12)
        if len({each.counts.correct for each in places}) == 1
        else some([str(each.counts.correct) for each in places], 12)
    )
    return f"{numbers} of {n} seeds ({doubt}{examples})"


def _places_table(part: PartResults, variants: Sequence[VariantFindings]) -> DataTable:
    rows: list[Row] = [
        (
            f"{_about(part, each.variant)}{place.place}",
            k_of_n(place.counts),
            k_of_n(place.idle),
            value_text(place.median, "points"),
            ", ".join(number(100 * drop) for drop in place.drops),
        )
        for each in variants
        for place in each.places
    ]
    columns = ("place", "a head counts in", "no head costs 1 point in", "median of the largest drop", "every seed")
    caption = "Blocks and layers over seeds"
    return DataTable("places-table", caption, columns, tuple(rows))


# --- orders and rankings ----------------------------------------------------------------------------------------------


def _drop_ranking(part: PartResults, variant: str) -> RankingSummary | None:
    """Return the rankings of heads by their drop under the ablation that the findings use."""
    found = next((each for each in part.findings.variants if each.variant == variant), None) if part.findings else None
    wanted = found.replacement if found else None
    rankings = [
        each
        for each in part.summary.rankings
        if (each.measure, each.variant) == (DROP, variant) and "step " not in each.subject
    ]
    return next((each for each in rankings if wanted in each.subject.split(", ")), rankings[0] if rankings else None)


def _layers(part: PartResults) -> Answer | None:
    """Say whether layer 1 comes before layer 0, by the mean drop of their heads."""
    sentences, bars = list[Sentence](), list[Bar]()
    for variant in part.summary.names:
        ranking = _drop_ranking(part, variant)
        orders = [each for each in ranking.orders if each.level == "layer"] if ranking else []
        sentences += [_order_sentence(each, _about(part, variant)) for each in orders]
        if not bars:
            bars = [bar for each in orders for bar in _order_bars(each)]
    if not sentences:
        return None
    told = (
        "A layer comes before another one in a run if the mean drop of its heads is larger, encoder and decoder "
        "together. The sign test asks whether it does so more often than by chance; p-values are Holm-corrected for "
        "all pairs of blocks or layers."
    )
    draw = partial(draw_bars, bars, "seeds in which it comes first (%)")
    question = "Does a later layer matter more?"
    return Answer("layers", question, tuple(sentences), (Paragraph(told),), draw, _alt(bars), rank=4)


def _order_bars(order: Order) -> list[Bar]:
    others = Proportion.of(order.runs.n - order.runs.correct, order.runs.n)
    return [_bar(order.first, order.runs), _bar(order.second, others)]


def _order_sentence(order: Order, about: str) -> Sentence:
    test = f"sign test, p = {order.p_holm:.2g} after Holm correction"
    if order.p_holm < SIGNIFICANT:
        text = f"{about}Heads of {order.first} cost more than heads of {order.second} in {k_of_n(order.runs)} seeds "
        return Sentence(f"{text}({test}).")
    text = f"{about}Whether heads of {order.first} or of {order.second} cost more is undecided: {order.first} leads in "
    return Sentence(f"{text}{k_of_n(order.runs)} seeds ({test}).", is_decided=False)


def _agreement(part: PartResults) -> Answer | None:
    """Say which rankings agree over seeds: blocks, layers, single heads, and the index of a head."""
    sentences, pictures = list[Sentence](), list[Picture]()
    card: tuple[list[Concordance], list[str]] | None = None
    for i, variant in enumerate(part.summary.names):
        ranking = _drop_ranking(part, variant)
        if ranking is None or not ranking.concordances:
            continue
        about = _about(part, variant)
        ordered = [each for level in LEVELS if (each := ranking.at(level)) is not None]  # type: ignore[arg-type]
        names = [LEVELS[each.level] for each in ordered]
        sentences += [_agreement_sentence(ordered, about), *ranking_sentences(ranking)]
        alt = "; ".join(
            f"{name}: W = {each.w:.2f}, p = {each.p:.2g}" for name, each in zip(names, ordered, strict=True)
        )
        caption = f"{about}Agreement of rankings by the drop of heads over seeds"
        pictures.append(Picture(f"agreement{i or ''}", caption, alt, partial(draw_agreement, ordered, names)))
        card = card or (ordered, names)
    if card is None:
        return None
    bars = [
        Bar(name, each.w, f"{each.w:.2f}", is_marked=each.p >= SIGNIFICANT) for each, name in zip(*card, strict=True)
    ]
    told = (
        "Kendall's W is 1 if all runs rank in the same way, and 1/n on average for random rankings of n runs. The "
        "p-value comes from a permutation test. Training assigns the index of a head within its block at random, so "
        "its ranking should not agree."
    )
    draw = partial(draw_bars, bars, "Kendall's W (orange: p ≥ 0.05)")
    return Answer(
        "agreement",
        "What holds over seeds?",
        tuple(sentences),
        (*pictures, Paragraph(told)),
        draw,
        pictures[0].alt,
        rank=1,
    )


def _agreement_sentence(concordances: Sequence[Concordance], about: str) -> Sentence:
    """Say in one sentence which levels agree over seeds, and which are not shown to."""
    n = concordances[0].n_runs

    def named(each: Concordance) -> str:
        return f"{LEVELS[each.level]} (W = {each.w:.2f})"

    holds = [named(each) for each in concordances if each.p < SIGNIFICANT]
    others = [named(each) for each in concordances if each.p >= SIGNIFICANT]
    if not holds:
        text = f"{about}No ranking by the drop of heads is shown to agree over {n} seeds: not {' nor '.join(others)}."
        return Sentence(text, is_decided=False)
    text = f"{about}Over {n} seeds, the ranking agrees for {some(holds)}"
    return Sentence(f"{text}{f', but is not shown to agree for {some(others)}' if others else ''}.")


# --- what can be removed? ---------------------------------------------------------------------------------------------


def _removal(part: PartResults) -> Answer | None:
    """Say how many heads are critical and redundant, how many can go together, and what is left without all."""
    sentences, bars = list[Sentence](), list[Bar]()
    for variant in part.summary.names:
        chosen = {name: _first(part, name, variant) for name in (*HEAD_MEASURES, TOGETHER, LEFT)}
        if not any(chosen.values()):
            continue
        about = _about(part, variant)
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
        "Critical heads cost more than 10 points alone, redundant ones less than 1 point, by the whole 95 % CI. "
        "Heads that are harmless alone are not removable together: the removable ones were chosen one after the other, "
        "with a new measurement after each removal."
    )
    draw = partial(draw_bars, bars, "heads: median and range") if bars else None
    return Answer(
        "removal", "How many heads can be removed?", tuple(sentences), (Paragraph(told),), draw, _alt(bars), rank=2
    )


def _first(part: PartResults, measure: str, variant: str) -> VariantSummary | None:
    """Return a measure of a variant: under the ablation of the findings if there are several."""
    rows = _of(part.summary, measure, variant)
    zero = [each for each in rows if each.about.get("replacement") == "zero"]
    return (zero or rows or [None])[0]


def _removal_texts(chosen: dict[str, VariantSummary | None]) -> Iterator[str]:
    removable, left, kept, alone = (chosen[name] for name in (HEAD_MEASURES[3], LEFT, TOGETHER, HEAD_MEASURES[2]))
    if removable is not None:
        text = f"A median of {removable.median:g} heads can be removed together ({_spread(removable)}, "
        yield f"{text}n = {removable.n} seeds)."
    if left is not None and alone is not None:
        text = f"Without all heads that are harmless alone (median {alone.median:g}), a median of "
        yield f"{text}{value_text(left.median, left.unit)} is left ({_spread(left)}, n = {left.n} seeds)."
    if kept is not None:
        text = f"Without the removable heads, a median of {value_text(kept.median, kept.unit)} is left "
        yield f"{text}({_spread(kept)}, n = {kept.n} seeds)."
    for name in HEAD_MEASURES[:2]:
        each = chosen[name]
        if each is not None:
            verb = f"A median of {each.median:g} heads are {name.removesuffix(' heads')}"
            yield f"{verb} ({_spread(each)}, n = {each.n} seeds)."


# --- routes and functions ---------------------------------------------------------------------------------------------


def _routes(part: PartResults) -> Answer | None:
    """Say for each way which block moves the largest share of the event, in how many seeds."""
    variants = [each for each in part.findings.variants if each.routes] if part.findings else []
    if not variants:
        return None
    event = variants[0].routes[0].event
    sentences, bars, pictures, rows = list[Sentence](), list[Bar](), list[Picture](), list[Row]()
    for i, each in enumerate(variants):
        about = _about(part, each.variant)
        leaders = []
        for way in dict.fromkeys(route.way for route in each.routes):
            of_way = sorted(
                (route for route in each.routes if route.way == way), key=lambda route: -route.leads.correct
            )
            leaders.append((way, of_way[0]))
            into = way.replace(" to ", " into ")
            decided = holds_in_most(of_way[0].leads)
            text = f"{about}From {into}, {of_way[0].site} moves the largest share of the {event} in "
            text += (
                f"{k_of_n(of_way[0].leads)} seeds{'' if decided else ': which block leads in most seeds is undecided'}."
            )
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
            bars = [_bar(f"{way}: {route.site}", route.leads) for way, route in leaders]
        pictures.append(
            Picture(
                f"routes{i or ''}",
                f"{about}The share of the {event} that each attention block moves",
                _alt(bars),
                partial(draw_site_routes, each),
            )
        )
    columns = ("way", "block", "largest share in", "at least a tenth in", "median share", "every seed (%)")
    table = DataTable("routes-table", f"Routes of the {event} over seeds", columns, tuple(rows), n_keys=2)
    told = (
        f"All heads of a block are patched together with their outputs on an example with or without the {event}. Blocks "
        "follow each other on a route, so their shares do not add up to 100 %. All cross-attention blocks together move "
        "everything that the decoder takes from the encoder, by construction."
    )
    return Answer(
        "routes",
        f"Which route does the {event} take?",
        tuple(sentences),
        (*pictures, table, Paragraph(told)),
        partial(draw_bars, bars, "seeds in which it moves most (%)"),
        _alt(bars),
        rank=3,
    )


def _route_answer(event: str, routes: Sequence[tuple[str, RouteFinding]], about: str) -> Sentence:
    """Say whether the route of the event is the same in most seeds, way by way."""
    settled = [f"{way} through {route.site}" for way, route in routes if holds_in_most(route.leads)]
    n = routes[0][1].leads.n
    if not settled:
        counts = [f"{way} through {route.site} in {route.leads.correct} of {n}" for way, route in routes]
        text = f"{about}No route of the {event} is shown to hold in most of {n} seeds. The most frequent ones are "
        return Sentence(f"{text}{some(counts, 6)}.", is_decided=False)
    least = min(route.leads.low for _, route in routes if holds_in_most(route.leads))
    counts = [f"{route.leads.correct} of {n}" for _, route in routes if holds_in_most(route.leads)]
    text = f"{about}In most seeds, the largest share of the {event} goes {some(settled, 6)} "
    text += f"({some(counts)} seeds, 95 % CI from {number(100 * least)} %)."
    if len(settled) < len(routes):
        text += f" For {counted(len(routes) - len(settled), 'other way')}, it is undecided."
    return Sentence(text)


def _never(findings: VariantFindings) -> str:
    """Name the blocks that take no part on any way in any seed."""
    sites = dict.fromkeys(route.site for route in findings.routes)
    idle = [
        site for site in sites if all(route.takes_part.correct == 0 for route in findings.routes if route.site == site)
    ]
    if not idle:
        return ""
    runs = max((route.takes_part for route in findings.routes if route.site in idle), key=lambda each: each.n)
    event = findings.routes[0].event
    return (
        f"{some(idle)} move{'s' if len(idle) == 1 else ''} a tenth of the {event} on any way in {k_of_n(runs)} seeds."
    )


def _functions(part: PartResults) -> Answer | None:
    """Say which functions some head of a block has in most seeds, although the index of the head differs."""
    variants = [each for each in part.findings.variants if each.functions] if part.findings else []
    if not variants:
        return None
    sentences, rows, bars = list[Sentence](), list[Row](), list[Bar]()
    for i, each in enumerate(variants):
        about = _about(part, each.variant)
        ranked = sorted(each.functions, key=lambda one: (-one.runs.rate, KINDS.index(one.kind), one.site))
        # Who carries a thing also moves a part of it.
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
            bars = [_bar(f"{one.site} {_briefly(one)}", one.runs) for one in ranked[:6]]
        rows += [
            (f"{about}{one.function}", one.site, k_of_n(one.runs), str(one.n_indices), ", ".join(one.heads))
            for one in ranked
        ]
    columns = ("function", "block", "seeds", "different heads", "the head in each of these seeds")
    table = DataTable("functions-table", "Functions of heads over seeds", columns, tuple(rows), n_keys=2)
    told = (
        "A head carries an event if its output alone moves at least half of it, and moves a part of it from a tenth on, "
        "by the whole interval of a patch; heads whose placebo moves the answer, too, are left out. Labels come from "
        "`headcount heads --stats`. The functions at the top were chosen by these runs, so that their intervals are "
        "a little too narrow for a claim about new seeds."
    )
    draw = partial(draw_bars, bars, "seeds with such a head (%)")
    question = "Do heads have the same function?"
    return Answer("functions", question, tuple(sentences), (table, Paragraph(told)), draw, _alt(bars), rank=5)


KINDS = ("carries", "label", "moves")


def _briefly(one: FunctionFinding) -> str:
    """Write a function in a few letters, for a bar of a card.

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
    """Say what holds in most seeds, one sentence per function; if nothing does, name the most frequent function."""
    settled = [one for one in ranked if holds_in_most(one.runs)]
    for one in settled:
        letter, layer = one.site[0], one.site[1:]
        where = f"{one.site} ({STACKS[letter]}, layer {layer})"
        text = f"{about}In {k_of_n(one.runs)} seeds, a head of {where} {one.function}"
        different = f"; it is one of {counted(one.n_indices, 'different head')}" if one.n_indices > 1 else ""
        yield Sentence(f"{text}{different}.", "functions-table")
    if not settled:
        best = ranked[0]
        text = f"{about}No function of a block is shown to hold in most seeds. The most frequent one: a head of {best.site} "
        yield Sentence(f"{text}{best.function} in {k_of_n(best.runs)} seeds.", "functions-table", is_decided=False)


# --- emergence and variants -------------------------------------------------------------------------------------------


def _emergence(part: PartResults) -> Answer | None:
    """Say when heads begin to count."""
    result = part.emergence
    if result is None:
        return None
    variant = result.variants[0]
    first = short_answer(result, variant)
    firsts = [(run, each) for run in result.of(variant) if (each := run.first) is not None]
    bars = [Bar(f"seed {run.seed}", each.step, f"step {each.step:,}") for run, each in firsts]
    blocks = describe_emergence(result)
    details = [each for block in blocks if isinstance(block, Conclusions) for each in block.sentences]
    others = [block for block in blocks if not isinstance(block, Conclusions)]
    return Answer(
        "emergence",
        "When do heads begin to count?",
        (
            replace(first, text=f"{_about(part, variant)}{first.text}"),
            *(each for each in details if each.text != first.text),
        ),
        tuple(others),
        partial(draw_bars, bars, "first step at which a head counts") if bars else None,
        _alt(bars),
        rank=0,
    )


def _variants(part: PartResults) -> Answer | None:
    """Say which variant has the best value of the main measure, and how many others reach it."""
    summary = part.summary
    if len(summary.names) < 2:
        return None
    counted_heads = (*HEAD_MEASURES, LEFT, TOGETHER, DROP)
    measures = [name for name in dict.fromkeys(each.measure for each in summary.variants) if name not in counted_heads]
    sentences, bars, label = list[Sentence](), list[Bar](), ""
    for measure in measures:
        rows = _hardest(summary, measure)
        if len(rows) < 2 or rows[0].unit == "" or measure.startswith(("share of", "attention:")):
            continue
        rows.sort(key=lambda each: each.median, reverse=measure not in LOWER)
        sentences.append(_best_sentence(measure, rows))
        if not bars:
            scale = 100 if rows[0].unit in ("share", "points") else 1
            label = f"{measure}{' (%)' if scale == 100 else ''}"
            bars = [
                Bar(
                    each.variant,
                    scale * each.median,
                    f"{scale * each.median:.3g}",
                    *(scale * end for end in _ends(each)),
                )
                for each in rows
            ]
    if not sentences:
        return None
    by = some(summary.by) if summary.by else "variant"
    draw = partial(draw_bars, bars, label)
    told = "Bars are medians over runs, with the range of all runs. Which measure a variant is ranked by is said above."
    question = f"Which {by} is best?"
    return Answer("variants", question, tuple(sentences), (Paragraph(told),), draw, _alt(bars), rank=0)


def _ends(each: VariantSummary) -> tuple[float, float]:
    return min(each.values), max(each.values)


def _hardest(summary: SeedSummary, measure: str) -> list[VariantSummary]:
    """Return one subject of a measure for all variants: the greatest length, and there the hardest group."""
    rows = _of(summary, measure)
    lengths = [int(each.about["length"]) for each in rows if "length" in each.about]
    longest = [each for each in rows if not lengths or each.about.get("length") == max(lengths)]
    subjects = dict.fromkeys(each.subject for each in longest)
    if not subjects:
        return []

    def mean_of(subject: str) -> float:
        medians = [each.median for each in longest if each.subject == subject]
        return sum(medians) / len(medians)

    hardest = min(subjects, key=mean_of) if lengths else next(iter(subjects))
    return [each for each in longest if each.subject == hardest]


def _best_sentence(measure: str, rows: Sequence[VariantSummary]) -> Sentence:
    best, is_lower = rows[0], measure in LOWER
    at = f" at {best.subject}" if best.subject else ""
    text = f"The {'lowest' if is_lower else 'highest'} median {measure}{at} is {value_text(best.median, best.unit)}: "
    text += f"{best.variant} ({_spread(best)}, n = {counted(best.n, 'seed')})."
    worst = max(best.values) if is_lower else min(best.values)
    rivals = [each for each in rows[1:] if (min(each.values) <= worst if is_lower else max(each.values) >= worst)]
    if rivals:
        n = counted(len(rivals), "other variant")
        verb = "reaches" if len(rivals) == 1 else "reach"
        text += f" Which variant is best is undecided: {n} {verb} its values in at least one seed"
        return Sentence(f"{text} ({some([each.variant for each in rivals], 3)}).", "variants", is_decided=False)
    return Sentence(f"{text} No run of another variant reaches any of them.", "variants", is_decided=best.n > 1)
