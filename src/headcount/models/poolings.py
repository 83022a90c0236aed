"""From a sequence to one vector: a class for each pooling, and the table of their names."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

Sequences = Float[Tensor, "batch length d_model"]
Tokens = Bool[Tensor, "batch length"]
Pooled = Float[Tensor, "batch d_pooled"]


class Pooling(nn.Module, ABC):
    """Built with the width of the sequence; `d_pooled` is the width of what it makes."""

    symmetric: ClassVar[bool] = True
    """Whether it knows no order: any permutation of the sequence gives the same."""
    hard_codes: ClassVar[str] = ""
    """The structure of the task that this pooling gives away, in words; empty if it is generic."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_pooled = d_model

    @abstractmethod
    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """One vector for each sequence, whatever stands where `is_token` is false."""


def hide(x: Float[Tensor, "batch length d"], is_token: Tokens, value: float) -> Float[Tensor, "batch length d"]:
    """The sequence with padding replaced."""
    return x.masked_fill(~is_token[..., None], value)


class Max(Pooling):
    """The largest value of each dimension over positions: one position can decide at any length."""

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Max over tokens."""
        return hide(x, is_token, -torch.inf).amax(dim=1)


class Min(Pooling):
    """The smallest value of each dimension over positions."""

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Min over tokens."""
        return hide(x, is_token, torch.inf).amin(dim=1)


class Mean(Pooling):
    """The mean over positions. What one position holds counts 1/n: it is diluted as sequences grow."""

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Sum over tokens / number of tokens."""
        return hide(x, is_token, 0.0).sum(dim=1) / is_token.sum(dim=1, keepdim=True).clamp(min=1)


class First(Pooling):
    """The first token's vector, which must gather everything by attention."""

    symmetric: ClassVar[bool] = False

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """x_0."""
        return x[:, 0]


class Last(Pooling):
    """The last token's vector, padding not counted; in a causal model the only one that has seen everything."""

    symmetric: ClassVar[bool] = False

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """x_(n-1)."""
        last = is_token.sum(dim=1).clamp(min=1) - 1
        return x[torch.arange(len(x), device=x.device), last]


class AttentionPooling(Pooling):
    """A weighted mean whose weights are a softmax of one learned score per position.

    Lin et al. 2017, "A structured self-attentive sentence embedding", arXiv 1703.03130, with one linear score.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.score = nn.Linear(d_model, 1)

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Sum of weight_i x_i."""
        weights = hide(self.score(x), is_token, torch.finfo(x.dtype).min).softmax(dim=1)
        return (weights * hide(x, is_token, 0.0)).sum(dim=1)


class LseMax(Pooling):
    """A soft maximum in training, the maximum itself at test.

    training   log sum_i exp x_i        every position gets a gradient, the largest most
    test       max_i x_i                does not grow with the length, as the sum would
    """

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Log-sum-exp or max over tokens."""
        # The lowest finite number, not -inf, whose log-sum-exp over nothing but padding has no gradient.
        hidden = hide(x, is_token, torch.finfo(x.dtype).min)
        return hidden.logsumexp(dim=1) if self.training else hidden.amax(dim=1)


class ScoreMax(Pooling):
    """One score per position, then the largest and the smallest.

    Each position scores, alone, how sure it is that something is wrong there; the surest decides. Nothing depends on
    how many positions there are. Both ends are handed on, since a score that begins with the wrong sign could not turn
    round.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.score = nn.Linear(d_model, 1)
        self.d_pooled = 2

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Max and min of the scores."""
        score = self.score(x)
        ends = hide(score, is_token, -torch.inf).amax(dim=1), hide(score, is_token, torch.inf).amin(dim=1)
        return torch.cat(ends, dim=1)


class NeighbourDifference(Pooling):
    """Report 003's pooling: [min, least difference of neighbours, mean difference of neighbours, first, last].

    The differences hand the order of neighbours to the model, so that even a model without any positions tells sorted
    from unsorted: what is measured with this pooling is not the encoding.
    """

    symmetric: ClassVar[bool] = False
    hard_codes: ClassVar[str] = "order of neighbours"

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.d_pooled = 5 * d_model

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """The least difference of a single token is 0, as is its mean."""
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
    "neighbour-difference": NeighbourDifference,
}
