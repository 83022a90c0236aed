"""`headcount study FILE|NAME`: train and measure many runs, each in its own process."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

from headcount.cli._command import Command, add_int, add_json, add_out, advanced
from headcount.cli._exit_codes import of_failures
from headcount.cli._output import Line, Output
from headcount.errors import InputError
from headcount.limits import PATIENCE, RETRIES, parse_seconds

if TYPE_CHECKING:
    from headcount.api.studying import StudyOutcome
    from headcount.studies.file import VerbStudy
    from headcount.studies.plan import Plan
    from headcount.studies.running import JobPlan

CRASHED = 70
"""Exit code of a run that ended with an unexpected exception (EX_SOFTWARE of sysexits.h)."""
WITHOUT_FILES = ("claims",)
"""Verbs that save no result file: their JSON output is kept in the run's receipt (the record of a finished command)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `study`: the study, and the flags for its plan and its processes."""
    what = "a TOML file, or a study that comes with headcount; without it, these studies are listed"
    parser.add_argument("study", metavar="FILE|NAME", nargs="?", help=what)
    add_out(parser, "the study's folder; runs are in `models` beside it [runs/NAME]")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and how long it takes; run nothing")
    add_int(parser, "--processes", "number of runs at a time, each with one thread [number of cores]")
    on = "a Dask cluster: `dask` starts one on this machine; or the address of a scheduler, such as tcp://10.0.0.1:8786"
    parser.add_argument("--on", metavar="WHERE", help=on)
    commands = "print one command per run, for a Slurm array or any other launcher; run nothing"
    parser.add_argument("--print-commands", action="store_true", help=commands)
    add_json(parser, quiet=True)
    add_int(advanced(parser), "--retries", "number of times that a run that has crashed is started again", RETRIES)
    patience = f"time to wait for a scheduler that has stopped answering, such as 90s or 5m [{PATIENCE / 60:g}m]"
    advanced(parser).add_argument("--patience", metavar="SECONDS", help=patience)
    one = "train and measure only this run, in this process; --print-commands lists the names"
    advanced(parser).add_argument("--run", dest="only", metavar="NAME", help=one)


def run(args: argparse.Namespace) -> Output:
    """Run a study (many runs from one file), or show its plan; exit code 1 if a run failed."""
    from headcount import api
    from headcount.studies.file import verb_study

    if args.study is None:
        return _list_studies()
    if sum((args.dry_run, args.print_commands, args.only is not None)) > 1:
        raise InputError("--dry-run, --print-commands and --run cannot be combined", "choose one of them")
    if (study := verb_study(args.study)) is not None:
        return _with_own_verb(study, args)
    if args.only is not None:
        return _one_run(api.plan_study(args.study, out=args.out), args.only)
    if args.print_commands:
        return _commands(api.plan_study(args.study, out=args.out, check_flags=flag_fault))
    if args.dry_run:
        return _dry_run(api.plan_study(args.study, out=args.out, check_flags=flag_fault), args.processes)
    outcome = api.run_study(
        args.study,
        out=args.out,
        processes=args.processes,
        retries=args.retries,
        on=args.on,
        patience=None if args.patience is None else parse_seconds(args.patience, "--patience"),
        check_flags=flag_fault,
        quiet=args.quiet,
    )
    return _finished(outcome)


def _list_studies() -> Output:
    from headcount.studies.file import shipped

    studies = shipped()
    lines = [f"{name:10} {title}" for name, title in studies.items()]
    return Output(
        {"studies": studies}, [*lines, "run one:   headcount study NAME", "its plan:  headcount study NAME --dry-run"]
    )


