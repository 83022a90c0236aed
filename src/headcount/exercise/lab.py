"""Run both experiments of the exercise, and write one report.

The first experiment trains an adder, checks every sum and measures which heads matter. The second measures how far
sortedness models extrapolate, and how that depends on encoding and pooling.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headcount.analysis.exhaustive import Certificate
from headcount.analysis.length_generalisation import REPORTED, Stretch
from headcount.analysis.length_generalisation import stretch as measure_lengths
from headcount.analysis.poolings import compare_poolings
from headcount.analysis.pruning import Pruning
from headcount.analysis.verification import Verification
from headcount.api.ablation import ablate_heads
from headcount.api.pruning import SavedPruning, prune_heads
from headcount.api.reporting import N_EXAMPLES, claim_forms, gather, write_forms
from headcount.api.routing import routes
from headcount.api.saving import save_in
from headcount.api.training import read_evaluation, train
from headcount.api.verifying import stored_verification, verify
from headcount.api.viewing import head_stats, show_heads, show_positions, stretch
from headcount.describing.extrapolation import EXERCISE
from headcount.errors import InputError
from headcount.experiments.models import RunModel
from headcount.models.poolings import PARTS
from headcount.rendering.progress import announcer
from headcount.runs.folder import RunFolder, TrainingRecord
from headcount.runs.run import Run
from headcount.tasks.addition import Addition
from headcount.tasks.base import SequenceTask
from headcount.training.evaluation import Evaluation

EXAMPLE = "374+814"
"""A sum that the model of report 003 answers wrongly, with 0188."""
EXPERIMENTS = ("addition", "sortedness")
SORTEDNESS: dict[str, dict[str, Any]] = {
    "sinusoidal": {"encoding": "sinusoidal"},
    "learned": {"encoding": "learned"},
    "none": {"encoding": "none"},
    "length-normalised": {"encoding": "length-normalised", "pooling": "mean", "negatives": "shuffle"},
    "far-generic": {"preset": "far-generic"},
    "far": {"preset": "far", "until_proved": True},
}
"""Settings of the sortedness models, by name.

There is one model for each of the three encodings of the exercise, one as in report 000, and two that extrapolate far.

The last one is trained until it is proved right at every length.
"""
POOLINGS = ("mean", "score-max", "neighbour-difference")
"""Poolings that are compared with the default (max) on the encodings of the exercise."""
POOLING_STEPS, STEPS_AT_CHANCE = 2000, 300
"""Training steps of the models with other poolings, and of those that stay at chance.

All nine models take about four minutes on one core.

