"""What the command line does, as functions: train, evaluate, verify, stretch, show heads.

Each returns a typed result and leaves it, with its pictures, in the run folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headcount.analysis.exhaustive import Certificate
from headcount.analysis.exhaustive import verify as check_every_example
from headcount.analysis.extrapolation import LENGTHS, Stretch
from headcount.analysis.extrapolation import stretch as stretch_run
from headcount.analysis.patterns import AttentionPatterns, average_patterns, patterns_on
from headcount.analysis.positions import PositionsShown, all_encodings, positions_of
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder, digest, read_config
from headcount.runs.run import Run, load, locate
from headcount.runs.train import train_run
from headcount.training.classification import Classification
from headcount.training.evaluation import Evaluation
from headcount.training.learners import EVALUATIONS
from headcount.views.accuracy import draw_accuracy
from headcount.views.attention import draw_heads, draw_pages
from headcount.views.curves import draw_curves
from headcount.views.positions import draw_encodings, draw_positions
from headcount.views.progress import TrainingProgress, announcer, counting
from headcount.views.stretch import draw_dispersion, draw_stretch
from headcount.views.style import png


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
    base = _settings_of(config) if config else None
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
    with TrainingProgress(wanted.training.steps, wanted.training.batch_size, quiet=quiet) as progress:
        run = train_run(wanted, path, resume=resume, listeners=[progress])
    run.output.write_figure("curves.png", png(draw_curves(run.folder.read_log(), f"Training of {run.name}")))
    evaluate(run)
    return run


def evaluate(run: str | Path | Run, split: str = "test") -> Evaluation | Classification:
    """How good a model is on a held-out set: both ways and by digit, or by class and by length."""
    run = _loaded(run)
    evaluation = run.evaluate(split)
    run.output.write_result(f"evaluation-{split}", evaluation)
    run.output.write_figure(f"accuracy-{split}.png", png(draw_accuracy(evaluation, f"{run.name} on its {split} set")))
    return evaluation


def read_evaluation(run: Run, split: str = "test") -> Evaluation | Classification:
    """What `evaluate` found."""
    return run.output.read_result(f"evaluation-{split}", EVALUATIONS[run.task.asks_for])


def verify(run: str | Path | Run, *, quiet: bool = False) -> Certificate:
    """Check every example there is."""
    run = _loaded(run)
    run.output.require_writable()
    with counting("checking", quiet=quiet) as progress:
        certificate = check_every_example(run, progress=progress)
    run.output.write_result("certificate", certificate)
    return certificate


@dataclass(frozen=True)
class HeadsShown:
    """Where every head looks, and where that was written."""

    patterns: AttentionPatterns
    data: Path
    pages: list[Path]
    """One per kind of site."""
    pictures: list[Path]
    """One per head."""


def show_heads(run: str | Path | Run, on: str | None = None, *, split: str = "test") -> HeadsShown:
    """Heat maps of every head: on one example, or (without one) averaged over a held-out set."""
    run = _loaded(run)
    patterns = patterns_on(run, on) if on is not None else average_patterns(run, split)
    name = f"heads-{_file_name(patterns.example)}" if patterns.example else f"heads-{split}"
    data = run.output.write_result(name, patterns)
    pages, heads = (
        [run.output.write_figure(f"{name}/{title}.png", png(figure)) for title, figure in figures.items()]
        for figures in (draw_pages(patterns), draw_heads(patterns))
    )
    return HeadsShown(patterns, data, pages, heads)


@dataclass(frozen=True)
class Stretched:
    """How far each run reaches, and where that was drawn."""

    results: list[Stretch]
    figures: list[Path]


def stretch(
    *runs: str | Path | Run,
    lengths: Sequence[int] | None = None,
    negatives: Sequence[str] | None = None,
    n: int | None = None,
    batch_size: int | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Stretched:
    """Accuracy far beyond the trained lengths, by kind of negative; several runs share one more figure in `out`."""
    loaded = [_loaded(run) for run in runs]
    asked = LENGTHS if lengths is None else lengths
    results, figures = [], []
    for run in loaded:
        run.output.require_writable()
        with counting(f"stretching {run.name}, %", quiet=quiet) as progress:
            found = stretch_run(run, asked, negatives, n, batch_size=batch_size, progress=progress)
        run.output.write_result("stretch", found)
        for name, figure in (("stretch", draw_stretch([found])), ("dispersion", draw_dispersion(found))):
            figures.append(run.output.write_figure(f"{name}.png", png(figure)))
        results.append(found)
    if len(results) > 1:
        folder = RunFolder(Path(out or "runs/stretch"))
        figures.append(folder.write_figure("stretch.png", png(draw_stretch(results))))
    return Stretched(results, figures)


@dataclass(frozen=True)
class PositionsDrawn:
    """What a model knows of positions, and where that was written."""

    positions: PositionsShown
    data: list[Path]
    """This run, and every encoding side by side."""
    pages: list[Path]
    """The same two, drawn."""


def show_positions(run: str | Path | Run, n_positions: int | None = None) -> PositionsDrawn:
    """What a model's encoding does at trained positions and past them, and every encoding side by side."""
    run = _loaded(run)
    run.output.require_writable()
    shown = positions_of(run, n_positions)
    shape = run.config.model
    beside = all_encodings(run, d_model=shape.d_model, n_heads=shape.n_heads, n_positions=shown.n_positions)
    data = [run.output.write_result(name, result) for name, result in (("positions", shown), ("encodings", beside))]
    figures = {"positions.png": draw_positions(shown), "encodings.png": draw_encodings(beside)}
    pages = [run.output.write_figure(f"positions/{name}", png(figure)) for name, figure in figures.items()]
    return PositionsDrawn(shown, data, pages)


def _file_name(example: str) -> str:
    """Short enough for every file system, and without spaces; a long example ends in its digest."""
    name = example.replace(" ", "_")
    return name if len(name) <= 80 else f"{name[:60]}-{digest(name.encode())[:12]}"


def _loaded(run: str | Path | Run) -> Run:
    return run if isinstance(run, Run) else load(run)


def _settings_of(config: str | Path) -> RunConfig:
    return read_config(Path(config)) if Path(config).is_file() else locate(config).read_config()
