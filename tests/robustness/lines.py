"""Command lines by the thousand: right ones, and right ones with something wrong in them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from random import Random

from headcount.cli import _parser

NUMBERS = ("0", "-1", "1000000000", str(2**64 + 1), "0.5", "-0.0", "1e400", "nan", "inf", "-inf", "1_000", "٣", "0x10")
Words = tuple[str, ...]
TEXTS: Words = ("", " ", "none", "ä—→\u2028", "[bold]", "[/x]", "[red]a[/red]", "$", "$(pwd)", "a\nb")
TEXTS += ("\ud800", "\x1b[31m", "x" * 5000, "%s%n", "{0}", "-", "--")
NAMES = ("sample:x", "sample:", "x.py:Model", "own_model.py", "own_model.py:Nobody", "E0H9", "L9H9", "E0H0,E0H0", ",")
PATHS: Words = ("nowhere", "nowhere/at/all", "text.txt", "data.tsv", ".", "..", "../sentinel")
PATHS += ("../sentinel/precious.txt", "run/config.json", "text.txt/below", "folder")
NASTY = NUMBERS + TEXTS + NAMES + PATHS
TAKEN = ("../sentinel", "../sentinel/precious.txt", "text.txt", "folder", "run", "sample:x")
OUTSIDE = (*TAKEN, "[bold]", "a b", "$x", "x.py:Model")
"""Where `train`, `prune` and `adapt` are sent: much of it is taken and has to stay as it is."""
ENDLESS = ("steps", "orders", "fine_tune", "target_evaluations")
"""Settings whose large values only take long."""
TINY = "--d-model 8 --n-heads 2 --d-ff 8 --n-validation 10 --n-test 10 --batch-size 4 --steps 2 --device cpu --quiet"
TASKS = {
    "addition": f"train addition --digits 1 --n-encoder-layers 1 --n-decoder-layers 1 {TINY}",
    "sortedness": f"train sortedness --n-values 20 --shortest 3 --longest 6 --n-layers 1 {TINY}",
}
ANY = ("run", "sorter", "bert", "gpt2", "cut", "my_adapter.py:Model")
QUICK = (
    *(f"heads {name}" for name in (*ANY, "sample:addition", "sample:sortedness")),
    "predict run 3+4",
    "predict run 9+9",
    "predict sorter '3 5 5 9'",
    "predict sample:addition 374+814",
    "predict sample:sortedness '3 5 4 9'",
    "adapt own_model.py:Net",
    "--version",
    "heads --help",
    "train addition --help",
    "train sortedness --help",
    "verify --help",
)
SLOW = (
    "evaluate run",
    "evaluate sorter --split validation",
    "verify run --quiet",
    "heads run --on 3+4",
    "heads bert --on 'the cat sat' --head L0H1",
    "heads sorter --stats --length 4 --quiet",
    "positions sorter --n 4",
    "stretch sorter --lengths 4,8 --n 4 --negatives shuffle --quiet",
    "ablate run --n 6 --replacements zero --quiet",
    "ablate sorter --n 6 --lengths 4,8 --replacements mean --quiet",
    "ablate bert --data data.tsv --n 6 --replacements zero --quiet",
    "ablate my_adapter.py:Model --n 6 --replacements zero --quiet",
    "prune my_adapter.py:Model --n 6 --orders 1 --loss 0.5 --quiet",
    "prune run --heads E0H1 --quiet",
    *TASKS.values(),
)
REFUSED = (
    "lab --only x",
    "lab --seed nan",
    "lab -o text.txt",
    "lab -o sample:x --quiet",
    "lab --seed -1 --quiet",
    "lab --none",
    "lab --help",
    "",
    "nothing",
    "stretch bert",
    "positions nowhere",
    "verify sorter",
    "train",
    "train multiplication",
)
"""Lines that are wrong as they are (or show help); a lab that is right takes minutes."""


class Lines:
    """An endless row of command lines, the same for the same seed."""

    def __init__(self, seed: int, slow_share: float = 0.06) -> None:
        self.seed, self.slow_share = seed, slow_share
        self.flags = {name: _flags(parser) for name, parser in parsers().items()}

    def __iter__(self) -> Iterator[list[str]]:
        number = 0
        while True:
            yield self.line(number)
            number += 1

    def line(self, number: int) -> list[str]:
        """The line of that number."""
        rng = Random(f"{self.seed}-{number}")
        kind = rng.random()
        if kind < 0.04:
            return shlex.split(rng.choice(REFUSED))
        if kind < 0.5:
            source: Sequence[str] = SLOW if rng.random() < 2 * self.slow_share else QUICK
            return self._right(shlex.split(rng.choice(source)), rng)
        # A flag more may turn a quick line into a long one where the model is a large one.
        source = SLOW if rng.random() < 0.45 else [line for line in QUICK if "heads sample:" not in line]
        argv = self._right(shlex.split(rng.choice(source)), rng)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            argv = self._wronged(argv, rng)
        return argv

    def _right(self, argv: list[str], rng: Random) -> list[str]:
        verb = argv[0]
        if verb in ("train", "prune", "adapt") and (verb != "prune" or "--heads" in argv):
            argv = [*argv, "-o", f"new-{rng.randrange(10**6)}" + (".py" if verb == "adapt" else "")]
        if "--help" not in argv and not verb.startswith("-") and rng.random() < 0.4:
            argv = [*argv, "--json"]
        return argv

    def _wronged(self, argv: list[str], rng: Random) -> list[str]:
        verb = " ".join(argv[:2]) if argv[:1] == ["train"] else "".join(argv[:1])
        flags = self.flags.get(verb, self.flags[""])
        flag, takes, dest = rng.choice(flags)
        odd = rng.choice(NASTY)
        if dest in ENDLESS and odd in NUMBERS[2:4]:
            odd = "-3"
        if dest == "out":
            odd = rng.choice(OUTSIDE) if verb[:5] in ("train", "prune", "adapt") else "folder"
        with_flag = [*argv, flag, odd] if takes else [*argv, flag]
        return [
            with_flag,
            with_flag,
            with_flag,
            with_flag if not takes else [*argv, f"{flag}={odd}"],
            self._other_value(argv, rng),
            self._other_value(argv, rng),
            [*argv, flag],
            [*argv, rng.choice(("--no-such", "-z", "--", "--jso", "--q", flag[:-1] or "-", flag.upper()))],
            [*argv, odd],
            argv[:-1],
        ][rng.randrange(10)]

    def _other_value(self, argv: list[str], rng: Random) -> list[str]:
        """Another model, example or value in place of one that is there, where that cannot mean hours of work."""
        places = [
            i for i in range(1, len(argv)) if argv[i][:1] != "-" and argv[i - 1] not in ("--steps", "-o", "--orders")
        ]
        if not places or argv[0] == "train":
            return [*argv, rng.choice(NASTY)]
        place = rng.choice(places)
        return [*argv[:place], rng.choice(NASTY), *argv[place + 1 :]]


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Every parser by what is typed to get to it: "", "heads", "train addition", ..."""
    found: dict[str, argparse.ArgumentParser] = {}
    todo: dict[str, argparse.ArgumentParser] = {"": _parser()}
    while todo:
        name, parser = todo.popitem()
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        for action in below:
            todo |= {f"{name} {choice}".strip(): each for choice, each in action.choices.items()}
        if not below or not name:
            found[name] = parser
    return found


def _flags(parser: argparse.ArgumentParser) -> list[tuple[str, bool, str]]:
    """Each flag, whether it takes a value, and where that goes."""
    return [
        (flag, action.nargs != 0, action.dest)
        for action in parser._actions
        for flag in action.option_strings
        if flag not in ("-h", "--help")
    ]
