"""Train, evaluate, verify."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from headcount.analysis.exhaustive import LARGEST_DOMAIN, Certificate
from headcount.analysis.exhaustive import verify as check_every_example
from headcount.analysis.length_generalisation import LENGTHS
from headcount.api.opening import AnyModel, open_run
from headcount.api.saving import save, write_figures
from headcount.errors import argument
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder, read_config
from headcount.runs.run import Run, locate
from headcount.runs.train import train_run
from headcount.tasks.base import ClassTask, SequenceTask
from headcount.training.evaluation import EVALUATIONS, Classification, Evaluation
from headcount.views.progress import TrainingProgress, announcer, counting
from headcount.views.training import draw_accuracy, draw_curves


def train(
    task: str = "addition",
    *,
    out: str | Path | None = None,
    seed: int | None = None,
    preset: str | Sequence[str] = (),
    config: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train a model, evaluate it on its test set and draw its curves.

    `settings` are those of `headcount train --help` (`n_heads=2`); `config` begins from the folder or file of
    another run instead of the defaults. The default folder is `runs/TASK-SEED`.
    """
    base = None
    if config:
        base = read_config(Path(config)) if Path(config).is_file() else locate(config).read_config()
    wanted = RunConfig.build(task, base=base, seed=seed, preset=preset, **settings)
    path = Path(out) if out else Path("runs") / f"{task}-{wanted.seed}"
    say = announcer(quiet)
    if resume and RunFolder(path).holds_a_run:
        # What was not asked for now stays as it was asked for then.
        base = base or RunFolder(path).read_config()
        wanted = RunConfig.build(task, base=base, seed=seed, preset=preset, **settings)
        say(f"{path} is finished already" if RunFolder(path).is_finished else f"going on with {path}")
    elif resume:
        say(f"nothing to resume in {path}: starting anew")
    with TrainingProgress(wanted.training.steps, quiet=quiet) as progress:
        run = train_run(wanted, path, resume=resume, listeners=[progress])
    write_figures(run.output, {"curves": draw_curves(run.folder.read_log(), f"Training of {run.name}")})
    evaluate(run)
    return run


def evaluate(model: AnyModel, split: str = "test") -> Evaluation | Classification:
    """How good a model is on a held-out set: both ways and by digit, or by class and by length."""
    run = open_run(model, "evaluate")
    evaluation = run.evaluate(split)
    figure = draw_accuracy(evaluation, f"{run.name} on its {split} set")
    save(run.output, f"evaluation-{split}", evaluation, {f"accuracy-{split}": figure})
    return evaluation


def read_evaluation(run: Run, split: str = "test") -> Evaluation | Classification:
    """What `evaluate` found."""
    return run.output.read_result(f"evaluation-{split}", EVALUATIONS[run.task.output_type])


def next_command(run: Run) -> str:
    """What to do with a run that was just trained; it can be done with this one."""
    name = argument(run.name)
    if run.task.output_type == "sequence":
        few_enough = cast(SequenceTask, run.task).domain_size <= LARGEST_DOMAIN
        return f"headcount {'verify' if few_enough else 'evaluate'} {name}"
    shortest, longest = cast(ClassTask, run.task).trained_lengths
    own = "" if longest >= LENGTHS[0] else f" --lengths {shortest},{longest}"  # it may take no longer ones
    return f"headcount stretch {name}{own}"


def verify(model: AnyModel, *, quiet: bool = False) -> Certificate:
    """Check every example there is."""
    run = open_run(model, "verify")
    run.output.require_writable()
    with counting("checking", quiet=quiet) as progress:
        certificate = check_every_example(run, progress=progress)
    run.output.write_result("certificate", certificate)
    return certificate
