"""Read from a model's weights what its heads match and copy, and which heads could read which others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from headcount.analysis.routes import Progress, Routes
from headcount.analysis.weights_circuits import HeadReading, read_heads
from headcount.analysis.weights_composition import Compositions, compositions
from headcount.analysis.weights_inputs import read_inputs, require_own
from headcount.analysis.weights_probes import Probes, probe
from headcount.errors import InputError
from headcount.experiments.models import OpenModel
from headcount.heads import HeadId
from headcount.limits import N_WEIGHTS
from headcount.results import Positive, Result


@dataclass(frozen=True)
class HeadWeights(Result):
    """What the weights of each head match and copy, how strongly heads read each other, and linear probes."""

    ROWS: ClassVar[tuple[str, ...]] = ("heads",)
    INDENT: ClassVar[int | None] = None
    name: str
    weights_sha256: str
    n: Positive
    """Number of examples on which the inputs of the heads were recorded."""
    norm: str
    """Where LayerNorm is in a block: `pre` (before attention) or `post` (after the sum with the residual stream)."""
    heads: tuple[HeadReading, ...]
    compositions: Compositions
    probes: Probes | None = None
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""


def weights(
    model: OpenModel,
    heads: Sequence[HeadId] = (),
    *,
    n: int = N_WEIGHTS,
    seed: int = 0,
    probes: bool = False,
    routes: Routes | None = None,
    progress: Progress | None = None,
) -> HeadWeights:
    """Read what the weights of the given heads (default: all heads) match and copy.

    With `probes`, linear probes also decode an event such as the carry from the residual stream. `routes` then gives
    the share of the event that each stream moves when patched.
    """
    inner = require_own(model)
    if not model.sites.heads:
        raise InputError(
            f"{model.label} has no heads, so there are no weights to read", "choose a model that still has heads"
        )
    inputs = read_inputs(model, n, seed=seed)
    return HeadWeights(
        name=model.name,
        weights_sha256=model.weights_sha256,
        n=len(next(iter(inputs.sites.values())).x),
        norm=inner.config.norm,
        heads=tuple(read_heads(model, heads or model.sites.heads, inputs)),
        compositions=compositions(model, seed=seed, progress=progress),
        probes=probe(model, routes, seed=seed) if probes else None,
    )
