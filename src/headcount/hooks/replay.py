"""Cache one forward pass, and replay many interventions from it in one batch.

A forward pass with ablated heads equals the pass without ablation up to the first ablated head. The model is therefore
run again from a recorded (cached) pass, on a batch that repeats the examples once per intervention, with these
shortcuts:

    a module call that had finished before the first ablated head's output projection returns its recorded output;
    the attention block of that head returns the projection of the changed head outputs z, without computing them;
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
from headcount.hooks.intervention_proof import difference, first_tensor, tolerance
from headcount.hooks.recording import BatchTiler, ModuleCall, PassRecorder, ReplayPatcher, SiteRecord
from headcount.hooks.sites import Sites
from headcount.limits import BATCH

CHECKED = 2
"""Number of examples per group of interventions that are also computed by a plain pass (without the cache) to compare.

Two examples are enough to reveal a model in which the examples of a batch influence each other.
"""
CACHED, FEWEST = 2**17, 256
"""Limits of a pass: at most `CACHED` numbers in its residual stream (so that activations fit into a processor's cache),
but at least `FEWEST` tokens (so that matrix products are fast)."""


@dataclass(frozen=True)
class Intervention:
    """An ablation: the heads that are ablated together, and what replaces their outputs."""

    heads: tuple[HeadId, ...]
    replacement: str = "zero"
    """The kind of ablation: zero, resample, mean, or another name in hooks/replacements.py."""
    draw: int = 0
    """Which donor (resample ablation) or which part of the inputs (mean ablation; 0: all) provides the replacement."""
    values: Mapping[HeadSite, Values] = field(default_factory=dict)
    """The replacement outputs of the heads for one batch, by attention block; empty for zero ablation."""


# --- many interventions -----------------------------------------------------------------------------------------------


def sweep(
    cached: CachedPass, interventions: Sequence[Intervention], *, batch_size: int = BATCH, checked: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """Run all interventions from one cached pass; yield the index and the model's output of each intervention.

    Interventions are grouped by the first attention block in which they ablate a head. If `checked`, the outputs of one
    intervention per group are compared with a pass without the cache at the end, on the first examples.
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
    """Raise an error if outputs of replayed interventions differ from those of one pass without the cache."""
    n, interventions = min(CHECKED, cached.n_rows), [intervention for intervention, _ in samples]
    gates = Gates(cached.sites, *cached.gates_and_values(interventions, cached.sites, n))
    plain_outputs = cached.plain(gates, n, len(samples)).unflatten(0, (len(samples), n))
    for (intervention, outputs), plain in zip(samples, plain_outputs, strict=True):
        _require_equal(outputs, plain, f"replayed from {cached.first_site(intervention.heads)}")


def _require_equal(outputs: Tensor, plain: Tensor, how: str) -> None:
    error = difference(outputs, plain) if outputs.shape == plain.shape else math.inf
    if not error <= tolerance(outputs.dtype):
        raise ReplayError(
            f"a forward pass {how} does not give the output of a full forward pass: they differ by {error:.1e} of "
            "the largest value",
            "some modules depend on more than their inputs (such as a counter or random numbers), so their recorded "
            "outputs cannot be used again",
        )


def plain_pass(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], intervention: Intervention, base: Collection[HeadId] = ()
) -> Any:
    """Return the model's output with an intervention, computed by a full pass without any cache.

    The heads in `base` are ablated as well.
    """
    with (
        Gates(sites, closed_gates(sites, base)),
        Gates(sites, closed_gates(sites, intervention.heads), intervention.values),
    ):
        return model(*inputs)


