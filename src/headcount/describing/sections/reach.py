"""How far does each encoding reach? By length and kind of negative, both classes apart, the trained range marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Picture, Section
from headcount.describing.commands import stretch_command
from headcount.describing.reach_words import beyond_training, conclusions
from headcount.describing.reaches import (
    RIGHT,
    accuracy_cell,
    causes_of,
    hardest,
    is_plain,
    named,
    reach_of,
    up_to,
    within_training,
)
from headcount.describing.story import Material, Subject
from headcount.describing.verdicts import BEYOND, POSITIONS, SHORTCUTS, notices
from headcount.describing.words import percent
from headcount.figures.length_generalisation import draw_dispersion, draw_stretch, mark

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import LengthResult, Stretch
    from headcount.stats import Proportion


LENGTHS = (32, 64, 128, 256)
"""Lengths that the exercise asks for."""


def section(material: Material) -> Section | None:
    """Every model that was measured at several lengths."""
    subjects = [each for each in material.subjects if each.stretch is not None and each.stretch.cells]
    if not subjects:
        return None
    results = [each.stretch for each in subjects if each.stretch is not None]
    kind, kinds = hardest(results), list(dict.fromkeys(cell.negative for each in results for cell in each.cells))
    kinds.sort(key=lambda each: each != kind)
    found = conclusions(subjects, kind, lambda each: f"reach-{each}")
    blocks: list[Block] = [
        Paragraph(
            "Half of the sequences of every field are sorted. The others were unsorted in one of several ways, each "
            "measured by itself: a full shuffle is broken nearly everywhere, a single adjacent swap in one pair. A "
            f"model counts as right at a length if the whole interval of its accuracy lies above {percent(RIGHT, 0)}; "
            "where it gives one answer to everything, that stands in place of an accuracy. `generic` models were "
            "given nothing of the task; the others what is named, so that one kind is not ranked against the other."
        ),
        Conclusions(tuple(found)),
        *_exercise_table(subjects, kind),
        _curves(subjects, kind),
        *(notice for each in subjects for notice in notices(each, [BEYOND, POSITIONS, SHORTCUTS])),
        *(_table(subjects, each) for each in kinds),
        _classes(subjects, kinds),
        *_causes(subjects, kind),
        *_dispersions(material, subjects, kind),
    ]
    answer = replace(found[0], text=" ".join([found[0].text, *beyond_training(subjects, kind, found[0])]))
    return Section("reach", "How far does each encoding reach?", tuple(blocks), answer)


def _curves(subjects: Sequence[Subject], kind: str) -> Picture:
    results = _on_common_lengths([each.stretch for each in subjects if each.stretch is not None])
    trained = sorted({each.trained for each in results if each.trained})
    told = []
    for each in subjects:
        reach = reach_of(each.stretch, kind) if each.stretch else None
        told += [f"{each.title}: {up_to(reach)}"] if reach else []
    over = f"; trained lengths are shaded ({', '.join(f'{low} to {high}' for low, high in trained)})" if trained else ""
    alt = f"Accuracy against length. Right on {named(kind)}: {'; '.join(told)}."
    caption, command = f"How far each model reaches{over}", stretch_command(subjects)
    return Picture("reach-curves", caption, alt, lambda: draw_stretch(results), command)


def _on_common_lengths(results: Sequence[Stretch]) -> list[Stretch]:
    """Runs that share a line, as they differ in their seed alone, on what was measured of all of them."""
    shared: dict[tuple[object, ...], set[tuple[str, int]]] = {}
    for each in results:
        have = {(cell.negative, cell.length) for cell in each.cells}
        group = each.label, each.hard_codes, each.recipe
        shared[group] = shared.get(group, have) & have
    keep = [shared[each.label, each.hard_codes, each.recipe] for each in results]
    return [
        replace(each, cells=tuple(cell for cell in each.cells if (cell.negative, cell.length) in some))
        for each, some in zip(results, keep, strict=True)
    ]


def _exercise_table(subjects: Sequence[Subject], kind: str) -> list[DataTable]:
    """Build the exercise's table: training lengths together, then 32, 64, 128 and 256; nothing if none was measured."""
    stretched = [(each, each.stretch) for each in subjects if each.stretch]
    rows: list[tuple[Cell | str, ...]] = [
        (f"{subject.title} ({mark(result)})", *length_cells(result.cells, kind, result.trained))
        for subject, result in stretched
        if any(cell.negative == kind and cell.length in LENGTHS for cell in result.cells)
    ]
    if not rows:
        return []
    caption = f"Accuracy (%) at the exercise's lengths; unsorted sequences are {named(kind)}"
    columns = ("model", span([each.trained for _, each in stretched]), *map(str, LENGTHS))
    note = f"{sizes([each.cells for _, each in stretched], kind)} 95 % Wilson intervals; bold where the whole interval "
    note += f"lies above {percent(RIGHT, 0)}."
    return [DataTable("reach-lengths", caption, columns, tuple(rows), note, stretch_command(subjects), is_narrow=True)]


def length_cells(results: Sequence[LengthResult], kind: str, trained: tuple[int, int] | None) -> list[Cell]:
    """Return the accuracy over all training lengths and at each of the exercise's lengths."""
    mine = [each for each in results if each.negative == kind]
    by_length = {each.length: each for each in mine}
    found = [within_training(mine, trained), *(by_length.get(length) for length in LENGTHS)]
    return [Cell("not measured", None, "weak") if each is None else accuracy_cell(each) for each in found]


def span(trained: Sequence[tuple[int, int] | None]) -> str:
    """Return the heading of the column of training lengths: `8-16`, or words where models differ."""
    known = set(trained)
    only = known.pop() if len(known) == 1 else None
    return f"{only[0]}-{only[1]}" if only else "training lengths"


