"""Sequences of tokens to look at heads on, with no right answer: a file's texts, and random tokens that are repeated.

In random tokens that come twice nothing foretells a token but its copy: heads that attend to copies, or to what follows
them, are seen apart from what words have to do with each other (Olsson et al. 2022, arXiv 2209.11895).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from headcount.data.dataset import TokenizedText
from headcount.data.from_file import labelled, text_input, tokenized_model, windows
from headcount.data.tables import read_table
from headcount.errors import InputError
from headcount.external.adapter import Adapter
from headcount.external.models import ExternalModel, longest_of
from headcount.external.user_code import user_code_errors
from headcount.hooks.wrapping import Wrapped
from headcount.seeds import stream

N_REPEATED, N_DIFFERENT, COPIES = 8, 50, 2
"""Sequences of repeated tokens, different tokens in each, and how often they come."""
MOST_TEXTS = 64
"""Of a file, spread over all of it."""
T = TypeVar("T")
TEXT_COLUMNS = ("text", "first", "second", "source")
"""Columns of a table that hold texts."""


def repeated_tokens(model: ExternalModel) -> list[TokenizedText]:
    """Random tokens, all different, and again, between the special tokens that the model expects.

    None where the model takes no tokens, or is brought by an adapter, whose tokens only its own code knows.
    """
    table = getattr(getattr(model.inner, "get_input_embeddings", lambda: None)(), "weight", None)
    if not isinstance(model.model, Wrapped) or "input_ids" not in model.model.inputs or table is None:
        return []
    begin, end, usable = _frame(model, len(table))
    room = (min(longest_of(model.inner), 10 * N_DIFFERENT) - len(begin) - len(end)) // COPIES
    n, rng = min(N_DIFFERENT, room, len(usable)), stream(0, "repeated tokens")
    rows = [rng.permutation(usable)[:n].tolist() * COPIES for _ in range(N_REPEATED if n > 1 else 0)]
    return [_between(model, begin, row, end) for row in rows]


def _frame(model: ExternalModel, n_embeddings: int) -> tuple[list[int], list[int], list[int]]:
    """Special tokens that the tokenizer puts before and after a text, and all others that it has."""
    if model.tokenizer is None:
        return [], [], list(range(n_embeddings))
    special = set(model.tokenizer.all_special_ids)
    ids = list(model.tokenizer("a")["input_ids"])
    begin, end = (list(takewhile(special.__contains__, each)) for each in (ids, ids[::-1]))
    return begin, end[::-1], sorted(set(model.tokenizer.get_vocab().values()) - special)


def _between(model: ExternalModel, begin: Sequence[int], row: Sequence[int], end: Sequence[int]) -> TokenizedText:
    """One sequence as the model takes it; a decoder is fed the same tokens after its own first one."""
    device, ids = next(model.model.parameters()).device, [*begin, *row, *end]
    by_stack = {"layer": ids}
    if isinstance(model.model, Wrapped) and "decoder_input_ids" in model.model.inputs:
        start = getattr(model.inner.config, "decoder_start_token_id", None)
        by_stack = {"encoder": ids, "decoder": [begin[0] if start is None and begin else start or 0, *row]}
    first, *others = (torch.tensor([each], device=device) for each in by_stack.values())
    inputs = (first, *others, torch.ones_like(first))
    if model.tokenizer is not None:
        return labelled(model.tokenizer, inputs, by_stack)
    return TokenizedText(inputs, {stack: list(map(str, each)) for stack, each in by_stack.items()})


def file_texts(file: str | Path, model: ExternalModel) -> list[TokenizedText]:
    """Windows of a plain text, or the texts of a table."""
    table, tokenized = read_table(file), tokenized_model(model)
    if not table.is_running:
        columns = [table.columns[name] for name in TEXT_COLUMNS if name in table.columns]
        texts = [str(cell) for column in columns for cell in table.column(column) if str(cell)]
        return [text_input(model, each) for each in _spread(texts)]
    tokenized.require_one_text()
    begin, end, _ = _frame(model, 0)
    rows = windows(table, tokenized, len(begin) + len(end)).tokens
    return [_between(model, begin, row, end) for row in _spread(rows)]


def adapter_questions(adapter: Adapter) -> list[str]:
    """Some of those that an adapter's own data have; none where it names a task or has no data."""
    if adapter.task is not None or type(adapter).data is Adapter.data:
        return []
    with user_code_errors(adapter, "data"):
        return _spread([str(question) for question, _ in adapter.data()])


def _spread(texts: Sequence[T]) -> list[T]:
    """At most so many, from all parts."""
    if not texts:
        raise InputError("the file holds no text", f"a table has a column {', '.join(TEXT_COLUMNS)}")
    places = np.linspace(0, len(texts) - 1, min(len(texts), MOST_TEXTS)).round().astype(int)
    return [texts[i] for i in places]
