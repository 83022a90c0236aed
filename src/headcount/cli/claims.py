"""`headcount claims MODEL... --file FILE`: judge the claims of a file on several models."""

import argparse

from headcount.cli._command import Command, add_json, add_models_argument, all_models, keywords
from headcount.cli._exit_codes import of_claims
from headcount.cli._output import Output
from headcount.cli.claim import add_claim_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `claims`: the models, the file of claims and the flags."""
    add_models_argument(parser)
    form = "TOML file of claims, or one that comes with headcount: adder, reports"
    parser.add_argument("--file", metavar="FILE", required=True, help=form)
    add_claim_flags(parser)
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """Judge all claims of a file and describe the verdicts; exit code 1 if one is refuted, 2 if none can be judged."""
    from headcount import api
    from headcount.describing.claims import describe_all

    result = api.claim_all(all_models(args.models), args.file, **keywords(args, "models", "file"))
    return Output(result, describe_all(result), exit_code=of_claims(result.verdicts))


PART = Command(
    "judge the claims of a file on one or more models",
    add_arguments,
    run,
    (
        "headcount claims sample:addition --file adder",
        "headcount claims sample:addition runs/a runs/b --file reports --n 200",
        "headcount claims sample:sortedness --file my_claims.toml --json",
    ),
)
