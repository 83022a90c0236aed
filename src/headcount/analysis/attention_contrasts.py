"""Does a head attend elsewhere when a fact changes that matters for the answer, such as an incoming carry?

The task provides triples of examples that differ in one token (`Contrast` in tasks/base.py). From the first to the
second example, the token changes but the fact stays ("beside"). From the second to the third, the token changes as
much, and the fact changes too ("across"). Two measures of attention are taken for each step, at the queries of the
column (such as the 10s digit) that the fact matters to:

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
"""Number of triples (three examples that differ in one token) for each column of the answer, such as the 10s."""
MOVED = "attention moved"

ByHead = NDArray[np.float64]
"""An array [example, head]; NaN where the attention block has no query about the example's column (such as the 10s)."""


@dataclass(frozen=True)
class ContrastShift:
    """How much more one head's attention changes when a fact changes (such as a carry) than when only a token does."""

    measure: str
    """What is measured: `attention moved` (total variation distance), or the gain in attention of a kind of key."""
    column: str
    """Column of the answer that the queries belong to, such as `10s`, or `all`."""
    beside: float
    """Mean change of the measure when the token changes but the fact (such as a carry) stays."""
    across: float
    """Mean change of the measure when both the token and the fact (such as a carry) change."""
    mean: float
    """Sensitivity of the head to the fact: across - beside."""
    se: Size
    """Standard error of the mean over triples of examples."""
    n: Positive
    """Number of triples (sets of three examples) that the mean is taken over."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if `mean` is not `across` minus `beside`."""
        if abs(self.across - self.beside - self.mean) > 1e-4:  # all three are rounded
            yield "mean", f"{self.across - self.beside}, which is across - beside"

    def half(self, confidence: float = 0.95) -> float:
        """Return half the width of the confidence interval of `mean` (Student's t over triples of examples)."""
        return float(stdtrit(self.n - 1, 0.5 + confidence / 2)) * self.se


def contrast_of(model: TaskAttention) -> Contrast | None:
    """Return triples of examples in which one fact changes (such as a carry), as the task provides them.

    Return None if the task provides none, or fewer than two.
    """
    contrast = model.task.contrast(stream(0, "contrast"), N_PER_COLUMN)
    return contrast if contrast is not None and len(contrast.columns) > 1 else None


def shifts(
    model: TaskAttention, contrast: Contrast, *, norm_weighted: bool = False
) -> dict[HeadSite, list[tuple[ContrastShift, ...]]]:
    """Return how every head's attention reacts to the fact that changes in the triples of examples.

    The keys are attention blocks, and each value has one tuple of results per head.
    """
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
    """Yield how one head's attention, by one measure, reacts to a fact such as a carry: overall and for each column.

    A column is a digit of the answer, such as the 10s. `beside` and `across` are the changes per triple of examples
    without and with a change of the fact.
    """
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
