"""Silence, scale or replace heads while a model runs: z' = g z + (1 - g) r.

    with Gates(sites, closed_gates(sites, [HeadId.parse("E0H1")])):
        model(source, decoder_input)                       # without that head

A gate g is per row and head, so that many experiments ride in one batch; a replacement r (0 unless given) is per row
and position. A gate that is open for all rows leaves no hook at all, so open gates change no bit. Contexts nest, and
leave the model as it was, whatever happens inside.

An intervention that did nothing is an error: gates that no forward pass came through raise when the context is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import InputError, InstrumentError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.sites import SharedSiteCounter, Sites

Gate = Float[Tensor, "#row head"]
Values = Float[Tensor, "#row #query head d_head"]
"""What stands in for heads."""


def closed_gates(sites: Sites, heads: Iterable[HeadId]) -> dict[HeadSite, Gate]:
    """Gates that are shut for these heads, in every row."""
    gates = {}
    for site, places in sites.head_slots(heads).items():
        gates[site] = torch.ones(1, len(sites[site].heads))
        gates[site][:, list(places)] = 0.0
    return gates


class Gates:
    """Gates at some sites, for as long as the context lasts."""

    def __init__(
        self,
        sites: Sites,
        gates: Mapping[HeadSite, Gate],
        replacements: Mapping[HeadSite, Values] | None = None,
        *,
        allow_prefix: bool = False,
        skipped: Mapping[torch.nn.Module, int] | None = None,
    ) -> None:
        """With `allow_prefix`, passes may see only the first positions of a replacement, as decoding without a cache
        does.

        (A decoder with a cache sees one position at a time and would get the first one's replacement at each.)
        `skipped` counts calls of projections that do not happen because others make up for them.
        """
        self._sites, self._gates, self._replacements = sites, dict(gates), dict(replacements or {})
        self._growing, self._skipped = allow_prefix, skipped
        self.calls: Counter[HeadSite] = Counter()
        """How often each gated site was passed."""
        self._stack = ExitStack()
        for name, gate in self._gates.items():
            _check(name, sites, gate)
        if unknown := set(self._replacements) - set(self._gates):
            raise InputError(f"a replacement for {sorted(map(str, unknown))[0]}, but no gate", "shut a gate there")

    def __enter__(self) -> Self:
        self.calls.clear()
        self._turns = SharedSiteCounter(self._sites, self._skipped)
        self._acting = {
            name: gate for name, gate in self._gates.items() if gate.requires_grad or not bool((gate == 1).all())
        }
        for name in self._gates.keys() - self._acting.keys():
            self.calls[name] = 0  # open: nothing to do, and nothing to prove
        self._stack.enter_context(self._sites.unfused())
        for projection in dict.fromkeys(self._sites[name].projection for name in self._acting):
            self._stack.callback(projection.register_forward_pre_hook(self._act, with_kwargs=True).remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        missed = [name for name in self._gates if name not in self.calls]
        if kind is None and self._acting and missed:
            raise InstrumentError(
                f"the gates at {', '.join(map(str, missed))} were never reached: nothing was silenced there",
                "the model does not call that output projection (a fused path, or a module that is not in use), or no "
                "forward pass was made",
            )
        if kind is None and (odd := self._turns.unfinished()):
            raise InstrumentError(
                f"the output projection that {odd[0]} shares was not called once for each of its sites in every pass",
                "so gates cannot tell whose turn it was",
            )

    def _act(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        name = self._turns.next(module)
        if name not in self._acting:
            return None
        self.calls[name] += 1
        z, rest = split_input(name, args)
        return (gated(name, z, self._acting[name], self._replacement(name, z)), *rest), kwargs

    def _replacement(self, name: HeadSite, z: Tensor) -> Tensor | None:
        value = self._replacements.get(name)
        if value is not None and self._growing:
            value = value[:, : z.shape[1]]
        return value


def split_input(name: HeadSite, args: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
    """The z that a projection was called with, and whatever else."""
    if not args or not isinstance(args[0], Tensor):
        raise InstrumentError(
            f"the output projection of {name} was not called with a tensor", "its input cannot be gated"
        )
    return args[0], args[1:]


def gated(name: HeadSite, z: Tensor, gate: Gate, value: Values | None) -> Tensor:
    """The mixture g z + (1 - g) r; an open gate hands z on bit for bit."""
    n_heads = gate.shape[1]
    if z.shape[-1] % n_heads or z.dim() < 2:
        raise InstrumentError(f"z at {name} has shape {tuple(z.shape)}, which {n_heads} heads cannot share")
    rows = (len(z), len(gate))
    if rows[0] != rows[1] and 1 not in rows:
        raise InstrumentError(
            f"{rows[1]} rows of gates at {name}, but the pass has {rows[0]} rows", "give one row per example, or one"
        )
    z_BQHE = z.unflatten(-1, (n_heads, -1))
    g = gate.to(z)[(slice(None), *[None] * (z.dim() - 2), slice(None), None)]
    if value is None:
        return (z_BQHE * g).flatten(start_dim=-2)
    mixed = z_BQHE * g + (1 - g) * value.to(z)
    return torch.where(g == 1, z_BQHE, mixed).flatten(start_dim=-2)  # 1 z + 0 r would turn -0 into 0


def _check(name: HeadSite, sites: Sites, gate: Gate) -> None:
    if name not in sites:
        raise InputError(f"no attention site {str(name)!r} in this model", f"it has: {', '.join(map(str, sites))}")
    n_heads = len(sites[name].heads)
    if gate.dim() != 2 or gate.shape[1] != n_heads:
        raise InputError(
            f"gates at {name} have shape {tuple(gate.shape)}", f"give [rows or 1, {n_heads}]: a column for each head"
        )


# --- how a model runs while it is measured ----------------------------------------------------------------------------
# How a model runs while it is measured.


@contextmanager
def eval_mode(model: torch.nn.Module, *, gradients: bool = True) -> Iterator[torch.device]:
    """Dropout off inside and, unless they are asked for, gradients; yields the model's device."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    first = next(model.parameters(), None)
    try:
        with nullcontext() if gradients else torch.inference_mode():
            yield torch.device("cpu") if first is None else first.device
    finally:
        for module in training:
            module.training = True
