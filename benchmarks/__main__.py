"""Run the benchmarks and print one table; the figures also go to runs/bench.json."""

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


NAMES = ("startup", "overhead", "verification", "accuracy", "sortedness", "ablation", "hugging_face", "labels")


def main(names: list[str]) -> int:
    """Measure; exit code 1 if a promise is not kept."""
    ratios: list[Ratio] = []
    for name in names or NAMES:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        ratios += [Ratio(**found) for found in importlib.import_module(f"benchmarks.{name}").measure()]
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
