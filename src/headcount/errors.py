"""All exceptions that headcount raises on purpose.

    HeadcountError              the base class: what was wrong, and what to do
    ├── ConfigError             invalid or unknown settings, all of them in one error
    ├── InputError              an input, head name or part name that is not valid
    │   └── ResultError         a stored result that is damaged or contradicts itself
    ├── RunError                a run folder that is missing or cannot be used
    │   └── CheckpointError     a checkpoint that is damaged or belongs to another run
    ├── Interrupted             training was stopped by a signal; everything is saved
    ├── OutOfTime               work that would exceed its time limit
    └── CheckFailed             a check that the user requested failed
        └── InstrumentError     an intervention (such as an ablation) that did not act on the model
            └── ReplayError     a forward pass replayed from a cache that differs from a full one

The command line prints the message without a traceback and exits with the error's `exit_code`: 1 for a failed check,
128 + N if signal N stopped it (130 for Ctrl-C), and 2 for all other errors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from signal import SIGINT


class HeadcountError(Exception):
    """Base class of headcount's errors: one line says what was wrong, and the following lines say what to do."""

    exit_code = 2

    def __init__(self, what: str, *advice: str) -> None:
        super().__init__("\n  ".join([what, *advice]))
        self.what = what
        self.advice = advice


def argument(name: object) -> str:
    """Return a name as it must be typed in a shell: quoted if needed, and with `./` if it looks like a flag.

    >>> argument("my run"), argument("-x")
    ("'my run'", './-x')
    """
    return quote(f"./{name}" if str(name).startswith("-") else str(name))


def shortened(text: str, most: int = 120) -> str:
    """Return `text` cut to at most `most` characters, with `...` at the end if it was longer."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(frozen=True)
class Fault:
    """One invalid value in settings or in a stored result: where it is, what was given, and why it is refused."""

    where: str
    """The path of the setting, such as `model.n_heads`."""
    given: object
    """The invalid value."""
    why: str
    """The reason why the value is refused."""

    def __str__(self) -> str:
        return f"{self.where} = {shortened(repr(self.given))}: {self.why}"


class ConfigError(HeadcountError):
    """Invalid settings; the attribute `faults` lists every invalid one."""

    def __init__(self, faults: Sequence[Fault], *advice: str) -> None:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__(f"{count} in the configuration", *map(str, faults), *advice)
        self.faults = tuple(faults)


class InputError(HeadcountError):
    """An argument that is not valid, such as an unknown head or a file that cannot be used."""


class ResultError(InputError):
    """A stored result file that is damaged or contradicts itself; the message names the field."""


class RunError(HeadcountError):
    """A run folder that is missing, unfinished, already in use, or not writable."""


class CheckpointError(RunError):
    """A checkpoint that is damaged, truncated, or from another run."""


class Interrupted(HeadcountError):
    """The training was stopped by a signal, such as Ctrl-C; all progress is saved."""

    def __init__(self, what: str, *advice: str, signal: int = SIGINT) -> None:
        super().__init__(what, *advice)
        self.exit_code = 128 + signal


class OutOfTime(HeadcountError):
    """A computation that would exceed its time limit; the caller that set the limit skips the computation."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} would take about {seconds:.0f} s")
        self.seconds = seconds


class Terminated(KeyboardInterrupt):
    """Raised when a signal other than Ctrl-C, or a second signal, ends the program; cleanup runs as after Ctrl-C."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.exit_code = 128 + signal


class CheckFailed(HeadcountError):
    """A check that the user asked for was run, and the model or result failed it."""

    exit_code = 1


class InstrumentError(CheckFailed):
    """An intervention, such as an ablation, that did not act on the model.

    This is an error, because a hook that does nothing gives a measured effect of 0, which looks plausible.
    """


class ReplayError(InstrumentError):
    """A forward pass replayed from cached activations gives another output than a full one.

    This happens if a module depends on more than its inputs, for example on a state that it keeps between calls.
    """