def sizes(results: Sequence[Sequence[LengthResult]], kind: str) -> str:
    """Say how many sequences of each length were tried."""
    n = sorted({each.n for cells in results for each in cells if each.negative == kind})
    per_length = " to ".join(f"{each:,}" for each in dict.fromkeys((n[0], n[-1])))
    return f"n = {per_length} per length, half of them sorted; training lengths are counted together."


def _table(subjects: Sequence[Subject], kind: str) -> DataTable:
    """A row for each model and a column for each length."""
    rows, sizes = list[tuple[Cell | str, ...]](), set[int]()
    stretched = [(each, each.stretch) for each in subjects if each.stretch]
    lengths = sorted({cell.length for _, each in stretched for cell in each.cells if cell.negative == kind})
    for subject, result in stretched:
        cells = {cell.length: cell for cell in result.cells if cell.negative == kind}
        if not cells:
            continue
        sizes |= {cell.n for cell in cells.values()}
        shown = [accuracy_cell(cells[x]) if x in cells else _missing(result, x) for x in lengths]
        rows.append((subject.title, mark(result), *shown))
    n = " to ".join(f"{each:,}" for each in dict.fromkeys((min(sizes), max(sizes))))
    note = f"n = {n} per field; 95 % Wilson intervals; bold where the whole interval lies above {percent(RIGHT, 0)}."
    columns = ("model", "given", *(f"{each:,}" for each in lengths))
    caption = f"Right (%) by length; unsorted ones are {named(kind)}"
    return DataTable(f"reach-{kind}", caption, columns, tuple(rows), note, stretch_command(subjects))


def _missing(result: Stretch, length: int) -> Cell:
    return Cell("refused" if length in result.refused_lengths else "not measured", None, "weak")


def _classes(subjects: Sequence[Subject], kinds: Sequence[str]) -> DataTable:
    """Of each model at its last trained length, at the first beyond it, and at the longest."""
    rows: list[tuple[Cell | str, ...]] = []
    for subject in subjects:
        result = subject.stretch
        assert result is not None, "asked of models that were stretched"
        cells = {(cell.length, cell.negative): cell for cell in result.cells}
        for length in _telling(result):
            mine = [cells.get((length, kind)) for kind in kinds]
            there = next(cell for cell in mine if cell is not None)
            shares = [_recall(there.recall[-1]), *(_recall(cell.recall[0] if cell else None) for cell in mine)]
            rows.append((subject.title, Cell(f"{length:,}", length), *shares))
    unsorted = [named(each) for each in kinds]
    note = "The sorted sequences are the same for every kind. 95 % Wilson intervals."
    caption = "Each class apart: how many are told for what they are (%)"
    columns = ("model", "length", "sorted", *unsorted)
    return DataTable("reach-classes", caption, columns, tuple(rows), note, stretch_command(subjects))


def _telling(result: Stretch) -> list[int]:
    lengths = sorted({cell.length for cell in result.cells})
    longest = result.trained[1] if result.trained else 0
    within, beyond = ([x for x in lengths if (x <= longest) == inside] for inside in (True, False))
    return sorted({*within[-1:], *beyond[:1], *lengths[-1:]})


def _recall(share: Proportion | None) -> Cell:
    if share is None:
        return Cell("not measured", None, "weak")
    return Cell(f"{100 * share.rate:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]", 100 * share.rate)


def _causes(subjects: Sequence[Subject], kind: str) -> list[DataTable]:
    """Of models that fail beyond training, what does that alone."""
    rows: list[tuple[Cell | str, ...]] = []
    for subject in subjects:
        reach = reach_of(subject.stretch, kind) if subject.stretch else None
        known = causes_of(subject.stretch, reach) if subject.stretch and reach else None
        if known is not None:
            rows.append((subject.title, Cell(f"{known[0].length:,}", known[0].length), *map(accuracy_cell, known)))
    if not rows:
        return []
    caption = (
        f"What makes a model fail at the first length that it fails at: right (%); unsorted ones are {named(kind)}"
    )
    columns = ("model", "length", "at that length", "its last positions alone", "its small gaps alone")
    note = "Alone: sequences of the longest trained length, with the positions or with the gaps of the longer one."
    return [DataTable("reach-causes", caption, columns, tuple(rows), note, stretch_command(subjects))]


def _dispersions(material: Material, subjects: Sequence[Subject], kind: str) -> list[Picture]:
    """Of the exercise's first model, and of the one that reaches farthest without being given anything."""
    generic = [each for each in subjects if each.stretch and not each.stretch.hard_codes] or list(subjects)
    plain = [each for each in generic if each.stretch and is_plain(each.stretch)] or generic
    far = max(generic, key=lambda each: _length(each, kind))
    chosen = [plain[0], *([far] if far is not plain[0] and _length(far, kind) > _length(plain[0], kind) else [])]
    return [_dispersion(material.block_id("reach-attention", each), each, kind) for each in chosen]


def _length(subject: Subject, kind: str) -> int:
    reach = reach_of(subject.stretch, kind) if subject.stretch else None
    return reach.length if reach else 0


def _dispersion(name: str, subject: Subject, kind: str) -> Picture:
    result = subject.stretch
    assert result is not None, "asked of a model that was stretched"
    alt = f"Attention and certainty of {subject.title} against length; on {named(kind)} it is right "
    reach = reach_of(result, kind)
    alt += f"{up_to(reach)}." if reach else "as the tables say."
    caption = f"{subject.title} ({mark(result)}): where attention goes and how sure it is as sequences grow"
    return Picture(name, caption, alt, lambda: draw_dispersion(result), stretch_command([subject]))


PART = section
