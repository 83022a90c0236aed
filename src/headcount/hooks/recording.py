"""Record every module call of a forward pass, and return recorded outputs when the pass is run again.

`PassRecorder` watches a pass and keeps its calls. `ReplayPatcher` replaces the forward methods of modules, so that they
return recorded outputs where these are still valid. `BatchTiler` repeats recorded rows for several interventions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from headcount.errors import InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.gates import SharedSiteCounter, input_of
from headcount.hooks.parameters import Product
from headcount.hooks.sites import Sites

LEAVES = (Tensor, int, float, bool, str, type(None))
"""Types of leaves in a module's output that can be recorded, because they hide no tensors."""
Forward = Callable[..., Any]


@dataclass(eq=False)
class ModuleCall:
    """One call of one module in a recorded pass."""

    module: nn.Module
    inside: list[ModuleCall] = field(default_factory=list)
    """The calls made during this call."""
    inputs: tuple[Tensor, ...] = ()
    """The input tensors of a plain layer, which is a layer of PyTorch's without submodules."""
    output: Any = None
    held: tuple[tuple[Tensor, int], ...] | None = None
    """All tensors of `inputs` and `output` with their versions, which count changes in place; None if unknown."""
    order: int = -1
    """The number of calls that had finished before this call finished."""

    def finish(self, args: Any, output: Any, order: int) -> None:
        """Keep the output and, for a plain layer, the inputs."""
        if type(self.module).__module__.startswith("torch.nn.modules") and not any(self.module.children()):
            self.inputs = tuple(known_tensors(args) or ())
        self.output, self.order = output, order
        tensors = known_tensors(output)
        self.held = None if tensors is None else tuple((tensor, tensor._version) for tensor in (*self.inputs, *tensors))

    @property
    def is_intact(self) -> bool:
        """Whether the recorded output is still valid: no tensor has been changed in place."""
        return self.held is not None and all(tensor._version == version for tensor, version in self.held)


@dataclass(eq=False)
class SiteRecord:
    """The call of one site's output projection in a recorded pass."""

    z: Tensor
    version: int
    """The version of z when it was recorded."""
    call: ModuleCall
    carrier: ModuleCall
    """The outermost call whose output contains the projection's output tensor, unchanged."""
    product: Product | None = None
    """The function of z that a projection computes if it is a parameter."""


