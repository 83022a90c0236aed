"""Where does each head look? On one example, or on average over a held-out set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.heads import HeadSite
from headcount.results import Result
from headcount.runs.run import Run
from headcount.training.evaluation import evaluating, in_blocks, on_device

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class HeadPattern:
    """One head's attention weights, [query][key]."""

    head: str
    short: str
    weights: Matrix
    deviation: Matrix | None
    """Standard deviation over examples; None for a single example."""


@dataclass(frozen=True)
class SitePattern:
    """The heads of one attention block, and what stands on their axes."""

    site: str
    stack: str
    layer: int
    kind: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    heads: tuple[HeadPattern, ...]


@dataclass(frozen=True)
class AttentionPatterns(Result):
    """Every head of a model."""

    run: str
    model: str
    """The digest of the weights."""
    title: str
    n: int
    """Examples averaged over."""
    sites: tuple[SitePattern, ...]
    example: str | None = None
    said: str | None = None
    right: str | None = None
    probability: float | None = None
    """That the model gave to its whole answer."""


def patterns_on(run: Run, text: str) -> AttentionPatterns:
    """Every head on one example, while the model gives its own answer."""
    reply = run.ask(text)
    task = run.task
    source = tuple(task.tokens[token] for token in reply.source)
    fed = tuple(task.tokens[token] for token in reply.fed)
    said = reply.said[len(task.generation.given) :]
    steps = tuple(f"{heard} → {task.tokens[word]}" for heard, word in zip(fed, said, strict=True))
    shown, right = task.show_tokens(reply.said), task.show_tokens(reply.right)
    example = task.show(reply.example)
    verdict = "right" if shown == right else f"wrong, should be {right}"
    return AttentionPatterns(
        run=run.name,
        model=run.digest,
        title=f"{example} = {shown} ({verdict}; probability {reply.probability:.4f})",
        n=1,
        sites=_sites(run, {site: (w.numpy(), None) for site, w in reply.weights.items()}, source, fed, steps),
        example=example,
        said=shown,
        right=right,
        probability=reply.probability,
    )


def average_patterns(run: Run, split: str) -> AttentionPatterns:
    """Every head on average over a held-out set, by column; the right answers are fed."""
    task = run.task
    batch = task.encode(task.split(split))
    sums: dict[HeadSite, tuple[Tensor, Tensor]] = {}
    with evaluating(run.model) as device:
        for part in in_blocks(batch):
            weights: dict[HeadSite, Tensor] = {}
            run.model(*on_device(device, part.source, part.fed), weights=weights)
            for site, w in weights.items():
                w = w.cpu().double()
                first, second = sums.get(site, (torch.zeros(()), torch.zeros(())))
                sums[site] = first + w.sum(dim=0), second + (w * w).sum(dim=0)
    n = len(batch)
    moments = {
        site: ((first / n).numpy(), (second / n - (first / n) ** 2).clamp(min=0).sqrt().numpy())
        for site, (first, second) in sums.items()
    }
    asked = task.answer_positions[len(task.generation.given) :]
    return AttentionPatterns(
        run=run.name,
        model=run.digest,
        title=f"average over the {split} set (n = {n:,})",
        n=n,
        sites=_sites(
            run,
            moments,
            tuple(p.label for p in task.source_positions),
            tuple(p.label for p in task.fed_positions),
            tuple(f"→ {p.label}" for p in asked),
        ),
    )


def _sites(
    run: Run,
    moments: Mapping[HeadSite, tuple[NDArray[np.floating], NDArray[np.floating] | None]],
    source: tuple[str, ...],
    fed: tuple[str, ...],
    steps: tuple[str, ...],
) -> tuple[SitePattern, ...]:
    found = []
    for site in run.model.sites:
        mean, deviation = moments[site]
        heads = tuple(
            HeadPattern(
                head=str(site.head(i)),
                short=site.head(i).short,
                weights=_matrix(mean[i]),
                deviation=None if deviation is None else _matrix(deviation[i]),
            )
            for i in range(run.config.model.n_heads)
        )
        queries = source if site.stack == "encoder" else steps
        keys = fed if (site.stack, site.kind) == ("decoder", "self") else source
        found.append(SitePattern(str(site), site.stack, site.layer, site.kind, queries, keys, heads))
    return tuple(found)


def _matrix(array: NDArray[np.floating]) -> Matrix:
    return tuple(tuple(float(f"{value:.6g}") for value in row) for row in array)
