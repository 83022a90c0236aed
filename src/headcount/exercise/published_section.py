"""The report section that compares our models with numbers of five published reports, and names each report's fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headcount.bands import IMPORTANT, limit_text
from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Row, Section, Sentence
from headcount.describing.extrapolation import EXERCISE, HARDEST, accuracy_cell, is_plain, kind_words
from headcount.describing.length_generalisation import LENGTHS, MARKED
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.sections.audit import urgent
from headcount.describing.words import amount, bracketed, counted, interval, interval_cell, once, percent, rate, some
from headcount.exercise.published import TOGETHER, PublishedAdder, adders, overlapping, sorters
from headcount.formatting import fixed
from headcount.heads import HeadId
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.analysis.ablation import Effect
    from headcount.analysis.pruning import Pruning

KINDS = ("shuffle", "transpositions", HARDEST)
"""Kinds of unsorted sequences in the tables: the two kinds that the published reports use, and the hardest kind."""
MOST = 3
"""Number of heads with the largest drops that each row of the table names."""


def section(results: ReportResults) -> Section | None:
    """Return the section that compares adders and sortedness models with published ones; None without such models."""
    sums = [each for each in results.of_task("addition") if each.evaluation or each.ablation or each.pruning]
    plain = [each for each in results.of_task("sortedness") if each.stretch and is_plain(each.stretch)]
    plain = [each for each in plain if each.stretch and each.stretch.encoding in EXERCISE]
    if not sums and not plain:
        return None
    blocks: list[Block] = [
        Paragraph(
            "Five people trained such adders and sorters, and wrote five reports, which disagree on nearly everything. "
            "Their code, "
            "data and weights show what went wrong. Heads with the same name in different training runs have nothing "
            "else in common."
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
    note = "Each drop is that of one head, ablated alone by zero ablation. Our numbers have 95 % CIs."
    return DataTable("published-addition", "Addition: published and measured here", columns, tuple(rows), note)


def _published_row(adder: PublishedAdder) -> Row:
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


def _own_row(model: ModelResults) -> Row:
    exact, pruning = getattr(model.evaluation, "exact", None), model.pruning
    scores = [getattr(exact, way, None) for way in ("free_running", "teacher_forced")]
    drops = [f"{each.short} {bracketed(each.drop, each.low, each.high, digits=2)}" for each in costliest(model, MOST)]
    alone, left = Cell(""), Cell("")
    if pruning is not None and pruning.is_accuracy:
        share = 100 * len(pruning.by_zero) / pruning.n_heads
        alone = Cell(f"{share:.1f} ({len(pruning.by_zero)} of {pruning.n_heads})", share)
        point = pruning.by_zero_left
        score = bracketed(point.score, point.low, point.high, digits=2)
        left = Cell(f"{score} of {fixed(100 * pruning.clean)}", 100 * point.score)
    return (
        Cell(f"ours: {model.title}", None, "strong"),
        *(Cell("") if each is None else interval_cell(each.rate, each.low, each.high, digits=2) for each in scores),
        Cell(", ".join(drops)),
        alone,
        left,
        _fault(model),
    )


def _fault(model: ModelResults) -> str:
    """Return in words the faults that the audit (or quick checks without an audit) found in one of our models."""
    if model.audit is not None:
        checks = [f"{each.id} {each.check.replace('-', ' ')}" for each in urgent(model.audit)]
        return f"audit: {some(checks)}" if checks else "none found by the audit"
    fault = getattr(model.evaluation, "audit", None)
    return "not audited" if fault is None else fault or "none found by quick checks"


def _sorter_table(models: Sequence[ModelResults]) -> DataTable:
    """Return a table of accuracy by length: a row per report and encoding, and rows for each of our models."""
    rows = list[Row]()
    for published in sorters():
        shares = [Cell(fixed(100 * published.right[x].rate), 100 * published.right[x].rate) for x in LENGTHS]
        rows.append((f"report {published.report}", published.encoding, published.negative, *shares, published.wrong))
    for model in models:
        result = model.stretch
        assert result is not None, "only models with a stretch are passed here"
        for kind in [each for each in KINDS if any(cell.negative == each for cell in result.cells)]:
            cells = {cell.length: cell for cell in result.cells if cell.negative == kind}
            shown = [accuracy_cell(cells.get(length)) for length in LENGTHS]
            name = Cell(f"ours: {model.title}", None, "strong")
            rows.append((name, result.encoding, kind, *shown, _fault(model)))
    columns = ("model", "encoding", "unsorted sequences", *map(str, LENGTHS), "fault")
    note = f"Accuracy in %, by length. The reports used 500 sequences per length; our numbers have 95 % CIs. {MARKED}"
    return DataTable("published-sortedness", "Sortedness: published and measured here", columns, tuple(rows), note)


# --- sentences --------------------------------------------------------------------------------------------------------

BY = "zero"
"""The kind of ablation that the published reports use."""


def adder_sentences(model: ModelResults, rests_on: str) -> list[Sentence]:
    """Return sentences that compare an adder with the published ones: accuracy, most important head, prunable heads."""
    exact = getattr(model.evaluation, "exact", None)
    sentences = []
    if exact is not None and exact.free_running is not None:
        sentences.append(_accuracy(model, exact.free_running, rests_on))
    if top := costliest(model, 2):
        sentences.append(_head(model, top, rests_on))
    if model.pruning is not None and model.pruning.is_accuracy and model.pruning.by_zero:
        sentences.append(_pruning(model, model.pruning, rests_on))
    return sentences


def costliest(model: ModelResults, most: int) -> list[Effect]:
    """Return the `most` heads with the largest drops under zero ablation; none if drops are not in points."""
    result = model.ablation
    if result is None or result.unit != "points":
        return []
    effects = result.effects(BY, result.conditions[0].length)
    return sorted(effects, key=lambda effect: -effect.drop)[:most]


def _accuracy(model: ModelResults, ours: Proportion, rests_on: str) -> Sentence:
    """Return a sentence that compares the exact match of our model with that of the published reports."""
    theirs = {each.report: each.generated for each in adders() if each.generated is not None}
    shares = some([f"{percent(share)} ({name})" for name, share in theirs.items()])
    text = f"Free-running, {model.title} ({once(model.settings)}) is right on {rate(ours)}. The reports that measured "
    text += f"this accuracy have {shares}: ours is "
    within = [name for name, share in theirs.items() if ours.low <= share <= ours.high]
    if within:
        return Sentence(f"{text}the same as that of report {some(within)}, by its 95 % CI.", rests_on)
    above = [name for name, share in theirs.items() if ours.low > share]
    if len(above) == len(theirs):
        return Sentence(f"{text}above both.", rests_on)
    return Sentence(f"{text}{f'above that of report {some(above)} only' if above else 'below both'}.", rests_on)


def _head(model: ModelResults, top: list[Effect], rests_on: str) -> Sentence:
    """Return a sentence that compares our model's most important head with those that the published reports name."""
    first, theirs = top[0], {each.report: each.costliest for each in adders() if each.costliest}
    reports = {head: [name for name, each in theirs.items() if each == head] for head in theirs.values() if head}
    named = some([f"{head} ({some(names)})" for head, names in reports.items()])
    cost = f"{amount(first.drop, 'points')} ({interval(first.low, first.high)}; n = {first.n:,})"
    if (len(top) > 1 and top[1].rank_low == 1) or first.low <= 0:
        text = f"It is undecided which head of {model.title} is most important: {first.short} has the largest drop, "
        text += f"{cost}, but others may cost as much. The reports name {named}."
        return Sentence(text, rests_on, is_decided=False)
    own = HeadId.parse(first.head).site
    sites = {name: HeadId.parse(head).site for name, head in theirs.items() if head}
    kind = [name for name, site in sites.items() if (site.stack, site.kind) == (own.stack, own.kind)]
    layer = [name for name, site in sites.items() if site.layer == own.layer]
    text = f"Removing {first.short} costs most in {model.title} ({once(model.settings)}): {cost}. The reports "
    n = len(sites)
    where = f"{len(kind) or 'none'} of {n} have the same kind of attention, {len(layer) or 'none'} the same layer"
    return Sentence(f"{text}name {named}: {where}.", rests_on)


