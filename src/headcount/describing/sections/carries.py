"""What have heads to do with carries? Attention that moves with one, and what breaks without a head."""

from __future__ import annotations

from dataclasses import replace

from headcount.describing.blocks import (
    Block,
    Cell,
    Commands,
    Conclusions,
    DataTable,
    Paragraph,
    Picture,
    Section,
    Sentence,
)
from headcount.describing.breaking import (
    Breaks,
    breaks_of,
    broken_sentences,
    carry_error_sentences,
    most_broken,
    worth_sentence,
)
from headcount.describing.carry_words import Change, changed_sentence, changes, moved_sentence, sensitive
from headcount.describing.story import Material, Subject
from headcount.describing.words import ONE_SEED, briefly, some
from headcount.errors import argument
from headcount.figures.head_stats import draw_sensitivity, sensitivities

MOVED = (
    "head",
    "moved by a digit",
    "by a digit and a carry",
    "difference",
    "n",
    "largest change where a carry comes in (points)",
)
BROKEN = ("broken with a carry", "broken without", "carry errors")
"""Columns of attention, and of ablation."""
SHOWN = 0.0005
"""The least that a table shows, for it has a tenth of a point."""


def section(material: Material) -> Section | None:
    """Every adder whose attention was contrasted, or of which it is known what breaks."""
    subjects = [each for each in material.of_task("addition") if _is_contrasted(each) or _breaks(each)]
    if not subjects:
        return None
    blocks: list[Block] = [
        Paragraph(
            "Sums are compared that differ in one digit. It makes the next lower column add to 10 and not to 9, so "
            "that a carry comes in; or to 9 and not to 8, so that none does. Attention that moves further in the first "
            "case responds to the carry. That is correlation and no proof: it does not show that the model uses what "
            "the head reads. Ablation adds that: which sums break when the head is gone."
        )
    ]
    answers = []
    for subject in subjects:
        name = material.block_id("carries", subject)
        found = conclusions(subject, name)
        answers.append(_answer(subject, found[0]))
        blocks += [Conclusions(tuple(found)), *_shown(subject, name)]
    return Section("carries", "What have heads to do with carries?", tuple(blocks), answers[0])


def conclusions(subject: Subject, rests_on: str) -> list[Sentence]:
    """What attention says, then what ablation does."""
    found: list[Sentence | None] = []
    moving: list[str] = []
    breaks = _breaks(subject)
    if subject.stats is not None and _is_contrasted(subject):
        moving = sensitive(subject.stats)
        found += [moved_sentence(subject.title, subject.stats, rests_on), changed_sentence(subject.stats, rests_on)]
    if breaks:
        found += [*broken_sentences(breaks, moving, rests_on), *carry_error_sentences(breaks, rests_on)]
    elif moving and subject.ablation is not None:
        found.append(worth_sentence(moving, subject.ablation, rests_on))
    return [each for each in found if each is not None]


def _answer(subject: Subject, first: Sentence) -> Sentence:
    """What attention says and, where that is decided, what breaks."""
    breaks, text = _breaks(subject), first.text.removesuffix(ONE_SEED).rstrip(". ")
    if _is_contrasted(subject) and breaks and breaks[0].is_for_carries:
        text += f"; {most_broken(breaks)}"
    return replace(first, text=briefly(text, subject.settings))


def _is_contrasted(subject: Subject) -> bool:
    return subject.stats is not None and bool(sensitivities(subject.stats))


def _breaks(subject: Subject) -> list[Breaks]:
    return [] if subject.ablation is None else breaks_of(subject.ablation)


# --- shown ------------------------------------------------------------------------------------------------------------


def _shown(subject: Subject, name: str) -> list[Block]:
    """A table of both, and a picture of the contrast."""
    model = argument(subject.name)
    blocks: list[Block] = [_table(subject, name)]
    result = subject.stats
    if result is not None and _is_contrasted(subject):
        told = some([f"{each.short} {each.shift.mean:.2f}" for each in sensitivities(result)], 8)
        caption = f"How far a carry moves the attention of each head of {subject.title}, beyond any other digit"
        draw = lambda: draw_sensitivity(result)  # noqa: E731
        blocks.insert(
            0, Picture(f"{name}-moved", caption, f"The most: {told}.", draw, f"headcount heads {model} --stats")
        )
    if not _breaks(subject):
        words = f"What breaks without each head of {subject.title}, by carry, was not stored. This finds out:"
        blocks.append(Commands((f"headcount ablate {model} --examples",), words))
    return blocks


def _table(subject: Subject, name: str) -> DataTable:
    """A row for each head: how its attention moves, and what breaks without it."""
    moved = {} if subject.stats is None else {each.short: each for each in sensitivities(subject.stats)}
    largest = {} if subject.stats is None else {each.short: each for each in reversed(changes(subject.stats))}
    breaks = {each.short: each for each in _breaks(subject)}
    rows: list[tuple[Cell | str, ...]] = []
    for head in dict.fromkeys((*moved, *breaks)):
        cells = [Cell("")] * 4
        if found := moved.get(head):
            shift, is_sure = found.shift, found.low > 0 or found.high < 0
            text = f"{shift.mean:z.3f} [{found.low:z.3f}, {found.high:z.3f}]"
            cells = [Cell(f"{shift.beside:.3f}", shift.beside), Cell(f"{shift.across:.3f}", shift.across)]
            cells += [Cell(text, shift.mean, "strong" if is_sure else ""), Cell(f"{shift.n:,}", shift.n)]
        rows.append((head, *cells, _change(largest.get(head)), *_broken(breaks.get(head))))
    columns = (*MOVED, *BROKEN) if breaks else MOVED
    rows = [row[: len(columns)] for row in rows]
    note = "Shares of attention that move (total variation), with 95 % intervals that hold for all heads at once, bold "
    note += "where 0 is not in them."
    note += " Carry errors: broken answers in which every wrong digit lost a carry or made one up." if breaks else ""
    return DataTable(
        name,
        f"Carries and the heads of {subject.title}",
        columns,
        tuple(rows),
        note,
        f"headcount heads {argument(subject.name)} --stats",
    )


def _change(found: Change | None) -> Cell:
    if found is None:
        return Cell("")
    is_sure = (found.low > 0 or found.high < 0) and abs(found.mean) >= SHOWN
    text = f"{found.target} {100 * found.mean:+.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"
    return Cell(text, abs(found.mean), "strong" if is_sure else "")


def _broken(found: Breaks | None) -> list[Cell]:
    if found is None:
        return [Cell("")] * 3
    shares = [
        Cell(f"{each.correct:,} of {each.n:,} ({100 * each.rate:.1f} %)", each.rate)
        for each in (found.carry, found.no_carry)
    ]
    faults = (
        Cell(f"{found.n_carry_errors:,} of {found.n_decoded:,}", found.n_carry_errors) if found.n_decoded else Cell("")
    )
    return [*shares, faults]


PART = section
