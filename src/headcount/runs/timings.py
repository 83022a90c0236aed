"""How long a training took: `timings.jsonl`, apart from the log, whose bytes do not depend on the machine."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from headcount.runs.folder import RunFolder
from headcount.runs.storage import write_atomically
from headcount.training.learners import StepScores


class Timings:
    """Listens to a training, and writes one line an evaluation: the step, and the seconds of training until then.

    A training that goes on counts on from the `seconds` of its checkpoint; what was lost in a crash does not count.
    """

    def __init__(self, folder: RunFolder, step: int = 0, seconds: float = 0.0) -> None:
        self._file, self._before, self._started = folder.timings_file, seconds, time.monotonic()
        self._lines = [line for line in folder.read_timings() if line["step"] <= step] if step else []

    @property
    def seconds(self) -> float:
        """Of training so far, resumes included."""
        return round(self._before + time.monotonic() - self._started, 3)

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        """The log has the steps."""

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        """One line more; whole or not at all, for the file is small."""
        line: dict[str, Any] = {"step": step, "seconds": self.seconds}
        self._lines.append(line)
        write_atomically(self._file, b"".join(json.dumps(each).encode() + b"\n" for each in self._lines))