def _pruning(model: ModelResults, ours: Pruning, rests_on: str) -> Sentence:
    """Return a sentence on the accuracy without all heads of our model that cost almost nothing when removed alone."""
    shares = [share for each in adders() for share in each.prunable]
    n, left, lost = len(ours.by_zero), ours.by_zero_left, ours.by_zero_left.drop
    text = f"The reports call {percent(min(shares))} to {percent(max(shares))} of heads prunable, because each costs "
    text += "little when removed alone. By this criterion, "
    text += f"{n} of {counted(ours.n_heads, 'head')} ({percent(n / ours.n_heads)}) of {model.title} are prunable. "
    left_over = f"{percent(left.score)} ({interval(left.low, left.high)}; n = {ours.n:,})"
    text += f"Removed together they leave {left_over} of {percent(ours.clean)}: "
    if lost is not None and lost.high < IMPORTANT:
        return Sentence(f"{text}here, they can be removed together ({once(model.settings)}).", rests_on)
    if lost is None or lost.low <= IMPORTANT:
        text += f"it is undecided whether this costs under {limit_text(IMPORTANT)}"
        return Sentence(f"{text} ({once(model.settings)}).", rests_on, is_decided=False)
    others = some([f"those of report {name} leave {percent(share)}" for name, share in TOGETHER.items()])
    return Sentence(f"{text}these {n} cannot be removed together ({once(model.settings)}; {others}).", rests_on)


def sorter_sentences(model: ModelResults, rests_on: str) -> list[Sentence]:
    """Return a sentence that compares our model's accuracy at the longest common length with the published ones."""
    result = model.stretch
    assert result is not None, "only models with a stretch are passed here"
    cells = [cell for cell in result.cells if cell.negative == "shuffle" and cell.length in LENGTHS]
    cells = cells or [cell for cell in result.cells if cell.negative == "transpositions" and cell.length in LENGTHS]
    if not cells:
        return []
    cell = max(cells, key=lambda each: each.length)
    ours = Proportion.of(round(cell.accuracy * cell.n), cell.n)
    theirs = [(each.report, each.right[cell.length]) for each in sorters() if each.encoding == result.encoding]
    same, others = overlapping(ours, theirs)
    known = "" if result.encoding in model.title else f"{result.encoding}, "
    who = f"{model.title} ({known}{once(model.settings)})"
    text = f"On {kind_words(cell.negative)} of length {cell.length}, {who} is right on {rate(ours)}"
    text += f", answering “{cell.constant_class}” to everything" if cell.constant else ""
    agrees = f"the interval overlaps that of report {some(same)}" if same else "no report's interval overlaps ours"
    shares = dict(theirs)
    apart = some([f"{name} ({percent(shares[name].rate)})" for name in others])
    against = f", not that of {apart}" if others and same else ""
    return [Sentence(f"{text}; {agrees}{against}.", rests_on)]


PART = section
