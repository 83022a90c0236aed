"""Three attentions that must agree: the textbook, the fused kernel, and PyTorch's own."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from headcount.heads import HeadSite
from headcount.models.attention import AttentionCache, KeyValueCache, MultiHeadAttention, attend, attend_fused
from headcount.models.masking import AttentionMask

unhurried = settings(deadline=None, max_examples=60)
close = {"atol": 1e-5, "rtol": 1e-5}
sizes = st.integers(1, 5)
SITE = HeadSite("layer", 0)


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    """Random q, k, v with or without a mask and a bias, each broadcast along any of its axes."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch, head, query, key, d_head = (draw(sizes) for _ in range(5))
    scale = draw(st.sampled_from([0.1, 1.0, 5.0]))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    def broadcast() -> list[int]:
        return [draw(st.sampled_from([1, size])) for size in (batch, head, query, key)]

    mask = torch.rand(*broadcast(), generator=generator) < draw(st.sampled_from([0.2, 0.6, 1.0]))
    return {
        "query": random(batch, head, query, d_head),
        "key": random(batch, head, key, d_head),
        "value": random(batch, head, key, d_head),
        "mask": draw(st.sampled_from([None, mask])),
        "bias": draw(st.sampled_from([None, random(*broadcast())])),
    }


def open_pairs(asked: dict[str, Any]) -> Tensor:
    """Return which query may see which key, at full size."""
    shape = (*asked["query"].shape[:3], asked["key"].shape[2])
    return torch.ones(shape, dtype=torch.bool) if asked["mask"] is None else asked["mask"].expand(shape)


def plain_attention(asked: dict[str, Any]) -> Tensor:
    """The module's three lines, one query at a time, without softmax, masks or broadcasting."""
    is_open, z = open_pairs(asked), torch.zeros_like(asked["query"])
    bias = torch.zeros(is_open.shape) if asked["bias"] is None else asked["bias"].expand(is_open.shape)
    for b, h, i, j in is_open.nonzero().tolist():
        seen = is_open[b, h, i].nonzero().flatten().tolist()
        score = {
            k: asked["query"][b, h, i] @ asked["key"][b, h, k] / z.shape[-1] ** 0.5 + bias[b, h, i, k] for k in seen
        }
        top = max(score.values())
        weight = (score[j] - top).exp() / sum((score[k] - top).exp() for k in seen)
        z[b, h, i] += weight * asked["value"][b, h, j]
    return z


@settings(unhurried, max_examples=15)
@given(questions())
def test_the_textbook_is_the_formula(asked: dict[str, Any]) -> None:
    torch.testing.assert_close(attend(**asked)[0], plain_attention(asked), **close)


@unhurried
@given(questions())
def test_textbook_and_fused_kernel_agree(asked: dict[str, Any]) -> None:
    # In double precision: with large scores, rounding alone reaches 2e-5 in single.
    exact = {
        name: each.double() if each is not None and each.is_floating_point() else each for name, each in asked.items()
    }
    torch.testing.assert_close(attend_fused(**exact), attend(**exact)[0], **close)


@unhurried
@given(questions())
def test_weights_are_shares_of_what_may_be_seen(asked: dict[str, Any]) -> None:
    _, weights = attend(**asked)
    is_open = open_pairs(asked)
    assert weights.shape == is_open.shape
    assert (weights >= 0).all()
    assert (weights[~is_open] == 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), is_open.any(dim=-1).float(), **close)


