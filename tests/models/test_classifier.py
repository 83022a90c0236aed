"""The classifier: what padding, order and asking for weights must not change, and what must."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headcount.encodings import ENCODINGS
from headcount.models.attention import AttentionCache
from headcount.models.config import POOLINGS, ClassifierConfig
from headcount.models.transformer import Classifier, FourierNumberEmbedding

N_VALUES = 20
PAD = N_VALUES
MIXED = [[3, 5, 5, 9, 1], [7], [0, 19, 4], [8, 2, 2, 11, 6, 6, 3]]
SYMMETRIC = [name for name in POOLINGS.names() if POOLINGS.get(name).symmetric]
close = {"atol": 1e-5, "rtol": 1e-5}
variants: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": 2},
    "log-length": {"softmax": "log-length"},
    "all of them": {"causal": True, "window": 2, "softmax": "log-length", "norm": "post", "numbers": "table"},
    "randomised": {"random_positions": 50},
}


def build(pad_id: int | None = PAD, **given: Any) -> Classifier:
    """A tiny one; no weight is left at 0 or 1, where a fault would not show."""
    shape = {"d_model": 8, "n_heads": 2, "d_ff": 16, "n_layers": 2}
    torch.manual_seed(0)
    made = Classifier(ClassifierConfig(**(shape | given)), N_VALUES + 1, 2, pad_id).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


def padded(rows: list[list[int]], extra: int = 0) -> Tensor:
    length = max(map(len, rows)) + extra
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


# --- padding --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "variant"), [*product(ENCODINGS.names(), variants)])
@torch.no_grad()
def test_padding_never_changes_logits(encoding: str, variant: str) -> None:
    model = build(encoding=encoding, n_positions=4, **variants[variant])
    alone = torch.cat([model(torch.tensor([row])) for row in MIXED])
    torch.testing.assert_close(model(padded(MIXED)), alone, **close)
    torch.testing.assert_close(model(padded(MIXED, 5)), alone, **close)
    assert torch.cdist(alone, alone).fill_diagonal_(9).min() > 1e-3


@pytest.mark.parametrize("pooling", POOLINGS.names())
@settings(deadline=None, max_examples=5)
@given(
    st.lists(st.lists(st.integers(0, N_VALUES - 1), min_size=1, max_size=7), min_size=1, max_size=4), st.integers(0, 5)
)
@torch.no_grad()
def test_no_pooling_reads_padding(pooling: str, rows: list[list[int]], extra: int) -> None:
    model = build(encoding="sinusoidal", pooling=pooling)
    alone = torch.cat([model(torch.tensor([row])) for row in rows])
    torch.testing.assert_close(model(padded(rows, extra)), alone, **close)


@torch.no_grad()
def test_without_a_pad_id_padding_is_read_like_anything_else() -> None:
    """The reports' fault can be had, and is one."""
    model = build(None, encoding="sinusoidal", pooling="mean")
    assert (model(padded(MIXED, 3)) - model(padded(MIXED))).abs().amax(dim=1).min() > 1e-3


# --- order ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def apart_when_permuted(model: Classifier) -> float:
    """How much the logits of sequences change with the order of their numbers, at most."""
    source = torch.randint(N_VALUES, (16, 9), generator=torch.Generator().manual_seed(0))
    orders = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(row)) for row in range(16)])
    return (model(source.gather(1, orders)) - model(source)).abs().max().item()


@pytest.mark.parametrize("pooling", SYMMETRIC)
def test_without_positions_and_order_a_sequence_is_a_set(pooling: str) -> None:
    assert apart_when_permuted(build(encoding="none", pooling=pooling)) < 1e-5


@pytest.mark.parametrize("pooling", SYMMETRIC)
def test_a_causal_mask_or_a_window_tells_order_without_positions(pooling: str) -> None:
    assert apart_when_permuted(build(encoding="none", pooling=pooling, causal=True)) > 1e-3
    assert apart_when_permuted(build(encoding="none", pooling=pooling, window=1)) > 1e-3


@pytest.mark.parametrize("pooling", sorted(set(POOLINGS.names()) - set(SYMMETRIC)))
def test_a_pooling_that_is_not_symmetric_tells_order_without_positions(pooling: str) -> None:
    assert apart_when_permuted(build(encoding="none", pooling=pooling)) > 1e-3


@pytest.mark.parametrize("encoding", ENCODINGS.names())
def test_every_encoding_but_none_tells_order(encoding: str) -> None:
    assert (apart_when_permuted(build(encoding=encoding, pooling="mean")) > 1e-3) == (encoding != "none")


@torch.no_grad()
def test_symmetric_alibi_answers_a_sequence_and_its_mirror_image_alike() -> None:
    source = torch.randint(N_VALUES, (8, 9), generator=torch.Generator().manual_seed(0))
    for encoding, alike in (("alibi-symmetric", True), ("alibi", False), ("relative", False)):
        model = build(encoding=encoding, pooling="max")
        assert ((model(source.flip(1)) - model(source)).abs().max().item() < 1e-5) == alike


# --- every kind of model --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "pooling"), [*product(ENCODINGS.names(), POOLINGS.names())])
def test_every_encoding_works_with_every_pooling_at_any_length(encoding: str, pooling: str) -> None:
    model = build(encoding=encoding, pooling=pooling, n_layers=1, softmax="log-length").train()
    for length in (1, 8, 40):
        logits = model(torch.randint(N_VALUES, (2, length)))
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(logits.sin().sum(), parameters, allow_unused=True)
        assert logits.shape == (2, 2)
        assert logits.isfinite().all()
        assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)


