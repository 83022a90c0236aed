"""Plain text, for models that predict the next token."""

import numpy as np
import torch

from headcount.data.dataset import LOSS, EvalBatch, EvalDataset, Rows, token_scores
from headcount.data.from_file import Format, TokenizedModel, clusters_of, windows
from headcount.tasks.base import IGNORE


def make(name: str, text: str, tokenized: TokenizedModel) -> EvalDataset:
    """How well each next token of the text is foretold."""
    tokens = windows(name, text, tokenized)

    def encode(rows: Rows) -> EvalBatch:
        ids = torch.from_numpy(tokens[rows]).to(tokenized.device)
        labels = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], IGNORE)], dim=1)
        return EvalBatch.scored(rows, (ids, torch.ones_like(ids)), token_scores(labels))

    n, length = tokens.shape
    data = f"windows of {length} tokens of {name}, loss of the next token{tokenized.unknown_note(tokens)}"
    return EvalDataset(data, (LOSS,), np.full(n, length), encode, tokenized.config.vocab_size, clusters=clusters_of(n))


PART = Format("text: loss of the next token", (), make)
