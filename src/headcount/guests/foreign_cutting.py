"""Cut heads out of models that an adapter brings, whatever their code looks like; never without proof.

    cut = cut_adapted(adapted, heads, inputs)          a copy; the model stays as it is
    prove_adapted(adapted, cut, heads, inputs)         says what the model says with these heads silenced

Site by site, ways to cut are tried (foreign_plans) on a copy, and the first is taken that is proven in double
precision. The heads that are left keep their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from headcount.errors import CheckFailed, InputError
from headcount.guests.adapter import Adapted, Adapter
from headcount.guests.cut_proof import TOLERANCE, AllDouble, prove_cut
from headcount.guests.foreign_plans import Plan, carry_out, plans
from headcount.guests.foreign_tracing import double_by_default
from headcount.heads import HeadId, HeadSite
from headcount.instruments.capture import Capture
from headcount.instruments.proof import difference
from headcount.instruments.running import at_rest
from headcount.instruments.sites import Sites

ROWS = 16
"""Examples that each way to cut is tried on; what comes out is proven on more."""


def cut_adapted(adapted: Adapted, heads: Sequence[HeadId], inputs: Sequence[Tensor]) -> Adapted:
    """A copy without these heads."""
    gone = adapted.head_sites.by_site(heads)
    if set(heads) >= set(adapted.head_sites.heads):
        raise InputError("these are all the heads that the model has", "leave one in")
    for name, places in gone.items():
        adapted = _cut_site(adapted, name, places, [each[:ROWS] for each in inputs])
    return adapted


def prove_adapted(whole: Adapted, cut: Adapted, heads: Sequence[HeadId], inputs: Sequence[Tensor]) -> float:
    """The largest difference in the model's own precision, as a share of the largest value; an error if it is large."""
    return prove_cut(Steady(whole), Steady(cut), heads, inputs)


class Steady(nn.Module):
    """A model that in double precision makes what it makes in double precision, such as masks."""

    def __init__(self, inner: Adapted) -> None:
        super().__init__()
        self.inner = inner

    @property
    def head_sites(self) -> Sites:
        """Where its heads are."""
        return self.inner.head_sites

    def forward(self, *inputs: Tensor) -> Tensor:
        """Logits."""
        if next(self.inner.parameters()).dtype != torch.float64:
            return self.inner(*inputs)
        with double_by_default():
            return self.inner(*inputs)


def _cut_site(adapted: Adapted, name: HeadSite, places: Sequence[int], inputs: Sequence[Tensor]) -> Adapted:
    sites, adapter = adapted.head_sites, adapted.adapter
    if len(sites.projections[sites[name].projection]) > 1:
        raise InputError(f"{name} takes turns with other sites at one projection", "its heads can only be silenced")
    gone, tried = [sites[name].heads[place] for place in places], list[str]()
    for plan in plans(adapted, adapter, name, places, inputs):
        try:
            cut = _carried_out(plan, adapted, adapter)
            prove_adapted(adapted, cut, gone, inputs)
            _prove_names(adapted, cut, name, plan.keep, inputs)
            return cut
        except Exception as error:  # somebody's code, on layers that it was not made for: anything may happen
            if isinstance(error.__cause__, SystemExit):
                raise
            told = str(error).strip() or "no reason given"
            tried.append(f"tried {plan}\n    {type(error).__name__}: {told.splitlines()[0]}")
    raise CheckFailed(
        f"no way to cut heads out of {name} was proven to say what the model says without them: nothing was cut",
        *(tried or ["no linear layer is heard by one head alone; or does forward() run without gradients?"]),
        "say how in the adapter: def cut(self, model, site, keep), see headcount.Adapter.cut; or silence them: ablate",
    )


def _prove_names(whole: Adapted, cut: Adapted, name: HeadSite, keep: Sequence[int], inputs: Sequence[Tensor]) -> None:
    """What is left of z is in its old order: a model whose heads swapped places would say the same."""
    if not keep:
        return
    z = [_z(model, name, inputs) for model in (whole, cut)]
    kept = z[0][..., list(keep), :]
    if kept.shape != z[1].shape or not difference(kept, z[1]) <= TOLERANCE:
        raise CheckFailed("the heads that are left are not side by side in their old order", "keep the order of `keep`")


def _z(model: Adapted, name: HeadSite, inputs: Sequence[Tensor]) -> Tensor:
    double = Steady(deepcopy(model).cpu().double())
    given = [each.cpu().double() if each.is_floating_point() else each.cpu() for each in inputs]
    with torch.no_grad(), AllDouble(), at_rest(double), Capture(double.head_sites) as seen:
        double(*given)
    return seen.z(name)


def _carried_out(plan: Plan, adapted: Adapted, adapter: Adapter) -> Adapted:
    copy = deepcopy(adapted)
    cut = Adapted(adapter, copy.model, carry_out(plan, copy.model, adapter, copy.head_sites))
    cut.cuts = (*adapted.cuts, plan)
    return cut
