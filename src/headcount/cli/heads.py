"""`headcount heads MODEL`: list a model's heads, draw where they look, or measure what each is for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.table import Table

from headcount.cli._output import console, print_json
from headcount.cli._verb import Verb, add_json, add_model_argument, add_quiet
from headcount.errors import InputError
from headcount.heads import HeadId

if TYPE_CHECKING:
    from headcount.guests.guest import Guest
    from headcount.runs.run import Run

LABELS = (
    "a head gets a label where the lower 95 %% bound of its attention to a target is at least 0.5 and twice that of "
    "even attention (over all columns, or in the columns in brackets), or where its entropy is at least 95 %% of the "
    "maximum; “more when” is by at least 0.2"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and what to look at."""
    add_model_argument(parser)
    add_json(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--on", metavar="EXAMPLE", help="draw every head on one example, such as 374+814, or on a text")
    what.add_argument("--all-test", action="store_true", help="draw every head on average over the test set")
    what.add_argument("--stats", action="store_true", help=f"measure what each head looks at, with errors; {LABELS}")
    parser.add_argument("--length", type=int, metavar="N", help="with --stats: length of sequences [longest trained]")
    alike = "with --stats: pair the heads with those of runs from other seeds that look alike"
    parser.add_argument("--match", nargs="+", metavar="RUN", help=alike)
    parser.add_argument("--head", metavar="HEAD", help="with --on, a model of others: this head closer, such as L2H5")
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
    model = ready(args.model, run_adapter=args.run_adapter)
    if isinstance(model, Guest):
        return _of_guest(model, args)
    if args.head is not None:
        raise InputError("--head is for models of others", "here every head is drawn: leave it out")
    if args.stats:
        return _stats(model, args)
    if args.on is None and not args.all_test:
        return _list(model.model.heads, args.json)
    shown = api.show_heads(model, on=args.on)
    if args.json:
        files = {"data": str(shown.data), "pictures": [str(path) for path in shown.pages + shown.pictures]}
        print_json({**shown.patterns.to_dict(), "files": files})
        return 0
    out = console()
    out.print(shown.patterns.title)
    for page in shown.pages:
        out.print(f"  {page}")
    if shown.pictures:
        out.print(f"  one picture per head ({len(shown.pictures)}): {shown.pictures[0].parent}")
    out.print(f"  numbers: {shown.data}")
    return 0


def _of_guest(guest: Guest, args: argparse.Namespace) -> int:
    """What was found in a model of others, or where its heads look on one text."""
    from headcount import api
    from headcount.views.glance import glance_notes, glance_table

    if args.stats or args.all_test:
        raise InputError("--stats and --all-test are for headcount's own tasks", 'try --on "a text"')
    if args.on is None:
        return _found(guest, args.json)
    shown = api.glance_heads(guest, args.on, args.head)
    if args.json:
        files = {"data": str(shown.data), "pictures": list(map(str, shown.figures))}
        print_json({**shown.glance.to_dict(), "note": shown.note, "files": files})
        return 0
    out = console()
    out.print(glance_table(shown.glance))
    for note in (*glance_notes(shown.glance), shown.note):
        if note:
            out.print(note)
    for path in shown.figures:
        out.print(f"figure:  {path}")
    out.print(f"numbers: {shown.data}")
    return 0


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
    """What each head is for; and which heads of other runs do the same."""
    from headcount import api
    from headcount.views.matching import match_table
    from headcount.views.specialisation import stats_table

    matched = api.match_heads(model, *args.match or (), length=args.length)
    shown = api.head_stats(model, args.length, quiet=args.quiet)
    data, figures = [shown.data, *matched.data], [*shown.figures, *matched.figures]
    if args.json:
        files = {"data": list(map(str, data)), "pictures": list(map(str, figures))}
        print_json({**shown.stats.to_dict(), "matches": [each.to_dict() for each in matched.matches], "files": files})
        return 0
    out = console()
    for table in (stats_table(shown.stats), *map(match_table, matched.matches)):
        out.print(table)
    out.print(shown.stats.thresholds.words)
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
