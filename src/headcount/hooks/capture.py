"""Read what heads say: z, and each head's contribution to the residual stream."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.errors import InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.gates import split_input
from headcount.hooks.sites import SharedSiteCounter, Site, Sites


class Capture:
    """Keeps the input and the output of every output projection of the pass made inside the context."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._z: dict[HeadSite, list[Tensor]] = {}
        self._outputs: dict[HeadSite, list[Tensor]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._turns = SharedSiteCounter(self._sites)
        self._stack.enter_context(self._sites.unfused())
        for projection in self._sites.projections:
            self._stack.callback(projection.register_forward_hook(self._keep).remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _keep(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        name = self._turns.next(module)
        # Copies, for the model may go on to add to its tensors in place.
        self._z.setdefault(name, []).append(split_input(name, args)[0].clone())
        self._outputs.setdefault(name, []).append(output.clone())

    def z(self, site: HeadSite) -> Float[Tensor, "row query head d_head"]:
        """What each head found."""
        return self._only(self._z, site).unflatten(-1, (len(self._sites[site].heads), -1))

    def output(self, site: HeadSite) -> Float[Tensor, "row query d_model"]:
        """What the block adds to the residual stream."""
        return self._only(self._outputs, site)

    def contributions(self, site: HeadSite) -> Float[Tensor, "row query head d_model"]:
        """What each head adds to the residual stream; with the bias they make up the block's output."""
        return contributions(self._sites[site], self.z(site))

    def bias(self, site: HeadSite) -> Float[Tensor, " d_model"]:
        """What the block adds when all its heads are silent."""
        return bias(self._sites[site], self.z(site))

    def _only(self, kept: dict[HeadSite, list[Tensor]], site: HeadSite) -> Tensor:
        calls = kept.get(site, [])
        if len(calls) != 1:
            raise InstrumentError(
                f"{site} was passed {len(calls)} times, not once",
                "make exactly one forward pass inside the context" if calls else "the model never called it",
            )
        return calls[0]


def contributions(site: Site, z: Float[Tensor, "row query head d_head"]) -> Float[Tensor, "row query head d_model"]:
    """Through the projection itself, head by head: whatever the layout of its weights, it is linear."""
    silent = bias(site, z)
    alone = []
    for i in range(z.shape[-2]):
        only = torch.zeros_like(z)
        only[..., i, :] = z[..., i, :]
        alone.append(site.projection.forward(only.flatten(start_dim=-2)) - silent)
    return torch.stack(alone, dim=-2)


def bias(site: Site, z: Float[Tensor, "row query head d_head"]) -> Float[Tensor, " d_model"]:
    """The projection of nothing."""
    nothing = z.new_zeros(1, z.shape[-2] * z.shape[-1])
    silent: Tensor = site.projection.forward(nothing)[0]  # not by a call, which would set off hooks again
    return silent
