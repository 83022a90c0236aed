"""Does the model reach the accuracy that its author reports and, if not, which other scoring gives that figure?

The 99.51 % of published report 001 are teacher-forced, with zeros left out. The 99.85 % of report 002 are
teacher-forced without the first digit; its model is right on 34.9 % when it decodes. The accuracy of a classifier that
gives one answer to everything is the share of a class. The check computes some thirty scorings of the model, such as by
token, teacher-forced, without zeros, by class or on training examples, and compares them with the author's figure. The
author may have measured on other examples, so a scoring may differ from the figure by as much as two samples of these
sizes differ by chance.
"""

from __future__ import annotations

import math

import numpy as np

from headcount.auditing.audited_model import AuditedClassifier, AuditedModel, AuditedSequenceModel, Hits
from headcount.auditing.check import CONCLUSIONS, FAIL, WARN, Check, Evidence, Finding, not_applicable, passed
from headcount.external.adapter import Adapter
from headcount.formatting import percent
from headcount.stats import Z95, Proportion
from headcount.tasks.base import IGNORE
from headcount.training.answers import BLOCK

Shares = dict[str, float]
"""For each scoring, by a name such as `balanced accuracy`, the figure that it gives for the model."""
MAX_DIFFERENCE = 0.005
"""A scoring explains the author's figure if the two differ by no more than this: most reports round to half a point."""
MAX_UNEXPLAINED = 0.02
"""If no scoring explains the author's figure, a smaller difference is only a warning: another test set may cause it."""
N_NAMED = 4
"""Largest number of scorings that the finding names."""
N_TRAINING = 400
"""Largest number of training examples on which accuracy is measured, in case the author reports training accuracy."""
LEGITIMATE = ("metric()", "balanced accuracy", "F1 of", "mean F1", "area under the curve")
"""First words of the names of legitimate scorings, such as F1, which rate the model's answers in another way."""
ABOUT_ZEROS = ("zeros", "zeros out", "without a 0", "begin with 0")
"""Last words of the names of scorings that only make sense if `0` is a token of the task."""


def run(model: AuditedModel) -> Finding:
    """Compare the author's figure with the measured one; if they differ, find a scoring that gives it."""
    adapter = model.adapter
    if adapter is None or adapter.claimed is None:
        return not_applicable(
            "no accuracy is reported to compare with; the headcount.Adapter class can set one: `claimed`"
        )
    claimed, ours, n = float(adapter.claimed), Proportion.count(model.right), model.n
    if not 0 <= claimed <= 1:
        return not_applicable(f"the author's reported accuracy is {claimed:g}, which is not between 0 and 1")
    n_theirs = adapter.claimed_n or len(model.task.split(model.split))
    theirs = Proportion.of(round(claimed * n_theirs), n_theirs)
    figures = f"{model.scoring} is {percent(ours.rate, 2)} of {n:,}, and the author reports {percent(claimed, 2)}"
    evidence: Evidence = {"claimed": claimed, "measured": ours.rate, "low": ours.low, "high": ours.high, "n": n}
    if theirs.low <= ours.high and ours.low <= theirs.high:
        return passed(figures, **evidence)
    shares = {name: share for name, share in _scorings(model).items() if is_close(share, n, claimed, n_theirs)}
    nearer = {name: share for name, share in shares.items() if abs(share - claimed) < abs(ours.rate - claimed)}
    fitting = dict(sorted(nearer.items(), key=lambda item: round(abs(item[1] - claimed), 6)))
    if not fitting:
        return _unexplained(figures, abs(claimed - ours.rate), evidence)
    names = ", ".join(f"{name} ({percent(share, 2)})" for name, share in list(fitting.items())[:N_NAMED])
    names += f" and {len(fitting) - N_NAMED} more" if len(fitting) > N_NAMED else ""
    return Finding(
        WARN if any(name.startswith(LEGITIMATE) for name in fitting) else FAIL,
        f"{figures}; other scorings that give the author's figure: {names}",
        f"consistent with an author's figure that is {next(iter(fitting))}, not {model.scoring}",
        f"report {model.scoring} of answers that the model decodes by itself, as well or instead",
        {**evidence, "scoring": ", ".join(fitting)},
    )


def is_close(share: float, n: int, claimed: float, n_claimed: int) -> bool:
    """Return whether two fractions of n and n_claimed examples can differ by this much by chance, at the 95 % level.

    >>> is_close(0.78, 400, 0.75, 200), is_close(0.78, 40_000, 0.75, 20_000)
    (True, False)
    """
    pooled = (share * n + claimed * n_claimed) / (n + n_claimed)
    chance = Z95 * math.sqrt(max(0.0, pooled * (1 - pooled)) * (1 / n + 1 / n_claimed))
    return abs(share - claimed) <= max(MAX_DIFFERENCE, chance)


def _unexplained(figures: str, difference: float, evidence: Evidence) -> Finding:
    """Return a failure for a figure that no scoring gives, or a warning if another test set could explain it."""
    is_small = difference < MAX_UNEXPLAINED
    return Finding(
        WARN if is_small else FAIL,
        f"{figures}; no known scoring gives the author's figure",
        "consistent with another test set, or with weights from another step of training"
        if is_small
        else "consistent with other weights, other data, or answers that were decoded in another way",
        "measure the published weights on the test set that the report names",
        evidence,
    )


