"""Compare how poolings change what a classifier learns and how far it extrapolates.

The compared models have the same encoding and different poolings, and are measured on the same sequences. A symmetric
pooling ignores order: without an encoding, the model sees a multiset, and cannot tell apart two orders of the same
tokens. A pooling of differences between neighbours gives the order to the model. The model without an encoding can then
be right as well, and a comparison of encodings no longer tests encodings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from headcount.analysis.length_generalisation import LengthResult, Stretch
from headcount.results import Contradiction, Result
from headcount.runs.folder import TrainingRecord


@dataclass(frozen=True)
class PooledModel:
    """One model in a comparison of poolings: its encoding, its pooling and its accuracy at every length."""

    name: str
    weights_sha256: str
    encoding: str
    pooling: str
    hard_codes: tuple[str, ...]
    """Structure of the task that is built into the model, such as a window; empty for a generic model."""
    seed: int
    trained: tuple[int, int] | None
    """Shortest and longest length of a sequence in training; None if unknown."""
    training: TrainingRecord | None
    cells: tuple[LengthResult, ...]

    @classmethod
    def of(cls, result: Stretch, training: TrainingRecord | None) -> PooledModel:
        """Return the fields of a model to compare, from its stored result of `headcount stretch` and its training."""
        return cls(
            name=result.name,
            weights_sha256=result.weights_sha256,
            encoding=result.encoding,
            pooling=result.pooling,
            hard_codes=result.hard_codes,
            seed=result.seed,
            trained=result.trained,
            training=training,
            cells=result.cells,
        )


@dataclass(frozen=True)
class PoolingComparison(Result):
    """Classifiers with the same encoding and different poolings; the result is stored with one of them."""

    ROWS: ClassVar[tuple[str, ...]] = ("models.cells",)

    name: str
    weights_sha256: str
    models: tuple[PooledModel, ...]

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the result's own model is missing, or if models have different lengths."""
        if self.weights_sha256 not in [model.weights_sha256 for model in self.models]:
            yield "models", "one model with the weights_sha256 of this result"
        if len({tuple((cell.negative, cell.length) for cell in model.cells) for model in self.models}) > 1:
            yield "models", "the same lengths and kinds of negatives for every model"


def compare_poolings(
    own: Stretch, others: Sequence[tuple[Stretch, TrainingRecord]], training: TrainingRecord | None = None
) -> PoolingComparison:
    """Compare a classifier with others that have another pooling, at the lengths at which all of them were measured."""
    models = [PooledModel.of(own, training), *(PooledModel.of(*other) for other in others)]
    shared = set.intersection(*({(cell.negative, cell.length) for cell in model.cells} for model in models))
    kept = [tuple(cell for cell in model.cells if (cell.negative, cell.length) in shared) for model in models]
    return PoolingComparison(
        own.name,
        own.weights_sha256,
        tuple(replace(model, cells=cells) for model, cells in zip(models, kept, strict=True)),
    )
