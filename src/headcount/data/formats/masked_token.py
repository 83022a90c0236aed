"""Texts, for models that fill in masked tokens.

Of every window 15 % of the tokens are masked, always the same ones, and always by the mask token itself: the mixture
with other tokens that such models were trained on serves training only.
"""

import numpy as np
import torch

from headcount.data.dataset import LOSS, EvalBatch, EvalDataset, Rows, token_scores
from headcount.data.from_file import TEXT, Format, TokenizedModel, windows
from headcount.data.tables import Table
from headcount.errors import InputError
from headcount.seeds import stream
from headcount.tasks.base import IGNORE

SHARE = 0.15


def make(table: Table, tokenized: TokenizedModel) -> EvalDataset:
    """Make a dataset scored by the prediction of masked tokens."""
    mask_id = getattr(tokenized.tokenizer, "mask_token_id", None)
    if mask_id is None:
        raise InputError("this tokenizer has no mask token", "such a model cannot be scored on masked tokens")
    begin, end = _around(tokenized)
    found = windows(table, tokenized, len(begin) + len(end))
    shown, asked = list[list[int]](), list[list[int]]()
    for i, inner in enumerate(found.tokens):
        hidden = set(stream(0, "masked", i).permutation(len(inner))[: _n_masked(len(inner))].tolist())
        shown.append([*begin, *(mask_id if at in hidden else each for at, each in enumerate(inner)), *end])
        wanted = [each if at in hidden else IGNORE for at, each in enumerate(inner)]
        asked.append([IGNORE] * len(begin) + wanted + [IGNORE] * len(end))

    def encode(rows: Rows) -> EvalBatch:
        ids, mask = tokenized.padded([shown[row] for row in rows])
        labels, _ = tokenized.padded([asked[row] for row in rows])
        labels = torch.where(mask.bool(), labels, IGNORE)
        return EvalBatch.scored(rows, (ids, mask), token_scores(labels), {"layer": mask.bool()})

    many = f"{SHARE:.0%}" if found.n_tokens is None else _n_masked(found.n_tokens)
    data = f"{found.what}, loss of masked tokens ({many} in each){tokenized.unknown_note(found.tokens)}"
    lengths = np.array([len(each) for each in shown])
    return EvalDataset(data, (LOSS,), lengths, encode, tokenized.config.vocab_size, clusters=found.clusters)


def _n_masked(n_tokens: int) -> int:
    return max(1, round(SHARE * n_tokens))


def _around(tokenized: TokenizedModel) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after a text."""
    some = tokenized.tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = list(tokenized.tokenizer("a")["input_ids"])
    at = next((i for i in range(len(whole)) if whole[i : i + len(some)] == list(some)), 0)
    return whole[:at], whole[at + len(some) :]


PART = Format("texts: loss of masked tokens", TEXT, make)
