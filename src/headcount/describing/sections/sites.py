"""Where in the model are the important heads? Compare attention blocks by the mean drop of their heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from headcount.bands import BANDS, CRITICAL, IMPORTANT, limit_text
from headcount.describing.blocks import Block, Cell, DataTable, Picture, Section, Sentence
from headcount.describing.leader import Estimate, leader
from headcount.describing.report import ModelResults, ReportResults, section_by_model
from headcount.describing.sections.ablation import agreement_sentences
from headcount.describing.sections.reproduce import ablate_command
from headcount.describing.words import amount, amount_cell, amount_interval, counted, removed_alone, some
from headcount.figures.ablation import draw_map
from headcount.figures.attention import KINDS
from headcount.heads import HeadId, HeadSite

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation, Effect


@dataclass(frozen=True)
class HeadGroup:
    """The heads of one attention block (or of one kind of attention), with the drop of each when ablated alone."""

    name: str
    effects: tuple[Effect, ...]

    @property
    def estimate(self) -> Estimate:
        """Return the mean drop over the heads, with a lower and an upper bound.

        The bounds are the means of the lower and of the upper ends of the heads' intervals. They are valid even if the
        drops of the heads depend on each other.
        """
        drop, low, high = (fmean(getattr(each, name) for each in self.effects) for name in ("drop", "low", "high"))
        return drop, low, high

    def cell(self, unit: str) -> Cell:
        """Return a table cell with the mean drop and its interval."""
        return amount_cell(*self.estimate, unit)

    def count(self, band: str) -> int:
        """Return how many heads of this group are in a band of importance, such as `critical` or `redundant`."""
        return sum(each.band == band for each in self.effects)


def by_block(result: Ablation, replacement: str) -> list[HeadGroup]:
    """Return the heads grouped by attention block, in the order of the model, with drops under one kind of ablation."""
    return [HeadGroup(f"{site} ({site.short})", _at(result, replacement, [site])) for site in sites_of(result)]


def by_kind(result: Ablation, replacement: str) -> list[HeadGroup]:
    """Return the heads grouped by kind of attention (over all layers), with drops under one kind of ablation."""
    sites: dict[tuple[str, str], list[HeadSite]] = {}
    for site in sites_of(result):
        sites.setdefault((site.stack, site.kind), []).append(site)
    return [HeadGroup(KINDS[kind], _at(result, replacement, group)) for kind, group in sites.items()]


def sites_of(result: Ablation) -> list[HeadSite]:
    """Return the attention blocks whose heads were ablated, in the order of the model."""
    return list(dict.fromkeys(HeadId.parse(each.head).site for each in result.heads))


def _at(result: Ablation, replacement: str, sites: Sequence[HeadSite]) -> tuple[Effect, ...]:
    """Return the drops of all heads of these attention blocks, each ablated alone by this kind of ablation."""
    effects = result.effects(replacement, result.conditions[0].length)
    return tuple(each for each in effects if HeadId.parse(each.head).site in sites)


# --- sentences --------------------------------------------------------------------------------------------------------


def conclusions(result: Ablation, title: str, rests_on: str) -> list[Sentence]:
    """Return sentences on the most important attention block, on critical heads, and on whether ablations agree.

    Critical heads are those that cost over 10 points when ablated alone.
    """
    return [
        _most_important(result, title, f"{rests_on}-table"),
        *_critical(result, f"{rests_on}-table"),
        *_agreement(result, rests_on),
        *_sum(result, rests_on),
    ]


def _cost(result: Ablation, group: HeadGroup) -> str:
    """Return the mean drop of a group of heads as `20.1 points per head (95 % CI 19.0-21.2)`."""
    drop, low, high = group.estimate
    return f"{amount(drop, result.unit)} per head ({amount_interval(low, high, result.unit)})"


def _most_important(result: Ablation, title: str, rests_on: str) -> Sentence:
    """Return a sentence on the attention block whose heads cost most; if intervals overlap, this is undecided."""
    blocks = by_block(result, result.ranked_by)
    ranking = leader(blocks, lambda group: group.estimate, bound=0)
    top, n = ranking.top, min(each.n for group in blocks for each in group.effects)
    verb = "costs" if len(top.effects) == 1 else "cost"
    cost = f"{counted(len(top.effects), 'head')} {verb} {_cost(result, top)} {removed_alone(result.ranked_by)}"
    cost += f", n = {n:,} or more"
    if not ranking.is_shown:
        text = f"It is undecided which attention block of {title} is most important: no mean drop is significantly "
        return Sentence(f"{text}above zero. The largest is in {top.name}: {cost}.", rests_on, is_decided=False)
    if ranking.rivals:
        n_less = len(ranking.others) - len(ranking.rivals)
        less = f"; the heads of the other {counted(n_less, 'block')} cost less" if n_less else ""
        text = f"It is undecided which attention block of {title} is most important: in {top.name}, {cost}, and the "
        names = some([group.name for group in ranking.rivals], 4)
        return Sentence(f"{text}heads of {names} may cost as much{less}.", rests_on, is_decided=False)
    text = f"{top.name} is the most important attention block of {title}: its {cost}. The second is "
    return Sentence(f"{text}{ranking.others[0].name} with {_cost(result, ranking.others[0])}.", rests_on)


def _critical(result: Ablation, rests_on: str) -> list[Sentence]:
    """Return a sentence on the number of critical heads (each costs over 10 points), by kind of attention."""
    kinds = by_kind(result, result.ranked_by)
    if len(kinds) < 2 or not any(each.band for group in kinds for each in group.effects):
        return []
    n_critical, n_undecided = (sum(group.count(band) for group in kinds) for band in ("critical", "undecided"))
    limits = f"{100 * IMPORTANT:g} or {limit_text(CRITICAL)}"
    verb = "is" if n_undecided == 1 else "are"
    undecided = f" {counted(n_undecided, 'head')} {verb} undecided: the 95 % CI of the drop contains {limits}."
    rest = undecided if n_undecided else ""
    how = f"over {limit_text(CRITICAL)} {removed_alone(result.ranked_by)} (the whole 95 % CI)"
    if not n_critical:
        return [Sentence(f"No head costs {how}.{rest}", rests_on, is_decided=not n_undecided)]
    places = some([f"{group.count('critical')} of {len(group.effects)} in {group.name}" for group in kinds])
    verb = "costs" if n_critical == 1 else "cost"
    return [Sentence(f"{counted(n_critical, 'head')} {verb} {how}: {places}.{rest}", rests_on)]


def _agreement(result: Ablation, rests_on: str) -> list[Sentence]:
    """Return a sentence on whether all kinds of ablation find the same costliest attention block."""
    leaders = {
        name: leader(by_block(result, name), lambda each: each.estimate, bound=0) for name in result.replacements
    }
    blocks = {name: ranking.top.name for name, ranking in leaders.items() if ranking.is_shown}
    return [replace(each, rests_on=rests_on) for each in agreement_sentences("block", blocks)]


def _sum(result: Ablation, rests_on: str) -> list[Sentence]:
    """Return a sentence that drops do not add up, if their sum is larger than the score that the model can lose."""
    condition = result.conditions[0]
    total = sum(each.drop for each in result.effects(result.ranked_by, condition.length))
    if result.unit != "points" or total <= condition.clean:
        return []
    text = f"The drops of all heads under {result.ranked_by} ablation add up to {amount(total, 'points')}, but the "
    text += f"model can lose only {amount(condition.clean, 'points')}: drops of single heads do not add up."
    return [Sentence(text, rests_on)]


# --- table ------------------------------------------------------------------------------------------------------------


def block_table(result: Ablation, title: str, name: str, command: str) -> DataTable:
    """Return a table of the mean drop per head, for each attention block and each kind of attention."""
    groupings = [by_block] if len(by_kind(result, result.ranked_by)) == 1 else [by_block, by_kind]
    listings = [[group for make in groupings for group in make(result, each)] for each in result.replacements]
    bands = BANDS if any(each.band for each in result.heads) else ()
    ranked = result.replacements.index(result.ranked_by)
    rows = []
    for groups in zip(*listings, strict=True):
        first = groups[ranked]
        worst = max(first.effects, key=lambda each: each.drop)
        costliest = worst.short if worst.low > 0 else Cell("none", mark="weak")
        counts = [Cell(str(first.count(band)), first.count(band)) for band in bands]
        drops = [group.cell(result.unit) for group in groups]
        rows.append((first.name, Cell(str(len(first.effects)), len(first.effects)), *drops, costliest, *counts))
    by = f" ({result.ranked_by})" if len(result.replacements) > 1 else ""
    drops_of = (f"{each} ({result.unit} per head)" for each in result.replacements)
    columns = ("attention block", "heads", *drops_of, f"costliest{by}", *(f"{each}{by}" for each in bands))
    note = "Each cell has the mean drop over the heads of a block, each ablated alone; the bounds in brackets are the "
    note += "means of the bounds of the heads' 95 % CIs."
    caption = f"Mean drop per head of {title}, by attention block"
    return DataTable(f"{name}-table", caption, columns, tuple(rows), note, command)


# --- the section of a report ------------------------------------------------------------------------------------------

EXPLANATION = (
    "An attention block is one layer of one kind of attention, such as the cross-attention of decoder layer 1. The "
    "cost of a block is the mean drop of its heads, each ablated alone. Drops of single heads do not add up, because "
    "heads can replace each other or depend on each other. So this section shows where the important heads are, and "
    "not what removing a whole block would cost."
)


def section(results: ReportResults) -> Section | None:
    """Return the section that compares attention blocks by their heads' drops; None without such ablations."""
    models = [each for each in results.with_result("ablation") if each.ablation and len(sites_of(each.ablation)) > 1]
    title = "Where in the model are the important heads?"
    return section_by_model(results, "sites", title, EXPLANATION, models, _described)


def _described(model: ModelResults, name: str) -> tuple[list[Sentence], list[Block]]:
    """Return two lists on the attention blocks of one model: sentences, and blocks of the report (figure and table)."""
    result, command = model.ablation, ablate_command(model)
    assert result is not None, "only models with an ablation are described"
    drops = [f"{each.name} {amount(each.estimate[0], result.unit)}" for each in by_block(result, result.ranked_by)]
    caption = f"Drop without each head of {model.title}; a row for each attention block"
    alt = f"Mean drop per head: {some(drops, 12)}."
    return conclusions(result, model.title, name), [
        Picture(name, caption, alt, lambda: draw_map(result, result.conditions[0]), command),
        block_table(result, model.title, name, command),
    ]


PART = section
