"""What heads of a model without a task stand out for, in sentences and as a table: neighbours, copies, separators."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, DataTable, Picture, Sentence
from headcount.describing.story import Subject
from headcount.describing.words import counted, percent, some, within
from headcount.errors import argument
from headcount.figures.attention import ROLE_WORDS
from headcount.figures.roles import MEANINGS, draw_roles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headcount.analysis.roles import HeadRole, HeadRoles, RoleScore

MOST_ROWS = 200
"""Heads in a table; of larger models, those that have a name."""


def role_sentences(subject: Subject, rests_on: str) -> list[Sentence]:
    """How many heads stand out, what each role's strongest head is, and for what none stands out."""
    result = subject.roles
    assert result is not None, "asked of a model whose heads were measured"
    named, n = [head for head in result.heads if head.named], len(result.heads)
    on = some([f"{counted(each.n_tokens, 'token')} of {each.on}" for each in result.inputs])
    if not named:
        text = f"What the heads of {subject.title} do is undecided: none of {n} stands out from the others on {on}."
        return [Sentence(text, rests_on, is_decided=False)]
    text = f"{len(named)} of {counted(n, 'head')} of {subject.title} stand out for something, on {on}; "
    first = Sentence(f"{text}{n - len(named)} do not.", rests_on)
    roles = {(each.role, each.on): _named(result, each.role, each.on) for head in named for each in head.named}
    return [first, *(_role(*role, found, rests_on) for role, found in roles.items()), *_unnamed(result, rests_on)]


def _named(result: HeadRoles, role: str, on: str) -> list[tuple[HeadRole, RoleScore]]:
    """Heads that stand out for this, the most attention first."""
    found = [(head, each) for head in result.heads if (each := head.find(role, on)) and each.is_named]
    return sorted(found, key=lambda pair: -pair[1].mean)


def _role(role: str, on: str, found: list[tuple[HeadRole, RoleScore]], rests_on: str) -> Sentence:
    """Which heads, what it means, and the most of it with its interval."""
    head, most = found[0]
    meaning = f", {MEANINGS[role]}" if role in MEANINGS else ""
    verb = "stands" if len(found) == 1 else "stand"
    which = "" if len(found) == 1 else f"the most {head.short} with "
    names = some([each.short for each, _ in found], 8)
    text = f"On {on}, {names} {verb} out for {ROLE_WORDS.get(role, role)}{meaning}: {which}{percent(most.mean)} of its "
    text += f"attention ({within(most.low, most.high)}; n = {most.n:,} queries; if it were even, {percent(most.even)})."
    return Sentence(text, rests_on)


def _unnamed(result: HeadRoles, rests_on: str) -> list[Sentence]:
    """Roles that were measured, and that no head stands out for."""
    measured = dict.fromkeys((each.role, each.on) for head in result.heads for each in head.standings)
    told = [
        f"{ROLE_WORDS[role]} on {on}" for role, on in measured if role in ROLE_WORDS and not _named(result, role, on)
    ]
    return [Sentence(f"No head stands out for {some(told, 24)}.", rests_on)] if told else []


def role_blocks(subject: Subject, name: str) -> list[Block]:
    """Maps of all heads by role, and a table with a row for each head."""
    result = subject.roles
    assert result is not None, "asked of a model whose heads were measured"
    command = f"headcount heads {argument(subject.name)} --stats"
    known = [head for head in result.heads if any(each.role in ROLE_WORDS for each in head.standings)]
    kinds = dict.fromkeys(f"{head.stack}-{head.kind}" for head in known)
    alt = f"Framed heads stand out: {some([head.short for head in result.heads if head.named], 40)}."
    maps = []
    for kind in kinds:
        caption = f"Heads of {subject.title} by role: {kind.replace('-', ' ')}-attention"
        maps.append(Picture(f"{name}-{kind}", caption, alt, partial(_map, result, kind), command))
    return [*maps, _table(subject, result, name, command)]


def _map(result: HeadRoles, kind: str) -> Figure:
    return draw_roles(result)[kind]


def _table(subject: Subject, result: HeadRoles, name: str, command: str) -> DataTable:
    measured = dict.fromkeys((each.role, each.on) for head in result.heads for each in head.standings)
    roles = [role for role in measured if role[0] in ROLE_WORDS]
    is_long = len(result.heads) > MOST_ROWS
    heads = [head for head in result.heads if head.named or not is_long]
    columns = ("head", "stands out for", *(f"{ROLE_WORDS[role]}, {on} (%)" for role, on in roles))
    rows: list[tuple[Cell | str, ...]] = []
    for head in heads:
        label = some([f"{ROLE_WORDS[each.role]} on {each.on}" for each in head.named]) if head.named else ""
        rows.append((head.short, label, *(_cell(head.find(*role)) for role in roles)))
    few = f"{len(heads)} of {len(result.heads)} heads, those that stand out. " if is_long else ""
    words = f"{result.words[:1].upper()}{result.words[1:]}."
    note = f"{few}Share of attention with its 95 % interval; bold where a head stands out. {words}"
    return DataTable(name, f"Heads of {subject.title}, one by one", columns, tuple(rows), note, command)


def _cell(each: RoleScore | None) -> Cell:
    if each is None:
        return Cell("")
    text = f"{100 * each.mean:.1f} [{100 * each.low:.1f}, {100 * each.high:.1f}]"
    return Cell(text, each.mean, "strong" if each.is_named else "")
