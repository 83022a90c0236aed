"""A model that a report's HTML page runs in the browser: its architecture, weights and examples, in a compact form."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

ARRAY_TYPES = {"float16": "half", "float32": "single", "uint16": "integer"}
"""Maps each NumPy type of the weights to the name by which the page's JavaScript knows it."""


@dataclass(frozen=True)
class LiveTask:
    """The task of a model that a page runs: its tokens, the words for its parts, and examples with right answers."""

    name: str
    kind: str
    """Kind of answer: `sequence` or `class`."""
    settings: Mapping[str, Any]
    """The settings of the task, for the page's JavaScript that reads examples."""
    words: Mapping[str, str]
    tokens: tuple[str, ...]
    examples: tuple[tuple[str, list[int], list[int]], ...]
    """Held-out examples: text, source tokens, and the right answer (tokens, or one class)."""
    classes: tuple[str, ...] = ()
    trained_lengths: tuple[int, int] = (1, 1)
    source_places: tuple[str, ...] = ()
    answer_places: tuple[str, ...] = ()
    start: Mapping[str, Any] = field(default_factory=dict)
    """How decoding begins, as in `DecodingStart`: the first token, given tokens, and the number of tokens to write."""
    script: str = ""
    """JavaScript that turns what people type into tokens (from `Task.page_script`)."""

    @property
    def form(self) -> tuple[Any, ...]:
        """The parts of a task that decide which tokens a model reads and writes.

        If the forms of two tasks are equal, one live figure in the report's page can show the models of both.
        """
        return self.name, self.tokens, self.source_places, self.answer_places, self.classes, str(dict(self.start))

    def header(self) -> dict[str, Any]:
        """Return the task as data for JSON, without its JavaScript, which the page contains as a script."""
        return {
            "task": self.name,
            "kind": self.kind,
            "settings": dict(self.settings),
            "words": dict(self.words),
            "tokens": self.tokens,
            "examples": self.examples,
            "classes": self.classes,
            "trainedLengths": self.trained_lengths,
            "sourcePlaces": self.source_places,
            "answerPlaces": self.answer_places,
            "start": dict(self.start),
        }


@dataclass(frozen=True)
class LiveModel:
    """One model in the form that the JavaScript of a page reads: architecture, weights and task."""

    task: LiveTask
    architecture: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(repr=False)
    n_positions: int
    """The largest number of tokens that the model can take."""
    n_mean: int
    """The number of positions for which mean outputs of heads are stored, as mean ablation needs them."""
    precision: str
    """Precision of the weights: `half` or `single`."""
    n_right: int
    """Number of the task's held-out examples that the model answers right."""

    def header(self) -> dict[str, Any]:
        """Return the data of this model for JSON, with names and shapes of the weight arrays but not their values."""
        return {
            "architecture": dict(self.architecture),
            "arrays": [[name, each.shape, ARRAY_TYPES[str(each.dtype)]] for name, each in self.arrays.items()],
            "nPositions": self.n_positions,
            "nMean": self.n_mean,
            "precision": self.precision,
            "nRight": self.n_right,
        }

    def packed(self) -> str:
        """Return all weight arrays, in their order, as one text: little-endian bytes, compressed, in base 64."""
        return b64encode(zlib.compress(b"".join(map(_by_significance, self.arrays.values())), 9)).decode()


def _by_significance(array: NDArray[Any]) -> bytes:
    """Return the bytes of an array, reordered: first bytes of all numbers, then second bytes, and so on.

    In this order, equal exponents follow each other and compress well.
    """
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(-1, array.dtype.itemsize).T.tobytes()
