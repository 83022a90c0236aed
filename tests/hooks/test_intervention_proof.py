"""A planted fault for each check of the proof: hooks without effect are refused, heads without effect are not."""

from __future__ import annotations

from collections.abc import Callable

import faulty_models as faulty
import foreign_models as foreign
import pytest
import torch
from foreign_models import N_TOKENS, built
from own_models import trace
from torch import Tensor

from headcount.errors import InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.intervention_proof import TOLERANCE, difference, first_tensor, prove
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.hooks.sites import Site, Sites
from headcount.models.transformer import Model

TOKENS = torch.randint(N_TOKENS, (5, 6), generator=torch.Generator().manual_seed(0))


def test_our_models_are_proven(model: Model, inputs: tuple[Tensor, ...]) -> None:
    proof = prove(model, Sites.of(model), inputs)
    assert [each.site for each in proof] == [str(site) for site in model.sites]
    assert all(each.follows_attention for each in proof)
    assert all(each.sum_error < 1e-12 and each.shut_error < 1e-12 and each.output_change > 1e-4 for each in proof)


@pytest.mark.parametrize("kind", [foreign.Model, foreign.Tuples, foreign.ReturnsDict, foreign.ReturnsNamedTuple])
def test_sound_models_are_proven(kind: type[foreign.Model]) -> None:
    model = built(kind)
    assert len(prove(model, model.sites, [TOKENS])) == 3
    model = model.float()
    assert max(each.sum_error for each in prove(model, model.sites, [TOKENS])) < TOLERANCE / 10


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        pytest.param(
            faulty.NotLinear, "the contributions of the heads and the bias do not sum to the output", id="the sum"
        ),
        pytest.param(faulty.PutsBack, "with all heads ablated, the output of the block is not the bias", id="all shut"),
        pytest.param(faulty.ThrowsAway, "noise in place of the head outputs does not change the model", id="noise"),
        pytest.param(faulty.ThrowsAway, "other code uses z and the weights of its projection", id="by hand"),
        pytest.param(faulty.ThrowsAwayForACopy, "other code uses z, so", id="a copy"),
        pytest.param(faulty.ThrowsAwayForFusedCode, "other code uses the weights of its", id="fused besides"),
        pytest.param(faulty.DropsWithoutGradients, "without gradients it cannot be decided", id="no gradients"),
        pytest.param(faulty.Bypasses, "called 0 times inside the `with` block", id="never called"),
        pytest.param(faulty.TorchsAttention, "called 0 times inside the `with` block", id="fused"),
        pytest.param(faulty.CallsTwice, "called 2 times inside the `with` block, not once", id="called twice"),
        pytest.param(faulty.ByKeyword, "not called with a tensor", id="by keyword"),
        pytest.param(faulty.NotANumber, "", id="not a number"),
    ],
)
def test_a_planted_fault_is_found(kind: type[foreign.Model], why: str) -> None:
    model = built(kind)
    with pytest.raises(InstrumentError, match=rf"layer\.0\.self(.|\n)*{why}"):
        prove(model, model.sites, [TOKENS])


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_one_faulty_site_is_enough(layer: int) -> None:
    """A head of that site seems to have no effect at all; the proof says why."""
    model = built(foreign.Model)
    model.blocks[layer].attn.__class__ = faulty.BypassingBesides
    site = HeadSite("layer", layer)
    with torch.no_grad(), Gates(model.sites, closed_gates(model.sites, [site.head(0)])):
        output = model(TOKENS)
    assert torch.equal(output, model(TOKENS)), "a plausible zero"
    with pytest.raises(InstrumentError, match=rf"do not act as they should at layer\.{layer}\.self"):
        prove(model, model.sites, [TOKENS])


# --- blocks that the model does not use -------------------------------------------------------------------------------


def zero_projection(model: foreign.Model) -> None:
    """The heads of the second block write nothing, not even a bias."""
    torch.nn.init.zeros_(model.blocks[1].attn.out.weight)
    torch.nn.init.zeros_(model.blocks[1].attn.out.bias)


def bias_alone(model: foreign.Model) -> None:
    """The heads of the second block write nothing."""
    torch.nn.init.zeros_(model.blocks[1].attn.out.weight)


def frozen(model: foreign.Model) -> None:
    """No weight records gradients, as in a model that was loaded for use alone."""
    bias_alone(model)
    model.requires_grad_(False)


@pytest.mark.parametrize("change", [zero_projection, bias_alone, frozen])
def test_a_block_without_effect_is_a_finding_and_no_error(change: Callable[[foreign.Model], None]) -> None:
    """Gates act on such a block: its heads truly have no effect, and no measurement of them is wrong."""
    model = built(foreign.Model)
    change(model)
    before = trace(model), [weight.requires_grad for weight in model.parameters()]
    proof = prove(model, model.sites, [TOKENS])
    assert [each.is_used for each in proof] == [True, False, True]
    assert [each.output_change > 0 for each in proof] == [True, False, True]
    assert max(each.sum_error for each in proof) < TOLERANCE
    assert max(each.shut_error for each in proof) < TOLERANCE
    assert (trace(model), [weight.requires_grad for weight in model.parameters()]) == before


