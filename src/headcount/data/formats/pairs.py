"""A table of sentence pairs with similarity scores: does the model's similarity rank the pairs as people do?

A sentence's embedding is the mean of the last hidden states of its tokens (padding aside), similarity is the cosine,
and the figure is Spearman's rank correlation with the given scores over all pairs.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from headcount.data.dataset import EvalBatch, EvalDataset, Metric, Rows
from headcount.data.from_file import Format, TokenizedModel
from headcount.data.tables import Table
from headcount.errors import InputError
from headcount.stats import rank_correlations

SPEARMAN = Metric("spearman", False, "points")
DIGITS = 6
"""Number of decimals to which cosines are rounded before they are ranked, so that rounding errors, which depend on the
batch, do not rank pairs that are equally similar."""


def make(table: Table, tokenized: TokenizedModel) -> EvalDataset:
    """Return the dataset of sentence pairs in a table, scored by the rank correlation of cosine similarity."""
    tokenized.require_one_text()
    pairs = table.rows("first", "second", "score")
    first, second = (tokenized.tokens([pair[side] for pair in pairs]) for side in (0, 1))
    given = np.array([_number(table.where(i), pair[2]) for i, pair in enumerate(pairs)])
    if given.min() == given.max():
        raise InputError(
            f"all pairs of {table.name} have the score {given[0]:g}",
            "give pairs with different scores: there is nothing to rank",
        )
    wanted = (given - given.min()) / (given.max() - given.min())

    def encode(rows: Rows) -> EvalBatch:
        both = [side[row] for row in rows for side in (first, second)]
        ids, mask = tokenized.padded(both)
        target = torch.from_numpy(wanted[rows]).to(tokenized.device)

        return EvalBatch(
            rows,
            (ids, mask),
            scores={SPEARMAN.name: lambda hidden: cosines(hidden, mask)},
            loss=lambda hidden: (cosines(hidden, mask) - target) ** 2,
            token_mask={"layer": mask.bool(), "encoder": mask.bool()},
        )

    def aggregate(scores: NDArray[np.float64], rows: Rows) -> NDArray[np.float64]:
        return rank_correlations(scores.round(DIGITS), given[rows])

    lengths = np.array([max(len(a), len(b)) for a, b in zip(first, second, strict=True)])
    note = table.note("first", "second", "score")
    note += tokenized.cut_note(sentence for pair in pairs for sentence in pair[:2])
    data = f"{len(pairs)} sentence pairs of {table.name}{note}{tokenized.unknown_note([*first, *second])}"
    return EvalDataset(
        data, (SPEARMAN,), lengths, encode, tokenized.config.hidden_size, {SPEARMAN.name: aggregate}, n_rows=2
    )


def cosines(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the cosine similarity of sentence pairs: of the mean hidden states of rows 0 and 1, 2 and 3, ..."""
    if hidden.dim() != 3 or hidden.shape[:2] != mask.shape:
        raise InputError(
            f"the model outputs a tensor of shape {tuple(hidden.shape)}, "
            f"not hidden states of shape ({', '.join(map(str, mask.shape))}, hidden size)",
            "load it without a head (AutoModel)",
        )
    token_mask = mask.to(hidden)[..., None]
    means = (hidden * token_mask).sum(dim=1) / token_mask.sum(dim=1)
    return F.cosine_similarity(means[0::2], means[1::2], dim=-1)


def _number(where: str, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where}: {text!r} is not a number", "give the similarity of the two sentences as a number")
    return score


PART = Format("sentence pairs: rank correlation of similarity", ("first", "second", "score"), make)
