"""Does a head attend elsewhere when something that matters changes, and nothing else?

The task offers examples in threes that differ in one token (`Contrast` in tasks/base.py): a step beside a border, and a
step across it. At the queries of the column that it matters to, each step moves attention by a total variation
distance, 1/2 sum_k |w_k - w'_k| (0: not at all; 1: to other keys altogether), and so much mass onto each target. What
the second step does beyond the first, mean over examples with its standard error, is the head's sensitivity: a head
that attends elsewhere for any other digit has none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from headcount.analysis.labels import ALL
from headcount.experiments.task_attention import SiteWeights, TaskAttention, task_weights
from headcount.heads import HeadSite
from headcount.results import Contradiction, Positive, Size
from headcount.seeds import stream
from headcount.tasks.base import Contrast, Task

N_EACH = 200
"""Examples for each column."""
MOVED = "attention moved"

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
    se: Size
    n: Positive
    """Examples: threes."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the sensitivity with the two steps that it is the difference of."""
        if abs(self.across - self.beside - self.mean) > 1e-4:  # each is rounded
            yield "mean", f"across - beside, {self.across - self.beside}"

    def half(self, confidence: float = 0.95) -> float:
        """Half of the interval around the mean (Student's t)."""
        return float(stdtrit(self.n - 1, 0.5 + confidence / 2)) * self.se


def contrast_of(model: TaskAttention) -> Contrast | None:
    """The examples of the task's contrast, if it has one and they are there."""
    found = model.task.contrast(stream(0, "contrast"), N_EACH)
    return found if found is not None and len(found.columns) > 1 else None


def shifts(
    model: TaskAttention, contrast: Contrast, *, norm_weighted: bool = False
) -> dict[HeadSite, list[tuple[Shift, ...]]]:
    """Every measure of every head, site by site."""
    found = [task_weights(model, examples, norm_weighted=norm_weighted) for examples in contrast.steps]
    return {
        site: list(_of_site(model.task, site, contrast, [weights[site] for weights in found])) for site in model.sites
    }


def _of_site(
    task: Task, site: HeadSite, contrast: Contrast, steps: Sequence[SiteWeights]
) -> Iterator[tuple[Shift, ...]]:
    targets = task.attention_targets(site.stack, site.kind, contrast.steps[1])
    columns = np.array(contrast.columns)
    places = [targets.columns.index(name) if name in targets.columns else len(targets.columns) for name in columns]
    queries_EQ = targets.query_column[None] == np.array(places)[:, None]
    queries_EQ &= np.logical_and.reduce([step.present for step in steps])  # what one of them lacks is not compared
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
