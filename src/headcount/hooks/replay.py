"""One forward pass, kept module call by module call; and many interventions replayed from it as one job.

An ablated pass is the cached one up to the first ablated head. So it is run again with the rows of many ablations
side by side, but

    every module call that was over before that head's output projection hands back what was recorded;
    the attention block of that head hands back its projection of the changed z, if that is what it returned before;
    a plain layer (a projection of the encoder's memory, say) whose inputs are as recorded hands back the same;
    everything else is computed.

What is not inside a module's forward is computed anew, which costs a little time but is never wrong. A recorded tensor
that was changed in place later is not handed back. `sweep` compares samples with passes made without any of this.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from headcount.errors import InstrumentError, ReplayError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import (
    Gates,
    SharedSiteCounter,
    Values,
    closed_gates,
    gated,
    input_of,
    project,
    split_heads,
    unfused,
)
from headcount.hooks.parameters import Product
from headcount.hooks.proof import difference, first_tensor, tolerance
from headcount.hooks.sites import Sites
from headcount.limits import BATCH

CHECKED = 2
"""Rows of each group that are compared with a plain pass: two, so that rows which mix are found out."""
CACHED, FEWEST = 2**17, 256
"""Numbers of the residual stream that one pass should have at most (beyond that, a processor's cache is too small for
what layers make of them), and tokens that it should have at least (below that, matrix products are slow)."""
LEAVES = (Tensor, int, float, bool, str, type(None))
"""What a tree may consist of, so that all of its tensors are known."""
Forward = Callable[..., Any]


@dataclass(frozen=True)
class Intervention:
    """Heads that are ablated together, and what replaces their outputs."""

    heads: tuple[HeadId, ...]
    replacement: str = "zero"
    draw: int = 0
    """Which donor; or which part of the inputs a mean is over, 0 being all of them."""
    values: Mapping[HeadSite, Values] = field(default_factory=dict)
    """The replacement as numbers, for one batch; nothing where it is zero."""


# --- many interventions -----------------------------------------------------------------------------------------------


def sweep(
    cached: CachedPass, interventions: Sequence[Intervention], *, batch_size: int = BATCH, checked: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """The model's output with each intervention, and which one it is; grouped by where passes begin to differ.

    If `checked`, the first rows of one intervention of each group are compared with a plain pass in the end.
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
    most = max(2, batch_size // CHECKED)  # a single row would not show whether rows come first
    for start in range(0, len(samples), most):
        _compare(cached, samples[start : start + most])


def _compare(cached: CachedPass, samples: Sequence[tuple[Intervention, Tensor]]) -> None:
    """Outputs must be those of a plain pass; these samples ride in one."""
    n, interventions = min(CHECKED, cached.n_rows), [intervention for intervention, _ in samples]
    gates = Gates(cached.sites, *cached.gates_and_values(interventions, cached.sites, n))
    slow = cached.plain(gates, n, len(samples)).unflatten(0, (len(samples), n))
    for (intervention, outputs), plain in zip(samples, slow, strict=True):
        _require_like(outputs, plain, f"begun at {cached.first_site(intervention.heads)}")


def _require_like(outputs: Tensor, plain: Tensor, how: str) -> None:
    found = difference(outputs, plain) if outputs.shape == plain.shape else math.inf
    if not found <= tolerance(outputs.dtype):
        raise ReplayError(
            f"a pass {how} differs from a whole one by {found:.1e} of the largest value",
            "the model's modules depend on more than what they are called with",
        )


def plain_pass(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], intervention: Intervention, base: Collection[HeadId] = ()
) -> Any:
    """The same by gates alone, from the first layer on."""
    with (
        Gates(sites, closed_gates(sites, base)),
        Gates(sites, closed_gates(sites, intervention.heads), intervention.values),
    ):
        return model(*inputs)


