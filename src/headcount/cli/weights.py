"""`headcount weights MODEL`: which tokens and positions does each head match, and what does it copy?"""

import argparse

from headcount.cli._command import Command, add_int, add_json, add_model_argument, comma_list
from headcount.cli._output import Output
from headcount.limits import N_WEIGHTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `weights`: the model, the heads, the number of examples, and probes."""
    add_model_argument(parser)
    heads = "heads to read, such as E0H2,X1H1 [all]"
    parser.add_argument("--heads", type=comma_list, default=(), metavar="HEAD,...", help=heads)
    probes = (
        "also fit linear probes of an event such as the carry; a probe shows that activations contain it, not that "
        "the model uses it"
    )
    parser.add_argument("--probes", action="store_true", help=probes)
    add_int(parser, "--n", f"number of examples over which inputs are averaged [{N_WEIGHTS}]")
    add_int(parser, "--seed", "seed with which the examples are drawn [0]")
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """Measure what the weights of the heads match and copy, and describe the result."""
    from headcount import api
    from headcount.describing.weights import describe

    saved = api.weights(
        args.model,
        args.heads,
        n=N_WEIGHTS if args.n is None else args.n,
        seed=args.seed or 0,
        probes=args.probes,
        save=True,
        quiet=args.quiet,
        run_adapter=args.run_adapter,
    )
    return Output(saved.result, describe(saved.result), [saved])


PART = Command(
    "show which tokens and positions the weights of each head match and copy",
    add_arguments,
    run,
    ("headcount weights sample:addition", "headcount weights sample:addition --heads E0H2,X1H1 --probes"),
)
