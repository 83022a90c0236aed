"""Train models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from headcount.analysis.context_proof import ContextCertificate, prove
from headcount.analysis.exhaustive_check import LARGEST_DOMAIN
from headcount.api.evaluating import evaluate
from headcount.api.saving import save_in, write_figures
from headcount.errors import argument
from headcount.experiments.models import RunModel
from headcount.figures.training import draw_curves
from headcount.limits import LENGTHS
from headcount.rendering.progress import TrainingProgress, announcer, counting
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder, read_config
from headcount.runs.run import Run, locate
from headcount.runs.trackers import require_trackers, tracker_names
from headcount.runs.train import train_run
from headcount.tasks.base import ClassTask, SequenceTask


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
