"""One forward pass, kept module call by module call, so that passes which differ from it late begin late.

An ablated pass is the recorded one up to the first silenced head. So it is run again with the rows of many ablations
side by side, but

    every module call that was over before that head's output projection hands back what was recorded;
    the attention block of that head hands back its projection of the changed z, if that is what it returned before;
    a plain layer (a projection of the encoder's memory, say) whose inputs are as recorded hands back the same;
    everything else is computed.

What is not inside a module's forward is computed anew, which costs a little time but is never wrong. A recorded tensor
that was changed in place later is not handed back. `sweep` compares samples with passes made without any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import InstrumentError
from headcount.heads import HeadId, HeadSite
from headcount.instruments.gates import Gates, Stand, gated, silenced, split_input
from headcount.instruments.sites import Sites
from headcount.instruments.trees import Rows, contains, replace_tensor, tensors_in

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Change:
    """One ablation: heads that are silent, and what stands in for them (nothing if not given)."""

    heads: tuple[HeadId, ...]
    stands: Mapping[HeadSite, Stand] = field(default_factory=dict)


@dataclass(eq=False)
class _Call:
    """One call of one module."""

    module: nn.Module
    inside: list[_Call] = field(default_factory=list)
    """Calls that were made meanwhile."""
    inputs: tuple[Tensor, ...] = ()
    """What a plain layer was given."""
    output: Any = None
    versions: tuple[int, ...] = ()
    order: int = -1
    """How many calls were over before this one was."""

    @property
    def is_intact(self) -> bool:
        found = tensors_in((self.inputs, self.output))
        return found is not None and tuple(tensor._version for tensor in found) == self.versions

    def forget(self) -> None:
        """Keep no tensors: whoever made this call hands back its own."""
        self.inputs, self.output, self.versions = (), None, (-1,)


@dataclass(eq=False)
class _Passage:
    """One site in the recorded pass."""

    z: Tensor
    call: _Call
    carrier: _Call
    """The outermost call that returned the projection's output itself."""


class Recording:
    """A pass of `model` over `inputs` with the heads of `base` silent; make it inside `torch.no_grad()`."""

    def __init__(self, model: nn.Module, sites: Sites, inputs: Sequence[Tensor], base: Collection[HeadId] = ()) -> None:
        self.model, self.sites, self.inputs, self.base = model, sites, tuple(inputs), tuple(base)
        self.n_rows = len(inputs[0])
        self._calls: dict[nn.Module, list[_Call]] = {}
        self._rows: dict[int, Rows] = {}
        self.passages: dict[HeadSite, _Passage] = {}
        self.output = self._record()

    @property
    def order(self) -> tuple[HeadSite, ...]:
        """The sites as the pass came by them."""
        return tuple(sorted(self.passages, key=lambda site: self.passages[site].call.order))

    def z(self, site: HeadSite) -> Tensor:
        """What the heads of a site found, [row, query, head, d_head]."""
        return self.passages[site].z.unflatten(-1, (len(self.sites[site].heads), -1))

    def first_site(self, heads: Collection[HeadId]) -> HeadSite:
        """Where a pass without these heads begins to differ."""
        touched = self.sites.by_site(heads)
        return next(site for site in self.order if site in touched)

    # --- record -------------------------------------------------------------------------------------------------

    def _record(self) -> Any:
        names = {site.projection: name for name, site in self.sites.items()}
        open_calls: list[_Call] = []
        n_over = 0

        def before(module: nn.Module, args: Any) -> None:
            call = _Call(module)
            for caller in open_calls:
                caller.inside.append(call)
            open_calls.append(call)
            self._calls.setdefault(module, []).append(call)

        def after(module: nn.Module, args: Any, output: Any) -> None:
            nonlocal n_over
            call = open_calls.pop()
            call.output, call.order = output, n_over
            call.inputs = tuple(tensors_in(args) or ()) if _is_plain(module) else ()
            call.versions = tuple(tensor._version for tensor in tensors_in((call.inputs, output)) or ())
            n_over += 1
            if module in names:
                self._pass(names[module], call, split_input(names[module], args)[0])
            elif not any(inner.module in names for inner in call.inside):
                for inner in call.inside:
                    inner.forget()
            else:
                self._carry(call)

        with ExitStack() as hooks:
            if self.base:
                hooks.enter_context(Gates(self.sites, silenced(self.sites, self.base)))
            for module in self.model.modules():
                hooks.callback(module.register_forward_pre_hook(before).remove)
                hooks.callback(module.register_forward_hook(after).remove)
            output = self.model(*self.inputs)
        if missed := [str(site) for site in self.sites if site not in self.passages]:
            raise InstrumentError(
                f"the output projection of {', '.join(missed)} was never called", "its heads cannot be silenced"
            )
        return output

    def _pass(self, name: HeadSite, call: _Call, z: Tensor) -> None:
        if name in self.passages:
            raise InstrumentError(
                f"the output projection of {name} was called twice in one pass",
                "a gate could not tell the calls apart",
            )
        self.passages[name] = _Passage(z, call, call)

    def _carry(self, call: _Call) -> None:
        """Whoever encloses a carrier and returns its very tensor carries it too."""
        for passage in self.passages.values():
            if passage.carrier in call.inside and contains(call.output, passage.call.output):
                passage.carrier = call

    # --- run again ----------------------------------------------------------------------------------------------

    def rerun(self, changes: Sequence[Change]) -> Any:
        """The output with each change, their rows one block after another: [change * row, ...].

        All of them must begin to differ at the same site.
        """
        first = {self.first_site(change.heads) for change in changes}
        if len(first) != 1:
            raise ValueError(f"changes that begin at different sites: {', '.join(map(str, first))}")
        (site,) = first
        rows = self._rows.setdefault(len(changes), Rows(self.n_rows, len(changes)))
        gates, stands = self._gates(changes), self._stands(changes, rows)
        later = [name for name in self.order[self.order.index(site) + 1 :] if name in gates]
        passage = self.passages[site]
        z = gated(site, rows.repeat(passage.z), gates[site], stands.get(site))
        after = Gates(
            self.sites, {name: gates[name] for name in later}, {name: s for name, s in stands.items() if name in later}
        )
        with _standing_in(self._calls, passage, z, rows), after:
            return self.model(*(rows.repeat(each) for each in self.inputs))

    def _gates(self, changes: Sequence[Change]) -> dict[HeadSite, Tensor]:
        """Gates for all rows of all changes; what the base silences stays silent."""
        places = [self.sites.by_site((*change.heads, *self.base)) for change in changes]
        gates = {}
        for site in self.sites:
            if any(site in each for each in places):
                gate = torch.ones(len(changes), len(self.sites[site].heads))
                for row, each in zip(gate, places, strict=True):
                    row[list(each.get(site, ()))] = 0.0
                gates[site] = gate.repeat_interleave(self.n_rows, dim=0)
        return gates

    def _stands(self, changes: Sequence[Change], rows: Rows) -> dict[HeadSite, Tensor]:
        """Replacements for all rows of all changes, 0 where a change has none."""
        stands = {}
        for site in {site for change in changes for site in change.stands}:
            z = self.z(site)
            parts = [change.stands.get(site, z.new_zeros(())).expand(z.shape) for change in changes]
            stands[site] = torch.cat(parts)
        return stands


