"""Run studies: many runs from one file, each in its own process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from headcount import __version__
from headcount.api.comparing import shown_measures
from headcount.api.published import ComparedWithPublished, published_beside
from headcount.describing.study import build_study_report
from headcount.describing.study_answers import HEAD_MEASURES, LEFT, TOGETHER, PartResults
from headcount.errors import InputError, Interrupted, argument
from headcount.files import write_outputs
from headcount.limits import PATIENCE, RETRIES
from headcount.rendering.page import html_page
from headcount.rendering.study_table import watching
from headcount.runs.folder import RunFolder
from headcount.runs.run import build
from headcount.studies.emergence import emergence
from headcount.studies.file import Flags, Part, Variant, build_config, read_study
from headcount.studies.head_findings import find_over_seeds
from headcount.studies.plan import Plan, PlannedRun, make_plan
from headcount.studies.rows import Row, RowWriter, label_column, table_columns, tidy_rows
from headcount.studies.running import Backend, LocalProcesses, RunState, execute, n_cores
from headcount.studies.summary import SeedSummary, summarise
from headcount.training.loop import fit, new_state

OF_HEADS = ("drop", *HEAD_MEASURES, LEFT, TOGETHER)
"""Measures of single heads, which a study's page summarises by attention block and layer."""
CALIBRATED, MOST_CALIBRATED = (2, 12), 8
"""`CALIBRATED` are the training steps before and during a timing; at most `MOST_CALIBRATED` variants are timed."""


@dataclass(frozen=True)
class StudyOutcome:
    """The runs of a study and how they ended."""

    plan: Plan
    states: tuple[RunState, ...]
    parts: tuple[PartResults, ...] = ()
    """For each part of the study, a summary of its finished runs; parts with fewer than two of them are left out."""
    report: Path | None = None
    """The page with all tables and figures; None if there is no summary."""
    published: tuple[ComparedWithPublished, ...] = ()
    """Published results beside the results of the runs, if the study asks for them."""

    @property
    def summaries(self) -> tuple[SeedSummary, ...]:
        """For each part of the study, the summary of its measures over seeds."""
        return tuple(part.summary for part in self.parts)

    @property
    def failed(self) -> tuple[RunState, ...]:
        """The runs that failed, each with its last error."""
        return tuple(state for state in self.states if state.state == "failed")


FlagCheck = Callable[[str, Flags], str | None]
"""A function that returns what is wrong with the flags of a verb, or None."""


def plan_study(source: str | Path, *, out: str | Path | None = None, check_flags: FlagCheck | None = None) -> Plan:
    """Read a study and return its plan; nothing is run.

    `source` is a TOML file, or the name of a study that comes with headcount. `out` is the study's folder; the default
    is `runs/NAME`, and the run folders are in `models`, beside it. `check_flags` returns what is wrong with the flags
    of a verb, or None.
    """
    study = read_study(source, check_flags or (lambda *_: None))
    return make_plan(study, Path(out) if out else Path("runs") / study.name)


def run_study(
    source: str | Path | Plan,
    *,
    out: str | Path | None = None,
    processes: int | None = None,
    retries: int = RETRIES,
    backend: Backend | None = None,
    on: str | None = None,
    patience: float | None = None,
    check_flags: FlagCheck | None = None,
    quiet: bool = False,
) -> StudyOutcome:
    """Train and measure every run of a study, several at a time; continue a study that was interrupted.

    * `source` is a TOML file, the name of a study that comes with headcount, or a plan.
    * `processes` is the number of runs at a time, each with one thread; the default is the number of cores.
    * `retries` is the number of times that a run that has crashed is started again.
    * `backend` starts the processes; the default are processes on this machine. `check_flags` is as in `plan_study`.
    * `on` names a Dask cluster instead: `"dask"` for one on this machine, or the address of a scheduler, such as
      `"tcp://10.0.0.1:8786"`. `patience` is the number of seconds to wait for a scheduler that has stopped answering.

    Finished runs are not repeated, also if another study made them. The run folders hold all results.

        outcome = headcount.run_study("my_study.toml")
    """
    plan = source if isinstance(source, Plan) else plan_study(source, out=out, check_flags=check_flags)
    if processes is not None and processes < 1:
        raise InputError(f"--processes must be at least 1, got {processes}", "it is the number of runs at a time")
    if retries < 0:
        raise InputError(
            f"--retries must be at least 0, got {retries}", "it is how often a crashed run is started again"
        )
    plan.write()
    opened = _place(plan, processes, on, patience) if backend is None else nullcontext(backend)
    try:
        with opened as place, watching(quiet) as show:
            progress = execute(plan, place, retries=retries, on_change=show)
    except KeyboardInterrupt as stop:
        raise Interrupted(
            "the study was stopped; finished results are kept, and unfinished trainings have saved their state",
            f"continue with: headcount study {argument(plan.study.source)} -o {argument(plan.folder)}",
            signal=getattr(stop, "exit_code", 130) - 128,
        ) from stop
    finished = [run for run, state in zip(plan.runs, progress.states, strict=True) if state.state == "done"]
    return replace(summarise_runs(plan, finished), states=tuple(progress.states))


def summarise_runs(plan: Plan, finished: Sequence[PlannedRun]) -> StudyOutcome:
    """Write the tables, the summaries and the report page of a study's finished runs, and return the summaries."""
    parts, published = _summarise(plan, finished), _published(plan, finished)
    report = _write_report(plan, parts, len(finished), published) if parts else None
    return StudyOutcome(plan, (), tuple(parts), report, published)


