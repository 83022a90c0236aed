"""Run the benchmarks and print one table; the figures also go to runs/bench.json.

What follows the name of a benchmark and is none itself is handed to it: python -m benchmarks matching runs/a runs/b.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Ratio:
    """One comparison: what it took us, what it took the other, and what we promise."""

    question: str
    ours: str
    other: str
    ratio: float
    promise: str
    kept: bool


NAMES = (
    "startup",
    "overhead",
    "verification",
    "accuracy",
    "sortedness",
    "ablation",
    "hugging_face",
    "gpt2_size",
    "pruning",
    "auditing",
    "report",
)
"""Those about speed."""
STUDIES = ("coverage", "labels", "matching", "audited_runs")
"""Those of errors, which are run by name only."""


def asked(words: list[str]) -> list[tuple[str, list[str]]]:
    """Benchmarks, and what each is given."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if not found or (Path(__file__).parent / f"{word}.py").exists():
            found.append((word, []))
        else:
            found[-1][1].append(word)
    return found or [(name, []) for name in NAMES]


def main(words: list[str]) -> int:
    """Measure; exit code 1 if a promise is not kept."""
    if {"-h", "--help"} & set(words):
        print(f"{__doc__}\n  by default: {', '.join(NAMES)}\n  by name:    {', '.join(STUDIES)}")
        return 0
    ratios: list[Ratio] = []
    for name, given in asked(words):
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        ratios += [Ratio(**found) for found in importlib.import_module(f"benchmarks.{name}").measure(*given)]
    table = Table("question", "ours", "other", "ratio", "promise", "kept")
    for each in ratios:
        table.add_row(each.question, each.ours, each.other, f"{each.ratio:.2f}", each.promise, str(each.kept))
    Console(width=160).print(table)
    out = Path("runs/bench.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps([asdict(each) for each in ratios], indent=1) + "\n")
    return 0 if all(each.kept for each in ratios) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
