"""The plan of a study: its runs, the commands of each run, and which of the commands are done.

A run of a study is a folder `models/TASK-DIGEST`, where the digest is that of all settings. Two studies, or two
versions of one study, therefore share the runs whose settings are equal. Every command leaves a receipt in the run
folder when it has ended. A command whose receipt belongs to the present weights is not repeated. The plan itself keeps
no state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from headcount.errors import InputError, RunError
from headcount.files import read_json, write_atomically
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder, digest
from headcount.studies.file import Flags, Part, Study, Variant, build_config
from headcount.suggestions import suggestion

POOL = "models"
"""Name of the folder, beside the study's own, that holds the runs of all studies."""
PLAN = "plan.json"
"""Name of the file, in the study's folder, that lists all runs."""
RECEIPTS = "receipts"
"""Name of the folder, inside a run folder, that holds the receipts (records) of finished commands."""


@dataclass(frozen=True)
class Step:
    """One command of a run, without `headcount`: train, or a verb that measures the run."""

    verb: str
    arguments: tuple[str, ...]
    """Flags of the verb; those that name folders are left out."""
    at: int | None = None
    """Training step of the snapshot that is measured; None for the trained model."""

    @property
    def name(self) -> str:
        """Name of the receipt: the verb, and a digest of everything that the result depends on."""
        at = "" if self.at is None else f"-at-{self.at}"
        return f"{self.verb}{at}-{digest(json.dumps([self.verb, self.arguments, self.at]).encode())[:12]}"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study: its folder, and the commands that train and measure it."""

    name: str
    """Labels and seed, such as `encoding=none,seed=0`."""
    part: str
    labels: Mapping[str, str]
    seed: int
    folder: Path
    steps: tuple[Step, ...]
    """The commands in their order; the first one trains."""
    n_training_steps: int
    task: str
    needs: tuple[str, ...] = ()
    """The names of runs that must end before this one starts; there are none in a study."""
    trackers: tuple[str, ...] = ()
    """Experiment trackers, such as mlflow, that record the training; receipts do not depend on them."""

    @property
    def weight(self) -> float:
        """The duration of the run relative to other runs, given by its number of training steps."""
        return self.n_training_steps

    def progress(self) -> float:
        """Return the fraction of the training steps that are done, from the log of the run."""
        return training_progress(self.folder, self.n_training_steps)

    def command(self, step: Step) -> list[str]:
        """Return the arguments of `headcount` for one command of this run."""
        if step.verb == "train":
            reports = (word for name in self.trackers for word in ("--tracker", name))
            return ["train", self.task, *step.arguments, "--out", str(self.folder), "--resume", *reports]
        model = str(self.folder) if step.at is None else f"{self.folder}@{step.at}"
        return [step.verb, model, *step.arguments]

    def receipt(self, step: Step) -> Path:
        """Return the path of the file (receipt) that records that a command of this run has ended."""
        return self.folder / RECEIPTS / f"{step.name}.json"

    def open_steps(self) -> list[Step]:
        """Return the commands of this run that are not done, or were done before the weights changed."""
        weights = self._weights()
        if weights is None:
            return list(self.steps)
        return [step for step in self.steps if not self._is_done(step, weights)]

    @property
    def is_done(self) -> bool:
        """Whether every command of this run has ended."""
        return not self.open_steps()

    @property
    def results(self) -> frozenset[str] | None:
        """The result files that the commands of this run wrote; see `results_of`."""
        return results_of(self.folder, [step.name for step in self.steps])

    def write_receipt(
        self, step: Step, exit_code: int, output: Any = None, results: Collection[str] | None = None
    ) -> None:
        """Record that a command has ended, with the digest of the weights that it worked on.

        `results` are the result files that the command wrote, as paths in the run folder, if they are known.
        """
        data = {
            "command": [step.verb, *step.arguments],
            "at": step.at,
            "exit_code": exit_code,
            "weights": self._weights(),
        }
        data |= {"results": sorted(results)} if results is not None else {}
        data |= {"output": output} if output is not None else {}
        write_atomically(self.receipt(step), (json.dumps(data, indent=1) + "\n").encode())

    def _weights(self) -> str | None:
        """Return the digest of the trained weights, or None if the training has not ended."""
        folder = RunFolder(self.folder)
        if not folder.is_finished:
            return None
        return str(folder.read_manifest()["files"].get(folder.weights_file.name))

    def _is_done(self, step: Step, weights: str) -> bool:
        file = self.receipt(step)
        if not file.exists():
            return False
        try:
            return bool(read_json(file).get("weights") == weights)
        except (RunError, AttributeError):  # a damaged receipt: the command is repeated
            return False


class Named(Protocol):
    """Any object that has a name, such as a run."""

    @property
    def name(self) -> str:
        """The name of the object, such as `encoding=none,seed=0`."""


@dataclass(frozen=True)
class Plan:
    """All runs of a study, in the order in which they start."""

    study: Study
    folder: Path
    """The study's own folder: logs, tables and the summary."""
    runs: tuple[PlannedRun, ...]

    @property
    def title(self) -> str:
        """The title of the study."""
        return self.study.title

    @property
    def jobs(self) -> tuple[PlannedRun, ...]:
        """The runs of the study, each of which is executed in a process of its own."""
        return self.runs

    def arguments(self, run: PlannedRun) -> list[str]:
        """Return the arguments of the command that trains and measures one run; when repeated, it continues the run."""
        return ["study", self.study.source, "--out", str(self.folder), "--run", run.name]

    @cached_property
    def _by_name(self) -> dict[str, PlannedRun]:
        return {run.name: run for run in self.runs}

    def find(self, name: str) -> PlannedRun:
        """Return the run of this name; for an unknown name, raise an error that suggests a similar one."""
        if name not in self._by_name:
            raise InputError(
                f"the study {self.study.name} has no run {name!r}",
                suggestion(name, tuple(self._by_name)),
            )
        return self._by_name[name]

    def log_file(self, run: Named) -> Path:
        """Return the file with everything that the commands of a run print."""
        return self.folder / "logs" / f"{run.name}.log"

    def write(self) -> None:
        """Write `plan.json`: every run with its folder, its labels and its commands."""
        runs = [
            {
                "run": run.name,
                "folder": str(run.folder),
                "part": run.part,
                "seed": run.seed,
                "labels": dict(run.labels),
                "commands": [["headcount", *run.command(step)] for step in run.steps],
                "receipts": [step.name for step in run.steps],
            }
            for run in self.runs
        ]
        data = {"schema": 1, "study": self.study.name, "title": self.study.title, "runs": runs}
        write_atomically(self.folder / PLAN, (json.dumps(data, indent=1) + "\n").encode())


