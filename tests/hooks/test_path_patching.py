"""A path patch equals a second implementation by hand; patches and ablations at some positions leave the others."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import headcount
from headcount.errors import InputError
from headcount.models.config import ClassifierConfig
from headcount.models.transformer import Classifier, Layer

N_TOKENS, LENGTH = 9, 5


@pytest.fixture(scope="module")
def model() -> Classifier:
    """A classifier of two layers with three heads each, and large random weights."""
    torch.manual_seed(0)
    config = ClassifierConfig(n_layers=2, n_heads=3, d_model=12, d_ff=16, encoding="none", pooling="mean")
    made = Classifier(config, N_TOKENS + 1, 3, N_TOKENS)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return made.eval()


@pytest.fixture(scope="module")
def tokens() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    one, other = (torch.randint(N_TOKENS, (4, LENGTH), generator=generator) for _ in range(2))
    return one, other


# --- by hand: one function per block, no hooks ------------------------------------------------------------------------


def heads_by_hand(layer: Layer, x: Tensor) -> list[Tensor]:
    """Return the output of each head, projected into the stream."""
    attention: Any = layer.self_attention.attention
    normed = layer.self_attention.residual.norm(x)
    outputs = []
    for i in range(3):
        part = slice(4 * i, 4 * i + 4)
        q, k, v = (
            F.linear(normed, each.weight[part], each.bias[part])
            for each in (attention.query, attention.key, attention.value)
        )
        weights = torch.softmax(q @ k.transpose(1, 2) / 2.0, dim=-1)
        outputs.append(F.linear(weights @ v, attention.output.weight[:, part]))
    return outputs


def mlp_by_hand(layer: Layer, x: Tensor) -> Tensor:
    return cast(Tensor, layer.feed_forward.layers(layer.feed_forward.residual.norm(x)))


def logits_by_hand(model: Classifier, x: Tensor) -> Tensor:
    return cast(Tensor, model.to_logits(model.norm(x).mean(dim=1)))


def bias(layer: Layer) -> Tensor:
    attention: Any = layer.self_attention.attention
    return cast(Tensor, attention.output.bias)


@torch.no_grad()
def path_by_hand(model: Classifier, tokens: Tensor, donor: Tensor, receiver: int | None, through_mlps: bool) -> Tensor:
    """Return the logits if L1H`receiver` (or the logits) get L0H1's output on the donor."""
    first, second = (cast(Layer, layer) for layer in model.layers)
    x0, d0 = model.tokens(tokens), model.tokens(donor)
    own, given = heads_by_hand(first, x0), heads_by_hand(first, d0)
    after_attention = x0 + sum(own) + bias(first)
    mlp = mlp_by_hand(first, after_attention)
    x1 = after_attention + mlp
    changed = after_attention - own[1] + given[1]
    changed = changed + (mlp_by_hand(first, changed) if through_mlps else mlp)
    clean = heads_by_hand(second, x1)
    if receiver is None:
        after = changed + sum(clean) + bias(second)
        clean_after = x1 + sum(clean) + bias(second)
        return logits_by_hand(model, after + mlp_by_hand(second, after if through_mlps else clean_after))
    received = heads_by_hand(second, changed)[receiver]
    after = x1 + sum(clean) - clean[receiver] + received + bias(second)
    return logits_by_hand(model, after + mlp_by_hand(second, after))


@pytest.mark.parametrize("through_mlps", [True, False])
@pytest.mark.parametrize("receiver", [None, 0, 2])
def test_a_path_patch_equals_one_by_hand(
    model: Classifier, tokens: tuple[Tensor, Tensor], receiver: int | None, through_mlps: bool
) -> None:
    one, other = tokens
    name = None if receiver is None else f"L1H{receiver}"
    ours = headcount.path_patched(model, "L0H1", name, other, one, through_mlps=through_mlps)
    by_hand = path_by_hand(model, one, other, receiver, through_mlps)
    torch.testing.assert_close(ours, by_hand, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(ours, model(one), atol=1e-4), "the path matters in this model"


def test_paths_that_are_not_there_are_told(model: Classifier, tokens: tuple[Tensor, Tensor]) -> None:
    one, other = tokens
    for sender, receiver, donor in (("L1H0", "L0H1", other), ("L0H1", "L0H2", other), ("L0H1", "L1H0", one)):
        with pytest.raises(InputError, match=f"patching {sender} does not change the outputs of {receiver}"):
            headcount.path_patched(model, sender, receiver, donor, one)
    with pytest.raises(InputError, match="4 positions"):
        headcount.path_patched(model, "L0H1", "L1H0", other[:, :4], one)


# --- some positions ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_head_is_patched_at_some_positions_only(model: Classifier, tokens: tuple[Tensor, Tensor]) -> None:
    one, other = tokens
    z = headcount.head_outputs(model, other)
    clean = headcount.head_outputs(model, one)
    with headcount.patched(model, {"L0H1": z["L0H1"]}, queries=[0, 3]):
        patched = headcount.head_outputs(model, one)
    for query in range(LENGTH):
        source = z if query in (0, 3) else clean
        assert torch.equal(patched["L0H1"][:, query], source["L0H1"][:, query])
    assert torch.equal(patched["L0H0"], clean["L0H0"])


@pytest.mark.parametrize("by", ["zero", "resample", "mean"])
@torch.no_grad()
def test_a_head_is_ablated_at_some_positions_only(model: Classifier, tokens: tuple[Tensor, Tensor], by: str) -> None:
    one, other = tokens
    clean = headcount.head_outputs(model, one)
    with headcount.ablated(model, "L0H1", by=by, inputs=other):
        everywhere = headcount.head_outputs(model, one)
    with headcount.ablated(model, "L0H1", by=by, queries=[2], inputs=other):
        ablated = headcount.head_outputs(model, one)
    for query in range(LENGTH):
        source = everywhere if query == 2 else clean
        torch.testing.assert_close(ablated["L0H1"][:, query], source["L0H1"][:, query])
    with headcount.ablated(model, "L0H1", by=by, queries=range(LENGTH), inputs=other):
        torch.testing.assert_close(headcount.head_outputs(model, one)["L0H1"], everywhere["L0H1"])
