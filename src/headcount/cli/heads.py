"""`headcount heads MODEL`: list a model's heads, draw where they attend, or measure what each is for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rich.table import Table

from headcount.cli._command import Command, add_int, add_json, add_model_argument
from headcount.cli._output import Line, Output, file_lines, files_of
from headcount.errors import InputError

if TYPE_CHECKING:
    from headcount.experiments.models import OpenModel

LABELS = (
    "a head gets a label where the lower 95 %% bound of its attention to a target, above even, is at least 0.25 "
    "(“mostly”: 0.5) or that of its entropy 95 %% of the maximum, and more than in models of its shape that learned "
    "nothing, of which on average at most 5 %% get any label; “more when” is by at least 0.2"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and what to show of it."""
    add_model_argument(parser)
    add_json(parser, quiet=True)
    what = parser.add_mutually_exclusive_group()
    on = "draw every head on one example, such as 374+814, or on a text; may be given several times"
    what.add_argument("--on", metavar="EXAMPLE", action="append", help=on)
    what.add_argument("--all-test", action="store_true", help="draw every head on average over the test set")
    what.add_argument("--stats", action="store_true", help=f"measure what each head attends to, with errors; {LABELS}")
    add_int(parser, "--length", "with --stats: length of sequences [longest trained]")
    alike = "with --stats: which heads of runs from other seeds attend alike beyond chance, and do the same job"
    parser.add_argument("--match", nargs="+", metavar="RUN", help=alike)
    norms = "weigh attention by the norm of what each key adds (Kobayashi et al. 2020): shares of it, not of weights"
    parser.add_argument("--norm-weighted", action="store_true", help=norms)
    closer = "with --on: this head closer, such as X1H2; on several examples, one page with a panel for each"
    parser.add_argument("--head", metavar="HEAD", help=closer)


def run(args: argparse.Namespace) -> Output:
    """A list of names, or pictures and numbers."""
    from headcount import api

    if not args.stats and (args.length is not None or args.match):
        raise InputError("--length and --match are for measuring", "add --stats")
    if args.head is not None and args.on is None:
        raise InputError("--head is for looking closer at a text", 'add --on "a text"')
    if args.norm_weighted and not (args.stats or args.on or args.all_test):
        raise InputError("--norm-weighted is for pictures and statistics", "add --on, --all-test or --stats")
    model = api.open_model(args.model, run_adapter=args.run_adapter)
    needs = "--stats" if args.stats else "--all-test" if args.all_test else "--norm-weighted"
    if (args.stats or args.all_test or args.norm_weighted) and not model.records_attention:
        raise InputError(
            f"{needs} needs a run, whose task and own attention are known, and {model.label} is none",
            'try --on "a text"',
        )
    if args.stats:
        return _stats(model, args)
    if args.on is None and not args.all_test:
        return _list(model)
    examples = None if args.on is None else list(dict.fromkeys(args.on))
    # Attention that a model records is shown while it decodes its own answer; other models are given one text.
    return _patterns(model, args, examples) if model.records_attention else _summaries(model, args, examples or [])


def _patterns(model: OpenModel, args: argparse.Namespace, examples: list[str] | None) -> Output:
    """Attention of a run, on examples or on average."""
    from headcount import api

    run = api.open_run(model)
    for example in examples or ():
        run.task.parse(example)  # before the first is drawn
    if examples and args.head is not None:
        head = run.find_head(args.head)
        saved = api.show_head(run, head, examples, norm_weighted=args.norm_weighted)
        keys = ("weighting", "example", "predicted", "right", "correct", "explanation", "probability")
        shown_on = [{key: getattr(each, key) for key in keys} for each in saved.result]
        data = {"head": str(head), "short": head.short, "examples": shown_on}
        return Output(data, [each.verdict for each in saved.result], [saved])
    asked: list[str | None] = [None] if examples is None else [*examples]
    shown = [api.show_heads(run, on=example, norm_weighted=args.norm_weighted) for example in asked]
    return Output(
        _one_or_all([{**each.result.to_dict(), "files": files_of(each)} for each in shown]),
        (line for each in shown for line in (each.result.verdict, *file_lines(each))),
    )


def _summaries(model: OpenModel, args: argparse.Namespace, examples: list[str]) -> Output:
    """Attention of any model, on texts."""
    from headcount import api
    from headcount.views.attention import summary_notes, summary_table

    saved = api.summarise_attention(model, examples, args.head)
    data, lines = list[dict[str, Any]](), list[Line]()
    for each in saved.result:
        known = {"correct": each.predicted == each.right} if each.right else {}
        data.append({**each.to_dict(), **known, "files": files_of(saved)})
        lines += [summary_table(each), *summary_notes(each), each.note]
    return Output(_one_or_all(data), [*lines, *file_lines(saved)])


def _one_or_all(found: list[dict[str, Any]]) -> dict[str, Any]:
    """One object; of several examples, a list in it."""
    return found[0] if len(found) == 1 else {"examples": found}


def _stats(model: OpenModel, args: argparse.Namespace) -> Output:
    """What each head is for; and which heads of other runs attend alike."""
    from headcount import api
    from headcount.views.head_stats import caption, match_table, stats_table

    if args.match and args.norm_weighted:
        raise InputError(
            "--match compares attention weights as they are, not by what each key adds",
            "leave --norm-weighted out, or --match",
        )
    matched = api.match_heads(model, *args.match or (), length=args.length, quiet=args.quiet)
    saved = api.head_stats(model, args.length, norm_weighted=args.norm_weighted, quiet=args.quiet)
    data = {**saved.result.to_dict(), "matches": [each.to_dict() for each in matched.result]}
    tables = stats_table(saved.result), *map(match_table, matched.result)
    return Output(data, [*tables, caption(saved.result)], [saved, matched])


def _list(model: OpenModel) -> Output:
    """Where its heads are."""
    from headcount.hooks.wrapping import projection_paths

    paths, name = projection_paths(model.inner, model.sites), type(model.inner).__name__
    heads = [{"head": str(h), "short": h.short, "projection": paths[h.site]} for h in model.sites.heads]
    title = f"{model.label}: {name}, {len(heads)} heads"
    table = Table("site", "heads", "output projection", title=title, title_justify="left")
    for site, found in model.sites.items():
        table.add_row(str(site), "  ".join(head.short for head in found.heads), paths[site])
    return Output({"model": name, "heads": heads}, [table])


PART = Command("list a model's heads, draw where they attend, or measure what each is for", add_arguments, run)