def results_of(folder: Path, receipts: Iterable[str]) -> frozenset[str] | None:
    """Return the result files that these commands wrote, as paths in the run folder, according to their receipts.

    Other studies may have stored results of their own in the same folder. Return None if a receipt does not say which
    files its command wrote.
    """
    files = set[str]()
    for file in (folder / RECEIPTS / f"{name}.json" for name in receipts):
        if not file.exists():  # the command has not ended
            continue
        try:
            files.update(map(str, read_json(file)["results"]))
        except (RunError, KeyError, TypeError):
            return None
    return frozenset(files)


def result_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Map each result file of a run and its snapshots, as a path in the folder, to its time and its inode.

    Both change when the file is written again.
    """
    files = (*folder.glob("results/*.json"), *folder.glob("snapshots/*/results/*.json"))
    return {file.relative_to(folder).as_posix(): (file.stat().st_mtime_ns, file.stat().st_ino) for file in files}


def training_progress(folder: Path, n_steps: int) -> float:
    """Return the fraction of the training steps that are done, read from the log in the run folder; 0 without a log."""
    try:
        with RunFolder(folder).log_file.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 300))
            last = log.read().rpartition(b'"step": ')[2].partition(b",")[0]
        return min(1.0, int(last) / n_steps)
    except (OSError, ValueError):
        return 0.0


def make_plan(study: Study, folder: Path) -> Plan:
    """Return the plan of a study, in an order in which early results are already comparable.

    All variants with the first seed come first, then all variants with the next seed.
    """
    runs = [run for part in study.parts for run in _runs(part, folder.parent / POOL, has_parts=len(study.parts) > 1)]
    order = sorted(range(len(runs)), key=lambda i: _seed_rank(study, runs[i]))
    return Plan(study, folder, tuple(runs[i] for i in order))


def _seed_rank(study: Study, run: PlannedRun) -> int:
    seeds = next(part.seeds for part in study.parts if part.name == run.part)
    return seeds.index(run.seed)


def _runs(part: Part, pool: Path, *, has_parts: bool) -> Iterator[PlannedRun]:
    measures = tuple(
        Step(verb, tuple(flag_words(flags)), at) for at in (*part.snapshots, None) for verb, flags in part.measures
    )
    for variant in part.variants:
        config = build_config(part.task, variant, 0)
        settings = config.to_json()
        words = tuple(training_words(variant))
        for seed in part.seeds:
            labels = {**({"part": part.name} if has_parts else {}), **variant.labels}
            name = ",".join(f"{key}={value}" for key, value in {**labels, "seed": seed}.items())
            train = Step("train", ("--seed", str(seed), *words))
            folder = pool / f"{part.task}-{_digest_of(settings, seed)}"
            steps = (train, *measures)
            yield PlannedRun(
                name=_safe(name),
                part=part.name,
                labels=variant.labels,
                seed=seed,
                folder=folder,
                steps=steps,
                n_training_steps=config.training.most_steps,
                task=part.task,
                trackers=part.trackers,
            )


def settings_digest(config: RunConfig, seed: int) -> str:
    """Return a short digest of all settings of a run, which names its folder."""
    return _digest_of(replace(config, seed=0).to_json(), seed)


def _digest_of(settings: str, seed: int) -> str:
    """Return the digest of a run's settings; `settings` is their JSON with seed 0, in which the seed is replaced.

    In this JSON, only the line of the run's seed begins with a single space, so no other setting is replaced.
    """
    return digest(settings.replace('\n "seed": 0,\n', f'\n "seed": {seed},\n').encode())[:12]


def training_words(variant: Variant) -> Iterator[str]:
    """Yield the flags of `headcount train` for a variant's settings."""
    settings = dict(variant.settings)
    presets = settings.pop("preset", [])
    for preset in [presets] if isinstance(presets, str) else presets:
        yield from ("--preset", preset)
    yield from flag_words(settings)


def flag_words(flags: Flags) -> Iterator[str]:
    """Yield flags as words of a command line.

    >>> list(flag_words({"n": 5, "examples": True, "lengths": [8, 16]}))
    ['--n', '5', '--examples', '--lengths', '8,16']
    """
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield f"--{flag}"
            yield (
                ",".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
            )


def _safe(name: str) -> str:
    """Return a name of a run that can be a file name; a name that had to be changed ends in a digest."""
    plain = "".join(letter if letter.isalnum() or letter in "=,.+-_" else "-" for letter in name)
    return plain if plain == name and len(name) <= 100 else f"{plain[:80]}-{digest(name.encode())[:8]}"