class PassRecorder:
    """Hooks that record the module calls of a pass, and the output projections' calls by site.

    With a `patcher`, modules return recorded calls of a previous pass; the recorder takes these calls over, together
    with their entries in the previous pass's `previous_sites`.
    """

    def __init__(
        self,
        sites: Sites,
        patcher: ReplayPatcher | None = None,
        previous_sites: Mapping[HeadSite, SiteRecord] | None = None,
    ) -> None:
        self.calls: dict[nn.Module, list[ModuleCall]] = {}
        self.site_records: dict[HeadSite, SiteRecord] = {}
        self._projections, self._patcher, self._previous_sites = sites.projections, patcher, previous_sites or {}
        self._turns = SharedSiteCounter(sites, None if patcher is None else patcher.n_skipped)
        self._open: list[ModuleCall] = []
        self._n_finished = 0

    @contextmanager
    def watching(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Record the calls of these modules inside the context."""
        with ExitStack() as hooks:
            for module in modules:
                hooks.callback(module.register_forward_pre_hook(self._begin).remove)
                hooks.callback(module.register_forward_hook(self._end).remove)
            yield

    def _begin(self, module: nn.Module, args: Any) -> None:
        call = ModuleCall(module)
        for caller in self._open:
            caller.inside.append(call)
        self._open.append(call)
        self.calls.setdefault(module, []).append(call)

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self._open.pop()
        site = self._turns.next(module) if module in self._projections else None
        if self._patcher is not None and (recorded := self._patcher.take(module)) is not None:
            self._adopt(recorded)
            self._n_finished += 1 + len(recorded.inside)
            return
        call.finish(args, output, self._n_finished)
        self._n_finished += 1
        if site is not None:
            if site in self.site_records:
                what = f"the output projection of {site} was called twice in one pass"
                raise InstrumentError(what, "a gate cannot distinguish the calls")
            z = input_of(site, args)
            self.site_records[site] = SiteRecord(z, z._version, call, call, getattr(module, "product", None))
        elif any(inner.module in self._projections for inner in call.inside):
            self._extend_carriers(call)
        else:  # this call can return its own output, so the calls inside need not keep tensors
            for inner in call.inside:
                inner.inputs, inner.output, inner.held = (), None, None

    def _extend_carriers(self, call: ModuleCall) -> None:
        """Make a call the carrier of every site whose projection output it returns unchanged."""
        returned = {id(tensor) for tensor in known_tensors(call.output) or ()}
        for record in self.site_records.values():
            is_returned = record.call.is_intact and id(record.call.output) in returned
            if is_returned and record.carrier in call.inside:
                record.carrier = call

    def _adopt(self, call: ModuleCall) -> None:
        """Replace the call just made by a recorded call of the previous pass, with all calls inside it."""
        calls = [call, *call.inside]
        for caller in self._open:
            caller.inside[-1:] = calls
        self.calls[call.module].pop()
        for adopted in calls:
            self.calls.setdefault(adopted.module, []).append(adopted)
        for site, record in self._previous_sites.items():
            if record.call in calls:  # carriers outside this call are determined again
                carrier = record.carrier if record.carrier in calls else call
                self.site_records[site] = replace(record, carrier=carrier)


class ReplayPatcher:
    """Makes modules return recorded outputs while a pass is run again from one site.

    `projected` is the changed output of the site's projection; if it is None, the attention block is computed again.
    """

    def __init__(self, record: SiteRecord, projected: Tensor | None, tiler: BatchTiler) -> None:
        self.record, self.projected, self.tiler = record, projected, tiler
        self.n_called: Counter[nn.Module] = Counter()
        self.n_skipped: Counter[nn.Module] = Counter()
        """The number of calls of each module that did not happen, because their caller returned a recorded output."""
        self.has_acted = False
        """Whether `projected` has been returned to the model."""
        self._returned: ModuleCall | None = None

    def take(self, module: nn.Module) -> ModuleCall | None:
        """Return the recorded call whose output this module has just returned, if any."""
        call, self._returned = self._returned, None
        return call if call is not None and call.module is module else None

    @contextmanager
    def patching(self, patched: Mapping[nn.Module, Sequence[ModuleCall]]) -> Iterator[None]:
        """Make modules return recorded outputs inside the context, wherever they would compute the same."""
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
            self._returned = None
            if call is record.carrier and self.projected is not None:
                self.has_acted = True
                self._skip(call)
                was = record.call.output
                return pytree.tree_map_only(Tensor, lambda x: self.projected if x is was else repeat(x), call.output)
            if call is None or not call.is_intact:
                return forward(*args, **kwargs)
            if call.order < record.call.order or self._is_unchanged(call, args, kwargs):
                self._skip(call)
                self._returned = call
                return pytree.tree_map_only(Tensor, repeat, call.output)
            return forward(*args, **kwargs)

        return patched_forward

    def _skip(self, call: ModuleCall) -> None:
        """Count the module calls inside this call as skipped, because a replay leaves them out."""
        for inner in call.inside:
            self.n_called[inner.module] += 1
            self.n_skipped[inner.module] += 1

    def _is_unchanged(self, call: ModuleCall, args: Any, kwargs: Any) -> bool:
        """Return whether a layer gets the inputs that were recorded, so that its output is the recorded one as well."""
        inputs = known_tensors((args, kwargs)) or []
        return bool(inputs) and len(inputs) == len(call.inputs) and all(map(self.tiler.repeats, inputs, call.inputs))


def known_tensors(tree: Any) -> list[Tensor] | None:
    """Return all tensors of a tree in order, or None if a leaf is of a type that may hide tensors."""
    leaves = pytree.tree_leaves(tree)
    if not all(isinstance(leaf, LEAVES) for leaf in leaves):
        return None
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


class BatchTiler:
    """Repeats the n rows of a pass `times` times, and recognises its own repetitions."""

    def __init__(self, n: int, times: int) -> None:
        self.n, self.times = n, times
        self._repeated: dict[int, tuple[Tensor, Tensor, int]] = {}

    def repeat(self, tensor: Tensor) -> Tensor:
        """Return the rows of a tensor, repeated `times` times; return a tensor without rows of the pass unchanged."""
        _, repeated, version = self._repeated.get(id(tensor), (tensor, None, -1))
        if repeated is None or repeated._version != version:
            repeated = tensor
            if self.times > 1 and tensor.dim() and len(tensor) == self.n:
                repeated = tensor.repeat(self.times, *[1] * (tensor.dim() - 1))
            # Both tensors are kept, so that no other tensor gets their ids.
            self._repeated[id(tensor)] = tensor, repeated, repeated._version
        return repeated

    def repeats(self, tensor: Tensor, recorded: Tensor) -> bool:
        """Return whether a tensor equals the recorded rows, repeated `times` times, bit for bit."""
        _, repeated, version = self._repeated.get(id(recorded), (recorded, None, -1))
        if repeated is tensor and tensor._version == version:
            return True  # made by `repeat`, and not changed in place since
        if tensor.shape[1:] != recorded.shape[1:] or len(tensor) != self.times * self.n or len(recorded) != self.n:
            return False
        if not torch.equal(tensor[0], recorded[0]):
            return False  # the first row usually shows a difference
        return torch.equal(tensor.unflatten(0, (self.times, self.n)), recorded.expand(self.times, *recorded.shape))
