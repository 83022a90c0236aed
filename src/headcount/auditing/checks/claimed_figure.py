"""Is the author's figure what the model does, and if not, which scoring would give it?

Report 001's 99.51 % is teacher-forced, with zeros left out; report 002's 99.85 % is teacher-forced without the first
digit, and 34.9 % when generating; report 003's 100 % beside 374+814 = 0188 likewise. Figures of classifiers that give
one answer to everything are class shares. Some thirty scorings are computed here, and held against the figure: by
token, teacher-forced, without zeros, with padding, by class, on training examples. The author may have measured on
other examples, so that a scoring may differ from the figure by what two samples of these sizes differ by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from headcount.auditing.check import CONCLUSIONS, FAIL, WARN, Check, Evidence, Finding, not_applicable, passed
from headcount.auditing.observed import Hits, Observed
from headcount.auditing.standing import standing
from headcount.data.adapter_task import AdapterModel, AdapterSequences
from headcount.data.from_adapter import pairs_of
from headcount.external.adapter import Adapter
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE, ClassTask
from headcount.training.answers import BLOCK

CLOSE = 0.005
"""A scoring that comes so close gives the figure, however many examples there are."""
LITTLE = 0.02
"""A difference that other test sets may make, if there is no scoring that explains it."""
SHOWN = 4
"""Scorings that are named."""
N_TRAINED = 400
"""Training examples that are asked."""
LEGITIMATE = ("metric()", "balanced accuracy", "F1 of", "mean F1", "area under the curve")
"""How names of scorings begin that rate the model's own answers: such a figure is no mistake, but not accuracy."""


def run(observed: Observed) -> Finding:
    """Exact match or accuracy beside the figure; and if they differ, other scorings."""
    adapter = observed.adapter
    if adapter is None or adapter.claimed is None:
        return not_applicable("nobody reports a figure: an adapter's `claimed`")
    claimed, ours, n = float(adapter.claimed), Proportion.count(observed.right), observed.n
    if not 0 <= claimed <= 1:
        return not_applicable(f"the author's figure is {claimed:g}, which is no share of 1")
    n_theirs = adapter.claimed_n or len(observed.task.split(observed.split))
    scoring, theirs = _scoring(observed), Proportion.of(round(claimed * n_theirs), n_theirs)
    told = f"the author reports {100 * claimed:.2f} %, and {scoring} is {100 * ours.rate:.2f} % of {n:,}"
    evidence: Evidence = {"claimed": claimed, "measured": ours.rate, "low": ours.low, "high": ours.high, "n": n}
    if theirs.low <= ours.high and ours.low <= theirs.high:
        return passed(told, **evidence)
    shares = {name: share for name, share in scorings(observed).items() if is_close(share, n, claimed, n_theirs)}
    nearer = {name: share for name, share in shares.items() if abs(share - claimed) < abs(ours.rate - claimed)}
    fitting = dict(sorted(nearer.items(), key=lambda item: round(abs(item[1] - claimed), 6)))
    if not fitting:
        return _unexplained(told, abs(claimed - ours.rate), evidence)
    others = ", ".join(f"{name} ({100 * share:.2f} %)" for name, share in list(fitting.items())[:SHOWN])
    others += f" and {len(fitting) - SHOWN} more" if len(fitting) > SHOWN else ""
    return Finding(
        WARN if any(name.startswith(LEGITIMATE) for name in fitting) else FAIL,
        f"{told}; the figure is that of {others}",
        f"consistent with a figure that is {next(iter(fitting))}, not {scoring}",
        f"report {scoring} of answers that the model gives by itself, as well or instead",
        {**evidence, "scoring": ", ".join(fitting)},
    )


