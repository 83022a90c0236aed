"""Every kind of stand-in: the same contract for all, and each by hand."""

from __future__ import annotations

import pytest
import torch
from own_models import FED, NUMBERS, SOURCE, adder, classifier
from torch import Tensor

from headcount.hooks import REPLACEMENTS
from headcount.hooks.replacements import Replacement, ReplacementInputs
from headcount.hooks.replay import CachedPass, Intervention
from headcount.hooks.sites import Sites
from headcount.hooks.sweep import plain_pass, sweep
from headcount.models.build import Model
from headcount.surgery.cutting import cut_heads

every_kind = pytest.mark.parametrize("name", REPLACEMENTS.names())


def material(n: int = 5, length: int = 4, n_heads: int = 3, d_head: int = 2, *, longest: int = 6) -> ReplacementInputs:
    made = torch.Generator().manual_seed(n)
    z = torch.randn(n, length, n_heads, d_head, generator=made)
    mean = torch.randn(longest, n_heads, d_head, generator=made, dtype=torch.float64)
    return ReplacementInputs(z, mean, torch.arange(n).roll(1))


def test_the_kinds_are_known() -> None:
    assert {"zero", "mean", "resample"} <= set(REPLACEMENTS.names())


@every_kind
def test_a_kind_keeps_the_contract(name: str) -> None:
    kind = REPLACEMENTS.get(name)
    assert isinstance(kind, Replacement)
    assert kind.summary
    assert kind.summary[0].islower()
    given = material()
    before = [given.z.clone(), given.mean.clone()]
    stand, again = kind.make(given), kind.make(given)
    assert torch.equal(given.z, before[0]) and torch.equal(given.mean, before[1]), "material is not to be changed"  # noqa: PT018
    if stand is None:
        assert again is None
        return
    assert stand.dim() == 4
    assert stand.expand(given.z.shape).shape == given.z.shape, "one row each, or one for all"
    assert again is not None
    assert torch.equal(stand, again), "the same every time"
    assert stand.isfinite().all()


@every_kind
def test_a_kind_asks_for_all_that_it_uses(name: str) -> None:
    """What it does not ask for may be missing, or anything."""
    kind, given = REPLACEMENTS.get(name), material()
    stand = kind.make(given)
    if not kind.needs_mean:
        other = kind.make(given._replace(mean=None))
        assert (stand is None and other is None) or torch.equal(stand, other)
    if not kind.needs_donors:
        other = kind.make(given._replace(donors=given.donors.flip(0)))
        assert (stand is None and other is None) or torch.equal(stand, other)


@every_kind
def test_an_example_never_stands_in_for_itself(name: str) -> None:
    """What stands in at a row does not depend on that row's own z, other than by the mean that is given."""
    kind, given = REPLACEMENTS.get(name), material()
    stand = kind.make(given)
    if stand is None:
        return
    for row in range(len(given.z)):
        z = given.z.clone()
        z[row] += 10
        changed = kind.make(given._replace(z=z))
        assert torch.equal(changed.expand(z.shape)[row], stand.expand(z.shape)[row])


@every_kind
@torch.no_grad()
def test_a_kind_runs_late_as_it_runs_whole(name: str, model: Model, inputs: tuple[Tensor, ...]) -> None:
    kind, sites = REPLACEMENTS.get(name), Sites.of(model)
    recording = CachedPass(model, sites, inputs)
    changes = []
    for head in model.heads:
        z = recording.z(head.site)
        stand = kind.make(ReplacementInputs(z, z.double().mean(dim=0), torch.arange(len(z)).roll(1)))
        changes.append(Intervention((head,), values={} if stand is None else {head.site: stand}))
    clean = model(*inputs)
    found = dict(sweep(recording, changes, checked=True))
    assert len(found) == len(model.heads)
    for i, said in found.items():
        torch.testing.assert_close(said, plain_pass(model, sites, inputs, changes[i]), atol=1e-9, rtol=1e-9)
        assert (said - clean).abs().max() > 1e-6, "a head that never acts"


# --- each by hand -----------------------------------------------------------------------------------------------------


def test_zero_is_nothing_at_all() -> None:
    assert REPLACEMENTS.get("zero").make(material()) is None


def test_the_mean_is_cut_to_the_length_at_hand() -> None:
    given = material(length=4, longest=6)
    assert given.mean is not None
    assert torch.equal(REPLACEMENTS.get("mean").make(given), given.mean[None, :4])


def test_resample_takes_another_row() -> None:
    given = material(n=4)
    stand = REPLACEMENTS.get("resample").make(given)
    assert [next(i for i in range(4) if torch.equal(stand[row], given.z[i])) for row in range(4)] == [3, 0, 1, 2]


@torch.no_grad()
def test_masked_equals_pruned() -> None:
    """Zero ablation in place against a smaller model without the head's matrices."""
    for model, inputs in ((adder(norm="pre", encoding="t5"), (SOURCE, FED)), (classifier(norm="post"), (NUMBERS,))):
        recording = CachedPass(model, Sites.of(model), inputs)
        groups = [*[(head,) for head in model.heads], model.heads_at(model.sites[0]), model.heads[1::2]]
        found = dict(sweep(recording, [Intervention(heads) for heads in groups]))
        assert len(found) == len(groups)
        for i, said in found.items():
            cut = cut_heads(model, groups[i])
            assert not set(groups[i]) & set(cut.heads)
            torch.testing.assert_close(said, cut(*inputs), atol=1e-9, rtol=1e-9)
