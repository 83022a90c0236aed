"""PyTorch's encoders, decoders and transformers: heads inside are named, ablated and swept, fused paths or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from own_models import scattered
from torch import Tensor, nn
from torch_models import HEADS, LATER, PADDING, ROWS, encoder, flags, layer, states, transformer, zeroed

from headcount.errors import InstrumentError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.attention import attention_of
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.intervention_proof import prove
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import wrap

pytestmark = pytest.mark.slow  # models of others, or many processes

SITE = HeadSite("layer", 0)
close = {"atol": 1e-9, "rtol": 1e-9}


class Padded(nn.Module):
    """An encoder that is told what is padding, as everybody's model does it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.encoder = inner

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        output = self.encoder(x, src_key_padding_mask=padding.bool())
        return output.masked_fill(padding.bool()[..., None], 0.0)  # which is what the fused path leaves there


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("given", [{}, {"norm_first": True}, {"activation": "gelu"}], ids=["post", "pre", "gelu"])
@torch.no_grad()
def test_an_encoder_with_padding(given: dict[str, Any]) -> None:
    """In eval mode PyTorch packs the rows of different length, and calls no attention module at all."""
    model, inputs = Padded(encoder(**given)), (states(), PADDING)
    called: list[int] = []
    hook = model.encoder.layers[0].self_attn.out_proj.register_forward_hook(lambda *args: called.append(1))
    clean, wrapped = model(*inputs), wrap(model)
    hook.remove()
    assert not called
    before = flags(model)
    assert [head.short for head in wrapped.heads] == ["E0H0", "E0H1", "E1H0", "E1H1"]
    prove(wrapped, wrapped.head_sites, inputs)
    cached = CachedPass(wrapped, wrapped.head_sites, inputs)
    torch.testing.assert_close(cached.output, clean, **close)
    every = [Intervention((head,)) for head in wrapped.heads] + [Intervention((wrapped.heads[0], wrapped.heads[3]))]
    found = dict(sweep(cached, every, checked=True))
    assert len(found) == len(every) > 0
    for i, output in found.items():
        copy: nn.Module = model
        for head in every[i].heads:
            copy = zeroed(copy, f"encoder.layers.{head.site.layer}.self_attn.out_proj", head.index)
        assert torch.backends.mha.get_fastpath_enabled()
        torch.testing.assert_close(output, copy(*inputs), **close)
        assert (output - clean).abs().max() > 1e-4
    assert flags(model) == before


@torch.no_grad()
def test_a_layer_alone_in_every_mode() -> None:
    one = scattered(layer(nn.TransformerEncoderLayer))
    sites, x = Sites.of(one, layer="self_attn"), states()
    for mask in (None, LATER):
        for head in range(HEADS):
            expected = zeroed(one, "self_attn.out_proj", head)(x, src_mask=mask)
            with Gates(sites, closed_gates(sites, [SITE.head(head)])):
                torch.testing.assert_close(one(x, src_mask=mask), expected, **close)


PROJECTIONS = {
    "E": "encoder.layers.{}.self_attn",
    "D": "decoder.layers.{}.self_attn",
    "X": "decoder.layers.{}.multihead_attn",
}


def by_hand(model: nn.Module, heads: Sequence[HeadId], *inputs: Tensor) -> Tensor:
    for head in heads:
        path = PROJECTIONS[head.short[0]].format(head.site.layer)
        model = zeroed(model, f"{path}.out_proj", head.index)
    return model(*inputs)


@torch.no_grad()
def test_a_whole_transformer() -> None:
    model, inputs = transformer(), (states(), states(length=4, seed=1))
    wrapped, clean = wrap(model), model(*inputs)
    names = [f"{stack}{i}H{k}" for stack in "EDX" for i in range(2) for k in range(HEADS)]
    assert sorted(head.short for head in wrapped.heads) == sorted(names)
    for site in wrapped.sites:
        at = PROJECTIONS[site.short[0]].format(site.layer)
        assert wrapped.head_sites[site].projection is model.get_submodule(at).out_proj
    prove(wrapped, wrapped.head_sites, inputs)
    cached = CachedPass(wrapped, wrapped.head_sites, inputs)
    asked = [*[(head,) for head in wrapped.heads], wrapped.heads[::3], wrapped.heads[1:]]
    found = dict(sweep(cached, [Intervention(heads) for heads in asked], checked=True))
    assert len(found) == len(asked) > 0
    for i, output in found.items():
        torch.testing.assert_close(output, by_hand(model, asked[i], *inputs), **close)
        assert (output - clean).abs().max() > 1e-4
    shapes = {"E": (5, 5), "D": (4, 4), "X": (4, 5)}
    for site, weights in attention_of(wrapped, wrapped.head_sites, *inputs).items():
        assert weights.shape == (ROWS, HEADS, *shapes[site.short[0]])
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]), **close)


@torch.no_grad()
def test_a_decoder_alone() -> None:
    torch.manual_seed(0)
    model = scattered(nn.TransformerDecoder(layer(nn.TransformerDecoderLayer), 2))
    wrapped, inputs = wrap(model), (states(length=4), states(seed=1))
    sites = wrapped.head_sites
    prove(wrapped, sites, inputs)
    for kind, at in (("self", "layers.0.self_attn"), ("cross", "layers.0.multihead_attn")):
        name = HeadSite("decoder", 0, kind)
        assert sites[name].projection is model.get_submodule(at).out_proj
        expected = zeroed(model, f"{at}.out_proj", 1)(*inputs)
        with Gates(sites, closed_gates(sites, [name.head(1)])):
            torch.testing.assert_close(wrapped(*inputs), expected, **close)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@torch.no_grad()
def test_rows_that_come_second_are_gated_but_not_swept() -> None:
    """Gates know rows where the projection is called; whoever slices the inputs by rows must be told no."""
    model, inputs = transformer(batch_first=False), (states(first=False), states(length=4, seed=1, first=False))
    wrapped = wrap(model)
    sites, head = wrapped.head_sites, wrapped.heads[-1]
    expected = by_hand(model, [head], *inputs)
    with Gates(sites, closed_gates(sites, [head])):
        torch.testing.assert_close(wrapped(*inputs), expected, **close)
    gates = torch.ones(ROWS, HEADS)
    gates[1, head.index] = 0.0
    with Gates(sites, {head.site: gates}):
        output = wrapped(*inputs)
    torch.testing.assert_close(output[:, 1], expected[:, 1], **close)
    torch.testing.assert_close(output[:, [0, 2]], model(*inputs)[:, [0, 2]], **close)
    for square in (inputs, (states(length=ROWS), states(length=ROWS, seed=1))):
        with pytest.raises(InstrumentError):
            prove(wrapped, sites, square)
