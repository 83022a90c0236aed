"""Many ablations as one job: rows of different ablations share a batch, and what they share is computed once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from headcount.errors import InstrumentError
from headcount.heads import HeadId, HeadSite
from headcount.instruments.gates import Gates, silenced
from headcount.instruments.proof import TOLERANCE, difference, first_tensor
from headcount.instruments.recording import Change, Recording
from headcount.instruments.sites import Sites

BATCH = 512
"""Rows in one forward pass."""


def sweep(recording: Recording, changes: Sequence[Change], *, batch_size: int = BATCH) -> Iterator[tuple[int, Tensor]]:
    """What the model says with each change, and which change it is; grouped by where passes begin to differ."""
    groups: dict[HeadSite, list[int]] = {}
    for i, change in enumerate(changes):
        groups.setdefault(recording.first_site(change.heads), []).append(i)
    at_once = max(1, batch_size // recording.n_rows)
    for group in groups.values():
        for start in range(0, len(group), at_once):
            part = group[start : start + at_once]
            output = first_tensor(recording.rerun([changes[i] for i in part]))
            yield from zip(part, output.unflatten(0, (len(part), recording.n_rows)), strict=True)


def plain_pass(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], change: Change, base: Collection[HeadId] = ()
) -> Any:
    """The same by gates alone, from the first layer on."""
    with Gates(sites, silenced(sites, (*change.heads, *base)), change.stands):
        return model(*inputs)


def check(recording: Recording, changes: Sequence[Change]) -> float:
    """Compare one change of each group with a plain pass; the largest difference, as a share of the largest value."""
    picked = {recording.first_site(change.heads): change for change in changes}
    worst = 0.0
    for site, change in picked.items():
        quick = first_tensor(recording.rerun([change, change]))[recording.n_rows :]
        slow = first_tensor(plain_pass(recording.model, recording.sites, recording.inputs, change, recording.base))
        found = difference(quick, slow)
        if not found <= TOLERANCE:
            raise InstrumentError(
                f"a pass begun at {site} differs from a whole one by {found:.1e} of the largest value",
                "the model's modules depend on more than what they are called with; please report this model",
            )
        worst = max(worst, found)
    return worst
