"""Models of others: a replayed pass equals a full pass, or raises an error."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import product
from typing import Any

import faulty_models as faulty
import foreign_models as foreign
import pytest
import torch
from foreign_models import N_TOKENS, D, built
from pairwise import pairwise_sample
from tensor_experiments import tensor_experiment
from torch import Tensor, nn

from headcount.errors import InstrumentError
from headcount.experiments.interventions import run_interventions
from headcount.heads import HeadId
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.intervention_proof import first_tensor, prove
from headcount.hooks.replay import CachedPass, Intervention, plain_pass, sweep
from headcount.hooks.sites import Sites

LENGTH = 5
SOUND = (
    foreign.Model,
    foreign.Tuples,
    foreign.DecoderOnly,
    foreign.InPlaceResiduals,
    foreign.SharedLayers,
    foreign.ReturnsDict,
    foreign.ReturnsNamedTuple,
    foreign.Dataclasses,
    foreign.Keywords,
    foreign.InPlaceOnTheOutput,
)
"""Must be computed right."""
HARD = (
    foreign.ReluInPlace,
    foreign.AddsAndReturnsNothing,
    foreign.FlatProjection,
    foreign.LengthFirst,
    foreign.Steered,
    faulty.KeepsState,
    faulty.KeepsPooledState,
)
"""May be refused."""


def tokens(n: int, length: int = LENGTH) -> Tensor:
    return torch.randint(N_TOKENS, (n, length), generator=torch.Generator().manual_seed(n + 97 * length))


def interventions_of(cached: CachedPass) -> list[Intervention]:
    """Return interventions on each head (zero and replacement) and on heads of two sites together."""
    sites = cached.sites
    turned = {site: cached.z(site).flip(0) + 0.3 for site in sites}
    alone = [Intervention((head,)) for head in sites.heads]
    replaced = [Intervention((head,), values={head.site: turned[head.site]}) for head in sites.heads]
    ends = sites.heads[0], sites.heads[-1]
    return [
        *alone,
        *replaced,
        Intervention(ends),
        Intervention(ends, values={head.site: turned[head.site] for head in ends}),
    ]


@torch.no_grad()
def outcome(model: Any, given: Tensor, batch_size: int = 512, *, backwards: bool = False) -> str:
    """`right` or `refused`, and an assertion that fails if it is neither."""
    sites: Sites = model.sites
    try:
        prove(model, sites, [given])
        cached = CachedPass(model, sites, [given])
        interventions = interventions_of(cached)
        if backwards:
            interventions.reverse()
        found = dict(sweep(cached, interventions, batch_size=batch_size, checked=True))
    except InstrumentError:
        return "refused"
    assert set(found) == set(range(len(interventions)))
    clean = first_tensor(model(given))
    for i, intervention in enumerate(interventions):
        expected = first_tensor(plain_pass(model, sites, [given], intervention))
        assert (expected - clean).abs().max() > 1e-4, "an intervention that changes nothing is no test"
        worst = (found[i] - expected).abs().max() / expected.abs().max()
        assert worst < 1e-6, f"{type(model).__name__}: {intervention.heads} is off by {worst:.1e}"
        if not intervention.values:
            by_hand = first_tensor(columns_zeroed(model, intervention)(given))
            torch.testing.assert_close(found[i], by_hand, atol=1e-9, rtol=1e-9)
    return "right"


@torch.no_grad()
def columns_zeroed(model: Any, intervention: Intervention) -> nn.Module:
    copy = deepcopy(model)
    for site, places in copy.sites.head_slots(intervention.heads).items():
        copy.sites[site].projection.weight.unflatten(1, (foreign.N_HEADS, -1))[:, list(places)] = 0.0
    return copy


QUICK, ALL = [(3, LENGTH)], [(1, LENGTH), (LENGTH, LENGTH), (D, LENGTH), (1, 1), (1, 2), (2, 1), (2, 2), (4, 2), (2, 4)]
SIZES = [*QUICK, *[pytest.param(*size, marks=pytest.mark.slow) for size in ALL]]
"""Rows and positions: as many as each other, as the width, as the interventions in a batch; one; odd."""


@pytest.mark.parametrize(("n", "length"), SIZES)
@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_model_is_computed_right(kind: type[foreign.Model], n: int, length: int) -> None:
    """A table of as many positions as there are rows looks like rows: such a pass is refused, never wrong."""
    has_table = kind is foreign.DecoderOnly
    expected = "refused" if has_table and n == length else "right"
    assert outcome(built(kind, n_layers=2), tokens(n, length)) == expected


@pytest.mark.parametrize(("n", "length"), SIZES)
@pytest.mark.parametrize("kind", HARD)
def test_a_hard_one_is_computed_right_or_refused(kind: type[foreign.Model], n: int, length: int) -> None:
    assert outcome(built(kind), tokens(n, length)) in ("right", "refused")


def test_blocks_of_a_sweep_are_never_as_large_as_a_sequence_is_long() -> None:
    model = built(foreign.DecoderOnly, n_layers=2)
    experiment = tensor_experiment(
        model, model.sites, [tokens(3 * LENGTH, LENGTH)], lambda logits, rows: logits[:, 0, 0], at_once=LENGTH
    )
    assert LENGTH not in {len(block.rows) for block in experiment.batches}
    assert sorted(row for block in experiment.batches for row in block.rows) == list(range(3 * LENGTH))
    run_interventions(experiment, [Intervention((head,)) for head in model.sites.heads])


@pytest.mark.parametrize(("n", "length"), [(1, 2), (2, 2), (2, 4)])
@pytest.mark.parametrize("kind", [foreign.FlatProjection, foreign.LengthFirst])
def test_rows_that_do_not_come_first_are_noticed(kind: type[foreign.Model], n: int, length: int) -> None:
    assert outcome(built(kind, n_layers=2), tokens(n, length)) == "refused"


BATCHES = [*product([*SOUND[:4], SOUND[-1], *HARD], [1, 6, 7, 512], [False, True])]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "batch_size", "backwards"), pairwise_sample(BATCHES))
def test_neither_order_nor_batches_matter(kind: type[foreign.Model], batch_size: int, backwards: bool) -> None:
    accepted = ("right",) if kind in SOUND else ("right", "refused")
    for n in (1, 2):
        assert outcome(built(kind), tokens(n), batch_size, backwards=backwards) in accepted


# --- what a sample of interventions cannot show -----------------------------------------------------------------------


@torch.no_grad()
def outcome_alone(model: Any, given: Tensor, heads: Sequence[HeadId], batch_size: int) -> str:
    """`right`, `refused` or `wrong`: heads zeroed alone, in this order."""
    interventions = [Intervention((head,)) for head in heads]
    try:
        prove(model, model.sites, [given])
        cached = CachedPass(model, model.sites, [given])
        found = dict(sweep(cached, interventions, batch_size=batch_size, checked=True))
    except InstrumentError:
        return "refused"
    expected = [plain_pass(model, model.sites, [given], intervention) for intervention in interventions]
    return "right" if all(torch.allclose(found[i], each, atol=1e-9) for i, each in enumerate(expected)) else "wrong"


@pytest.mark.parametrize("kind", [faulty.KeepsState, faulty.KeepsPooledState])
def test_what_one_pass_left_on_a_module_is_not_read_by_the_next(kind: type[foreign.Model]) -> None:
    """With one row, what an ablated pass left behind fits the next pass."""
    model = built(kind)
    assert outcome_alone(model, tokens(1), model.sites.heads, 1) == "refused"
    assert outcome_alone(model, tokens(1), model.sites.heads[::-1], 1) == "right", "nothing earlier is left to be read"


def test_a_layer_that_is_given_another_recorded_tensor_is_computed() -> None:
    """It depends on the change which of two early streams is read again: with head 1, the other one."""
    model = built(faulty.Chooses)
    model.threshold = -0.1
    seen: list[int] = []
    model.reread.register_forward_pre_hook(lambda module, args: seen.append(hash(args[0].sum().item())))
    given, last = tokens(1), model.sites.heads[-2:]
    with torch.no_grad():
        for head in last:
            plain_pass(model, model.sites, [given], Intervention((head,)))
    assert len(set(seen)) == 2, "both streams should be read"
    assert outcome_alone(model, given, last, 1) == "right"
    assert outcome_alone(model, given, last[::-1], 1) == "right"


@torch.no_grad()
def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached pass that forgets the intervention must not get through."""
    model, given = built(foreign.Model, n_layers=2), tokens(3)
    monkeypatch.setattr(CachedPass, "replay", lambda self, interventions: self.output.repeat(len(interventions), 1, 1))
    assert outcome(model, given) == "refused"
    monkeypatch.undo()
    with Gates(model.sites, closed_gates(model.sites, model.sites.heads[:1])):
        output = model(given)
    assert (output - columns_zeroed(model, Intervention(model.sites.heads[1:2]))(given)).abs().max() > 1e-3
