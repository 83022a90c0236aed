"""`headcount train TASK`: train a model into a run folder."""

import argparse
from textwrap import fill

from headcount.cli._command import Command, add_int, add_json, add_out, add_settings, advanced, given_settings
from headcount.cli._exit_codes import PASSED, of_training
from headcount.cli._output import Output, audit_line, wrong_lines
from headcount.runs.config import RunConfig
from headcount.tasks import TASKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a sub-command of `headcount train` for each task, with the settings of that task as flags."""
    tasks = parser.add_subparsers(dest="task_name", metavar="TASK", required=True)
    for name in TASKS.names():
        presets = (
            fill(preset.help, 76, initial_indent=f"  {known:15} ", subsequent_indent=18 * " ")
            for known, preset in TASKS.get(name).presets.items()
        )
        sub = tasks.add_parser(
            name,
            help=f"train a model on {name}",
            usage=f"headcount train {name} [FLAG ...]",
            description=f"Train a model on {name}.",
            epilog="\n".join(["presets:", *presets]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_out(sub, f"the run folder to write [runs/{name}-SEED]")
        add_int(sub, "--seed", "seed of everything random in training [0]")
        sub.add_argument("--resume", action="store_true", help="continue the unfinished run in the folder")
        repeated = "a named set of settings, listed below; repeatable"
        sub.add_argument("--preset", action="append", default=[], metavar="NAME", help=repeated)
        sub.add_argument("--config", metavar="RUN", help="start from the settings of another run, or of a config file")
        tracker = "also record training in mlflow or wandb, offline in the run folder; repeatable"
        advanced(sub).add_argument("--tracker", action="append", default=[], metavar="NAME", help=tracker)
        add_json(sub, quiet=True)
        sub.set_defaults(parser=sub)
        add_settings(sub, RunConfig.sections(name), RunConfig.defaults(name))


def run(args: argparse.Namespace) -> Output:
    """Train a model; return a description of its accuracy, and the name of its folder."""
    from headcount import api
    from headcount.describing.blocks import Conclusions, Sentence
    from headcount.describing.evaluation import describe
    from headcount.describing.verification import verdict

    trained = api.train(
        args.task_name,
        out=args.out,
        seed=args.seed,
        preset=args.preset,
        config=args.config,
        resume=args.resume,
        tracker=args.tracker,
        quiet=args.quiet,
        **given_settings(args, RunConfig.sections(args.task_name)),
    )
    evaluation = api.read_evaluation(trained)
    steps = trained.folder.read_manifest()["steps"]
    seconds = next((line["seconds"] for line in reversed(trained.folder.read_timings())), None)
    duration = f" in {seconds:,.0f} s" if seconds is not None else ""
    data = {"run": trained.name, "steps": steps, "seconds": seconds, "evaluation": evaluation.to_dict()}
    proof, exit_code = list[Sentence](), PASSED
    if trained.config.training.until_proved:
        certificate = api.read_certificate(trained)
        data["certificate"] = certificate.to_dict()
        proof, exit_code = [verdict(certificate, trained.name)], of_training(certificate.verdict)
    return Output(
        data,
        [
            *([Conclusions(tuple(proof))] if proof else []),
            *describe(evaluation, trained.name),
            *wrong_lines(evaluation.wrong, trained.output.result_file("evaluation-test")),
            f"trained: {steps:,} steps{duration}",
            f"run:     {trained.folder.path}\ncurves:  {trained.output.figure_file('curves.png')}",
            f"next:    {api.next_command(trained)}",
            audit_line(evaluation.audit),
        ],
        exit_code=exit_code,
    )


PART = Command(
    "train a model on a task",
    add_arguments,
    run,
    (
        "headcount train addition --seed 3",
        "headcount train sortedness --preset far --until-proved",
        "headcount train addition --help",
    ),
)
