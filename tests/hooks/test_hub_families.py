"""Hugging Face models: every head is found, and ablating it equals zeroing its columns by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import hub_models as hub
import numpy as np
import pytest
import torch
from counted_heads import require_refused
from hub_by_hand import PROJECTIONS, Place, answer, places, shown, without
from own_models import trace
from tensor_experiments import tensor_experiment
from torch import Tensor

from headcount.errors import InputError
from headcount.experiments.interventions import run_interventions
from headcount.heads import HeadId, HeadSite
from headcount.hooks.attention import attention_of
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.intervention_proof import prove
from headcount.hooks.replay import CachedPass, Intervention, plain_pass, sweep
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import wrap

close = {"atol": 1e-9, "rtol": 1e-9}
nearly = {"atol": 1e-6, "rtol": 0}
"""Some models take the softmax in single precision, whatever theirs is."""
slow = pytest.mark.slow
every_family = pytest.mark.parametrize(
    "name", [name if name == "bert" else pytest.param(name, marks=slow) for name in hub.FAMILIES]
)
"""BERT among the fast tests, the others among the slow ones."""


def head(place: Place) -> HeadId:
    stack, layer, index = place
    return HeadId.parse(f"{stack}{layer}H{index}")


def groups(name: str) -> list[tuple[Place, ...]]:
    """Heads of neighbouring layers, of the first and the last, one of every layer, a whole one, all but one."""
    every = places(name)
    layers = list(dict.fromkeys(each[:2] for each in every))
    pairs = [((*one, 0), (*other, 1)) for one, other in pairwise(layers)]
    across = tuple((*layer, 1) for layer in layers)
    whole = tuple(each for each in every if each[:2] == layers[1])
    return [*pairs, (every[0], every[-1]), across, whole, tuple(every[1:])]


# --- what is found --------------------------------------------------------------------------------------------------


@every_family
def test_every_head_is_found(name: str) -> None:
    model = hub.build(name)
    wrapped = wrap(model)
    assert wrapped.heads == tuple(map(head, places(name)))
    assert wrapped.sites == tuple(dict.fromkeys(each.site for each in wrapped.heads))
    for stack, path in PROJECTIONS.get(name, {}).items():
        found = [site for site in wrapped.sites if site.short[0] == stack]
        for layer, site in enumerate(found):
            assert wrapped.head_sites[site].projection is model.get_submodule(path.format(layer))
            assert f"{site}: {len(wrapped.heads_at(site))} heads" in str(wrapped)
            assert path.format(layer) in str(wrapped)


def test_the_layers_of_albert_are_told_apart_by_calls() -> None:
    sites = wrap(hub.build("albert in groups")).head_sites
    assert len(sites.projections) == 4
    assert [(site.layer, sites[site].call) for site in sites] == [
        (0, 0), (1, 0), (2, 1), (3, 1), (4, 0), (5, 0), (6, 1), (7, 1),
    ]  # fmt: skip


def test_a_head_may_be_wider_or_narrower_than_its_share() -> None:
    """T5 and Llama may have heads of any width: n_heads * d_head is not d_model."""
    for name, shape in (("t5", {"d_kv": 6}), ("llama", {"head_dim": 10})):
        model = hub.build(name, **shape)
        wrapped, inputs = wrap(model), hub.inputs_of(name)
        sites = wrapped.head_sites
        for place in places(name)[::3]:
            expected = without(name, model, [place], inputs)
            with torch.no_grad(), Gates(sites, closed_gates(sites, [head(place)])):
                torch.testing.assert_close(wrapped(*inputs), expected, **close)


def test_another_number_of_heads_and_layers() -> None:
    wrapped = wrap(hub.build("gpt2", n_head=8, n_layer=11))
    assert len(wrapped.heads) == 88
    assert wrapped.heads[-1] == HeadId.parse("L10H7")
    projections = [wrapped.head_sites[HeadSite("layer", i)].projection for i in range(11)]
    assert projections == [block.attn.c_proj for block in wrapped.model.transformer.h]


def test_an_encoder_alone_has_the_heads_of_an_encoder() -> None:
    config = hub.FAMILIES["t5"]
    wrapped = wrap(hub.T.T5EncoderModel(config[0](**config[2])).eval())
    assert [head.short for head in wrapped.heads] == [f"E{i}H{k}" for i in range(2) for k in range(4)]
    prove(wrapped, wrapped.head_sites, hub.inputs_of("bert"))


# --- ablation -------------------------------------------------------------------------------------------------------


@torch.no_grad()
@every_family
def test_an_ablated_head_is_one_whose_columns_are_zero(name: str) -> None:
    model, inputs = hub.build(name), hub.inputs_of(name)
    wrapped, before = wrap(model), trace(model)
    sites, clean = wrapped.head_sites, answer(hub.called(name, model, inputs))
    assert torch.equal(wrapped(*inputs), clean)
    for place in places(name):
        expected = without(name, model, [place], inputs)
        assert (expected - clean).abs().max() > 1e-3, f"{place} should matter"
        with Gates(sites, closed_gates(sites, [head(place)])):
            torch.testing.assert_close(wrapped(*inputs), expected, **close)
            torch.testing.assert_close(answer(hub.called(name, model, inputs)), expected, **close)
    assert trace(model) == before
    assert torch.equal(wrapped(*inputs), clean)


@torch.no_grad()
@every_family
def test_in_a_sweep_too_alone_and_together(name: str) -> None:
    model, inputs = hub.build(name), hub.inputs_of(name)
    wrapped, before = wrap(model), trace(model)
    asked = [*[(place,) for place in places(name)], *groups(name)]
    interventions = [Intervention(tuple(map(head, each))) for each in asked]
    cached = CachedPass(wrapped, wrapped.head_sites, inputs)
    found = dict(sweep(cached, interventions, batch_size=20, checked=True))
    for i, each in enumerate(asked):
        expected = without(name, model, each, inputs)
        torch.testing.assert_close(found[i], expected, **close)
        if i % 3 == 0:
            torch.testing.assert_close(
                plain_pass(wrapped, wrapped.head_sites, inputs, interventions[i]), expected, **close
            )
    assert trace(model) == before


@torch.no_grad()
@slow
@pytest.mark.parametrize("name", ["albert", "albert in groups", "gpt2", "t5", "bart"])
def test_on_top_of_ablated_heads(name: str) -> None:
    model, inputs = hub.build(name), hub.inputs_of(name)
    wrapped, every = wrap(model), places(name)
    base = [every[1], every[-2]]
    cached = CachedPass(wrapped, wrapped.head_sites, inputs, tuple(map(head, base)))
    torch.testing.assert_close(cached.output, without(name, model, base, inputs), **close)
    asked = [(place,) for place in every[::3] if place not in base]
    found = dict(sweep(cached, [Intervention(tuple(map(head, each))) for each in asked], checked=True))
    assert len(found) == len(asked) > 0
    for i, output in found.items():
        torch.testing.assert_close(output, without(name, model, [*base, *asked[i]], inputs), **close)


@torch.no_grad()
@slow
@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "llama", "t5", "bart", "vit"])
def test_in_single_precision(name: str) -> None:
    model, inputs = hub.build(name, torch.float32), hub.inputs_of(name, torch.float32)
    wrapped = wrap(model)
    cached = CachedPass(wrapped, wrapped.head_sites, inputs)
    asked = [*[(place,) for place in places(name)], *groups(name)]
    found = dict(sweep(cached, [Intervention(tuple(map(head, each))) for each in asked], checked=True))
    assert len(found) == len(asked) > 0
    for i, output in found.items():
        expected = without(name, model, asked[i], inputs)
        with Gates(wrapped.head_sites, closed_gates(wrapped.head_sites, map(head, asked[i]))):
            slow = wrapped(*inputs)
        for given in (output, slow):
            torch.testing.assert_close(given, expected, atol=2e-6 * float(expected.abs().max()), rtol=0)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::UserWarning")  # of transformers, about settings that nobody made
@slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bart"])
def test_while_it_generates_with_its_cache(name: str) -> None:
    model, tokens = hub.build(name), hub.inputs_of(name)[0][:1]
    wrapped, place = wrap(model), places(name)[1]

    def written() -> Any:
        settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "num_beams": 1}
        return model.generate(tokens, **settings, output_logits=True, return_dict_in_generate=True)

    clean, weights = written(), model.get_submodule(PROJECTIONS[name][place[0]].format(0)).weight
    with Gates(wrapped.head_sites, closed_gates(wrapped.head_sites, [head(place)])):
        ablated = written()
    rows = weights if name == "gpt2" else weights.T  # those that read head 1 of 4
    rows[8:16] = 0.0
    expected = written()
    for given, wanted, whole in zip(ablated.logits, expected.logits, clean.logits, strict=True):
        torch.testing.assert_close(given, wanted, **close)
        assert not torch.allclose(given, whole)


@every_family
def test_the_instrument_is_proven(name: str) -> None:
    for dtype in (torch.float64, torch.float32):
        model = hub.build(name, dtype)
        before, wrapped = trace(model), wrap(model)
        proof = prove(wrapped, wrapped.head_sites, hub.inputs_of(name, dtype))
        assert [each.site for each in proof] == [str(site) for site in wrapped.sites]
        assert all(each.follows_attention for each in proof)
        assert trace(model) == before
    require_refused(wrapped, wrapped.head_sites, hub.inputs_of(name, dtype))


def test_a_block_is_no_projection() -> None:
    with pytest.raises(InputError, match=r"h\.0\.attn is a whole(.|\n)*transformer\.h\.\*\.attn\.c_proj"):
        Sites.of(hub.build("gpt2"), "transformer.h.*.attn", n_heads=4)
    with pytest.raises(InputError, match=r"is a whole(.|\n)*attention\.output\.dense"):
        Sites.of(hub.build("bert"), "bert.encoder.layer.*.attention", n_heads=4)


# --- where heads look -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sdpa", "eager"])
@every_family
def test_attention_is_what_eager_mode_shows(name: str, mode: str) -> None:
    if (name, mode) == ("gpt_neo", "sdpa"):
        pytest.skip("transformers has no sdpa for GPT-Neo")
    inputs, model = hub.inputs_of(name), hub.build(name, attn_implementation=mode)
    assert model.config._attn_implementation == mode
    before, wrapped = trace(model), wrap(model)
    found = attention_of(wrapped, wrapped.head_sites, *inputs)
    for stack, layers in shown(name, inputs).items():
        sites = [site for site in wrapped.sites if site.short[0] == stack]
        assert len(sites) == len(layers)
        for site, expected in zip(sites, layers, strict=True):
            torch.testing.assert_close(found[site].double(), expected.double(), **nearly)
    assert set(found) == set(wrapped.sites)
    assert trace(model) == before


@slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox"])
@pytest.mark.parametrize("mode", ["sdpa", "eager"])
def test_padding_on_the_left_leaves_queries_that_see_nothing(name: str, mode: str) -> None:
    """In single precision: in double, eager mode of transformers makes NaN of such rows."""
    tokens, mask = hub.inputs_of(name)
    inputs, dtype = (tokens.flip(1), mask.flip(1)), torch.float32
    wrapped = wrap(hub.build(name, dtype, attn_implementation=mode))
    found = attention_of(wrapped, wrapped.head_sites, *inputs)
    seen = inputs[1].bool()
    for site, expected in zip(wrapped.sites, shown(name, inputs, dtype=dtype)["L"], strict=True):
        given, expected = (each.double().transpose(1, 2)[seen] for each in (found[site], expected))
        torch.testing.assert_close(given, expected, atol=1e-5, rtol=0)
        assert not found[site].isnan().any()


# --- other kinds ----------------------------------------------------------------------------------------------------


def score(output: Tensor, rows: Any) -> Tensor:
    return output[:, -1].abs().sum(dim=-1)


@torch.no_grad()
def test_means_and_donors_replace_a_head() -> None:
    """By hand: what the projection is given instead, by a hook of our own."""
    model, (tokens, mask) = hub.build("gpt2"), hub.inputs_of("gpt2", rows=6)
    wrapped, inputs = wrap(model), (tokens, torch.ones_like(mask))
    experiment = tensor_experiment(wrapped, wrapped.head_sites, inputs, score)
    place = ("L", 1, 2)
    outcome = run_interventions(
        experiment, [Intervention((head(place),), kind) for kind in ("zero", "mean", "resample")]
    )
    projection: Any = model.transformer.h[1].attn.c_proj
    kept: list[Tensor] = []
    hook = projection.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    clean = score(hub.called("gpt2", model, inputs).logits, None)
    hook.remove()

    def with_value(value: Tensor) -> Tensor:
        z = kept[0].clone()
        z[..., 16:24] = value[..., 16:24]
        hook = projection.register_forward_pre_hook(lambda module, args: (z,))
        output = hub.called("gpt2", model, inputs).logits
        hook.remove()
        return score(output, None)

    np.testing.assert_allclose(outcome.clean, clean, rtol=1e-9)
    np.testing.assert_allclose(outcome.scores[0], score(without("gpt2", model, [place], inputs), None), rtol=1e-9)
    np.testing.assert_allclose(outcome.scores[1], with_value(kept[0].mean(dim=0)), rtol=1e-9)
    swaps = np.stack([with_value(kept[0].roll(k, dims=0)) for k in range(1, 6)])  # each row with each of the others
    assert all(np.isclose(swaps[:, row], outcome.scores[2][row], rtol=1e-9).any() for row in range(6))
    assert np.abs(outcome.scores - outcome.clean).max(axis=1).min() > 1e-3
