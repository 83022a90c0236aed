"""Which tokens does each head attend to on one text? A table with a row per head, and the heads that stand out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.attention_roles import ROLES
from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Row, Sentence
from headcount.describing.sections.roles import percentage, rank
from headcount.describing.words import counted, interval, percent

if TYPE_CHECKING:
    from headcount.analysis.attention import HeadAttention, SiteAttention
    from headcount.analysis.attention_summary import AttentionSummary
    from headcount.analysis.roles import RoleScore

MIN_QUERIES = 5
"""Smallest number of queries (tokens that attend) over which the table shows a mean attention weight."""
NOTE = (
    "A star marks an attention weight by which the head stands out. n is the number of queries that can attend to the "
    "target and to at least one other key. A dash means that there are fewer than 5 such queries, or that the measure "
    "does not exist because queries and keys come from different texts. Entropy share: 0 % is all attention on one "
    "key, 100 % is uniform attention over the keys that a query sees."
)
CRITERION = (
    "A head stands out if the lower bound of the 95 % CI of its attention weight is more than 0.25 above uniform "
    "attention, and more than 3.5 robust standard deviations above the median of all heads. With --stats, heads are "
    "also compared with heads of models that learned nothing."
)


def describe(result: AttentionSummary) -> list[Block]:
    """Return a table of all heads on one text, sentences on heads that stand out, and notes that explain the table."""
    notes = [Paragraph(note) for note in (NOTE, CRITERION, result.note) if note]
    return [summary_table(result), Conclusions(tuple(conclusions(result))), *notes]


def summary_table(result: AttentionSummary) -> DataTable:
    """Return a table with a row per head: attention to each target in percent, entropy and mean distance."""
    heads = [(site, head) for site in result.sites for head in site.heads]
    roles = [role for role in ROLES if any(_measure(site, head, role) is not None for site, head in heads)]
    names = [f"{ROLES[role].name}{_sizes(result, role)}" for role in roles]
    columns = ("head", *names, f"entropy share{_sizes(result, 'entropy_share')}", "distance (tokens)")
    rows = list[Row]()
    for site, head in heads:
        named = {standing.role for standing in head.named}
        weights = [_percentage(_measure(site, head, role), is_strong=role in named) for role in roles]
        distance = _measure(site, head, "distance")
        reach = Cell("–") if distance is None else Cell(f"{distance:.1f}", distance)
        rows.append((head.short, *weights, _percentage(_measure(site, head, "entropy_share")), reach))
    caption = f"{result.name}: attention in % ({counted(result.n_tokens, 'token')}: {result.title})"
    return DataTable("attention", caption, columns, tuple(rows))


def conclusions(result: AttentionSummary) -> list[Sentence]:
    """Return sentences that name the heads that attend unusually much to a kind of token, with weight, CI and rank."""
    sentences = list[Sentence]()
    for stack, kind in dict.fromkeys((site.stack, site.kind) for site in result.sites):
        heads = [head for site in result.sites_of(stack, kind) for head in site.heads]
        for role in ROLES:
            named = [(head.short, standing) for head in heads for standing in head.named if standing.role == role]
            named.sort(key=lambda pair: pair[1].rank)
            parts = [f"{short} {_weight(standing, len(heads))}" for short, standing in named]
            text = f"Heads that stand out for attention to {ROLES[role].keys}: {', '.join(parts)}."
            sentences += [Sentence(text, "attention")] if named else []
    return sentences or [Sentence("No head stands out against the others on this text.", "attention")]


def _weight(standing: RoleScore, n_heads: int) -> str:
    doubt = f"{interval(standing.low, standing.high)}; n = {standing.n:,}; {rank(standing, n_heads)}"
    return f"{percent(standing.mean)} ({doubt})"


def _measure(site: SiteAttention, head: HeadAttention, measure: str) -> float | None:
    """Return a measure of a head, such as its attention to the previous token; None for fewer than `MIN_QUERIES`."""
    value: float | None = getattr(head, measure)
    return None if site.n_queries.get(measure, MIN_QUERIES) < MIN_QUERIES else value


def _sizes(result: AttentionSummary, measure: str) -> str:
    """Return the number of queries that a measure is averaged over, as `, n = 12` or a range over attention blocks."""
    sizes = sorted(n for site in result.sites if (n := site.n_queries.get(measure, 0)) >= MIN_QUERIES)
    return f", n = {' to '.join(f'{n:,}' for n in dict.fromkeys((sizes[0], sizes[-1])))}" if sizes else ""


def _percentage(share: float | None, *, is_strong: bool = False) -> Cell:
    return Cell("–") if share is None else percentage(share, "strong" if is_strong else "")
