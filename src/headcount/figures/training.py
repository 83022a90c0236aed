"""How often a model is right, by group, each share with its interval; and its curves while it was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Column, Table

from headcount.errors import HeadcountError
from headcount.figures.style import BLUE, GREY, ORANGE, PALETTE, Page, plain, plot_band, table_of
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.training.evaluation import Claim, Classification, Evaluation

_LABELS = {
    "free_running": "free-running exact match",
    "teacher_forced": "teacher-forced exact match",
    "accuracy": "right",
    "says_sorted": "answers “sorted”",
    "training_teacher_forced": "training examples, teacher-forced",
    "training_accuracy": "right, training examples",
}
_NO_SCORES = ("step", "n", "training_n", "validation_loss")
_LOOKS = ((BLUE, "-"), (ORANGE, "--"), (PALETTE[2], ":"))


def draw_accuracy(evaluation: Evaluation | Classification, title: str) -> Figure:
    """One row per group."""
    columns, names = evaluation.COLUMNS, [f"{plain(row[0], 48)}  (n = {row[1]})" for row in accuracy_rows(evaluation)]
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
    axes.set(xlabel="right (%), with 95 % Wilson interval")
    axes.grid(axis="x", alpha=0.25)
    figure.headline(title, size=12)
    if len(columns) > 1:
        figure.key(*axes.get_legend_handles_labels(), size=10)
    return figure


def accuracy_table(evaluation: Evaluation | Classification) -> Table:
    """The same as text."""
    columns = [Column(name, justify="right") for name in ("n", *evaluation.COLUMNS.values())]
    return table_of(f"{evaluation.split} set", (Column("group"), *columns), accuracy_rows(evaluation))


def accuracy_rows(evaluation: Evaluation | Classification) -> list[tuple[str, ...]]:
    """Group, n, and one text per column."""
    rows = []
    for scores in evaluation.rows:
        shares = [getattr(scores, key) for key in evaluation.COLUMNS]
        n = max(share.n for share in shares if share is not None)  # teacher forcing may ask for fewer, or for none
        texts = [
            "not asked" if share is None else percent(share) + (f", n={share.n:,}" if share.n < n else "")
            for share in shares
        ]
        rows.append((f"{scores.facet}: {scores.group}", f"{n:,}", *texts))
    return rows


def answers_note(evaluation: Evaluation | Classification) -> str:
    """How often a classifier gives each answer; empty for a model that writes its answers."""
    answer_shares = getattr(evaluation, "answer_shares", ())
    shares = ", ".join(f"“{each.group}” to {percent(each.right)}" for each in answer_shares)
    if constant := getattr(evaluation, "constant", None):
        return f"CONSTANT: it says “{constant}” to (nearly) everything ({shares})"
    return f"it says {shares}" if answer_shares else ""


def common_error_note(common_error: str) -> str:
    """Name the most common error; empty if there is none."""
    return common_error and f"most common error: {common_error}"


def evaluation_notes(evaluation: Evaluation | Classification) -> list[str]:
    """The share of each answer, what the decoder is handed, and the author's figure; those that there are."""
    notes = [answers_note(evaluation), common_error_note(evaluation.common_error)]
    if given := getattr(evaluation, "given", ""):
        notes.append(
            f"its decoder is handed “{given}” and never predicts it: an answer that begins otherwise is always wrong"
        )
    exact = getattr(evaluation, "exact", None)
    if exact is not None and exact.free_running is None:
        notes.append("free-running: not decoded, for the adapter has no generate()")
    elif exact is not None and not evaluation.audit and _differ(exact.teacher_forced, exact.free_running):
        notes.append(
            "THE TWO WAYS DIFFER: for a sound pipeline they are one number, so something is broken, and it is not "
            "“cascading errors”; is the model decoded as it is fed, start token and filled-up zeros included?"
        )
    if (claim := evaluation.claim) is not None:
        notes.append(claim_note(claim))
    return [note for note in notes if note]


def _differ(one: Proportion, other: Proportion) -> bool:
    return one.low > other.high or other.low > one.high


def claim_note(claim: Claim) -> str:
    """`claimed: 41.20 %; by exact match 38.95 % [36.84, 41.11] (n = 2,000): not the claimed figure`."""
    measured = f"{100 * claim.measured:.2f} % [{100 * claim.low:.2f}, {100 * claim.high:.2f}] (n = {claim.n:,})"
    if claim.claimed is None:
        return f"by {claim.scoring}: {measured}"
    verdict = "which the claimed figure agrees with" if claim.agrees else "which the claimed figure does not agree with"
    return f"claimed: {100 * claim.claimed:.2f} %; by {claim.scoring}: {measured}, {verdict}"


