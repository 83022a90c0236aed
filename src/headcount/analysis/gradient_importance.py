"""Compute the gradient importance of heads: how fast the loss changes as a gate on a head's output begins to close.

    importance(h) = mean over examples of | dL / dg_h |  at g = 1        (Michel et al. 2019, arXiv 1905.10650)

A gate g scales a head's output. Michel et al. also divide the importance by the L2 norm over the heads of the layer.
Both versions are reported. One backward pass serves all heads, so importance is cheap and often used as a proxy for the
effect of ablation. The rank agreement between importance and the drop under ablation is therefore measured too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.experiments.experiment import Experiment
from headcount.heads import HeadSite
from headcount.hooks.gates import Gates, eval_mode
from headcount.hooks.intervention_proof import first_tensor
from headcount.results import Count, HeadName, Share, Size
from headcount.seeds import stream
from headcount.stats import RankAgreement, rank_agreement


@dataclass(frozen=True)
class Importance:
    """The gradient importance of one head: the mean |dL/dg|, where the gate g scales the head's output."""

    head: HeadName
    importance: Size
    se: Size | None
    """Standard error of the importance over examples; None for a single example."""
    normalised: Share
    """Importance divided by the L2 norm of the importances of all heads of the attention block."""


@dataclass(frozen=True)
class Agreement:
    """Spearman's rank correlation between the gradient importance of heads and their drop under one ablation."""

    replacement: str
    normalised: bool
    """Whether importances were divided by the L2 norm over the heads of their attention block."""
    n_heads: Count
    found: RankAgreement | None
    """The rank correlation; None if the drops or the importances of all heads are equal."""


def importances(experiment: Experiment) -> tuple[Importance, ...]:
    """Return the gradient importance of every head of a model; an empty tuple if the loss has no gradient."""
    sites, by_site = experiment.sites, dict[HeadSite, list[NDArray[np.float64]]]()
    with eval_mode(experiment.model), torch.enable_grad():
        for batch in experiment.batches:
            if batch.loss is None:
                return ()
            n = batch.n_inputs
            gates = {site: torch.ones(n, len(sites[site].heads), requires_grad=True) for site in sites}
            with Gates(sites, gates):
                loss = batch.loss(first_tensor(experiment.model(*batch.inputs)))
            if not loss.requires_grad:
                return ()
            for site, gradient in zip(gates, torch.autograd.grad(loss.sum(), list(gates.values())), strict=True):
                # An example may be several rows of inputs: sum their gradients.
                by_example = gradient.unflatten(0, (len(batch.rows), -1)).sum(dim=1).cpu().double().numpy()
                by_site.setdefault(site, []).append(by_example)
    rows = []
    for site, gradients in by_site.items():
        size_NH = np.abs(np.concatenate(gradients))
        means = size_NH.mean(axis=0)
        norm = max(float(np.linalg.norm(means)), np.finfo(float).tiny)
        for i, head in enumerate(sites[site].heads):
            error = float(size_NH[:, i].std(ddof=1)) / math.sqrt(len(size_NH)) if len(size_NH) > 1 else None
            rows.append(Importance(str(head), float(means[i]), error, float(means[i]) / norm))
    return tuple(rows)


def agreements(
    importances: Sequence[Importance], effects: Sequence[Any], replacements: Sequence[str]
) -> tuple[Agreement, ...]:
    """Return rank correlations of importance with the drops under each kind of ablation.

    For each kind, importance is taken as it is and divided by the norm over the heads of a block.
    """
    rows = []
    for replacement in replacements if importances else ():
        drop = {effect.head: effect.drop for effect in effects if effect.replacement == replacement}
        drops = np.array([drop[row.head] for row in importances])
        for normalised in (False, True):
            sizes = np.array([row.normalised if normalised else row.importance for row in importances])
            agreement = rank_agreement(sizes, drops, stream(0, f"agreement {replacement}"))
            rows.append(Agreement(replacement, normalised, len(drops), agreement))
    return tuple(rows)
