"""Captured head outputs and contributions equal those computed by hand."""

from __future__ import annotations

import math

import foreign_models as foreign
import pytest
import torch
from foreign_models import N_HEADS, N_TOKENS, built
from own_models import NUMBERS, classifier, shown_weights
from torch import Tensor

from headcount.errors import InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.gates import Capture, Gates, closed_gates
from headcount.hooks.intervention_proof import prove
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.hooks.sites import Sites
from headcount.models.transformer import Model

TOKENS = torch.randint(N_TOKENS, (3, 5), generator=torch.Generator().manual_seed(0))
close = {"atol": 1e-12, "rtol": 1e-12}


@torch.no_grad()
def test_contributions_and_the_bias_add_up_to_the_output(model: Model, inputs: tuple[Tensor, ...]) -> None:
    sites, outputs = Sites.of(model), {}
    hooks = [
        block.attention.register_forward_hook(lambda module, args, output, site=site: outputs.update({site: output}))
        for site, block in model.blocks.items()
    ]
    with Capture(sites) as captured:
        model(*inputs)
    for hook in hooks:
        hook.remove()
    for site, projection in model.projections.items():
        z, parts = captured.z(site), captured.contributions(site)
        n_heads = len(model.heads_at(site))
        assert z.shape == (*outputs[site].shape[:2], n_heads, model.config.d_model // model.config.n_heads)
        assert parts.shape == (*outputs[site].shape[:2], n_heads, model.config.d_model)
        torch.testing.assert_close(captured.bias(site), projection.bias, **close)
        torch.testing.assert_close(captured.output(site), outputs[site], **close)
        torch.testing.assert_close(parts.sum(dim=2) + projection.bias, outputs[site], **close)
        by_columns = torch.einsum("bqhe,dhe->bqhd", z, projection.weight.unflatten(1, (n_heads, -1)))
        torch.testing.assert_close(parts, by_columns, **close)


@torch.no_grad()
def test_z_is_weights_times_values(model: Model, inputs: tuple[Tensor, ...]) -> None:
    """From the attention weights that the model shows and the values of its own projection."""
    sites, weights, values = Sites.of(model), shown_weights(model, *inputs), {}
    hooks = [
        block.attention.value.register_forward_hook(lambda m, args, output, site=site: values.update({site: output}))
        for site, block in model.blocks.items()
    ]
    with Capture(sites) as captured:
        model(*inputs)
    for hook in hooks:
        hook.remove()
    for site in sites:
        v = values[site].unflatten(-1, (len(model.heads_at(site)), -1))
        expected = torch.einsum("bhqk,bkhe->bqhe", weights[site], v)
        torch.testing.assert_close(captured.z(site), expected, atol=1e-9, rtol=1e-9)


@torch.no_grad()
def test_z_by_hand_in_a_foreign_model() -> None:
    model = built(foreign.Model, n_layers=1)
    with Capture(model.sites) as captured:
        model(TOKENS)
    x, qkv = model.blocks[0].norm(model.tokens(TOKENS)), model.blocks[0].attn.qkv
    d_head = foreign.D // N_HEADS
    for row in range(3):
        for head in range(N_HEADS):
            q, k, v = (
                x[row] @ qkv.weight[place : place + d_head].T + qkv.bias[place : place + d_head]
                for place in (head * d_head + part * foreign.D for part in range(3))
            )
            expected = (q @ k.T / math.sqrt(d_head)).softmax(dim=-1) @ v
            torch.testing.assert_close(captured.z(HeadSite("layer", 0))[row, :, head], expected, **close)


@torch.no_grad()
def test_a_cached_pass_has_the_same_z_and_gated_z_is_what_is_left() -> None:
    model = built(foreign.Model)
    sites = model.sites
    base = [sites.heads[0]]
    with Gates(sites, closed_gates(sites, base)), Capture(sites) as captured:
        model(TOKENS)
    cached = CachedPass(model, sites, [TOKENS], base)
    for site in sites:
        assert torch.equal(cached.z(site), captured.z(site))
    assert not captured.z(HeadSite("layer", 0))[:, :, 0].any()
    assert captured.z(HeadSite("layer", 0))[:, :, 1].all()
    assert tuple(cached.site_records) == tuple(sites)


@torch.no_grad()
def test_weights_are_shares_of_attention(model: Model, inputs: tuple[Tensor, ...]) -> None:
    weights = shown_weights(model, *inputs)
    assert set(weights) == set(model.sites)
    for site, shares in weights.items():
        assert shares.shape[:2] == (len(inputs[0]), len(model.heads_at(site)))
        assert (shares >= 0).all()
        asking = inputs[-1] if site.stack == "decoder" else inputs[0]
        sums = shares.sum(dim=-1).transpose(0, 1)[:, asking != model.pad_id]  # padding may see no key
        torch.testing.assert_close(sums, torch.ones_like(sums), **close)


@torch.no_grad()
def test_one_pass_and_no_other() -> None:
    model = classifier(encoding="none")
    site = model.sites[0]
    with Capture(Sites.of(model)) as nothing:
        pass
    with pytest.raises(InstrumentError, match=r"layer\.0\.self was called 0 times inside the `with` block"):
        nothing.z(site)
    with Capture(Sites.of(model)) as twice:
        model(NUMBERS)
        model(NUMBERS)
    with pytest.raises(InstrumentError, match=r"2 times(.|\n)*exactly one forward pass"):
        twice.contributions(site)


@torch.no_grad()
def test_what_is_captured_does_not_change_afterwards() -> None:
    """A model that adds to the projection's output in place must not change what was read there."""
    model = built(foreign.InPlaceOnTheOutput, n_layers=1)
    site = HeadSite("layer", 0)
    with Capture(model.sites) as captured:
        model(TOKENS)
    expected = model.blocks[0].attn.out(captured.z(site).flatten(start_dim=2))
    torch.testing.assert_close(captured.output(site), expected, **close)


class SixteenBits(foreign.Model):
    """Runs under autocast: what heads find has another precision than the weights."""

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits: Tensor = super().forward(tokens)
        return logits


@torch.no_grad()
def test_under_autocast() -> None:
    model = built(SixteenBits).float()
    with Capture(model.sites) as captured:
        model(TOKENS)
    for site in model.sites:
        assert captured.z(site).dtype == torch.bfloat16
        total = captured.contributions(site).sum(dim=2) + captured.bias(site)
        torch.testing.assert_close(total, captured.output(site).float(), atol=0.02, rtol=0.02)
    prove(model, model.sites, [TOKENS])
    interventions = [Intervention((head,)) for head in model.sites.heads]
    found = dict(sweep(CachedPass(model, model.sites, [TOKENS]), interventions, checked=True))
    assert len(found) == len(interventions)
