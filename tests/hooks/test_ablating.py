"""An ablated head is one whose columns of the output projection are 0, whichever way it is ablated."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_models import FED, SOURCE, adder
from torch import Tensor

from headcount.heads import HeadId
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.replay import CachedPass, Intervention, plain_pass, sweep
from headcount.hooks.sites import Sites
from headcount.models.transformer import Model

close = {"atol": 1e-9, "rtol": 1e-9}
any_example = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@cache
def _zeroed(model: Model, heads: frozenset[HeadId], inputs: tuple[Tensor, ...]) -> Tensor:
    """Return a copy with the heads' columns set to 0, without using the code under test."""
    copy: Any = deepcopy(model)
    for head in heads:
        place = copy.heads_at(head.site).index(head)
        d_head = model.config.d_model // model.config.n_heads
        copy.projections[head.site].weight[:, place * d_head : (place + 1) * d_head] = 0.0
    return copy(*inputs)


@torch.no_grad()
def by_hand(model: Model, heads: Iterable[HeadId], inputs: tuple[Tensor, ...]) -> Tensor:
    return _zeroed(model, frozenset(heads), inputs)


def groups(model: Model) -> list[tuple[HeadId, ...]]:
    """Return groups of heads: each head, a whole site, one head per site, and all but one."""
    across = tuple(model.heads_at(site)[-1] for site in model.sites)
    return [*[(head,) for head in model.heads], model.heads_at(model.sites[1]), across, model.heads[1:]]


def swept(cached: CachedPass, interventions: list[Intervention], **how: Any) -> dict[int, Tensor]:
    """Return the outputs of all interventions of a sweep."""
    found = dict(sweep(cached, interventions, **how))
    assert sorted(found) == list(range(len(interventions))) != []
    return found


@torch.no_grad()
def test_through_gates(model: Model, inputs: tuple[Tensor, ...]) -> None:
    sites, clean = Sites.of(model), model(*inputs)
    for heads in groups(model):
        expected = by_hand(model, heads, inputs)
        assert (expected - clean).abs().max() > 1e-4
        with Gates(sites, closed_gates(sites, heads)):
            torch.testing.assert_close(model(*inputs), expected, **close)


@torch.no_grad()
def test_through_gates_that_differ_from_row_to_row(model: Model, inputs: tuple[Tensor, ...]) -> None:
    """Row r is without its own group of heads, all in one pass; a row with open gates is as it was."""
    sites, n = Sites.of(model), len(inputs[0])
    chosen = [(), model.heads[:1], model.heads[-2:], model.heads[1::2]]
    gates = {site: torch.ones(n, len(sites[site].heads)) for site in sites}
    for row, heads in enumerate(chosen):
        for site, places in sites.head_slots(heads).items():
            gates[site][row, list(places)] = 0.0
    with Gates(sites, gates):
        output = model(*inputs)
    for row, heads in enumerate(chosen):
        torch.testing.assert_close(output[row], by_hand(model, heads, inputs)[row], **close)
    assert torch.equal(output[0], model(*inputs)[0])


@torch.no_grad()
def test_through_a_cached_pass(model: Model, inputs: tuple[Tensor, ...]) -> None:
    """Replay many interventions in one batch, in any order and with any batch size."""
    interventions = [Intervention(heads) for heads in groups(model)]
    expected = [by_hand(model, intervention.heads, inputs) for intervention in interventions]
    cached = CachedPass(model, Sites.of(model), inputs)
    assert torch.equal(cached.output, model(*inputs))
    for batch_size in (9, 512):
        for i, output in swept(cached, interventions, batch_size=batch_size, checked=True).items():
            torch.testing.assert_close(output, expected[i], **close)


@torch.no_grad()
def test_on_top_of_heads_that_are_ablated_already(model: Model, inputs: tuple[Tensor, ...]) -> None:
    sites = Sites.of(model)
    base = (model.heads[0], model.heads[-1])
    cached = CachedPass(model, sites, inputs, base)
    torch.testing.assert_close(cached.output, by_hand(model, base, inputs), **close)
    interventions = [Intervention((head,)) for head in model.heads[::2]]
    for i, output in swept(cached, interventions).items():
        expected = by_hand(model, {*base, *interventions[i].heads}, inputs)
        torch.testing.assert_close(output, expected, **close)
        torch.testing.assert_close(plain_pass(model, sites, inputs, interventions[i], base), expected, **close)