def _place(
    plan: Plan, processes: int | None, on: str | None, patience: float | None
) -> AbstractContextManager[Backend]:
    """Return where the runs are executed: on this machine, or on a Dask cluster."""
    if on is None:
        return nullcontext(LocalProcesses(processes or n_cores()))
    try:
        from headcount.studies.dask_cluster import cluster
    except ModuleNotFoundError as error:
        what = f"running on a Dask cluster needs the package {error.name}"
        raise InputError(what, "install it: pip install 'headcount[dask]'", "or leave --on out") from error
    return cluster(plan, on, processes, PATIENCE if patience is None else patience)


def _summarise(plan: Plan, finished: Sequence[PlannedRun]) -> list[PartResults]:
    """Write all measures of finished runs as CSV and JSON lines, and summarise each part of the study over seeds."""
    parts, folder = list[PartResults](), RunFolder(plan.folder)
    if not finished:
        return parts
    labels = dict.fromkeys(label_column(name) for run in finished for name in run.labels)
    columns = table_columns([dict.fromkeys([*labels, *(["part"] if any(run.part for run in finished) else [])])])
    with RowWriter({plan.folder / name: columns for name in ("rows.csv", "rows.jsonl")}) as writer:
        for part in plan.study.parts:
            runs, rows = [run for run in finished if run.part == part.name], list[Row]()
            for run in runs:
                new = tidy_rows(RunFolder(run.folder), run.results, run=run.name, **run.labels)
                writer.write([{**row, "part": part.name} for row in new] if part.name else new)
                rows += new
            if len(runs) > 1:
                n_planned = sum(run.part == part.name for run in plan.runs)
                parts.append(_part_results(part.name, rows, n_planned))
    for each in parts:
        for what in ("summary", "findings", "emergence"):
            if (result := getattr(each, what)) is not None:
                folder.write_result(f"{what}-{each.name}" if each.name else what, result)
    return parts


def _part_results(name: str, rows: Sequence[Row], n_planned: int) -> PartResults:
    """Summarise one part of a study: its measures by variant, statements about heads, and effects at snapshots."""
    stored = {row["measure"] for row in rows}
    measures = dict.fromkeys([*shown_measures(rows, ()), *(each for each in OF_HEADS if each in stored)])
    # The heads of snapshots have a result of their own.
    kept = [row for row in rows if row["step"] is None or row["measure"] not in OF_HEADS]
    summary = replace(summarise(kept, measures=list(measures)), n_planned=n_planned)
    return PartResults(name, summary, find_over_seeds(rows, summary.by), emergence(rows, summary.by))


def _published(plan: Plan, finished: Sequence[PlannedRun]) -> tuple[ComparedWithPublished, ...]:
    """Compare the finished runs with published results and store the comparison, if the study asks for it."""
    compared = published_beside([RunFolder(run.folder) for run in finished]) if plan.study.published else ()
    for each in compared:
        RunFolder(plan.folder).write_result(f"published-{each.name}", each.result)
    return compared


def _write_report(
    plan: Plan, parts: Sequence[PartResults], n_finished: int, published: Sequence[ComparedWithPublished] = ()
) -> Path:
    """Write one page: a sentence and a picture per question, published results, and all tables and figures below."""
    made = f"Made by headcount {__version__} from {n_finished} of {len(plan.runs)} runs; `rows.csv` has every number."
    others = [each.section for each in published]
    report = build_study_report(plan.study.title, plan.study.question, parts, made, others)
    path = plan.folder / "report.html"
    write_outputs({path: html_page(report).encode(errors="replace")}, force=True)
    return path


@dataclass(frozen=True)
class PartEstimate:
    """How long the training of one variant takes, from a short calibration on this machine."""

    part: Part
    variant: Variant
    seconds: float
    """Seconds of one core for one run."""
    is_measured: bool
    """Whether this variant was timed; otherwise, `seconds` is the mean of the timed variants."""


def estimate_training(plan: Plan) -> list[PartEstimate]:
    """Train some variants of a plan for a few steps, and estimate how long one run of each variant trains."""
    estimates = list[PartEstimate]()
    for part in plan.study.parts:
        for i, variant in enumerate(part.variants):
            is_measured = i < MOST_CALIBRATED
            known = [each.seconds for each in estimates if each.part is part and each.is_measured]
            seconds = _training_seconds(part, variant) if is_measured else sum(known) / len(known)
            estimates.append(PartEstimate(part, variant, seconds, is_measured))
    return estimates


def seconds_per_step(task: str) -> float:
    """Return the seconds that a training step of a task's default model takes on this machine, from a few steps."""
    part, variant = Part("", task, (0,), (), ()), Variant({}, {})
    return _training_seconds(part, variant) / build_config(task, variant, 0).training.most_steps


def _training_seconds(part: Part, variant: Variant) -> float:
    """Return the seconds that a training of a variant takes on this machine, from a few steps of it."""
    config = build_config(part.task, variant, part.seeds[0])
    task, model = build(config)
    state, (before, steps) = new_state(model, config.training), CALIBRATED

    def train_to(step: int) -> float:
        started = time.perf_counter()
        fit(state, task, config.training, config.seed, asked_to_stop=lambda: state.step >= step)
        return time.perf_counter() - started

    train_to(before)
    return train_to(before + steps) / steps * config.training.most_steps
