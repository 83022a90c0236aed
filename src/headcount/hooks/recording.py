"""Record every module call of a forward pass, so that modules can return recorded outputs when the pass runs again.

`PassRecorder` records the calls of a pass. `ReplayPatcher` replaces the forward methods of modules, so that they return
recorded outputs where these are still valid. `BatchTiler` repeats the recorded rows (examples) of a batch, so that one
pass can run several interventions, such as ablations.
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
"""Types of values in a module's output that can be recorded, because they cannot contain hidden tensors."""
Forward = Callable[..., Any]


@dataclass(eq=False)
class ModuleCall:
    """One call of one module in a recorded forward pass."""

    module: nn.Module
    inside: list[ModuleCall] = field(default_factory=list)
    """The calls of other modules that were made during this call."""
    inputs: tuple[Tensor, ...] = ()
    """The input tensors, kept only for a plain layer, which is a PyTorch layer without submodules."""
    output: Any = None
    held: tuple[tuple[Tensor, int], ...] | None = None
    """All tensors of `inputs` and `output`, each with its version, PyTorch's count of in-place changes.

    None if there may be further tensors that are not known.
    """
    order: int = -1
    """The number of module calls that had finished before this call finished."""

    def finish(self, args: Any, output: Any, order: int) -> None:
        """Keep the call's output and, for a plain layer (a PyTorch layer without submodules), its inputs."""
        if type(self.module).__module__.startswith("torch.nn.modules") and not any(self.module.children()):
            self.inputs = tuple(known_tensors(args) or ())
        self.output, self.order = output, order
        tensors = known_tensors(output)
        self.held = None if tensors is None else tuple((tensor, tensor._version) for tensor in (*self.inputs, *tensors))

    @property
    def is_intact(self) -> bool:
        """Whether the recorded output is still valid, because no recorded tensor has been changed in place."""
        return self.held is not None and all(tensor._version == version for tensor, version in self.held)


@dataclass(eq=False)
class SiteRecord:
    """The recorded call of one attention block's output projection, with its input z."""

    z: Tensor
    version: int
    """PyTorch's count of in-place changes of z, at the time of the recording."""
    call: ModuleCall
    carrier: ModuleCall
    """The outermost module call that returns the projection's output tensor unchanged; usually the attention block."""
    product: Product | None = None
    """The function of z that the model computes if the projection is a parameter; None if it is a module."""


class PassRecorder:
    """Records the module calls of a forward pass, and the call of each attention block's output projection.

    With a `patcher`, some modules return outputs recorded in a previous pass. The recorder then takes over the calls of
    these modules, and the records of their output projections from `previous_sites`.
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
        """Return a context in which the calls of these modules are recorded."""
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
                raise InstrumentError(
                    what, "headcount cannot tell the calls apart: give inputs on which it is called once"
                )
            z = input_of(site, args)
            self.site_records[site] = SiteRecord(z, z._version, call, call, getattr(module, "product", None))
        elif any(inner.module in self._projections for inner in call.inside):
            self._extend_carriers(call)
        else:  # this call can return its own output, so the calls inside need not keep tensors
            for inner in call.inside:
                inner.inputs, inner.output, inner.held = (), None, None

    def _extend_carriers(self, call: ModuleCall) -> None:
        """Set a call as the `carrier` of every attention block whose projection output the call returns unchanged."""
        returned = {id(tensor) for tensor in known_tensors(call.output) or ()}
        for record in self.site_records.values():
            is_returned = record.call.is_intact and id(record.call.output) in returned
            if is_returned and record.carrier in call.inside:
                record.carrier = call

    def _adopt(self, call: ModuleCall) -> None:
        """Put `call`, which the previous pass recorded, in place of the call just made, with all calls inside it."""
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
    """Makes modules return recorded outputs while a forward pass is run again from one attention block on.

    `record` is the recorded call of the block's output projection. `projected` is the changed output that replaces the
    output of this projection; if it is None, the attention block is computed again.
    """

    def __init__(self, record: SiteRecord, projected: Tensor | None, tiler: BatchTiler) -> None:
        self.record, self.projected, self.tiler = record, projected, tiler
        self.n_called: Counter[nn.Module] = Counter()
        self.n_skipped: Counter[nn.Module] = Counter()
        """The number of calls of each module that did not happen, because their caller returned a recorded output."""
        self.has_acted = False
        """Whether the changed output `projected` has been returned to the model; otherwise the replay had no effect."""
        self._returned: ModuleCall | None = None

    def take(self, module: nn.Module) -> ModuleCall | None:
        """Return the recorded call whose output this module has just returned, or None if it computed its output."""
        call, self._returned = self._returned, None
        return call if call is not None and call.module is module else None

    @contextmanager
    def patching(self, patched: Mapping[nn.Module, Sequence[ModuleCall]]) -> Iterator[None]:
        """Return a context in which the modules in `patched` return recorded outputs wherever these are still right."""
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
        """Count the module calls inside `call` as skipped, because a replayed pass does not make them."""
        for inner in call.inside:
            self.n_called[inner.module] += 1
            self.n_skipped[inner.module] += 1

    def _is_unchanged(self, call: ModuleCall, args: Any, kwargs: Any) -> bool:
        """Return whether a layer gets the same inputs as in the recorded call, so that its output is the same, too."""
        inputs = known_tensors((args, kwargs)) or []
        return bool(inputs) and len(inputs) == len(call.inputs) and all(map(self.tiler.repeats, inputs, call.inputs))


def known_tensors(tree: Any) -> list[Tensor] | None:
    """Return all tensors in nested lists, tuples and dictionaries; None if another object may contain more tensors."""
    leaves = pytree.tree_leaves(tree)
    if not all(isinstance(leaf, LEAVES) for leaf in leaves):
        return None
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


class BatchTiler:
    """Repeats the n rows (examples) of a batch `times` times, and recognises tensors that it has repeated."""

    def __init__(self, n: int, times: int) -> None:
        self.n, self.times = n, times
        self._repeated: dict[int, tuple[Tensor, Tensor, int]] = {}

    def repeat(self, tensor: Tensor) -> Tensor:
        """Return a tensor with its n rows repeated `times` times; a tensor without n rows is returned unchanged."""
        _, repeated, version = self._repeated.get(id(tensor), (tensor, None, -1))
        if repeated is None or repeated._version != version:
            repeated = tensor
            if self.times > 1 and tensor.dim() and len(tensor) == self.n:
                repeated = tensor.repeat(self.times, *[1] * (tensor.dim() - 1))
            # Both tensors are kept, so that no other tensor gets their ids.
            self._repeated[id(tensor)] = tensor, repeated, repeated._version
        return repeated

    def repeats(self, tensor: Tensor, recorded: Tensor) -> bool:
        """Return whether `tensor` equals, bit for bit, the rows of `recorded` repeated `times` times."""
        _, repeated, version = self._repeated.get(id(recorded), (recorded, None, -1))
        if repeated is tensor and tensor._version == version:
            return True  # made by `repeat`, and not changed in place since
        if tensor.shape[1:] != recorded.shape[1:] or len(tensor) != self.times * self.n or len(recorded) != self.n:
            return False
        if not torch.equal(tensor[0], recorded[0]):
            return False  # the first row usually shows a difference
        return torch.equal(tensor.unflatten(0, (self.times, self.n)), recorded.expand(self.times, *recorded.shape))
