"""Cache one forward pass, and replay many interventions from it in one batch.

A pass with ablated heads equals the cached pass up to the first ablated head. The model is therefore run again on the
rows of many interventions at once, with these shortcuts:

    a module call that had finished before that head's output projection returns its recorded output;
    the attention block of that head returns the projection of the changed z, if it returned the projection before;
    a plain layer (such as a projection of the encoder's memory) with its recorded inputs returns its recorded output;
    everything else is computed.

Code outside of modules is computed again, which costs time but is always correct. A recorded tensor that was changed in
place later is not reused. `sweep` compares samples with passes made without these shortcuts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.errors import InstrumentError, ReplayError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import Gates, Values, closed_gates, gated, project, split_heads, unfused
from headcount.hooks.proof import difference, first_tensor, tolerance
from headcount.hooks.recording import BatchTiler, ModuleCall, PassRecorder, ReplayPatcher, SiteRecord
from headcount.hooks.sites import Sites
from headcount.limits import BATCH

CHECKED = 2
"""Number of rows of each group that are compared with a plain pass (without the cache).

Two rows are enough to reveal a model that mixes rows.
"""
CACHED, FEWEST = 2**17, 256
"""Largest size of the residual stream in one pass (so that activations fit into a processor's cache), and smallest
number of tokens in one pass (so that matrix products are fast)."""


@dataclass(frozen=True)
class Intervention:
    """Heads that are ablated together, and what replaces their outputs."""

    heads: tuple[HeadId, ...]
    replacement: str = "zero"
    """The kind of ablation: a name in hooks/replacements.py."""
    draw: int = 0
    """The index of the donor, or of the part of the inputs that a mean is taken over (0: all inputs)."""
    values: Mapping[HeadSite, Values] = field(default_factory=dict)
    """The replacement outputs of one batch by site; empty for zero ablation."""


# --- many interventions -----------------------------------------------------------------------------------------------


def sweep(
    cached: CachedPass, interventions: Sequence[Intervention], *, batch_size: int = BATCH, checked: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """Yield the index and the model's output of each intervention, grouped by the first ablated site.

    If `checked`, the first rows of one intervention per group are compared with a plain pass at the end.
    """
    groups: dict[HeadSite, list[int]] = {}
    for i, intervention in enumerate(interventions):
        groups.setdefault(cached.first_site(intervention.heads), []).append(i)
    at_once = max(1, batch_size // cached.n_rows)
    samples: list[tuple[Intervention, Tensor]] = []
    for group in groups.values():
        for start in range(0, len(group), at_once):
            part = group[start : start + at_once]
            output = first_tensor(cached.replay([interventions[i] for i in part]))
            outputs = output.unflatten(0, (len(part), cached.n_rows))
            if checked and start == 0:
                samples.append((interventions[part[-1]], outputs[-1, :CHECKED].clone()))
            yield from zip(part, outputs, strict=True)
    most = max(2, batch_size // CHECKED)  # a single row would not reveal a batch axis that is not the first
    for start in range(0, len(samples), most):
        _compare(cached, samples[start : start + most])


def _compare(cached: CachedPass, samples: Sequence[tuple[Intervention, Tensor]]) -> None:
    """Raise an error if replayed outputs differ from those of a plain pass; all samples share one plain pass."""
    n, interventions = min(CHECKED, cached.n_rows), [intervention for intervention, _ in samples]
    gates = Gates(cached.sites, *cached.gates_and_values(interventions, cached.sites, n))
    plain_outputs = cached.plain(gates, n, len(samples)).unflatten(0, (len(samples), n))
    for (intervention, outputs), plain in zip(samples, plain_outputs, strict=True):
        _require_equal(outputs, plain, f"begun at {cached.first_site(intervention.heads)}")


def _require_equal(outputs: Tensor, plain: Tensor, how: str) -> None:
    error = difference(outputs, plain) if outputs.shape == plain.shape else math.inf
    if not error <= tolerance(outputs.dtype):
        raise ReplayError(
            f"a pass {how} differs from a whole one by {error:.1e} of the largest value",
            "the model's modules depend on more than their inputs",
        )


def plain_pass(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], intervention: Intervention, base: Collection[HeadId] = ()
) -> Any:
    """Run a full pass with an intervention, without any cache."""
    with (
        Gates(sites, closed_gates(sites, base)),
        Gates(sites, closed_gates(sites, intervention.heads), intervention.values),
    ):
        return model(*inputs)


def rows_per_pass(sites: Sites, n_tokens: int) -> int:
    """Return how many rows of `n_tokens` tokens a pass should have, given the width of the model."""
    widths = []
    for site in sites.values():
        weight = getattr(site.projection, "weight", None)
        widths.append(max(weight.shape) if isinstance(weight, Tensor) and weight.dim() else len(site.heads))
    return max(2, CACHED // (n_tokens * max(widths)), FEWEST // n_tokens)


# --- one pass ---------------------------------------------------------------------------------------------------------


class CachedPass:
    """A recorded pass of `model` over `inputs` with the heads of `base` ablated; build it inside `torch.no_grad()`.

    `previous` may be a pass over the same inputs with fewer heads ablated. Its calls before the first newly ablated
    head are then reused.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sites,
        inputs: Sequence[Tensor],
        base: Collection[HeadId] = (),
        previous: CachedPass | None = None,
    ) -> None:
        self.model, self.sites, self.inputs, self.base = model, sites, tuple(inputs), tuple(base)
        self.n_rows = len(inputs[0])
        self._calls: dict[nn.Module, list[ModuleCall]]
        self._tilers: dict[int, BatchTiler] = {}
        self._patched: dict[HeadSite, dict[nn.Module, list[ModuleCall]]] = {}
        self.site_records: dict[HeadSite, SiteRecord]
        """The records of the sites, in the order in which the pass reached them."""
        self.output = self._record(previous)

    def without(self, heads: Collection[HeadId]) -> CachedPass:
        """Return the pass with these heads ablated as well, computed again from the first of them on."""
        return CachedPass(self.model, self.sites, self.inputs, (*self.base, *heads), self)

    def check(self) -> None:
        """Raise an error if the first rows differ from those of a plain pass."""
        n = min(CHECKED, self.n_rows)
        gates = Gates(self.sites, closed_gates(self.sites, self.base))
        _require_equal(first_tensor(self.output)[:n], self.plain(gates, n), "that reuses another")

    def plain(self, gates: Gates, n: int, times: int = 1) -> Tensor:
        """Return the output of a plain pass over the first n rows, repeated `times` times."""
        tiler = BatchTiler(n, times)
        inputs = [tiler.repeat(tensor[:n] if len(tensor) == self.n_rows else tensor) for tensor in self.inputs]
        try:
            with gates:
                return first_tensor(self.model(*inputs))
        except RuntimeError as error:
            raise InstrumentError(
                f"the model failed on a batch of {times} copies of {n} rows: {error}",
                "the first axis of every input must be the batch",
            ) from error

    @property
    def n_bytes(self) -> int:
        """The memory of all recorded tensors in bytes."""
        calls = (call for calls in self._calls.values() for call in calls)
        return sum({tensor.data_ptr(): tensor.nbytes for call in calls for tensor, _ in call.held or ()}.values())

    def z(self, site: HeadSite) -> Tensor:
        """Return the outputs of a site's heads, [row, query, head, d_head]."""
        return split_heads(site, self.site_records[site].z, len(self.sites[site].heads), self.sites[site].head_axis)

    def first_site(self, heads: Collection[HeadId]) -> HeadSite:
        """Return the first site at which a pass without these heads differs."""
        touched = self.sites.head_slots(heads)
        return next(site for site in self.site_records if site in touched)

    def _record(self, previous: CachedPass | None) -> Any:
        """Run the model and record its calls; calls before the first newly ablated head come from `previous`."""
        closed = closed_gates(self.sites, self.base)
        # The projection of a parameter is not among the model's modules.
        modules = list(dict.fromkeys([*self.model.modules(), *self.sites.projections]))
        patcher: ReplayPatcher | None = None
        patching: AbstractContextManager[None] = nullcontext()
        if previous is not None:
            order, site = list(previous.site_records), previous.first_site(set(self.base) - set(previous.base))
            closed = {later: closed[later] for later in order[order.index(site) :] if later in closed}
            patcher = ReplayPatcher(previous.site_records[site], None, BatchTiler(self.n_rows, 1))
            patching = patcher.patching(previous._patched_modules(site))
            unused = previous._unused_calls(site)
            modules = [module for module, calls in previous._calls.items() if not unused.issuperset(calls)]
        recorder = PassRecorder(self.sites, patcher, None if previous is None else previous.site_records)
        self._calls, self.site_records = recorder.calls, recorder.site_records
        gates = Gates(self.sites, closed, skipped=None if patcher is None else patcher.n_skipped)
        with unfused(self.sites), patching, gates if closed else nullcontext(), recorder.watching(modules):
            output = self.model(*self.inputs)
        if missed := [str(site) for site in self.sites if site not in self.site_records]:
            raise InstrumentError(
                f"the output projection of {', '.join(missed)} was never called", "its heads cannot be ablated"
            )
        return output

    def replay(self, interventions: Sequence[Intervention]) -> Any:
        """Return the output with each intervention, [intervention * row, ...].

        The first ablated site of all interventions must be the same.
        """
        first = {self.first_site(intervention.heads) for intervention in interventions}
        if len(first) != 1:
            raise ValueError(f"interventions that begin at different sites: {', '.join(map(str, first))}")
        (site,) = first
        if len(interventions) not in self._tilers:
            self._tilers[len(interventions)] = BatchTiler(self.n_rows, len(interventions))
        tiler, order = self._tilers[len(interventions)], list(self.site_records)
        gates, values = self.gates_and_values(interventions, order[order.index(site) + 1 :], self.n_rows)
        try:
            patcher = ReplayPatcher(self.site_records[site], self._projected(site, interventions), tiler)
            patching = patcher.patching(self._patched_modules(site))
            with unfused(self.sites), patching, Gates(self.sites, gates, values, skipped=patcher.n_skipped):
                output = self.model(*map(tiler.repeat, self.inputs))
        except RuntimeError as error:
            raise ReplayError(
                f"a pass begun at {site}, with {tiler.times} times {tiler.n} rows, failed: {error}",
                "the first axis of every tensor that modules pass to each other must be the batch",
            ) from error
        if not patcher.has_acted:
            raise ReplayError(
                f"the output projection of {site} was called in the recorded pass, but not in the replayed one",
                "its heads were not ablated: the model does not make the same calls in every pass",
            )
        return output

    def gates_and_values(
        self, interventions: Sequence[Intervention], sites: Iterable[HeadSite], n_rows: int
    ) -> tuple[dict[HeadSite, Tensor], dict[HeadSite, Tensor]]:
        """Return the gates and replacements of these interventions for the first rows, by site.

        The heads of the base stay ablated. A replacement applies to the heads of its own intervention only.
        """
        slots = [self.sites.head_slots((*intervention.heads, *self.base)) for intervention in interventions]
        gates, values = {}, {}
        for site in sites:
            if any(site in ablated for ablated in slots):
                gate = torch.ones(len(interventions), len(self.sites[site].heads))
                for row, ablated in zip(gate, slots, strict=True):
                    row[list(ablated.get(site, ()))] = 0.0
                gates[site] = gate.repeat_interleave(n_rows, dim=0)
            if any(site in intervention.values for intervention in interventions):
                z = self.z(site)[:n_rows]
                value = z.new_zeros(len(interventions), *z.shape)
                for part, intervention in zip(value, interventions, strict=True):
                    if site in intervention.values:
                        own = list(self.sites.head_slots(intervention.heads)[site])
                        part[..., own, :] = intervention.values[site][:n_rows].to(z).expand(z.shape)[..., own, :]
                values[site] = value.flatten(end_dim=1)
        return gates, values

    def _projected(self, site: HeadSite, interventions: Sequence[Intervention]) -> Tensor:
        """Return the output of a site's projection with each intervention."""
        record, projection, head_axis = self.site_records[site], self.sites[site].projection, self.sites[site].head_axis
        if record.z._version != record.version:
            raise ReplayError(f"z at {site} is changed in place later in the pass", "no pass can begin there")
        weight = _plain_weight(projection) if head_axis is None else None
        if weight is None or not record.call.is_intact:
            gates, values = self.gates_and_values(interventions, [site], self.n_rows)
            z = record.z.repeat(len(interventions), *[1] * (record.z.dim() - 1))
            mixed = gated(site, z, gates[site], values.get(site), head_axis)
            return project(projection, mixed, record.product).to(record.call.output.dtype)
        # For a plain layer it is faster to subtract the contributions of the ablated heads from the output.
        z, output = self.z(site), record.call.output
        weight_DHE = weight.to(z.dtype).unflatten(1, (z.shape[-2], -1))  # the dtypes differ under autocast
        changed = output.new_empty(len(interventions), *output.shape)
        for part, intervention in zip(changed, interventions, strict=True):
            own = list(self.sites.head_slots(intervention.heads)[site])
            lost = z[..., own, :]
            if site in intervention.values:
                lost = lost - intervention.values[site].to(z).expand(z.shape)[..., own, :]
            torch.sub(output, F.linear(lost.flatten(start_dim=-2), weight_DHE[:, own].flatten(start_dim=1)), out=part)
        return changed.flatten(end_dim=1)

    def _patched_modules(self, site: HeadSite) -> dict[nn.Module, list[ModuleCall]]:
        """Return the modules, with their calls, that may return recorded outputs when a pass begins at this site.

        Each of these modules has a call that finished before the site's projection, that is the carrier of the site, or
        that is a call of a plain layer.
        """
        if site not in self._patched:
            record, all_calls = self.site_records[site], [call for calls in self._calls.values() for call in calls]
            reusable = {
                call for call in all_calls if call.order < record.call.order or call is record.carrier or call.inputs
            }
            modules = {call.module for call in reusable - self._unused_calls(site)}
            self._patched[site] = {module: calls for module, calls in self._calls.items() if module in modules}
        return self._patched[site]

    def _unused_calls(self, site: HeadSite) -> set[ModuleCall]:
        """Return the calls that are skipped when a pass begins at this site: their caller returns a recorded output."""
        last, all_calls = self.site_records[site].call.order, (call for calls in self._calls.values() for call in calls)
        return {inner for call in all_calls if call.order < last and call.is_intact for inner in call.inside}


def _plain_weight(projection: nn.Module) -> Tensor | None:
    """Return the weight [out, in] of a linear layer (also GPT-2's transposed Conv1D), or None for other modules."""
    if type(projection) is nn.Linear:
        return projection.weight
    if type(projection).__name__ == "Conv1D" and type(projection).__module__ == "transformers.pytorch_utils":
        weight = projection.weight
        return weight.T if isinstance(weight, Tensor) else None
    return None
