"""What five reports published, beside ours: the same figures with intervals, and what was wrong with theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Section
from headcount.describing.published import ENCODINGS, LENGTHS, TOGETHER, PublishedAdder, adders, sorters
from headcount.describing.published_words import adder_sentences, costliest, sorter_sentences
from headcount.describing.reaches import HARDEST, is_plain
from headcount.describing.story import Material, Subject
from headcount.describing.verdicts import urgent
from headcount.describing.words import some

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import LengthResult

KINDS = ("shuffle", "transpositions", HARDEST)
"""What the reports had, and what they should have had."""
MOST = 3
"""Heads that are named."""


def section(material: Material) -> Section | None:
    """Adders, and sortedness models that are the exercise's but for their encoding."""
    sums = [each for each in material.of_task("addition") if each.evaluation or each.ablation or each.pruning]
    plain = [each for each in material.of_task("sortedness") if each.stretch and is_plain(each.stretch)]
    plain = [each for each in plain if each.stretch and each.stretch.encoding in ENCODINGS]
    if not sums and not plain:
        return None
    blocks: list[Block] = [
        Paragraph(
            "Five people did this exercise and wrote five reports, which disagree on nearly everything; what was wrong "
            "was found in their own code, data and weights. Heads of different trainings have nothing in common but "
            "their names."
        )
    ]
    if sums:
        found = [each for subject in sums for each in adder_sentences(subject, "published-addition")]
        blocks += [*([Conclusions(tuple(found))] if found else []), _adder_table(sums)]
    if plain:
        found = [each for subject in plain for each in sorter_sentences(subject, "published-sortedness")]
        blocks += [*([Conclusions(tuple(found))] if found else []), _sorter_table(plain)]
    return Section("published", "What five reports published, beside ours", tuple(blocks))


def _adder_table(subjects: Sequence[Subject]) -> DataTable:
    columns = (
        "whose", "written by itself (%)", "fed the right digits (%)", "costliest heads (points)", "prunable alone (%)",
        "left together (%)", "what was wrong",
    )  # fmt: skip
    rows = [*map(_published_row, adders()), *map(_own_row, subjects)]
    note = "Drops are those of one head alone, set to zero. Ours have 95 % intervals."
    return DataTable("published-addition", "Addition: published, and measured here", columns, tuple(rows), note)


def _published_row(said: PublishedAdder) -> tuple[Cell | str, ...]:
    drops = sorted((each for each in said.drops.items() if each[1] > 0), key=lambda each: -each[1])[:MOST]
    shares = " or ".join(f"{100 * share:.1f}" for share in said.prunable) or said.prunable_words
    left = TOGETHER.get(said.report)
    return (
        f"report {said.report}",
        _percent(said.generated),
        _percent(said.teacher_forced),
        Cell(", ".join(f"{head} {100 * drop:.2f}" for head, drop in drops) or "head 2, then head 3 (by index)"),
        Cell(shares, 100 * max(said.prunable) if said.prunable else None),
        Cell("never tried") if left is None else Cell(f"{100 * left:.1f} (found later)", 100 * left),
        said.wrong,
    )


def _percent(share: float | None) -> Cell:
    return Cell("") if share is None else Cell(f"{100 * share:.2f}", 100 * share)


def _own_row(subject: Subject) -> tuple[Cell | str, ...]:
    exact, pruning = getattr(subject.evaluation, "exact", None), subject.pruning
    scores = [getattr(exact, way, None) for way in ("free_running", "teacher_forced")]
    drops = [f"{each.short} {_interval(each.drop, each.low, each.high)}" for each in costliest(subject, MOST)]
    alone, left = Cell(""), Cell("")
    if pruning is not None and pruning.is_accuracy:
        share = 100 * len(pruning.by_zero) / pruning.n_heads
        alone = Cell(f"{share:.1f} ({len(pruning.by_zero)} of {pruning.n_heads})", share)
        point = pruning.by_zero_left
        left = Cell(f"{_interval(point.score, point.low, point.high)} of {100 * pruning.clean:.1f}", 100 * point.score)
    return (
        Cell(f"ours: {subject.title}", None, "strong"),
        *(Cell("") if x is None else Cell(_interval(x.rate, x.low, x.high), 100 * x.rate) for x in scores),
        Cell(", ".join(drops)),
        alone,
        left,
        _fault(subject),
    )


def _fault(subject: Subject) -> str:
    """What the audit, or quick checks, found in ours."""
    if subject.audit is not None:
        checks = [f"{each.id} {each.check.replace('-', ' ')}" for each in urgent(subject.audit)]
        return f"by the audit: {some(checks)}" if checks else "nothing that the audit finds"
    fault = getattr(subject.evaluation, "audit", None)
    return "not audited" if fault is None else fault or "nothing that quick checks find"


def _interval(rate: float, low: float, high: float, digits: int = 2) -> str:
    """`1.65 [1.18, 2.31]`."""
    return f"{100 * rate:.{digits}f} [{100 * low:.{digits}f}, {100 * high:.{digits}f}]"


def _sorter_table(subjects: Sequence[Subject]) -> DataTable:
    """A row for each report and encoding, and for each of ours and two kinds of negatives."""
    rows: list[tuple[Cell | str, ...]] = []
    for said in sorters():
        shares = [Cell(f"{100 * said.right[x].rate:.1f}", 100 * said.right[x].rate) for x in LENGTHS]
        rows.append((f"report {said.report}", said.encoding, said.negative, *shares, said.wrong))
    for subject in subjects:
        result = subject.stretch
        assert result is not None, "asked of models that were stretched"
        for kind in [each for each in KINDS if any(cell.negative == each for cell in result.cells)]:
            cells = {cell.length: cell for cell in result.cells if cell.negative == kind}
            shown = [_field(cells.get(length)) for length in LENGTHS]
            name = Cell(f"ours: {subject.title}", None, "strong")
            rows.append((name, result.encoding, kind, *shown, _fault(subject)))
    columns = ("whose", "encoding", "negatives", *map(str, LENGTHS), "what was wrong")
    note = "Right (%); theirs on 500 sequences of each length, ours with 95 % intervals."
    return DataTable("published-sortedness", "Sortedness: published, and measured here", columns, tuple(rows), note)


def _field(cell: LengthResult | None) -> Cell:
    if cell is None:
        return Cell("not measured", None, "weak")
    if cell.constant:
        return Cell(f"one answer: {cell.constant_class}", 100 * cell.accuracy, "weak")
    return Cell(_interval(cell.accuracy, cell.low, cell.high, 1), 100 * cell.accuracy)


PART = section
