"""Which examples are heads watched on? A held-out set, or fresh sequences of one length, without padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from headcount.errors import InputError
from headcount.models.classifier import Classifier
from headcount.runs.run import Run
from headcount.seeds import stream
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Tokens

MOST, FEWEST = 1000, 16
"""Fresh sequences: as many as `PAIRS` allows, between these."""
PAIRS = 2**26
"""Pairs of a query and a key over all fresh sequences: some ten seconds for each layer of four heads."""
LONGEST = 2**13
CONTROL_MOST, CONTROL_PAIRS, CONTROL_LONGEST = 64, 2**18, 2**9
"""What a control is watched on: examples, and pairs of a query and a key over all of them, and the longest sequence."""
AT_ONCE, PAIRS_AT_ONCE = 256, 2**20
"""Examples, and pairs of a query and a key, in one forward pass."""


@dataclass(frozen=True)
class Watched:
    """Examples of one length, and what a model is fed of them."""

    examples: Examples
    inputs: tuple[Tokens, ...]
    data: str
    """Which examples these are, in words."""

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, rows: slice) -> tuple[Examples, tuple[Tokens, ...]]:
        return self.examples[rows], tuple(tokens[rows] for tokens in self.inputs)

    def some(self, n: int) -> Watched:
        """At most `n` of them, spread over all."""
        every = slice(None, None, -(-len(self) // n))
        examples, inputs = self[every]
        return Watched(examples, inputs, self.data)

    def blocks(self) -> Iterator[slice]:
        """A forward pass' worth at a time."""
        width = max(tokens.shape[1] for tokens in self.inputs)
        size = max(1, min(AT_ONCE, PAIRS_AT_ONCE // width**2))
        return (slice(i, min(i + size, len(self))) for i in range(0, len(self), size))


def watch(run: Run, length: int | None = None) -> Watched:
    """The test set; of a classifier, fresh sequences of this length (the longest trained one)."""
    if isinstance(run.model, Classifier):
        return _fresh(cast(ClassTask, run.task), length)
    if length is not None:
        raise InputError(
            f"the examples of {run.name} all have one length",
            "leave --length out: it is for runs that classify sequences",
        )
    task = cast(SequenceTask, run.task)
    examples = task.split("test")
    if len(examples) < 2:
        raise InputError(f"{run.name} has a test set of one example: it says nothing of errors", "raise --n-test")
    batch = task.encode(examples)
    return Watched(examples, (batch.source, batch.fed), "the test set")


def watch_controls(run: Run, length: int | None = None) -> Watched:
    """Fewer of the same examples, and none too long: what controls show differs more between heads than examples."""
    if isinstance(run.model, Classifier):
        length = min(cast(ClassTask, run.task).trained_lengths[1] if length is None else length, CONTROL_LONGEST)
    watched = watch(run, length)
    width = max(tokens.shape[1] for tokens in watched.inputs)
    return watched.some(max(1, min(CONTROL_MOST, CONTROL_PAIRS // width**2)))


def _fresh(task: ClassTask, length: int | None) -> Watched:
    """Half of the last class, half of the first, over all ways to make one."""
    length = task.trained_lengths[1] if length is None else length
    if not 2 <= length <= LONGEST:
        raise InputError(f"sequences of {length:,} cannot be watched", f"choose a --length from 2 to {LONGEST:,}")
    each = max(FEWEST, min(MOST, PAIRS // length**2)) // (2 * len(task.kinds))
    rng, n = stream(0, "watched", length), each * len(task.kinds)
    parts = [task.stretched(rng, length, kind, each) for kind in task.kinds]
    examples = np.concatenate([*parts, task.stretched(rng, length, None, n)])
    what = f"fresh sequences of {length:,}, half of them {task.classes[-1]}"
    return Watched(examples, (task.encode(examples).source,), what)
