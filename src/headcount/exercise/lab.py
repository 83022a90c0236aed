"""Run both experiments of the exercise as a plan of parts, and write one report (`headcount lab`).

The first experiment trains an adder, checks every sum and measures which heads matter. The second measures how far
sortedness models extrapolate, and how that depends on encoding and pooling.

A part is one piece of work, such as the ablation of the adder's heads. When it ends, it writes a receipt: a file with
digests of its settings and of the weights that it worked on. A part whose receipt fits is not repeated. Parts run one
after the other in this process, or several at a time in processes of their own (`headcount lab --part NAME`). In the
second case, the report is written when the first part ends, and again when other parts have ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from shlex import join
from typing import Any, cast

from headcount.analysis.exhaustive_check import Certificate
from headcount.analysis.length_generalisation import REPORTED, Stretch
from headcount.analysis.length_generalisation import stretch as measure_lengths
from headcount.analysis.pooling_comparison import compare_poolings
from headcount.analysis.pruning import Pruning
from headcount.analysis.verification import Verification
from headcount.api.ablation import ablate_heads
from headcount.api.auditing import audit
from headcount.api.evaluating import read_evaluation
from headcount.api.heads import head_stats, show_heads
from headcount.api.positions import show_positions
from headcount.api.pruning import prune_heads
from headcount.api.reporting import N_EXAMPLES, claim_forms, gather, write_forms
from headcount.api.routing import routes
from headcount.api.saving import Saved, result_name, save_in
from headcount.api.stretching import join_stretches, stretch
from headcount.api.training import train
from headcount.api.verifying import stored_verification, verify
from headcount.describing.extrapolation import EXERCISE
from headcount.errors import CheckFailed, HeadcountError, InputError, Interrupted
from headcount.experiments.models import RunModel
from headcount.files import read_json, write_atomically
from headcount.models.poolings import PARTS
from headcount.rendering.progress import announcer
from headcount.rendering.study_table import watching
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder, digest
from headcount.runs.run import Run, load
from headcount.studies.plan import Named, training_progress
from headcount.studies.running import BUSY, LocalProcesses, Progress, environment, exclusively, execute
from headcount.suggestions import suggestion
from headcount.tasks.addition import Addition
from headcount.training.evaluation import Evaluation

EXAMPLE = "374+814"
"""A sum that the model of published report 003 answers wrongly, with 0188."""
EXPERIMENTS = ("addition", "sortedness")
SORTEDNESS: dict[str, dict[str, Any]] = {
    "sinusoidal": {"encoding": "sinusoidal", "steps": 2000},
    "learned": {"encoding": "learned"},
    "none": {"encoding": "none", "steps": 500},
    "length-normalised": {
        "encoding": "length-normalised",
        "pooling": "mean",
        "negatives": "shuffle",
        "steps": 1000,
    },
    "far-generic": {"preset": "far-generic"},
    "far": {"preset": "far", "until_proved": True},
}
"""Maps the name of each sortedness model to its training settings.

There is one model for each of the three encodings of the exercise, one as in published report 000, and two that
extrapolate far.

Some train for fewer steps than the default: the model without encoding, because it stays at 50 % however long it
trains, and models that are right on 99 % of the test set earlier. The last model is trained until it is proved right
at every length.
"""
POOLINGS = ("mean", "score-max", "neighbour-difference")
"""Poolings that are compared with the default pooling (max), with each encoding of the exercise."""
POOLING_STEPS, STEPS_AT_CHANCE = 1000, 300
"""Training steps of models with other poolings than the default, and of models that stay at chance.