@unhurried
@given(questions(), st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
def test_who_sees_nothing_gathers_nothing_and_breaks_nothing(asked: dict[str, Any], dtype: torch.dtype) -> None:
    asked["mask"] = open_pairs(asked).clone()
    asked["mask"][0, 0, 0] = False
    inputs = {name: asked[name].to(dtype).requires_grad_() for name in ("query", "key", "value")}
    asked |= inputs | {"bias": None if asked["bias"] is None else asked["bias"].to(dtype)}
    for z in (attend(**asked)[0], attend_fused(**asked)):
        assert (z[~asked["mask"].any(dim=-1)] == 0).all()
        assert z.isfinite().all()
        gradients = torch.autograd.grad(z.float().square().sum(), list(inputs.values()))
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert (gradients[0][0, 0, 0] == 0).all()


@unhurried
@given(questions())
def test_gradients_agree(asked: dict[str, Any]) -> None:
    inputs = [asked[name].requires_grad_() for name in ("query", "key", "value")]
    direction = torch.randn(asked["query"].shape, generator=torch.Generator().manual_seed(0))
    ours = torch.autograd.grad((attend(**asked)[0] * direction).sum(), inputs)
    fused = torch.autograd.grad((attend_fused(**asked) * direction).sum(), inputs)
    torch.testing.assert_close(fused, ours, atol=1e-4, rtol=1e-4)


def pytorch(attention: MultiHeadAttention, x: Tensor, memory: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """PyTorch's multi-head attention with our weights. It is length-first, and its masks say what is hidden."""
    q, k, v = attention.query, attention.key, attention.value
    n_heads, d_model = attention.n_heads, x.shape[-1]
    hidden = None if mask is None else ~mask.expand(len(x), n_heads, x.shape[1], memory.shape[1]).flatten(end_dim=1)
    out, weights = F.multi_head_attention_forward(
        x.transpose(0, 1), memory.transpose(0, 1), memory.transpose(0, 1), d_model, n_heads,
        torch.cat([q.weight, k.weight, v.weight]), torch.cat([q.bias, k.bias, v.bias]),
        None, None, False, 0.0, attention.output.weight, attention.output.bias,
        attn_mask=hidden, average_attn_weights=False,
    )  # fmt: skip
    assert weights is not None
    return out.transpose(0, 1), weights


def kept(
    attention: MultiHeadAttention, x: Tensor, memory: Tensor | None, masking: AttentionMask
) -> tuple[Tensor, Tensor]:
    """Return the output and the weights of a pass that reads weights."""
    weights = AttentionCache()
    out = attention(x, memory, masking=masking, read=partial(weights.read, SITE))
    return out, weights[SITE]


@pytest.mark.parametrize("cross", [True, False])
@settings(unhurried, max_examples=40)
@given(
    st.tuples(sizes, sizes, sizes), st.sampled_from([1, 2, 4]), st.sampled_from([0.4, 0.9, None]), st.integers(0, 99)
)
def test_multi_head_attention_is_pytorchs(
    cross: bool, shape: tuple[int, int, int], n_heads: int, share: float | None, seed: int
) -> None:
    torch.manual_seed(seed)
    attention = MultiHeadAttention(8, n_heads)
    batch, n_queries, n_keys = shape
    x = torch.randn(batch, n_queries, 8)
    memory = torch.randn(batch, n_keys, 8) if cross else x
    mask = None if share is None else torch.rand(batch, 1, n_queries, memory.shape[1]) < share
    out, weights = kept(attention, x, memory if cross else None, AttentionMask(mask))
    theirs, their_weights = pytorch(attention, x, memory, mask)
    # A row that sees nothing is NaN there, which is why it is not compared.
    sees = torch.ones(batch, n_queries, dtype=torch.bool) if mask is None else mask[:, 0].any(dim=-1)
    torch.testing.assert_close(out[sees], theirs[sees], **close)
    torch.testing.assert_close(weights.transpose(1, 2)[sees], their_weights.transpose(1, 2)[sees], **close)
    unread = attention(x, memory if cross else None, masking=AttentionMask(mask))
    torch.testing.assert_close(unread[sees], theirs[sees], **close)


def test_a_position_that_sees_nothing_adds_only_the_bias() -> None:
    attention, x = MultiHeadAttention(8, 2), torch.randn(2, 3, 8)
    mask = torch.ones(2, 1, 3, 3, dtype=torch.bool)
    mask[1, :, 2] = False
    for out in (attention(x, masking=AttentionMask(mask)), kept(attention, x, None, AttentionMask(mask))[0]):
        torch.testing.assert_close(out[1, 2], attention.output.bias)
        assert not torch.allclose(out[1, 1], attention.output.bias)


def test_a_cache_grows_in_self_attention_and_stays_in_cross_attention() -> None:
    attention, x, memory = MultiHeadAttention(8, 2), torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    causal = AttentionMask(causal=True)
    caches = KeyValueCache(), KeyValueCache()
    one_by_one = [attention(x[:, i : i + 1], masking=causal, cache=caches[0]) for i in range(4)]
    torch.testing.assert_close(torch.cat(one_by_one, dim=1), attention(x, masking=causal), **close)
    crossed = [attention(x[:, i : i + 1], memory, cache=caches[1]) for i in range(4)]
    torch.testing.assert_close(torch.cat(crossed, dim=1), attention(x, memory), **close)
    assert [cache.key.shape[2] for cache in caches if cache.key is not None] == [4, 5]


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"n_heads \(3\) must divide d_model \(8\)"):
        MultiHeadAttention(8, 3)


def test_a_bias_of_minus_infinity_hides_as_a_mask_does() -> None:
    query, key, value = (torch.randn(1, 1, 2, 4) for _ in range(3))
    bias = torch.tensor([[[[-math.inf, 0.0], [-math.inf, -math.inf]]]])
    mask = torch.tensor([[[[True, True], [True, False]]]])
    for chosen in (None, mask):
        z, fused = attend(query, key, value, chosen, bias)[0], attend_fused(query, key, value, chosen, bias)
        torch.testing.assert_close(z, fused)
        assert (z[0, 0, 1] == 0).all()
