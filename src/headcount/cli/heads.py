"""`headcount heads MODEL`: list a model's heads, draw where they attend, or measure what they attend to."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from headcount.cli._command import Command, add_int, add_json, add_model_argument
from headcount.cli._output import Line, Output, file_lines, files_of
from headcount.errors import InputError

if TYPE_CHECKING:
    from headcount.analysis.attention import AttentionPatterns
    from headcount.api.saving import Saved
    from headcount.experiments.models import OpenModel

LABELS = (
    "labels of --stats: a head is labelled with a target, such as the operator, if its attention on the target is at "
    "least 0.25 above uniform attention (“mostly”: 0.5). It is labelled “spreads evenly” if its entropy is at least "
    "95 % of the maximum. Both hold for the lower 95 % confidence bound, which must also exceed that of untrained "
    "models of the same shape: on average, at most 5 % of such models get any label. “More when” needs a difference of "
    "at least 0.2."
)
ROLES = (
    "without a task: find heads that attend to neighbours, special tokens, earlier copies of a token, the token after "
    "an earlier copy (induction), or copies across a separator"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `heads`: the model, what to draw or measure, and on which inputs."""
    add_model_argument(parser)
    parser.epilog = f"{parser.epilog or ''}\n\n{fill(LABELS, 79)}".strip()
    what = parser.add_mutually_exclusive_group()
    on = "draw every head on one example, such as 374+814, on a text, or on an image file; repeatable"
    what.add_argument("--on", metavar="EXAMPLE", action="append", help=on)
    what.add_argument("--all-test", action="store_true", help="draw every head averaged over the test set")
    closer = "with --on: draw only this head, such as X1H2, larger; one panel for each example"
    parser.add_argument("--head", metavar="HEAD", help=closer)
    stats = f"measure what each head attends to, with 95 %% intervals, and label it (see below); {ROLES}"
    parser.add_argument("--stats", action="store_true", help=stats)
    alike = (
        "with --stats: match heads with those of models from other seeds, and test each match against chance; models "
        "without a task need four texts or more, by --on or --data"
    )
    parser.add_argument("--match", nargs="+", metavar="MODEL", help=alike)
    texts = "with --stats, without a task: a file of texts to measure on, plain text or a table"
    parser.add_argument("--data", metavar="FILE", help=texts)
    separator = "with --stats: a token that separates two parts of a text, such as '>>' [the tokenizer's own]"
    parser.add_argument("--separator", metavar="TOKEN", action="append", default=[], help=separator)
    add_int(parser, "--length", "with --stats: length of the sequences [the longest in training]")
    norms = "weight attention by the norm of the vector that each key adds (Kobayashi et al. 2020)"
    parser.add_argument("--norm-weighted", action="store_true", help=norms)
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """List the heads of a model, draw their attention, or measure what they attend to, depending on the flags."""
    from headcount import api

    if not args.stats and (args.length is not None or args.match):
        raise InputError("--length and --match need --stats", "add --stats")
    if not args.stats and (args.data is not None or args.separator):
        raise InputError("--data and --separator need --stats", "add --stats")
    if args.stats and (args.all_test or args.head is not None):
        raise InputError(
            "--stats measures all heads, so it cannot be combined with --all-test or --head",
            "leave them out, or --stats",
        )
    if args.head is not None and args.on is None:
        raise InputError("--head needs an example", 'add --on "a text"')
    if args.norm_weighted and not (args.stats or args.on or args.all_test):
        raise InputError("--norm-weighted needs something to draw or measure", "add --on, --all-test or --stats")
    model = api.open_model(args.model, run_adapter=args.run_adapter)
    if args.stats and not model.records_attention and (model.task is None or args.on or args.data or args.separator):
        return _roles(model, args)
    if args.stats and (args.on or args.data or args.separator):
        raise InputError(
            f"{model.label} is measured on examples of its own task, not on texts",
            "leave --on, --data and --separator out",
        )
    if args.norm_weighted and not model.records_attention:
        what = f"--norm-weighted needs a model that headcount trained: {model.label} does not record its value vectors"
        raise InputError(what, "leave --norm-weighted out: attention weights alone can be read from any model")
    if args.stats:
        return _stats(model, args)
    if args.all_test:
        return _drawn([api.show_heads(model, norm_weighted=args.norm_weighted, save=True)])
    if args.on is None:
        return _list(model)
    examples = list(dict.fromkeys(args.on))
    # A model that records its attention is shown while it decodes its answer; other models read one text.
    return _patterns(model, args, examples) if model.records_attention else _summaries(model, args, examples)


