"""The section that compares our models with five published reports, and names the fault of each report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headcount.describing.audit import urgent
from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Section
from headcount.describing.extrapolation import HARDEST, is_plain
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.words import some
from headcount.exercise.published import ENCODINGS, LENGTHS, TOGETHER, PublishedAdder, adders, sorters
from headcount.exercise.published_words import adder_sentences, costliest, sorter_sentences

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import LengthResult

KINDS = ("shuffle", "transpositions", HARDEST)
"""Kinds of negatives in the tables: the two of the reports, and the hardest one."""
MOST = 3
"""Number of heads that are named."""


def section(results: ReportResults) -> Section | None:
    """Return the section on adders and on sortedness models with the exercise's settings, or None without any."""
    sums = [each for each in results.of_task("addition") if each.evaluation or each.ablation or each.pruning]
    plain = [each for each in results.of_task("sortedness") if each.stretch and is_plain(each.stretch)]
    plain = [each for each in plain if each.stretch and each.stretch.encoding in ENCODINGS]
    if not sums and not plain:
        return None
    blocks: list[Block] = [
        Paragraph(
            "Five people did this exercise and wrote five reports, which disagree on nearly everything. Their code, "
            "data and weights show what went wrong. Heads of different training runs share only their names."
        )
    ]
    if sums:
        sentences = [each for model in sums for each in adder_sentences(model, "published-addition")]
        blocks += [*([Conclusions(tuple(sentences))] if sentences else []), _adder_table(sums)]
    if plain:
        sentences = [each for model in plain for each in sorter_sentences(model, "published-sortedness")]
        blocks += [*([Conclusions(tuple(sentences))] if sentences else []), _sorter_table(plain)]
    return Section("published", "Comparison with five published reports", tuple(blocks))


def _adder_table(models: Sequence[ModelResults]) -> DataTable:
    columns = (
        "model", "exact match (%)", "teacher-forced (%)", "most important heads (drop in points)",
        "prunable one at a time (%)", "accuracy without all of these (%)", "fault",
    )  # fmt: skip
    rows = [*map(_published_row, adders()), *map(_own_row, models)]
    note = "Each drop is that of one head alone under zero ablation. Our figures have 95 % CIs."
    return DataTable("published-addition", "Addition: published and measured here", columns, tuple(rows), note)


def _published_row(adder: PublishedAdder) -> tuple[Cell | str, ...]:
    drops = sorted((each for each in adder.drops.items() if each[1] > 0), key=lambda each: -each[1])[:MOST]
    shares = " or ".join(f"{100 * share:.1f}" for share in adder.prunable) or adder.prunable_words
    left = TOGETHER.get(adder.report)
    return (
        f"report {adder.report}",
        _percent(adder.generated),
        _percent(adder.teacher_forced),
        Cell(", ".join(f"{head} {100 * drop:.2f}" for head, drop in drops) or "head 2, then head 3 (of all blocks)"),
        Cell(shares, 100 * max(adder.prunable) if adder.prunable else None),
        Cell("not measured") if left is None else Cell(f"{100 * left:.1f} (measured later)", 100 * left),
        adder.wrong,
    )


def _percent(share: float | None) -> Cell:
    return Cell("") if share is None else Cell(f"{100 * share:.2f}", 100 * share)


def _own_row(model: ModelResults) -> tuple[Cell | str, ...]:
    exact, pruning = getattr(model.evaluation, "exact", None), model.pruning
    scores = [getattr(exact, way, None) for way in ("free_running", "teacher_forced")]
    drops = [f"{each.short} {_interval(each.drop, each.low, each.high)}" for each in costliest(model, MOST)]
    alone, left = Cell(""), Cell("")
    if pruning is not None and pruning.is_accuracy:
        share = 100 * len(pruning.by_zero) / pruning.n_heads
        alone = Cell(f"{share:.1f} ({len(pruning.by_zero)} of {pruning.n_heads})", share)
        point = pruning.by_zero_left
        left = Cell(f"{_interval(point.score, point.low, point.high)} of {100 * pruning.clean:.1f}", 100 * point.score)
    return (
        Cell(f"ours: {model.title}", None, "strong"),
        *(Cell("") if x is None else Cell(_interval(x.rate, x.low, x.high), 100 * x.rate) for x in scores),
        Cell(", ".join(drops)),
        alone,
        left,
        _fault(model),
    )


def _fault(model: ModelResults) -> str:
    """Return the faults of our model, by the audit or by quick checks."""
    if model.audit is not None:
        checks = [f"{each.id} {each.check.replace('-', ' ')}" for each in urgent(model.audit)]
        return f"audit: {some(checks)}" if checks else "none found by the audit"
    fault = getattr(model.evaluation, "audit", None)
    return "not audited" if fault is None else fault or "none found by quick checks"


def _interval(rate: float, low: float, high: float, digits: int = 2) -> str:
    """Return a percentage with its interval, such as `1.65 [1.18, 2.31]`."""
    return f"{100 * rate:.{digits}f} [{100 * low:.{digits}f}, {100 * high:.{digits}f}]"


def _sorter_table(models: Sequence[ModelResults]) -> DataTable:
    """Return a table with a row per report and encoding, and a row per model of ours and kind of negatives."""
    rows: list[tuple[Cell | str, ...]] = []
    for published in sorters():
        shares = [Cell(f"{100 * published.right[x].rate:.1f}", 100 * published.right[x].rate) for x in LENGTHS]
        rows.append((f"report {published.report}", published.encoding, published.negative, *shares, published.wrong))
    for model in models:
        result = model.stretch
        assert result is not None, "only models with a stretch are passed here"
        for kind in [each for each in KINDS if any(cell.negative == each for cell in result.cells)]:
            cells = {cell.length: cell for cell in result.cells if cell.negative == kind}
            shown = [_field(cells.get(length)) for length in LENGTHS]
            name = Cell(f"ours: {model.title}", None, "strong")
            rows.append((name, result.encoding, kind, *shown, _fault(model)))
    columns = ("model", "encoding", "negatives", *map(str, LENGTHS), "fault")
    note = "Accuracy in %. The reports used 500 sequences per length; our figures have 95 % CIs."
    return DataTable("published-sortedness", "Sortedness: published and measured here", columns, tuple(rows), note)


def _field(cell: LengthResult | None) -> Cell:
    if cell is None:
        return Cell("not measured", None, "weak")
    if cell.constant:
        return Cell(f"one answer: {cell.constant_class}", 100 * cell.accuracy, "weak")
    return Cell(_interval(cell.accuracy, cell.low, cell.high, 1), 100 * cell.accuracy)


PART = section
