"""How good a model is: under teacher forcing and free-running, always both, each number with its doubt.

For a sound model the two exact-match rates are one number: fed the right prefix, the first wrong token is the same
either way. A gap between them is a fault in the pipeline (no start token, a class the loss ignores), never
"cascading errors".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from headcount.hooks.gates import eval_mode
from headcount.models.finite import require_numbers
from headcount.models.transformer import EncoderDecoder, greedy
from headcount.results import Result
from headcount.stats import Proportion
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
    def exact(self) -> tuple[Proportion, Proportion]:
        """Exact match: teacher-forced, free-running."""
        return Proportion.count(_all_right(self.teacher_forced_hits)), Proportion.count(_all_right(self.free_hits))


def in_blocks(batch: Batch) -> Iterator[Batch]:
    """The batch, a forward pass' worth at a time."""
    for i in range(0, len(batch), BLOCK):
        yield batch[i : i + BLOCK]


def on_device(device: torch.device, *arrays: Tokens) -> list[torch.Tensor]:
    """Arrays as tensors where the model is."""
    return [torch.from_numpy(array).to(device) for array in arrays]


def answer(model: EncoderDecoder, task: SequenceTask, examples: Examples) -> Answers:
    """Both ways of answering these examples."""
    batch, start = task.encode(examples), task.decoding_start
    forced, free, losses = [], [], []
    with eval_mode(model, gradients=False) as device:
        for part in in_blocks(batch):
            source, decoder_input, labels = on_device(device, part.source, part.decoder_input, part.labels)
            memory = model.encode(source)
            logits = model.decode(decoder_input, memory)
            forced.append(logits.argmax(dim=-1).cpu().numpy())
            losses.append(_token_losses(logits, labels).cpu().numpy())
            free.append(greedy(model, memory, start.first, start.n_tokens).cpu().numpy())
    predicted = np.concatenate(free)
    given = np.broadcast_to(np.array(start.given, dtype=np.int64), (len(predicted), len(start.given)))
    return Answers(
        np.concatenate(forced),
        np.concatenate([given, predicted], axis=1),
        batch,
        np.concatenate(losses, dtype=np.float32),
    )


def forced_exact(model: EncoderDecoder, task: SequenceTask, examples: Examples) -> Proportion:
    """Exact match under teacher forcing alone: no decoding."""
    hits = []
    with eval_mode(model, gradients=False) as device:
        for part in in_blocks(task.encode(examples)):
            source, decoder_input, labels = on_device(device, part.source, part.decoder_input, part.labels)
            right = (model(source, decoder_input).argmax(dim=-1) == labels) | (labels == IGNORE)
            hits.append(right.all(dim=1).cpu().numpy())
    return Proportion.count(np.concatenate(hits))


def _token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    flat = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="none")
    return flat.view(labels.shape)


@dataclass(frozen=True)
class Scores:
    """One group of examples, or one output position."""

    facet: str
    group: str
    teacher_forced: Proportion | None
    """None where teacher forcing asks nothing, as the first digit under the missing start token."""
    free_running: Proportion


@dataclass(frozen=True)
class WrongAnswer:
    """One example the model gets wrong when it runs freely."""

    example: str
    right: str
    predicted: str
    explanation: str


@dataclass(frozen=True)
class Evaluation(Result):
    """A model on one held-out set."""

    SCHEMA: ClassVar[int] = 2
    FORMER: ClassVar[Mapping[str, str]] = {"model": "weights_sha256", "said": "predicted", "why": "explanation"}
    COLUMNS: ClassVar[dict[str, str]] = {"teacher_forced": "teacher-forced", "free_running": "free-running"}
    split: str
    weights_sha256: str
    exact: Scores
    digits: tuple[Scores, ...]
    groups: tuple[Scores, ...]
    wrong: tuple[WrongAnswer, ...]

    @property
    def rows(self) -> tuple[Scores, ...]:
        """Everything that was scored."""
        return (self.exact, *self.digits, *self.groups)


def evaluate(model: EncoderDecoder, task: SequenceTask, split: str, weights_sha256: str = "") -> Evaluation:
    """Everything that is measured on a held-out set."""
    examples = task.split(split)
    predicted = answer(model, task, examples)
    require_numbers(predicted.loss, f"the {split} set")
    forced, free = _all_right(predicted.teacher_forced_hits), _all_right(predicted.free_hits)
    groups = tuple(
        Scores(facet, group, Proportion.count(forced[rows]), Proportion.count(free[rows]))
        for facet, labels in task.facets(examples).items()
        for group in sorted(set(labels))
        for rows in [np.array(labels) == group]
    )
    return Evaluation(
        split=split,
        weights_sha256=weights_sha256,
        exact=Scores("exact match", "all", Proportion.count(forced), Proportion.count(free)),
        digits=_by_digit(task, predicted),
        groups=groups,
        wrong=wrong_answers(task, examples[~free], predicted.free[~free]),
    )


def wrong_answers(task: SequenceTask, examples: Examples, predicted: Tokens) -> tuple[WrongAnswer, ...]:
    """Each wrong answer with what is wrong about it."""
    right = task.encode(examples).answer if len(examples) else predicted
    return tuple(
        WrongAnswer(task.show(e), task.show_tokens(r), task.show_tokens(s), task.explain(e, s))
        for e, r, s in zip(examples, right, predicted, strict=True)
    )


def _by_digit(task: SequenceTask, predicted: Answers) -> tuple[Scores, ...]:
    asked = predicted.batch.labels != IGNORE
    unasked = predicted.batch.answer.shape[1] - predicted.batch.labels.shape[1]
    scores = []
    for i, position in enumerate(task.answer_positions):
        forced = None
        if i >= unasked and asked[:, i - unasked].any():
            forced = Proportion.count(predicted.teacher_forced_hits[asked[:, i - unasked], i - unasked])
        scores.append(Scores("digit", position.label, forced, Proportion.count(predicted.free_hits[:, i])))
    return tuple(scores)


def _all_right(hits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(hits.all(axis=1))


# --- margins ----------------------------------------------------------------------------------------------------------
# How surely a model answers: one forward pass tells whether free-running generation is right, and by how much.
#
# Fed the right answer, a model's first wrong token is the one it would have said running freely. So generation is
# right exactly if every token is right here; no decoding loop is needed.


def margins(model: EncoderDecoder, task: SequenceTask, examples: Examples) -> NDArray[np.float64]:
    """For each example, the least lead of a right token's logit over the best wrong one: positive if it is right.

    An example whose answer does not begin with what generation takes for given is wrong without asking: -inf.
    Examples with one answer among them are quicker: the decoder's first look at what it is fed is shared.
    """
    batch, given = task.encode(examples), task.decoding_start.given
    shared = slice(1) if (batch.answer == batch.answer[0]).all() else slice(None)
    leads = []
    with eval_mode(model, gradients=False) as device:
        for part in in_blocks(batch):
            source, decoder_input, right = on_device(
                device, part.source, part.decoder_input[shared], part.answer[:, len(given) :]
            )
            logits = model(source, decoder_input)
            lead = logits.gather(-1, right[..., None]).squeeze(-1)
            lead = lead - logits.scatter(-1, right[..., None], -torch.inf).amax(dim=-1)
            leads.append(lead.amin(dim=1).cpu().double().numpy())
    begins_right = (batch.answer[:, : len(given)] == given).all(axis=1)
    return np.where(begins_right, np.concatenate(leads), -np.inf)
