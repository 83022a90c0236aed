"""Attention weights are read from any model: the weights that it used, or an error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from foreign_models import N_HEADS, N_TOKENS, Attention, D, Model, built
from own_models import FED, NUMBERS, SOURCE, adder, classifier, shown_weights, trace
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.errors import InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.attention import attention_of, read_attention
from headcount.hooks.sites import Site, Sites

ROWS, LENGTH, D_HEAD = 3, 5, D // N_HEADS
close = {"atol": 1e-9, "rtol": 1e-9}
MASK = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def tokens(rows: int = ROWS) -> Tensor:
    return torch.randint(N_TOKENS, (rows, LENGTH), generator=torch.Generator().manual_seed(rows))


class Keeps(Attention):
    """Every style leaves the weights that it used in `used`, [row, head, query, key]."""

    used: Tensor

    def parts(self, x: Tensor) -> list[Tensor]:
        return [part.unflatten(-1, (N_HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)]

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.parts(x)
        return q @ k.transpose(-2, -1) / math.sqrt(D_HEAD), v

    def finish(self, weights: Tensor, v: Tensor) -> Tensor:
        self.used = weights.detach().clone()
        return self.out((weights @ v).transpose(1, 2).flatten(start_dim=2))


def style(attend: Callable[[Any, Tensor], Tensor]) -> type[Model]:
    attention = type(attend.__name__, (Keeps,), {"forward": attend})
    return type(attend.__name__, (Model,), {"attention": attention})


def by_method(self: Any, x: Tensor) -> Tensor:
    scores, v = self.scores(x)
    return self.finish(scores.softmax(-1), v)


def by_function(self: Any, x: Tensor) -> Tensor:
    scores, v = self.scores(x)
    return self.finish(F.softmax(scores, 3), v)


def by_keywords(self: Any, x: Tensor) -> Tensor:
    scores, v = self.scores(x)
    return self.finish(F.softmax(input=scores, dim=-1, dtype=torch.float64), v)


def by_torch(self: Any, x: Tensor) -> Tensor:
    scores, v = self.scores(x)
    return self.finish(torch.softmax(scores, dim=-1), v)


def by_special(self: Any, x: Tensor) -> Tensor:
    scores, v = self.scores(x)
    return self.finish(torch.special.softmax(scores, dim=3), v)


def by_module(self: Any, x: Tensor) -> Tensor:
    scores, v = self.scores(x)
    return self.finish(F.dropout(nn.Softmax(dim=-1)(scores), 0.5, training=self.training), v)


def by_einsum(self: Any, x: Tensor) -> Tensor:
    q, k, v = (part.unflatten(-1, (N_HEADS, -1)) for part in self.qkv(x).chunk(3, dim=-1))
    weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / D_HEAD**0.5, dim=-1)
    self.used = weights.clone()
    return self.out(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(start_dim=2))


def rows_and_heads_in_one_axis(self: Any, x: Tensor) -> Tensor:
    scores, v = self.scores(x)
    weights = scores.flatten(end_dim=1).softmax(dim=-1)
    self.used = weights.unflatten(0, (-1, N_HEADS)).clone()
    z = torch.bmm(weights, v.flatten(end_dim=1))
    return self.out(z.unflatten(0, (-1, N_HEADS)).transpose(1, 2).flatten(start_dim=2))


def heads_and_rows_in_one_axis(self: Any, x: Tensor) -> Tensor:
    """Compute attention with heads first, as in an early well-known implementation."""
    scores, v = (part.transpose(0, 1) for part in self.scores(x))
    weights = scores.flatten(end_dim=1).softmax(dim=-1)
    self.used = weights.unflatten(0, (N_HEADS, -1)).transpose(0, 1).clone()
    z = torch.bmm(weights, v.flatten(end_dim=1))
    return self.out(z.unflatten(0, (N_HEADS, -1)).permute(1, 2, 0, 3).flatten(start_dim=2))


def heads_before_rows(self: Any, x: Tensor) -> Tensor:
    scores, v = (part.transpose(0, 1) for part in self.scores(x))
    weights = scores.softmax(dim=-1)
    self.used = weights.transpose(0, 1).clone()
    return self.out((weights @ v).permute(1, 2, 0, 3).flatten(start_dim=2))


def fused(self: Any, x: Tensor) -> Tensor:
    scores, _ = self.scores(x)
    self.used = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
    z = F.scaled_dot_product_attention(*self.parts(x))
    return self.out(z.transpose(1, 2).flatten(start_dim=2))


def fused_and_masked(self: Any, x: Tensor) -> Tensor:
    scores, _ = self.scores(x)
    odds = scores.exp() * MASK
    self.used = odds / odds.sum(dim=-1, keepdim=True)
    q, k, v = self.parts(x)
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=MASK)
    return self.out(z.transpose(1, 2).flatten(start_dim=2))


def fused_and_causal(self: Any, x: Tensor) -> Tensor:
    scores, _ = self.scores(x)
    odds = (scores * D_HEAD**0.5 * 0.3).exp() * MASK
    self.used = odds / odds.sum(dim=-1, keepdim=True)
    q, k, v = self.parts(x)
    z = F.scaled_dot_product_attention(query=q, key=k, value=v, is_causal=True, scale=0.3)
    return self.out(z.transpose(1, 2).flatten(start_dim=2))


def fused_and_biased(self: Any, x: Tensor) -> Tensor:
    scores, _ = self.scores(x)
    bias = torch.linspace(-1, 1, LENGTH).to(x).expand(LENGTH, LENGTH)
    odds = (scores + bias).exp()
    self.used = odds / odds.sum(dim=-1, keepdim=True)
    q, k, v = self.parts(x)
    z = F.scaled_dot_product_attention(q, k, v, bias, 0.0, False)
    return self.out(z.transpose(1, 2).flatten(start_dim=2))


def fused_with_shared_keys(self: Any, x: Tensor) -> Tensor:
    q, k, v = self.parts(x)
    odds = (q @ k[:, :1].transpose(-2, -1) / math.sqrt(D_HEAD)).exp()
    self.used = odds / odds.sum(dim=-1, keepdim=True)
    z = F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)
    return self.out(z.transpose(1, 2).flatten(start_dim=2))


def fused_with_nothing_visible(self: Any, x: Tensor) -> Tensor:
    """The first query may see no key at all."""
    scores, _ = self.scores(x)
    mask = MASK.tril(-1)
    odds = scores.exp() * mask
    self.used = (odds / odds.sum(dim=-1, keepdim=True)).nan_to_num(0.0)
    q, k, v = self.parts(x)
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).nan_to_num(0.0)
    return self.out(z.transpose(1, 2).flatten(start_dim=2))


def mixed_afterwards(self: Any, x: Tensor) -> Tensor:
    """A mixture of experts, and one of what each head found, between attention and projection."""
    scores, v = self.scores(x)
    self.used = (weights := scores.softmax(dim=-1)).clone()
    z_BHQE = weights @ v
    z_BHQE = z_BHQE * z_BHQE[..., :3].softmax(dim=-1).amax(dim=-1, keepdim=True)
    z = z_BHQE.transpose(1, 2).flatten(start_dim=2)
    return self.out(z * z[..., :4].softmax(dim=-1).sum(dim=-1, keepdim=True))


STYLES = [
    by_method, by_function, by_keywords, by_torch, by_special, by_module, by_einsum, rows_and_heads_in_one_axis,
    heads_and_rows_in_one_axis, heads_before_rows, fused, fused_and_masked, fused_and_causal, fused_and_biased,
    fused_with_shared_keys, fused_with_nothing_visible, mixed_afterwards,
]  # fmt: skip


@pytest.mark.parametrize("rows", [1, N_HEADS, ROWS])
@pytest.mark.parametrize("attend", STYLES)
def test_the_weights_are_those_that_were_used(attend: Callable[..., Tensor], rows: int) -> None:
    model, given = built(style(attend)), tokens(rows)
    before, clean = trace(model), model(given)
    for attention in model.attentions:
        del attention.used
    found = attention_of(model, model.sites, given)
    assert tuple(found) == tuple(model.sites)
    for attention, weights in zip(model.attentions, found.values(), strict=True):
        assert weights.shape == (rows, N_HEADS, LENGTH, LENGTH)
        torch.testing.assert_close(weights, attention.used, **close)
        del attention.used
    assert trace(model) == before
    assert torch.equal(model(given), clean)


@torch.no_grad()
def test_our_own_models_say_the_same_of_themselves() -> None:
    for model, inputs in ((adder(norm="pre", encoding="t5"), (SOURCE, FED)), (classifier(norm="post"), (NUMBERS,))):
        expected = shown_weights(model, *inputs)
        for site, weights in attention_of(model, Sites.of(model), *inputs).items():
            torch.testing.assert_close(weights, expected[site], **close)


def test_under_autocast() -> None:
    """Part of the model computes in half precision."""
    for attend in (by_method, fused, heads_and_rows_in_one_axis):
        model, given = built(style(attend)).float(), tokens()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = attention_of(model, model.sites, given)
        for attention, weights in zip(model.attentions, found.values(), strict=True):
            torch.testing.assert_close(weights.float(), attention.used.float(), atol=0.02, rtol=0)


def test_a_part_of_the_sites_is_enough() -> None:
    model, given = built(style(by_method)), tokens()
    site = HeadSite("layer", 2)
    found = attention_of(model, Sites({site: model.sites[site]}), given)
    torch.testing.assert_close(found[site], model.attentions[2].used, **close)


def test_weights_come_site_by_site_with_the_models_output() -> None:
    model, given, order = built(style(fused)), tokens(), []
    output = read_attention(model, model.sites, [given], lambda site, weights: order.append(site))
    assert order == list(model.sites)
    assert torch.equal(output, model(given))


# --- errors ---------------------------------------------------------------------------------------------------------


def by_hand(self: Any, x: Tensor) -> Tensor:
    scores, v = self.scores(x)
    return self.finish(scores.exp() / scores.exp().sum(dim=-1, keepdim=True), v)


def over_queries(self: Any, x: Tensor) -> Tensor:
    scores, v = self.scores(x)
    return self.finish(scores.softmax(dim=-2), v)


def twice_in_different_shapes(self: Any, x: Tensor) -> Tensor:
    q, k, v = self.parts(x)
    near = (q @ k[:, :, :4].transpose(-2, -1)).softmax(dim=-1) @ v[:, :, :4]
    return self.finish((q @ k[:, :, :2].transpose(-2, -1)).softmax(dim=-1), v[:, :, :2]) + self.out.bias * near.sum()


def order_lost(self: Any, x: Tensor) -> Tensor:
    """Rows and heads in one axis, and what was found is changed before it is projected."""
    scores, v = self.scores(x)
    z = torch.bmm(scores.flatten(end_dim=1).softmax(dim=-1), v.flatten(end_dim=1)).tanh()
    return self.out(z.unflatten(0, (-1, N_HEADS)).transpose(1, 2).flatten(start_dim=2))


@pytest.mark.parametrize(
    ("attend", "why"),
    [
        (by_hand, "no softmax with 2 heads was computed"),
        (over_queries, "no softmax with 2 heads was computed"),
        (twice_in_different_shapes, r"it computed softmaxes of shape \(3, 2, 5, 4\), \(3, 2, 5, 2\)"),
        (order_lost, "in unknown order\n  give one example at a time"),
    ],
)
def test_what_cannot_be_told_is_an_error(attend: Callable[..., Tensor], why: str) -> None:
    model = built(style(attend))
    with pytest.raises(InstrumentError, match=rf"layer\.0\.self(.|\n)*{why}|{why}"):
        attention_of(model, model.sites, tokens())


def test_another_number_of_heads_than_there_are_is_an_error() -> None:
    model, site = built(style(by_method)), HeadSite("layer", 0)
    wrong = Sites({site: Site(model.attentions[0].out, tuple(map(site.head, range(4))))})
    with pytest.raises(InstrumentError, match="no softmax with 4 heads was computed"):
        attention_of(model, wrong, tokens())
