"""Run benchmarks and print one table; the figures are also written to runs/bench.json.

Words after the name of a benchmark are its arguments: python -m benchmarks matching runs/a runs/b.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import Ratio

SPEED = (
    *("startup", "overhead", "verification", "accuracy", "sortedness", "ablation"),
    *("hugging_face", "gpt2_size", "patching", "pruning", "auditing", "report", "live_page"),
)
"""Benchmarks of speed and size, which run by default."""
STUDIES = ("coverage", "labels", "matching", "audited_runs", "route_errors", "stopping", "studies", "study_faults")
"""Studies of error rates, and of many runs, which run by name only."""


def jobs_of(words: list[str]) -> list[tuple[str, list[str]]]:
    """Return the benchmarks that the command line names, each with its arguments; without words, those of speed."""
    jobs: list[tuple[str, list[str]]] = []
    for word in words:
        if not jobs or (Path(__file__).parent / f"{word}.py").exists():
            jobs.append((word, []))
        else:
            jobs[-1][1].append(word)
    return jobs or [(name, []) for name in SPEED]


def main(words: list[str]) -> int:
    """Run the benchmarks; the exit code is 1 if a promise is not kept."""
    if {"-h", "--help"} & set(words):
        print(f"{__doc__}\n  by default: {', '.join(SPEED)}\n  by name:    {', '.join(STUDIES)}")
        return 0
    ratios: list[Ratio] = []
    for name, arguments in jobs_of(words):
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        ratios += importlib.import_module(f"benchmarks.{name}").measure(*arguments)
    table = Table("question", "ours", "other", "ratio", "promise", "kept")
    for row in ratios:
        table.add_row(row.question, row.ours, row.other, f"{row.ratio:.2f}", row.promise, str(row.kept))
    Console(width=160).print(table)
    out = Path("runs/bench.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps([asdict(row) for row in ratios], indent=1) + "\n")
    return 0 if all(row.kept for row in ratios) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
