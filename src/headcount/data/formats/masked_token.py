"""Plain text, for models that fill in masked tokens.

Of every window 15 % of the tokens are masked, always the same ones, and always by the mask token itself: the mixture
with other tokens that such models were trained on serves training only.
"""

import numpy as np
import torch

from headcount.data.dataset import LOSS, EvalBatch, EvalDataset, Rows, token_scores
from headcount.data.from_file import Format, TokenizedModel, clusters_of, windows
from headcount.errors import InputError
from headcount.seeds import stream
from headcount.tasks.base import IGNORE

SHARE = 0.15


def make(name: str, text: str, tokenized: TokenizedModel) -> EvalDataset:
    """How well masked tokens of the text are filled in."""
    mask = getattr(tokenized.tokenizer, "mask_token_id", None)
    if mask is None:
        raise InputError("this tokenizer has no mask token", "such a model cannot be scored on masked tokens")
    begin, end = _around(tokenized)
    inner = windows(name, text, tokenized, len(begin) + len(end))
    n, length = inner.shape
    hidden, n_masked = np.zeros((n, length), dtype=bool), max(1, round(SHARE * length))
    for i in range(n):
        hidden[i, stream(0, "masked", i).permutation(length)[:n_masked]] = True

    def encode(rows: Rows) -> EvalBatch:
        shown = np.where(hidden[rows], mask, inner[rows])
        asked = np.where(hidden[rows], inner[rows], IGNORE)
        ids = torch.from_numpy(_framed(shown, begin, end)).to(tokenized.device)
        labels = torch.from_numpy(_framed(asked, [IGNORE] * len(begin), [IGNORE] * len(end))).to(tokenized.device)
        return EvalBatch.scored(rows, (ids, torch.ones_like(ids)), token_scores(labels))

    data = f"windows of {length} tokens of {name}, loss of masked tokens ({n_masked} in each)"
    data += tokenized.unknown_note(inner)
    return EvalDataset(data, (LOSS,), np.full(n, length), encode, tokenized.config.vocab_size, clusters=clusters_of(n))


def _around(tokenized: TokenizedModel) -> tuple[list[int], list[int]]:
    """The special tokens that stand before and after a text."""
    some = tokenized.tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = list(tokenized.tokenizer("a")["input_ids"])
    at = next((i for i in range(len(whole)) if whole[i : i + len(some)] == list(some)), 0)
    return whole[:at], whole[at + len(some) :]


def _framed(middle: Rows, begin: list[int], end: list[int]) -> Rows:
    left, right = (np.tile(np.array(part, dtype=np.int64), (len(middle), 1)) for part in (begin, end))
    return np.concatenate([left, middle, right], axis=1)


PART = Format("text: loss of masked tokens", (), make)
