"""Training curves: the loss of every step and on the validation set, and the scores of every evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headcount.statistics import Share
from headcount.views.style import BLUE, GREY, ORANGE, PALETTE, Page

_LABELS = {
    "free_running": "free-running exact match",
    "teacher_forced": "teacher-forced exact match",
    "accuracy": "right",
    "says_sorted": "answers “sorted”",
    "training_teacher_forced": "training examples, teacher-forced",
    "training_accuracy": "right, training examples",
}
_SIZES = {"training_teacher_forced": "training_n", "training_accuracy": "training_n"}
"""Where a log keeps the number of examples of a score, if not under `n`."""
_NO_SCORES = ("step", "n", "training_n", "validation_loss")
_LOOKS = ((BLUE, "-"), (ORANGE, "--"), (PALETTE[2], ":"))


def draw_curves(log: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """From the lines of `log.jsonl`."""
    figure = Page(10, 3.7)
    left, right = figure.subplots(1, 2)
    evaluations = [line for line in log if "n" in line]
    _draw_losses(left, [line for line in log if "loss" in line], evaluations)
    _draw_scores(right, evaluations)
    for axes in (left, right):
        axes.grid(alpha=0.25)
    figure.headline(title, size=12)
    return figure


def _draw_losses(left: Axes, steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> None:
    """Of training, every step; of validation, where a log has it: older ones have not."""
    x, loss = np.array([s["step"] for s in steps]), np.array([s["loss"] for s in steps])
    left.plot(x, loss, color=GREY, alpha=0.35, linewidth=0.7, marker="." if len(loss) == 1 else "", label="each step")
    window = max(1, len(loss) // 60)
    if window > 1:
        smooth = np.convolve(loss, np.ones(window) / window, mode="valid")
        left.plot(x[window - 1 :], smooth, color=BLUE, label=f"mean of {window} steps")
    held_out = [(line["step"], line["validation_loss"]) for line in evaluations if "validation_loss" in line]
    if held_out:
        left.plot(*zip(*held_out, strict=True), "--", color=ORANGE, marker=".", label="validation set")
    what = "Training and validation loss" if held_out else "Training loss"
    left.set(yscale="log", xlabel="training step", ylabel="cross-entropy (nats)", title=what)
    left.legend(frameon=False)


def _draw_scores(right: Axes, evaluations: Sequence[Mapping[str, Any]]) -> None:
    n = evaluations[-1]["n"] if evaluations else 0
    keys = [key for key in (evaluations[-1] if evaluations else {}) if key not in _NO_SCORES]
    for key, (colour, style) in zip(sorted(keys, key=_importance), _LOOKS, strict=False):
        with_key = [line for line in evaluations if key in line]  # a fine-tuned run's first steps may be older
        when, sizes = [line["step"] for line in with_key], [line[_SIZES.get(key, "n")] for line in with_key]
        shares = [Share.of(round(line[key] * size), size) for line, size in zip(with_key, sizes, strict=True)]
        right.fill_between(
            when, [100 * s.low for s in shares], [100 * s.high for s in shares], color=colour, alpha=0.15
        )
        right.plot(when, [100 * s.rate for s in shares], style, color=colour, marker=".", label=_LABELS.get(key, key))
    right.set(
        xlabel="training step",
        ylabel="share of examples (%)",
        ylim=(-2, 102),
        title=f"Validation (n = {n:,}; band: 95 % interval)",
    )
    if evaluations:
        right.legend(frameon=False, loc="lower right")


def _importance(key: str) -> int:
    return list(_LABELS).index(key) if key in _LABELS else len(_LABELS)
