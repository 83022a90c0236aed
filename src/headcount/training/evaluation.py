"""How good a model is: under teacher forcing and free-running, always both, each number with its doubt.

For a sound model the two exact-match rates are one number: fed the right prefix, the first wrong token is the same
either way. A gap between them is a fault in the pipeline (no start token, a class the loss ignores), never
"cascading errors".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from headcount.models.decoding import greedy
from headcount.models.encoder_decoder import EncoderDecoder
from headcount.models.finite import require_numbers
from headcount.results import Result
from headcount.statistics import Share
from headcount.tasks.base import IGNORE, Batch, Examples, SequenceTask, Tokens

BLOCK = 256
"""Examples per forward pass: large enough to be efficient, small enough to stay in a processor's cache."""


@dataclass(frozen=True)
class Answers:
    """What a model said, token by token, and which whole answers were right."""

    teacher_forced: Tokens
    """After each fed token, the right ones having been fed."""
    free: Tokens
    """Whole answers, the model having heard only itself."""
    batch: Batch
    losses: NDArray[np.float32]
    """[example, label]: cross-entropy of the right token, the right ones having been fed; 0 where nothing is asked."""

    @property
    def loss(self) -> float:
        """Cross-entropy per token that is asked for."""
        return float(self.losses.sum(dtype=np.float64) / max(1, (self.batch.labels != IGNORE).sum()))

    @property
    def teacher_forced_hits(self) -> NDArray[np.bool_]:
        """[example, label]: right, or not asked for."""
        return (self.teacher_forced == self.batch.labels) | (self.batch.labels == IGNORE)

    @property
    def free_hits(self) -> NDArray[np.bool_]:
        """[example, answer token]."""
        return self.free == self.batch.answer

    @property
    def exact(self) -> tuple[Share, Share]:
        """Exact match: teacher-forced, free-running."""
        return Share.count(_all_right(self.teacher_forced_hits)), Share.count(_all_right(self.free_hits))


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[torch.device]:
    """Dropout and gradients off inside; yields the model's device."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield next(model.parameters()).device
    finally:
        model.train(was_training)


def in_blocks(batch: Batch) -> Iterator[Batch]:
    """The batch, a forward pass' worth at a time."""
    for i in range(0, len(batch), BLOCK):
        yield batch[i : i + BLOCK]


def on_device(device: torch.device, *arrays: Tokens) -> list[torch.Tensor]:
    """Arrays as tensors where the model is."""
    return [torch.from_numpy(array).to(device) for array in arrays]


def answer(model: EncoderDecoder, task: SequenceTask, examples: Examples) -> Answers:
    """Both ways of answering these examples."""
    batch, start = task.encode(examples), task.generation
    forced, free, losses = [], [], []
    with evaluating(model) as device:
        for part in in_blocks(batch):
            source, fed, labels = on_device(device, part.source, part.fed, part.labels)
            memory = model.encode(source)
            logits = model.decode(fed, memory)
            forced.append(logits.argmax(dim=-1).cpu().numpy())
            losses.append(_token_losses(logits, labels).cpu().numpy())
            free.append(greedy(model, memory, start.first, start.n_tokens).cpu().numpy())
    said = np.concatenate(free)
    given = np.broadcast_to(np.array(start.given, dtype=np.int64), (len(said), len(start.given)))
    return Answers(
        np.concatenate(forced), np.concatenate([given, said], axis=1), batch, np.concatenate(losses, dtype=np.float32)
    )


def forced_exact(model: EncoderDecoder, task: SequenceTask, examples: Examples) -> Share:
    """Exact match under teacher forcing alone: no decoding."""
    hits = []
    with evaluating(model) as device:
        for part in in_blocks(task.encode(examples)):
            source, fed, labels = on_device(device, part.source, part.fed, part.labels)
            right = (model(source, fed).argmax(dim=-1) == labels) | (labels == IGNORE)
            hits.append(right.all(dim=1).cpu().numpy())
    return Share.count(np.concatenate(hits))


def _token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    flat = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="none")
    return flat.view(labels.shape)


@dataclass(frozen=True)
class Scores:
    """One group of examples, or one output position."""

    facet: str
    group: str
    teacher_forced: Share | None
    """None where teacher forcing asks nothing, as the first digit under the missing start token."""
    free_running: Share


@dataclass(frozen=True)
class WrongAnswer:
    """One example the model gets wrong when it runs freely."""

    example: str
    right: str
    said: str
    why: str


@dataclass(frozen=True)
class Evaluation(Result):
    """A model on one held-out set."""

    COLUMNS: ClassVar[dict[str, str]] = {"teacher_forced": "teacher-forced", "free_running": "free-running"}
    split: str
    model: str
    """The digest of the weights that were evaluated."""
    exact: Scores
    digits: tuple[Scores, ...]
    groups: tuple[Scores, ...]
    wrong: tuple[WrongAnswer, ...]

    @property
    def rows(self) -> tuple[Scores, ...]:
        """Everything that was scored."""
        return (self.exact, *self.digits, *self.groups)


def evaluate(model: EncoderDecoder, task: SequenceTask, split: str, digest: str = "") -> Evaluation:
    """Everything that is measured on a held-out set."""
    examples = task.split(split)
    said = answer(model, task, examples)
    require_numbers(said.loss, f"the {split} set")
    forced, free = _all_right(said.teacher_forced_hits), _all_right(said.free_hits)
    groups = tuple(
        Scores(facet, group, Share.count(forced[rows]), Share.count(free[rows]))
        for facet, labels in task.facets(examples).items()
        for group in sorted(set(labels))
        for rows in [np.array(labels) == group]
    )
    return Evaluation(
        split=split,
        model=digest,
        exact=Scores("exact match", "all", Share.count(forced), Share.count(free)),
        digits=_by_digit(task, said),
        groups=groups,
        wrong=wrong_answers(task, examples[~free], said.free[~free]),
    )


def wrong_answers(task: SequenceTask, examples: Examples, said: Tokens) -> tuple[WrongAnswer, ...]:
    """Each wrong answer with what is wrong about it."""
    right = task.encode(examples).answer if len(examples) else said
    return tuple(
        WrongAnswer(task.show(e), task.show_tokens(r), task.show_tokens(s), task.explain(e, s))
        for e, r, s in zip(examples, right, said, strict=True)
    )


def _by_digit(task: SequenceTask, said: Answers) -> tuple[Scores, ...]:
    asked = said.batch.labels != IGNORE
    unasked = said.batch.answer.shape[1] - said.batch.labels.shape[1]
    scores = []
    for i, position in enumerate(task.answer_positions):
        forced = None
        if i >= unasked and asked[:, i - unasked].any():
            forced = Share.count(said.teacher_forced_hits[asked[:, i - unasked], i - unasked])
        scores.append(Scores("digit", position.label, forced, Share.count(said.free_hits[:, i])))
    return tuple(scores)


def _all_right(hits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(hits.all(axis=1))
