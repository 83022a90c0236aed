"""PyTorch's own attention: unfused, its output is what it always is; an ablated head is one whose columns are 0."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_models import HEADS, LATER, PADDING, SLOPES, attention, flags, states, zeroed

from headcount.errors import InputError
from headcount.heads import HeadSite
from headcount.hooks.attention import attention_of
from headcount.hooks.gates import Gates, closed_gates, unfused
from headcount.hooks.sites import Sites

pytestmark = pytest.mark.slow  # models of others, or many processes

SITE = HeadSite("layer", 0)
close = {"atol": 1e-9, "rtol": 1e-9}

# --- the module alone -----------------------------------------------------------------------------------------------

SHAPES: list[dict[str, Any]] = [
    {},
    {"batch_first": False},
    {"bias": False},
    {"kdim": 6, "vdim": 10},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True, "batch_first": False},
    {"dropout": 0.4},
]
CALLS: list[dict[str, Any]] = [
    {},
    {"need_weights": False},
    {"average_attn_weights": False},
    {"key_padding_mask": PADDING},
    {"attn_mask": LATER},
    {"attn_mask": SLOPES},
    {"attn_mask": LATER, "is_causal": True, "need_weights": False},
    {"attn_mask": LATER, "key_padding_mask": PADDING, "average_attn_weights": False},
]


@pytest.mark.parametrize("call", CALLS, ids=lambda each: " ".join(each) or "plain")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda each: " ".join(each) or "plain")
@pytest.mark.parametrize("grad", [False, True])
def test_unfused_its_output_is_the_same_and_heads_can_be_ablated(
    shape: dict[str, Any], call: dict[str, Any], grad: bool
) -> None:
    """Without gradients, and closed, it is the fused path that answers."""
    module: nn.MultiheadAttention = attention(**shape)
    first, own = module.batch_first, "kdim" not in shape
    query = states(first=first)
    key, value = (query, query) if own else (states(6, first=first), states(10, first=first))
    sites = Sites.of(module, layer="out_proj")
    assert sites[SITE].mha is module
    with torch.set_grad_enabled(grad):
        output, weights = module(query, key, value, **call)
        with unfused(sites):
            again, same = module(query, key, value, **call)
        torch.testing.assert_close(again, output, **close)
        if weights is None:
            assert same is None
        else:
            torch.testing.assert_close(same, weights, **close)
        for head in range(HEADS):
            expected, _ = zeroed(module, "out_proj", head)(query, key, value, **call)
            assert (expected - output).abs().max() > 1e-3
            with Gates(sites, closed_gates(sites, [SITE.head(head)])):
                torch.testing.assert_close(module(query, key, value, **call)[0], expected, **close)


def test_keys_of_another_length_and_no_rows_at_all() -> None:
    module = attention()
    sites = Sites.of(module, layer="out_proj")
    for query, key in ((states(), states(length=7, seed=1)), (states()[0], states()[0])):
        expected = zeroed(module, "out_proj", 1)(query, key, key)[0]
        with Gates(sites, closed_gates(sites, [SITE.head(1)])):
            torch.testing.assert_close(module(query, key, key)[0], expected, **close)


@pytest.mark.parametrize("call", [{}, {"key_padding_mask": PADDING}, {"attn_mask": SLOPES}, {"need_weights": False}])
@pytest.mark.parametrize("first", [True, False])
def test_attention_is_what_it_shows_itself(call: dict[str, Any], first: bool) -> None:
    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = attention(batch_first=first)

        def forward(self, x: Tensor) -> Tensor:
            x = x if first else x.transpose(0, 1)
            output = self.inner(x, x, x, **call)[0]
            return output if first else output.transpose(0, 1)

    model, x = Calls().eval(), states()
    own = x if first else x.transpose(0, 1)
    wanted = {**call, "need_weights": True, "average_attn_weights": False}
    expected = model.inner(own, own, own, **wanted)[1]
    found = attention_of(model, Sites.of(model, layer="inner"), x)
    torch.testing.assert_close(found[SITE], expected, **close)


def test_single_precision() -> None:
    module, x = attention().float(), states().float()
    sites = Sites.of(module, layer="out_proj")
    with torch.no_grad(), unfused(sites):
        torch.testing.assert_close(module(x, x, x)[0], deepcopy(module)(x, x, x)[0], atol=1e-6, rtol=1e-6)


# --- as it was, whatever happens --------------------------------------------------------------------------------------


def leave() -> None:
    assert not torch.backends.mha.get_fastpath_enabled()
    raise ZeroDivisionError


@pytest.mark.parametrize("enabled", [True, False])
def test_everything_is_put_back(enabled: bool) -> None:
    module, x = attention(), states()
    sites = Sites.of(module, layer="out_proj")
    torch.backends.mha.set_fastpath_enabled(enabled)
    before = flags(module)
    try:
        for wrong in (x[..., :3], x[:, :, None]):
            with pytest.raises((RuntimeError, AssertionError)), unfused(sites):
                module(wrong, wrong, wrong)
            assert flags(module) == before
        with pytest.raises(ZeroDivisionError), unfused(sites), unfused(sites):
            leave()
        assert flags(module) == before
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@torch.no_grad()
def test_contexts_nest() -> None:
    """Leaving the inner context keeps the module unfused for the outer one."""
    module, x = attention(), states()
    sites = Sites.of(module, layer="out_proj")
    shut = closed_gates(sites, [SITE.head(0)])
    first, both = zeroed(module, "out_proj", 0), zeroed(zeroed(module, "out_proj", 0), "out_proj", 1)
    with Gates(sites, shut):
        with Gates(sites, closed_gates(sites, [SITE.head(1)])):
            torch.testing.assert_close(module(x, x, x)[0], both(x, x, x)[0], **close)
        with unfused(sites):
            pass
        torch.testing.assert_close(module(x, x, x)[0], first(x, x, x)[0], **close)
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_number_of_heads_is_known() -> None:
    with pytest.raises(InputError, match="inner has 2 heads, not 4"):
        Sites.of(nn.ModuleDict({"inner": attention()}), layer="inner", n_heads=4)
