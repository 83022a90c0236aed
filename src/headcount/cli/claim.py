"""`headcount claim MODEL "SUBJECT KIND [OBJECT]"`: is a claim about heads supported? Exit code 1 if it is refuted."""

import argparse

from headcount.cli._command import Command, add_int, add_json, add_model_argument, keywords
from headcount.cli._exit_codes import OF_CLAIM
from headcount.cli._output import Output
from headcount.limits import N_CLAIM, N_STRETCH, N_VERDICT

N_HELP = "number of examples, sequences or sets of four examples "
N_HELP += f"[chosen by the kind of claim: {N_CLAIM}, {N_STRETCH} or {N_VERDICT}]"


def add_claim_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that the verbs `claim` and `claims` share: --n, --seed, --data and --anyway."""
    add_int(parser, "--n", N_HELP)
    add_int(parser, "--seed", "seed of everything that is drawn at random: examples, sequences and sets of heads", 0)
    parser.add_argument(
        "--data", metavar="FILE", help="for a model without a task: a file of text or a table to measure it on"
    )
    parser.add_argument(
        "--anyway", action="store_true", help="also judge a model that fails its audit or is no better than guessing"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `claim`: the model, the claim and the flags."""
    add_model_argument(parser)
    form = 'the claim, as SUBJECT KIND [OBJECT]: "E0H2 carries-the-carry 10s" (all kinds: docs/claims.md)'
    parser.add_argument("words", metavar="CLAIM", nargs="+", help=form)
    add_claim_flags(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> Output:
    """Judge a claim and describe the verdict; exit code 1 if it is refuted, 2 if it cannot be judged."""
    from headcount import api
    from headcount.describing.claims import describe

    result = api.claim(text=" ".join(args.words), **keywords(args, "words"))
    return Output(result, describe(result), exit_code=OF_CLAIM[result.verdict])


PART = Command(
    "judge a claim about heads: supported, refuted or undecided",
    add_arguments,
    run,
    (
        'headcount claim sample:addition "E0H2 carries-the-carry 10s"',
        'headcount claim sample:addition "E0H1+D1 prunable-together"',
        'headcount claim sample:sortedness "model extrapolates-to 64" --n 200',
    ),
)
