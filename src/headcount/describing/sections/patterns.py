"""Where does each head attend? The section with the attention patterns of every head on the stored examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from headcount.describing.blocks import Block, HeadPatterns, Paragraph, Picture, Section
from headcount.describing.patterns import book_of
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.sections.reproduce import on_flag
from headcount.describing.words import amount, counted, short, some, stand_ins
from headcount.errors import argument
from headcount.figures.attention import draw_kind


def section(results: ReportResults) -> Section | None:
    """Return the section with the attention patterns of every model; None if none has any."""
    models = results.with_result("patterns")
    if not models:
        return None
    blocks: list[Block] = [
        Paragraph(
            "Each square is one head. Rows are queries, columns are keys: the darker a cell, the more of the query's "
            "attention goes to that key. Choose an example, then a head, to read its weights. Below each head is the "
            "drop in score when this head is ablated, if that was measured, because a pattern alone does not show that "
            f"a head matters.{_replaced(models)}{_not_live(models)}"
        )
    ]
    for model in models:
        blocks += [Paragraph(f"The heads of {model.title}:")] if len(models) > 1 else []
        blocks.append(_book(results, model))
    return Section("patterns", "Where does each head attend?", tuple(blocks))


def _not_live(models: Sequence[ModelResults]) -> str:
    """Return sentences on which models the HTML page cannot run, and why; empty if it can run all of them."""
    reasons = dict.fromkeys(each.why_not_live for each in models if each.why_not_live)
    titles = {why: some([each.title for each in models if each.why_not_live == why]) for why in reasons}
    return "".join(f" The page cannot run {titles[why]}: {why}." for why in reasons)


def _replaced(models: Sequence[ModelResults]) -> str:
    """Return sentences on the kind of ablation behind the drops of these models; empty if no head was ablated."""
    names = dict.fromkeys(each.ablation.ranked_by for each in models if each.ablation is not None)
    return f" {stand_ins(list(names))} The section on ablation has the other kinds of ablation." if names else ""


def _book(results: ReportResults, model: ModelResults) -> HeadPatterns:
    # Where the page runs the model, readers type any example there; here are the average and the named ones.
    shown_here = model.patterns[: 1 + len(model.texts)] if model.live else model.patterns
    book, name = model.book or book_of(shown_here), results.block_id("patterns", model)
    assert book is not None, "the model has patterns"
    first = model.patterns[0]
    kinds = list(dict.fromkeys((site.stack, site.kind) for site in first.sites))
    alt = f"{counted(book.n_heads, 'heat map')} of attention weights, one for each head."
    page = f"Heads of {model.title}: {first.title}"
    picture = Picture(f"{name}-page", page, alt, partial(draw_kind, first, *kinds[0]))
    pages = f", on {len(book.pages)} pages (examples, or an average) to choose from" if len(book.pages) > 1 else ""
    caption = f"All {counted(book.n_heads, 'head')} of {model.title}{pages}"
    is_average = model.task is not None and first.example is None
    shown = ["--all-test"] if is_average else map(on_flag, model.texts[:1])
    command = " ".join(["headcount heads", argument(model.name), *shown])
    return HeadPatterns(name, caption, book, worth(model), command, picture)


def worth(model: ModelResults) -> dict[str, str]:
    """Return a mapping from a head's short name to the drop when this head is ablated, as text: `−3.1 points`."""
    result = model.ablation
    if result is None:
        return {}
    effects = result.effects(result.ranked_by, result.conditions[0].length)
    return {short(each.head): _signed(each.drop, result.unit) for each in effects}


def _signed(drop: float, unit: str) -> str:
    """Return `−3.1 points` for a drop, `+2.0 points` for a gain, and no sign for zero."""
    size = amount(abs(drop), unit)
    return size if float(size.split()[0]) == 0 else f"{'−' if drop > 0 else '+'}{size}"


PART = section
