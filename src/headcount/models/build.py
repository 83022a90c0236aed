"""The model that a task asks for."""

from typing import cast

from headcount.models.config import ClassifierConfig, EncoderDecoderConfig, StackConfig
from headcount.models.transformer import Classifier, EncoderDecoder, Model
from headcount.tasks.base import ClassTask, Task


def build_model(config: StackConfig, task: Task) -> Model:
    """A fresh model for this task, its weights drawn from PyTorch's stream."""
    if isinstance(config, ClassifierConfig):
        asked = cast(ClassTask, task)
        pad_id = asked.pad_id if asked.masks_padding else None
        return Classifier(config, len(asked.tokens), len(asked.classes), pad_id)
    return EncoderDecoder(cast(EncoderDecoderConfig, config), n_tokens=len(task.tokens), pad_id=task.pad_id)
