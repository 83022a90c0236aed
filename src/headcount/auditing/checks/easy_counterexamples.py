"""Is a model with a high accuracy wrong on examples that are easily found?

A classifier that headcount trained was right on all random sequences (100 %, 95 % CI 99.6-100) and still called
0 0 0 0 0 0 0 17 unsorted: equal numbers with one distant number are too rare among random sequences. The check tries
such patterns, within the range of the training examples, and changes examples step by step towards smaller margins. The
model itself confirms each wrong answer. If the search finds none, this does not prove that there is none.
"""

from __future__ import annotations

from headcount.analysis.counterexamples import can_be_searched, search
from headcount.auditing.audited_model import AuditedModel
from headcount.auditing.check import CONCLUSIONS, Check, Finding, failed, not_applicable, passed, warned
from headcount.errors import argument
from headcount.formatting import percent
from headcount.stats import Proportion

MIN_ACCURACY = 0.95
"""Smallest accuracy for which the check searches. Below it, the test set itself shows enough errors."""
N_SHOWN = 3
"""Number of counterexamples that the finding lists."""
WORK, LEAST_TRIED, MOST_TRIED = 3e10, 512, 6000
"""Effort of the search: multiplications (two seconds of one core), smallest and largest number of examples."""


def run(model: AuditedModel) -> Finding:
    """Search for wrong answers of an accurate model; the number of examples is fixed, so the result is reproducible."""
    accuracy, words = Proportion.count(model.right), model.task.words
    if accuracy.rate <= MIN_ACCURACY:
        return not_applicable(f"{model.scoring} is {percent(accuracy.rate)}: the test set already shows many errors")
    if not can_be_searched(model.task):
        return not_applicable(
            "wrong answers cannot be searched for: the task defines no hard examples and no way to vary an example"
        )
    result = search(model.opened, most_tried=_most_tried(model))
    evidence = {"n_tried": result.n_tried, "n_wrong": len(result.wrong), "accuracy": accuracy.rate}
    score = f"the model gets {accuracy.correct:,} of {accuracy.n:,} random {words.examples} right"
    tried = f"{result.n_tried:,} {words.examples} of the same range"
    if not result.wrong:
        return passed(f"{score}, and a search finds no wrong answer in {tried} (this is no proof)", **evidence)
    shown = "; ".join(
        f"{each.example} (predicted {each.predicted or 'nothing'}, right {each.right})"
        for each in result.wrong[:N_SHOWN]
    )
    n_wrong = "1 wrong answer" if len(result.wrong) == 1 else f"{len(result.wrong)} wrong answers"
    text = f"{score}, but a search finds {n_wrong} in {tried}: {shown}"
    cause = f"such {words.examples} are rare among random ones, so that neither training nor the test set shows them"
    fix = (
        "train on such examples too, and report counterexamples beside the accuracy; look for more: "
        f"headcount verify {argument(model.opened.name)}"
    )
    if _claims_everything(model):
        text = f"{text}, although the author claims 100 %"
        return failed(text, cause=cause, fix=fix, right_despite_fault=None, **evidence)
    return warned(text, cause=cause, fix=fix, **evidence)


def _claims_everything(model: AuditedModel) -> bool:
    return model.adapter is not None and model.adapter.claimed is not None and model.adapter.claimed >= 1


def _most_tried(model: AuditedModel) -> int:
    """Return how many examples the search may try: fewer for a larger model, so that the search takes two seconds."""
    n_weights = sum(weight.numel() for weight in model.opened.module.parameters())
    return int(min(max(WORK / max(1, n_weights * model.task.longest), LEAST_TRIED), MOST_TRIED))


PART = Check(
    "HC603",
    "Is a model with a high accuracy wrong on examples that are easily found?",
    sequences=run,
    classes=run,
    needs_decoding=True,
    affects=CONCLUSIONS,
)
