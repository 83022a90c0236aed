"""Poolings, which turn a sequence of vectors into one vector, and the table of their names."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

Sequences = Float[Tensor, "batch length d_model"]
Tokens = Bool[Tensor, "batch length"]
Pooled = Float[Tensor, "batch d_pooled"]


class Pooling(nn.Module, ABC):
    """Base class of poolings, which turn a sequence of vectors into one vector of width `d_pooled`."""

    symmetric: ClassVar[bool] = True
    """Whether the result is the same for any permutation of the sequence."""
    hard_codes: ClassVar[str] = ""
    """The structure of the task that this pooling gives to the model, in words; empty for a generic pooling."""
    combines: ClassVar[Literal["max", "mean", ""]] = ""
    """How the logit difference of a sequence follows from the logit differences of its positions: "max" or "mean".

    The logit difference is the logit of the first class minus that of the last class. Empty if single positions have
    no logits.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_pooled = d_model

    def initialise_readout(self, to_logits: nn.Linear) -> None:
        """Set special initial weights of `to_logits`, the layer after this pooling; by default, change nothing."""

    @abstractmethod
    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Return one vector per sequence; positions where `is_token` is false have no influence."""


def hide(x: Float[Tensor, "batch length d"], is_token: Tokens, value: float) -> Float[Tensor, "batch length d"]:
    """Return `x` with the vectors at padding replaced by `value`, such as 0, so that they do not change a sum."""
    return x.masked_fill(~is_token[..., None], value)


class Max(Pooling):
    """The maximum of each dimension over positions; a single position can decide in a sequence of any length."""

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Return the maximum of each dimension over all tokens, without padding."""
        return hide(x, is_token, -torch.inf).amax(dim=1)


class Min(Pooling):
    """The minimum of each dimension over positions."""

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Return the minimum of each dimension over all tokens, without padding."""
        return hide(x, is_token, torch.inf).amin(dim=1)


class Mean(Pooling):
    """The mean over positions; a single position has weight 1/n, so its signal is diluted in long sequences."""

    combines: ClassVar[Literal["max", "mean", ""]] = "mean"

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Return the mean of the vectors over all tokens, without padding."""
        return hide(x, is_token, 0.0).sum(dim=1) / is_token.sum(dim=1, keepdim=True).clamp(min=1)


class First(Pooling):
    """The vector of the first token, which must collect all information by attention."""

    symmetric: ClassVar[bool] = False

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Return the vector of the first token, x_0."""
        return x[:, 0]


class Last(Pooling):
    """The vector of the last token before the padding; in a causal model, only this token sees the whole sequence."""

    symmetric: ClassVar[bool] = False

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Return the vector of the last token, x_(n-1) in a sequence of n tokens."""
        last = is_token.sum(dim=1).clamp(min=1) - 1
        return x[torch.arange(len(x), device=x.device), last]


class AttentionPooling(Pooling):
    """The weighted mean over positions, with weights from a softmax of one learned score per position.

    Lin et al. 2017, "A structured self-attentive sentence embedding", arXiv 1703.03130, with one linear score.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.score = nn.Linear(d_model, 1)

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Return the sum of weight_i x_i over all tokens, where the weights are a learned softmax."""
        weights = hide(self.score(x), is_token, torch.finfo(x.dtype).min).softmax(dim=1)
        return (weights * hide(x, is_token, 0.0)).sum(dim=1)


class LseMax(Pooling):
    """Log-sum-exp in training, the maximum at test time.

    training   log sum_i exp x_i        every position gets a gradient, the largest one the most
    test       max_i x_i                does not grow with the length, unlike the log-sum-exp
    """

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Return the log-sum-exp of each dimension over all tokens in training, else the maximum."""
        # The lowest finite number, not -inf: a row of -inf (padding only) would have no gradient.
        hidden = hide(x, is_token, torch.finfo(x.dtype).min)
        return hidden.logsumexp(dim=1) if self.training else hidden.amax(dim=1)


class ScoreMax(Pooling):
    """The maximum and the minimum, over positions, of one learned score per position.

    A score can express the evidence of one position, and the strongest evidence decides, independent of the length.
    Both extremes are returned, because a score that starts with the wrong sign could not learn to change it.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.score = nn.Linear(d_model, 1)
        self.d_pooled = 2

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Return the largest and the smallest learned score of all tokens, without padding."""
        score = self.score(x)
        ends = hide(score, is_token, -torch.inf).amax(dim=1), hide(score, is_token, torch.inf).amin(dim=1)
        return torch.cat(ends, dim=1)


class TopScore(Pooling):
    """The maximum, over positions, of one learned score per position, which is evidence for the first class.

    In training, the log-sum-exp takes the place of the maximum, so that every position gets a gradient. The layer after
    the pooling starts with the right sign, because a wrong sign often ends in a constant answer. With windowed
    attention, the score of a position depends on its neighbours only, so `headcount verify` can prove such a model for
    every length.
    """

    combines: ClassVar[Literal["max", "mean", ""]] = "max"

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.score = nn.Linear(d_model, 1)
        self.d_pooled = 1

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Return the log-sum-exp of the tokens' learned scores in training, else their maximum."""
        hidden = hide(self.score(x), is_token, torch.finfo(x.dtype).min)
        return hidden.logsumexp(dim=1) if self.training else hidden.amax(dim=1)

    def initialise_readout(self, to_logits: nn.Linear) -> None:
        """Set the initial weights of the next layer so that the score raises the first class and lowers the others."""
        nn.init.constant_(to_logits.weight, -1.0)
        nn.init.constant_(to_logits.weight[:1], 1.0)


class NeighbourDifference(Pooling):
    """Five vectors: minimum, least and mean difference of neighbours, first and last (of the published report 003).

    The differences give the model the order of neighbours. Even a model without positions can then recognise sorted
    sequences, so experiments with this pooling do not measure the encoding.
    """

    symmetric: ClassVar[bool] = False
    hard_codes: ClassVar[str] = "order of neighbours"

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.d_pooled = 5 * d_model

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Return [minimum, minimal difference, mean difference, first, last]; differences are 0 for a single token."""
        n = is_token.sum(dim=1, keepdim=True).clamp(min=1)
        last = x[torch.arange(len(x), device=x.device), n[:, 0] - 1]
        step, is_pair = x[:, 1:] - x[:, :-1], is_token[:, 1:] & is_token[:, :-1]
        has_pair = is_pair.any(dim=1, keepdim=True)
        least = x.new_zeros(last.shape)
        if step.shape[1]:
            least = hide(step, is_pair, torch.inf).amin(dim=1).where(has_pair, least)
        mean = hide(step, is_pair, 0.0).sum(dim=1) / (n - 1).clamp(min=1)
        return torch.cat([hide(x, is_token, torch.inf).amin(dim=1), least, mean, x[:, 0], last], dim=1)


PARTS: dict[str, type[Pooling]] = {
    "max": Max,
    "min": Min,
    "mean": Mean,
    "first": First,
    "last": Last,
    "attention": AttentionPooling,
    "lse-max": LseMax,
    "score-max": ScoreMax,
    "top-score": TopScore,
    "neighbour-difference": NeighbourDifference,
}
