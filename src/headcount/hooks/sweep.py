"""Many ablations as one job: rows of different ablations share a batch, and what they share is computed once."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from headcount.errors import InstrumentError, ReplayError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.proof import difference, first_tensor, tolerance
from headcount.hooks.replay import BatchTiler, CachedPass, Intervention
from headcount.hooks.sites import Sites
from headcount.limits import BATCH

CHECKED = 2
"""BatchTiler of each group that are compared with a plain pass: two, so that rows which mix are found out."""
CACHED, FEWEST = 2**17, 256
"""Numbers of the residual stream that one pass should have at most (beyond that, a processor's cache is too small for
what layers make of them), and tokens that it should have at least (below that, matrix products are slow)."""


def sweep(
    recording: CachedPass, interventions: Sequence[Intervention], *, batch_size: int = BATCH, checked: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """What the model says with each change, and which change it is; grouped by where passes begin to differ.

    If it is to be `checked`, the first rows of one change of each group are compared with a plain pass in the end.
    """
    groups: dict[HeadSite, list[int]] = {}
    for i, intervention in enumerate(interventions):
        groups.setdefault(recording.first_site(intervention.heads), []).append(i)
    at_once = max(1, batch_size // recording.n_rows)
    samples: list[tuple[Intervention, Tensor]] = []
    for group in groups.values():
        for start in range(0, len(group), at_once):
            part = group[start : start + at_once]
            output = first_tensor(recording.replay([interventions[i] for i in part]))
            outputs = output.unflatten(0, (len(part), recording.n_rows))
            if checked and start == 0:
                samples.append((interventions[part[-1]], outputs[-1, :CHECKED].clone()))
            yield from zip(part, outputs, strict=True)
    most = max(2, batch_size // CHECKED)  # a single row would not show whether rows come first
    for start in range(0, len(samples), most):
        _compare(recording, samples[start : start + most])


def rows_at_once(sites: Sites, n_tokens: int) -> int:
    """How many rows of so many tokens a pass should have, by the width of the model's heads."""
    width = max(_width(site.projection, len(site.heads)) for site in sites.values())
    return max(2, CACHED // (n_tokens * width), FEWEST // n_tokens)


def _width(projection: nn.Module, n_heads: int) -> int:
    weight = getattr(projection, "weight", None)
    return max(weight.shape) if isinstance(weight, Tensor) and weight.dim() else n_heads


def plain_pass(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], intervention: Intervention, base: Collection[HeadId] = ()
) -> Any:
    """The same by gates alone, from the first layer on."""
    with (
        Gates(sites, closed_gates(sites, base)),
        Gates(sites, closed_gates(sites, intervention.heads), intervention.values),
    ):
        return model(*inputs)


def _compare(recording: CachedPass, samples: Sequence[tuple[Intervention, Tensor]]) -> None:
    """What was said must be what a plain pass says; these samples ride in one."""
    n, interventions = min(CHECKED, recording.n_rows), [intervention for intervention, _ in samples]
    rows = BatchTiler(n, len(samples))
    few = [each[:n] if len(each) == recording.n_rows else each for each in recording.inputs]
    inputs = [rows.repeat(each) for each in few]
    gates = recording.gates(interventions, recording.sites, n)
    try:
        with Gates(recording.sites, gates, recording.values(interventions, recording.sites, n)):
            slow = first_tensor(recording.model(*inputs)).unflatten(0, (len(samples), n))
    except RuntimeError as error:
        raise InstrumentError(
            f"a plain pass over {len(samples)} times {n} rows failed: {error}",
            "rows should come first in everything that the model is given",
        ) from error
    for (intervention, outputs), plain in zip(samples, slow, strict=True):
        found = difference(outputs, plain) if outputs.shape == plain.shape else math.inf
        if not found <= tolerance(outputs.dtype):
            first = recording.first_site(intervention.heads)
            raise ReplayError(
                f"a pass begun at {first} differs from a whole one by {found:.1e} of the largest value",
                "the model's modules depend on more than what they are called with",
            )
