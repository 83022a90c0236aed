"""Texts, for models that fill in masked tokens.

In each window, 15 % of the tokens are replaced by the mask token, the same ones in every run. Training also replaces
some of them by random tokens or leaves them as they are; an evaluation does not need that.
"""

import numpy as np
import torch

from headcount.data.dataset import LOSS, EvalBatch, EvalDataset, Rows, token_scores
from headcount.data.from_file import TEXT, Format, TokenizedModel, special_tokens_around, windows
from headcount.data.tables import Table
from headcount.errors import InputError
from headcount.seeds import stream
from headcount.tasks.base import IGNORE

SHARE = 0.15


def make(table: Table, tokenized: TokenizedModel) -> EvalDataset:
    """Return the dataset of texts in a table, scored by the loss of predicting tokens that are masked."""
    mask_id = getattr(tokenized.tokenizer, "mask_token_id", None)
    if mask_id is None:
        raise InputError(
            "this tokenizer has no mask token",
            "such a model cannot be scored on masked tokens: choose a model whose tokenizer has one",
        )
    begin, end = special_tokens_around(tokenized.tokenizer)
    pieces = windows(table, tokenized, len(begin) + len(end))
    inputs, targets = list[list[int]](), list[list[int]]()
    for i, tokens in enumerate(pieces.tokens):
        masked = set(stream(0, "masked", i).permutation(len(tokens))[: _n_masked(len(tokens))].tolist())
        inputs.append([*begin, *(mask_id if at in masked else token for at, token in enumerate(tokens)), *end])
        labels = [token if at in masked else IGNORE for at, token in enumerate(tokens)]
        targets.append([IGNORE] * len(begin) + labels + [IGNORE] * len(end))

    def encode(rows: Rows) -> EvalBatch:
        ids, mask = tokenized.padded([inputs[row] for row in rows])
        labels, _ = tokenized.padded([targets[row] for row in rows])
        labels = torch.where(mask.bool(), labels, IGNORE)
        return EvalBatch.scored(rows, (ids, mask), token_scores(labels), {"layer": mask.bool()})

    many = f"{SHARE:.0%}" if pieces.n_tokens is None else _n_masked(pieces.n_tokens)
    data = f"{pieces.what}, loss of masked tokens ({many} in each){tokenized.unknown_note(pieces.tokens)}"
    lengths = np.array([len(ids) for ids in inputs])
    return EvalDataset(data, (LOSS,), lengths, encode, tokenized.config.vocab_size, clusters=pieces.clusters)


def _n_masked(n_tokens: int) -> int:
    return max(1, round(SHARE * n_tokens))


PART = Format("texts: loss of masked tokens", TEXT, make)
