"""Predict the answer to one example, also with some heads ablated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headcount.api.opening import AnyModel, open_model
from headcount.heads import HeadId
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.intervention_proof import prove
from headcount.limits import PROVEN_ON
from headcount.runs.run import Prediction


@dataclass(frozen=True)
class Change:
    """One position of an answer that changes when heads are ablated: its name, and its token before and after."""

    position: str
    clean: str
    without: str


@dataclass(frozen=True)
class PredictionPair:
    """A model's answer to one example, and its answer with some heads ablated."""

    clean: Prediction
    heads: tuple[HeadId, ...] = ()
    """Heads whose outputs were set to zero."""
    without: Prediction | None = None
    """The answer with these heads ablated, or None if no heads were named."""
    changes: tuple[Change, ...] = ()
    n_sites: int = 0
    """Number of attention blocks at which the ablation was verified to act."""


def predict(
    model: AnyModel, text: str, without: Sequence[str | HeadId] = (), *, run_adapter: bool = False
) -> PredictionPair:
    """Return a model's answer to one example, with and without some heads.

    `without` lists heads to set to zero; the model then decodes its answer again. `run_adapter` allows running the
    adapter (the user's Python file) that the folder of a pruned model names. The result holds both answers and the
    positions that changed.

    >>> pair = predict("sample:addition", "999+100", without=["E0H2"])
    >>> pair.clean.predicted, pair.without.predicted
    ('1099', '1199')
    """
    opened = open_model(model, run_adapter=run_adapter)
    heads = tuple(dict.fromkeys(opened.find_head(head) for head in without))
    clean = opened.predict(text)
    if not heads:
        return PredictionPair(clean)
    proof = prove(opened.module, opened.sites, opened.some_inputs(PROVEN_ON))
    with Gates(opened.sites, closed_gates(opened.sites, heads)):  # raises an error if no pass reached them
        ablated = opened.predict(text)
    pairs = list(zip(clean.positions, clean.output_tokens, ablated.output_tokens, strict=False))
    pairs = pairs or [("class", clean.predicted, ablated.predicted)]
    changes = tuple(Change(position, one, other) for position, one, other in pairs if one != other)
    return PredictionPair(clean, heads, ablated, changes, len(proof))