def flag_fault(verb: str, flags: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the flags of a verb in a study, or None."""
    from headcount.cli import read_arguments
    from headcount.studies.plan import flag_words

    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            read_arguments([verb, "MODEL", *flag_words(flags)])
    except InputError as error:
        return ": ".join([error.what, *error.advice[:1]])
    except SystemExit:
        return " ".join(errors.getvalue().removeprefix("error: ").split("\n  see:")[0].split())
    return None


def _with_own_verb(study: VerbStudy, args: argparse.Namespace) -> Output:
    """Run a study that has a verb of its own, such as `headcount lab`, or show its plan."""
    from headcount.cli import read_arguments

    if args.only is not None or args.retries != RETRIES:
        flag = "--run" if args.only is not None else "--retries"
        raise InputError(
            f"{flag} cannot be used with the study {args.study}",
            f"see the flags of its own command: headcount {study.verb} --help",
        )
    out = Path(args.out or Path("runs") / args.study)
    if args.dry_run:
        return _plan_of_verb(study, study.plan(out), args)
    whole = [study.verb, "--out", str(out)]
    if args.print_commands:
        plan = study.plan(out)
        commands = [join(["headcount", *arguments]) for arguments in (*map(plan.arguments, plan.jobs), whole)]
        return Output({"commands": commands}, commands)
    processes = [] if args.processes is None else ["--processes", str(args.processes)]
    flags = [f"--{name}" for name in ("json", "quiet") if getattr(args, name)]
    own = read_arguments([*whole, *processes, *flags])
    output: Output = own.run(own)
    return output


def _plan_of_verb(study: VerbStudy, plan: JobPlan, args: argparse.Namespace) -> Output:
    """Show the jobs of a plan, and an estimate of their time."""
    from headcount import api
    from headcount.describing.blocks import DataTable
    from headcount.rendering.study_table import duration
    from headcount.studies.running import n_cores

    n_processes, pace = args.processes or n_cores(), api.seconds_per_step(study.task)
    jobs = [
        {"job": job.name, "needs": list(job.needs), "done": job.is_done, "seconds": pace * job.weight}
        for job in plan.jobs
    ]
    rows = [
        (job.name, ", ".join(job.needs) or "-", "yes" if job.is_done else "no", duration(pace * job.weight))
        for job in plan.jobs
    ]
    wall = sum(pace * job.weight for job in plan.jobs if not job.is_done) / n_processes
    n_done = sum(job.is_done for job in plan.jobs)
    lines: list[Line] = [
        DataTable("plan", study.title, ("part", "needs", "done", "time"), tuple(rows)),
        f"total:   {len(jobs)} parts, {n_done} of them done; the others take about {duration(wall)} in "
        f"{n_processes} processes (a few training steps were timed)",
        f"start:   headcount study {args.study}",
    ]
    return Output({"study": args.study, "jobs": jobs, "seconds": wall, "processes": n_processes}, lines)


def _one_run(plan: Plan, name: str) -> Output:
    """Train and measure one run in this process."""
    from headcount.studies.running import complete

    run = plan.find(name)
    code = complete(run, _measure)
    return Output(
        {"run": name, "folder": str(run.folder)}, [f"run:     {run.folder}"] if code == 0 else [], exit_code=code
    )


def _measure(arguments: Sequence[str]) -> tuple[int, Any]:
    """Run one command that trains or measures a run; return its exit code and, if it saves no file, its output."""
    from headcount.cli import main

    keeps = arguments[0] not in WITHOUT_FILES
    try:
        if keeps:
            return main(arguments), None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = main([*arguments, "--json"])
        return code, json.loads(printed.getvalue()) if code in (0, 1) and printed.getvalue() else None
    except Exception:
        traceback.print_exc()
        return CRASHED, None


def _commands(plan: Plan) -> Output:
    commands = [join(["headcount", *plan.arguments(run)]) for run in plan.runs]
    return Output({"commands": commands}, commands)


def _dry_run(plan: Plan, processes: int | None) -> Output:
    """Show the plan of a study and an estimate of its time."""
    from headcount import api
    from headcount.describing.blocks import DataTable
    from headcount.rendering.study_table import duration
    from headcount.studies.running import n_cores

    done = {run.name for run in plan.runs if run.is_done}
    n_processes = processes or n_cores()
    rows, data, total = [], list[dict[str, Any]](), 0.0
    for estimate in api.estimate_training(plan):
        part, variant = estimate.part, estimate.variant
        runs = [run for run in plan.runs if run.part == part.name and run.labels == variant.labels]
        n_open = sum(run.name not in done for run in runs)
        measures = ", ".join(dict.fromkeys(verb for verb, _ in part.measures)) or "nothing"
        label = ", ".join([*filter(None, [part.name]), *(f"{key} {value}" for key, value in variant.labels.items())])
        rows.append((label or part.task, str(len(runs)), str(len(runs) - n_open), duration(estimate.seconds), measures))
        data.append(
            {
                "part": part.name,
                "labels": dict(variant.labels),
                "runs": len(runs),
                "open": n_open,
                "seconds": estimate.seconds,
            }
        )
        total += n_open * estimate.seconds
    columns = ("variant", "runs", "done", "training of one run", "measured afterwards")
    table = DataTable("plan", plan.study.title, columns, tuple(rows))
    wall = total / n_processes
    lines: list[Line] = [
        table,
        f"total:   {len(plan.runs):,} runs, {len(done):,} of them done; training takes about {duration(wall)} in "
        f"{n_processes} processes (a few steps of each variant were timed; measurements come on top)",
        f"start:   headcount study {plan.study.source}",
    ]
    return Output({"study": plan.study.name, "variants": data, "seconds": wall, "processes": n_processes}, lines)


def _finished(outcome: StudyOutcome) -> Output:
    """Describe how the runs of a study ended, and summarise their results."""
    from headcount.describing.study import short_answers

    plan, failed = outcome.plan, outcome.failed
    runs = [
        {
            "run": run.name,
            "folder": str(run.folder),
            "state": state.state,
            "error": state.error,
            "reused": state.is_reused,
        }
        for run, state in zip(plan.runs, outcome.states, strict=True)
    ]
    n_done = len(outcome.states) - len(failed)
    lines: list[Line] = [*short_answers(outcome.parts)]
    lines += [f"done:    {n_done:,} of {len(outcome.states):,} runs"]
    for state in failed:
        lines.append(f"failed:  {state.run.name}: {state.error}\n  log:   {plan.log_file(state.run)}")
    if failed:
        lines.append(f"again:   headcount study {plan.study.source}")
    for each in outcome.published:
        lines += each.section.blocks
    lines += [f"table:   {plan.folder / 'rows.csv'}", f"report:  {outcome.report}"] if outcome.report else []
    lines.append(f"study:   {plan.folder}")
    summaries = [summary.to_dict() for summary in outcome.summaries]
    published = {each.name: each.result.to_dict() for each in outcome.published}
    data = {"study": plan.study.name, "runs": runs, "summaries": summaries, "published": published}
    return Output(data, lines, exit_code=of_failures(failed))


PART = Command(
    "train and measure many runs from one file, and compare them over seeds",
    add_arguments,
    run,
    (
        "headcount study",
        "headcount study heads --dry-run",
        "headcount study my_study.toml --processes 2",
        "headcount study my_study.toml --on dask",
    ),
)
