"""`headcount patch MODEL 342+125 348+125`: put the outputs of heads on one example into another example."""

import argparse

from headcount.cli._command import Command, add_json, add_model_argument, comma_list
from headcount.cli._output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `patch`: the model, both examples, the heads and the positions."""
    add_model_argument(parser)
    parser.add_argument("receiver", metavar="EXAMPLE", help="the example that the model answers, such as 342+125")
    parser.add_argument(
        "donor", metavar="DONOR", help="the example whose head outputs are put into the first one, such as 348+125"
    )
    heads = "heads to patch together, such as E0H2,X1H1 [the head that changes the answer most]"
    parser.add_argument("--heads", type=comma_list, default=(), metavar="HEAD,...", help=heads)
    at = "positions to patch: a digit of the answer such as 10s, a position such as 'a 10s', or a number [all]"
    parser.add_argument("--at", type=comma_list, default=(), metavar="PLACE,...", help=at)
    answers = "for a model without a task: the next token to compare after each text, such as ' Paris' ' Rome'"
    parser.add_argument("--answers", nargs=2, metavar="TOKEN", help=answers)
    add_json(parser)


def run(args: argparse.Namespace) -> Output:
    """Put the outputs of heads on one example into another one, and describe how the answer changes."""
    from headcount import api
    from headcount.describing.pair_patching import describe

    saved = api.patch_pair(
        args.model,
        args.receiver,
        args.donor,
        args.heads,
        at=args.at,
        answers=tuple(args.answers) if args.answers else None,
        save=True,
        run_adapter=args.run_adapter,
    )
    return Output(saved.result, describe(saved.result), [saved])


PART = Command(
    "put outputs of heads on one example into another one; show the new answer",
    add_arguments,
    run,
    (
        "headcount patch sample:addition 342+125 348+125 --heads E0H2 --at 10s",
        "headcount patch sample:addition 342+125 348+125",
    ),
)
