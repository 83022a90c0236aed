"""Does a head look elsewhere when something that matters changes, and nothing else?

The task offers examples in threes that differ in one token (`Contrast` in tasks/base.py): a step beside a border, and a
step across it. At the queries of the column that it matters to, each step moves attention by a total variation
distance, 1/2 sum_k |w_k - w'_k| (0: not at all; 1: to other keys altogether), and so much mass onto each target. What
the second step does beyond the first, mean over examples with its standard error, is the head's sensitivity: a head
that looks elsewhere for any other digit has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headcount.analysis.head_measures import ValueNorms
from headcount.analysis.labels import ALL
from headcount.heads import HeadSite
from headcount.hooks.gates import eval_mode
from headcount.models.attention import AttentionCache
from headcount.runs.run import Run
from headcount.seeds import stream
from headcount.tasks.base import Contrast, Examples, SequenceTask
from headcount.training.evaluation import BLOCK, on_device

N_EACH = 200
"""Examples for each column."""
MOVED = "attention moved"

Weights = NDArray[np.float64]
"""[example, head, query, key]."""
Numbers = NDArray[np.float64]
ByHead = NDArray[np.float64]
"""[example, head]; NaN where the site has no query about the example's column."""


@dataclass(frozen=True)
class Shift:
    """What two steps do to one head, mean over examples."""

    measure: str
    """`attention moved` (total variation) or a target, whose mass grows by this."""
    column: str
    """Whose queries; or `all`."""
    beside: float
    """By the step beside the border."""
    across: float
    """By the step across it."""
    mean: float
    """The difference of the two: the sensitivity."""
    se: float
    n: int
    """Examples: threes."""


def contrast_of(run: Run) -> Contrast | None:
    """The examples of the task's contrast, if it has one and they are there."""
    found = run.task.contrast(stream(0, "contrast"), N_EACH)
    return found if found is not None and len(found.columns) > 1 else None


def shifts(run: Run, contrast: Contrast, *, norm_weighted: bool = False) -> dict[HeadSite, list[tuple[Shift, ...]]]:
    """Every measure of every head, site by site."""
    weights = [_weights(run, examples, norm_weighted) for examples in contrast.steps]
    return {site: list(_of_site(run, site, contrast, [each[site] for each in weights])) for site in run.model.sites}


def _weights(run: Run, examples: Examples, norm_weighted: bool) -> Mapping[HeadSite, Weights]:
    batch, parts = cast(SequenceTask, run.task).encode(examples), dict[HeadSite, list[Weights]]()
    with (
        eval_mode(run.model, gradients=False) as device,
        ValueNorms(run.model) if norm_weighted else nullcontext() as norms,
    ):
        for i in range(0, len(batch), BLOCK):
            part, kept = batch[i : i + BLOCK], AttentionCache()
            run.model(*on_device(device, part.source, part.decoder_input), weights=kept)
            for site, weights in kept.items():
                shown = weights if norms is None else norms.share(site, weights)
                parts.setdefault(site, []).append(shown.cpu().double().numpy())
    return {site: np.concatenate(found) for site, found in parts.items()}


def _of_site(run: Run, site: HeadSite, contrast: Contrast, weights: Sequence[Weights]) -> Iterator[tuple[Shift, ...]]:
    targets = run.task.attention_targets(site.stack, site.kind, contrast.steps[1])
    columns = np.array(contrast.columns)
    places = [targets.columns.index(name) if name in targets.columns else len(targets.columns) for name in columns]
    queries_EQ = targets.query_column[None] == np.array(places)[:, None]
    before, between, after = weights
    measures = {MOVED: (_moved(before, between, queries_EQ), _moved(between, after, queries_EQ))}
    q, k = np.arange(before.shape[2])[:, None], np.arange(before.shape[3])[None]
    for name, target in targets.targets.items():
        on = target(q, k)
        measures[name] = _gained(before, between, on, queries_EQ), _gained(between, after, on, queries_EQ)
    for head in range(before.shape[1]):
        yield tuple(
            shift
            for name, (beside, across) in measures.items()
            for shift in _shifts(name, beside[:, head], across[:, head], columns)
        )


def _moved(one: Weights, other: Weights, queries: NDArray[np.bool_]) -> ByHead:
    return _over_queries(np.abs(other - one).sum(axis=-1) / 2, queries)


def _gained(one: Weights, other: Weights, on: NDArray[np.bool_], queries: NDArray[np.bool_]) -> ByHead:
    return _over_queries(((other - one) * on).sum(axis=-1), queries & (on.any(axis=-1)))


def _over_queries(values_EHQ: NDArray[np.float64], queries_EQ: NDArray[np.bool_]) -> ByHead:
    n_E1 = queries_EQ.sum(axis=1)[:, None]
    sums: ByHead = (values_EHQ * queries_EQ[:, None]).sum(axis=-1)
    return np.divide(sums, n_E1, out=np.full_like(sums, np.nan), where=n_E1 > 0)


def _shifts(name: str, beside: Numbers, across: Numbers, columns: NDArray[np.str_]) -> Iterator[Shift]:
    """Over all columns, and in each."""
    measured = ~np.isnan(across)
    for column in (ALL, *dict.fromkeys(columns.tolist())):
        rows = measured & ((columns == column) | (column == ALL))
        n = int(rows.sum())
        if n > 1:
            difference = across[rows] - beside[rows]
            yield Shift(
                measure=name,
                column=column,
                beside=_rounded(beside[rows].mean()),
                across=_rounded(across[rows].mean()),
                mean=_rounded(difference.mean()),
                se=_rounded(difference.std(ddof=1) / np.sqrt(n)),
                n=n,
            )


def _rounded(number: np.floating) -> float:
    return float(f"{number:.6g}")
