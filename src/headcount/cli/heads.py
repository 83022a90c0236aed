"""`headcount heads MODEL`: list a model's heads, draw where they attend, or measure what each is for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rich.table import Table

from headcount.cli._command import Command, add_json, add_model_argument, add_quiet
from headcount.cli._output import console, files_of, print_files, print_json
from headcount.errors import InputError

if TYPE_CHECKING:
    from headcount.analysis.attention import AttentionSummary
    from headcount.api import Saved
    from headcount.experiments.models import OpenModel

LABELS = (
    "a head gets a label where the lower 95 %% bound of its attention to a target, above even, is at least 0.25 "
    "(“mostly”: 0.5) or that of its entropy 95 %% of the maximum, and more than in models of its shape that learned "
    "nothing, of which on average at most 5 %% get any label; “more when” is by at least 0.2"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and what to look at."""
    add_model_argument(parser)
    add_json(parser)
    what = parser.add_mutually_exclusive_group()
    on = "draw every head on one example, such as 374+814, or on a text; may be given several times"
    what.add_argument("--on", metavar="EXAMPLE", action="append", help=on)
    what.add_argument("--all-test", action="store_true", help="draw every head on average over the test set")
    what.add_argument("--stats", action="store_true", help=f"measure what each head attends to, with errors; {LABELS}")
    parser.add_argument("--length", type=int, metavar="INT", help="with --stats: length of sequences [longest trained]")
    alike = "with --stats: which heads of runs from other seeds attend alike beyond chance, and do the same job"
    parser.add_argument("--match", nargs="+", metavar="RUN", help=alike)
    norms = "weigh attention by the norm of what each key adds (Kobayashi et al. 2020): shares of it, not of weights"
    parser.add_argument("--norm-weighted", action="store_true", help=norms)
    closer = "with --on: this head closer, such as X1H2; on several examples, one page with a panel for each"
    parser.add_argument("--head", metavar="HEAD", help=closer)
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """A list of names, or pictures and numbers."""
    from headcount import api
    from headcount.experiments.models import RunModel

    if not args.stats and (args.length is not None or args.match):
        raise InputError("--length and --match are for measuring", "add --stats")
    if args.head is not None and args.on is None:
        raise InputError("--head is for looking closer at a text", 'add --on "a text"')
    if args.norm_weighted and not (args.stats or args.on or args.all_test):
        raise InputError("--norm-weighted is for pictures and statistics", "add --on, --all-test or --stats")
    model = api.open_model(args.model, run_adapter=args.run_adapter)
    examples = None if args.on is None else list(dict.fromkeys(args.on))
    needs = "--stats" if args.stats else "--all-test" if args.all_test else "--norm-weighted"
    if (args.stats or args.all_test or args.norm_weighted) and not isinstance(model, RunModel):
        raise InputError(
            f"{needs} needs a run, whose task and own attention are known, and {model.label} is none",
            'try --on "a text"',
        )
    if args.stats:
        return _stats(model, args)
    if examples is None and not args.all_test:
        return _list(model, args.json)
    # A run is watched while it decodes its own answer; other models are given one text.
    if args.all_test or args.norm_weighted or isinstance(model, RunModel):
        return _patterns(model, args, examples)
    return _summaries(api.summarise_attention(model, examples or [], args.head), args.json)


def _patterns(model: OpenModel, args: argparse.Namespace, examples: list[str] | None) -> int:
    """Attention of a run, on examples or on average."""
    from headcount import api

    found = api.open_run(model, "--norm-weighted" if args.norm_weighted else "--all-test")
    for example in examples or ():
        found.task.parse(example)  # before the first is drawn
    out = console()
    if examples and args.head is not None:
        head, saved = (
            found.find_head(args.head),
            api.show_head(found, args.head, examples, norm_weighted=args.norm_weighted),
        )
        if args.json:
            keys = ("weighting", "example", "predicted", "right", "correct", "explanation", "probability")
            told = [{key: getattr(each, key) for key in keys} for each in saved.result]
            print_json({"head": str(head), "short": head.short, "examples": told, "files": files_of(saved)})
            return 0
        for each in saved.result:
            out.print(each.verdict)
        print_files(out, saved)
        return 0
    asked: list[str | None] = [None] if examples is None else [*examples]
    shown = [api.show_heads(found, on=example, norm_weighted=args.norm_weighted) for example in asked]
    if args.json:
        _print_each([{**each.result.to_dict(), "files": files_of(each)} for each in shown])
        return 0
    for one in shown:
        out.print(one.result.verdict)
        print_files(out, one)
    return 0


def _summaries(saved: Saved[tuple[AttentionSummary, ...]], as_json: bool) -> int:
    """Attention of any model, on texts."""
    from headcount.views.attention import summary_notes, summary_table

    if as_json:
        _print_each([_told(each) | {"files": files_of(saved)} for each in saved.result])
        return 0
    out = console()
    for each in saved.result:
        out.print(summary_table(each))
        for note in filter(None, (*summary_notes(each), each.note)):
            out.print(note)
    print_files(out, saved)
    return 0


def _told(summary: AttentionSummary) -> dict[str, Any]:
    known = {"correct": summary.predicted == summary.right} if summary.right else {}
    return {**summary.to_dict(), **known}


def _print_each(found: list[dict[str, Any]]) -> None:
    """One object; of several examples, a list in it."""
    print_json(found[0] if len(found) == 1 else {"examples": found})


def _stats(model: OpenModel, args: argparse.Namespace) -> int:
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
    if args.json:
        matches = [each.to_dict() for each in matched.result]
        print_json({**saved.result.to_dict(), "matches": matches, "files": files_of(saved, matched)})
        return 0
    out = console()
    for table in (stats_table(saved.result), *map(match_table, matched.result)):
        out.print(table)
    out.print(caption(saved.result))
    print_files(out, saved, matched)
    return 0


def _list(model: OpenModel, as_json: bool) -> int:
    """Where its heads are."""
    from headcount.hooks.wrapping import projection_paths

    paths = projection_paths(model.inner, model.sites)
    if as_json:
        heads = [{"head": str(h), "short": h.short, "projection": paths[h.site]} for h in model.sites.heads]
        print_json({"model": type(model.inner).__name__, "heads": heads})
        return 0
    title = f"{model.label}: {type(model.inner).__name__}, {len(model.sites.heads)} heads"
    table = Table("site", "heads", "output projection", title=title, title_justify="left")
    for site, found in model.sites.items():
        table.add_row(str(site), "  ".join(head.short for head in found.heads), paths[site])
    console().print(table)
    return 0


PART = Command("list a model's heads, draw where they attend, or measure what each is for", add_arguments, run)
