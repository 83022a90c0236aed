"""A table of contexts equals the model on whole sequences; a model without such a table says why it has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_sorters import MODELS, all_sequences, classifier, leads_by_hand, rows_of

from headcount.models.transformer import Classifier
from headcount.training.contexts import ContextShape, Undecidable, context_leads, enumerate_contexts, lead_table

N = 4
SHAPES = {"one layer": (1, 1), "causal": (1, 0), "two layers, causal": (2, 0), "two layers": (2, 2), "alibi": (1, 0)}


def whole_leads(model: Classifier, rows: torch.Tensor) -> list[float]:
    logits = model(rows)
    return (logits[:, 0] - logits[:, 1]).tolist()


def expected_leads(model: Classifier, sequences: list[tuple[int, ...]]) -> list[float]:
    shape = ContextShape.of(model, N)
    table = lead_table(model, shape)
    combine = np.mean if model.pooling.combines == "mean" else np.max
    return [float(combine(leads_by_hand(table, shape, each))) for each in sequences]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("seed", "longest"), [(0, 5), pytest.param(1, 6, marks=pytest.mark.slow)])
def test_the_table_equals_every_short_sequence(name: str, seed: int, longest: int) -> None:
    model, sequences = classifier(N, seed=seed, **MODELS[name]), all_sequences(N, longest)
    expected = expected_leads(model, sequences)
    assert min(expected) < max(expected) - 0.1, "a constant would agree with anything"
    padded = whole_leads(model, rows_of(sequences, N))
    assert padded == pytest.approx(expected, abs=2e-5)
    start = 0
    for length in range(1, longest + 1):
        end = start + N**length
        assert whole_leads(model, rows_of(sequences[start:end], N)) == pytest.approx(expected[start:end], abs=2e-5)
        start = end


@pytest.mark.parametrize("name", MODELS)
def test_the_table_equals_long_sequences_with_padding_beside_them(name: str) -> None:
    model, rng = classifier(N, seed=2, **MODELS[name]), np.random.default_rng(0)
    lengths = (4096, 257) if name == "one layer" else (700, 64, 7, 1)
    sequences = [tuple(rng.integers(N, size=length).tolist()) for length in lengths]
    sequences += [tuple(sorted(each)) for each in sequences[1:2]]
    assert whole_leads(model, rows_of(sequences, N)) == pytest.approx(expected_leads(model, sequences), abs=5e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_the_shape_is_what_a_position_sees(name: str) -> None:
    """Change one token at each distance: the position's vector changes inside the shape, and only there."""
    model = classifier(N, **MODELS[name])
    shape = ContextShape.of(model, N)
    assert (shape.left, shape.right) == SHAPES[name]
    streams: list[torch.Tensor] = []
    model.norm.register_forward_hook(lambda *parts: streams.append(parts[2]))
    sequence, centre = torch.tensor([[0, 3, 1, 2, 2, 0, 1, 3, 0]]), 4
    for distance in range(-4, 5):
        changed = sequence.clone()
        changed[0, centre + distance] = (changed[0, centre + distance] + 1) % N
        model(torch.cat([sequence, changed]))
        before, after = streams[-1][:, centre]
        assert torch.allclose(before, after, atol=1e-6) == (not -shape.left <= distance <= shape.right)


def test_the_table_has_every_context_and_no_other() -> None:
    for changes in ({}, {"n_layers": 2, "causal": True}, {"window": 2}):
        model = classifier(N, **changes)
        shape = ContextShape.of(model, N)
        table = lead_table(model, shape)
        found = {tuple(index) for index in np.argwhere(~np.isnan(table)).tolist()}
        padding = lambda n: (N,) * n  # noqa: E731
        contexts = set()
        for each in all_sequences(N, shape.width):
            padded = padding(shape.left) + each + padding(shape.right)
            contexts |= {padded[i : i + shape.width] for i in range(len(each))}
        assert found == contexts
        assert len(found) == shape.n_contexts


def test_one_core_and_all_cores_compute_the_same_table() -> None:
    model = classifier(7)
    shape = ContextShape.of(model, 7)
    assert np.array_equal(lead_table(model, shape, all_cores=False), lead_table(model, shape), equal_nan=True)


def test_contexts_are_enumerated_in_order_whatever_the_size_of_a_block() -> None:
    whole = torch.cat(list(enumerate_contexts(3, 4)))
    assert whole.tolist() == [list(each) for each in all_sequences(3, 4) if len(each) == 4]
    for at_once in (1, 7, 81, 82):
        assert torch.equal(torch.cat(list(enumerate_contexts(3, 4, at_once))), whole)


def test_a_table_does_not_change_the_model() -> None:
    model = classifier(N).train()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    first = lead_table(model, ContextShape.of(model, N))
    assert model.training, "dropout and log-sum-exp are as they were"
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert np.array_equal(first, lead_table(model.eval(), ContextShape.of(model, N)), equal_nan=True)


# --- models whose contexts do not decide ------------------------------------------------------------------------------


UNDECIDABLE: dict[str, tuple[dict[str, Any], str]] = {
    "no window": ({"window": None}, "no attention window"),
    "sinusoidal": ({"encoding": "sinusoidal"}, r"encoding \(sinusoidal\) is not a bias of the distance"),
    "learned": ({"encoding": "learned"}, r"encoding \(learned\) is not a bias of the distance"),
    "random positions": ({"random_positions": 30}, "positions are random"),
    "log-length": ({"softmax": "log-length"}, r"softmax \(log-length\) is not the plain softmax"),
    "unmasked padding": ({"padded": False}, "does not mask padding"),
    "three classes": ({"n_classes": 3}, "more than two classes"),
    "max": ({"pooling": "max"}, r"no exact decision is known for the model's pooling \(max\)"),
    "score-max": ({"pooling": "score-max"}, r"no exact decision is known for the model's pooling \(score-max\)"),
    "last": ({"pooling": "last"}, r"no exact decision is known for the model's pooling \(last\)"),
}


@pytest.mark.parametrize("name", UNDECIDABLE)
def test_every_reason_is_raised_by_a_model_that_has_it(name: str) -> None:
    changes, reason = UNDECIDABLE[name]
    with pytest.raises(Undecidable, match=reason):
        ContextShape.of(classifier(N, **changes), N)


def test_too_many_contexts_are_not_enumerated() -> None:
    with pytest.raises(Undecidable, match=r"10,303,030,202 contexts|contexts \(at most 5,000,000 are enumerated\)"):
        ContextShape.of(classifier(100, window=2), 100)
    assert ContextShape.of(classifier(100), 100).n_contexts == 100**3 + 2 * 100**2 + 100


@pytest.mark.parametrize("factor", [-1.0, 0.0])
def test_a_readout_of_the_wrong_sign_is_no_score_of_the_first_class(factor: float) -> None:
    model = classifier(N)
    model.to_logits.weight.mul_(factor)
    with pytest.raises(Undecidable, match="does not raise the logit of the model's first class"):
        ContextShape.of(model, N)
    mean = classifier(N, pooling="mean")
    mean.to_logits.weight.mul_(-1)
    assert ContextShape.of(mean, N).width == 3, "a mean has no sign to get wrong"


def test_a_context_is_computed_in_the_precision_of_the_model() -> None:
    model, tokens = classifier(N), torch.tensor([[0, 1, 2]])
    single = context_leads(model, tokens, 1)
    double = context_leads(model.double(), tokens, 1)
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    assert single.item() == pytest.approx(double.item(), abs=1e-4)