@contextmanager
def _standing_in(
    calls: Mapping[nn.Module, Sequence[_Call]], passage: _Passage, z: Tensor, rows: Rows
) -> Iterator[None]:
    """Inside, modules hand back what was recorded, wherever that is what they would compute."""
    players = _Players(calls, passage, z, rows)
    before = {module: module.__dict__.get("forward") for module in calls}
    try:
        for module in calls:
            module.__dict__["forward"] = players.forward_of(module, module.forward)
        yield
    finally:
        for module, own in before.items():
            if own is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = own


class _Players:
    """The stand-ins of one run."""

    def __init__(self, calls: Mapping[nn.Module, Sequence[_Call]], passage: _Passage, z: Tensor, rows: Rows) -> None:
        self.calls, self.passage, self.z, self.rows = calls, passage, z, rows
        self.n_called: dict[nn.Module, int] = dict.fromkeys(calls, 0)
        self.projection = passage.call.module.forward  # before anyone stands in for it

    def forward_of(self, module: nn.Module, forward: Forward) -> Forward:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            call = self._next_call(module)
            if call is None:
                return forward(*args, **kwargs)
            if call is self.passage.carrier:
                self._skip(call)
                changed = self.projection(self.z)
                return replace_tensor(call.output, self.passage.call.output, changed, self.rows.repeat)
            if call.is_intact and (call.order < self.passage.call.order or self._unchanged(call, args, kwargs)):
                self._skip(call)
                return self.rows.repeat_tree(call.output)
            return forward(*args, **kwargs)

        return stand_in

    def _next_call(self, module: nn.Module) -> _Call | None:
        n = self.n_called[module]
        self.n_called[module] += 1
        return self.calls[module][n] if n < len(self.calls[module]) else None

    def _skip(self, call: _Call) -> None:
        """What this call would have called is not called now."""
        for inner in call.inside:
            self.n_called[inner.module] += 1

    def _unchanged(self, call: _Call, args: Any, kwargs: Any) -> bool:
        """Whether a plain layer was given just what was recorded: such a layer depends on nothing else."""
        found = tensors_in((args, kwargs)) if call.inputs else None
        if not found or len(found) != len(call.inputs):
            return False
        return all(
            self.rows.is_known(tensor) or self.rows.repeats(tensor, recorded)
            for tensor, recorded in zip(found, call.inputs, strict=True)
        )


def _is_plain(module: nn.Module) -> bool:
    """PyTorch's own layers, which have no others inside."""
    return type(module).__module__.startswith("torch.nn.modules") and not any(module.children())