def rows_at_once(sites: Sites, n_tokens: int) -> int:
    """How many rows of so many tokens a pass should have, by the width of the model's heads."""
    widths = []
    for site in sites.values():
        weight = getattr(site.projection, "weight", None)
        widths.append(max(weight.shape) if isinstance(weight, Tensor) and weight.dim() else len(site.heads))
    return max(2, CACHED // (n_tokens * max(widths)), FEWEST // n_tokens)


# --- one pass ---------------------------------------------------------------------------------------------------------


class CachedPass:
    """A pass of `model` over `inputs` with the heads of `base` ablated; make it inside `torch.no_grad()`.

    With a `former` pass over the same inputs, which has fewer heads ablated, what that computed before the first of the
    others is taken from there.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sites,
        inputs: Sequence[Tensor],
        base: Collection[HeadId] = (),
        former: CachedPass | None = None,
    ) -> None:
        self.model, self.sites, self.inputs, self.base = model, sites, tuple(inputs), tuple(base)
        self.n_rows = len(inputs[0])
        self._calls: dict[nn.Module, list[ModuleCall]] = {}
        self._tilers: dict[int, BatchTiler] = {}
        self._patched: dict[HeadSite, dict[nn.Module, list[ModuleCall]]] = {}
        self.site_records: dict[HeadSite, SiteRecord] = {}
        """The sites as the pass came by them."""
        self.output = self._record(former)

    def without(self, heads: Collection[HeadId]) -> CachedPass:
        """The pass that has these heads ablated as well, computed anew from the first of them on."""
        return CachedPass(self.model, self.sites, self.inputs, (*self.base, *heads), self)

    def check(self) -> None:
        """The first rows of a plain pass must come to the same."""
        n = min(CHECKED, self.n_rows)
        gates = Gates(self.sites, closed_gates(self.sites, self.base))
        _require_like(first_tensor(self.output)[:n], self.plain(gates, n), "that moved on from another")

    def plain(self, gates: Gates, n: int, times: int = 1) -> Tensor:
        """The output of a plain pass over the first rows, `times` over."""
        tiler = BatchTiler(n, times)
        inputs = [tiler.repeat(each[:n] if len(each) == self.n_rows else each) for each in self.inputs]
        try:
            with gates:
                return first_tensor(self.model(*inputs))
        except RuntimeError as error:
            raise InstrumentError(
                f"a plain pass over {times} times {n} rows failed: {error}",
                "rows should come first in everything that the model is given",
            ) from error

    @property
    def n_bytes(self) -> int:
        """Memory that the recorded tensors take."""
        held = (each.held or () for calls in self._calls.values() for each in calls)
        tensors = {tensor.data_ptr(): tensor.nbytes for some in held for tensor, _ in some}
        return sum(tensors.values())

    def z(self, site: HeadSite) -> Tensor:
        """Return the outputs of a site's heads, [row, query, head, d_head]."""
        return split_heads(site, self.site_records[site].z, len(self.sites[site].heads), self.sites[site].head_axis)

    def first_site(self, heads: Collection[HeadId]) -> HeadSite:
        """Where a pass without these heads begins to differ."""
        touched = self.sites.head_slots(heads)
        return next(site for site in self.site_records if site in touched)

    def _record(self, former: CachedPass | None) -> Any:
        names, closed = self.sites.projections, closed_gates(self.sites, self.base)
        concerned = list(dict.fromkeys([*self.model.modules(), *names]))  # a parameter's projection is not in the model
        patcher: ReplayPatcher | None = None
        patching: AbstractContextManager[None] = nullcontext()
        if former is not None:
            order, site = list(former.site_records), former.first_site(set(self.base) - set(former.base))
            closed = {each: closed[each] for each in order[order.index(site) :] if each in closed}
            patcher = ReplayPatcher(former.site_records[site], None, BatchTiler(self.n_rows, 1))
            patching = patcher.patching(former._patched_modules(site))
            unused = former._unused_calls(site)
            concerned = [module for module, calls in former._calls.items() if not unused.issuperset(calls)]
        skipped = None if patcher is None else patcher.n_skipped
        turns = SharedSiteCounter(self.sites, skipped)
        open_calls: list[ModuleCall] = []
        n_over = 0

        def before(module: nn.Module, args: Any) -> None:
            call = ModuleCall(module)
            for caller in open_calls:
                caller.inside.append(call)
            open_calls.append(call)
            self._calls.setdefault(module, []).append(call)

        def after(module: nn.Module, args: Any, output: Any) -> None:
            nonlocal n_over
            call = open_calls.pop()
            name = turns.next(module) if module in names else None
            if former is not None and patcher is not None and (old := patcher.take(module)) is not None:
                self._adopt(old, former, open_calls)
                n_over += 1 + len(old.inside)
                return
            call.finish(args, output, n_over)
            n_over += 1
            if name is not None:
                if name in self.site_records:
                    raise InstrumentError(
                        f"the output projection of {name} was called twice in one pass",
                        "a gate could not tell the calls apart",
                    )
                z = input_of(name, args)
                product = getattr(module, "product", None)
                self.site_records[name] = SiteRecord(z, z._version, call, call, product)
            elif not any(inner.module in names for inner in call.inside):
                for inner in call.inside:  # they keep no tensors: this call hands back its own
                    inner.inputs, inner.output, inner.held = (), None, None
            else:
                returned = {id(tensor) for tensor in tensors_in(output) or ()}
                for record in self.site_records.values():  # who returns a carrier's very tensor, unchanged, carries it
                    is_returned = record.call.is_intact and id(record.call.output) in returned
                    if is_returned and record.carrier in call.inside:
                        record.carrier = call

        with ExitStack() as hooks, unfused(self.sites), patching:
            if closed:
                hooks.enter_context(Gates(self.sites, closed, skipped=skipped))
            handles = [module.register_forward_pre_hook(before) for module in concerned]
            handles += [module.register_forward_hook(after) for module in concerned]
            for handle in handles:
                hooks.callback(handle.remove)
            output = self.model(*self.inputs)
        if missed := [str(site) for site in self.sites if site not in self.site_records]:
            raise InstrumentError(
                f"the output projection of {', '.join(missed)} was never called", "its heads cannot be ablated"
            )
        return output

    def _adopt(self, call: ModuleCall, former: CachedPass, open_calls: Sequence[ModuleCall]) -> None:
        """A call that a former pass stands for, with all that it called; it takes the place of the one just made."""
        family = [call, *call.inside]
        for caller in open_calls:
            caller.inside[-1:] = family
        self._calls[call.module].pop()
        for each in family:
            self._calls.setdefault(each.module, []).append(each)
        for site, record in former.site_records.items():
            if record.call in family:  # who carries it beyond this call is found out again
                carrier = record.carrier if record.carrier in family else call
                self.site_records[site] = replace(record, carrier=carrier)

    def replay(self, interventions: Sequence[Intervention]) -> Any:
        """The output with each intervention, their rows one block after another: [intervention * row, ...].

        All of them must begin to differ at the same site.
        """
        first = {self.first_site(intervention.heads) for intervention in interventions}
        if len(first) != 1:
            raise ValueError(f"changes that begin at different sites: {', '.join(map(str, first))}")
        (site,) = first
        if len(interventions) not in self._tilers:
            self._tilers[len(interventions)] = BatchTiler(self.n_rows, len(interventions))
        tiler, order = self._tilers[len(interventions)], list(self.site_records)
        gates, values = self.gates_and_values(interventions, order[order.index(site) + 1 :], self.n_rows)
        try:
            patcher = ReplayPatcher(self.site_records[site], self._projected(site, interventions), tiler)
            patching = patcher.patching(self._patched_modules(site))
            with unfused(self.sites), patching, Gates(self.sites, gates, values, skipped=patcher.n_skipped):
                output = self.model(*(tiler.repeat(each) for each in self.inputs))
        except RuntimeError as error:
            raise ReplayError(
                f"a pass begun at {site}, with {tiler.times} times {tiler.n} rows, failed: {error}",
                "rows should come first in everything that the model's modules hand to each other",
            ) from error
        if not patcher.has_acted:
            raise ReplayError(
                f"the output projection of {site} was called when the pass was recorded, and now it was not",
                "its heads were not ablated: the model does not do the same in every pass",
            )
        return output

    def gates_and_values(
        self, interventions: Sequence[Intervention], sites: Iterable[HeadSite], n_rows: int
    ) -> tuple[dict[HeadSite, Tensor], dict[HeadSite, Tensor]]:
        """Gates and replacements for the first rows, with each intervention; the heads of the base stay ablated.

        A replacement is for an intervention's own heads and no others.
        """
        slots = [self.sites.head_slots((*intervention.heads, *self.base)) for intervention in interventions]
        gates, values = {}, {}
        for site in sites:
            if any(site in each for each in slots):
                gate = torch.ones(len(interventions), len(self.sites[site].heads))
                for row, each in zip(gate, slots, strict=True):
                    row[list(each.get(site, ()))] = 0.0
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
        """The output of a site's projection with each intervention."""
        record, projection, head_axis = self.site_records[site], self.sites[site].projection, self.sites[site].head_axis
        if record.z._version != record.version:
            raise ReplayError(f"z at {site} is changed in place later in the pass", "no pass can begin there")
        weight = _plain_weight(projection) if head_axis is None else None
        if weight is None or not record.call.is_intact:
            gates, values = self.gates_and_values(interventions, [site], self.n_rows)
            z = record.z.repeat(len(interventions), *[1] * (record.z.dim() - 1))
            mixed = gated(site, z, gates[site], values.get(site), head_axis)
            return project(projection, mixed, record.product).to(record.call.output.dtype)
        # Of a plain layer, the output less that of the ablated heads, which is quicker.
        z, output = self.z(site), record.call.output
        weight_DHE = weight.to(z.dtype).unflatten(1, (z.shape[-2], -1))  # as autocast does
        changed = output.new_empty(len(interventions), *output.shape)
        for part, intervention in zip(changed, interventions, strict=True):
            own = list(self.sites.head_slots(intervention.heads)[site])
            lost = z[..., own, :]
            if site in intervention.values:
                lost = lost - intervention.values[site].to(z).expand(z.shape)[..., own, :]
            torch.sub(output, F.linear(lost.flatten(start_dim=-2), weight_DHE[:, own].flatten(start_dim=1)), out=part)
        return changed.flatten(end_dim=1)

    def _patched_modules(self, site: HeadSite) -> dict[nn.Module, list[ModuleCall]]:
        """The modules that may hand back what was recorded when a pass begins at this site.

        They have a call that was over by then, carries the change or is plain, and is not inside one that was over.
        """
        if site not in self._patched:
            record, every = self.site_records[site], [call for calls in self._calls.values() for call in calls]
            concerned = {
                call for call in every if call.order < record.call.order or call is record.carrier or call.inputs
            }
            modules = {call.module for call in concerned - self._unused_calls(site)}
            self._patched[site] = {module: calls for module, calls in self._calls.items() if module in modules}
        return self._patched[site]

    def _unused_calls(self, site: HeadSite) -> set[ModuleCall]:
        """Calls that do not happen when a pass begins at this site, for they are inside of others that hand back."""
        last, every = self.site_records[site].call.order, (call for calls in self._calls.values() for call in calls)
        return {inner for call in every if call.order < last and call.is_intact for inner in call.inside}


def _plain_weight(projection: nn.Module) -> Tensor | None:
    """The weight [out, in] of a plain layer, GPT-2's transposed ones included."""
    if type(projection) is nn.Linear:
        return projection.weight
    if type(projection).__name__ == "Conv1D" and type(projection).__module__ == "transformers.pytorch_utils":
        weight = projection.weight
        return weight.T if isinstance(weight, Tensor) else None
    return None


# --- what was recorded, and who hands it back -------------------------------------------------------------------------


@dataclass(eq=False)
class ModuleCall:
    """One call of one module."""

    module: nn.Module
    inside: list[ModuleCall] = field(default_factory=list)
    """Calls that were made meanwhile."""
    inputs: tuple[Tensor, ...] = ()
    """What a plain layer was given: one of PyTorch's own that has no others inside."""
    output: Any = None
    held: tuple[tuple[Tensor, int], ...] | None = None
    """Every tensor of the above and its version, which counts changes in place; None if they cannot be handed back."""
    order: int = -1
    """How many calls were over before this one was."""

    def finish(self, args: Any, output: Any, order: int) -> None:
        """Keep what it was given (if it is a plain layer) and what it returned."""
        if type(self.module).__module__.startswith("torch.nn.modules") and not any(self.module.children()):
            self.inputs = tuple(tensors_in(args) or ())
        self.output, self.order = output, order
        found = tensors_in(output)
        self.held = None if found is None else tuple((tensor, tensor._version) for tensor in (*self.inputs, *found))

    @property
    def is_intact(self) -> bool:
        """Whether what it returned can still be handed back."""
        return self.held is not None and all(tensor._version == version for tensor, version in self.held)


@dataclass(eq=False)
class SiteRecord:
    """One site in the recorded pass."""

    z: Tensor
    version: int
    call: ModuleCall
    carrier: ModuleCall
    """The outermost call that returned the projection's output itself."""
    product: Product | None = None
    """What a projection that is a parameter computed."""


class ReplayPatcher:
    """Lets modules hand back what was recorded while a pass is run again.

    Where there is no `projected` output of the site, its block is run again too.
    """

    def __init__(self, record: SiteRecord, projected: Tensor | None, tiler: BatchTiler) -> None:
        self.record, self.projected, self.tiler = record, projected, tiler
        self.n_called: Counter[nn.Module] = Counter()
        self.n_skipped: Counter[nn.Module] = Counter()
        """Calls that did not happen because whoever would have made them was skipped."""
        self.has_acted = False
        """Whether the change was handed over."""
        self._handed_back: ModuleCall | None = None

    def take(self, module: nn.Module) -> ModuleCall | None:
        """The call that this module has just handed back, if it has."""
        call, self._handed_back = self._handed_back, None
        return call if call is not None and call.module is module else None

    @contextmanager
    def patching(self, patched: Mapping[nn.Module, Sequence[ModuleCall]]) -> Iterator[None]:
        """Inside, modules hand back what was recorded, wherever that is what they would compute."""
        before = {module: module.__dict__.get("forward") for module in patched}
        try:
            for module, calls in patched.items():
                module.__dict__["forward"] = self._forward(module, calls, module.forward)
            yield
        finally:
            for module, own in before.items():
                if own is None:
                    module.__dict__.pop("forward", None)
                else:
                    module.__dict__["forward"] = own

    def _forward(self, module: nn.Module, calls: Sequence[ModuleCall], forward: Forward) -> Forward:
        record, repeat = self.record, self.tiler.repeat

        def patched_forward(*args: Any, **kwargs: Any) -> Any:
            n = self.n_called[module]
            self.n_called[module] += 1
            call = calls[n] if n < len(calls) else None
            self._handed_back = None
            if call is record.carrier and self.projected is not None:
                self.has_acted = True
                self._skip(call)
                was = record.call.output
                return pytree.tree_map_only(Tensor, lambda x: self.projected if x is was else repeat(x), call.output)
            if call is None or not call.is_intact:
                return forward(*args, **kwargs)
            if call.order < record.call.order or self._is_unchanged(call, args, kwargs):
                self._skip(call)
                self._handed_back = call
                return pytree.tree_map_only(Tensor, repeat, call.output)
            return forward(*args, **kwargs)

        return patched_forward

    def _skip(self, call: ModuleCall) -> None:
        """What this call would have called is not called now."""
        for inner in call.inside:
            self.n_called[inner.module] += 1
            self.n_skipped[inner.module] += 1

    def _is_unchanged(self, call: ModuleCall, args: Any, kwargs: Any) -> bool:
        """Whether a plain layer was given just what was recorded: such a layer depends on nothing else."""
        found = tensors_in((args, kwargs)) or []
        return bool(found) and len(found) == len(call.inputs) and all(map(self.tiler.repeats, found, call.inputs))


def tensors_in(tree: Any) -> list[Tensor] | None:
    """Every tensor, in order; None if there is something whose tensors cannot be known."""
    leaves = pytree.tree_leaves(tree)
    if not all(isinstance(leaf, LEAVES) for leaf in leaves):
        return None
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


class BatchTiler:
    """The rows of one pass, repeated for several; knows its repetitions again."""

    def __init__(self, n: int, times: int) -> None:
        self.n, self.times = n, times
        self._made: dict[int, tuple[Tensor, Tensor, int]] = {}

    def repeat(self, tensor: Tensor) -> Tensor:
        """All rows, `times` over; a tensor that has no rows of the pass, such as a table, stays as it is."""
        _, made, version = self._made.get(id(tensor), (tensor, None, -1))
        if made is None or made._version != version:
            made = tensor
            if self.times > 1 and tensor.dim() and len(tensor) == self.n:
                made = tensor.repeat(self.times, *[1] * (tensor.dim() - 1))
            self._made[id(tensor)] = tensor, made, made._version  # both kept, so that no other gets their ids
        return made

    def repeats(self, tensor: Tensor, recorded: Tensor) -> bool:
        """Whether a tensor holds the recorded rows, `times` over, bit for bit."""
        _, made, version = self._made.get(id(recorded), (recorded, None, -1))
        if made is tensor and tensor._version == version:
            return True  # our own repetition, not changed in place since
        if tensor.shape[1:] != recorded.shape[1:] or len(tensor) != self.times * self.n or len(recorded) != self.n:
            return False
        if not torch.equal(tensor[0], recorded[0]):
            return False  # most that differ do so at once
        return torch.equal(tensor.unflatten(0, (self.times, self.n)), recorded.expand(self.times, *recorded.shape))
