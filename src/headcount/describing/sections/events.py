"""Which heads handle the carry? Attention that responds to it, and answers that break without a head.

The section is there for every task that names such an event.
"""

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
from headcount.describing.events import (
    Breaks,
    TargetDifference,
    breaks_of,
    broken_sentences,
    cost_sentence,
    difference_sentence,
    error_sentences,
    event_name,
    most_broken,
    responding_heads,
    response_sentence,
    target_differences,
)
from headcount.describing.story import Material, Subject
from headcount.describing.words import ONE_SEED, bracketed, briefly, percent, some
from headcount.errors import argument
from headcount.figures.head_stats import draw_sensitivity, sensitivities
from headcount.tasks import words_of
from headcount.tasks.base import TaskWords

SMALLEST_SHOWN = 0.0005
"""A difference below this shows as 0.0 points in the table."""


def section(material: Material) -> Section | None:
    """Describe every model whose task has an event, and whose heads were contrasted or ablated with examples."""
    blocks, answers, title = list[Block](), list[Sentence](), ""
    for subject in material.subjects:
        words = words_of(subject.task)
        if words.event is None or not (_is_contrasted(subject) or _breaks(subject, words)):
            continue
        if not title:
            title = words.event.question
            blocks.append(_explanation(words))
        name = material.block_id("events", subject)
        sentences = conclusions(subject, words, name)
        answers.append(_answer(subject, words, sentences[0]))
        blocks += [Conclusions(tuple(sentences)), *_shown(subject, words, name)]
    return Section("events", title, tuple(blocks), answers[0]) if answers else None


def _explanation(words: TaskWords) -> Paragraph:
    assert words.event is not None, "asked about a task with an event"
    event = words.event.name
    return Paragraph(
        f"{words.event.contrast} A head responds to the {event} if its attention moves further in the first pair. "
        f"That is correlation, not proof that the model uses what the head reads. Ablation adds which "
        f"{words.examples} break without the head."
    )


def conclusions(subject: Subject, words: TaskWords, rests_on: str) -> list[Sentence]:
    """Say what attention shows, then what ablation shows."""
    sentences: list[Sentence | None] = []
    responding: list[str] = []
    breaks = _breaks(subject, words)
    if subject.stats is not None and _is_contrasted(subject):
        responding = responding_heads(subject.stats)
        sentences.append(response_sentence(subject.title, subject.stats, words, rests_on))
        sentences.append(difference_sentence(subject.stats, words, rests_on))
    if breaks:
        sentences += broken_sentences(breaks, responding, words, rests_on)
        sentences += error_sentences(breaks, words, rests_on)
    elif responding and subject.ablation is not None:
        sentences.append(cost_sentence(responding, subject.ablation, words, rests_on))
    return [each for each in sentences if each is not None]


def _answer(subject: Subject, words: TaskWords, first: Sentence) -> Sentence:
    """Put what attention shows and, where it is decided, what breaks into one sentence."""
    breaks, text = _breaks(subject, words), first.text.removesuffix(ONE_SEED).rstrip(". ")
    if _is_contrasted(subject) and breaks and breaks[0].is_for_event:
        text += f"; {most_broken(breaks, words)}"
    return replace(first, text=briefly(text, subject.settings))


def _is_contrasted(subject: Subject) -> bool:
    return subject.stats is not None and bool(sensitivities(subject.stats))


def _breaks(subject: Subject, words: TaskWords) -> list[Breaks]:
    return [] if subject.ablation is None else breaks_of(subject.ablation, words)


# --- figure and table -------------------------------------------------------------------------------------------------


def _shown(subject: Subject, words: TaskWords, name: str) -> list[Block]:
    """Build the figure of the contrast, the table of heads and, if breaks were not stored, the command for them."""
    model, event, result = argument(subject.name), event_name(words), subject.stats
    blocks: list[Block] = []
    if result is not None and _is_contrasted(subject):
        heads = some([f"{each.short} {each.shift.mean:.2f}" for each in sensitivities(result)], 8)
        caption = f"How far a {event} moves the attention of each head of {subject.title}, beyond another token"
        command = f"headcount heads {model} --stats"
        blocks.append(Picture(f"{name}-moved", caption, f"Most: {heads}.", lambda: draw_sensitivity(result), command))
    blocks.append(_table(subject, words, name))
    if not _breaks(subject, words):
        text = f"It is not stored which {words.examples} break without each head of {subject.title}. To measure it:"
        blocks.append(Commands((f"headcount ablate {model} --examples",), text))
    return blocks


def _table(subject: Subject, words: TaskWords, name: str) -> DataTable:
    """Build one row for each head: how its attention moves, and what breaks without it."""
    assert words.event is not None, "asked about a task with an event"
    event, stats = words.event.name, subject.stats
    responses = {} if stats is None else {each.short: each for each in sensitivities(stats)}
    largest = {} if stats is None else {each.short: each for each in reversed(target_differences(stats, words))}
    breaks = {each.short: each for each in _breaks(subject, words)}
    rows: list[tuple[Cell | str, ...]] = []
    for head in dict.fromkeys((*responses, *breaks)):
        cells = [Cell("")] * 4
        if response := responses.get(head):
            shift, is_sure = response.shift, response.low > 0 or response.high < 0
            text = bracketed(shift.mean, response.low, response.high, scale=1, digits=3)
            cells = [Cell(f"{shift.beside:.3f}", shift.beside), Cell(f"{shift.across:.3f}", shift.across)]
            cells += [Cell(text, shift.mean, "strong" if is_sure else ""), Cell(f"{shift.n:,}", shift.n)]
        rows.append((head, *cells, _difference_cell(largest.get(head)), *_broken_cells(breaks.get(head))))
    moved = (
        "moved by a token",
        f"by a token and a {event}",
        "difference",
        "n",
        f"largest change with a {event} (points)",
    )
    broken = (f"broken with a {event}", "broken without", f"{event} errors") if breaks else ()
    columns = ("head", *moved, *broken)
    note = "Shares of attention that move (total variation), with 95 % CIs that hold for all heads at once; bold if 0 "
    note += "lies outside the CI."
    note += f" {event.capitalize()} errors: broken answers in which {words.event.error}." if breaks else ""
    command = f"headcount heads {argument(subject.name)} --stats"
    caption = f"The heads of {subject.title} and the {event}"
    return DataTable(name, caption, columns, tuple(row[: len(columns)] for row in rows), note, command)


def _difference_cell(difference: TargetDifference | None) -> Cell:
    if difference is None:
        return Cell("")
    is_sure = (difference.low > 0 or difference.high < 0) and abs(difference.mean) >= SMALLEST_SHOWN
    text = f"{difference.target} {bracketed(difference.mean, difference.low, difference.high)}"
    return Cell(text, abs(difference.mean), "strong" if is_sure else "")


def _broken_cells(breaks: Breaks | None) -> list[Cell]:
    if breaks is None:
        return [Cell("")] * 3
    sides = breaks.with_event, breaks.without_event
    shares = [Cell(f"{each.correct:,} of {each.n:,} ({percent(each.rate)})", each.rate) for each in sides]
    errors = f"{breaks.n_errors:,} of {breaks.n_decoded:,}" if breaks.n_decoded else ""
    return [*shares, Cell(errors, breaks.n_errors if errors else None)]


PART = section
