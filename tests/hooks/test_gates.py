"""Gates act inside their context only, leave no trace, and raise an error if they had no effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from own_models import FED, SOURCE, adder, trace
from torch import Tensor, nn

from headcount.errors import InputError, InstrumentError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import Capture, Gates, closed_gates, eval_mode
from headcount.hooks.intervention_proof import prove
from headcount.hooks.replay import CachedPass, Intervention, plain_pass, sweep
from headcount.hooks.sites import Site, Sites
from headcount.models.transformer import EncoderDecoder, Model

INPUTS = (SOURCE, FED)


@pytest.fixture
def one() -> EncoderDecoder:
    return adder(norm="pre", encoding="learned", dropout=0.5, n_decoder_layers=1)


def open_gates(sites: Sites, rows: int = 1, **kind: Any) -> dict[HeadSite, Tensor]:
    return {site: torch.ones(rows, len(sites[site].heads), **kind) for site in sites}


# --- open -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_open_gates_change_no_bit(model: Model, inputs: tuple[Tensor, ...]) -> None:
    sites, clean = Sites.of(model), model(*inputs)
    with Gates(sites, open_gates(sites)) as gates:
        assert torch.equal(model(*inputs), clean)
    assert set(gates.calls.values()) == {0}, "open gates need no hook"


def test_open_gates_that_a_gradient_is_taken_of_change_no_bit(model: Model, inputs: tuple[Tensor, ...]) -> None:
    sites, n = Sites.of(model), len(inputs[0])
    clean = model(*inputs)
    with Gates(sites, open_gates(sites, n, requires_grad=True)) as gates:
        assert torch.equal(model(*inputs), clean)
    assert gates.calls == dict.fromkeys(sites, 1)


@torch.no_grad()
def test_a_replacement_behind_an_open_gate_changes_no_bit(one: EncoderDecoder) -> None:
    """Also where rows with open and with shut gates share a pass, and where z is -0."""
    sites, clean = Sites.of(one), one(*INPUTS)
    site = one.sites[0]
    gate = torch.ones(4, 2)
    gate[1] = 0.0
    with Gates(sites, {site: gate}, {site: torch.full((1, 1, 2, 4), 5.0)}):
        output = one(*INPUTS)
    assert torch.equal(output[[0, 2, 3]], clean[[0, 2, 3]])
    assert not torch.equal(output[1], clean[1])


# --- no trace -------------------------------------------------------------------------------------------------------


def use_gates(model: Model, inside: Callable[[], None]) -> None:
    sites = Sites.of(model)
    with Gates(sites, closed_gates(sites, model.heads[::3])):
        inside()
        model(*INPUTS)


def use_nested_gates(model: Model, inside: Callable[[], None]) -> None:
    sites = Sites.of(model)
    with Gates(sites, closed_gates(sites, model.heads[:2])), Gates(sites, closed_gates(sites, model.heads[1:])):
        inside()
        model(*INPUTS)


def use_capture(model: Model, inside: Callable[[], None]) -> None:
    with Capture(Sites.of(model)) as captured:
        inside()
        model(*INPUTS)
    captured.contributions(model.sites[0])


def use_proof(model: Model, inside: Callable[[], None]) -> None:
    inside()
    prove(model, Sites.of(model), INPUTS)


def use_recording(model: Model, inside: Callable[[], None]) -> None:
    cached = CachedPass(model, Sites.of(model), INPUTS, model.heads[:1])
    inside()
    cached.replay([Intervention((head,)) for head in model.heads_at(model.sites[-1])])
    cached.replay([Intervention((model.heads[0], model.heads[-1]))])


def use_sweep(model: Model, inside: Callable[[], None]) -> None:
    with eval_mode(model):
        cached = CachedPass(model, Sites.of(model), INPUTS)
        inside()
        list(sweep(cached, [Intervention((head,)) for head in model.heads], checked=True))


USES = [use_gates, use_nested_gates, use_capture, use_proof, use_recording, use_sweep]


class Boom(Exception):
    """An exception that only these tests raise."""


def boom(*given: object) -> None:
    raise Boom


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("when", ["never", "inside", "in the first layer", "in the last layer"])
@torch.no_grad()
def test_a_model_is_left_as_it_was(one: EncoderDecoder, use: Callable[..., None], when: str) -> None:
    clean = one(*INPUTS)
    one.train().encoder.eval()  # modes are mixed, and must come back as they were
    before = trace(one)
    if when == "never":
        use(one, lambda: None)
    elif when == "inside":
        hooks: list[Any] = []
        leave = boom if use is not use_proof else lambda: hooks.append(one.to_logits.register_forward_pre_hook(boom))
        with pytest.raises(Boom):
            use(one, leave)
        for hook in hooks:
            hook.remove()
    else:
        part = one.source_tokens if when == "in the first layer" else one.to_logits
        broken: list[Any] = []
        with pytest.raises(Boom):
            use(one, lambda: broken.append(part.register_forward_hook(boom)))
        broken[0].remove()
    assert trace(one) == before
    assert torch.equal(one.eval()(*INPUTS), clean)


@torch.no_grad()
def test_a_forward_of_its_own_comes_back(one: EncoderDecoder) -> None:
    """Somebody else replaced a forward before us: theirs is used, and is still there afterwards."""
    layer: Any = one.encoder[0].feed_forward
    own = type(layer).forward
    layer.forward = theirs = lambda x: own(layer, x) * 2
    cached = CachedPass(one, Sites.of(one), INPUTS)
    intervention = Intervention(one.heads[:1])
    torch.testing.assert_close(cached.replay([intervention]), plain_pass(one, Sites.of(one), INPUTS, intervention))
    assert layer.__dict__["forward"] is theirs


# --- nested ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_contexts_nest(one: EncoderDecoder) -> None:
    sites, site = Sites.of(one), one.sites[0]
    outer, inner = torch.tensor([[0.5, 1.0]]), torch.tensor([[0.5, 0.25]])

    def output(*gates: Tensor) -> Tensor:
        with Gates(sites, {site: torch.stack(gates).prod(dim=0)}):
            return one(*INPUTS)

    product, alone, clean = output(outer, inner), output(outer), one(*INPUTS)
    with Gates(sites, {site: outer}):
        assert torch.equal(one(*INPUTS), alone)
        with Gates(sites, {site: inner}):
            torch.testing.assert_close(one(*INPUTS), product, atol=1e-12, rtol=0)
        assert torch.equal(one(*INPUTS), alone)
        with pytest.raises(Boom), Gates(sites, {site: inner}):
            boom()
        assert torch.equal(one(*INPUTS), alone)
    assert torch.equal(one(*INPUTS), clean)


@torch.no_grad()
def test_a_cached_pass_inside_gates_keeps_them(one: EncoderDecoder) -> None:
    sites = Sites.of(one)
    outer, rest = one.heads[1], [head for head in one.heads if head != one.heads[1]]
    with Gates(sites, closed_gates(sites, [outer])):
        cached = CachedPass(one, sites, INPUTS)
        found = [cached.replay([Intervention((head,))]) for head in rest]
    for head, output in zip(rest, found, strict=True):
        torch.testing.assert_close(
            output, plain_pass(one, sites, INPUTS, Intervention((outer, head))), atol=1e-9, rtol=0
        )


# --- errors ---------------------------------------------------------------------------------------------------------


def test_gates_that_no_pass_came_through_are_an_error(one: EncoderDecoder) -> None:
    sites = Sites.of(one)
    gates = closed_gates(sites, one.heads)
    with pytest.raises(InstrumentError, match=r"no head was ablated at encoder\.0\.self"), Gates(sites, gates):
        pass
    with pytest.raises(InstrumentError, match=r"no head was ablated at decoder\.0\.self, decoder\.0\.cross"):
        subsample(one, Gates(sites, gates))


def subsample(model: EncoderDecoder, gates: Gates) -> None:
    """The encoder alone runs."""
    with gates:
        model.encode(SOURCE)


@torch.no_grad()
def test_a_second_use_must_act_too(one: EncoderDecoder) -> None:
    """A pass in the first use does not count for the second."""
    sites = Sites.of(one)
    gates = Gates(sites, closed_gates(sites, one.heads[:1]))
    with gates:
        one(*INPUTS)
    with pytest.raises(InstrumentError, match="no head was ablated at"), gates:
        pass


@torch.no_grad()
@pytest.mark.parametrize("rows", [2, 3, 5, 20])
def test_a_wrong_number_of_rows_is_an_error(one: EncoderDecoder, rows: int) -> None:
    sites = Sites.of(one)
    for site in sites:
        gates = Gates(sites, {site: torch.zeros(rows, 2)})
        with (
            pytest.raises(InstrumentError, match=rf"the gates at {site} .* have {rows} rows, but the batch has 4"),
            gates,
        ):
            one(*INPUTS)


@pytest.mark.parametrize("gate", [torch.ones(2), torch.ones(1, 3), torch.ones(1, 1), torch.ones(1, 2, 1)])
def test_a_gate_is_rows_by_heads(one: EncoderDecoder, gate: Tensor) -> None:
    with pytest.raises(InputError, match=r"encoder\.0\.self(.|\n)*\[examples, 2\]"):
        Gates(Sites.of(one), {one.sites[0]: gate})


def test_names_that_are_not_there_are_errors(one: EncoderDecoder) -> None:
    sites = Sites.of(one)
    with pytest.raises(InputError, match=r"no attention block 'encoder\.7\.self'(.|\n)*it has: encoder\.0\.self"):
        Gates(sites, {HeadSite("encoder", 7): torch.zeros(1, 2)})
    with pytest.raises(InputError, match=r"no head 'encoder\.0\.self\.2' in this model"):
        closed_gates(sites, [HeadId.parse("E0H2")])
    with pytest.raises(InputError, match="but no gate"):
        Gates(sites, {}, {one.sites[0]: torch.zeros(1, 1, 2, 4)})
    with pytest.raises(InputError, match="does not say where its heads are"):
        Sites.of(nn.Linear(2, 2))
    with pytest.raises(InputError, match="no heads"):
        Sites({})


def test_two_sites_cannot_share_a_projection(one: EncoderDecoder) -> None:
    first, second = HeadSite("layer", 0), HeadSite("layer", 1)
    shared = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"layer\.0\.self and layer\.1\.self share one output projection"):
        Sites({site: Site(shared, (site.head(0),)) for site in (first, second)})


def test_changes_must_begin_together(one: EncoderDecoder) -> None:
    with torch.no_grad():
        cached = CachedPass(one, Sites.of(one), INPUTS)
    with pytest.raises(ValueError, match="must have the same first attention block"):
        cached.replay([Intervention(one.heads[:1]), Intervention(one.heads[-1:])])
