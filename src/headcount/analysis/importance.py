"""Gradient importance: how fast the loss would rise if a head's gate began to close.

    importance(h) = mean over examples of | dL / dg_h |  at g = 1        (Michel et al. 2019, arXiv 1905.10650)

Michel et al. also divide it by the norm of its layer's, sqrt(sum of squares); both are given. One backward pass for
all heads: cheap, and often taken for the effect of removing them. So its agreement with what silencing really does
stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headcount.data.dataset import EvalBatch
from headcount.experiments.experiment import Experiment
from headcount.heads import HeadSite
from headcount.hooks.gates import Gates, eval_mode
from headcount.hooks.proof import first_tensor
from headcount.seeds import stream
from headcount.stats import RankAgreement, rank_agreement


@dataclass(frozen=True)
class Importance:
    """One head's gradient."""

    head: str
    importance: float
    se: float | None
    """Standard error over examples; None for a single one."""
    normalised: float
    """Divided by the norm of all heads of its site."""


@dataclass(frozen=True)
class Agreement:
    """Whether gradients rank the heads as silencing them does (Spearman)."""

    replacement: str
    normalised: bool
    """Whether gradients were divided by their site's norm."""
    n_heads: int
    found: RankAgreement | None
    """None if all heads have the same drop."""


def importances(experiment: Experiment) -> tuple[Importance, ...]:
    """Every head; nothing for a metric that no gradient can be taken of."""
    parts: dict[HeadSite, list[np.ndarray[Any, Any]]] = {}
    with eval_mode(experiment.model), torch.enable_grad():
        for batch in experiment.batches:
            found = _gradients(experiment, batch)
            if found is None:
                return ()
            for site, gradient in found.items():
                parts.setdefault(site, []).append(gradient)
    importances = []
    for site, gradients in parts.items():
        size_NH = np.abs(np.concatenate(gradients))
        means = size_NH.mean(axis=0)
        norm = max(float(np.linalg.norm(means)), np.finfo(float).tiny)
        for i, head in enumerate(experiment.sites[site].heads):
            error = float(size_NH[:, i].std(ddof=1)) / math.sqrt(len(size_NH)) if len(size_NH) > 1 else None
            importances.append(Importance(str(head), float(means[i]), error, float(means[i]) / norm))
    return tuple(importances)


def _gradients(experiment: Experiment, batch: EvalBatch) -> dict[HeadSite, Any] | None:
    """dL/dg of every row and head, [row, head] by site."""
    if batch.loss is None:
        return None
    n = batch.n_inputs
    gates = {site: torch.ones(n, len(experiment.sites[site].heads), requires_grad=True) for site in experiment.sites}
    with Gates(experiment.sites, gates):
        loss = batch.loss(first_tensor(experiment.model(*batch.inputs)))
    if not loss.requires_grad:
        return None
    found = torch.autograd.grad(loss.sum(), list(gates.values()))
    # The rows of one example close together.
    each = [gradient.unflatten(0, (len(batch.rows), -1)).sum(dim=1).cpu().double().numpy() for gradient in found]
    return dict(zip(gates, each, strict=True))


def agreements(
    importances: Sequence[Importance], effects: Sequence[Any], replacements: Sequence[str]
) -> tuple[Agreement, ...]:
    """Rank agreement with each kind of ablation, as gradients are and normalised."""
    found = []
    for replacement in replacements if importances else ():
        drop = {effect.head: effect.drop for effect in effects if effect.replacement == replacement}
        drops = np.array([drop[each.head] for each in importances])
        for normalised in (False, True):
            sizes = np.array([each.normalised if normalised else each.importance for each in importances])
            agreement = rank_agreement(sizes, drops, stream(0, f"agreement {replacement}"))
            found.append(Agreement(replacement, normalised, len(drops), agreement))
    return tuple(found)
