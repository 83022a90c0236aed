"""A forward pass with a bound of its rounding error, against the same model in plain Python with 40 digits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch
from small_sorters import MODELS, classifier
from torch import nn

from headcount.analysis.context_rounding import DOUBLE, SINGLE, Arithmetic, Bounded, BoundedPass, first_order_error
from headcount.models.attention import MultiHeadAttention
from headcount.models.transformer import Classifier, FourierNumberEmbedding
from headcount.training.contexts import ContextShape, context_leads, enumerate_contexts, layers_of

N = 4
Number = Any
"""A float or a Decimal."""
Vector = list[Number]


class ByHand:
    """The lead of a context in plain Python, in any arithmetic and any order of summation."""

    def __init__(
        self, model: Classifier, number: Callable[[float], Number], total: Callable[[Sequence[Number]], Number]
    ):
        self.model, self.number, self.total = model, number, total

    def vector(self, tensor: torch.Tensor) -> Vector:
        return [self.number(value) for value in tensor.tolist()]

    def linear(self, x: Vector, layer: Any) -> Vector:
        rows = [self.vector(row) for row in layer.weight]
        return [
            self.total([*(w * v for w, v in zip(row, x, strict=True)), b])
            for row, b in zip(rows, self.vector(layer.bias), strict=True)
        ]

    def norm(self, x: Vector, norm: nn.Module) -> Vector:
        if not isinstance(norm, nn.LayerNorm):
            return x
        n = self.number(len(x))
        centred = [v - self.total(x) / n for v in x]
        spread = self.power(self.total([v * v for v in centred]) / n + self.number(norm.eps), 0.5)
        gain, bias = self.vector(norm.weight), self.vector(norm.bias)
        return [v / spread * g + b for v, g, b in zip(centred, gain, bias, strict=True)]

    def power(self, value: Number, exponent: float) -> Number:
        return value ** self.number(exponent)

    def exp(self, value: Number) -> Number:
        return value.exp() if isinstance(value, Decimal) else float(torch.tensor(value, dtype=torch.float64).exp())

    def attend(self, attention: Any, normed: list[Vector], query: int) -> Vector:
        if not isinstance(attention, MultiHeadAttention):
            return self.vector(attention.output["bias"])
        width, d_head = self.model.config.window or 0, attention.d_head
        causal = self.model.config.causal or self.model.positions.forces_causal
        keys = [j for j in range(len(normed)) if abs(j - query) <= width and not (causal and j > query)]
        q = self.linear(normed[query], attention.query)
        k, v = ([self.linear(normed[j], part) for j in keys] for part in (attention.key, attention.value))
        z: Vector = []
        for slot, head in enumerate(attention.kept):
            part = slice(slot * d_head, (slot + 1) * d_head)
            scores = []
            for j, key in zip(keys, k, strict=True):
                bias = self.model.positions.bias(torch.tensor(query), torch.tensor(j))
                added = 0.0 if bias is None else bias[head if len(bias) > 1 else 0].item()
                dot = self.total([a * b for a, b in zip(q[part], key[part], strict=True)])
                scores.append(dot / self.power(self.number(d_head), 0.5) + self.number(added))
            exps = [self.exp(score - max(scores)) for score in scores]
            weights = [each / self.total(exps) for each in exps]
            z += [
                self.total([w * value[i] for w, value in zip(weights, v, strict=True)])
                for i in range(*part.indices(99))
            ]
        return self.linear(z, attention.output)

    def lead(self, tokens: list[int], centre: int) -> Number:
        table = self.model.tokens
        if isinstance(table, FourierNumberEmbedding):
            x = [self.linear(self.vector(table.waves[token]), table.mix) for token in tokens]
        else:
            x = [self.vector(table.weight[token]) for token in tokens]
        for layer in layers_of(self.model):
            attention, first = layer.self_attention.attention, layer.self_attention.residual
            second, (up, _, down) = layer.feed_forward.residual, list(layer.feed_forward.layers)[:3]
            normed = [self.norm(each, first.norm) if first.pre else each for each in x]
            x = [self.sum(each, self.attend(attention, normed, i)) for i, each in enumerate(x)]
            x = x if first.pre else [self.norm(each, first.norm) for each in x]
            inner = [self.norm(each, second.norm) if second.pre else each for each in x]
            hidden = [[max(value, self.number(0.0)) for value in self.linear(each, up)] for each in inner]
            x = [self.sum(each, self.linear(h, down)) for each, h in zip(x, hidden, strict=True)]
            x = x if second.pre else [self.norm(each, second.norm) for each in x]
        last = self.norm(x[centre], self.model.norm)
        score: Any = getattr(self.model.pooling, "score", None)
        logits = self.linear(last if score is None else self.linear(last, score), self.model.to_logits)
        return logits[0] - logits[1]

    def sum(self, a: Vector, b: Vector) -> Vector:
        return [x + y for x, y in zip(a, b, strict=True)]


def borders(model: Classifier, n: int = N) -> list[tuple[torch.Tensor, int]]:
    """Return the contexts of each shape, and where their position is."""
    shape = ContextShape.of(model, n)
    return [(torch.cat(list(enumerate_contexts(n, left + 1 + right))), left) for left, right in shape.borders()]


@pytest.mark.parametrize("name", MODELS)
def test_the_value_is_the_model_in_double_precision(name: str) -> None:
    model = classifier(N, **MODELS[name])
    double, bounded = deepcopy(model).double(), BoundedPass(model, N, Arithmetic())
    for tokens, centre in borders(model):
        found = bounded.leads(tokens, centre)
        torch.testing.assert_close(found.value, context_leads(double, tokens, centre), atol=1e-11, rtol=0)
        assert (found.error > 0).all()
        assert found.error.max() < 1e-3, "a bound that is larger than every lead says nothing"


@pytest.mark.parametrize("name", MODELS)
def test_the_bound_covers_the_distance_to_40_digits_in_any_order_of_summation(name: str) -> None:
    model, rng = classifier(N, seed=3, **MODELS[name]), random.Random(0)

    def in_any_order(values: Sequence[float]) -> float:
        result = 0.0
        for value in rng.sample(list(values), len(values)):
            result += value
        return result

    tokens, centre = borders(model)[-1]
    tokens = tokens[torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))[:4]]
    bounded = BoundedPass(model, N, Arithmetic()).leads(tokens, centre)
    for row, value, error in zip(tokens.tolist(), bounded.value.tolist(), bounded.error.tolist(), strict=True):
        with localcontext(prec=40):
            exact = ByHand(model, Decimal, lambda values: sum(values, Decimal(0))).lead(row, centre)
            assert abs(Decimal(value) - exact) <= Decimal(error)
            shuffled = [Decimal(ByHand(model, float, in_any_order).lead(row, centre)) for _ in range(3)]
            assert all(abs(each - exact) <= Decimal(error) for each in shuffled)
            assert max(abs(each - exact) for each in shuffled) > 0, "the orders do round"


@pytest.mark.parametrize("name", MODELS)
def test_single_precision_moves_a_lead_by_less_than_the_first_order_estimate(name: str) -> None:
    model = classifier(N, seed=4, **MODELS[name])
    bounded = BoundedPass(model, N, Arithmetic())
    for tokens, centre in borders(model):
        moved = (context_leads(model, tokens, centre).double() - bounded.leads(tokens, centre).value).abs()
        estimate = first_order_error(model, N, tokens, centre)
        assert moved.max() > 0
        assert (moved <= estimate).all()
        assert (estimate < BoundedPass(model, N, Arithmetic(SINGLE)).leads(tokens, centre).error).all()


def test_the_estimate_of_a_context_does_not_depend_on_the_others() -> None:
    model = classifier(N)
    tokens, centre = borders(model)[-1]
    together = first_order_error(model, N, tokens, centre)
    alone = torch.cat([first_order_error(model, N, row[None], centre) for row in tokens[:9]])
    torch.testing.assert_close(together[:9], alone)


def test_the_bound_grows_with_the_unit() -> None:
    model = classifier(N)
    tokens, centre = borders(model)[-1]
    errors = [BoundedPass(model, N, Arithmetic(DOUBLE * 2**i)).leads(tokens, centre).error for i in (0, 1, 10, 29)]
    assert all((small < large).all() for small, large in itertools.pairwise(errors))
    torch.testing.assert_close(errors[1], 2 * errors[0], rtol=1e-4, atol=0)


def test_an_error_of_the_embedding_is_passed_on() -> None:
    """Where the inputs of an operation are uncertain, its result is at least as uncertain."""
    ops, generator = Arithmetic(), torch.Generator().manual_seed(0)
    numbers = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    x, moved, weight, bias = numbers(5, 8), 1e-3 * numbers(5, 8), numbers(3, 8), numbers(3)
    norm = nn.LayerNorm(8)
    for operate in (
        lambda each: ops.linear(each, weight, bias),
        lambda each: ops.layer_norm(each, norm),
        lambda each: ops.relu(each),
        lambda each: ops.add(each, Bounded(x, torch.zeros_like(x))),
    ):
        bounded = operate(Bounded(x, moved.abs()))
        shifted = operate(Bounded(x + moved, torch.zeros_like(x)))
        assert ((bounded.value - shifted.value).abs() <= bounded.error + shifted.error + 1e-12).all()


def heads(generator: torch.Generator, n_places: int) -> torch.Tensor:
    return torch.randn(2, n_places, 1, 4, generator=generator, dtype=torch.float64)


def test_attention_covers_what_moves_its_inputs() -> None:
    ops, generator = Arithmetic(), torch.Generator().manual_seed(1)
    parts = [heads(generator, n) for n in (2, 3, 3)]
    moved = [1e-3 * heads(generator, n) for n in (2, 3, 3)]
    bias = torch.zeros(2, 3, 1, dtype=torch.float64)
    query, key, value = (Bounded(x, by.abs()) for x, by in zip(parts, moved, strict=True))
    bounded = ops.attend(query, key, value, bias)
    query, key, value = (Bounded(x + by, 0 * by) for x, by in zip(parts, moved, strict=True))
    shifted = ops.attend(query, key, value, bias)
    assert ((bounded.value - shifted.value).abs() <= bounded.error + shifted.error + 1e-12).all()


def test_a_bias_of_minus_infinity_hides_a_key() -> None:
    ops, generator = Arithmetic(), torch.Generator().manual_seed(2)
    query, key, value = (heads(generator, n) for n in (1, 3, 3))
    exact = lambda x: Bounded(x, torch.zeros_like(x))  # noqa: E731
    bias = torch.tensor([0.3, -torch.inf, 0.1], dtype=torch.float64)[None, :, None]
    hidden = ops.attend(exact(query), exact(key), exact(value), bias)
    without = ops.attend(exact(query), exact(key[:, [0, 2]]), exact(value[:, [0, 2]]), bias[:, [0, 2]])
    torch.testing.assert_close(hidden.value, without.value)
    key[:, 1], value[:, 1] = 1e6, -1e6
    assert torch.equal(ops.attend(exact(query), exact(key), exact(value), bias).value, hidden.value)
    assert hidden.error.isfinite().all()
    unseen = ops.attend(exact(query), exact(key), exact(value), torch.zeros_like(bias))
    assert not torch.allclose(unseen.value, hidden.value)


def test_huge_numbers_of_equal_size_do_not_turn_the_bound_negative() -> None:
    """The mean of 1e15 and its neighbours is not known to the spread; the bound must say so."""
    x = torch.full((1, 8), 1e15, dtype=torch.float64) + torch.arange(8)
    bounded = Arithmetic().layer_norm(Bounded(x, torch.full_like(x, 0.5)), nn.LayerNorm(8))
    assert (bounded.error > bounded.value.abs()).all()
