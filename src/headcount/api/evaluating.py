"""Measure the accuracy of models on held-out examples."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headcount.api.courses import AT_ONCE, Submission, run_course
from headcount.api.opening import AnyModel, open_on_task
from headcount.api.saving import Place, folder_for, save_in
from headcount.auditing.audit import explain_errors
from headcount.auditing.audited_model import AuditedClassifier, audited_model
from headcount.figures.training import draw_accuracy
from headcount.limits import TIMEOUT
from headcount.runs.run import Run
from headcount.training.evaluation import (
    EVALUATIONS,
    Classification,
    Evaluation,
    evaluate_classes,
    evaluate_sequences,
)


def evaluate(
    model: AnyModel, split: str = "test", *, save: Place = False, run_adapter: bool = False
) -> Evaluation | Classification:
    """Measure the accuracy of a model on a held-out split of its task.

    `model` is a run or an adapter's model, and `split` is "test" or "validation". `save` names a folder for the result
    and its figure; `save=True` means the model's own folder. `run_adapter` allows running the adapter (the user's
    Python file) that the folder of a pruned model names.

    Return an `Evaluation` (exact match, and accuracy at each position) for answers that are sequences, or a
    `Classification` (accuracy by class and length) for answers that are classes.

    >>> evaluate("sample:sortedness").accuracy.right.rate
    1.0
    """
    opened = open_on_task(model, run_adapter=run_adapter)
    audited, title = audited_model(opened, split=split), f"{opened.label} on its {split} set"
    fault, causes = explain_errors(audited)
    evaluation: Evaluation | Classification
    if isinstance(audited, AuditedClassifier):
        evaluation = evaluate_classes(audited.class_model, split, opened.weights_sha256, audited.answers)
    else:
        evaluation = evaluate_sequences(audited.sequence_model, split, opened.weights_sha256, audited.answers, causes)
    evaluation = replace(evaluation, audit=fault)
    draw = lambda _, result: {f"accuracy-{split}": draw_accuracy(result, title)}  # noqa: E731
    return save_in(folder_for(opened, save), f"evaluation-{split}", evaluation, draw).result


def evaluate_all(
    models: Sequence[str],
    split: str = "test",
    *,
    save: Place = False,
    run_adapter: bool = False,
    quiet: bool = False,
    timeout: float = TIMEOUT,
    at_once: int = AT_ONCE,
) -> dict[str, Submission[Evaluation | Classification]]:
    """Evaluate several models, such as the submissions of a course, each in a process of its own.

    The returned mapping has one `Submission` per model, by the model's name. A submission that fails, takes more
    than `timeout` seconds or ends its process has an `error` instead of a result. `at_once` processes run at the
    same time.
    """
    types: list[type[Evaluation | Classification]] = [Evaluation, Classification]
    settings: dict[str, Any] = {"split": split, "save": save if isinstance(save, bool) else str(save)}
    limits: dict[str, Any] = {"timeout": timeout, "at_once": at_once, "is_quiet": quiet}
    return run_course(models, evaluate, types, title="evaluating models", run_adapter=run_adapter, **limits, **settings)


def read_evaluation(run: Run, split: str = "test") -> Evaluation | Classification:
    """Return the evaluation of a run that `evaluate` has saved for this split (such as the test set)."""
    return run.output.read_result(f"evaluation-{split}", EVALUATIONS[run.task.output_type])
