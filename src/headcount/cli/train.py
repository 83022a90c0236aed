"""`headcount train TASK`: train a model into a run folder."""

from __future__ import annotations

import argparse
from textwrap import fill

from headcount.cli._command import Command, add_json, add_quiet, add_settings, folder_name, given_settings
from headcount.cli._output import console, print_json, print_note, print_wrong
from headcount.runs.config import PRESETS, RunConfig
from headcount.tasks import TASKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-command per task, with that task's settings."""
    tasks = parser.add_subparsers(dest="task_name", metavar="TASK", required=True)
    for name in TASKS.names():
        sub = tasks.add_parser(
            name,
            help=f"the {name} task",
            usage=f"headcount train {name} [FLAG ...]",
            description=f"Train a model on {name}.",
            epilog=_presets(name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("-o", "--out", type=folder_name, metavar="DIR", help=f"run folder [runs/{name}-SEED]")
        sub.add_argument("--seed", type=int, metavar="INT", help="decides everything random in training [0]")
        sub.add_argument("--resume", action="store_true", help="go on with the unfinished run in the folder")
        sub.add_argument(
            "--preset", action="append", default=[], metavar="NAME", help="named settings: see below; repeatable"
        )
        sub.add_argument("--config", metavar="RUN", help="begin from the settings of another run, or of a config file")
        add_json(sub)
        add_quiet(sub)
        sub.set_defaults(parser=sub)
        add_settings(sub, RunConfig.sections(name), RunConfig.defaults(name))


def _presets(task: str) -> str:
    """One paragraph each, for 80 columns."""
    known = PRESETS.get(task, {})
    texts = (
        fill(preset.help, 76, initial_indent=f"  {name:15} ", subsequent_indent=18 * " ")
        for name, preset in known.items()
    )
    return "\n".join(["presets:", *texts])


def run(args: argparse.Namespace) -> int:
    """Train, then say how good it is and where it is."""
    from headcount import api
    from headcount.views.training import accuracy_table, answers_note

    trained = api.train(
        args.task_name,
        out=args.out,
        seed=args.seed,
        preset=args.preset,
        config=args.config,
        resume=args.resume,
        quiet=args.quiet,
        **given_settings(args, RunConfig.sections(args.task_name)),
    )
    evaluation = api.read_evaluation(trained)
    steps = trained.folder.read_manifest()["steps"]
    seconds = next((line["seconds"] for line in reversed(trained.folder.read_timings())), None)
    if args.json:
        print_json({"run": trained.name, "steps": steps, "seconds": seconds, "evaluation": evaluation.to_dict()})
        return 0
    out = console()
    out.print(accuracy_table(evaluation))
    print_note(out, answers_note(evaluation))
    print_wrong(out, evaluation.wrong, trained.output.result_file("evaluation-test"))
    out.print(f"trained: {steps:,} steps" + (f" in {seconds:,.0f} s" if seconds is not None else ""))
    out.print(f"run:     {trained.folder.path}\ncurves:  {trained.output.figure_file('curves.png')}")
    out.print(f"next:    {api.next_command(trained)}")
    return 0


PART = Command("train a model into a run folder", add_arguments, run)
