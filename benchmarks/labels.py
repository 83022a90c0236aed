"""How often do heads of models that learned nothing get a label, and what would they get without calibration?

Models of the samples' shapes, each calibrated on controls of its own as `headcount heads --stats` does it: untrained
ones, and the sample's own weights in shuffled order. The promise is kept unless the whole 95 % interval (Clopper and
Pearson) of the share of models with any label lies above the stated rate. Beside it: labels from a quarter of the mass
above even on, whatever controls show. Trained samples come last, to show that labels are not merely rare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from scipy.stats import binomtest

from headcount.analysis.controls import CONTROLS
from headcount.analysis.labels import label
from headcount.analysis.specialisation import Specialisation, specialise
from headcount.runs.run import Run, load

SAMPLES = ("sample:addition", "sample:sortedness")
N_MODELS, FIRST = 60, 1000
"""Models of each kind and shape; and the number of the first, far from those that calibrate."""


def measure(n: int = N_MODELS) -> Iterator[dict[str, Any]]:
    """The share of models with any label, by shape and by kind of model."""
    for name in SAMPLES:
        sample = load(name)
        for kind, make in CONTROLS.items():
            yield _share(f"{kind} models of the shape of {name}", sample, make, n)
        trained = specialise(sample)
        labelled = sum(bool(head.label) for head in trained.heads)
        yield {
            "question": f"heads of {name} itself with a label",
            "ours": f"{labelled} of {len(trained.heads)}",
            "other": f"{sum(_uncalibrated(trained))} uncalibrated",
            "ratio": labelled / len(trained.heads),
            "promise": "none",
            "kept": True,
        }


def _share(question: str, sample: Run, make: Callable[[Run, int], Run], n: int) -> dict[str, Any]:
    found = [specialise(make(sample, FIRST + i)) for i in range(n)]
    rate = found[0].calibration.error_rate
    models = sum(any(head.label for head in each.heads) for each in found)
    heads = sum(bool(head.label) for each in found for head in each.heads)
    before = [_uncalibrated(each) for each in found]
    interval = binomtest(models, n).proportion_ci(method="exact")
    return {
        "question": f"{question} that get any label (n = {n}, {len(found[0].heads)} heads each)",
        "ours": f"{models} of {n} ({100 * interval.low:.1f} to {100 * interval.high:.1f} %), {heads} heads",
        "other": f"{sum(map(any, before))} of {n}, {sum(map(sum, before))} heads, uncalibrated",
        "ratio": models / n,
        "promise": f"at most {100 * rate:.2g} %",
        "kept": bool(interval.low <= rate),
    }


def _uncalibrated(found: Specialisation) -> list[bool]:
    """Which heads would have a label if nothing but the thresholds were asked."""
    return [bool(label(head.measures, "")) for head in found.heads]