A model with a symmetric pooling and no encoding gets fewer steps, because it stays at 50 % however long it trains.
"""
SEARCH_SECONDS = 3.0
"""Number of seconds spent on a search for wrong answers of each sortedness model."""
PAUSE = 10.0
"""Pause between two reports of an unfinished lab, as a multiple of the time that the last report took."""
FIRST_PAUSE = 60.0
"""Smallest number of seconds between the first report of an unfinished lab and the second."""
FIRST_BANDS: dict[str, Any] = {"budget": "3s", "replacements": ("zero", "resample")}
"""Settings of a first, rough ablation of the adder's heads for the first report, without mean ablation to save time."""
REPORT = "report"
"""Value of `--part` with which a process writes the report; the report is not a part, because it is never finished."""
N_WRONG = 4
"""Largest number of wrongly answered sums for which the report shows attention."""
LENGTHS = (8, 12, 16, 32, 64, 128, 256, 512, 1024)
DURATIONS = {
    "adder": 115,
    "adder-ablation": 23,
    "adder-heads": 30,
    "adder-sums": 88,
    "adder-routes": 69,
    "adder-pruning": 63,
    "sorter-far": 85,
}
"""Maps a part to how long it took in one lab (docs/LOG.md), in seconds of one core, to estimate the remaining time."""
STEP_SECONDS, SORTER_SECONDS, POOLING_SECONDS = 0.018, 16, 5
"""Seconds of a training step of a sortedness model in that lab, and of all measurements of a model or a pooling."""
ADDER_STEP_SECONDS = 0.034
"""Seconds of a training step of the adder in that lab, by which the speed of another machine is compared."""
N_SEQUENCES = 200
"""Number of test sequences for each length and each kind of unsorted sequence."""
MOST_POOLED = 256
"""Length of the longest sequences on which poolings are compared."""


@dataclass(frozen=True)
class AdditionLab:
    """Results of the addition experiment: the adder, its accuracy, the check of all sums, and the pruned heads."""

    run: Run
    evaluation: Evaluation
    certificate: Certificate
    pruning: Pruning | None
    """None if the adder is almost never right, so that removing heads means nothing."""


@dataclass(frozen=True)
class SortednessLab:
    """Results of the sortedness experiment: trained models, and their accuracy by length, by the name of the model."""

    runs: dict[str, Run]
    stretches: dict[str, Stretch]


@dataclass(frozen=True)
class Lab:
    """Results of `headcount lab`: the path of its report, and the results of each experiment that was run."""

    report: Path
    addition: AdditionLab | None
    sortedness: SortednessLab | None


@dataclass(frozen=True)
class LabPart:
    """One part of a lab: a training, or a measurement of a trained model."""

    name: str
    words: str
    """What the part does, in words."""
    folder: Path
    """Folder of the run that the part trains or measures."""
    work: Callable[[], object] = field(repr=False)
    receipt: Path
    settings: str
    """Digest of everything that the result of the part depends on, except the weights."""
    needs: tuple[str, ...] = ()
    n_steps: int = 0
    """Number of training steps; 0 for a measurement."""

    @property
    def weight(self) -> float:
        """How long the part takes, in training steps of the adder, for the estimate of the remaining time."""
        measuring = POOLING_SECONDS if self.name.startswith("pooling") else SORTER_SECONDS
        return DURATIONS.get(self.name, STEP_SECONDS * self.n_steps + measuring) / ADDER_STEP_SECONDS

    def progress(self) -> float:
        """Return the fraction of the training steps that are finished; 0 for a measurement."""
        return training_progress(self.folder, self.n_steps) if self.n_steps else 0.0

    @property
    def is_done(self) -> bool:
        """Whether the part was finished with these settings, and the weights of its run have not changed since."""
        if not self.receipt.exists():
            return False
        try:
            return bool(read_json(self.receipt) == self._mark())
        except HeadcountError:  # a damaged receipt: the part is repeated
            return False

    def run(self) -> None:
        """Do the work of this part, and write its receipt."""
        self.work()
        write_atomically(self.receipt, (json.dumps(self._mark()) + "\n").encode())

    def _mark(self) -> dict[str, str | None]:
        folder = RunFolder(self.folder)
        weights = folder.read_manifest()["files"].get(folder.weights_file.name) if folder.is_finished else None
        return {"settings": self.settings, "weights": weights}


