"""`headcount heads MODEL`: list a model's heads, draw where they look, or measure what each is for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from headcount.cli._output import console, print_json
from headcount.cli._verb import Verb, add_json, add_model_argument, add_quiet
from headcount.errors import InputError
from headcount.heads import HeadId

if TYPE_CHECKING:
    from headcount.api import HeadsGlanced, HeadShown, HeadsShown
    from headcount.guests.guest import Guest
    from headcount.runs.run import Run

LABELS = (
    "a head gets a label where the lower 95 %% bound of its attention to a target, above even, is at least 0.25 "
    "(“mostly”: 0.5) or that of its entropy 95 %% of the maximum, and more than in models of its shape that learned "
    "nothing, of which on average at most 5 %% get any label; “more when” is by at least 0.2"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and what to look at."""
    add_model_argument(parser)
    add_json(parser)
    what = parser.add_mutually_exclusive_group()
    on = "draw every head on one example, such as 374+814, or on a text; may be given several times"
    what.add_argument("--on", metavar="EXAMPLE", action="append", help=on)
    what.add_argument("--all-test", action="store_true", help="draw every head on average over the test set")
    what.add_argument("--stats", action="store_true", help=f"measure what each head looks at, with errors; {LABELS}")
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
    from headcount.api._run import ready
    from headcount.guests.guest import Guest

    if not args.stats and (args.length is not None or args.match):
        raise InputError("--length and --match are for measuring", "add --stats")
    if args.head is not None and args.on is None:
        raise InputError("--head is for looking closer at a text", 'add --on "a text"')
    if args.norm_weighted and not (args.stats or args.on or args.all_test):
        raise InputError("--norm-weighted is for pictures and statistics", "add --on, --all-test or --stats")
    model = ready(args.model, run_adapter=args.run_adapter)
    examples = None if args.on is None else list(dict.fromkeys(args.on))
    if isinstance(model, Guest):
        return _of_guest(model, args, examples)
    if args.stats:
        return _stats(model, args)
    if examples is None and not args.all_test:
        return _list(model.model.heads, args.json)
    if examples and args.head is not None:
        return _one_head(api.show_head(model, args.head, examples, norm_weighted=args.norm_weighted), args.json)
    for example in examples or ():
        model.task.parse(example)  # before the first is drawn
    shown = [api.show_heads(model, on=example, norm_weighted=args.norm_weighted) for example in examples or [None]]
    if args.json:
        _print_each([{**each.patterns.to_dict(), "files": _files(each)} for each in shown])
        return 0
    for each in shown:
        _print_shown(each)
    return 0


def _print_each(found: list[dict[str, Any]]) -> None:
    """One object; of several examples, a list in it."""
    print_json(found[0] if len(found) == 1 else {"examples": found})


def _files(shown: HeadsShown) -> dict[str, Any]:
    return {"data": str(shown.data), "pictures": [str(path) for path in shown.pages + shown.pictures]}


def _one_head(shown: HeadShown, as_json: bool) -> int:
    """One head, on one page."""
    if as_json:
        files = {"data": list(map(str, shown.data)), "pictures": [str(shown.figure)]}
        keys = ("weighting", "example", "said", "right", "correct", "why", "probability")
        examples = [{key: getattr(each, key) for key in keys} for each in shown.patterns]
        print_json({"head": str(shown.head), "short": shown.head.short, "examples": examples, "files": files})
        return 0
    out = console()
    for each in shown.patterns:
        out.print(each.verdict)
    out.print(f"figure:  {shown.figure}")
    for path in shown.data:
        out.print(f"numbers: {path}")
    return 0


def _print_shown(shown: HeadsShown) -> None:
    out = console()
    out.print(shown.patterns.verdict)
    for page in shown.pages:
        out.print(f"  {page}")
    if shown.pictures:
        out.print(f"  one picture per head ({len(shown.pictures)}): {shown.pictures[0].parent}")
    out.print(f"  numbers: {shown.data}")


