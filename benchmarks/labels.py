"""How often do heads of models that learned nothing get a label, and what would they get without calibration?

First the bars alone, of models of the samples' shapes (untrained, and the sample's own weights in shuffled order). A
pool of them is split many times into some that calibrate and others that are held against the bars. The promise is
kept if the share that passes any bar is, on average over splits, the stated rate; one calibration's own rate may be
more or less, and that spread is told. Then a few untrained models from end to end, as `headcount heads --stats` does
it, beside labels without bars; and the samples themselves, to show that labels are not merely rare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headcount.analysis.contrasts import MOVED, contrast_of, shifts
from headcount.analysis.head_measures import control_inputs
from headcount.analysis.labels import ALL, CONTROLS, N_CONTROLS, RANK, Values, bars_of, label, untrained, values_of
from headcount.analysis.specialisation import Specialisation, specialise
from headcount.runs.run import Run, load
from headcount.tasks.base import Contrast

SAMPLES = ("sample:addition", "sample:sortedness")
N_POOL, N_SPLITS, N_WHOLE, FIRST = 360, 200, 20, 1000
"""Models in a pool; its splits; models from end to end; and their first number, far from those that calibrate them."""
N_MOVED = 10
"""Models of each kind that a contrast is shown to."""
RATE = RANK / (N_CONTROLS + 1)


def measure() -> Iterator[dict[str, Any]]:
    """By shape and by kind of model."""
    for name in SAMPLES:
        sample = load(name)
        for kind, make in CONTROLS.items():
            inputs = control_inputs(sample)
            pool = [values_of(make(sample, i), inputs) for i in range(N_POOL)]
            yield _bars(f"{kind} models of the shape of {name} that pass any bar", pool)
        yield _whole(f"untrained models of the shape of {name}", [untrained(sample, FIRST + i) for i in range(N_WHOLE)])
        yield _whole(f"{name} itself", [sample])
        yield from _sensitivity(name, sample)


def _bars(question: str, pool: Sequence[Values]) -> dict[str, Any]:
    rng, shares = np.random.default_rng(0), []
    for _ in range(N_SPLITS):
        order = rng.permutation(len(pool))
        bars = bars_of([pool[i] for i in order[:N_CONTROLS]])
        passed = [any((pool[i][cell] >= bar).any() for cell, bar in bars.items()) for i in order[N_CONTROLS:]]
        shares.append(np.mean(passed))
    low, high = np.quantile(shares, [0.05, 0.95])
    rate = float(np.mean(shares))
    # Splits share their pool: the mean is about as good as its models are many.
    error = float(np.sqrt(RATE * (1 - RATE) / len(pool)))
    return {
        "question": f"{question} (pool of {len(pool)}, {N_SPLITS} splits)",
        "ours": f"{100 * rate:.1f} ± {196 * error:.1f} %",  # half of the 95 % interval
        "other": f"{100 * low:.1f} to {100 * high:.1f} % in 9 of 10 calibrations",
        "ratio": rate,
        "promise": f"{100 * RATE:.2g} %",
        "kept": rate <= RATE + 2 * error,
    }


def _whole(question: str, runs: Sequence[Run]) -> dict[str, Any]:
    found = [specialise(run) for run in runs]
    labelled = [[bool(head.label) for head in each.heads] for each in found]
    return {
        "question": f"{question}: heads with a label, and models with any (n = {len(found)})",
        "ours": _counts(labelled),
        "other": f"{_counts([_uncalibrated(each) for each in found])} without bars",
        "ratio": sum(map(sum, labelled)) / sum(map(len, labelled)),
        "promise": "none",
        "kept": True,
    }


def _sensitivity(name: str, sample: Run) -> Iterator[dict[str, Any]]:
    """How far the contrast moves the head that it moves most, in models that learned nothing and in the sample."""
    if (contrast := contrast_of(sample)) is None:
        return
    largest = {
        kind: [_most_moved(make(sample, i), contrast) for i in range(N_MOVED)] for kind, make in CONTROLS.items()
    }
    own, most = _most_moved(sample, contrast), max(max(each) for each in largest.values())
    yield {
        "question": f"{contrast.name} of the head that has most (n = {N_MOVED} models of each kind)",
        "ours": f"{own:.3f} in {name}",
        "other": ", ".join(f"{min(each):.3f} to {max(each):.3f} {kind}" for kind, each in largest.items()),
        "ratio": own / most,
        "promise": "none",
        "kept": True,
    }


def _most_moved(run: Run, contrast: Contrast) -> float:
    found = (shift for heads in shifts(run, contrast).values() for head in heads for shift in head)
    return max(abs(shift.mean) for shift in found if (shift.measure, shift.column) == (MOVED, ALL))


def _counts(labelled: Sequence[Sequence[bool]]) -> str:
    heads, models = sum(map(sum, labelled)), sum(map(any, labelled))
    return f"{heads} of {sum(map(len, labelled))} heads, {models} of {len(labelled)} models"


def _uncalibrated(found: Specialisation) -> list[bool]:
    """Which heads would have a label if nothing but the thresholds were asked."""
    return [bool(label(head.measures, "")) for head in found.heads]