@dataclass(frozen=True)
class LabPlan:
    """All parts of a lab, in the order in which they start."""

    out: Path
    seed: int = 0
    experiments: tuple[str, ...] = EXPERIMENTS
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Training settings that differ from the defaults, by experiment."""
    n: int = N_SEQUENCES
    """Number of test sequences for each length and each kind of unsorted sequence."""
    n_examples: int = N_EXAMPLES
    """Number of examples for which the report shows attention."""
    quiet: bool = True
    """Whether the parts run without showing their progress."""

    title = "headcount lab"

    @property
    def report(self) -> Path:
        """The path of the report on both experiments, or on the one that is run."""
        whole = set(self.experiments) == set(EXPERIMENTS)
        return self.out / ("report.html" if whole else f"report-{'-'.join(self.experiments)}.html")

    @cached_property
    def jobs(self) -> tuple[LabPart, ...]:
        """All parts; the training of the adder comes first, because all measurements of its heads wait for it."""
        parts = [*(self._addition() if "addition" in self.experiments else ())]
        return (*parts, *(self._sortedness() if "sortedness" in self.experiments else ()))

    def find(self, name: str) -> LabPart:
        """Return the part with this name; if there is none, raise an error that suggests a similar name."""
        by_name = {part.name: part for part in self.jobs}
        if name not in by_name:
            raise InputError(
                f"the lab has no part (a training or a measurement) with the name {name!r}",
                suggestion(name, tuple(by_name)),
            )
        return by_name[name]

    def log_file(self, job: Named) -> Path:
        """Return the log file into which the process of a part prints."""
        return self.log_of(job.name)

    def log_of(self, name: str) -> Path:
        """Return the path of the log file of the part with this name."""
        return self.out / "logs" / f"{name}.log"

    def arguments(self, job: Named) -> list[str]:
        """Return the command-line arguments of `headcount` that run one part."""
        return self.arguments_of(job.name)

    def arguments_of(self, name: str) -> list[str]:
        """Return the command-line arguments of `headcount` that run the part with this name, or write the report."""
        return [*self.own_arguments, "--part", name]

    @property
    def own_arguments(self) -> list[str]:
        """The command-line arguments of `headcount` that run the whole lab, or continue it."""
        only = ["--only", *self.experiments] if len(self.experiments) == 1 else []
        return ["lab", "--out", str(self.out), "--seed", str(self.seed), *only]

    # --- folders and runs ---------------------------------------------------------------------------------------------

    @property
    def adder(self) -> Path:
        """Run folder of the adder."""
        return self.out / "addition"

    def sorter(self, name: str) -> Path:
        """Return the run folder of the sortedness model with this name."""
        return self.out / f"sortedness-{name}"

    def pooled(self, encoding: str, pooling: str) -> Path:
        """Return the run folder of the sortedness model with this encoding and this (not the default) pooling."""
        return self.out / "poolings" / f"{encoding}-{pooling}"

    @property
    def trained(self) -> list[Path]:
        """Run folders of those models for the report whose training is finished."""
        folders = [self.adder] if "addition" in self.experiments else []
        folders += [self.sorter(name) for name in SORTEDNESS] if "sortedness" in self.experiments else []
        return [folder for folder in folders if RunFolder(folder).is_finished]

    # --- parts --------------------------------------------------------------------------------------------------------

    def _part(
        self, name: str, words: str, folder: Path, work: Callable[[], object], *needs: str, n_steps: int = 0
    ) -> LabPart:
        meaning = [self.seed, {key: dict(value) for key, value in self.settings.items()}, self.n, LENGTHS, POOLINGS]
        receipt = self.out / "receipts" / f"{name}.json"
        return LabPart(name, words, folder, work, receipt, digest(repr([name, meaning]).encode()), needs, n_steps)

    def _training(self, name: str, words: str, folder: Path, task: str, settings: Mapping[str, Any]) -> LabPart:
        settings = {**settings, **self.settings.get(task, {})}
        steps = RunConfig.build(task, **settings).training.steps
        return self._part(name, words, folder, lambda: self._train(task, folder, settings), n_steps=steps)

    def _train(self, task: str, folder: Path, settings: Mapping[str, Any]) -> Run:
        is_there = RunFolder(folder).holds_a_run
        return train(task, out=folder, seed=self.seed, resume=is_there, quiet=self.quiet, **settings)

    def _addition(self) -> Iterator[LabPart]:
        training = self._training("adder", "training an adder on 3-digit sums", self.adder, "addition", {})
        ablate = partial(ablate_heads, examples=True, save=True, quiet=self.quiet)
        yield replace(training, work=partial(self._first_bands, training, partial(ablate, **FIRST_BANDS)))

        def part(name: str, words: str, work: Callable[[Run], object]) -> LabPart:
            return self._part(f"adder-{name}", words, self.adder, lambda: work(load(self.adder)), "adder")

        quiet = self.quiet
        yield part("ablation", "ablating each head alone", ablate)
        yield part("heads", "drawing the attention of every head", self._show_heads)
        yield part("sums", "checking all sums", lambda run: _verified(run, quiet))
        yield part("routes", "following the carry through the heads", partial(routes, save=True, quiet=quiet))
        yield part("pruning", "removing heads together", self._prune)

    def _first_bands(self, training: LabPart, ablate: Callable[[Run], object]) -> None:
        """Train the adder, then ablate its heads for a few seconds, so that the first report can show their drops."""
        training.work()
        ablate(load(training.folder))

    def _show_heads(self, run: Run) -> None:
        show_heads(run, examples_of(cast(Addition, run.task))[0], save=True)
        show_heads(run, save=True)
        head_stats(run, save=True, quiet=self.quiet)
        self._describe(run)

    def _describe(self, run: Run) -> None:
        """Measure what a report needs of every model: its position encodings and the audit."""
        show_positions(run, save=True)
        audit(run, save=True, quiet=self.quiet)

    def _prune(self, run: Run) -> None:
        try:
            prune_heads(run, save=True, quiet=self.quiet)
        except InputError as error:  # the adder is almost never right; the lab goes on
            announcer(self.quiet)(str(error))

    def _sortedness(self) -> Iterator[LabPart]:
        # Those that take longest start first.
        for name, settings in reversed(SORTEDNESS.items()):
            words = f"training the sortedness model “{name}” on lengths 8-16, and measuring how far it extrapolates"
            training = self._training(f"sorter-{name}", words, self.sorter(name), "sortedness", settings)
            yield replace(training, work=partial(self._extrapolate, name, training))
        poolings = [(encoding, pooling) for encoding in _plain() for pooling in POOLINGS]
        for encoding, pooling in sorted(poolings, key=lambda pair: -pooling_settings(*pair)["steps"]):
            words = (
                f"training a model with {pooling} pooling (encoding: {encoding}), and measuring how far it extrapolates"
            )
            name, settings = f"pooling-{encoding}-{pooling}", pooling_settings(encoding, pooling)
            training = self._training(name, words, self.pooled(encoding, pooling), "sortedness", settings)
            yield replace(training, work=partial(self._pooled_lengths, training))

    def _extrapolate(self, name: str, training: LabPart) -> None:
        """Train a sortedness model, measure its accuracy by length, and search for wrong answers if it is unproved."""
        training.work()
        run = load(training.folder)
        stretch(run, lengths=LENGTHS, n=self.n, draw=REPORTED, save=True, quiet=self.quiet)
        self._describe(run)
        if not SORTEDNESS[name].get("until_proved"):
            _verified(run, self.quiet)

    def _pooled_lengths(self, training: LabPart) -> None:
        """Train a model for the comparison of poolings, and measure its accuracy at lengths up to `MOST_POOLED`."""
        training.work()
        run, lengths = load(training.folder), [length for length in LENGTHS if length <= MOST_POOLED]
        result = measure_lengths(RunModel.of(run), lengths, n=self.n, draw=REPORTED, explain=False)
        save_in(run.output, "stretch-compared", result)

    # --- results ------------------------------------------------------------------------------------------------------

    def read_stretch(self, name: str) -> Stretch:
        """Read the stored accuracy by length of the sortedness model with this name."""
        stem = result_name("stretch", lengths=LENGTHS, n=self.n, draw=REPORTED)
        return RunFolder(self.sorter(name)).read_result(stem, Stretch)

    def compare(self) -> None:
        """Store the comparison of poolings, and the accuracy by length of all sortedness models together."""
        stretches = {name: self.read_stretch(name) for name in SORTEDNESS}
        settings = {"lengths": LENGTHS, "negatives": None, "n": self.n, "batch_size": None, "draw": REPORTED}
        join_stretches([Saved(result) for result in stretches.values()], self.out / "stretch", **settings)
        for encoding in _plain():
            folders = [RunFolder(self.pooled(encoding, pooling)) for pooling in POOLINGS]
            others = [(each.read_result("stretch-compared", Stretch), each.read_training()) for each in folders]
            own = RunFolder(self.sorter(encoding))
            save_in(own, "poolings", compare_poolings(stretches[encoding], others, own.read_training()))

    def write_unfinished_report(self) -> None:
        """Write a report on the finished parts of the lab, which also says which parts are missing."""
        missing = [part.words for part in self.jobs if not part.is_done]
        self.write_report(unfinished=f"{len(missing)} of {len(self.jobs)} parts: {'; '.join(missing)}")

    def write_report(self, *, unfinished: str = "") -> None:
        """Write the report on all models whose training is finished, with all results that are stored.

        `unfinished` says in words what is still being measured; if it is not empty, the page reloads itself.
        """
        runs = [load(folder) for folder in self.trained]
        adders = [run for run in runs if run.folder.path == self.adder]
        shown = _shown_sums(adders[0]) if adders else ()
        collect = partial(gather, title="headcount lab", on=shown, n_examples=self.n_examples, quiet=True)
        results = collect(*runs, stored=True, quick=not unfinished)
        write_forms(results, self.report, unfinished=unfinished)


def pooling_settings(encoding: str, pooling: str) -> dict[str, Any]:
    """Return the training settings of a model with this encoding and pooling; at chance level, it trains briefly."""
    steps = STEPS_AT_CHANCE if encoding == "none" and PARTS[pooling].symmetric else POOLING_STEPS
    return {"encoding": encoding, "pooling": pooling, "steps": steps, "eval_every": 500}


def _plain() -> list[str]:
    """Return the encodings of the exercise, for each of which several poolings are compared."""
    return [name for name in EXERCISE if name in SORTEDNESS]


def run_lab(
    out: Path,
    *,
    seed: int = 0,
    quiet: bool = False,
    experiments: tuple[str, ...] = EXPERIMENTS,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    n: int = N_SEQUENCES,
    n_examples: int = N_EXAMPLES,
    processes: int = 1,
) -> Lab:
    """Run the experiments of the exercise and write a report in the folder `out`; continue a lab that was interrupted.

    `settings` are training settings by experiment, `n` is the number of test sequences for each length and kind, and
    `n_examples` is the number of examples whose attention the report shows. With several `processes`, several parts run
    at the same time with the default settings, and the report is rewritten when parts end.
    """
    side_by_side = processes > 1
    if side_by_side and (settings or (n, n_examples) != (N_SEQUENCES, N_EXAMPLES)):
        raise InputError(
            f"settings, n and n_examples cannot be changed with processes={processes}, which uses the defaults",
            "leave them out, or choose processes=1",
        )
    plan = LabPlan(out, seed, experiments, settings or {}, n, n_examples, quiet=quiet or side_by_side)
    RunFolder(out).require_name()
    claim_forms(plan.report, force=None)
    if side_by_side:
        _run_side_by_side(plan, processes, quiet)
    else:
        say = announcer(quiet)
        for i, part in enumerate(plan.jobs, start=1):
            if not part.is_done:
                say(f"part {i} of {len(plan.jobs)}: {part.words}")
                part.run()
    announcer(quiet)("writing the report")
    if "sortedness" in experiments:
        plan.compare()
    plan.write_report()
    return _results(plan)


def _run_side_by_side(plan: LabPlan, processes: int, quiet: bool) -> None:
    """Run all parts in processes of their own, several at a time; raise an error if some of them failed."""
    reporter = _Reporter(plan, quiet)
    try:
        with watching(quiet) as show:

            def on_change(progress: Progress) -> None:
                show(progress)
                reporter(progress)

            progress = execute(plan, LocalProcesses(processes), on_change=on_change)
    except KeyboardInterrupt as stop:
        raise Interrupted(
            "the lab was stopped; finished parts are kept, and trainings have saved their state",
            f"continue with: {join(['headcount', *plan.own_arguments])}",
            signal=getattr(stop, "exit_code", 130) - 128,
        ) from stop
    finally:
        reporter.stop()
    if failed := progress.of("failed"):
        logs = [f"{state.run.name}: {state.error} ({plan.log_file(state.run)})" for state in failed]
        again = "run the same command again: parts that are finished are not repeated"
        raise CheckFailed(
            f"{len(failed)} of {len(plan.jobs)} parts of the lab (trainings and measurements) failed", *logs, again
        )


class _Reporter:
    """Rewrites the report of an unfinished lab in a process of its own when parts have ended, one report at a time.

    The first part writes the first report itself. Later reports wait, so that most of the computing time is left to the
    parts.
    """

    def __init__(self, plan: LabPlan, quiet: bool) -> None:
        self._plan, self._say = plan, announcer(quiet)
        self._process: subprocess.Popen[bytes] | None = None
        self._n_done = 0
        self._is_announced = False
        self._started, self._next = 0.0, time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Start to write the report in another process if a part has ended since the last report was started."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            if self._started:
                self._next = time.monotonic() + PAUSE * (time.monotonic() - self._started)
                self._started = 0.0
        done = {state.run.name for state in progress.of("done")}
        n_done = len(done)
        if not self._is_announced and self._plan.report.exists():
            self._is_announced, self._next = True, time.monotonic() + FIRST_PAUSE
            self._say(f"first report, which is rewritten when parts of the lab end: {self._plan.report}")
        if self._plan.jobs[0].name not in done:
            return
        if self._n_done < n_done < len(progress.states) and time.monotonic() >= self._next:
            self._n_done, self._started = n_done, time.monotonic()
            command = [sys.executable, "-m", "headcount", *self._plan.arguments_of(REPORT)]
            log = self._plan.log_of(REPORT)
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
                self._process = subprocess.Popen(command, env=environment(), start_new_session=True, **streams)

    def stop(self) -> None:
        """Stop the process that writes a report, because the lab writes the final report itself."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def run_part(out: Path, name: str, *, seed: int = 0, experiments: tuple[str, ...] = EXPERIMENTS) -> int:
    """Run one part of a lab in this process; return 0, or BUSY if another process is already running this part.

    The name `report` writes a report on the finished parts, which also says which parts are missing.
    """
    plan = LabPlan(out, seed, experiments)
    with exclusively(out / f".{name}-lock") as is_ours:
        if not is_ours:
            return BUSY
        part = None if name == REPORT else plan.find(name)
        if part is not None and not part.is_done:
            part.run()
        if part is None or (part.name == plan.jobs[0].name and not plan.report.exists()):
            plan.write_unfinished_report()
    return 0


