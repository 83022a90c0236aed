"""How much attention to a target is more than chance? As much as models that learned nothing hardly ever show.

Controls of the model's own shape (controls.py) are measured on some of the same examples. A cell is a target, overall
or in one column, at one kind of site. Chance is wide in some cells (in the first columns of the decoder two keys are in
sight) and narrow in others, so values x, which end at 1, are taken as -log(1 - x) and standardised by the controls' own
mean and deviation in each cell, each control by those of the others. The largest of a control, over all its heads and
cells, is what it would take to label none of its heads; the bar is the `RANK`-th largest of `N_CONTROLS` (Westfall and
Young 1993, "Resampling-based multiple testing"). A further control passes it, in any head and cell, with a chance of
RANK / (N_CONTROLS + 1) = 5 %: columns, targets and heads are all in that one rate. It is an average over calibrations:
with 59 controls, that of a single one is mostly between 1 and 10 % (`python -m benchmarks labels`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.analysis.head_measures import EvalInputs, Measured, measure
from headcount.analysis.labels import ALL, ENTROPY_SHARE, above_even
from headcount.runs.run import Run, build
from headcount.seeds import integer
from headcount.training.device import workers

N_CONTROLS, RANK = 59, 3
"""Of each kind; and which of their largest values, from above, is the bar."""
LEAST_DEVIATION, LEAST_REST = 1e-6, 1e-9
"""Where controls do not differ at all, rounding would; and what is left of 1 at least."""

Cell = tuple[str, str, str, str]
"""The stack and kind of a site, a measure, and a column or `all`."""
Values = Mapping[Cell, NDArray[np.float64]]
"""Of one model: a value for each head."""
Numbers = NDArray[np.float64]
"""[control, cell]."""


@dataclass(frozen=True)
class Bar:
    """What a head has to reach in one cell: mass above even attention, or a share of the largest entropy."""

    stack: str
    kind: str
    measure: str
    column: str
    least: float


@dataclass(frozen=True)
class Calibration:
    """The bars, and what they come from."""

    controls: tuple[str, ...]
    """Kinds of models that learned nothing; the bar is the higher one."""
    n_models: int
    """Of each kind."""
    n_examples: int
    error_rate: float
    """The share of such models that would get any label at all, on average over calibrations."""
    bars: tuple[Bar, ...]

    def at(self, stack: str, kind: str) -> dict[tuple[str, str], float]:
        """By measure and column."""
        return {(bar.measure, bar.column): bar.least for bar in self.bars if (bar.stack, bar.kind) == (stack, kind)}

    @property
    def words(self) -> str:
        """For people."""
        kinds = " and ".join(self.controls)
        return (
            f"calibrated on {self.n_models} {kinds} models each, of this shape, on {self.n_examples:,} examples: on "
            f"average at most {100 * self.error_rate:.2g} % of such models get any label"
        )


def calibrate(
    run: Run,
    inputs_seen: EvalInputs,
    n_models: int = N_CONTROLS,
    rank: int = RANK,
    *,
    norm_weighted: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """The bars for this model on these examples."""
    bars: dict[Cell, float] = {}
    for done, make in enumerate(CONTROLS.values()):
        found = list[Values]()
        with workers(run.model) as compute:
            # Models are made one after the other, for their weights come from PyTorch's one stream.
            made = (make(run, i) for i in range(n_models))
            for each in compute(lambda control: values_of(control, inputs_seen, norm_weighted=norm_weighted), made):
                found.append(each)
                if progress:
                    progress(done * n_models + len(found), len(CONTROLS) * n_models)
        for cell, least in bars_of(found, rank).items():
            bars[cell] = max(least, bars.get(cell, -np.inf))
    told = tuple(Bar(*cell, float(f"{least:.6g}")) for cell, least in bars.items())
    return Calibration(tuple(CONTROLS), n_models, len(inputs_seen), rank / (n_models + 1), told)


def values_of(run: Run, inputs_seen: EvalInputs, *, norm_weighted: bool = False) -> Values:
    """What can become a label, in every cell: of each head, its mean over the examples."""
    found: dict[Cell, list[float]] = {}
    for site, measures in measure(run, inputs_seen, norm_weighted=norm_weighted).items():
        columns = run.task.attention_targets(site.stack, site.kind, inputs_seen.examples[:1]).columns
        for name, each in measures.items():
            if each.even is None and name != ENTROPY_SHARE:
                continue
            for column, means in _means(each, columns if each.even is not None else ()).items():
                found.setdefault((site.stack, site.kind, name, column), []).extend(means)
    return {cell: np.array(values) for cell, values in found.items()}


def _means(measured: Measured, columns: Sequence[str]) -> dict[str, list[float]]:
    sums, counts, found = measured.sums.sum(axis=0), measured.counts.sum(axis=0), {}
    cases = {ALL: slice(None)} | {name: slice(i, i + 1) for i, name in enumerate(columns)}
    for column, part in cases.items():
        if not (n := counts[part].sum()):
            continue
        means = sums[:, part].sum(axis=1) / n
        if measured.even is not None:
            means = above_even(means, measured.even[:, part].sum() / n)
        found[column] = means.tolist()
    return found


def bars_of(found: Sequence[Values], rank: int = RANK) -> dict[Cell, float]:
    """What all but a few of these models stay below in every cell.

    Each control is standardised by the others: by itself, too, its largest values would look smaller.
    """
    cells, found = list(found[0]), [{cell: _stretched(x) for cell, x in each.items()} for each in found]
    n_heads = np.array([len(found[0][cell]) for cell in cells])
    most, sums, squares = (
        np.array([[how(each[cell]) for cell in cells] for each in found])
        for how in (np.max, np.sum, lambda values: np.square(values).sum())
    )
    means, deviations = _moments(sums.sum(axis=0) - sums, squares.sum(axis=0) - squares, n_heads * (len(found) - 1))
    largest = np.sort(((most - means) / deviations).max(axis=1))
    mean, deviation = _moments(sums.sum(axis=0), squares.sum(axis=0), n_heads * len(found))
    return dict(zip(cells, (1 - np.exp(-mean - largest[-rank] * deviation)).tolist(), strict=True))


def _stretched(values: NDArray[np.float64]) -> NDArray[np.float64]:
    sample_of_length: NDArray[np.float64] = -np.log(np.maximum(1 - values, LEAST_REST))
    return sample_of_length


def _moments(sums: Numbers, squares: Numbers, n: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
    mean = sums / n
    return mean, np.sqrt(np.maximum(squares / n - mean**2, LEAST_DEVIATION**2))


# --- controls ---------------------------------------------------------------------------------------------------------
# What would a model show that has learned nothing? Two kinds of control, both of the model's own shape.
#
# untrained   fresh weights, as training begins with
# shuffled    the model's own weights, the entries of each matrix in random order: as large as what was learned, so
# that heads are as sharp, but without its structure


def untrained(run: Run, i: int) -> Run:
    """The i-th fresh model of this shape, on the same task."""
    config = replace(run.config, seed=integer(0, "untrained control", i))
    _, model = build(config)
    return replace(run, config=config, model=model.to(next(run.model.parameters()).device).eval())


def shuffled(run: Run, i: int) -> Run:
    """The i-th order of this model's own weights; biases and scales, which are vectors, stay."""
    order, model = torch.Generator().manual_seed(integer(0, "shuffled control", i)), copy.deepcopy(run.model)
    with torch.no_grad():
        for matrix in (each for each in model.parameters() if each.ndim > 1):
            entries = matrix.flatten()[torch.randperm(matrix.numel(), generator=order).to(matrix.device)]
            matrix.copy_(entries.reshape(matrix.shape))
    return replace(run, model=model.eval())


CONTROLS: dict[str, Callable[[Run, int], Run]] = {"untrained": untrained, "shuffled": shuffled}
