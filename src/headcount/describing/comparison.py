"""How do variants of a model compare over seeds? Values of each variant, their differences, and rankings of heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Picture, Row, Sentence
from headcount.describing.words import counted, interval, some
from headcount.figures.comparison import draw_comparison
from headcount.formatting import number
from headcount.limits import SIGNIFICANT

if TYPE_CHECKING:
    from headcount.stats import Proportion
    from headcount.studies.summary import Concordance, PairedVariants, RankingSummary, SeedSummary, VariantSummary

MOST_VALUES = 10
"""Largest number of single values that one table cell lists; the JSON file has all of them."""
HALF = 0.5
"""Share of seeds above which something holds in most of them."""
METHODS = {
    "t": "Student's t",
    "fewer than 3 runs": "no interval: fewer than 3 runs",
    "all values are equal": "no interval: all values are equal",
}
LEVELS = {
    "head": "single heads",
    "site": "attention blocks",
    "layer": "layers",
    "index": "the index of a head within its attention block",
}


def describe(summary: SeedSummary, measures: Sequence[str]) -> list[Block]:
    """Return report blocks on these measures: what was compared, tables of variants and differences, and figures."""
    blocks: list[Block] = [Conclusions(tuple(introduction(summary)))]
    shown = [each for each in summary.variants if each.measure in measures]
    blocks.append(_variants_table(shown))
    if counts := [each for each in shown if each.verdicts]:
        blocks.append(_counts_table(counts))
    if pairs := [each for each in summary.pairs if each.measure in measures]:
        blocks += [_pairs_table(summary, pairs), Conclusions((_pairs_sentence(pairs),))]
    for ranking in summary.rankings:
        if ranking.measure in measures:
            blocks.append(Conclusions(tuple(ranking_sentences(ranking))))
    blocks += [
        Picture(f"strip-{i}", measure, _in_words(summary, measure), partial(draw_comparison, summary, measure))
        for i, measure in enumerate(measures)
    ]
    return blocks


def introduction(summary: SeedSummary) -> Iterator[Sentence]:
    """Yield sentences on what is compared, how many planned runs are finished, and whether there are enough of them."""
    runs = counted(summary.n_runs, "run")
    if summary.n_runs < summary.n_planned:
        text = f"{summary.n_runs:,} of {counted(summary.n_planned, 'planned run')} are finished and compared here."
        yield Sentence(text, is_decided=False)
    if not summary.by:
        yield Sentence(f"{runs} of the task {summary.task} are compared; they differ only in their seeds.")
    else:
        yield Sentence(f"{runs} of the task {summary.task} are compared by {some(summary.by)}: {some(summary.names)}.")
    if summary.others:
        also = some(summary.others)
        yield Sentence(f"Runs of one variant also differ in {also}; runs compared as a pair do not differ in it.")
    most = max((each.n for each in summary.variants), default=0)
    if most == 1:
        yield Sentence(
            "Each variant has only one run, so there is no interval: a difference may be due to the seed alone.",
            is_decided=False,
        )


def _variants_table(shown: Sequence[VariantSummary]) -> DataTable:
    rows: list[Row] = [
        (
            each.measure,
            each.subject or "-",
            each.variant,
            Cell(f"{each.n:,}", each.n),
            Cell(value_text(each.median, each.unit), each.median),
            Cell(value_text(each.mean, each.unit), each.mean),
            _interval(each.low, each.high, each.unit) or METHODS[each.method],
            _values(each),
        )
        for each in shown
    ]
    columns = ("measure", "of", "variant", "runs", "median", "mean", "95 % CI of the mean", "value of every run")
    note = "“Of” says what is measured, such as a head. Intervals are over runs (Student's t); intervals of shares are "
    note += "cut to 0-100 %."
    return DataTable("variants", "Measures by variant", columns, tuple(rows), note, n_keys=3)


def _counts_table(shown: Sequence[VariantSummary]) -> DataTable:
    rows: list[Row] = [
        (each.measure, each.subject or "-", each.variant, count.verdict, k_of_n(count.runs))
        for each in shown
        for count in each.verdicts
    ]
    return DataTable("counts", "Verdicts over runs", ("measure", "of", "variant", "verdict", "runs"), tuple(rows))


def _pairs_table(summary: SeedSummary, pairs: Sequence[PairedVariants]) -> DataTable:
    rows: list[Row] = [
        (
            each.measure,
            each.subject or "-",
            f"{each.second} - {each.first}",
            Cell(f"{each.n:,}", each.n),
            Cell(value_text(each.difference, _of_difference(each.unit)), each.difference),
            _interval(each.low, each.high, _of_difference(each.unit)) or METHODS[each.method],
            f"{each.higher} of {each.n}",
            Cell(f"{each.p_holm:.3g}", each.p_holm, "strong" if each.p_holm < SIGNIFICANT else ""),
        )
        for each in pairs
    ]
    first = "" if summary.are_all_pairs else f" Each variant is compared with {summary.names[0]}."
    note = "The p-values come from a sign-flip test on pairs of runs with the same seed, with Holm correction over all "
    note += f"comparisons of a measure.{first}"
    columns = ("measure", "of", "difference", "pairs", "mean", "95 % CI", "higher in", "p (Holm)")
    return DataTable("pairs", "Paired differences", columns, tuple(rows), note, n_keys=3)


def _pairs_sentence(pairs: Sequence[PairedVariants]) -> Sentence:
    """Return a sentence on how many paired differences are significant, or on why there are too few pairs for that."""
    n = sum(each.p_holm < SIGNIFICANT for each in pairs)
    text = f"{n} of {counted(len(pairs), 'paired difference')} {'is' if n == 1 else 'are'} significant"
    text += " after Holm correction."
    most = max(each.n for each in pairs)
    if n == 0 and 2.0 ** (1 - most) >= SIGNIFICANT:
        text += f" With {counted(most, 'pair')} of runs, the smallest possible p-value is "
        text += f"{min(1, 2.0 ** (1 - most)):.3g}."
    return Sentence(text, "pairs", is_decided=n > 0)


def ranking_sentences(ranking: RankingSummary) -> Iterator[Sentence]:
    """Yield sentences on whether the ranking of heads agrees over seeds, and which blocks and layers rank higher."""
    about = f"{ranking.measure}{f' ({ranking.subject})' if ranking.subject else ''}, {ranking.variant}"
    for each in ranking.concordances:
        yield _concordance_sentence(each, about)
    for order in ranking.orders:
        if order.p_holm < SIGNIFICANT:
            yield Sentence(
                f"{about}: {order.first} ranks above {order.second} in {k_of_n(order.runs)} runs "
                f"(sign test, p = {order.p_holm:.2g} after Holm correction)."
            )


def _concordance_sentence(each: Concordance, about: str) -> Sentence:
    holds = each.p < SIGNIFICANT
    text = f"{about}: the ranking of {LEVELS[each.level]} {'agrees' if holds else 'is not shown to agree'} over seeds "
    text += f"(Kendall's W = {each.w:.2f}, p = {each.p:.2g}, {counted(each.n_runs, 'run')})"
    if each.leaders:
        text += f"; {each.leaders[0].verdict} ranks first in {k_of_n(each.leaders[0].runs)} runs"
    return Sentence(f"{text}.", is_decided=holds)


def holds_in_most(runs: Proportion) -> bool | None:
    """Return whether something holds in more than half of all seeds, by the whole 95 % CI; None if it is undecided.

    >>> from headcount.stats import Proportion
    >>> holds_in_most(Proportion.of(10, 10)), holds_in_most(Proportion.of(0, 10)), holds_in_most(Proportion.of(3, 3))
    (True, False, None)
    """
    return True if runs.low > HALF else False if runs.high < HALF else None


def k_of_n(runs: Proportion) -> str:
    """Return a number of runs with the 95 % CI of its percentage, as text: `3 of 5 (95 % CI 23.1-92.4)`."""
    return f"{runs.correct} of {runs.n} ({interval(runs.low, runs.high)})"


def value_text(value: float, unit: str) -> str:
    """Return a value with its unit, as text; a value with the unit `share` is written in percent.

    >>> value_text(0.125, "share"), value_text(0.125, "points"), value_text(3.0, "heads"), value_text(0.01234, "nats")
    ('12.5 %', '12.5 points', '3 heads', '0.0123 nats')
    """
    if unit == "share":
        return f"{number(100 * value)} %"
    if unit == "points":
        return f"{number(100 * value)} points"
    return f"{value:,.0f} {unit}".rstrip() if float(value).is_integer() else f"{value:.3g} {unit}".rstrip()


def _of_difference(unit: str) -> str:
    return "points" if unit == "share" else unit


def _interval(low: float | None, high: float | None, unit: str) -> str:
    if low is None or high is None:
        return ""
    scale = 100 if unit in ("share", "points") else 1
    return interval(low, high, scale=scale, digits=1 if scale == 100 else 3).removeprefix("95 % CI ")


def _values(each: VariantSummary) -> str:
    scale = 100 if each.unit in ("share", "points") else 1
    texts = [number(scale * value) if scale == 100 else f"{value:.4g}" for value in each.values]
    return ", ".join(texts[:MOST_VALUES]) + (f", {len(texts) - MOST_VALUES} more" if texts[MOST_VALUES:] else "")


def _in_words(summary: SeedSummary, measure: str) -> str:
    medians = [
        f"{each.variant}: {value_text(each.median, each.unit)}" for each in summary.variants if each.measure == measure
    ]
    return f"Median of {measure}: {some(medians, 12)}."
