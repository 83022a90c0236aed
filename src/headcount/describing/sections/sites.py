"""Where in the model are the heads that count? Drops of single heads, by site, by layer and by kind of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headcount.bands import BANDS
from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Picture, Section, Sentence
from headcount.describing.commands import ablate_command
from headcount.describing.parts import Part, by_kind, by_site, sites_of
from headcount.describing.story import Material, Subject
from headcount.describing.words import ONE_SEED, amount, briefly, counted, interval, removed_alone, some
from headcount.figures.ablation import draw_map, drop_texts

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation


def section(material: Material) -> Section | None:
    """Every model whose heads were ablated and that has more than one site."""
    subjects = [each for each in material.with_("ablation") if len(sites_of(each.ablation)) > 1]  # type: ignore[arg-type]
    if not subjects:
        return None
    blocks: list[Block] = [
        Paragraph(
            "A site is one layer of one kind of attention. What its heads cost is told as a mean over them, each "
            "ablated alone. Drops of single heads do not add up: heads may stand in for each other, or be lost "
            "together with what they feed, so this says where heads count and not what a whole site is worth."
        )
    ]
    answers = []
    for subject in subjects:
        name = material.block_id("sites", subject)
        found = conclusions(subject, name)
        answers.append(Sentence(briefly(found[0].text, subject.settings), found[0].rests_on, found[0].is_decided))
        blocks += [Conclusions(tuple(found)), *_shown(subject, name)]
    return Section("sites", "Where in the model are the heads that count?", tuple(blocks), answers[0])


# --- in words ---------------------------------------------------------------------------------------------------------


def conclusions(subject: Subject, rests_on: str) -> list[Sentence]:
    """Which site loses most, by every replacement; where the critical heads are; and that drops do not add up."""
    result = subject.ablation
    assert result is not None, "asked of a model whose heads were ablated"
    found: list[Sentence | None] = [
        _most(subject.title, result, by_site(result, result.ranked_by), f"{rests_on}-table")
    ]
    kinds = by_kind(result, result.ranked_by)
    if len(kinds) > 1:
        found.append(_critical(kinds, result, f"{rests_on}-table"))
    if len(result.replacements) > 1:
        found.append(_agreement(result, rests_on))
    return [each for each in (*found, _sum(result, rests_on)) if each]


def _told(result: Ablation, part: Part) -> str:
    """`20.1 points each (95 % interval 19.0 to 21.2)`."""
    scale, digits = (100, 1) if result.unit == "points" else (1, 4)
    return f"{amount(part.drop, result.unit)} each ({interval(part.low, part.high, scale, digits)})"


def _most(title: str, result: Ablation, parts: Sequence[Part], rests_on: str) -> Sentence:
    """The site whose heads cost most, if its interval lies above all others."""
    top, *others = sorted(parts, key=lambda each: -each.drop)
    n = min(each.n for part in parts for each in part.effects)
    verb = "costs" if len(top.effects) == 1 else "cost"
    cost = f"{counted(len(top.effects), 'head')} {verb} {_told(result, top)} {removed_alone(result.ranked_by)}"
    cost += f", n = {n:,} or more"
    rivals = [each.name for each in others if each.high >= top.low]
    if top.low <= 0:
        text = f"Which site of {title} counts most is undecided, for none is shown to lose anything; at the first, "
        return Sentence(f"{text}{top.name}, {cost}. {ONE_SEED}", rests_on, is_decided=False)
    if rivals:
        less = "" if len(rivals) == len(others) else f", while the other {len(others) - len(rivals)} cost less"
        text = (
            f"Which site of {title} counts most is undecided: at {top.name}, {cost}, and by their intervals those of "
        )
        return Sentence(f"{text}{some(rivals, 4)} may cost as much{less}. {ONE_SEED}", rests_on, is_decided=False)
    text = f"In {title} {top.name} counts most: its {cost}, against {_told(result, others[0])} at "
    return Sentence(f"{text}{others[0].name}, the next. {ONE_SEED}", rests_on)


def _critical(kinds: Sequence[Part], result: Ablation, rests_on: str) -> Sentence | None:
    """Where the heads are that cost over 10 points, by kind of attention."""
    if not any(each.band for part in kinds for each in part.effects):
        return None
    total, unsure = (sum(part.count(band) for part in kinds) for band in ("critical", "undecided"))
    how = f"over 10 points {removed_alone(result.ranked_by)}, by the whole interval"
    rest = f"; of {counted(unsure, 'head')} anywhere it is undecided what they cost" if unsure else ""
    if not total:
        return Sentence(f"No head at any site costs {how}{rest}.", rests_on, is_decided=not unsure)
    places = [f"{part.count('critical') or 'none'} of {len(part.effects)} in {part.name}" for part in kinds]
    return Sentence(
        f"{counted(total, 'head')} {'costs' if total == 1 else 'cost'} {how}: {some(places)}{rest}.", rests_on
    )


def _agreement(result: Ablation, rests_on: str) -> Sentence | None:
    """Whether the costliest site is the same whatever replaces its heads, of replacements by which one loses."""
    parts = {each: max(by_site(result, each), key=lambda part: part.drop) for each in result.replacements}
    tops = {each: part.name for each, part in parts.items() if part.low > 0}
    if len(tops) < 2:
        return None
    if len(set(tops.values())) == 1:
        return Sentence(f"{next(iter(tops.values()))} loses most by {some(list(tops))} alike.", rests_on)
    told = some([f"{name} by {replacement}" for replacement, name in tops.items()])
    return Sentence(f"Which site loses most depends on the replacement: {told}.", rests_on, is_decided=False)


def _sum(result: Ablation, rests_on: str) -> Sentence | None:
    """That drops are more than there is to lose, where they are."""
    clean, first = result.conditions[0].clean, result.ranked_by
    added = sum(each.drop for part in by_site(result, first) for each in part.effects)
    if result.unit != "points" or added <= clean:
        return None
    both = f"{amount(added, 'points')}, and only {amount(clean, 'points')} are there to lose"
    text = f"Added up, the drops of all heads by {first} make {both}"
    return Sentence(f"{text}: what goes together is not the sum of what goes alone.", rests_on)


# --- shown ------------------------------------------------------------------------------------------------------------


def _shown(subject: Subject, name: str) -> list[Block]:
    """The map of all heads, and a table by site and by kind of attention."""
    result = subject.ablation
    assert result is not None, "asked of a model whose heads were ablated"
    condition, command = result.conditions[0], ablate_command(subject)
    parts = by_site(result, result.ranked_by)
    alt = "Mean drop of a head: " + some([f"{each.name} {amount(each.drop, result.unit)}" for each in parts], 12) + "."
    caption = f"What each head of {subject.title} is worth, by its place: sites down, heads across"
    return [Picture(name, caption, alt, lambda: draw_map(result, condition), command), _table(subject, result, name)]


def _table(subject: Subject, result: Ablation, name: str) -> DataTable:
    """A row for each site and, where there are several, for each kind of attention."""
    command, unit = ablate_command(subject), result.unit
    listings = [[*by_site(result, each), *_several(by_kind(result, each))] for each in result.replacements]
    bands = BANDS if any(each.band for each in result.heads) else ()
    rows: list[tuple[Cell | str, ...]] = []
    for parts in zip(*listings, strict=True):
        first = parts[0]
        worst = max(first.effects, key=lambda each: each.drop)
        counts = [Cell(str(first.count(band)), first.count(band)) for band in bands]
        cells = [_mean(result, part) for part in parts]
        top = worst.short if worst.low > 0 else Cell("none", mark="weak")
        rows.append((first.name, Cell(str(len(first.effects)), len(first.effects)), *cells, top, *counts))
    first_way = f" ({result.ranked_by})" if len(result.replacements) > 1 else ""
    columns = ("place", "heads", *(f"{each} ({unit} a head)" for each in result.replacements), f"costliest{first_way}")
    note = "Mean drop over heads that were ablated alone; in brackets the means of their own 95 % bounds, which hold "
    note += "however the heads go together."
    caption = f"What heads of {subject.title} are worth alone, by place"
    return DataTable(
        f"{name}-table", caption, (*columns, *(f"{each}{first_way}" for each in bands)), tuple(rows), note, command
    )


def _several(parts: list[Part]) -> list[Part]:
    return parts if len(parts) > 1 else []


def _mean(result: Ablation, part: Part) -> Cell:
    """`16.60 [14.99, 18.30]`."""
    drop, low, high = drop_texts(result.unit, part.drop, part.low, part.high)
    return Cell(f"{drop} [{low}, {high}]", part.drop)


PART = section
