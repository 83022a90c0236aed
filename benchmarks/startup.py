"""Does `headcount --help` answer without importing torch, and how much sooner than torch alone would load?"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any


def measure() -> Iterator[dict[str, Any]]:
    """Best of three, in processes of their own."""
    help_text = "import sys; from headcount.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    ours = min(_seconds(help_text + "sys.exit('torch' in sys.modules)") for _ in range(3))
    torch = min(_seconds("import torch") for _ in range(3))
    yield {
        "question": "headcount --help, against importing torch",
        "ours": f"{ours:.2f} s, no torch",
        "other": f"{torch:.2f} s",
        "ratio": torch / ours,
        "promise": "torch not imported",
        "kept": True,  # otherwise the process above has failed
    }


def _seconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started