def test_blocks_whose_output_the_model_drops_are_not_used() -> None:
    model = built(faulty.DropsItsBlocks)
    assert [each.is_used for each in prove(model, model.sites, [TOKENS])] == [False] * 3
    with torch.inference_mode():
        assert [each.is_used for each in prove(model, model.sites, [TOKENS])] == [False] * 3


def test_a_block_that_shares_the_weights_of_a_used_block_is_not_used() -> None:
    """The other block uses these weights rightly; they are not a sign of fused code."""
    model = built(foreign.Model)
    model.blocks[1].attn.__class__ = faulty.DroppingAttention
    model.blocks[1].attn.out.weight = model.blocks[0].attn.out.weight
    assert [each.is_used for each in prove(model, model.sites, [TOKENS])] == [True, False, True]


def test_a_whole_second_copy_of_a_block_cannot_be_told_from_an_unused_block() -> None:
    """This is a limit of the proof: the copy shares neither z nor weights with the block whose heads are known."""
    model = built(faulty.ThrowsAwayForAWholeCopy)
    assert [each.is_used for each in prove(model, model.sites, [TOKENS])] == [False] * 3


@pytest.mark.parametrize("kind", [faulty.Bypasses, faulty.TorchsAttention])
@torch.no_grad()
def test_nobody_needs_the_proof_to_see_that_a_projection_is_not_called(kind: type[foreign.Model]) -> None:
    model = built(kind)
    gates = Gates(model.sites, closed_gates(model.sites, model.sites.heads[:1]))
    with pytest.raises(InstrumentError, match="no head was ablated"), gates:
        model(TOKENS)
    with pytest.raises(InstrumentError, match="never called"):
        CachedPass(model, model.sites, [TOKENS])


@torch.no_grad()
def test_a_projection_that_is_called_twice_cannot_be_recorded() -> None:
    model = built(faulty.CallsTwice)
    with pytest.raises(InstrumentError, match="called twice"):
        CachedPass(model, model.sites, [TOKENS])


def test_the_wrong_projection_is_found() -> None:
    """A layer that no attention is in front of, and one that is too narrow for so many heads."""
    model, site = built(foreign.Model), HeadSite("layer", 0)
    unused = Sites({site: Site(torch.nn.Linear(8, 8), (site.head(0),))})
    with pytest.raises(InstrumentError, match="called 0 times inside the `with` block"):
        prove(model, unused, [TOKENS])
    five = Sites({site: Site(model.blocks[0].attn.out, tuple(map(site.head, range(5))))})
    gates = Gates(five, closed_gates(five, five.heads[:1]))
    with pytest.raises(InstrumentError, match="cannot be divided evenly among 5 heads"), gates:
        model(TOKENS)


SQUARE = TOKENS[:5, :5]
"""As many rows as positions: a gate per row would fit an axis of positions just as well."""


def rows_changed(model: foreign.Model) -> list[bool]:
    """Return the rows that a closed gate in row 1 changes."""
    gate = torch.ones(5, 2)
    gate[1, 0] = 0.0
    with torch.no_grad():
        clean = model(SQUARE)
        with Gates(model.sites, {HeadSite("layer", 0): gate}):
            gated = model(SQUARE)
    return ((gated - clean).abs().amax(dim=(1, 2)) > 1e-9).tolist()


def test_a_gate_of_one_row_acts_on_that_row_alone() -> None:
    model = built(foreign.Model)
    assert len(prove(model, model.sites, [SQUARE])) == 3
    assert rows_changed(model) == [False, True, False, False, False]


@pytest.mark.parametrize("kind", [foreign.LengthFirst, foreign.FlatProjection])
def test_rows_that_are_positions_are_refused(kind: type[foreign.Model]) -> None:
    model = built(kind)
    with pytest.raises(InstrumentError, match=r"the gates at layer\.0\.self .* have \d+ rows, but the batch has"):
        prove(model, model.sites, [SQUARE])
    if kind is foreign.LengthFirst:
        assert rows_changed(model) == [True] * 5, "unproven, one position of every row is gated, and nothing notices"


@torch.no_grad()
def test_the_check_notices_a_cached_pass_that_is_off() -> None:
    """A small error is planted in one recorded layer output."""
    model = built(foreign.Model)
    cached = CachedPass(model, model.sites, [TOKENS])
    interventions = [Intervention((head,)) for head in model.sites.heads]
    list(sweep(cached, interventions, checked=True))
    block = cached._calls[model.blocks[0]][0]
    block.output = block.output * torch.linspace(1, 1.01, 8)  # nobody changed it in place, and it is wrong
    with pytest.raises(
        InstrumentError,
        match=r"a forward pass replayed from layer\.1\.self does not give the output of a full forward pass",
    ):
        list(sweep(cached, interventions, checked=True))


def test_differences_are_shares_of_the_largest_value() -> None:
    assert difference(torch.tensor([0.0, -200.0]), torch.tensor([1.0, -200.0])) == pytest.approx(1 / 200)
    assert difference(torch.zeros(3), torch.zeros(3)) == 0


def test_the_output_of_a_model_is_its_first_tensor() -> None:
    output, other = torch.ones(2), torch.zeros(3)
    assert all(
        first_tensor(each) is output
        for each in (output, (output, other), {"loss": None, "logits": output}, [None, output])
    )
