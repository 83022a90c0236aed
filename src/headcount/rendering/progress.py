"""Show progress on standard error: a bar on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from headcount.errors import OutOfTime

if TYPE_CHECKING:
    from headcount.training.loop import StepScores

_SHORT = {"teacher_forced": "forced", "free_running": "free", "accuracy": "right", "says_sorted": "sorted"}
LINE_EVERY = 10.0
"""Seconds between two plain lines of progress, where there is no terminal for a bar."""
MOST_WAITING = 4.0
"""Elapsed time divided by this number is the least working time that is counted, so waiting for a GPU counts too."""
TRIAL = 3.0
"""Seconds of work after which the remaining time is estimated from the pace so far."""

LOST: list[OSError] = []
"""Errors that prevented printing, such as a full disk; a closed pipe is not counted as an error."""


class Steady:
    """An output stream whose errors do not stop the program.

    A closed pipe, as after `| head`, is ignored. Other errors, such as a full disk, are appended to `LOST`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text; after an error, discard this text and all later text."""
        with self._going_on():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, and handle errors as `write` does."""
        with self._going_on():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                LOST.append(error)
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


class Terminal(Console):
    """A console that prints text unchanged, including brackets and colons, which rich would read as markup."""

    def __init__(self, *, stderr: bool = False, **settings: Any) -> None:
        stream: Any = Steady(sys.stderr if stderr else sys.stdout)
        super().__init__(**{"file": stream, "highlight": False, "markup": False, "emoji": False} | settings)


def _bar(console: Console, *columns: ProgressColumn) -> Progress:
    return Progress(*columns, TimeRemainingColumn(compact=True), console=console, refresh_per_second=4)


class TrainingProgress:
    """Shows the progress of a training loop, which calls the methods `on_steps` and `on_evaluation`."""

    def __init__(self, steps: int, *, quiet: bool = False) -> None:
        self._console = Terminal(stderr=True, quiet=quiet)
        self._steps = steps
        self._is_bar = self._console.is_terminal and not quiet
        state = TextColumn("{task.fields[state]}", markup=False)
        self._progress = _bar(self._console, BarColumn(bar_width=4), MofNCompleteColumn(), state)
        self._loss, self._validation_loss, self._scores = "", "", ""
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
        """Show that training has reached `last_step`: move the bar, or print a line every few seconds."""
        if self._started is None:
            self._started = time.monotonic(), last_step
        self._loss = f"{sum(losses) / len(losses):.3f}"
        if self._is_bar or time.monotonic() - self._last_line >= LINE_EVERY or last_step == self._steps:
            self._show(last_step)

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        """Show the validation scores that the training loop has just measured."""
        shares = {"train": next(iter(scores.training.values())), **scores.validation}
        self._scores = " ".join(f"{_SHORT.get(name, name)} {share.rate:.1%}" for name, share in shares.items())
        self._validation_loss = f"/{scores.validation_loss:.3f}"
        if scores.n_wrong_contexts is not None:
            self._scores += f" {scores.n_wrong_contexts:,} contexts wrong"
        self._show(step)

    def _show(self, step: int) -> None:
        """Show the step, the losses as `loss TRAINING/VALIDATION` and the scores, in a line of at most 80 columns."""
        state = f"loss {self._loss}{self._validation_loss} {self._scores}".rstrip()
        if self._is_bar:
            self._progress.update(self._task, completed=step, state=state)
            return
        self._last_line = time.monotonic()
        begin, first = self._started or (self._last_line, step)
        seconds, done = self._last_line - begin, step - first
        eta = f" eta {(self._steps - step) * seconds / done:.0f} s" if seconds > 0 and done else ""
        self._console.print(f"step {step}/{self._steps} {state}{eta}", soft_wrap=True)


def announcer(quiet: bool) -> Callable[[str], None]:
    """Return a function that prints a line on what the program is doing; if `quiet`, the function prints nothing."""
    console = Terminal(stderr=True, quiet=quiet)
    return lambda text: console.print(text, style="bold", soft_wrap=True)


class WorkingTime:
    """A clock of the time that this process has worked, which does not depend on how busy the machine is.

    With an ordinary clock, a report on a busy machine would leave out what an idle machine has time to measure.
    """

    def __init__(self) -> None:
        self._started = self._now()

    def __call__(self) -> float:
        """Return the seconds of work so far.

        This is the largest of three times: the CPU time of this thread, the CPU time of this process divided by the
        number of cores, and the elapsed time divided by `MOST_WAITING`.
        """
        return max(now - started for now, started in zip(self._now(), self._started, strict=True))

    @staticmethod
    def _now() -> tuple[float, ...]:
        n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return time.thread_time(), time.process_time() / n_cores, time.monotonic() / MOST_WAITING


@dataclass(frozen=True)
class TimeLimit:
    """A time at which work has to end, on a clock that tests can replace."""

    end: float
    clock: Callable[[], float]

    @property
    def seconds_left(self) -> float:
        """Return the number of seconds until the end; negative after the end."""
        return self.end - self.clock()

    def share(self, part: float) -> TimeLimit:
        """Return a limit that ends after this fraction of the remaining time."""
        return TimeLimit(self.clock() + part * self.seconds_left, self.clock)

    def check(self, what: str, started: float, first: tuple[float, int], done: int, total: int) -> None:
        """Raise `OutOfTime` if the time is over, or if `done` of `total` steps so far are too slow to end in time.

        The pace is measured from the end of the first step, because that step also prepares what all steps need. `what`
        names the work, `started` is when it began, and `first` is the time and number of steps at the first report.
        """
        now, (began, n_begun) = self.clock(), first
        to_come = (now - began) / (done - n_begun) * (total - done) if done > n_begun else 0.0
        if now > self.end or (now - began >= TRIAL and now + to_come > self.end):
            raise OutOfTime(what, now - started + to_come)


_LIMIT: ContextVar[TimeLimit | None] = ContextVar("limit", default=None)


def time_limit() -> TimeLimit | None:
    """Return the time limit of the current work, or None if there is none."""
    return _LIMIT.get()


@contextmanager
def limited(limit: TimeLimit | None) -> Iterator[None]:
    """Set a time limit for the work in a `with` block; `counting` raises `OutOfTime` once work would end too late."""
    token = _LIMIT.set(limit)
    try:
        yield
    finally:
        _LIMIT.reset(token)


@contextmanager
def counting(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Yield a function `progress(done, total)` that shows the progress of the work that `what` names.

    Inside of `limited`, the function raises `OutOfTime` if the work is too slow for the time limit.
    """
    limit = time_limit()
    with _shown_count(what, quiet) as show:
        if limit is None:
            yield show
            return
        started, first = limit.clock(), list[tuple[float, int]]()

        def count(done: int, total: int) -> None:
            show(done, total)
            first.append((limit.clock(), done)) if not first else None
            limit.check(what, started, first[0], done, total)

        yield count


@contextmanager
def _shown_count(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how many of `total` steps are done: a bar on a terminal, lines elsewhere."""
    console = Terminal(stderr=True, quiet=quiet)
    if console.is_terminal and not quiet:
        name = TextColumn("{task.description}", markup=False)
        with _bar(console, name, BarColumn(bar_width=6), MofNCompleteColumn(), TextColumn("eta")) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    started = last = time.monotonic()

    def count(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY or done == total:
            last = time.monotonic()
            left = (last - started) / done * (total - done)
            console.print(f"{what}: {done:,}/{total:,}  eta {left:.0f} s", soft_wrap=True)

    yield count