def _of_guest(guest: Guest, args: argparse.Namespace, examples: list[str] | None) -> int:
    """What was found in a model of others, or where its heads look on one text."""
    from headcount import api

    if args.norm_weighted:
        raise InputError(
            f"--norm-weighted reads the values of headcount's own models, and {guest.label} is none",
            "leave it out: attention weights are shown for any model",
        )
    if args.stats or args.all_test:
        raise InputError("--stats and --all-test are for headcount's own tasks", 'try --on "a text"')
    if examples is None:
        return _found(guest, args.json)
    page = []
    if args.head is not None and len(examples) > 1:
        shown, path = api.glance_over(guest, examples, args.head)
        page = [path]
    else:
        shown = [api.glance_heads(guest, text, args.head) for text in examples]
    if args.json:
        _print_each([_glanced(each, page) for each in shown])
        return 0
    for each in shown:
        _print_glanced(each)
    for path in page:
        console().print(f"page:    {path}")
    return 0


def _glanced(shown: HeadsGlanced, page: list[Path]) -> dict[str, Any]:
    files = {"data": str(shown.data), "pictures": list(map(str, [*shown.figures, *page]))}
    known = {"said": shown.said, "right": shown.right, "correct": shown.said == shown.right} if shown.right else {}
    return {**shown.glance.to_dict(), "note": shown.note, **known, "files": files}


def _print_glanced(shown: HeadsGlanced) -> None:
    from headcount.views.glance import glance_notes, glance_table

    out = console()
    out.print(glance_table(shown.glance))
    for note in (*glance_notes(shown.glance), shown.note):
        if note:
            out.print(note)
    for path in shown.figures:
        out.print(f"figure:  {path}")
    out.print(f"numbers: {shown.data}")


def _found(guest: Guest, as_json: bool) -> int:
    """Where the heads of a model of others are."""
    from headcount.instruments.wrapping import projection_paths

    paths = projection_paths(guest.inner, guest.sites)
    if as_json:
        heads = [{"head": str(h), "short": h.short, "projection": paths[h.site]} for h in guest.sites.heads]
        print_json({"model": type(guest.inner).__name__, "heads": heads})
        return 0
    title = f"{guest.label}: {type(guest.inner).__name__}, {len(guest.sites.heads)} heads"
    table = Table("site", "heads", "output projection", title=title, title_justify="left")
    for site, found in guest.sites.items():
        table.add_row(str(site), "  ".join(head.short for head in found.heads), paths[site])
    console().print(table)
    return 0


def _stats(model: Run, args: argparse.Namespace) -> int:
    """What each head is for; and which heads of other runs attend alike."""
    from headcount import api
    from headcount.views.matching import match_table
    from headcount.views.specialisation import caption, stats_table

    if args.match and args.norm_weighted:
        raise InputError(
            "--match compares attention weights as they are, not by what each key adds",
            "leave --norm-weighted out, or --match",
        )
    matched = api.match_heads(model, *args.match or (), length=args.length, quiet=args.quiet)
    shown = api.head_stats(model, args.length, norm_weighted=args.norm_weighted, quiet=args.quiet)
    data, figures = [shown.data, *matched.data], [*shown.figures, *matched.figures]
    if args.json:
        files = {"data": list(map(str, data)), "pictures": list(map(str, figures))}
        print_json({**shown.stats.to_dict(), "matches": [each.to_dict() for each in matched.matches], "files": files})
        return 0
    out = console()
    for table in (stats_table(shown.stats), *map(match_table, matched.matches)):
        out.print(table)
    out.print(caption(shown.stats))
    for path in figures:
        out.print(f"figure:  {path}")
    for path in data:
        out.print(f"numbers: {path}")
    return 0


def _list(heads: tuple[HeadId, ...], as_json: bool) -> int:
    if as_json:
        print_json({"heads": [{"head": str(head), "short": head.short} for head in heads]})
        return 0
    table = Table("site", "heads")
    for site in dict.fromkeys(head.site for head in heads):
        table.add_row(str(site), "  ".join(head.short for head in heads if head.site == site))
    console().print(table)
    return 0


PART = Verb("list a model's heads, draw where they look, or measure what each is for", add_arguments, run)
