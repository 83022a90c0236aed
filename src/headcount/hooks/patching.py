"""Path patching: change only what one head (the receiver) gets from another head (the sender).

An ordinary patch of a head changes everything after the head. A path patch replaces the sender's output by its output
on other inputs, the donor, but only for the receiver (Wang et al. 2022, arXiv 2211.00593; Goldowsky-Dill et al. 2023,
arXiv 2304.05969). It takes four forward passes:

    1   run on the donor's inputs                                keep the output of the sender
    2   run on the inputs                                        keep the outputs of all heads
    3   as 2, with the sender patched and other heads as in 2    keep the output that the receiver computes
    4   as 2, with the receiver patched                          the result

Without a receiver, pass 3 is the result: the direct effect of the sender on the logits. The path from the sender to the
receiver goes through the residual stream and through MLPs, unless the outputs of MLPs are kept as in pass 2, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import Capture, Gates, closed_gates
from headcount.hooks.sites import Sites
from headcount.hooks.streams import StreamCapture, StreamPatches, Streams

Outputs = Mapping[HeadSite, Tensor]
"""The outputs of all heads, [row, query, head, d_head], by attention block."""


def outputs_of(model: nn.Module, sites: Sites, inputs: Sequence[Tensor]) -> dict[HeadSite, Tensor]:
    """Run one forward pass and return the outputs of all heads, [row, query, head, d_head], by attention block."""
    with Capture(sites) as capture:
        model(*inputs)
    return {site: capture.z(site) for site in sites}


def path_patch(
    model: nn.Module,
    sites: Sites,
    inputs: Sequence[Tensor],
    donor: Sequence[Tensor],
    senders: Collection[HeadId],
    receivers: Collection[HeadId] = (),
    *,
    held: Streams | None = None,
) -> Any:
    """Return the model's output if the receivers see the senders' outputs on `donor` inputs instead of on `inputs`.

    Without receivers, the direct effect on the logits is returned. `held` are streams, such as the outputs of MLPs,
    that keep their values on `inputs`, so that no path goes through them. Call this inside `torch.no_grad()`.
    """
    given = outputs_of(model, sites, donor)
    with Capture(sites) as capture, StreamCapture(held) if held else nullcontext() as streams:
        model(*inputs)
    clean = {site: capture.z(site) for site in sites}
    values = merged(sites, clean, given, senders)
    free = set(receivers)
    closed = closed_gates(sites, [head for head in sites.heads if head not in free])
    holding = StreamPatches(held, {stream: streams[stream] for stream in held}) if held and streams else nullcontext()
    with Gates(sites, closed, {site: values[site] for site in closed}), Capture(sites) as third, holding:
        output = model(*inputs)
    if not receivers:
        return output
    slots = sites.head_slots(receivers)
    received = {site: third.z(site) for site in slots}
    if all(torch.equal(received[site][..., at, :], clean[site][..., at, :]) for site, at in slots.items()):
        raise InputError(
            f"patching {_names(senders)} does not change the outputs of {_names(receivers)}, so no path between them "
            "can be measured",
            "choose receivers in a later layer than the senders, and a donor (the inputs whose head outputs are put "
            "in) that differs from the inputs",
        )
    with Gates(sites, closed_gates(sites, receivers), received):
        return model(*inputs)


def merged(sites: Sites, own: Outputs, other: Outputs, heads: Iterable[HeadId]) -> dict[HeadSite, Tensor]:
    """Return a copy of the head outputs `own` in which the outputs of `heads` are replaced by those in `other`."""
    values = {site: z.clone() for site, z in own.items()}
    for site, slots in sites.head_slots(heads).items():
        if other[site].shape[1:2] != own[site].shape[1:2]:
            raise InputError(
                f"the donor (the inputs whose head outputs are put in) has {other[site].shape[1]} positions at {site}, "
                f"but the inputs have {own[site].shape[1]}",
                "choose a donor of the same length",
            )
        values[site][..., list(slots), :] = other[site][..., list(slots), :].expand_as(
            values[site][..., list(slots), :]
        )
    return values


def _names(heads: Collection[HeadId]) -> str:
    return ", ".join(head.short for head in heads)
