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
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.words import ONE_SEED, bracketed, briefly, percent, some
from headcount.errors import argument
from headcount.figures.head_stats import draw_sensitivity, sensitivities
from headcount.tasks import words_of
from headcount.tasks.base import TaskWords

SMALLEST_SHOWN = 0.0005
"""A difference below this shows as 0.0 points in the table."""


def section(results: ReportResults) -> Section | None:
    """Describe every model whose task has an event, and whose heads were contrasted or ablated with examples."""
    blocks, answers, title = list[Block](), list[Sentence](), ""
    for model_results in results.models:
        words = words_of(model_results.task)
        if words.event is None or not (_is_contrasted(model_results) or _breaks(model_results, words)):
            continue
        if not title:
            title = words.event.question
            blocks.append(_explanation(words))
        name = results.block_id("events", model_results)
        sentences = conclusions(model_results, words, name)
        answers.append(_answer(model_results, words, sentences[0]))
        blocks += [Conclusions(tuple(sentences)), *_shown(model_results, words, name)]
    return Section("events", title, tuple(blocks), answers[0]) if answers else None


def _explanation(words: TaskWords) -> Paragraph:
    assert words.event is not None, "asked about a task with an event"
    event = words.event.name
    return Paragraph(
        f"{words.event.contrast} A head responds to the {event} if its attention moves further in the first pair. "
        f"That is correlation, not proof that the model uses what the head reads. Ablation adds which "
        f"{words.examples} break without the head."
    )


def conclusions(model_results: ModelResults, words: TaskWords, rests_on: str) -> list[Sentence]:
    """Say what attention shows, then what ablation shows."""
    sentences: list[Sentence | None] = []
    responding: list[str] = []
    breaks = _breaks(model_results, words)
    if model_results.stats is not None and _is_contrasted(model_results):
        responding = responding_heads(model_results.stats)
        sentences.append(response_sentence(model_results.title, model_results.stats, words, rests_on))
        sentences.append(difference_sentence(model_results.stats, words, rests_on))
    if breaks:
        sentences += broken_sentences(breaks, responding, words, rests_on)
        sentences += error_sentences(breaks, words, rests_on)
    elif responding and model_results.ablation is not None:
        sentences.append(cost_sentence(responding, model_results.ablation, words, rests_on))
    return [each for each in sentences if each is not None]


def _answer(model_results: ModelResults, words: TaskWords, first: Sentence) -> Sentence:
    """Put what attention shows and, where it is decided, what breaks into one sentence."""
    breaks, text = _breaks(model_results, words), first.text.removesuffix(ONE_SEED).rstrip(". ")
    if _is_contrasted(model_results) and breaks and breaks[0].is_for_event:
        text += f"; {most_broken(breaks, words)}"
    return replace(first, text=briefly(text, model_results.settings))


def _is_contrasted(model_results: ModelResults) -> bool:
    return model_results.stats is not None and bool(sensitivities(model_results.stats))


def _breaks(model_results: ModelResults, words: TaskWords) -> list[Breaks]:
    return [] if model_results.ablation is None else breaks_of(model_results.ablation, words)


# --- figure and table -------------------------------------------------------------------------------------------------


def _shown(model_results: ModelResults, words: TaskWords, name: str) -> list[Block]:
    """Build the figure of the contrast, the table of heads and, if breaks were not stored, the command for them."""
    model, event, result = argument(model_results.name), event_name(words), model_results.stats
    blocks: list[Block] = []
    if result is not None and _is_contrasted(model_results):
        heads = some([f"{each.short} {each.shift.mean:.2f}" for each in sensitivities(result)], 8)
        caption = f"How far a {event} moves the attention of each head of {model_results.title}, beyond another token"
        command = f"headcount heads {model} --stats"
        blocks.append(Picture(f"{name}-moved", caption, f"Most: {heads}.", lambda: draw_sensitivity(result), command))
    blocks.append(_table(model_results, words, name))
    if not _breaks(model_results, words):
        text = (
            f"It is not stored which {words.examples} break without each head of {model_results.title}. To measure it:"
        )
        blocks.append(Commands((f"headcount ablate {model} --examples",), text))
    return blocks


def _table(model_results: ModelResults, words: TaskWords, name: str) -> DataTable:
    """Build one row for each head: how its attention moves, and what breaks without it."""
    assert words.event is not None, "asked about a task with an event"
    event, stats = words.event.name, model_results.stats
    responses = {} if stats is None else {each.short: each for each in sensitivities(stats)}
    largest = {} if stats is None else {each.short: each for each in reversed(target_differences(stats, words))}
    breaks = {each.short: each for each in _breaks(model_results, words)}
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
    command = f"headcount heads {argument(model_results.name)} --stats"
    caption = f"The heads of {model_results.title} and the {event}"
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
