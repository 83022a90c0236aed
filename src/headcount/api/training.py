"""Train and evaluate models."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from headcount.analysis.context_proof import ContextCertificate, prove
from headcount.analysis.exhaustive_check import LARGEST_DOMAIN
from headcount.analysis.length_generalisation import LENGTHS
from headcount.api.courses import AT_ONCE, Submission, run_course
from headcount.api.opening import AnyModel, open_on_task
from headcount.api.saving import Place, folder_for, save_in, write_figures
from headcount.auditing.audit import explain_errors
from headcount.auditing.audited_model import AuditedClassifier, audited_model
from headcount.errors import argument
from headcount.experiments.models import RunModel
from headcount.figures.training import draw_accuracy, draw_curves
from headcount.limits import TIMEOUT
from headcount.rendering.progress import TrainingProgress, announcer, counting
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder, read_config
from headcount.runs.run import Run, locate
from headcount.runs.trackers import require_trackers, tracker_names
from headcount.runs.train import train_run
from headcount.tasks.base import ClassTask, SequenceTask
from headcount.training.evaluation import (
    EVALUATIONS,
    Classification,
    Evaluation,
    evaluate_classes,
    evaluate_sequences,
)


def train(
    task: str = "addition",
    *,
    out: str | Path | None = None,
    seed: int | None = None,
    preset: str | Sequence[str] = (),
    config: str | Path | None = None,
    resume: bool = False,
    tracker: str | Sequence[str] = (),
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train a model on a task, evaluate it on the test set and draw the training curves.

    * `out` is the run folder to write; the default is `runs/TASK-SEED`.
    * `seed` is the seed of everything random in training.
    * `preset` names one or more sets of settings; `headcount train TASK --help` lists them.
    * `config` is the folder or config file of another run, whose settings replace the defaults.
    * `resume` continues the unfinished run in the folder.
    * `tracker` names experiment trackers to use beside TensorBoard: "mlflow" or "wandb", which write into the run
      folder.
    * `settings` are the other flags of `headcount train TASK --help`, such as `n_heads=2`.

    Return the run, which predicts with `run.predict("374+814")`.

        run = headcount.train("addition", n_heads=2, steps=3000, out="runs/mine")
    """
    base, trackers = None, tracker_names(tracker)
    require_trackers(trackers)
    if config:
        base = read_config(Path(config)) if Path(config).is_file() else locate(config).read_config()
    run_config = RunConfig.build(task, base=base, seed=seed, preset=preset, **settings)
    path = Path(out) if out else Path("runs") / f"{task}-{run_config.seed}"
    say = announcer(quiet)
    if resume and RunFolder(path).holds_a_run:
        # Settings that are not given keep the values of the unfinished run.
        base = base or RunFolder(path).read_config()
        run_config = RunConfig.build(task, base=base, seed=seed, preset=preset, **settings)
        say(f"{path} is already finished" if RunFolder(path).is_finished else f"continuing {path}")
    elif resume:
        say(f"nothing to resume in {path}: starting a new run")
    with TrainingProgress(run_config.training.most_steps, quiet=quiet) as progress:
        run = train_run(
            run_config, path, resume=resume, listeners=[progress], trackers=trackers, warn=announcer(quiet=False)
        )
    if run_config.training.until_proved:
        with counting("proving", quiet=quiet) as checked:
            save_in(run.output, "certificate", prove(RunModel.of(run), progress=checked))
    write_figures(run.output, lambda: {"curves": draw_curves(run.folder.read_log(), f"Training of {run.name}")})
    evaluate(run, save=True)
    return run


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


def read_certificate(run: Run) -> ContextCertificate:
    """Return the stored certificate (the outcome of the proof) of a run that was trained with `until_proved`."""
    return run.output.read_result("certificate", ContextCertificate)


def next_command(run: Run) -> str:
    """Return the command that a user should run next on a run that was just trained."""
    name = argument(run.name)
    if run.task.output_type == "sequence":
        few_enough = cast(SequenceTask, run.task).domain_size <= LARGEST_DOMAIN
        return f"headcount {'verify' if few_enough else 'evaluate'} {name}"
    shortest, longest = cast(ClassTask, run.task).trained_lengths
    flags = "" if longest >= LENGTHS[0] else f" --lengths {shortest},{longest}"  # it may not accept longer ones
    return f"headcount stretch {name}{flags}"
