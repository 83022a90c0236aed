"""What does each head attend to? For a model without a task: to neighbours, copies of a token, or separators.

The heads of a model with a task are described in the terms of the task (`describing/specialisation.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Literal

from headcount.attention_roles import ROLES
from headcount.describing import specialisation
from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Picture, Row, Section, Sentence
from headcount.describing.report import ModelResults, ReportResults, section_by_model
from headcount.describing.words import counted, interval, interval_cell, percent, sentence, some
from headcount.errors import argument
from headcount.figures.attention import KINDS, heads_by_kind
from headcount.figures.roles import draw_role_maps, roles_of

if TYPE_CHECKING:
    from headcount.analysis.roles import HeadRole, HeadRoles, RoleScore

MEANINGS = (
    "Duplicate token: another copy of the query's token. Induction: the token after an earlier copy of the query's "
    "token. Matching token: a copy of the query's token on the other side of a separator."
)
MOST_ROWS = 200
"""Largest number of heads in the table of all heads; for a larger model, it has only heads that stand out in a role."""
RoleScores = list[tuple["HeadRole", "RoleScore"]]
"""Heads of one kind of attention, each with its mean attention weight in one role, such as previous token."""


def describe(result: HeadRoles) -> list[Block]:
    """Return report blocks on what heads attend to in texts: maps and tables by role, such as previous token."""
    tables = [named_table(result, result.name, "roles"), unnamed_table(result, result.name, "roles")]
    return [
        Conclusions(tuple(conclusions(result, result.name, ""))),
        *maps(result, result.name, "roles"),
        *filter(None, tables),
        Paragraph(MEANINGS),
        Paragraph(sentence(result.words)),
        *(Paragraph(f"{each.on}: {each.note}") for each in result.inputs if each.note),
    ]


def conclusions(result: HeadRoles, title: str, rests_on: str) -> list[Sentence]:
    """Return sentences on which heads stand out in a role, such as previous token, and on roles in which none does."""
    named, n = [head for head in result.heads if head.named], len(result.heads)
    if not named:
        text = f"It is undecided what the heads of {title} do: on {_inputs(result)}, none of {n} heads stands out."
        return [Sentence(text, rests_on, is_decided=False), *_without_heads(result, rests_on)]
    text = f"{len(named)} of {counted(n, 'head')} of {title} stand out in at least one role, on {_inputs(result)}; "
    first = Sentence(f"{text}{n - len(named)} do not.", rests_on)
    roles = {(each.role, each.on): _named(result.heads, each.role, each.on) for head in named for each in head.named}
    sentences = [_role_sentence(*role, standings, rests_on) for role, standings in roles.items()]
    return [first, *sentences, *_without_heads(result, rests_on)]


def _inputs(result: HeadRoles) -> str:
    return some([f"{counted(each.n_tokens, 'token')} of {each.on}" for each in result.inputs])


def _measured(heads: Sequence[HeadRole], role: str, on: str) -> RoleScores:
    """Return pairs of a head and its attention weight in one role (such as previous token), the largest first."""
    standings = [(head, standing) for head in heads if (standing := head.find(role, on))]
    return sorted(standings, key=lambda pair: -pair[1].mean)


def _named(heads: Sequence[HeadRole], role: str, on: str) -> RoleScores:
    """Return pairs of a head and its attention weight, for heads that stand out in one role, the largest first."""
    return [(head, standing) for head, standing in _measured(heads, role, on) if standing.is_named]


def _role_sentence(role: str, on: str, standings: RoleScores, rests_on: str) -> Sentence:
    """Return a sentence that names the heads which stand out in one role, such as previous token, with a weight."""
    head, most = standings[0]
    names = some([each.short for each, _ in standings], 8)
    verb = "stands" if len(standings) == 1 else "stand"
    which = "" if len(standings) == 1 else f"{head.short} most, "
    doubt = (
        f"{interval(most.low, most.high)}; n = {most.n:,} queries; uniform attention would give {percent(most.even)}"
    )
    text = f"On {on}, {names} {verb} out for attention to {ROLES[role].keys}: "
    return Sentence(f"{text}{which}with {percent(most.mean)} of its attention ({doubt}).", rests_on)


def _without_heads(result: HeadRoles, rests_on: str) -> list[Sentence]:
    """Return sentences that name, for each kind of input, roles (previous token, ...) in which no head stands out."""
    sentences = []
    for each in result.inputs:
        measured = dict.fromkeys(
            role for heads in heads_by_kind(result.heads).values() for role, on in roles_of(heads) if on == each.on
        )
        roles = [ROLES[role].name for role in measured if not _named(result.heads, role, each.on)]
        text = f"On {each.on}, no head stands out for {some(roles, len(roles))}."
        sentences += [Sentence(text, rests_on)] if roles else []
    return sentences


def maps(result: HeadRoles, title: str, name: str, command: str = "") -> list[Block]:
    """Return one figure per kind of attention, with a map of all heads for each role (previous token, copies, ...)."""
    alt = f"Framed heads stand out: {some([head.short for head in result.heads if head.named], 40)}."
    pictures = list[Block]()
    for heads in filter(roles_of, heads_by_kind(result.heads).values()):
        kind = f"{heads[0].stack}-{heads[0].kind}"
        caption = f"Heads of {title} by role: {KINDS[heads[0].stack, heads[0].kind]}"
        pictures.append(Picture(f"{name}-{kind}", caption, alt, partial(draw_role_maps, result, heads), command))
    return pictures


def named_table(result: HeadRoles, title: str, name: str, command: str = "") -> DataTable | None:
    """Return a table of the heads that stand out in a role, such as previous token; None if no head stands out."""
    rows = list[Row]()
    for heads in heads_by_kind(result.heads).values():
        for role, on in roles_of(heads):
            middle = median(standing.mean for _, standing in _measured(heads, role, on))
            for head, standing in _named(heads, role, on):
                top = "" if standing.n_top is None else f"{percent(standing.n_top / standing.n)} of {standing.n:,}"
                row = head.short, f"{ROLES[role].name} on {on}", rank(standing, len(heads)), weight(standing)
                rows.append((*row, percentage(standing.even), percentage(middle), top))
    if not rows:
        return None
    numbers = ("rank", "weight [95 % CI] (%)", "if uniform (%)", "median head (%)", "queries with largest weight there")
    caption = f"Heads of {title} that stand out ({_inputs(result)})"
    note = (
        "If uniform: the weight that uniform attention would give. The last column has the percentage of queries that "
        "give their largest weight to such a key."
    )
    return DataTable(
        f"{name}-named", caption, ("head", "stands out for", *numbers), tuple(rows), note, command, n_keys=2
    )


def unnamed_table(result: HeadRoles, title: str, name: str, command: str = "") -> DataTable | None:
    """Return a table of roles (previous token, ...) in which no head stands out, with the head of largest weight."""
    rows = list[Row]()
    for heads in heads_by_kind(result.heads).values():
        for role, on in roles_of(heads):
            (head, most), *_ = standings = _measured(heads, role, on)
            if not any(standing.is_named for _, standing in standings):
                z = Cell(f"{most.z:.1f}", most.z)
                rows.append((f"{ROLES[role].name} on {on}", KINDS[head.stack, head.kind], head.short, weight(most), z))
    columns = ("role", "attention", "largest weight: head", "weight [95 % CI] (%)", "z")
    note = "z: how many robust standard deviations the lower bound of the weight lies above the median head."
    caption = f"Roles that no head of {title} stands out for"
    return DataTable(f"{name}-unnamed", caption, columns, tuple(rows), note, command, is_folded=True) if rows else None


def heads_table(result: HeadRoles, title: str, name: str, command: str = "") -> DataTable:
    """Return a table of every head with its attention weight in every role, such as previous token.

    For a large model, the table has only the heads that stand out in some role.
    """
    measured = dict.fromkeys((each.role, each.on) for head in result.heads for each in head.standings)
    roles = [role for role in measured if role[0] in ROLES]
    is_long = len(result.heads) > MOST_ROWS
    heads = [head for head in result.heads if head.named or not is_long]
    columns = ("head", "stands out for", *(f"{ROLES[role].name}, {on} (%)" for role, on in roles))
    rows = list[Row]()
    for head in heads:
        label = some([f"{ROLES[each.role].name} on {each.on}" for each in head.named]) if head.named else ""
        standings = [head.find(*role) for role in roles]
        rows.append((head.short, label, *(weight(each) if each else Cell("") for each in standings)))
    few = f"The table lists only the {len(heads)} of {len(result.heads)} heads that stand out. " if is_long else ""
    note = f"{few}Attention weight with its 95 % CI; bold where a head stands out. {sentence(result.words)}"
    return DataTable(name, f"All heads of {title}", columns, tuple(rows), note, command, is_folded=True)


def weight(standing: RoleScore) -> Cell:
    """Return a table cell with an attention weight and its 95 % CI in percent: `99.2 [98.8, 99.6]`."""
    mark: Literal["", "strong"] = "strong" if standing.is_named else ""
    return interval_cell(standing.mean, standing.low, standing.high, mark=mark)


def rank(standing: RoleScore, n_heads: int) -> str:
    """Return the rank of a head as text: `1st of 72`, or `1st of 72 [1, 3]` if intervals allow ranks 1 to 3."""
    place, low, high = standing.rank, standing.rank_low, standing.rank_high
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending} of {n_heads}" + ("" if low == high else f" [{low}, {high}]")


def percentage(share: float, mark: Literal["", "strong"] = "") -> Cell:
    """Return a table cell with a share of attention in percent, with one decimal."""
    return Cell(f"{100 * share:.1f}", share, mark)


# --- the section of a report ------------------------------------------------------------------------------------------

EXPLANATION = (
    "A label says what a head attends to, on average over many examples. It does not say that the model uses what the "
    "head reads: only ablation shows that. A head without a label may do something for which there is no label."
)


def section(results: ReportResults) -> Section | None:
    """Return the section on what heads attend to, in the terms of a task or of any text; None if not measured."""
    models = [*results.with_result("stats"), *(each for each in results.with_result("roles") if not each.stats)]
    return section_by_model(results, "roles", "What does each head attend to?", EXPLANATION, models, _describe)


def _describe(model: ModelResults, name: str) -> tuple[list[Sentence], list[Block]]:
    """Return two lists on what the heads of one model attend to: sentences, and blocks (figures and tables)."""
    title, command = model.title, f"headcount heads {argument(model.name)} --stats"
    if model.stats is not None:
        picture = specialisation.stats_picture(model.stats, title, name, command)
        table = specialisation.stats_table(model.stats, title, name, command)
        return specialisation.conclusions(model.stats, title, name), [picture, table]
    assert model.roles is not None, "the heads were measured"
    tables = (make(model.roles, title, name, command) for make in (named_table, unnamed_table, heads_table))
    blocks = [*maps(model.roles, title, name, command), *filter(None, tables)]
    return conclusions(model.roles, title, name), blocks


PART = section
