"""Progress: a bar on a terminal, plain lines elsewhere, nothing when quiet. Always on standard error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from headcount.statistics import Share

_SHORT = {"teacher_forced": "forced", "free_running": "free"}
LINE_EVERY = 10.0
"""Seconds between plain lines."""


class Terminal(Console):
    """Prints text as it is, brackets and colons too, and goes on when nobody reads it any more."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def on_broken_pipe(self) -> None:
        """The reader went away, as `| head` does: what was asked for is done, and its verdict given, all the same."""
        mute(self.file)


def mute(stream: IO[str]) -> None:
    """Send what is still written to a closed pipe nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _bar(console: Console, *columns: TextColumn) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=6),
        MofNCompleteColumn(),
        *columns,
        TextColumn("eta"),
        TimeRemainingColumn(compact=True),
        console=console,
        refresh_per_second=4,
    )


class TrainingProgress:
    """Listens to a training loop."""

    def __init__(self, steps: int, batch_size: int, *, quiet: bool = False) -> None:
        self._console = Terminal(stderr=True, quiet=quiet)
        self._steps, self._batch_size = steps, batch_size
        self._is_bar = self._console.is_terminal and not quiet
        self._progress = _bar(self._console, TextColumn("{task.fields[state]}", markup=False))
        self._loss, self._scores = float("nan"), ""
        self._started: tuple[float, int] | None = None
        self._last_line = 0.0

    def __enter__(self) -> TrainingProgress:
        if self._is_bar:
            self._progress.start()
            self._task = self._progress.add_task("", total=self._steps, state="")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_bar:
            self._progress.stop()

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        """Move the bar, or now and then print a line."""
        if self._started is None:
            self._started = time.monotonic(), last_step
        self._loss = sum(losses) / len(losses)
        if self._is_bar:
            self._progress.update(self._task, completed=last_step, state=self._state(last_step))
        elif time.monotonic() - self._last_line >= LINE_EVERY or last_step == self._steps:
            self._print_line(last_step)

    def on_evaluation(self, step: int, scores: Mapping[str, Share]) -> None:
        """Show every score."""
        self._scores = " ".join(f"{_SHORT.get(name, name)} {share.rate:.2%}" for name, share in scores.items())
        if self._is_bar:
            self._progress.update(self._task, state=self._state(step))
        else:
            self._print_line(step)

    def _state(self, step: int) -> str:
        speed = f"{self._speed(step):,.0f} ex/s" if self._speed(step) else ""
        return " ".join(filter(None, [f"loss {self._loss:.4f}", self._scores, speed]))

    def _print_line(self, step: int) -> None:
        self._last_line = time.monotonic()
        speed = self._speed(step)
        eta = f"  eta {(self._steps - step) * self._batch_size / speed:.0f} s" if speed else ""
        self._console.print(f"step {step:,}/{self._steps:,}  {self._state(step)}{eta}", soft_wrap=True)

    def _speed(self, step: int) -> float:
        if self._started is None:
            return 0.0
        seconds, first = time.monotonic() - self._started[0], self._started[1]
        return (step - first) * self._batch_size / seconds if seconds > 0 else 0.0


def announcer(quiet: bool) -> Callable[[str], None]:
    """Says what is going on, unless quiet."""
    console = Terminal(stderr=True, quiet=quiet)
    return lambda text: console.print(text, style="bold", soft_wrap=True)


@contextmanager
def counting(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Yields `progress(done, total)` for work that counts."""
    console = Terminal(stderr=True, quiet=quiet)
    if not console.is_terminal or quiet:
        yield _plain_counter(console, what)
        return
    with _bar(console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _plain_counter(console: Console, what: str) -> Callable[[int, int], None]:
    started = last = time.monotonic()

    def count(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY or done == total:
            last = time.monotonic()
            left = (last - started) / done * (total - done)
            console.print(f"{what}: {done:,}/{total:,}  eta {left:.0f} s", soft_wrap=True)

    return count
