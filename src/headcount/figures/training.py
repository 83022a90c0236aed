"""Figures of accuracy by group, and of loss and accuracy during training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from headcount.figures.style import BLUE, GREY, ORANGE, PALETTE, Page, plain, plot_band
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.training.evaluation import Classification, Evaluation

_LABELS = {
    "free_running": "free-running exact match",
    "teacher_forced": "teacher-forced exact match",
    "accuracy": "accuracy",
    "says_sorted": "answers “sorted”",
    "training_teacher_forced": "teacher-forced, training examples",
    "training_accuracy": "accuracy, training examples",
}
_NO_SCORES = ("step", "n", "training_n", "validation_loss")
_LOOKS = ((BLUE, "-"), (ORANGE, "--"), (PALETTE[2], ":"))


def draw_accuracy(evaluation: Evaluation | Classification, title: str) -> Figure:
    """Draw the accuracy of each group of examples with its interval, one row per group."""
    columns, names = evaluation.COLUMNS, [_row_name(row, evaluation.COLUMNS) for row in evaluation.rows]
    figure = Page(8, 0.32 * len(names) + 1.0)
    axes = figure.subplots()
    looks = list(zip(reversed(columns), ((BLUE, "o"), (ORANGE, "s")), strict=False))
    for y, scores in enumerate(evaluation.rows):
        for i, (key, (colour, marker)) in enumerate(looks):
            share: Proportion | None = getattr(scores, key)
            if share is None:
                continue
            beside, label = 0.26 * (i - (len(looks) - 1) / 2), columns[key] if y == 0 else None
            doubt = [[100 * (share.rate - share.low)], [100 * (share.high - share.rate)]]
            look: dict[str, Any] = {"color": colour, "markersize": 5, "capsize": 2, "linewidth": 1, "label": label}
            axes.errorbar(100 * share.rate, y + beside, xerr=doubt, fmt=marker, **look)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set(xlabel="accuracy (%), with 95 % Wilson interval")
    axes.grid(axis="x", alpha=0.25)
    figure.headline(title, size=12)
    if len(columns) > 1:
        figure.key(*axes.get_legend_handles_labels(), size=10)
    return figure


def _row_name(row: Any, columns: Iterable[str]) -> str:
    """Return the name of a group with the number of its examples."""
    n = max(share.n for key in columns if (share := getattr(row, key)) is not None)
    return f"{plain(f'{row.facet}: {row.group}', 48)}  (n = {n:,})"


def draw_curves(log: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Draw the losses of every step and the scores of every evaluation of a run, from the lines of its `log.jsonl`."""
    figure = Page(10, 3.7)
    left, right = figure.subplots(1, 2)
    steps, evaluations = [line for line in log if "loss" in line], [line for line in log if "n" in line]
    x, loss = np.array([line["step"] for line in steps]), np.array([line["loss"] for line in steps])
    left.plot(x, loss, color=GREY, alpha=0.35, linewidth=0.7, marker="." if len(loss) == 1 else "", label="each step")
    if (window := len(loss) // 60) > 1:
        smooth = np.convolve(loss, np.ones(window) / window, mode="valid")
        left.plot(x[window - 1 :], smooth, color=BLUE, label=f"mean of {window} steps")
    # Older logs have no validation loss, and the first steps of a fine-tuned run may have none.
    held_out = [(line["step"], line["validation_loss"]) for line in evaluations if "validation_loss" in line]
    if held_out:
        left.plot(*zip(*held_out, strict=True), "--", color=ORANGE, marker=".", label="validation set")
    what = "Training and validation loss" if held_out else "Training loss"
    left.set(yscale="log", xlabel="training step", ylabel="cross-entropy (nats)", title=what)
    left.legend(frameon=False)
    last = evaluations[-1] if evaluations else {"n": 0}
    keys = [key for key in _LABELS if key in last] + [key for key in last if key not in (*_LABELS, *_NO_SCORES)]
    for key, (colour, style) in zip(keys, _LOOKS, strict=False):
        with_key = [line for line in evaluations if key in line]
        size = "training_n" if key.startswith("training_") else "n"
        shares = [Proportion.of(round(line[key] * line[size]), line[size]) for line in with_key]
        rates, low, high = ([100 * getattr(share, end) for share in shares] for end in ("rate", "low", "high"))
        look: dict[str, Any] = {"color": colour, "marker": ".", "label": _LABELS.get(key, key)}
        plot_band(right, [line["step"] for line in with_key], rates, low, high, style, **look)
    what = f"Validation (n = {last['n']:,}; band: 95 % CI)"
    right.set(xlabel="training step", ylabel="share of examples (%)", ylim=(-2, 102), title=what)
    if evaluations:
        right.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        axes.grid(alpha=0.25)
    figure.headline(title, size=12)
    return figure


def draw_learning(logs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], title: str) -> Figure:
    """Draw the validation score of several runs against the training step, one line per run."""
    figure = Page(8, 3.6)
    axes = figure.subplots()
    for i, (name, log) in enumerate(logs):
        lines = [line for line in log if "n" in line]
        key = next((key for key in _LABELS if lines and key in lines[-1]), "")
        shown = [(line["step"], 100 * line[key]) for line in lines if key in line]
        if shown:
            look: dict[str, Any] = {"color": PALETTE[i % len(PALETTE)], "marker": "osD^v"[i % 5], "markersize": 3}
            axes.plot(*zip(*shown, strict=True), "-" if i < len(PALETTE) else "--", label=plain(name, 40), **look)
    axes.set(xlabel="training step", ylabel="accuracy (%)", ylim=(-2, 102))
    axes.grid(alpha=0.25)
    figure.headline(title, size=12)
    figure.key(*axes.get_legend_handles_labels(), size=9)
    return figure
