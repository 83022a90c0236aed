"""Does a head attend elsewhere when something that matters changes, and nothing else?

The task offers examples in threes that differ in one token (`Contrast` in tasks/base.py): a step beside a border, and a
step across it. At the queries of the column that it matters to, each step moves attention by a total variation
distance, 1/2 sum_k |w_k - w'_k| (0: not at all; 1: to other keys altogether), and so much mass onto each target. What
the second step does beyond the first, mean over examples with its standard error, is the head's sensitivity: a head
that attends elsewhere for any other digit has none.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
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
    q, k = np.arange(weights[0].shape[2])[:, None], np.arange(weights[0].shape[3])[None]
    measures: dict[str, list[ByHead]] = {}
    for before, after in pairwise(weights):
        change = after - before
        measures.setdefault(MOVED, []).append(_over_queries(np.abs(change).sum(axis=-1) / 2, queries_EQ))
        for name, target in targets.targets.items():
            on = target(q, k)
            gained = _over_queries((change * on).sum(axis=-1), queries_EQ & on.any(axis=-1))
            measures.setdefault(name, []).append(gained)
    for head in range(weights[0].shape[1]):
        yield tuple(
            shift
            for name, (beside, across) in measures.items()
            for shift in _shifts(name, beside[:, head], across[:, head], columns)
        )


def _over_queries(values_EHQ: NDArray[np.float64], queries_EQ: NDArray[np.bool_]) -> ByHead:
    n_E1 = queries_EQ.sum(axis=1)[:, None]
    sums: ByHead = (values_EHQ * queries_EQ[:, None]).sum(axis=-1)
    return np.divide(sums, n_E1, out=np.full_like(sums, np.nan), where=n_E1 > 0)


def _shifts(
    name: str, beside: NDArray[np.float64], across: NDArray[np.float64], columns: NDArray[np.str_]
) -> Iterator[Shift]:
    """Over all columns, and in each."""
    measured = ~np.isnan(across)
    for column in (ALL, *dict.fromkeys(columns.tolist())):
        rows = measured & ((columns == column) | (column == ALL))
        n = int(rows.sum())
        if n > 1:
            difference = across[rows] - beside[rows]
            se, means = difference.std(ddof=1) / np.sqrt(n), (each[rows].mean() for each in (beside, across))
            first, second, mean, error = (float(f"{number:.6g}") for number in (*means, difference.mean(), se))
            yield Shift(name, column, first, second, mean, error, n)
