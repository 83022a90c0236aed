"""How a kind of model learns a kind of task: what the loop needs to know of the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from headcount.models.masking import padding_of
from headcount.models.transformer import Classifier, EncoderDecoder, Model
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE, ClassTask, Examples, SequenceTask, Task
from headcount.training import classification, evaluation
from headcount.training.classification import Classification
from headcount.training.evaluation import Evaluation, answer, forced_exact, margins, on_device


@dataclass(frozen=True)
class StepScores:
    """How good a model is after some step of its training."""

    validation: Mapping[str, Proportion]
    """By name; all of the same examples."""
    validation_loss: float
    """Cross-entropy as in training, of the pass that gave the scores."""
    training: Mapping[str, Proportion]
    """One score on examples such as it is trained on, by name."""

    def to_dict(self) -> dict[str, float]:
        """As it is logged."""
        logged: dict[str, float] = {}
        for prefix, shares in (("", self.validation), ("training_", self.training)):
            logged |= {f"{prefix}n": share.n for share in shares.values()}
            logged |= {f"{prefix}{name}": share.rate for name, share in shares.items()}
        return logged | {"validation_loss": self.validation_loss}


class Learner(Protocol):
    """A model and its task."""

    target_metric: ClassVar[str]
    """The score that training is for."""

    def loss(self, examples: Examples) -> Tensor:
        """What a training step makes smaller."""

    def scores(self, examples: Examples) -> tuple[Mapping[str, Proportion], float]:
        """How good the model is, briefly, and its loss, from one pass over these examples."""

    def training_scores(self, examples: Examples) -> Mapping[str, Proportion]:
        """The score that is watched on training examples, by name."""

    def margins(self, examples: Examples) -> NDArray[np.floating]:
        """How surely it is right on each: positive if it is."""

    def evaluate(self, split: str, weights_sha256: str) -> Evaluation | Classification:
        """Everything that is measured on a held-out set."""


@dataclass(frozen=True)
class SequenceLearner:
    """An encoder-decoder, fed the right answer while it learns."""

    model: EncoderDecoder
    task: SequenceTask
    target_metric: ClassVar[str] = "free_running"

    def loss(self, examples: Examples) -> Tensor:
        """Cross-entropy per token."""
        batch = self.task.encode(examples)
        device = next(self.model.parameters()).device
        source, decoder_input, labels = on_device(device, batch.source, batch.decoder_input, batch.labels)
        logits = self.model(source, decoder_input, padding=padding_of(batch.source, self.model.pad_id))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)

    def scores(self, examples: Examples) -> tuple[Mapping[str, Proportion], float]:
        """Exact match, both ways, and cross-entropy per token."""
        predicted = answer(self.model, self.task, examples)
        forced, free = predicted.exact
        return {"teacher_forced": forced, "free_running": free}, predicted.loss

    def training_scores(self, examples: Examples) -> Mapping[str, Proportion]:
        """Exact match, fed the right answer."""
        return {"teacher_forced": forced_exact(self.model, self.task, examples)}

    def margins(self, examples: Examples) -> NDArray[np.floating]:
        """By the least sure token."""
        return margins(self.model, self.task, examples)

    def evaluate(self, split: str, weights_sha256: str) -> Evaluation:
        """Both ways, by digit and by carries."""
        return evaluation.evaluate(self.model, self.task, split, weights_sha256)


@dataclass(frozen=True)
class ClassLearner:
    """A classifier."""

    model: Classifier
    task: ClassTask
    target_metric: ClassVar[str] = "accuracy"

    def loss(self, examples: Examples) -> Tensor:
        """Cross-entropy per example."""
        batch = self.task.encode(examples)
        source, labels = on_device(next(self.model.parameters()).device, batch.source, batch.labels)
        logits = self.model(source, padding=padding_of(batch.source, self.model.pad_id))
        return F.cross_entropy(logits, labels)

    def scores(self, examples: Examples) -> tuple[Mapping[str, Proportion], float]:
        """How often it is right, and how often it says the last class: a constant answer shows at once."""
        predicted = classification.classify(self.model, self.task, examples)
        return {
            "accuracy": Proportion.count(predicted.hits),
            f"says_{self.task.classes[-1]}": predicted.says_last,
        }, predicted.loss

    def training_scores(self, examples: Examples) -> Mapping[str, Proportion]:
        """How often it is right."""
        return {"accuracy": Proportion.count(classification.classify(self.model, self.task, examples).hits)}

    def margins(self, examples: Examples) -> NDArray[np.floating]:
        """By the lead of the right class."""
        return classification.classify(self.model, self.task, examples).margins

    def evaluate(self, split: str, weights_sha256: str) -> Classification:
        """By class, by broken pairs and by length."""
        return classification.evaluate(self.model, self.task, split, weights_sha256)


EVALUATIONS: dict[str, type[Evaluation] | type[Classification]] = {"sequence": Evaluation, "class": Classification}
"""What an evaluation is, by what the task asks for."""


def learner_of(model: Model, task: Task) -> Learner:
    """The learner for what the task asks for."""
    return {"sequence": SequenceLearner, "class": ClassLearner}[task.output_type](model, task)