@pytest.mark.slow
@any_example
@given(data=st.data())
def test_any_heads_in_any_batch(data: st.DataObject) -> None:
    model, inputs = adder(norm="pre", encoding="t5"), (SOURCE, FED)
    some = st.lists(st.sampled_from(model.heads), min_size=1, max_size=5, unique=True).map(tuple)
    interventions = [Intervention(heads) for heads in data.draw(st.lists(some, min_size=1, max_size=6))]
    base = data.draw(st.lists(st.sampled_from(model.heads), max_size=3, unique=True))
    with torch.no_grad():
        cached = CachedPass(model, Sites.of(model), inputs, base)
        for i, output in swept(cached, interventions, batch_size=data.draw(st.integers(1, 40))).items():
            torch.testing.assert_close(output, by_hand(model, {*base, *interventions[i].heads}, inputs), **close)


@torch.no_grad()
def test_replacements_differ_from_intervention_to_intervention(model: Model, inputs: tuple[Tensor, ...]) -> None:
    """Some interventions of a batch have a replacement and some have none; each gets its own."""
    sites = Sites.of(model)
    cached = CachedPass(model, sites, inputs)
    for site in list(sites)[::3]:
        z, heads = cached.z(site), sites[site].heads
        values = [None, torch.ones_like(z), z.flip(0) * 2, z.mean(dim=0, keepdim=True)]
        interventions = [
            Intervention((h,), values={} if s is None else {site: s}) for h, s in product(heads[:2], values)
        ]
        for i, output in swept(cached, interventions).items():
            torch.testing.assert_close(output, plain_pass(model, sites, inputs, interventions[i]), **close)


@torch.no_grad()
def test_a_replacement_goes_through_the_heads_columns() -> None:
    """By hand: put the replacement through the head's columns, and the rest through the others."""
    model = adder(norm="pre", encoding="learned")
    sites, site = Sites.of(model), model.sites[1]
    cached = CachedPass(model, sites, (SOURCE, FED))
    value = torch.randn(cached.z(site).shape, generator=torch.Generator().manual_seed(1)).double()
    mixed = cached.z(site).clone()
    mixed[:, :, 1] = value[:, :, 1]
    hook = sites[site].projection.register_forward_pre_hook(lambda module, args: (mixed.flatten(start_dim=2),))
    expected = model(SOURCE, FED)
    hook.remove()
    intervention = Intervention((site.head(1),), values={site: value})
    torch.testing.assert_close(cached.replay([intervention]), expected, **close)
    torch.testing.assert_close(plain_pass(model, sites, (SOURCE, FED), intervention), expected, **close)


@torch.no_grad()
def test_in_single_precision_too() -> None:
    model = adder(norm="pre", encoding="rotary").float()
    cached = CachedPass(model, Sites.of(model), (SOURCE, FED))
    interventions = [Intervention((head,)) for head in model.heads]
    for i, output in swept(cached, interventions).items():
        expected = by_hand(model, interventions[i].heads, (SOURCE, FED))
        torch.testing.assert_close(output, expected, atol=1e-6 * float(expected.abs().max()), rtol=0)


@torch.no_grad()
def test_half_a_gate_is_half_a_head() -> None:
    model = adder(norm="post", encoding="learned")
    sites = Sites.of(model)
    site = model.sites[0]
    gate = torch.tensor([[1.0, 0.25]])
    copy: Any = deepcopy(model)
    copy.projections[site].weight[:, 4:8] *= 0.25
    with Gates(sites, {site: gate}):
        torch.testing.assert_close(model(SOURCE, FED), copy(SOURCE, FED), **close)


@torch.no_grad()
def test_one_row_of_decoder_input_serves_all_sources_with_heads_ablated() -> None:
    model = adder(norm="pre", encoding="learned")
    cached = CachedPass(model, Sites.of(model), (SOURCE, FED[:1]))
    interventions = [Intervention((head,)) for head in model.heads[::2]]
    for i, output in swept(cached, interventions, checked=True).items():
        torch.testing.assert_close(output, by_hand(model, interventions[i].heads, (SOURCE, FED[:1])), **close)