def _scorings(model: AuditedModel) -> Shares:
    """Return the figure that each scoring gives for this model, by name; the author's own metric() comes first."""
    shares = _sequence_scorings(model) if isinstance(model, AuditedSequenceModel) else {}
    shares = _class_scorings(model) if isinstance(model, AuditedClassifier) else shares
    examples = model.task.sample(model.rng("claimed figure"), min(N_TRAINING, model.n))
    shares |= {f"{model.scoring} on training examples": float(model.right_on(examples).mean())}
    if model.adapter is None or type(model.adapter).metric is Adapter.metric:
        return shares
    own = model.claim()
    return shares if own is None else {own.scoring: own.measured} | shares


def _class_scorings(model: AuditedClassifier) -> Shares:
    """Return scores of a classifier that could be mistaken for accuracy, by name: share of a class, precision, F1."""
    classes = model.task.classes
    labels, predicted, hits = model.answers.labels, model.answers.predicted, model.answers.hits
    hits_by_scoring = {f"the share of examples that are {name}": labels == i for i, name in enumerate(classes)}
    hits_by_scoring |= {f"the share of answers that are {name}": predicted == i for i, name in enumerate(classes)}
    hits_by_scoring["the share of answers that are wrong"] = ~hits
    recall = {name: hits[labels == i] for i, name in enumerate(classes)}
    hits_by_scoring |= {f"accuracy on {name} examples": each for name, each in recall.items()}
    hits_by_scoring |= {f"precision of {name}": hits[predicted == i] for i, name in enumerate(classes)}
    shares = {name: float(each.mean()) for name, each in hits_by_scoring.items() if each.size}
    shares["balanced accuracy"] = float(np.mean([each.mean() for each in recall.values() if each.size]))
    f1 = {name: _f1(predicted == i, labels == i) for i, name in enumerate(classes)}
    shares |= {f"F1 of {name}": each for name, each in f1.items()} | {"mean F1": float(np.mean(list(f1.values())))}
    lengths = model.lengths
    by_length = [float(hits[lengths == length].mean()) for length in np.unique(lengths)]
    return shares | {"accuracy averaged over lengths": float(np.mean(by_length)), **_area_under_curve(model)}


def _f1(predicted: Hits, right: Hits) -> float:
    return float(2 * (predicted & right).sum() / max(1, predicted.sum() + right.sum()))


def _area_under_curve(model: AuditedClassifier) -> Shares:
    """Return the area under the ROC curve, by name, if the task has two classes; otherwise an empty dictionary."""
    logits, labels = model.answers.logits.astype(np.float64), model.answers.labels
    if logits.shape[1] != 2 or len(np.unique(labels)) < 2:
        return {}
    score = logits[:, 1] - logits[:, 0]
    positive, negative = score[labels == 1][:, None], score[labels == 0]
    return {"area under the curve": float(((positive > negative) + 0.5 * (positive == negative)).mean())}


def _sequence_scorings(model: AuditedSequenceModel) -> Shares:
    """Return scores that could be mistaken for exact match, by name: teacher-forced, per token, without some tokens."""
    answers, right, tokens, place = model.answers, model.right_answers, model.task.tokens, model.task.words.place
    is_zero, forced = right == (tokens.index("0") if "0" in tokens else -1), answers.teacher_forced_hits
    hits = {
        "teacher-forced exact match": answers.forced_right,
        f"teacher-forced accuracy by {place}": forced[answers.asked],
        "teacher-forced exact match that leaves zeros out": (forced | is_zero).all(axis=1),
        f"teacher-forced accuracy by {place} that leaves zeros out": forced[answers.asked & ~is_zero],
        f"teacher-forced exact match without the first {place}": forced[:, 1:].all(axis=1),
    } | _by_label(model)
    if answers.free is not None:
        written, counted = answers.written_hits, answers.counted
        hits |= {
            f"accuracy by {place}": written[counted],
            f"accuracy by {place} with leading zeros": answers.free_hits.ravel(),
            "exact match that leaves zeros out": (answers.free_hits | is_zero).all(axis=1),
            f"exact match without the first {place}": answers.free_hits[:, 1:].all(axis=1),
            f"accuracy by {place} that leaves zeros out": written[~is_zero],
            "exact match of answers without a 0": model.right[~(is_zero & counted).any(axis=1)],
        }
        hits |= {f"accuracy of the {name}": written[counted[:, i], i] for i, name in enumerate(model.places)}
    hits["the share of right answers that begin with 0"] = is_zero[:, 0]
    if "0" not in tokens:
        hits = {name: each for name, each in hits.items() if not name.endswith(ABOUT_ZEROS)}
    shares = {name: float(np.mean(each)) for name, each in hits.items() if np.size(each)}
    if answers.free is not None:
        by_token = [written[counted & (right == token)] for token in np.unique(right)]
        shares["accuracy averaged over tokens"] = float(np.mean([each.mean() for each in by_token if each.size]))
    return shares | ({} if model.baseline is None else {"the best constant answer": model.baseline.share})


def _by_label(model: AuditedSequenceModel) -> dict[str, Hits]:
    """Return teacher-forced hits [example, label], by name: with end tokens, and with padding counted as right."""
    assert model.adapted is not None, "only adapters have an accuracy that their author reports"
    hits, is_label = list[Hits](), list[Hits]()
    for logits, labels in model.adapted.passes(model.pairs, BLOCK):
        hits.append(((logits.argmax(dim=-1) == labels) | (labels == IGNORE)).flatten().cpu().numpy())
        is_label.append((labels != IGNORE).flatten().cpu().numpy())
    all_hits = np.concatenate(hits)
    return {
        "teacher-forced accuracy by token with end tokens": all_hits[np.concatenate(is_label)],
        "teacher-forced accuracy by token with padding counted as right": all_hits,
    }


PART = Check(
    "HC802",
    "Does the model reach the accuracy that its author reports?",
    sequences=run,
    classes=run,
    affects=CONCLUSIONS,
)
