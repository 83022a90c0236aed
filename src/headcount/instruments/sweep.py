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
CHECKED = 4
"""Rows of a plain pass that quick passes are compared with."""


def sweep(
    recording: Recording, changes: Sequence[Change], *, batch_size: int = BATCH, checked: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """What the model says with each change, and which change it is; grouped by where passes begin to differ.

    If it is to be `checked`, one change of each group is compared with a plain pass over its first rows.
    """
    groups: dict[HeadSite, list[int]] = {}
    for i, change in enumerate(changes):
        groups.setdefault(recording.first_site(change.heads), []).append(i)
    at_once = max(1, batch_size // recording.n_rows)
    for group in groups.values():
        for start in range(0, len(group), at_once):
            part = group[start : start + at_once]
            output = first_tensor(recording.rerun([changes[i] for i in part]))
            said = output.unflatten(0, (len(part), recording.n_rows))
            if checked and start == 0:
                _compare(recording, changes[part[-1]], said[-1])
            yield from zip(part, said, strict=True)


def plain_pass(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], change: Change, base: Collection[HeadId] = ()
) -> Any:
    """The same by gates alone, from the first layer on."""
    with Gates(sites, silenced(sites, base)), Gates(sites, silenced(sites, change.heads), change.stands):
        return model(*inputs)


def check(recording: Recording, changes: Sequence[Change]) -> None:
    """Only compare: one change of each group with a plain pass."""
    for _ in sweep(recording, changes, checked=True):
        pass


def _compare(recording: Recording, change: Change, said: Tensor) -> None:
    """What was `said` must be what a plain pass over the first rows says."""
    inputs = [each[:CHECKED] for each in recording.inputs]
    stands = {site: stand if len(stand) == 1 else stand[:CHECKED] for site, stand in change.stands.items()}
    few = Change(change.heads, stands)
    try:
        slow = first_tensor(plain_pass(recording.model, recording.sites, inputs, few, recording.base))
    except RuntimeError as error:
        raise InstrumentError(
            f"a plain pass over {CHECKED} rows failed: {error}",
            "rows should come first in everything that the model is given",
        ) from error
    found = difference(said[:CHECKED], slow)
    if not found <= TOLERANCE:
        raise InstrumentError(
            f"a pass begun at {recording.first_site(change.heads)} differs from a whole one by {found:.1e} of the "
            "largest value",
            "the model's modules depend on more than what they are called with; please report this model",
        )
