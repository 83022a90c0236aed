"""Texts, for models that predict the next token."""

import numpy as np
import torch

from headcount.data.dataset import LOSS, EvalBatch, EvalDataset, Rows, token_scores
from headcount.data.from_file import TEXT, Format, TokenizedModel, windows
from headcount.data.tables import Table
from headcount.tasks.base import IGNORE


def make(table: Table, tokenized: TokenizedModel) -> EvalDataset:
    """Return the dataset of texts in a table, scored by the loss of predicting each next token."""
    pieces = windows(table, tokenized)

    def encode(rows: Rows) -> EvalBatch:
        ids, mask = tokenized.padded([pieces.tokens[row] for row in rows])
        shifted = torch.cat([ids[:, 1:], ids[:, :1]], dim=1)
        is_asked = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1).bool()
        labels = torch.where(is_asked, shifted, IGNORE)
        return EvalBatch.scored(rows, (ids, mask), token_scores(labels), {"layer": mask.bool()})

    lengths = np.array([len(tokens) for tokens in pieces.tokens])
    data = f"{pieces.what}, loss of the next token{tokenized.unknown_note(pieces.tokens)}"
    return EvalDataset(data, (LOSS,), lengths, encode, tokenized.config.vocab_size, clusters=pieces.clusters)


PART = Format("texts: loss of the next token", TEXT, make)
