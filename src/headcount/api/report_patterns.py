"""Compute the attention patterns that a report shows: averages over examples, and single examples and texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from headcount.analysis.attention import Attention, average_patterns, patterns_on_each, patterns_on_inputs
from headcount.api.heads import summarise_attention
from headcount.api.inputs import MOST_ROWS, ModuleWithInputs
from headcount.data.dataset import TokenizedText
from headcount.describing.patterns import PatternBook, PatternPage, n_cells, page_of, sites_of, whole_page
from headcount.errors import HeadcountError, InputError
from headcount.experiments.models import OpenModel, RunModel
from headcount.hooks.attention import attention_of
from headcount.rendering.progress import TimeLimit, announcer, counting, limited
from headcount.tasks.base import Task
from headcount.training.device import n_threads

MOST_CELLS = 12_000_000
"""Largest number of attention weights that are stored token by token. (144 heads on 256 tokens have 9.4 million.)"""


def text_book(model: OpenModel, on: Sequence[str], summaries: Sequence[Attention]) -> PatternBook | None:
    """Return the attention on each text: token by token up to `MOST_CELLS` weights in all, then pooled over tokens."""
    pages, room = list[PatternPage](), MOST_CELLS
    for text, summary in zip(on, summaries, strict=True):
        if (size := n_cells(summary)) > room:
            pages.append(page_of(summary))
            continue
        room -= size
        weights = attention_of(model.module, model.sites, *model.text_input(text).inputs)
        arrays = {str(site): tensor[0].float().cpu().numpy() for site, tensor in weights.items()}
        pages.append(whole_page(summary, arrays))
    return PatternBook(sites_of(summaries[0]), tuple(pages)) if pages else None


def patterns_of(
    model: OpenModel,
    on: Sequence[str],
    n_examples: int,
    quiet: bool,
    limit: TimeLimit | None,
    left_out: list[str],
) -> Iterator[Attention]:
    """Yield the average attention, then the attention on examples of the task, rows of tensors, or texts.

    If there was no time for some examples, a sentence that says so is added to `left_out`.
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
    test_set = task.split("test")
    rows = np.sort(np.random.default_rng(0).permutation(len(test_set))[: max(0, n_examples)])
    given = [text for text in on if is_example(task, text)]
    texts = list(dict.fromkeys([*given, *(task.show(test_set[row]) for row in rows)]))
    if isinstance(model, RunModel):
        try:
            yield from patterns_on_each(model.run, texts)
        except HeadcountError as error:  # such as a sequence that is longer than the model's positions
            announcer(quiet)(f"the report shows no attention on single examples: {error.what}")
        return
    # One example at a time is too little work for two threads, which would mostly wait for each other.
    with n_threads(1), limited(None), counting(f"reading attention of {model.label}", quiet=quiet) as show:
        for i, text in enumerate(texts):
            try:
                pattern = _on_example(model, text)
            except HeadcountError:  # an adapter that cannot read a single example
                return
            yield pattern
            if limit is not None and limit.seconds_left <= 0 and i + 1 < len(texts):
                left_out.append(f"attention on {len(texts) - i - 1:,} of {len(texts):,} examples")
                return
            show(i + 1, len(texts))


def _on_rows(model: OpenModel, rows: Sequence[TokenizedText]) -> Iterator[Attention]:
    """Yield the attention averaged over the rows of input tensors, then the attention on each row."""
    known = model.label, model.weights_sha256, model.module, model.sites
    if len(rows) > 1 and len({tuple(map(len, row.tokens.values())) for row in rows}) == 1:
        yield patterns_on_inputs(*known, rows)
    for i, row in enumerate(rows):
        yield patterns_on_inputs(*known, [row], f"input {i}")


def _on_example(model: OpenModel, text: str) -> Attention:
    (summary,) = summarise_attention(model, text).result
    return replace(summary, example=text, title=summary.note or summary.title, note="")


def is_example(task: Task, text: str) -> bool:
    """Return whether a text can be read as an example of this task.

    A report on several tasks is given examples of each.
    """
    try:
        task.parse(text)
    except InputError:
        return False
    return True
