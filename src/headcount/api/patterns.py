"""Attention of a report's models: averages, and the examples and texts that its readers choose from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from headcount.analysis.attention import Attention, average_patterns, patterns_on_each, patterns_on_inputs
from headcount.api.inputs import MOST_ROWS, ModuleWithInputs
from headcount.api.viewing import summarise_attention
from headcount.data.dataset import TokenizedText
from headcount.describing.patterns import PatternBook, PatternPage, n_cells, page_of, sites_of, whole_page
from headcount.errors import HeadcountError, InputError
from headcount.experiments.models import OpenModel, RunModel
from headcount.hooks.attention import attention_of
from headcount.rendering.progress import TimeLimit, announcer, counting, limited
from headcount.tasks.base import Task
from headcount.training.device import n_threads

MOST_CELLS = 12_000_000
"""Weights of texts that are kept one by one, a byte each: 12 x 12 heads on one text of 256 tokens have 9.4 million."""


def text_book(model: OpenModel, on: Sequence[str], summaries: Sequence[Attention]) -> PatternBook | None:
    """Return texts token by token, as many as there is room for; the others as results have pooled them."""
    pages, room = list[PatternPage](), MOST_CELLS
    for text, summary in zip(on, summaries, strict=True):
        if (size := n_cells(summary)) > room:
            pages.append(page_of(summary))
            continue
        room -= size
        weights = attention_of(model.module, model.sites, *model.text_input(text).inputs)
        found = {str(site): each[0].float().cpu().numpy() for site, each in weights.items()}
        pages.append(whole_page(summary, found))
    return PatternBook(sites_of(summaries[0]), tuple(pages)) if pages else None


def patterns_of(
    model: OpenModel,
    on: Sequence[str],
    n_examples: int,
    quiet: bool,
    limit: TimeLimit | None,
    left_out: list[str],
) -> Iterator[Attention]:
    """Yield the average, then examples of the task, or rows of tensors; else the texts that were named.

    Add to `left_out` the examples that there was no time for.
    """
    if model.task is None:
        if on:
            yield from summarise_attention(model, on).result
        elif isinstance(model, ModuleWithInputs):
            yield from _on_rows(model, model.rows(max(1, min(n_examples, MOST_ROWS))))
        return
    try:
        yield average_patterns(model.task_attention(), "test")
    except HeadcountError:
        return
    task = model.task
    every = task.split("test")
    rows = np.sort(np.random.default_rng(0).permutation(len(every))[: max(0, n_examples)])
    asked = dict.fromkeys([*(text for text in on if is_example(task, text)), *(task.show(every[row]) for row in rows)])
    if isinstance(model, RunModel):
        try:
            yield from patterns_on_each(model.run, list(asked))
        except HeadcountError as error:  # such as a sequence that is longer than its positions
            announcer(quiet)(f"no attention on single examples: {error.what}")
        return
    # One example at a time is too little work for two threads: they would mostly wait for each other.
    with n_threads(1), limited(None), counting(f"reading attention of {model.label}", quiet=quiet) as show:
        for i, text in enumerate(asked):
            try:
                found = _on_example(model, text)
            except HeadcountError:  # an adapter that reads no single example
                return
            yield found
            if limit is not None and limit.seconds_left <= 0 and i + 1 < len(asked):
                left_out.append(f"attention on {len(asked) - i - 1:,} of {len(asked):,} examples")
                return
            show(i + 1, len(asked))


def _on_rows(model: OpenModel, rows: Sequence[TokenizedText]) -> Iterator[Attention]:
    """Yield the average over rows of tensors, then every row by itself."""
    known = model.label, model.weights_sha256, model.module, model.sites
    if len(rows) > 1 and len({tuple(map(len, row.tokens.values())) for row in rows}) == 1:
        yield patterns_on_inputs(*known, rows)
    for i, row in enumerate(rows):
        yield patterns_on_inputs(*known, [row], f"input {i}")


def _on_example(model: OpenModel, text: str) -> Attention:
    (found,) = summarise_attention(model, text).result
    return replace(found, example=text, title=found.note or found.title, note="")


def is_example(task: Task, text: str) -> bool:
    """Return whether a text is an example of this task: in a report on several, it may be for another one."""
    try:
        task.parse(text)
    except InputError:
        return False
    return True