def rows_per_pass(sites: Sites, n_tokens: int) -> int:
    """Return how many rows of `n_tokens` tokens one forward pass should have to be fast, given the model's width."""
    widths = []
    for site in sites.values():
        weight = getattr(site.projection, "weight", None)
        widths.append(max(weight.shape) if isinstance(weight, Tensor) and weight.dim() else len(site.heads))
    return max(2, CACHED // (n_tokens * max(widths)), FEWEST // n_tokens)


# --- one pass ---------------------------------------------------------------------------------------------------------


class CachedPass:
    """A recorded forward pass of `model` over `inputs`, from which passes with ablated heads are computed quickly.

    The heads in `base` are ablated in the recorded pass itself. `previous` may be a recorded pass over the same inputs
    with fewer heads ablated, whose module calls are reused where possible. Build objects inside `torch.no_grad()`.
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
        """The recorded call of each attention block's output projection, in the order of the calls."""
        self.output = self._record(previous)

    def without(self, heads: Collection[HeadId]) -> CachedPass:
        """Return a new cached pass with these heads ablated as well, computed again from the first of the heads on."""
        return CachedPass(self.model, self.sites, self.inputs, (*self.base, *heads), self)

    def check(self) -> None:
        """Raise an error if the recorded outputs of the first examples differ from those of a pass without a cache."""
        n = min(CHECKED, self.n_rows)
        gates = Gates(self.sites, closed_gates(self.sites, self.base))
        _require_equal(first_tensor(self.output)[:n], self.plain(gates, n), "that reuses recorded outputs")

    def plain(self, gates: Gates, n: int, times: int = 1) -> Tensor:
        """Return the output of a full pass with `gates` over the first n examples, each repeated `times` times."""
        tiler = BatchTiler(n, times)
        inputs = [tiler.repeat(tensor[:n] if len(tensor) == self.n_rows else tensor) for tensor in self.inputs]
        try:
            with gates:
                return first_tensor(self.model(*inputs))
        except RuntimeError as error:
            raise InstrumentError(
                f"the model failed on a batch of {n} examples, repeated {times} times: {error}",
                "the first axis of every input tensor must count the examples of the batch",
            ) from error

    @property
    def n_bytes(self) -> int:
        """The total size of all recorded tensors in bytes."""
        calls = (call for calls in self._calls.values() for call in calls)
        return sum({tensor.data_ptr(): tensor.nbytes for call in calls for tensor, _ in call.held or ()}.values())

    def z(self, site: HeadSite) -> Tensor:
        """Return the recorded outputs of the heads of one attention block, [row, query, head, d_head]."""
        return split_heads(site, self.site_records[site].z, len(self.sites[site].heads), self.sites[site].head_axis)

    def first_site(self, heads: Collection[HeadId]) -> HeadSite:
        """Return the attention block that comes first in the forward pass, among the blocks of these heads."""
        touched = self.sites.head_slots(heads)
        return next(site for site in self.site_records if site in touched)

    def _record(self, previous: CachedPass | None) -> Any:
        """Run the model, record its module calls and return its output; reuse calls of `previous` where possible."""
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
                f"the output projection of {', '.join(missed)} was never called, so its heads cannot be ablated",
                "leave these attention blocks out of the `sites` argument",
            )
        return output

    def replay(self, interventions: Sequence[Intervention]) -> Any:
        """Return the model's outputs with several interventions, [intervention * row, ...], from one batched pass.

        All interventions must have the same first attention block with an ablated head.
        """
        first = {self.first_site(intervention.heads) for intervention in interventions}
        if len(first) != 1:
            raise ValueError(
                "all interventions must have the same first attention block with an ablated head, got several: "
                f"{', '.join(map(str, first))}"
            )
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
                f"a pass replayed from {site} with {tiler.n} examples, repeated {tiler.times} times, failed: {error}",
                "the first axis of every tensor that modules pass to each other must count the examples of the batch",
            ) from error
        if not patcher.has_acted:
            raise ReplayError(
                f"the output projection of {site} was called in the recorded pass, but not in the replayed one",
                "its heads were not ablated: the model does not call the same modules in every pass",
            )
        return output

    def gates_and_values(
        self, interventions: Sequence[Intervention], sites: Iterable[HeadSite], n_rows: int
    ) -> tuple[dict[HeadSite, Tensor], dict[HeadSite, Tensor]]:
        """Return the gates and the replacement outputs of several interventions, both by attention block.

        They are for a batch with the first `n_rows` examples once per intervention. The heads in `base` stay ablated.
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
        """Return the output of an attention block's output projection with each intervention."""
        record, projection, head_axis = self.site_records[site], self.sites[site].projection, self.sites[site].head_axis
        if record.z._version != record.version:
            raise ReplayError(
                f"the model changes the head outputs of {site} in place later in the forward pass",
                "forward passes cannot be replayed from this attention block: use full passes",
            )
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
        """Return the modules, with their calls, that may return recorded outputs if a pass is replayed from this site.

        A call may do so if it finished before the output projection of the site (an attention block), if it is the
        outermost call that returns this projection's output, or if it is the call of a plain PyTorch layer.
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
        """Return the recorded calls that do not happen in a pass replayed from this attention block.

        They do not happen because their caller returns a recorded output.
        """
        last, all_calls = self.site_records[site].call.order, (call for calls in self._calls.values() for call in calls)
        return {inner for call in all_calls if call.order < last and call.is_intact for inner in call.inside}


def _plain_weight(projection: nn.Module) -> Tensor | None:
    """Return the weights [out, in] of a linear layer (also of GPT-2's transposed Conv1D), or None for other modules."""
    if type(projection) is nn.Linear:
        return projection.weight
    if type(projection).__name__ == "Conv1D" and type(projection).__module__ == "transformers.pytorch_utils":
        weight = projection.weight
        return weight.T if isinstance(weight, Tensor) else None
    return None
