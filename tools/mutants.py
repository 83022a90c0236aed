"""Plant faults in the source, one at a time, and see which test catches each.

    python -m tools.mutants                          # every fault of the table
    python -m tools.mutants --only holm causal-mask  # some of them, by name
    python -m tools.mutants --project FOLDER --json  # the source and the tests of another checkout

Each fault is planted in a copy of the checkout, which itself is never changed. The tests that a fault names run first,
then all others, so that a fault counts as missed only if the whole suite passes. A test that fails without the fault as
well does not count. The exit code is 1 if a fault is missed, 2 if the table does not fit the source.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 1800
"""Seconds that one run of pytest may take; a fault that hangs the tests is caught."""
NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")
TABLE = Path(__file__).with_suffix(".txt")


@dataclass(frozen=True)
class Mutant:
    """One fault: a text of the source and the faulty text that replaces it."""

    name: str
    file: str
    """Path below src/headcount."""
    tests: tuple[str, ...]
    """Test files that should catch the fault."""
    fault: str
    """One sentence that says what is wrong."""
    old: str
    new: str

    @classmethod
    def parse(cls, entry: str) -> Mutant:
        """Read one entry of the table; a test without a folder is in the room of the faulty file."""
        head, change = entry.split("\n")
        name, file, tests, fault = head.split(" | ")
        room = file.split("/")[0] if "/" in file else "."
        paths = tuple(f"tests/{test if '/' in test else f'{room}/{test}'}.py" for test in tests.split())
        old, new = change.strip().split(" ==> ")
        return cls(name, file, tuple(str(Path(path)) for path in paths), fault, old, new)

    def planted(self, text: str) -> str:
        """Return the source with the fault in it."""
        if (n := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.old!r} occurs {n} times in {self.file}, not once")
        return text.replace(self.old, self.new)


MUTANTS = [Mutant.parse(entry) for entry in re.findall(r"^\w.*\n {4}.*$", TABLE.read_text("utf-8"), re.MULTILINE)]


@dataclass(frozen=True)
class Verdict:
    """Whether the tests noticed a fault."""

    name: str
    file: str
    fault: str
    caught_by: str | None
    """The first test that fails with the fault and passes without it; None if there is none."""
    stage: str
    """Which tests ran last: `named, quick`, `named` or `all`."""
    seconds: float
    """Processor time."""


def misfits(source: Path) -> Iterator[str]:
    """Yield an error message for each entry of the table that does not fit the source."""
    for mutant in MUTANTS:
        try:
            mutant.planted((source / mutant.file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            yield str(error)


def hunt(mutants: Iterable[Mutant], project: Path) -> Iterator[Verdict]:
    """Plant one fault after the other in a copy of the project, and yield which test catches each."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "project"
        shutil.copytree(project, home, ignore=NOT_COPIED)
        for mutant in mutants:
            before = _processor_seconds()
            caught_by, stage = _catch(mutant, home)
            yield Verdict(mutant.name, mutant.file, mutant.fault, caught_by, stage, _processor_seconds() - before)


def _catch(mutant: Mutant, home: Path) -> tuple[str | None, str]:
    """Return the test that catches the fault, and the stage it belongs to."""
    source = f"src/headcount/{mutant.file}"
    named = [test for test in (*mutant.tests, source) if (home / test).exists()]  # the source has doctests
    stages = {"named, quick": [*named, "-m", "not slow"], "named": named, "all": ["tests", "src/headcount"]}
    stage, innocent = "", list[str]()
    for stage, words in stages.items():
        while True:
            with _planted(mutant, home / source):
                failed = _first_failure(home, [*words, *(f"--deselect={test}" for test in innocent)])
            if failed is None:
                break
            if _first_failure(home, [failed]) is None:
                return failed, stage
            if failed in innocent or "::" not in failed:
                raise RuntimeError(f"{failed} cannot be collected, with or without a fault")
            innocent.append(failed)
    return None, stage


@contextmanager
def _planted(mutant: Mutant, file: Path) -> Iterator[None]:
    """Put the fault into a file; compiled files are deleted, because Python tells them apart by seconds only."""
    text = file.read_text(encoding="utf-8")
    try:
        _replace(file, mutant.planted(text))
        yield
    finally:
        _replace(file, text)


def _replace(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def _first_failure(home: Path, words: Sequence[str]) -> str | None:
    """Return the id of the first test that fails, or None if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *words]
    environment = {**os.environ, "PYTHONPATH": str(home / "src"), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    try:
        run = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return words[0]
    failures = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", run.stdout, re.MULTILINE)
    if not failures and run.returncode not in (0, 5):  # 5: no test is left to run
        raise RuntimeError(f"pytest could not run the tests: {run.stdout[-1000:]}{run.stderr[-1000:]}")
    return failures[0] if failures else None


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(words: Sequence[str]) -> int:
    """Print which test catches each fault, and how many faults are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[mutant.name for mutant in MUTANTS], metavar="NAME", help="names")
    parser.add_argument("--project", type=Path, default=ROOT, metavar="FOLDER", help="another checkout [this one]")
    parser.add_argument("--json", action="store_true", help="print one JSON object in the end")
    args = parser.parse_args(words)
    if errors := list(misfits(args.project / "src" / "headcount")):
        print("\n".join(errors), file=sys.stderr)
        return 2
    verdicts = []
    for verdict in hunt([mutant for mutant in MUTANTS if not args.only or mutant.name in args.only], args.project):
        verdicts.append(verdict)
        outcome = f"caught by {verdict.caught_by}" if verdict.caught_by else f"SURVIVED: {verdict.fault}"
        line = f"{verdict.name:16} {verdict.seconds:5.0f} s  {outcome}"
        print(line, file=sys.stderr if args.json else sys.stdout, flush=True)
    n_caught = sum(verdict.caught_by is not None for verdict in verdicts)
    seconds = sum(verdict.seconds for verdict in verdicts)
    if args.json:
        print(json.dumps({"caught": n_caught, "seconds": seconds, "mutants": list(map(asdict, verdicts))}, indent=1))
    else:
        print(f"{n_caught} of {len(verdicts)} faults are caught, in {seconds / 60:.1f} processor minutes")
    return 0 if n_caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