@pytest.mark.parametrize(("encoding", "pooling"), [("learned", "mean"), ("fire", "score-max"), ("t5", "lse-max")])
def test_every_weight_is_trained(encoding: str, pooling: str) -> None:
    model = build(encoding=encoding, pooling=pooling, softmax="log-length", n_positions=8).train()
    model(torch.randint(N_VALUES, (4, 8))).sin().sum().backward()
    untrained = {name for name, weight in model.named_parameters() if weight.grad is None or weight.grad.norm() < 1e-6}
    # What these add to a query's score is the same for all keys, and softmax does not see it.
    unseen = {f"layers.{i}.self_attention.attention.key.bias" for i in range(2)} | {"positions.network.2.bias"}
    assert untrained <= unseen


@pytest.mark.parametrize("encoding", ["sinusoidal", "rotary", "alibi-symmetric"])
@torch.no_grad()
def test_random_positions_change_at_every_step_of_training_and_then_no_more(encoding: str) -> None:
    model, source = build(encoding=encoding, random_positions=50).train(), torch.tensor([[3, 5, 5, 9]])
    assert (model(source) - model(source)).abs().max() > 1e-4
    assert torch.equal(model.eval()(source), model(source))
    assert not torch.allclose(model(source), build(encoding=encoding)(source), atol=1e-4)


# --- weights, heads and what was given ------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", variants)
@torch.no_grad()
def test_the_weights_are_those_that_were_used(variant: str) -> None:
    """What enters the output projection is the weights times the values, also past the first piece of a window."""
    model, weights = build(encoding="alibi-symmetric", **variants[variant]), AttentionCache()
    length = model.config.random_positions or 150
    source = torch.randint(N_VALUES, (2, length))
    values: list[Tensor] = []
    entered: list[Tensor] = []
    for layer in model.layers:
        attention = layer.self_attention.attention
        attention.value.register_forward_hook(lambda _, given, made: values.append(made))
        attention.output.register_forward_hook(lambda _, given, made: entered.append(given[0]))
    unread = model(source)
    values.clear()
    entered.clear()
    torch.testing.assert_close(model(source, weights=weights), unread, **close)
    assert list(weights) == list(model.sites)
    for weights_BHQK, value, z in zip(weights.values(), values, entered, strict=True):
        assert weights_BHQK.shape == (2, 2, length, length)
        expected = torch.einsum("bhqk,bkhe->bqhe", weights_BHQK, value.unflatten(-1, (2, 4))).flatten(start_dim=2)
        torch.testing.assert_close(z, expected, **close)


@torch.no_grad()
def test_no_weight_falls_outside_the_window_or_ahead_or_on_padding() -> None:
    model, weights = build(encoding="none", window=3, causal=True), AttentionCache()
    source = padded([[1] * 150, [2] * 40])
    model(source, weights=weights)
    i, j = torch.arange(150)[:, None], torch.arange(150)
    is_open = ((i - j >= 0) & (i - j <= 3))[None, None] & (source != PAD)[:, None, None]
    for weights_BHQK in weights.values():
        assert torch.equal(weights_BHQK > 0, is_open.expand(weights_BHQK.shape))


def test_sites_and_heads_are_named_by_layer() -> None:
    model = build(n_layers=3)
    assert [site.short for site in model.sites] == ["L0", "L1", "L2"]
    assert [head.short for head in model.heads] == ["L0H0", "L0H1", "L1H0", "L1H1", "L2H0", "L2H1"]
    assert [layer.self_attention.site for layer in model.layers] == list(model.sites)


def test_a_model_says_what_it_was_given() -> None:
    assert build(encoding="rotary", pooling="max").hard_codes == ()
    given = {"window": 3, "encoding": "length-normalised", "pooling": "neighbour-difference"}
    assert build(**given).hard_codes == ("window of ±3", "relative place", "order of neighbours")
    assert build(encoding="length-normalised", random_positions=9).hard_codes == ("relative place",)


# --- numbers --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_near_numbers_enter_nearer_than_far_ones() -> None:
    torch.manual_seed(0)
    vectors = FourierNumberEmbedding(101, 64)(torch.arange(100)[None])[0]
    apart, distance = torch.cdist(vectors, vectors), (torch.arange(100)[:, None] - torch.arange(100)).abs()
    assert apart[distance == 1].max() < apart[distance == 3].min()
    assert apart[distance == 2].max() < apart[distance >= 10].min()
    assert apart[distance == 1].min() > 0.01


@torch.no_grad()
def test_numbers_enter_by_waves_or_by_a_table() -> None:
    assert isinstance(build(numbers="fourier").tokens, FourierNumberEmbedding)
    assert isinstance(build(numbers="table").tokens, torch.nn.Embedding)
    numbers = FourierNumberEmbedding(10, 4)
    share = 7 / 10
    plain = [2 * share - 1, *[torch.tensor(k * torch.pi * share).sin() for k in range(1, 17)]]
    plain += [torch.tensor(k * torch.pi * share).cos() for k in range(1, 17)]
    torch.testing.assert_close(numbers(torch.tensor([[7]]))[0, 0], numbers.mix(torch.tensor(plain)), **close)
