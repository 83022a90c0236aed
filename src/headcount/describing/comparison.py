"""How do runs compare? Each variant over its seeds, the differences between variants, and what holds over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Picture, Row, Sentence
from headcount.describing.words import counted, interval, some
from headcount.figures.comparison import draw_comparison
from headcount.limits import SIGNIFICANT
from headcount.stats import number

if TYPE_CHECKING:
    from headcount.stats import Proportion
    from headcount.studies.summary import Concordance, PairedVariants, RankingSummary, SeedSummary, VariantSummary

MOST_VALUES = 10
"""Largest number of single values in a cell of a table; all of them are in the JSON."""
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
    """Describe these measures: what was compared, a table by variant, differences, rankings and figures."""
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
    """Yield what is compared, how many of the planned runs there are, and whether single runs allow a conclusion."""
    runs = counted(summary.n_runs, "run")
    if summary.n_runs < summary.n_planned:
        text = f"{summary.n_runs:,} of {counted(summary.n_planned, 'planned run')} are trained, and these are compared."
        yield Sentence(text, is_decided=False)
    if not summary.by:
        yield Sentence(f"{runs} of {summary.task} differ in their seeds only.")
    else:
        yield Sentence(f"{runs} of {summary.task} are compared by {some(summary.by)}: {some(summary.names)}.")
    if summary.others:
        yield Sentence(f"Runs of one variant also differ in {some(summary.others)}; pairs of runs agree in it.")
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
    columns = ("measure", "of", "variant", "runs", "median", "mean", "95 % CI of the mean", "every value")
    note = "Intervals are over runs (Student's t); those of shares are cut to 0-100 %."
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
    note = "Sign-flip test on runs of the same seed; p-values are Holm-corrected within a measure." + first
    columns = ("measure", "of", "difference", "pairs", "mean", "95 % CI", "higher in", "p (Holm)")
    return DataTable("pairs", "Paired differences", columns, tuple(rows), note, n_keys=3)


def _pairs_sentence(pairs: Sequence[PairedVariants]) -> Sentence:
    """Say how many differences are significant, or why none can be."""
    n = sum(each.p_holm < SIGNIFICANT for each in pairs)
    text = f"{n} of {counted(len(pairs), 'paired difference')} {'is' if n == 1 else 'are'} significant"
    text += " after Holm correction."
    most = max(each.n for each in pairs)
    if n == 0 and 2.0 ** (1 - most) >= SIGNIFICANT:
        text += f" With {counted(most, 'pair')}, the smallest possible p-value is {min(1, 2.0 ** (1 - most)):.3g}."
    return Sentence(text, "pairs", is_decided=n > 0)


def ranking_sentences(ranking: RankingSummary) -> Iterator[Sentence]:
    """Yield what holds over seeds about the ranking of heads, and which blocks and layers come before others."""
    about = f"{ranking.measure}{f' ({ranking.subject})' if ranking.subject else ''}, {ranking.variant}"
    for each in ranking.concordances:
        yield _concordance_sentence(each, about)
    for order in ranking.orders:
        if order.p_holm < SIGNIFICANT:
            yield Sentence(
                f"{about}: {order.first} comes before {order.second} in {k_of_n(order.runs)} runs "
                f"(sign test, p = {order.p_holm:.2g} after Holm correction)."
            )


def _concordance_sentence(each: Concordance, about: str) -> Sentence:
    holds = each.p < SIGNIFICANT
    text = f"{about}: the ranking of {LEVELS[each.level]} {'agrees' if holds else 'is not shown to agree'} over seeds "
    text += f"(Kendall's W = {each.w:.2f}, p = {each.p:.2g}, {counted(each.n_runs, 'run')})"
    if each.leaders:
        text += f"; {each.leaders[0].verdict} is the first in {k_of_n(each.leaders[0].runs)}"
    return Sentence(f"{text}.", is_decided=holds)


def holds_in_most(runs: Proportion) -> bool | None:
    """Return whether something holds in most seeds, by the whole interval of its share; None if that is undecided.

    >>> from headcount.stats import Proportion
    >>> holds_in_most(Proportion.of(10, 10)), holds_in_most(Proportion.of(0, 10)), holds_in_most(Proportion.of(3, 3))
    (True, False, None)
    """
    return True if runs.low > HALF else False if runs.high < HALF else None


def k_of_n(runs: Proportion) -> str:
    """Write a number of runs with the 95 % CI of its share: `3 of 5 (95 % CI 23.1-92.4)`."""
    return f"{runs.correct} of {runs.n} ({interval(runs.low, runs.high)})"


def value_text(value: float, unit: str) -> str:
    """Write a value in its unit.

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
