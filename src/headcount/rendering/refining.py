"""Show a table that is updated while a measurement goes on: in place on a terminal, as lines of progress elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Group
from rich.live import Live
from rich.text import Text

from headcount.describing.blocks import DataTable
from headcount.rendering.progress import Terminal
from headcount.rendering.terminal import FittedTable

MARGIN = 8
"""Number of lines of the terminal that the table leaves free for other output."""


@contextmanager
def refining(what: str, *, quiet: bool = False) -> Iterator[Callable[[DataTable, str], None]]:
    """Yield a function that shows a table of results so far, and a line about the state of the measurement.

    `what` names the measurement. The table disappears at the end of the `with` block; the caller prints the final one.
    """
    console = Terminal(stderr=True, quiet=quiet)
    if quiet or not console.is_terminal:
        yield lambda table, state: None if quiet else console.print(f"{what}: {state}", soft_wrap=True)
        return
    with Live(Text(f"{what} ..."), console=console, auto_refresh=False, transient=True) as live:

        def show(table: DataTable, state: str) -> None:
            rows = table.rows[: max(3, console.height - MARGIN)]
            hidden = f" ({len(table.rows) - len(rows)} more heads)" if len(rows) < len(table.rows) else ""
            short = FittedTable(replace(table, rows=rows)).tables(console.width)[0]
            live.update(Group(Text(f"{what}: {state}{hidden}"), short), refresh=True)

        yield show
