"""TensorBoard, if the extra is installed: pip install 'headcount[tensorboard]'."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from headcount.training.learners import StepScores
from headcount.training.loop import Listener


@contextmanager
def tensorboard_listeners(path: Path, step: int) -> Iterator[list[Listener]]:
    """One listener, or none where TensorBoard is not installed or cannot spell the folder's name."""
    if find_spec("tensorboard") is None or str(path).encode(errors="ignore") != os.fsencode(path):
        yield []
        return
    listener = TensorBoard(path / "tensorboard", step)
    try:
        yield [listener]
    finally:
        listener.close()


class TensorBoard:
    """Writes events; what an earlier try wrote after `step` is hidden."""

    def __init__(self, path: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(path), purge_step=step + 1)

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        """Mean loss since the last report, and the learning rate; `log.jsonl` has every step's."""
        self._writer.add_scalar("loss", sum(losses) / len(losses), last_step)
        self._writer.add_scalar("learning rate", rates[-1], last_step)

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        """Every score."""
        self._writer.add_scalar("validation/loss", scores.validation_loss, step)
        for split, shares in (("validation", scores.validation), ("training", scores.training)):
            for name, share in shares.items():
                self._writer.add_scalar(f"{split}/{name}", share.rate, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