def is_close(share: float, n: int, claimed: float, n_claimed: int) -> bool:
    """Return whether two shares differ by no more than two samples of these sizes may, at 95 %.

    >>> is_close(0.78, 400, 0.75, 200), is_close(0.78, 40_000, 0.75, 20_000)
    (True, False)
    """
    pooled = (share * n + claimed * n_claimed) / (n + n_claimed)
    chance = 1.96 * math.sqrt(max(0.0, pooled * (1 - pooled)) * (1 / n + 1 / n_claimed))
    return abs(share - claimed) <= max(CLOSE, chance)


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
    trained = observed.right_on(observed.task.sample(observed.rng("claimed figure"), min(N_TRAINED, observed.n)))
    found |= {f"{_scoring(observed)} on training examples": float(trained.mean())}
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
    """Shares that have nothing to do with the model, and scores by class and by length."""
    task = cast(ClassTask, observed.task)
    labels, predicted, hits = observed.classes.labels, observed.classes.predicted, observed.classes.hits
    found = {f"the share of examples that are {name}": labels == i for i, name in enumerate(task.classes)}
    found |= {f"the share of answers that are {name}": predicted == i for i, name in enumerate(task.classes)}
    found["the share of answers that are wrong"] = ~hits
    recall = {name: hits[labels == i] for i, name in enumerate(task.classes)}
    found |= {f"accuracy on {name} examples": each for name, each in recall.items()}
    found |= {f"precision of {name}": hits[predicted == i] for i, name in enumerate(task.classes)}
    shares = {name: float(each.mean()) for name, each in found.items() if each.size}
    shares["balanced accuracy"] = float(np.mean([each.mean() for each in recall.values() if each.size]))
    f1 = {name: _f1(predicted == i, labels == i) for i, name in enumerate(task.classes)}
    shares |= {f"F1 of {name}": each for name, each in f1.items()} | {"mean F1": float(np.mean(list(f1.values())))}
    lengths = task.lengths(observed.examples)
    by_length = [float(hits[lengths == length].mean()) for length in np.unique(lengths)]
    return shares | {"accuracy averaged over lengths": float(np.mean(by_length)), **_curve(observed)}


def _f1(predicted: Hits, right: Hits) -> float:
    return float(2 * (predicted & right).sum() / max(1, predicted.sum() + right.sum()))


def _curve(observed: Observed) -> dict[str, float]:
    """The area under the ROC curve, of two classes: how often an example of the last class has the larger score."""
    logits, labels = observed.classes.logits.astype(np.float64), observed.classes.labels
    if logits.shape[1] != 2 or len(np.unique(labels)) < 2:
        return {}
    score = logits[:, 1] - logits[:, 0]
    one, other = score[labels == 1][:, None], score[labels == 0]
    return {"area under the curve": float(((one > other) + 0.5 * (one == other)).mean())}


def _of_sequences(observed: Observed) -> dict[str, float]:
    """Scores by teacher forcing, by digit, by place, without zeros, without the first digit."""
    found, right = observed.sequences, observed.right_answers
    zero = observed.task.tokens.index("0") if "0" in observed.task.tokens else -1
    is_zero, forced = right == zero, found.teacher_forced_hits
    shares = {
        "teacher-forced exact match": found.forced_right,
        "teacher-forced accuracy by digit": forced[found.asked],
        "teacher-forced exact match that leaves zeros out": (forced | is_zero).all(axis=1),
        "teacher-forced accuracy by digit that leaves zeros out": forced[found.asked & ~is_zero],
        "teacher-forced exact match without the first digit": forced[:, 1:].all(axis=1),
    } | _by_label(observed)
    if found.free is not None:
        hits, counted = found.written_hits, found.counted
        shares |= {
            "accuracy by digit": hits[counted],
            "accuracy by digit with leading zeros": found.free_hits.ravel(),
            "exact match that leaves zeros out": (found.free_hits | is_zero).all(axis=1),
            "exact match without the first digit": found.free_hits[:, 1:].all(axis=1),
            "accuracy by digit that leaves zeros out": hits[~is_zero],
            "exact match of answers without a 0": observed.right[~(is_zero & counted).any(axis=1)],
        }
        shares |= {f"accuracy of the {name}": hits[counted[:, i], i] for i, name in enumerate(observed.places)}
    shares["the share of right answers that begin with 0"] = is_zero[:, 0]
    measured = {name: float(np.mean(hits)) for name, hits in shares.items() if np.size(hits)}
    if found.free is not None:
        by_token = [hits[counted & (right == token)] for token in np.unique(right)]
        measured["accuracy averaged over the digits 0 to 9"] = float(
            np.mean([each.mean() for each in by_token if each.size])
        )
    constant = standing(observed)
    return measured | ({} if constant is None else {"the best constant answer": constant.share})


def _by_label(observed: Observed) -> dict[str, Hits]:
    """Teacher-forced scores over all labels, such as end tokens, and with padding counted as right."""
    model, hits, asked = cast(AdapterSequences, observed.answers), list[Hits](), list[Hits]()
    for logits, labels in model.passes(pairs_of(model.task, observed.examples), BLOCK):
        is_label = labels != IGNORE
        hits.append(((logits.argmax(dim=-1) == labels) | ~is_label).flatten().cpu().numpy())
        asked.append(is_label.flatten().cpu().numpy())
    every, is_asked = np.concatenate(hits), np.concatenate(asked)
    return {
        "teacher-forced accuracy by token with end tokens": every[is_asked],
        "teacher-forced accuracy by token with padding counted as right": every,
    }


PART = Check("HC802", "Is the author's figure what the model does?", run, affects=CONCLUSIONS)
