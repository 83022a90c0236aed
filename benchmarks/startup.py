"""Does `headcount --help` answer without importing torch, and how much faster is it than importing torch alone?"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks import Ratio


def measure() -> Iterator[Ratio]:
    """Compare the best of three runs each, every run in a new process."""
    help_text = "import sys; from headcount.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    ours = min(_seconds(help_text + "sys.exit('torch' in sys.modules)") for _ in range(3))  # exit code 1 raises below
    torch = min(_seconds("import torch") for _ in range(3))
    question = "headcount --help, against importing torch"
    yield Ratio(question, f"{ours:.2f} s, no torch", f"{torch:.2f} s", torch / ours, "torch not imported", True)


def _seconds(code: str) -> float:
    """Return the wall-clock time of a new Python process that runs this code without an error."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started