def survey_summary(found: Mapping[str, Evaluation | Classification | HeadcountError]) -> list[str]:
    """Count the models that were measured, and those that are broken."""
    n_broken = sum(isinstance(each, HeadcountError) for each in found.values())
    return [f"{len(found):,} submissions: {len(found) - n_broken:,} measured, {n_broken:,} broken"]


def survey_table(found: Mapping[str, Evaluation | Classification | HeadcountError], split: str) -> Table:
    """One row per model, in the order given."""
    columns = ("n", "teacher-forced", "free-running, or right", "claimed", "note")
    heads = [Column(name, justify="left" if name == "note" else "right") for name in columns]
    return table_of(f"{split} set", (Column("model"), *heads), [_survey_row(*each) for each in found.items()])


def _survey_row(name: str, found: Evaluation | Classification | HeadcountError) -> tuple[str, ...]:
    if isinstance(found, HeadcountError):
        return name, "", "", "", "", f"broken: {found.what}"
    exact = found.rows[0]
    forced = getattr(exact, "teacher_forced", None)
    right = getattr(exact, "free_running", getattr(exact, "right", None))
    shown = next(share for share in (right, forced) if share is not None)
    claim = found.claim
    claimed = "" if claim is None or claim.claimed is None else f"{100 * claim.claimed:.2f} %"
    notes = ["not decoded: no generate()"] if right is None else []
    if forced is not None and right is not None and _differ(forced, right):
        notes.append("the two ways differ: a fault in the pipeline")
    if claim is not None and claim.agrees is False:
        notes.append(f"claimed otherwise (by {claim.scoring} {100 * claim.measured:.2f} %)")
    if constant := getattr(found, "constant", None):
        notes.append(f"says “{constant}” to (nearly) everything")
    if given := getattr(found, "given", ""):
        notes.append(f"handed “{given}”")
    notes += [found.common_error] if found.common_error else []
    texts = ("" if share is None else percent(share) for share in (forced, right))
    return name, f"{shown.n:,}", *texts, claimed, "; ".join(notes)


def percent(share: Proportion) -> str:
    """`99.95 % [99.72, 99.99]`."""
    return f"{100 * share.rate:.2f} % [{100 * share.low:.2f}, {100 * share.high:.2f}]"


def draw_curves(log: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """From the lines of `log.jsonl`: losses of every step and on the validation set, scores of every evaluation."""
    figure = Page(10, 3.7)
    left, right = figure.subplots(1, 2)
    steps, evaluations = [line for line in log if "loss" in line], [line for line in log if "n" in line]
    x, loss = np.array([line["step"] for line in steps]), np.array([line["loss"] for line in steps])
    left.plot(x, loss, color=GREY, alpha=0.35, linewidth=0.7, marker="." if len(loss) == 1 else "", label="each step")
    if (window := len(loss) // 60) > 1:
        smooth = np.convolve(loss, np.ones(window) / window, mode="valid")
        left.plot(x[window - 1 :], smooth, color=BLUE, label=f"mean of {window} steps")
    # Older logs have no validation loss, nor may the first steps of a fine-tuned run.
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
    what = f"Validation (n = {last['n']:,}; band: 95 % interval)"
    right.set(xlabel="training step", ylabel="share of examples (%)", ylim=(-2, 102), title=what)
    if evaluations:
        right.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        axes.grid(alpha=0.25)
    figure.headline(title, size=12)
    return figure


def draw_learning(logs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], title: str) -> Figure:
    """Of several runs, each with its name: the score that each was trained for, on its validation set, step by step."""
    figure = Page(8, 3.6)
    axes = figure.subplots()
    for i, (name, log) in enumerate(logs):
        lines = [line for line in log if "n" in line]
        key = next((key for key in _LABELS if lines and key in lines[-1]), "")
        shown = [(line["step"], 100 * line[key]) for line in lines if key in line]
        if shown:
            look: dict[str, Any] = {"color": PALETTE[i % len(PALETTE)], "marker": "osD^v"[i % 5], "markersize": 3}
            axes.plot(*zip(*shown, strict=True), "-" if i < len(PALETTE) else "--", label=plain(name, 40), **look)
    axes.set(xlabel="training step", ylabel="right (%)", ylim=(-2, 102))
    axes.grid(alpha=0.25)
    figure.headline(title, size=12)
    figure.key(*axes.get_legend_handles_labels(), size=9)
    return figure
