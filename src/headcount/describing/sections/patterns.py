"""Where does each head look? Every head of a model, on any of the stored examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from headcount.describing.blocks import Block, HeadPatterns, Paragraph, Picture, Section
from headcount.describing.commands import on_flag
from headcount.describing.patterns import book_of
from headcount.describing.story import Material, Subject
from headcount.describing.words import amount, counted, short, stand_ins
from headcount.errors import argument
from headcount.figures.attention import draw_kind


def section(material: Material) -> Section | None:
    """Every model whose attention was read."""
    subjects = material.with_("patterns")
    if not subjects:
        return None
    blocks: list[Block] = [
        Paragraph(
            "Each square is one head: rows are queries, columns are keys, and the stronger the colour of a cell, the "
            "more of the query's attention goes to that key. Choose an example, then a head, and read its weights off "
            "the large view. Below each head stands what is lost without it, where that was measured: a pattern alone "
            f"does not say whether it matters.{_replaced(subjects)}"
        )
    ]
    for subject in subjects:
        blocks += [Paragraph(f"The heads of {subject.title}:")] if len(subjects) > 1 else []
        blocks.append(_book(material, subject))
    return Section("patterns", "Where does each head look?", tuple(blocks))


def _replaced(subjects: Sequence[Subject]) -> str:
    """What stands in for an ablated head there."""
    names = dict.fromkeys(each.ablation.ranked_by for each in subjects if each.ablation is not None)
    return f" {stand_ins(list(names))} Other ways are in the section on what each head is worth." if names else ""


def _book(material: Material, subject: Subject) -> HeadPatterns:
    book, name = subject.book or book_of(subject.patterns), material.block_id("patterns", subject)
    assert book is not None, "asked of a model that has patterns"
    first = subject.patterns[0]
    kinds = list(dict.fromkeys((site.stack, site.kind) for site in first.sites))
    picture = Picture(
        f"{name}-page",
        f"Heads of {subject.title}: {first.title}",
        f"{counted(book.n_heads, 'heat map')}, one for each head, of attention weights.",
        partial(draw_kind, first, *kinds[0]),
    )
    pages = f", {len(book.pages)} pages to choose from" if len(book.pages) > 1 else ""
    caption = f"All {counted(book.n_heads, 'head')} of {subject.title}{pages}"
    is_average = subject.task is not None and first.example is None
    shown = ["--all-test"] if is_average else map(on_flag, subject.texts[:1])
    command = " ".join(["headcount heads", argument(subject.name), *shown])
    return HeadPatterns(name, caption, book, _worth(subject), command, picture)


def _worth(subject: Subject) -> dict[str, str]:
    """Return what removing each head alone costs, by the head's short name."""
    result = subject.ablation
    if result is None:
        return {}
    effects = result.effects(result.ranked_by, result.conditions[0].length)
    return {short(each.head): _signed(each.drop, result.unit) for each in effects}


def _signed(drop: float, unit: str) -> str:
    """`−3.1 points` where something is lost, and no sign where nothing is, to the digit that is shown."""
    size = amount(abs(drop), unit)
    return size if float(size.split()[0]) == 0 else f"{'−' if drop > 0 else '+'}{size}"


PART = section