def _patterns(model: OpenModel, args: argparse.Namespace, examples: list[str]) -> Output:
    """Draw the attention of a run on examples of its task, and describe its answers."""
    from headcount import api

    run = api.open_run(model)
    for example in examples:
        run.task.parse(example)  # refuse a wrong example before the first is drawn
    if args.head is not None:
        head = run.find_head(args.head)
        saved = api.show_head(run, head, examples, norm_weighted=args.norm_weighted, save=True)
        keys = ("weighting", "example", "predicted", "right", "correct", "explanation", "probability")
        shown_on = [{key: getattr(each, key) for key in keys} for each in saved.result]
        data = {"head": str(head), "short": head.short, "examples": shown_on}
        return Output(data, [each.verdict for each in saved.result], [saved])
    return _drawn(
        [api.show_heads(run, on=example, norm_weighted=args.norm_weighted, save=True) for example in examples]
    )


def _drawn(shown: Sequence[Saved[AttentionPatterns]]) -> Output:
    """Return an output with a run's answers to examples as text, and the paths of their attention figures."""
    return Output(
        _one_or_all([{**each.result.to_dict(), "files": files_of(each)} for each in shown]),
        (line for each in shown for line in (each.result.verdict, *file_lines(each))),
    )


def _summaries(model: OpenModel, args: argparse.Namespace, examples: list[str]) -> Output:
    """Draw and describe the attention of any model on texts."""
    from headcount import api
    from headcount.describing.attention import describe

    saved = api.summarise_attention(model, examples, args.head, save=True)
    data, lines = list[dict[str, Any]](), list[Line]()
    for each in saved.result:
        known = {"correct": each.predicted == each.right} if each.right else {}
        data.append({**each.to_dict(), **known, "files": files_of(saved)})
        lines += describe(each)
    return Output(_one_or_all(data), [*lines, *file_lines(saved)])


def _one_or_all(examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON object of a single example; for several examples, one object that lists them."""
    return examples[0] if len(examples) == 1 else {"examples": examples}


def _stats(model: OpenModel, args: argparse.Namespace) -> Output:
    """Measure what each head attends to; with `--match`, also compare the heads with those of other models."""
    from headcount import api
    from headcount.describing import matching, specialisation

    if args.match and args.norm_weighted:
        raise InputError(
            "--match compares attention weights, not norm-weighted attention",
            "leave --norm-weighted out, or --match",
        )
    matched = api.match_heads(model, *args.match or (), length=args.length, save=True, quiet=args.quiet)
    saved = api.head_stats(model, args.length, norm_weighted=args.norm_weighted, save=True, quiet=args.quiet)
    data = {**saved.result.to_dict(), "matches": [each.to_dict() for each in matched.result]}
    matches = [block for each in matched.result for block in matching.describe(each)]
    return Output(data, [*specialisation.describe(saved.result), *matches], [saved, matched])


def _roles(model: OpenModel, args: argparse.Namespace) -> Output:
    """Measure the heads of a model without a task on texts, and describe the heads that stand out."""
    from headcount import api
    from headcount.describing import matching
    from headcount.describing.sections import roles

    if args.length is not None or args.norm_weighted:
        raise InputError("--length and --norm-weighted need a model with a task", "leave them out")
    texts = list(dict.fromkeys(args.on or ()))
    others = args.match or ()
    matched = api.match_heads(model, *others, on=texts, data=args.data, save=True, quiet=args.quiet) if others else None
    saved = api.head_roles(model, texts, args.data, args.separator, save=True, quiet=args.quiet)
    blocks = roles.describe(saved.result)
    if matched is None:
        return Output(saved.result, blocks, [saved])
    data = {**saved.result.to_dict(), "matches": [each.to_dict() for each in matched.result]}
    matches = [block for each in matched.result for block in matching.describe(each)]
    return Output(data, [*matches, *blocks], [saved, matched])


def _list(model: OpenModel) -> Output:
    """Return a list of all heads of a model, with the paths of their output projections."""
    from headcount.describing.blocks import DataTable
    from headcount.describing.words import counted
    from headcount.hooks.wrapping import projection_paths

    paths, name = projection_paths(model.inner, model.sites), type(model.inner).__name__
    heads = [{"head": str(h), "short": h.short, "projection": paths[h.site]} for h in model.sites.heads]
    rows = tuple((str(each), "  ".join(h.short for h in site.heads), paths[each]) for each, site in model.sites.items())
    caption = f"{model.label}: {name}, {counted(len(heads), 'head')}"
    table = DataTable("heads", caption, ("attention block", "heads", "output projection"), rows)
    return Output({"model": name, "heads": heads}, [table])


PART = Command(
    "list the heads of a model, draw their attention, or measure what they attend to",
    add_arguments,
    run,
    (
        "headcount heads sample:addition",
        "headcount heads sample:addition --on 374+814",
        "headcount heads sample:addition --stats",
    ),
)