A model with a symmetric pooling and no encoding gets fewer steps, because it stays at 50 % however long it trains.
"""
SEARCH_SECONDS = 5.0
"""Seconds of the search for wrong answers of one sortedness model."""
N_WRONG = 4
"""Number of wrong sums whose attention the report shows."""
LENGTHS = (8, 12, 16, 32, 64, 128, 256, 512, 1024)
MOST_POOLED = 256
"""Length of the longest sequences on which poolings are compared."""


@dataclass(frozen=True)
class AdditionLab:
    """Results of the addition experiment: the adder, its accuracy, the check of all sums, and the pruning."""

    run: Run
    evaluation: Evaluation
    certificate: Certificate
    pruning: Pruning | None
    """None if the adder is almost never right, so that removing heads means nothing."""


@dataclass(frozen=True)
class SortednessLab:
    """Results of the sortedness experiment, by the name of the model."""

    runs: dict[str, Run]
    stretches: dict[str, Stretch]


@dataclass(frozen=True)
class Lab:
    """Results of a lab, and the path of its report."""

    report: Path
    addition: AdditionLab | None
    sortedness: SortednessLab | None


def run_lab(
    out: Path,
    *,
    seed: int = 0,
    quiet: bool = False,
    experiments: tuple[str, ...] = EXPERIMENTS,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    n: int = 200,
    n_examples: int = N_EXAMPLES,
) -> Lab:
    """Run the experiments and write a report; continue a lab that was interrupted.

    `settings` are training settings by experiment. `n` is the number of sequences per length and kind.
    """
    settings = settings or {}
    whole = set(experiments) == set(EXPERIMENTS)
    report = out / ("report.html" if whole else f"report-{'-'.join(experiments)}.html")
    RunFolder(out).require_name()
    claim_forms(report, force=None)
    addition = sortedness = None
    runs = list[Run]()
    if "addition" in experiments:
        addition = _addition(out, seed, quiet, settings.get("addition", {}))
        runs.append(addition.run)
    if "sortedness" in experiments:
        sortedness = _sortedness(out, seed, quiet, settings.get("sortedness", {}), n)
        runs += sortedness.runs.values()
    announcer(quiet)("writing the report")
    shown = () if addition is None else _shown_sums(addition)
    results = gather(*runs, title="headcount lab", on=shown, stored=True, n_examples=n_examples, quiet=True)
    write_forms(results, report)
    return Lab(report, addition, sortedness)


def _shown_sums(addition: AdditionLab) -> tuple[str, ...]:
    """Return the sums whose attention the report shows: two chosen sums, then sums that the model answers wrong."""
    wrong = (sum_.example for sum_ in addition.certificate.wrong[:N_WRONG])
    return *examples_of(cast(Addition, addition.run.task)), *wrong


def _train(task: str, path: Path, seed: int, quiet: bool, settings: Mapping[str, Any]) -> Run:
    return train(task, out=path, seed=seed, resume=RunFolder(path).holds_a_run, quiet=quiet, **settings)


def _addition(out: Path, seed: int, quiet: bool, settings: Mapping[str, Any]) -> AdditionLab:
    say = announcer(quiet)
    say("addition 1/6  training an adder on 3-digit sums (test set held out)")
    run = _train("addition", out / "addition", seed, quiet, settings)
    say(f"addition 2/6  checking all {cast(SequenceTask, run.task).domain_size:,} sums")
    certificate = cast(Certificate, _verified(run, quiet))
    say("addition 3/6  drawing the attention of every head")
    show_heads(run, examples_of(cast(Addition, run.task))[0], save=True)
    show_heads(run, save=True)
    head_stats(run, save=True, quiet=quiet)
    say("addition 4/6  ablating each head alone")
    ablate_heads(run, examples=True, save=True, quiet=quiet)
    say("addition 5/6  following the carry through the heads")
    routes(run, save=True, quiet=quiet)
    say("addition 6/6  removing heads together")
    try:
        pruned = prune_heads(run, save=True, quiet=quiet)
    except InputError as error:  # the adder is almost never right; the lab goes on
        say(str(error))
        pruned = SavedPruning(None)
    return AdditionLab(run, cast(Evaluation, read_evaluation(run)), certificate, pruned.result)


def _verified(run: Run, quiet: bool) -> Verification:
    """Verify a run, or return its stored verification, because a repeated search would find other examples."""
    stored = stored_verification(RunModel.of(run))
    return stored or verify(run, seconds=SEARCH_SECONDS, save=True, quiet=quiet)


def examples_of(task: Addition) -> tuple[str, str]:
    """Return two sums to show: `EXAMPLE` (a test sum if the task lacks it), and that with the longest carry chain."""
    test = task.split("test")
    hardest = task.show(test[task.carries(test).longest.argmax()])
    try:
        return task.show(task.parse(EXAMPLE)[0]), hardest
    except InputError:
        return task.show(test[0]), hardest


def _sortedness(out: Path, seed: int, quiet: bool, settings: Mapping[str, Any], n: int) -> SortednessLab:
    say, runs, plain = announcer(quiet), dict[str, Run](), [name for name in EXERCISE if name in SORTEDNESS]
    n_parts = len(SORTEDNESS) + 2 + len(plain)
    for i, (name, model_settings) in enumerate(SORTEDNESS.items(), start=1):
        say(f"sortedness {i}/{n_parts}  training on lengths 8-16: {name}")
        runs[name] = _train("sortedness", out / f"sortedness-{name}", seed, quiet, model_settings | dict(settings))
    say(f"sortedness {len(SORTEDNESS) + 1}/{n_parts}  measuring how far each model extrapolates")
    shared = out / "stretch"
    unproved = [run for name, run in runs.items() if not SORTEDNESS[name].get("until_proved")]
    stretched = stretch(*runs.values(), lengths=LENGTHS, n=n, draw=REPORTED, out=shared, save=True, quiet=quiet)
    stretches = dict(zip(runs, stretched.result, strict=True))
    show_positions(runs["learned"], save=True)
    say(f"sortedness {len(SORTEDNESS) + 2}/{n_parts}  searching for wrong answers inside the training lengths")
    for run in unproved:
        _verified(run, quiet)
    for i, encoding in enumerate(plain, start=len(SORTEDNESS) + 3):
        say(f"sortedness {i}/{n_parts}  training with other poolings: {encoding} ({', '.join(POOLINGS)})")
        others = _other_poolings(out, encoding, seed, quiet, settings, n)
        comparison = compare_poolings(stretches[encoding], others, runs[encoding].folder.read_training())
        save_in(runs[encoding].output, "poolings", comparison)
    return SortednessLab(runs, stretches)


def _other_poolings(
    out: Path, encoding: str, seed: int, quiet: bool, settings: Mapping[str, Any], n: int
) -> list[tuple[Stretch, TrainingRecord]]:
    """Train models with other poolings, and measure each on the same sequences as the models of the exercise."""
    results = []
    for pooling in POOLINGS:
        steps = STEPS_AT_CHANCE if encoding == "none" and PARTS[pooling].symmetric else POOLING_STEPS
        model_settings = {"encoding": encoding, "pooling": pooling, "steps": steps, "eval_every": 500, **settings}
        run = _train("sortedness", out / "poolings" / f"{encoding}-{pooling}", seed, quiet, model_settings)
        lengths = [length for length in LENGTHS if length <= MOST_POOLED]
        result = measure_lengths(RunModel.of(run), lengths, n=n, draw=REPORTED, explain=False)
        results.append((result, run.folder.read_training()))
    return results
