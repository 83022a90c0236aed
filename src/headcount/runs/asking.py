"""One example asked of a model, and the answer in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from jaxtyping import Float
from torch import Tensor

from headcount.heads import HeadSite
from headcount.models.build import Model
from headcount.models.classifier import Classifier
from headcount.models.encoder_decoder import EncoderDecoder
from headcount.models.finite import require_numbers
from headcount.models.weights import KeptWeights
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task
from headcount.training.evaluation import answer, evaluating, on_device


@dataclass(frozen=True)
class Reply:
    """What a model said, and where its heads looked meanwhile."""

    example: str
    said: str
    right: str
    why: str
    """What is wrong with the answer; empty if it is right."""
    note: str
    """What there is to know of the example, such as its first broken pair."""
    probability: float
    """That the model gave to its whole answer."""
    source: tuple[str, ...]
    """The tokens it read."""
    fed: tuple[str, ...]
    """The tokens its decoder heard: the start token, then its own words. Empty for a classifier."""
    spoken: tuple[str, ...]
    """What it said after each of those."""
    weights: dict[HeadSite, Float[Tensor, "head query key"]]


def ask(model: Model, task: Task, example: Examples, *, look: bool = True) -> Reply:
    """One example, [1, ...], in the way the task asks; attention is read only if we `look`."""
    weights = KeptWeights() if look else None
    if isinstance(model, Classifier):
        return _ask_for_class(model, cast(ClassTask, task), example, weights)
    return _ask_for_sequence(model, cast(SequenceTask, task), example, weights)


def _ask_for_sequence(
    model: EncoderDecoder, task: SequenceTask, example: Examples, weights: KeptWeights | None
) -> Reply:
    said = answer(model, task, example).free
    start, batch = task.generation, task.encode(example)
    own = said[:, len(start.given) :]
    fed = np.concatenate([[[start.first]], own[:, :-1]], axis=1)
    with evaluating(model) as device:
        source_tokens, fed_tokens, own_tokens = on_device(device, batch.source, fed, own)
        logits = model(source_tokens, fed_tokens, weights=weights)
        require_numbers(logits, task.show(example[0]))
        log_p = logits.log_softmax(dim=-1).gather(-1, own_tokens[..., None]).sum()
    return Reply(
        example=task.show(example[0]),
        said=task.show_tokens(said[0]),
        right=task.show_tokens(batch.answer[0]),
        why=task.explain(example[0], said[0]),
        note="",
        probability=float(log_p.exp()),
        source=tuple(task.tokens[token] for token in batch.source[0]),
        fed=tuple(task.tokens[token] for token in fed[0]),
        spoken=tuple(task.tokens[token] for token in own[0]),
        weights=_first_row(model, weights),
    )


def _ask_for_class(model: Classifier, task: ClassTask, example: Examples, weights: KeptWeights | None) -> Reply:
    batch = task.encode(example)
    with evaluating(model) as device:
        (source,) = on_device(device, batch.source)
        logits = model(source, weights=weights)
        require_numbers(logits, task.show(example[0]))
        probability = logits[0].softmax(dim=-1)
    said = int(probability.argmax())
    return Reply(
        example=task.show(example[0]),
        said=task.classes[said],
        right=task.classes[int(batch.labels[0])],
        why=task.explain(example[0], said),
        note=task.describe(example[0]),
        probability=float(probability[said]),
        source=tuple(task.tokens[token] for token in batch.source[0]),
        fed=(),
        spoken=(),
        weights=_first_row(model, weights),
    )


def _first_row(model: Model, weights: KeptWeights | None) -> dict[HeadSite, Tensor]:
    return {} if weights is None else {site: weights[site][0].cpu() for site in model.sites}
