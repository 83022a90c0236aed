"""Token sequences on which attention is shown, without right answers: texts of a file, and repeated random tokens.

If a random sequence is repeated, only its first copy predicts the tokens of the second copy. So heads that attend to
the earlier copy of a token, or to the token after that copy (induction heads), stand out, because the words have no
meaning (Olsson et al. 2022, arXiv 2209.11895).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from headcount.data.dataset import TokenizedText
from headcount.data.from_file import TokenizedModel, labelled, special_tokens_around, text_input, windows
from headcount.data.tables import read_table
from headcount.errors import InputError
from headcount.external.adapter import Adapted, Adapter
from headcount.external.models import longest_of
from headcount.external.user_code import user_code_errors
from headcount.hooks.wrapping import Wrapped
from headcount.seeds import stream

N_REPEATED, N_DIFFERENT, COPIES = 8, 50, 2
"""Number of sequences, number of different tokens in each, and number of copies of these tokens."""
MOST_TEXTS = 64
"""Largest number of texts of a file that are used; they are evenly spaced in the file."""
T = TypeVar("T")
TEXT_COLUMNS = ("text", "first", "second", "source")
"""The columns of a table in which texts are looked for."""


def repeated_tokens(model: Wrapped | Adapted, tokenizer: Any = None) -> list[TokenizedText]:
    """Return sequences of random tokens that occur twice, between the special tokens that the model expects.

    The list is empty if the model does not take token ids, or if it belongs to an adapter, because only the adapter's
    code knows its tokens.
    """
    table = getattr(getattr(model.model, "get_input_embeddings", lambda: None)(), "weight", None)
    if not isinstance(model, Wrapped) or "input_ids" not in model.inputs or table is None:
        return []
    begin, end, usable = list[int](), list[int](), list(range(len(table)))
    if tokenizer is not None:
        begin, end = special_tokens_around(tokenizer)
        usable = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    room = (min(longest_of(model.model), 10 * N_DIFFERENT) - len(begin) - len(end)) // COPIES
    n, rng = min(N_DIFFERENT, room, len(usable)), stream(0, "repeated tokens")
    rows = [rng.permutation(usable)[:n].tolist() * COPIES for _ in range(N_REPEATED if n > 1 else 0)]
    return [_between(model, tokenizer, begin, row, end) for row in rows]


def _between(
    model: Wrapped | Adapted, tokenizer: Any, begin: Sequence[int], row: Sequence[int], end: Sequence[int]
) -> TokenizedText:
    """Return one sequence between special tokens as the model's inputs; a decoder gets its start token and the same."""
    device, ids = next(model.parameters()).device, [*begin, *row, *end]
    by_stack = {"layer": ids}
    if isinstance(model, Wrapped) and "decoder_input_ids" in model.inputs:
        start = getattr(model.model.config, "decoder_start_token_id", None)
        by_stack = {"encoder": ids, "decoder": [begin[0] if start is None and begin else start or 0, *row]}
    first, *others = (torch.tensor([each], device=device) for each in by_stack.values())
    inputs = (first, *others, torch.ones_like(first))
    if tokenizer is not None:
        return labelled(tokenizer, inputs, by_stack)
    return TokenizedText(inputs, {stack: list(map(str, each)) for stack, each in by_stack.items()})


def file_texts(file: str | Path, tokenized: TokenizedModel) -> list[TokenizedText]:
    """Return evenly spaced pieces of a running text, or texts of a table, as the model's inputs."""
    table = read_table(file)
    if not table.is_running:
        columns = [table.columns[name] for name in TEXT_COLUMNS if name in table.columns]
        texts = [str(cell) for column in columns for cell in table.column(column) if str(cell)]
        return [text_input(tokenized, text) for text in _spread(texts)]
    tokenized.require_one_text()
    begin, end = special_tokens_around(tokenized.tokenizer)
    rows = windows(table, tokenized, len(begin) + len(end)).tokens
    return [_between(tokenized.model, tokenized.tokenizer, begin, row, end) for row in _spread(rows)]


def adapter_questions(adapter: Adapter) -> list[str]:
    """Return some questions of the adapter's own data; empty if the adapter names a task or has no data()."""
    if adapter.task is not None or type(adapter).data is Adapter.data:
        return []
    with user_code_errors(adapter, "data"):
        return _spread([str(question) for question, _ in adapter.data()])


def _spread(texts: Sequence[T]) -> list[T]:
    """Return at most `MOST_TEXTS` texts, evenly spaced; raise an error if there are none."""
    if not texts:
        raise InputError(
            "the file contains no text to run the model on",
            f"give a file with text; a table needs a column of texts, with one of the names {', '.join(TEXT_COLUMNS)}",
        )
    places = np.linspace(0, len(texts) - 1, min(len(texts), MOST_TEXTS)).round().astype(int)
    return [texts[i] for i in places]
