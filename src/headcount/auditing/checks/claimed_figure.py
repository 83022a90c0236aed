"""Is the author's figure what the model does, and if not, which scoring would give it?

Report 001's 99.51 % is teacher-forced, with zeros left out; report 002's 99.85 % is teacher-forced without the first
digit, and 34.9 % when generating; report 003's 100 % beside 374+814 = 0188 likewise. Figures of classifiers that give
one answer to everything are class shares. Each of these scorings is computed here, and held against the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from headcount.auditing.check import CONCLUSIONS, FAIL, WARN, Check, Evidence, Finding, not_applicable, passed
from headcount.auditing.observed import Observed
from headcount.auditing.standing import standing
from headcount.data.adapter_task import AdapterModel
from headcount.data.from_adapter import pairs_of
from headcount.external.adapter import Adapter
from headcount.stats import Proportion
from headcount.tasks.base import ClassTask

CLOSE = 0.005
"""A scoring that comes so close gives the figure."""
LITTLE = 0.02
"""A difference that other test sets may make, if there is no scoring that explains it."""


def run(observed: Observed) -> Finding:
    """Exact match or accuracy beside the figure; and if they differ, other scorings."""
    adapter = observed.adapter
    if adapter is None or adapter.claimed is None:
        return not_applicable("nobody reports a figure: an adapter's `claimed`")
    claimed, ours, n = float(adapter.claimed), Proportion.count(observed.right), observed.n
    if not 0 <= claimed <= 1:
        return not_applicable(f"the author's figure is {claimed:g}, which is no share of 1")
    scoring, theirs = _scoring(observed), Proportion.of(round(claimed * n), n)
    told = f"the author reports {100 * claimed:.2f} %, and {scoring} is {100 * ours.rate:.2f} % of {n:,}"
    evidence: Evidence = {"claimed": claimed, "measured": ours.rate, "low": ours.low, "high": ours.high, "n": n}
    if theirs.low <= ours.high and ours.low <= theirs.high:
        return passed(told, **evidence)
    fitting = {name: share for name, share in scorings(observed).items() if abs(share - claimed) <= CLOSE}
    if not fitting:
        return _unexplained(told, abs(claimed - ours.rate), evidence)
    others = ", ".join(f"{name} ({100 * share:.2f} %)" for name, share in fitting.items())
    is_own = any(name.startswith("metric()") for name in fitting)
    return Finding(
        WARN if is_own else FAIL,
        f"{told}; the figure is that of {others}",
        f"consistent with a figure that is {next(iter(fitting))}, not {scoring}",
        f"report {scoring} of answers that the model gives by itself, as well or instead",
        {**evidence, "scoring": ", ".join(fitting)},
    )


def _scoring(observed: Observed) -> str:
    """What is measured here."""
    if observed.task.output_type == "class":
        return "accuracy"
    return "exact match" if observed.decodes else "exact match in one pass"


def _unexplained(told: str, difference: float, evidence: Evidence) -> Finding:
    """A figure that no scoring gives: a warning, if another test set could."""
    is_little = difference < LITTLE
    return Finding(
        WARN if is_little else FAIL,
        f"{told}; no scoring that is known gives that figure",
        "consistent with another test set, or with weights of another moment"
        if is_little
        else "consistent with other weights, other data, or answers that were decoded in another way",
        "measure the very weights that are published, on the test set that is named",
        evidence,
    )


def scorings(observed: Observed) -> dict[str, float]:
    """Other figures that are taken for accuracy, by name; the author's own scoring first."""
    found = _of_classes(observed) if observed.task.output_type == "class" else _of_sequences(observed)
    adapter = observed.adapter
    if adapter is None or type(adapter).metric is Adapter.metric:
        return found
    if observed.task.output_type == "class":
        names = cast(ClassTask, observed.task).classes
        predicted: Sequence[str] = [names[i] for i in observed.classes.predicted.tolist()]
    else:
        predicted = observed.sequences.texts
    if not predicted:
        return found
    own = cast(AdapterModel, observed.answers).claim_of(
        pairs_of(observed.task, observed.examples), predicted, observed.right
    )
    return found if own is None else {own.scoring: own.measured} | found


def _of_classes(observed: Observed) -> dict[str, float]:
    """Shares that have nothing to do with the model."""
    names, labels = cast(ClassTask, observed.task).classes, observed.classes.labels
    shares = {f"the share of examples that are {name}": float((labels == i).mean()) for i, name in enumerate(names)}
    predicted = observed.classes.predicted
    answers = {f"the share of answers that are {name}": float((predicted == i).mean()) for i, name in enumerate(names)}
    return shares | answers | {"the share of answers that are wrong": float(1 - observed.classes.hits.mean())}


def _of_sequences(observed: Observed) -> dict[str, float]:
    """By teacher forcing, by digits, without zeros, without the first digit."""
    found, right = observed.sequences, observed.right_answers
    zero = observed.task.tokens.index("0") if "0" in observed.task.tokens else -1
    is_zero, forced = right == zero, found.teacher_forced_hits
    shares = {
        "teacher-forced exact match": found.forced_right,
        "teacher-forced accuracy by digit": forced[found.asked],
        "teacher-forced exact match that leaves zeros out": (forced | is_zero).all(axis=1),
        "teacher-forced accuracy by digit that leaves zeros out": forced[found.asked & ~is_zero],
        "teacher-forced exact match without the first digit": forced[:, 1:].all(axis=1),
    }
    if found.free is not None:
        hits = found.free_hits
        shares |= {
            "accuracy by digit": found.written_hits[found.counted],
            "exact match that leaves zeros out": (hits | is_zero).all(axis=1),
            "exact match without the first digit": hits[:, 1:].all(axis=1),
            "accuracy by digit that leaves zeros out": found.written_hits[~is_zero],
        }
    shares["the share of right answers that begin with 0"] = is_zero[:, 0]
    measured = {name: float(np.mean(hits)) for name, hits in shares.items() if np.size(hits)}
    constant = standing(observed)
    return measured | ({} if constant is None else {"the best constant answer": constant.share})


PART = Check("HC802", "Is the author's figure what the model does?", run, affects=CONCLUSIONS)
