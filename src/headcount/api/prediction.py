"""One answer, and what becomes of it without some heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headcount.api.opening import AnyModel, open_model
from headcount.heads import HeadId
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.proof import prove
from headcount.runs.run import Prediction

PROVEN_ON = 4
"""Test examples that show that the gates act on the model."""


@dataclass(frozen=True)
class Change:
    """One position of the output that is another without the heads."""

    position: str
    clean: str
    without: str


@dataclass(frozen=True)
class PredictionPair:
    """What a model outputs, and what it outputs with some heads ablated."""

    clean: Prediction
    heads: tuple[HeadId, ...] = ()
    """Those whose outputs were set to 0 (zero ablation)."""
    without: Prediction | None = None
    """With these heads ablated; None if none were named."""
    changes: tuple[Change, ...] = ()
    n_sites: int = 0
    """Attention blocks at which the ablation was proven to act."""


def predict(
    model: AnyModel, text: str, without: Sequence[str | HeadId] = (), *, run_adapter: bool = False
) -> PredictionPair:
    """The model's own answer; with `without`, also its answer while these heads are ablated, decoded for real."""
    opened = open_model(model, run_adapter=run_adapter)
    heads = tuple(dict.fromkeys(opened.find_head(head) for head in without))
    clean = opened.predict(text)
    if not heads:
        return PredictionPair(clean)
    proof = prove(opened.module, opened.sites, opened.some_inputs(PROVEN_ON))
    with Gates(opened.sites, closed_gates(opened.sites, heads)):  # an error if no pass came through them
        ablated = opened.predict(text)
    pairs = list(zip(clean.positions, clean.output_tokens, ablated.output_tokens, strict=False))
    pairs = pairs or [("class", clean.predicted, ablated.predicted)]
    changes = tuple(Change(position, one, other) for position, one, other in pairs if one != other)
    return PredictionPair(clean, heads, ablated, changes, len(proof))
