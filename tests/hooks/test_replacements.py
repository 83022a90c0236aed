"""All replacements follow one contract, and each one equals a computation by hand."""

from __future__ import annotations

import pytest
import torch
from own_models import FED, NUMBERS, SOURCE, adder, classifier
from torch import Tensor

from headcount.hooks import REPLACEMENTS
from headcount.hooks.replacements import Replacement, ReplacementInputs
from headcount.hooks.replay import CachedPass, Intervention, plain_pass, sweep
from headcount.hooks.sites import Sites
from headcount.models.transformer import Model
from headcount.surgery.cutting import cut_heads

every_replacement = pytest.mark.parametrize("name", REPLACEMENTS.names())


def inputs_of(n: int = 5, length: int = 4, n_heads: int = 3, d_head: int = 2, *, longest: int = 6) -> ReplacementInputs:
    made = torch.Generator().manual_seed(n)
    z = torch.randn(n, length, n_heads, d_head, generator=made)
    mean = torch.randn(longest, n_heads, d_head, generator=made, dtype=torch.float64)
    return ReplacementInputs(z, mean, torch.arange(n).roll(1))


def test_the_replacements_are_known() -> None:
    assert {"zero", "mean", "resample"} <= set(REPLACEMENTS.names())


@every_replacement
def test_a_replacement_keeps_the_contract(name: str) -> None:
    replacement = REPLACEMENTS.get(name)
    assert isinstance(replacement, Replacement)
    assert replacement.summary
    assert replacement.summary[0].islower()
    given = inputs_of()
    before = [given.z.clone(), given.mean.clone()]
    value, again = replacement.make(given), replacement.make(given)
    assert torch.equal(given.z, before[0]) and torch.equal(given.mean, before[1]), "the inputs are not to be changed"  # noqa: PT018
    if value is None:
        assert again is None
        return
    assert value.dim() == 4
    assert value.expand(given.z.shape).shape == given.z.shape, "one row each, or one for all"
    assert again is not None
    assert torch.equal(value, again), "the same every time"
    assert value.isfinite().all()


@every_replacement
def test_a_replacement_asks_for_all_that_it_uses(name: str) -> None:
    """Inputs that a replacement does not need may be missing or arbitrary."""
    replacement, given = REPLACEMENTS.get(name), inputs_of()
    value = replacement.make(given)
    if not replacement.needs_mean:
        other = replacement.make(given._replace(mean=None))
        assert (value is None and other is None) or torch.equal(value, other)
    if not replacement.needs_donors:
        other = replacement.make(given._replace(donors=given.donors.flip(0)))
        assert (value is None and other is None) or torch.equal(value, other)


@every_replacement
def test_an_example_is_never_its_own_donor(name: str) -> None:
    """What replaces a row does not depend on that row's own z, other than by the mean that is given."""
    replacement, given = REPLACEMENTS.get(name), inputs_of()
    value = replacement.make(given)
    if value is None:
        return
    for row in range(len(given.z)):
        z = given.z.clone()
        z[row] += 10
        changed = replacement.make(given._replace(z=z))
        assert torch.equal(changed.expand(z.shape)[row], value.expand(z.shape)[row])


@every_replacement
@torch.no_grad()
def test_a_replacement_runs_late_as_it_runs_whole(name: str, model: Model, inputs: tuple[Tensor, ...]) -> None:
    replacement, sites = REPLACEMENTS.get(name), Sites.of(model)
    cached = CachedPass(model, sites, inputs)
    interventions = []
    for head in model.heads:
        z = cached.z(head.site)
        value = replacement.make(ReplacementInputs(z, z.double().mean(dim=0), torch.arange(len(z)).roll(1)))
        interventions.append(Intervention((head,), values={} if value is None else {head.site: value}))
    clean = model(*inputs)
    found = dict(sweep(cached, interventions, checked=True))
    assert len(found) == len(model.heads)
    for i, output in found.items():
        torch.testing.assert_close(output, plain_pass(model, sites, inputs, interventions[i]), atol=1e-9, rtol=1e-9)
        assert (output - clean).abs().max() > 1e-6, "a head that never acts"


# --- each by hand -----------------------------------------------------------------------------------------------------


def test_zero_is_nothing_at_all() -> None:
    assert REPLACEMENTS.get("zero").make(inputs_of()) is None


def test_the_mean_is_cut_to_the_length_at_hand() -> None:
    given = inputs_of(length=4, longest=6)
    assert given.mean is not None
    assert torch.equal(REPLACEMENTS.get("mean").make(given), given.mean[None, :4])


def test_resample_takes_another_row() -> None:
    given = inputs_of(n=4)
    value = REPLACEMENTS.get("resample").make(given)
    assert [next(i for i in range(4) if torch.equal(value[row], given.z[i])) for row in range(4)] == [3, 0, 1, 2]


@torch.no_grad()
def test_masked_equals_pruned() -> None:
    """Zero ablation in place against a smaller model without the head's matrices."""
    for model, inputs in ((adder(norm="pre", encoding="t5"), (SOURCE, FED)), (classifier(norm="post"), (NUMBERS,))):
        cached = CachedPass(model, Sites.of(model), inputs)
        groups = [*[(head,) for head in model.heads], model.heads_at(model.sites[0]), model.heads[1::2]]
        found = dict(sweep(cached, [Intervention(heads) for heads in groups]))
        assert len(found) == len(groups)
        for i, output in found.items():
            cut = cut_heads(model, groups[i])
            assert not set(groups[i]) & set(cut.heads)
            torch.testing.assert_close(output, cut(*inputs), atol=1e-9, rtol=1e-9)
