"""Does a head change its attention when a fact changes that matters for the answer, such as an incoming carry?

The task provides triples of examples that differ in one token (`Contrast` in tasks/base.py). From the first to the
second example, the token changes but the fact stays ("beside"). From the second to the third, the fact changes too
("across"). At the queries of the column that the fact matters to, two things are measured for each step:

- how far attention moves, as a total variation distance: 1/2 sum_k |w_k - w'_k|, from 0 (unchanged) to 1 (disjoint);
- how much attention each target gains. A target is a kind of key that the task names, such as the operator.

The head's sensitivity is the change in the second step minus the change in the first, averaged over triples with a
standard error. A head that reacts to every change of a token has a sensitivity of zero.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from headcount.analysis.attention_measures import rounded
from headcount.analysis.head_labels import ALL
from headcount.experiments.task_attention import SiteWeights, TaskAttention, task_weights
from headcount.heads import HeadSite
from headcount.results import Contradiction, Positive, Size
from headcount.seeds import stream
from headcount.tasks.base import Contrast, Task

N_PER_COLUMN = 200
"""Number of triples (three examples that differ in one token) for each column of the answer."""
MOVED = "attention moved"

ByHead = NDArray[np.float64]
"""Values [example, head]; NaN where the attention block has no query about the example's column."""


@dataclass(frozen=True)
class ContrastShift:
    """Sensitivity of one head: how much more its attention changes when a fact changes than when only a token does."""

    measure: str
    """`attention moved` (total variation distance), or the target whose gain in attention is measured."""
    column: str
    """Column of the answer that the queries belong to, such as `10s`, or `all`."""
    beside: float
    """Mean change of the measure in the step that changes the token but keeps the fact."""
    across: float
    """Mean change of the measure in the step that changes the token and the fact."""
    mean: float
    """Sensitivity: across - beside."""
    se: Size
    """Standard error of the sensitivity over triples."""
    n: Positive
    """Number of triples (sets of three examples) in the mean."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the sensitivity is not `across` minus `beside`."""
        if abs(self.across - self.beside - self.mean) > 1e-4:  # all three are rounded
            yield "mean", f"across - beside, {self.across - self.beside}"

    def half(self, confidence: float = 0.95) -> float:
        """Return half the width of the confidence interval of the sensitivity (Student's t)."""
        return float(stdtrit(self.n - 1, 0.5 + confidence / 2)) * self.se


def contrast_of(model: TaskAttention) -> Contrast | None:
    """Return the triples of examples that the task provides; None if it provides none, or fewer than two."""
    contrast = model.task.contrast(stream(0, "contrast"), N_PER_COLUMN)
    return contrast if contrast is not None and len(contrast.columns) > 1 else None


def shifts(
    model: TaskAttention, contrast: Contrast, *, norm_weighted: bool = False
) -> dict[HeadSite, list[tuple[ContrastShift, ...]]]:
    """Return the sensitivity of every head to the contrast: for each attention block, one tuple of results per head."""
    steps = [task_weights(model, examples, norm_weighted=norm_weighted) for examples in contrast.steps]
    return {
        site: list(_site_shifts(model.task, site, contrast, [weights[site] for weights in steps]))
        for site in model.sites
    }


def _site_shifts(
    task: Task, site: HeadSite, contrast: Contrast, steps: Sequence[SiteWeights]
) -> Iterator[tuple[ContrastShift, ...]]:
    targets = task.attention_targets(site.stack, site.kind, contrast.steps[1])
    columns = np.array(contrast.columns)
    indices = [targets.columns.index(name) if name in targets.columns else len(targets.columns) for name in columns]
    queries_EQ = targets.query_column[None] == np.array(indices)[:, None]
    queries_EQ &= np.logical_and.reduce([step.present for step in steps])  # queries that all three examples have
    weights = [step.weights.double().numpy() for step in steps]
    q, k = np.arange(weights[0].shape[2])[:, None], np.arange(steps[0].n_task_keys)[None]
    measures: dict[str, list[ByHead]] = {}
    for before, after in pairwise(weights):
        change = after - before
        measures.setdefault(MOVED, []).append(_over_queries(np.abs(change).sum(axis=-1) / 2, queries_EQ))
        for name, target in targets.targets.items():
            on = target(q, k)
            gained = _over_queries((change[..., : k.size] * on).sum(axis=-1), queries_EQ & on.any(axis=-1))
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
) -> Iterator[ContrastShift]:
    """Yield the sensitivity of one head in one measure, for all columns together and for each column."""
    has_query = ~np.isnan(across)
    for column in (ALL, *dict.fromkeys(columns.tolist())):
        rows = has_query & ((columns == column) | (column == ALL))
        n = int(rows.sum())
        if n > 1:
            difference = across[rows] - beside[rows]
            se = difference.std(ddof=1) / np.sqrt(n)
            numbers = beside[rows].mean(), across[rows].mean(), difference.mean(), se
            first, second, mean, error = map(rounded, map(float, numbers))
            yield ContrastShift(name, column, first, second, mean, error, n)
