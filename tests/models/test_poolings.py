"""The contract of all poolings, and the result of each one computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headcount.describing.sections.mathematics import SYMMETRIC
from headcount.models.config import POOLINGS
from headcount.models.poolings import PARTS, Pooling

D_MODEL = 6
Row = list[list[float]]
unhurried = settings(deadline=None, max_examples=25)
lengths = st.lists(st.integers(1, 12), min_size=1, max_size=4)
modes = pytest.mark.parametrize("training", [False, True], ids=["test", "training"])


def build(name: str) -> Pooling:
    torch.manual_seed(0)
    made: Pooling = POOLINGS.get(name)(D_MODEL)
    return made.eval()


@pytest.fixture(scope="module", params=POOLINGS.names())
def pooling(request: pytest.FixtureRequest) -> Pooling:
    return build(request.param)


def sequences(n_tokens: list[int], extra: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of so many tokens each, and which places are tokens."""
    is_token = torch.arange(max(n_tokens) + extra) < torch.tensor(n_tokens)[:, None]
    return torch.randn(*is_token.shape, D_MODEL, generator=torch.Generator().manual_seed(len(n_tokens))), is_token


# --- the contract ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1, 2, 300])
def test_one_vector_of_the_promised_width_for_each_row(pooling: Pooling, length: int, dtype: torch.dtype) -> None:
    x, is_token = sequences([length, 1, length])
    pooled = pooling.to(dtype)(x.to(dtype), is_token)
    pooling.float()
    assert (pooled.shape, pooled.dtype) == ((3, pooling.d_pooled), dtype)
    assert pooled.isfinite().all()


@pytest.mark.slow
@modes
@unhurried
@given(lengths, st.integers(0, 5), st.sampled_from([0.0, -1e30, 1e30]))
def test_padding_never_matters(pooling: Pooling, training: bool, n_tokens: list[int], extra: int, junk: float) -> None:
    pooling.train(training)
    x, is_token = sequences(n_tokens, extra)
    pooled = pooling(x.masked_fill(~is_token[..., None], junk), is_token)
    alone = [pooling(row[None, :n], is_token[:1, :n] | True) for row, n in zip(x, n_tokens, strict=True)]
    torch.testing.assert_close(pooled, torch.cat(alone), atol=1e-5, rtol=1e-5)


@modes
def test_symmetric_is_who_knows_no_order(pooling: Pooling, training: bool) -> None:
    pooling.train(training)
    x, is_token = sequences([9] * 20)
    order = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(row)) for row in range(20)])
    apart = pooling(x, is_token) - pooling(x[torch.arange(20)[:, None], order], is_token)
    assert (apart.abs().max().item() < 1e-6) == pooling.symmetric


@modes
@pytest.mark.parametrize("junk", [0.0, 1e30])
def test_gradients_are_finite_and_none_reaches_padding(pooling: Pooling, training: bool, junk: float) -> None:
    pooling.train(training)
    x, is_token = sequences([1, 5, 3], extra=2)
    x = x.masked_fill(~is_token[..., None], junk).requires_grad_()
    gradients = torch.autograd.grad(pooling(x, is_token).sin().sum(), [x, *pooling.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][~is_token] == 0).all()
    assert (gradients[0][is_token] != 0).any()


def test_what_it_hard_codes_is_told_in_words(pooling: Pooling) -> None:
    assert isinstance(pooling.hard_codes, str)
    assert (pooling.hard_codes == "order of neighbours") == isinstance(pooling, POOLINGS.get("neighbour-difference"))


# --- the definitions ------------------------------------------------------------------------------------------------


def columns(row: Row) -> list[tuple[float, ...]]:
    return list(zip(*row, strict=True))


def mean(row: Row) -> list[float]:
    return [sum(column) / len(column) for column in columns(row)]


def log_sum_exp(row: Row) -> list[float]:
    return [math.log(sum(math.exp(value) for value in column)) for column in columns(row)]


def neighbour_difference(row: Row) -> list[float]:
    steps = [[b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(row)]
    steps = steps or [[0.0] * D_MODEL]
    return [*map(min, columns(row)), *map(min, columns(steps)), *mean(steps), *row[0], *row[-1]]


def scores(pooling: Pooling, row: Row) -> list[float]:
    """One linear score per position."""
    weight, bias = pooling.score.weight[0].tolist(), pooling.score.bias.item()
    return [bias + sum(w * value for w, value in zip(weight, token, strict=True)) for token in row]


def attention(pooling: Pooling, row: Row) -> list[float]:
    weights = [math.exp(score) for score in scores(pooling, row)]
    return [sum(w * value for w, value in zip(weights, column, strict=True)) / sum(weights) for column in columns(row)]


def score_ends(pooling: Pooling, row: Row) -> list[float]:
    return [max(scores(pooling, row)), min(scores(pooling, row))]


def top_score(pooling: Pooling, row: Row) -> list[float]:
    """A maximum of scores that is soft in training."""
    ours = scores(pooling, row)
    return [math.log(sum(map(math.exp, ours)))] if pooling.training else [max(ours)]


def largest(pooling: Pooling, row: Row) -> list[float]:
    """A maximum that is soft in training."""
    return log_sum_exp(row) if pooling.training else [*map(max, columns(row))]


PLAIN: dict[str, Callable[[Pooling, Row], list[float]]] = {
    "attention": attention,
    "first": lambda _, row: row[0],
    "last": lambda _, row: row[-1],
    "lse-max": largest,
    "max": lambda _, row: [*map(max, columns(row))],
    "mean": lambda _, row: mean(row),
    "min": lambda _, row: [*map(min, columns(row))],
    "neighbour-difference": lambda _, row: neighbour_difference(row),
    "score-max": score_ends,
    "top-score": top_score,
}


def test_every_pooling_has_a_definition_and_is_listed_if_it_is_symmetric() -> None:
    assert set(PLAIN) == set(PARTS)
    assert set(SYMMETRIC) == {name for name, pooling in PARTS.items() if pooling.symmetric}


@pytest.mark.slow
@modes
@pytest.mark.parametrize("name", PLAIN)
@unhurried
@given(lengths)
def test_a_pooling_is_its_definition(name: str, training: bool, n_tokens: list[int]) -> None:
    pooling, (x, is_token) = build(name).train(training), sequences(n_tokens)
    expected = [PLAIN[name](pooling, row[:n].tolist()) for row, n in zip(x, n_tokens, strict=True)]
    torch.testing.assert_close(pooling(x, is_token).detach(), torch.tensor(expected), atol=1e-4, rtol=1e-4)


def test_lse_max_is_soft_in_training_alone() -> None:
    pooling, (x, is_token) = build("lse-max"), sequences([8])
    hard, soft = pooling(x, is_token), pooling.train()(x, is_token)
    assert torch.equal(hard, x.amax(dim=1))
    assert ((soft > hard) & (soft < hard + math.log(8))).all()
