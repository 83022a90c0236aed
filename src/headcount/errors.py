"""Everything headcount raises on purpose.

    HeadcountError              say what was wrong, what was given, what is allowed, what to do next
    ├── ConfigError             impossible or unknown settings, all of them at once
    ├── InputError              a sum, head or part name that cannot be understood
    │   └── ResultError         a stored result that is damaged or contradicts itself
    ├── RunError                a run folder that cannot be used
    │   └── CheckpointError     a saved state that is damaged or belongs to another run
    ├── Interrupted             asked to stop by a signal; everything is saved
    ├── OutOfTime               work that would not end within its time limit
    └── CheckFailed             a check that was asked for did not hold
        └── InstrumentError     an intervention that did not reach the model
            └── ReplayError     a cached pass that cannot stand for a whole one

The command line prints the message without a traceback and exits with the error's `exit_code`: 1 for a failed check,
128 + N when stopped by signal N (130 by Ctrl-C), 2 for the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from signal import SIGINT


class HeadcountError(Exception):
    """The root: one line that says what was wrong, then lines that say what to do."""

    exit_code = 2

    def __init__(self, what: str, *advice: str) -> None:
        super().__init__("\n  ".join([what, *advice]))
        self.what = what
        self.advice = advice


def argument(name: object) -> str:
    """A name as it is typed in a shell: quoted, and never taken for a flag.

    >>> argument("my run"), argument("-x")
    ("'my run'", './-x')
    """
    return quote(f"./{name}" if str(name).startswith("-") else str(name))


def shortened(text: str, most: int = 120) -> str:
    """A text that fits a message, whatever somebody gave."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(frozen=True)
class Fault:
    """One wrong setting: where it stands, what was given, why it cannot be."""

    where: str
    given: object
    why: str

    def __str__(self) -> str:
        return f"{self.where} = {shortened(repr(self.given))}: {self.why}"


class ConfigError(HeadcountError):
    """Settings that cannot work together; `faults` holds every one of them."""

    def __init__(self, faults: Sequence[Fault], *advice: str) -> None:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__(f"{count} in the configuration", *map(str, faults), *advice)
        self.faults = tuple(faults)


class InputError(HeadcountError):
    """Text that names no sum, head or part."""


class ResultError(InputError):
    """A stored result that is damaged or contradicts itself; the message names the field."""


class RunError(HeadcountError):
    """A run folder that is missing, taken, unfinished or cannot be written."""


class CheckpointError(RunError):
    """A saved state that is damaged, cut short, or from another run."""


class Interrupted(HeadcountError):
    """Training was asked to stop by a signal; everything is saved."""

    def __init__(self, what: str, *advice: str, signal: int = SIGINT) -> None:
        super().__init__(what, *advice)
        self.exit_code = 128 + signal


class OutOfTime(HeadcountError):
    """A piece of work would not end within its time limit; whoever set the limit leaves it out."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} would take about {seconds:.0f} s")
        self.seconds = seconds


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C, or a second one: what Ctrl-C ends in good order, these do too."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.exit_code = 128 + signal


class CheckFailed(HeadcountError):
    """A check that was asked for did not hold."""

    exit_code = 1


class InstrumentError(CheckFailed):
    """An intervention that did not reach what it was to act on: never a plausible zero."""


class ReplayError(InstrumentError):
    """A pass that was begun late differs from a whole one: the model's modules depend on more than their inputs."""
