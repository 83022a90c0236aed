"""Training curves: the loss of every step, and the scores of every evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from headcount.statistics import Share
from headcount.views.style import BLUE, GREY, ORANGE, Page

_LABELS = {
    "free_running": "free-running exact match",
    "teacher_forced": "teacher-forced exact match",
    "accuracy": "right",
    "says_sorted": "answers “sorted”",
}


def draw_curves(log: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """From the lines of `log.jsonl`."""
    figure = Page(10, 3.7)
    left, right = figure.subplots(1, 2)
    steps = [line for line in log if "loss" in line]
    x, loss = np.array([s["step"] for s in steps]), np.array([s["loss"] for s in steps])
    left.plot(x, loss, color=GREY, alpha=0.35, linewidth=0.7, marker="." if len(loss) == 1 else "", label="each step")
    window = max(1, len(loss) // 60)
    if window > 1:
        smooth = np.convolve(loss, np.ones(window) / window, mode="valid")
        left.plot(x[window - 1 :], smooth, color=BLUE, label=f"mean of {window} steps")
    left.set(yscale="log", xlabel="training step", ylabel="cross-entropy (nats)", title="Training loss")
    left.legend(frameon=False)

    evaluations = [line for line in log if "n" in line]
    when = [line["step"] for line in evaluations]
    n = evaluations[-1]["n"] if evaluations else 0
    keys = [key for key in (evaluations[-1] if evaluations else {}) if key not in ("step", "n")]
    looks = ((BLUE, "-"), (ORANGE, "--"))
    for key, (colour, style) in zip(sorted(keys, key=_importance), looks, strict=False):
        shares = [Share.of(round(line[key] * line["n"]), line["n"]) for line in evaluations]
        right.fill_between(
            when, [100 * s.low for s in shares], [100 * s.high for s in shares], color=colour, alpha=0.15
        )
        right.plot(when, [100 * s.rate for s in shares], style, color=colour, marker=".", label=_LABELS.get(key, key))
    right.set(
        xlabel="training step",
        ylabel="share of the validation set (%)",
        ylim=(-2, 102),
        title=f"Validation (n = {n:,}, band: 95 % interval)",
    )
    if evaluations:
        right.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        axes.grid(alpha=0.25)
    figure.head(title, size=12)
    return figure


def _importance(key: str) -> int:
    return list(_LABELS).index(key) if key in _LABELS else len(_LABELS)
