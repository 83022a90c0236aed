"""Build the page of a study: one sentence and one picture per question, then the details of each question, folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
    Section,
    Sentence,
)
from headcount.describing.cards import split_doubt
from headcount.describing.comparison import describe as describe_comparison
from headcount.describing.comparison import holds_in_most, introduction, k_of_n, value_text
from headcount.describing.emergence import describe as describe_emergence
from headcount.describing.emergence import short_answer
from headcount.describing.report import Report
from headcount.describing.study_answers import (
    DROP,
    HEAD_MEASURES,
    LEFT,
    TOGETHER,
    Answer,
    PartResults,
    in_words,
    measured,
    spread,
    variant_prefix,
)
from headcount.describing.study_heads import agreement, functions, layers, places, removal, routes
from headcount.describing.words import counted, percent, some
from headcount.figures.cards import Bar, draw_bars

if TYPE_CHECKING:
    from headcount.studies.summary import SeedSummary, VariantSummary

MOST_CARDS = 8
LOWER = ("validation loss", "training loss", "wrong answers", "failed checks", "seconds of training")
"""Measures for which a smaller value is better."""
RIGHT = ("proved", "exact match", "accuracy")
ABOUT_HEADS = (places, layers, agreement, removal, routes, functions)


def answers(part: PartResults) -> list[Answer]:
    """Return all answers that the results of one part of a study give, in the order in which the page shows them."""
    makers = (_right, *ABOUT_HEADS, _emergence, _variants)
    return [answer for make in makers if (answer := make(part)) is not None]


def short_answers(parts: Sequence[PartResults]) -> Iterator[Conclusions]:
    """Yield the first sentence of every answer of a study, which the terminal prints when the study ends."""
    for part in parts:
        about = f"{part.name}: " if part.name else ""
        first = [*introduction(part.summary), *(answer.sentences[0] for answer in answers(part))]
        yield Conclusions(tuple(replace(each, text=f"{about}{each.text}", rests_on="") for each in first))


def build_study_report(
    title: str, question: str, parts: Sequence[PartResults], made: str, others: Sequence[Section] = ()
) -> Report:
    """Build the page of a study: cards with one sentence and one picture each, then folded sections.

    `others` are further sections, which follow the sections with answers.
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
    """Return the block with `prefix` before its ids, so that they differ from the ids of other parts of the page."""
    if isinstance(block, DataTable | Picture):
        return replace(block, id=f"{prefix}{block.id}")
    if isinstance(block, Conclusions):
        linked = (replace(each, rests_on=each.rests_on and f"{prefix}{each.rests_on}") for each in block.sentences)
        return Conclusions(tuple(linked))
    return block


# --- is every answer right? -------------------------------------------------------------------------------------------


def _right(part: PartResults) -> Answer | None:
    """Return the answer to the question in how many seeds the model is proved right, or how accurate the models are."""
    if len(part.summary.names) > 1:
        return None  # the comparison of variants says it
    measure = next((name for name in RIGHT if measured(part.summary, name)), None)
    if measure is None:
        return None
    (first, *_) = measured(part.summary, measure)
    values = f"{first.n} seeds"
    if measure == "proved":
        proved = next((each.runs for each in first.verdicts if each.verdict == "proved"), None)
        total = sum(each.runs.correct for each in first.verdicts)
        others = [f"{each.verdict} in {each.runs.correct}" for each in first.verdicts if each.verdict != "proved"]
        if proved is None:
            text = f"In 0 of {total} seeds, every answer is proved right ({some(others)})."
            return Answer("right", "Is every answer right?", (Sentence(text),), rank=6)
        more = f" Verdicts in the other seeds: {some(others)}." if others else ""
        text = f"In {k_of_n(proved)} seeds, every answer is proved right.{more}"
        decided = holds_in_most(proved) is not None
    else:
        text = f"The median {measure} is {value_text(first.median, first.unit)} ({spread(first)}, n = {values})."
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
        alt=in_words(bars),
        rank=6,
    )


# --- emergence and variants -------------------------------------------------------------------------------------------


def _emergence(part: PartResults) -> Answer | None:
    """Return the answer on when in training ablating a head begins to cost accuracy; None if it was not measured."""
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
        "When in training do heads begin to matter?",
        (
            replace(first, text=f"{variant_prefix(part, variant)}{first.text}"),
            *(each for each in details if each.text != first.text),
        ),
        tuple(others),
        partial(draw_bars, bars, "first step at which a head matters") if bars else None,
        in_words(bars),
        rank=0,
    )


def _variants(part: PartResults) -> Answer | None:
    """Return the answer on which variant has the best value of each measure, and which other variants reach it."""
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
                    scale * min(each.values),
                    scale * max(each.values),
                )
                for each in rows
            ]
    if not sentences:
        return None
    by = some(summary.by) if summary.by else "variant"
    draw = partial(draw_bars, bars, label)
    told = "Bars are medians over runs, with the range of all runs. Each sentence names the measure that it compares."
    question = f"Which {by} is best?"
    return Answer("variants", question, tuple(sentences), (Paragraph(told),), draw, in_words(bars), rank=0)


def _hardest(summary: SeedSummary, measure: str) -> list[VariantSummary]:
    """Return a measure for every variant at the greatest length and, of several groups, in that of lowest median."""
    rows = measured(summary, measure)
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
    text = f"{best.variant} has the {'lowest' if is_lower else 'highest'} median {measure}{at}: "
    text += f"{value_text(best.median, best.unit)} ({spread(best)}, n = {counted(best.n, 'seed')})."
    worst = max(best.values) if is_lower else min(best.values)
    rivals = [each for each in rows[1:] if (min(each.values) <= worst if is_lower else max(each.values) >= worst)]
    if rivals:
        n = counted(len(rivals), "other variant")
        verb = "reaches" if len(rivals) == 1 else "reach"
        text += f" It is undecided whether it is best: {n} {verb} its values in at least one seed"
        return Sentence(f"{text} ({some([each.variant for each in rivals], 3)}).", "variants", is_decided=False)
    return Sentence(f"{text} No run of another variant reaches its values.", "variants", is_decided=best.n > 1)
