"""How often do heads of models that learned nothing get a label, with and without calibrated thresholds ("bars")?

The first rows test the bars alone. A pool of models has the shape of a sample, and their weights are random, or are the
sample's own in shuffled order. The pool is split many times into models that calibrate the bars and models that are
compared with the bars. The promise is kept if the share of models that pass any bar is, on average over splits, the
stated rate. The rate of a single calibration varies, and the row gives that spread.

Further rows label a few untrained models as `headcount heads --stats` does, with and without bars. The samples
themselves are labelled too, to show that trained models do get labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks import Ratio
from headcount.analysis.attention_contrasts import MOVED, contrast_of, shifts
from headcount.analysis.attention_measures import control_inputs
from headcount.analysis.head_labels import ALL, CONTROLS, N_CONTROLS, RANK, Values, bars_of, label, untrained, values_of
from headcount.analysis.specialisation import specialise
from headcount.runs.run import Run, load
from headcount.tasks.base import Contrast

SAMPLES = ("sample:addition", "sample:sortedness")
N_POOL, N_SPLITS, N_WHOLE, FIRST = 360, 200, 20, 1000
"""Numbers of models in a pool, of its splits and of models that are labelled; and the first seed of the latter."""
N_MOVED = 10
"""Number of models of each kind on which a contrast is measured."""
RATE = RANK / (N_CONTROLS + 1)


def measure() -> Iterator[Ratio]:
    """Measure the rates for each sample's shape and each kind of model without training."""
    for name in SAMPLES:
        sample = load(name)
        for kind, make in CONTROLS.items():
            inputs = control_inputs(sample)
            pool = [values_of(make(sample, i), inputs) for i in range(N_POOL)]
            yield _bars(f"{kind} models of the shape of {name} that pass any bar", pool)
        yield _whole(f"untrained models of the shape of {name}", [untrained(sample, FIRST + i) for i in range(N_WHOLE)])
        yield _whole(f"{name} itself", [sample])
        yield from _sensitivity(name, sample)


def _bars(question: str, pool: Sequence[Values]) -> Ratio:
    """Return the share of models that pass any bar, over many splits of the pool."""
    rng, shares = np.random.default_rng(0), []
    for _ in range(N_SPLITS):
        order = rng.permutation(len(pool))
        bars = bars_of([pool[i] for i in order[:N_CONTROLS]])
        passed = [any((pool[i][cell] >= bar).any() for cell, bar in bars.items()) for i in order[N_CONTROLS:]]
        shares.append(np.mean(passed))
    low, high = np.quantile(shares, [0.05, 0.95])
    rate = float(np.mean(shares))
    # Splits share one pool, so the number of models in the pool limits the precision of their mean.
    error = float(np.sqrt(RATE * (1 - RATE) / len(pool)))
    question += f" (pool of {len(pool)}, {N_SPLITS} splits)"
    ours = f"{100 * rate:.1f} ± {196 * error:.1f} %"  # half the width of the 95 % CI
    other = f"{100 * low:.1f} to {100 * high:.1f} % in 9 of 10 calibrations"
    return Ratio(question, ours, other, rate, f"{100 * RATE:.2g} %", rate <= RATE + 2 * error)


def _whole(question: str, runs: Sequence[Run]) -> Ratio:
    """Count the heads with a label in these models, with and without bars."""
    results = [specialise(run) for run in runs]
    with_bars = [[bool(head.label) for head in result.heads] for result in results]
    without_bars = [[bool(label(head.measures, "")) for head in result.heads] for result in results]
    question += f": heads with a label, and models with any (n = {len(results)})"
    share = sum(map(sum, with_bars)) / sum(map(len, with_bars))
    return Ratio(question, _counts(with_bars), f"{_counts(without_bars)} without bars", share, "none", True)


def _sensitivity(name: str, sample: Run) -> Iterator[Ratio]:
    """Compare how far the contrast moves its most affected head in the sample and in models without training."""
    if (contrast := contrast_of(sample)) is None:
        return
    largest = {
        kind: [_most_moved(make(sample, i), contrast) for i in range(N_MOVED)] for kind, make in CONTROLS.items()
    }
    own, most = _most_moved(sample, contrast), max(max(sizes) for sizes in largest.values())
    question = f"{contrast.name} of the head that has most (n = {N_MOVED} models of each kind)"
    others = ", ".join(f"{min(sizes):.3f} to {max(sizes):.3f} {kind}" for kind, sizes in largest.items())
    yield Ratio(question, f"{own:.3f} in {name}", others, own / most, "none", True)


def _most_moved(run: Run, contrast: Contrast) -> float:
    """Return the largest shift of attention that the contrast causes in a head of a model."""
    head_shifts = (shift for heads in shifts(run, contrast).values() for head in heads for shift in head)
    return max(abs(shift.mean) for shift in head_shifts if (shift.measure, shift.column) == (MOVED, ALL))


def _counts(labelled: Sequence[Sequence[bool]]) -> str:
    heads, models = sum(map(sum, labelled)), sum(map(any, labelled))
    return f"{heads} of {sum(map(len, labelled))} heads, {models} of {len(labelled)} models"
