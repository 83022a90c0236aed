"""Show the progress of a study (many trainings): a table that is updated on a terminal, a line per run elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table

from headcount.rendering.progress import Terminal

if TYPE_CHECKING:
    from headcount.studies.running import Progress, RunState

REFRESH = 0.5
"""Seconds between two refreshes of the table."""
MOST_SHOWN = 12
"""Largest number of runs in progress, and of failed runs, that the table lists."""
LINE_EVERY = 30.0
"""Seconds between two lines on how many runs are finished, where there is no terminal for a table."""


@contextmanager
def watching(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows the progress of a study that it is given; if `quiet`, it shows nothing."""
    console = Terminal(stderr=True, quiet=quiet)
    if quiet:
        yield lambda progress: None
        return
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        last = 0.0

        def show(progress: Progress) -> None:
            nonlocal last
            if time.monotonic() - last >= REFRESH:
                live.update(study_table(progress), refresh=True)
                last = time.monotonic()

        yield show


class _Lines:
    """Prints a line for each run of a study that ends, and every 30 seconds a line with the number of finished runs."""

    def __init__(self, console: Terminal) -> None:
        self._console, self._known = console, dict[str, str]()
        self._last = self._looked = time.monotonic()
        self._notice = ""

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._looked < REFRESH and progress.of("running"):
            return
        self._looked = time.monotonic()
        if (notice := progress.notice.partition(",")[0]) != self._notice:
            self._notice = notice
            self._print(progress.notice or "the connection to the cluster works again")
        n = len(progress.states)
        for state in progress.states:
            if state.state != self._known.get(state.run.name):
                self._known[state.run.name] = state.state
                if state.state in ("done", "failed") and not state.is_reused:
                    n_ended = len(progress.of("done")) + len(progress.of("failed"))
                    self._print(f"{state.state}: {state.run.name} ({n_ended} of {n}, {state.seconds:.0f} s)", progress)
                    self._print(f"  {state.error}") if state.state == "failed" else None
        if time.monotonic() - self._last >= LINE_EVERY:
            self._print(f"{_counts(progress)}", progress)

    def _print(self, text: str, progress: Progress | None = None) -> None:
        left = progress and progress.seconds_left()
        self._console.print(text + (f"  eta {duration(left)}" if left else ""), soft_wrap=True)
        self._last = time.monotonic()


def _counts(progress: Progress) -> str:
    """Return in words how many runs are in each state: `3 of 10 done, 2 running, 1 failed`."""
    n_done, reused = len(progress.of("done")), sum(state.is_reused for state in progress.states)
    text = f"{n_done} of {len(progress.states)} done"
    text += f" ({reused} of them earlier)" if reused else ""
    for name in ("running", "elsewhere", "failed"):
        n = len(progress.of(name))
        words = "running in another launcher" if name == "elsewhere" else name
        text += f", {n} {words}" if n else ""
    return text


def study_table(progress: Progress) -> Table:
    """Return a table of the runs of a study that are in progress or have failed; its title counts all runs."""
    left = progress.seconds_left()
    title = f"{progress.plan.title}: {_counts(progress)}"
    title += f", {duration(left)} left" if left is not None else ""
    table = Table(title=title, title_justify="left", title_style="bold", expand=False)
    for column in ("run", "state", "done", "time"):
        table.add_column(column, justify="right" if column in ("done", "time") else "left")
    for state in (*progress.of("running")[:MOST_SHOWN], *progress.of("failed")[-MOST_SHOWN:]):
        done = state.progress()
        shown = "" if done is None else f"{done:.0%}"
        table.add_row(state.run.name, _state(state), shown, duration(state.seconds))
    if progress.notice:
        table.caption = progress.notice
    return table


def _state(state: RunState) -> str:
    again = f", attempt {state.n_crashes + 1}" if state.n_crashes and state.state == "running" else ""
    place = f" on {state.place}" if state.place else ""
    return f"{state.state}{place}{again}" if state.state != "failed" else f"failed: {state.error[:60]}"


def duration(seconds: float) -> str:
    """Return a duration in words: `45 s`, `12 min`, `3.5 h`.

    >>> duration(45), duration(720), duration(12600)
    ('45 s', '12 min', '3.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