def _results(plan: LabPlan) -> Lab:
    """Return the stored results of a finished lab."""
    addition = sortedness = None
    if "addition" in plan.experiments:
        run = load(plan.adder)
        certificate = cast(Certificate, stored_verification(RunModel.of(run)))
        has_pruning = run.output.result_file("pruning").exists()
        pruning = run.output.read_result("pruning", Pruning) if has_pruning else None
        addition = AdditionLab(run, cast(Evaluation, read_evaluation(run)), certificate, pruning)
    if "sortedness" in plan.experiments:
        runs = {name: load(plan.sorter(name)) for name in SORTEDNESS}
        sortedness = SortednessLab(runs, {name: plan.read_stretch(name) for name in SORTEDNESS})
    return Lab(plan.report, addition, sortedness)


def _shown_sums(run: Run) -> tuple[str, ...]:
    """Return the sums for which the report shows attention: two fixed sums, then sums that the model answers wrong."""
    certificate = stored_verification(RunModel.of(run))
    wrong = certificate.wrong[:N_WRONG] if isinstance(certificate, Certificate) else ()
    return *examples_of(cast(Addition, run.task)), *(each.example for each in wrong)


def _verified(run: Run, quiet: bool) -> Verification:
    """Return the stored verification of a run, or verify the run; a repeated search could find other wrong answers."""
    stored = stored_verification(RunModel.of(run))
    return stored or verify(run, seconds=SEARCH_SECONDS, save=True, quiet=quiet)


def examples_of(task: Addition) -> tuple[str, str]:
    """Return two sums to show: `EXAMPLE` (a test sum if the task lacks it), and one with the longest carry chain."""
    test = task.split("test")
    hardest = task.show(test[task.carries(test).longest.argmax()])
    try:
        return task.show(task.parse(EXAMPLE)[0]), hardest
    except InputError:
        return task.show(test[0]), hardest
