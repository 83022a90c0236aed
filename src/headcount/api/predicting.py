"""One answer, and what becomes of it without some heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from headcount.api._run import AnyRun, loaded
from headcount.heads import HeadId
from headcount.instruments.gates import Gates, silenced
from headcount.instruments.proof import prove
from headcount.instruments.sites import Sites
from headcount.models.encoder_decoder import EncoderDecoder
from headcount.runs.asking import Reply
from headcount.runs.run import Run
from headcount.tasks.base import ClassTask, SequenceTask

PROVEN_ON = 4
"""Test examples that show that the gates act on the model."""


@dataclass(frozen=True)
class Changed:
    """One position of the output that is another without the heads."""

    position: str
    clean: str
    without: str


@dataclass(frozen=True)
class Predicted:
    """What a model outputs, and what it outputs with some heads ablated."""

    clean: Reply
    heads: tuple[HeadId, ...] = ()
    """Those whose outputs were set to 0 (zero ablation)."""
    without: Reply | None = None
    """With these heads ablated; None if none were named."""
    changed: tuple[Changed, ...] = ()
    n_sites: int = 0
    """Attention blocks at which the ablation was proven to act."""


def predict(run: AnyRun, text: str, without: Sequence[str | HeadId] = ()) -> Predicted:
    """The model's own answer; with `without`, also its answer while these heads are ablated, decoded for real."""
    run = loaded(run)
    heads = tuple(dict.fromkeys(run.find_head(head) for head in without))
    clean = run.ask(text, look=False)
    if not heads:
        return Predicted(clean)
    sites = Sites.of(run.model)
    proof = prove(run.model, sites, _inputs(run))
    with Gates(sites, silenced(sites, heads)):  # an error if no pass came through them
        ablated = run.ask(text, look=False)
    return Predicted(clean, heads, ablated, _changed(run, clean, ablated), len(proof))


def _inputs(run: Run) -> list[torch.Tensor]:
    """A few test examples as the model takes them."""
    few, device = run.task.split("test")[:PROVEN_ON], next(run.model.parameters()).device
    if isinstance(run.model, EncoderDecoder):
        batch = cast(SequenceTask, run.task).encode(few)
        return [torch.from_numpy(each).to(device) for each in (batch.source, batch.fed)]
    return [torch.from_numpy(cast(ClassTask, run.task).encode(few).source).to(device)]


def _changed(run: Run, clean: Reply, ablated: Reply) -> tuple[Changed, ...]:
    """Output positions that differ; a classifier has one."""
    if not isinstance(run.model, EncoderDecoder):
        return (Changed("class", clean.said, ablated.said),) if clean.said != ablated.said else ()
    task = cast(SequenceTask, run.task)
    positions = task.answer_positions[len(task.generation.given) :]
    both = zip(positions, clean.spoken, ablated.spoken, strict=True)
    return tuple(Changed(position.label, one, other) for position, one, other in both if one != other)
