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

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.errors import InstrumentError
from headcount.heads import HeadId, HeadSite
from headcount.instruments.gates import Gates, Stand, gated, silenced, split_input
from headcount.instruments.sites import Sites, Turns
from headcount.instruments.stand_ins import Call, Passage, Players
from headcount.instruments.trees import Rows, contains


@dataclass(frozen=True)
class Change:
    """One ablation: heads that are silent, and what stands in for them (nothing if not given)."""

    heads: tuple[HeadId, ...]
    stands: Mapping[HeadSite, Stand] = field(default_factory=dict)


class Recording:
    """A pass of `model` over `inputs` with the heads of `base` silent; make it inside `torch.no_grad()`."""

    def __init__(self, model: nn.Module, sites: Sites, inputs: Sequence[Tensor], base: Collection[HeadId] = ()) -> None:
        self.model, self.sites, self.inputs, self.base = model, sites, tuple(inputs), tuple(base)
        self.n_rows = len(inputs[0])
        self._calls: dict[nn.Module, list[Call]] = {}
        self._rows: dict[int, Rows] = {}
        self._casts: dict[HeadSite, dict[nn.Module, list[Call]]] = {}
        self.passages: dict[HeadSite, Passage] = {}
        """The sites as the pass came by them."""
        self.output = self._record()

    def z(self, site: HeadSite) -> Tensor:
        """What the heads of a site found, [row, query, head, d_head]."""
        return self.passages[site].z.unflatten(-1, (len(self.sites[site].heads), -1))

    def first_site(self, heads: Collection[HeadId]) -> HeadSite:
        """Where a pass without these heads begins to differ."""
        touched = self.sites.by_site(heads)
        return next(site for site in self.passages if site in touched)

    # --- record -------------------------------------------------------------------------------------------------

    def _record(self) -> Any:
        names, turns = self.sites.projections, Turns(self.sites)
        open_calls: list[Call] = []
        n_over = 0

        def before(module: nn.Module, args: Any) -> None:
            call = Call(module)
            for caller in open_calls:
                caller.inside.append(call)
            open_calls.append(call)
            self._calls.setdefault(module, []).append(call)

        def after(module: nn.Module, args: Any, output: Any) -> None:
            nonlocal n_over
            call = open_calls.pop()
            call.finish(args, output, n_over)
            n_over += 1
            if module in names:
                name = turns.next(module)
                self._pass(name, call, split_input(name, args)[0])
            elif not any(inner.module in names for inner in call.inside):
                for inner in call.inside:
                    inner.forget()
            else:
                self._carry(call)

        with ExitStack() as hooks:
            hooks.enter_context(self.sites.opened())
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

    def _pass(self, name: HeadSite, call: Call, z: Tensor) -> None:
        if name in self.passages:
            raise InstrumentError(
                f"the output projection of {name} was called twice in one pass",
                "a gate could not tell the calls apart",
            )
        self.passages[name] = Passage(z, z._version, call, call)

    def _carry(self, call: Call) -> None:
        """Whoever encloses a carrier and returns its very tensor, unchanged, carries it too."""
        for passage in self.passages.values():
            if passage.carrier in call.inside and passage.call.is_intact and contains(call.output, passage.call.output):
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
        if len(changes) not in self._rows:
            self._rows[len(changes)] = Rows(self.n_rows, len(changes))
        rows, order = self._rows[len(changes)], list(self.passages)
        later = order[order.index(site) + 1 :]
        gates, stands = self.gates(changes, later, self.n_rows), self.stands(changes, later, self.n_rows)
        players = Players(self.passages[site], self._projected(site, changes, rows), rows)
        try:
            standing_in = players.standing_in(self._cast(site))
            with self.sites.opened(), standing_in, Gates(self.sites, gates, stands, skipped=players.n_skipped):
                output = self.model(*(rows.repeat(each) for each in self.inputs))
        except RuntimeError as error:
            raise InstrumentError(
                f"a pass begun at {site}, with {rows.times} times {rows.n} rows, failed: {error}",
                "rows should come first in everything that the model's modules hand to each other",
            ) from error
        if not players.has_acted:
            raise InstrumentError(
                f"the output projection of {site} was called when the pass was recorded, and now it was not",
                "its heads were not silenced: the model does not do the same in every pass",
            )
        return output

    def gates(self, changes: Sequence[Change], sites: Iterable[HeadSite], n_rows: int) -> dict[HeadSite, Tensor]:
        """Gates for the first rows, with each change; what the base silences stays silent."""
        places = [self.sites.by_site((*change.heads, *self.base)) for change in changes]
        gates = {}
        for site in sites:
            if any(site in each for each in places):
                gate = torch.ones(len(changes), len(self.sites[site].heads))
                for row, each in zip(gate, places, strict=True):
                    row[list(each.get(site, ()))] = 0.0
                gates[site] = gate.repeat_interleave(n_rows, dim=0)
        return gates

    def stands(self, changes: Sequence[Change], sites: Iterable[HeadSite], n_rows: int) -> dict[HeadSite, Tensor]:
        """Replacements for the first rows, with each change; nothing stands in for other heads than its own."""
        stands = {}
        for site in sites:
            if any(site in change.stands for change in changes):
                z = self.z(site)[:n_rows]
                stand = stands[site] = z.new_zeros(len(changes), *z.shape)
                for part, change in zip(stand, changes, strict=True):
                    if site in change.stands:
                        own = list(self.sites.by_site(change.heads)[site])
                        part[..., own, :] = change.stands[site][:n_rows].to(z).expand(z.shape)[..., own, :]
                stands[site] = stand.flatten(end_dim=1)
        return stands

    def _projected(self, site: HeadSite, changes: Sequence[Change], rows: Rows) -> Tensor:
        """The output of a site's projection with each change."""
        passage, projection = self.passages[site], self.sites[site].projection
        if passage.z._version != passage.version:
            raise InstrumentError(f"z at {site} is changed in place later in the pass", "its heads cannot be silenced")
        weight = _plain_weight(projection)
        if weight is not None and passage.call.is_intact:
            return self._subtracted(site, changes, weight)
        gates = self.gates(changes, [site], self.n_rows)
        stands = self.stands(changes, [site], self.n_rows)
        z = gated(site, passage.z.repeat(rows.times, *[1] * (passage.z.dim() - 1)), gates[site], stands.get(site))
        changed: Tensor = projection.forward(z)
        return changed

    def _subtracted(self, site: HeadSite, changes: Sequence[Change], weight: Tensor) -> Tensor:
        """Likewise, for a plain layer: what it said, less what the silenced heads said, which is quicker."""
        z, said = self.z(site), self.passages[site].call.output
        weight_DHE = weight.unflatten(1, (z.shape[-2], -1))
        changed = said.new_empty(len(changes), *said.shape)
        for part, change in zip(changed, changes, strict=True):
            own = list(self.sites.by_site(change.heads)[site])
            lost = z[..., own, :]
            if site in change.stands:
                lost = lost - change.stands[site].to(z).expand(z.shape)[..., own, :]
            torch.sub(said, F.linear(lost.flatten(start_dim=-2), weight_DHE[:, own].flatten(start_dim=1)), out=part)
        return changed.flatten(end_dim=1)

    def _cast(self, site: HeadSite) -> dict[nn.Module, list[Call]]:
        """The modules that may have someone stand in for them when a pass begins at this site."""
        if site not in self._casts:
            passage, cast = self.passages[site], dict[nn.Module, list[Call]]()
            over = [call for calls in self._calls.values() for call in calls if call.order < passage.call.order]
            unheard = {id(inner) for call in over if call.is_intact for inner in call.inside}
            for module, calls in self._calls.items():
                if any(id(call) not in unheard and passage.concerns(call) for call in calls):
                    cast[module] = calls
            self._casts[site] = cast
        return self._casts[site]


def _plain_weight(projection: nn.Module) -> Tensor | None:
    """The weight [out, in] of a plain layer, GPT-2's transposed ones included."""
    if type(projection) is nn.Linear:
        return projection.weight
    if type(projection).__name__ == "Conv1D" and type(projection).__module__ == "transformers.pytorch_utils":
        weight = projection.weight
        return weight.T if isinstance(weight, Tensor) else None
    return None
