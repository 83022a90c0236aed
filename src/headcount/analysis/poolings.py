"""How does the pooling change what a classifier learns and how far it extrapolates?

Models that differ in their pooling, on the same encoding and the same test sequences. A symmetric pooling knows no
order: without an encoding the model sees a multiset, and 50 % is a theorem. A pooling of neighbours' differences hands
the order to the model: then the model without an encoding is right as well, and a comparison of encodings no longer
tests encodings.
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
    """One model of the comparison: its encoding, its pooling and its accuracy at every length."""

    name: str
    weights_sha256: str
    encoding: str
    pooling: str
    hard_codes: tuple[str, ...]
    """The structure of the task that the model was given; nothing if it is generic."""
    seed: int
    trained: tuple[int, int] | None
    """The shortest and the longest sequence in training; None if not known."""
    training: TrainingRecord | None
    cells: tuple[LengthResult, ...]

    @classmethod
    def of(cls, result: Stretch, training: TrainingRecord | None) -> PooledModel:
        """Take what a comparison needs from a model's length generalisation."""
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
    """Models with one encoding and several poolings; one of them is the model that the result belongs to."""

    ROWS: ClassVar[tuple[str, ...]] = ("models.cells",)

    name: str
    weights_sha256: str
    models: tuple[PooledModel, ...]

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the models with each other: the result belongs to one of them, and all have the same cells."""
        if self.weights_sha256 not in [each.weights_sha256 for each in self.models]:
            yield "models", "the model that the result belongs to, among others"
        if len({tuple((cell.negative, cell.length) for cell in each.cells) for each in self.models}) > 1:
            yield "models", "the same lengths and negatives for each"


def compare_poolings(
    own: Stretch, others: Sequence[tuple[Stretch, TrainingRecord]], training: TrainingRecord | None = None
) -> PoolingComparison:
    """Compare a model with models of other poolings, at the lengths that all of them were measured at."""
    models = [PooledModel.of(own, training), *(PooledModel.of(*each) for each in others)]
    shared = set.intersection(*({(cell.negative, cell.length) for cell in model.cells} for model in models))
    kept = [tuple(cell for cell in model.cells if (cell.negative, cell.length) in shared) for model in models]
    return PoolingComparison(
        own.name,
        own.weights_sha256,
        tuple(replace(model, cells=cells) for model, cells in zip(models, kept, strict=True)),
    )
