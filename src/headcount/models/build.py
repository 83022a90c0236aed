"""The model that a task asks for."""

from __future__ import annotations

from headcount.models.classifier import Classifier
from headcount.models.config import ClassifierConfig, StackConfig
from headcount.models.encoder_decoder import EncoderDecoder
from headcount.tasks.base import Task

Model = EncoderDecoder | Classifier


def build_model(config: StackConfig, task: Task) -> Model:
    """A fresh model for this task, its weights drawn from PyTorch's stream."""
    if isinstance(config, ClassifierConfig):
        return Classifier(config, len(task.tokens), len(task.classes), task.pad_id if task.masks_padding else None)  # type: ignore[attr-defined]
    return EncoderDecoder(config, n_tokens=len(task.tokens), pad_id=task.pad_id)  # type: ignore[arg-type]
