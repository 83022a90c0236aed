"""What a model answers: one that writes its answers, token by token and both ways, or a classifier.

How good that is, is scored elsewhere (training/evaluation.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from headcount.hooks.gates import eval_mode
from headcount.models.transformer import Classifier, EncoderDecoder, greedy
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE, Batch, ClassTask, Examples, SequenceTask, Tokens

BLOCK = 256
"""Examples per forward pass: large enough to be efficient, small enough to stay in a processor's cache."""
TOKENS_AT_ONCE = 2**16
"""Tokens per forward pass, so that memory does not grow with the number of examples."""
MOST_AT_ONCE = 256
NAMED = ("predicted", "right")
RARELY = 0.03
"""A model is called constant where its other answer comes less often than this, by the upper end of the 95 % interval.

One answer to all of n examples shows that from n = 125 on; 2 other answers among 200 do not (up to 3.6 %).
"""


@dataclass(frozen=True)
class SequenceAnswers:
    """What a model predicted for some examples, both ways, and which of it was right."""

    batch: Batch
    """The examples and their right answers, in the task's tokens."""
    asked: NDArray[np.bool_]
    """[example, answer token]: whether teacher forcing asks for it."""
    teacher_forced_hits: NDArray[np.bool_]
    """[example, answer token]: right, the right ones having been fed; or not asked for."""
    forced_right: NDArray[np.bool_]
    """[example]: whether all is right that teacher forcing asks for, such as the end of the answer."""
    free: Tokens | None
    """Whole answers, the model having been fed its own tokens; -1 where it wrote what is no token of the task.

    None if it was not decoded.
    """
    loss: float
    """Cross-entropy per token that is asked for, the right ones having been fed."""
    texts: Sequence[str] = ()
    """The whole answers as they were written, by a model that writes in its own way."""
    filled: NDArray[np.bool_] | None = None
    """[example, answer token]: leading zeros of `free` that the model did not write; None if it wrote every token."""
    optional: NDArray[np.bool_] | None = None
    """[example, answer token]: leading zeros of the right answer; None if every token must be written."""

    @property
    def free_hits(self) -> NDArray[np.bool_]:
        """[example, answer token]: equal to the right token. A leading zero may be equal and not written."""
        assert self.free is not None, "it was decoded"
        return self.free == self.batch.answer

    @property
    def is_answer(self) -> NDArray[np.bool_]:
        """[example]: whether the decoded text can be read as an answer of the task."""
        assert self.free is not None, "it was decoded"
        return np.asarray((self.free >= 0).all(axis=1))

    @property
    def written(self) -> NDArray[np.bool_]:
        """[example, answer token]: whether the model wrote this token of its decoded answer."""
        is_answer = np.broadcast_to(self.is_answer[:, None], self.batch.answer.shape)
        return np.asarray(is_answer if self.filled is None else is_answer & ~self.filled)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """[example, answer token]: whether the model wrote this token or had to write it."""
        return np.ones_like(self.written) if self.optional is None else self.written | ~self.optional

    @property
    def written_hits(self) -> NDArray[np.bool_]:
        """[example, answer token]: whether the model wrote this token, and it is right."""
        return self.free_hits & self.written

    def common_error(self, task: SequenceTask) -> str:
        """Say what most wrong answers share, such as "94 of 94 errors: a 0 was right"; empty if none is wrong."""
        hits = self.teacher_forced_hits if self.free is None else self.free_hits
        wrong = ~hits.all(axis=1)
        is_answer = np.ones(len(hits), dtype=bool) if self.free is None else (self.free >= 0).all(axis=1)
        counts = Counter({"the output was no answer": int((~is_answer).sum())})
        for expected, is_hit in zip(self.batch.answer[wrong & is_answer], hits[wrong & is_answer], strict=True):
            tokens = (task.tokens[token] for token in np.unique(expected[~is_hit]).tolist())
            counts.update(f"{'an' if token.startswith('8') else 'a'} {token} was right" for token in tokens)
        for place, position in enumerate(task.answer_positions):
            counts[f"the {position.label} place was wrong"] = int((~hits[is_answer, place]).sum())
        return _most_common(counts, int(wrong.sum()))


def answer(model: EncoderDecoder, task: SequenceTask, examples: Examples) -> SequenceAnswers:
    """Both ways of answering these examples."""
    batch, start = task.encode(examples), task.decoding_start
    forced, free, losses = [], [], []
    with eval_mode(model, gradients=False) as device:
        for part in in_blocks(batch):
            source, decoder_input, labels = on_device(device, part.source, part.decoder_input, part.labels)
            memory = model.encode(source)
            logits = model.decode(decoder_input, memory)
            forced.append(logits.argmax(dim=-1).cpu().numpy())
            token_losses = F.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="none"
            )
            losses.append(token_losses.view(labels.shape).cpu().numpy())
            free.append(greedy(model, memory, start.first, start.n_tokens).cpu().numpy())
    predicted = np.concatenate(free)
    given = np.broadcast_to(np.array(start.given, dtype=np.int64), (len(predicted), len(start.given)))
    is_label = batch.labels != IGNORE
    hits = (np.concatenate(forced) == batch.labels) | ~is_label
    unasked = (0, 0), (len(start.given), 0)  # what generation takes for given has no label
    return SequenceAnswers(
        batch,
        asked=np.pad(is_label, unasked),
        teacher_forced_hits=np.pad(hits, unasked, constant_values=True),
        forced_right=hits.all(axis=1),
        free=np.concatenate([given, predicted], axis=1),
        loss=float(np.concatenate(losses).sum(dtype=np.float64) / max(1, is_label.sum())),
    )


def leading_zeros(task: SequenceTask, tokens: Tokens) -> NDArray[np.bool_]:
    """[example, answer token]: zeros before the first other digit of a number, which people do not write."""
    columns = np.array([-1 if each.column is None else each.column for each in task.answer_positions])
    from_the_left = np.argsort(-columns, kind="stable")
    is_zero = (tokens >= 0) & (np.array(task.tokens)[tokens] == "0")
    leading = np.empty_like(is_zero)
    leading[:, from_the_left] = np.logical_and.accumulate(is_zero[:, from_the_left], axis=1)
    return leading & (columns > 0)


def margins(model: EncoderDecoder, task: SequenceTask, examples: Examples) -> NDArray[np.float64]:
    """For each example, the least lead of a right token's logit over the best wrong one: positive if it is right.

    Fed the right answer, a model's first wrong token is the one it would have predicted running freely. So generation
    is right exactly if every token is right here; no decoding loop is needed.
    An example whose answer does not begin with what generation takes for given is wrong without asking: -inf.
    Examples with one answer among them are quicker: the decoder's first attention to what it is fed is shared.
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


def _most_common(counts: Counter[str], n_wrong: int) -> str:
    """Name the kind of error that counts most, or two of them if they count the same."""
    if not n_wrong:
        return ""
    most = max(counts.values())
    kinds = [kind for kind, count in counts.items() if count == most][:2]
    return f"{most:,} of {n_wrong:,} errors: {', and '.join(kinds)}"


def in_blocks(batch: Batch) -> Iterator[Batch]:
    """The batch, a forward pass' worth at a time."""
    for i in range(0, len(batch), BLOCK):
        yield batch[i : i + BLOCK]


def on_device(device: torch.device, *arrays: Tokens) -> list[torch.Tensor]:
    """Arrays as tensors where the model is."""
    return [torch.from_numpy(array).to(device) for array in arrays]


# --- classifiers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassAnswers:
    """What a classifier predicted for some examples."""

    logits: NDArray[np.float32]
    """[example, class]."""
    labels: Tokens

    @property
    def predicted(self) -> Tokens:
        """The class with the largest logit."""
        return np.asarray(self.logits.argmax(axis=1))

    @property
    def hits(self) -> NDArray[np.bool_]:
        """Which are right."""
        return np.asarray(self.predicted == self.labels)

    @property
    def says_last(self) -> Proportion:
        """How often it predicted the last class."""
        return Proportion.count(self.predicted == self.logits.shape[1] - 1)

    def common_error(self, classes: Sequence[str]) -> str:
        """Say what most wrong answers share; empty if none is wrong."""
        wrong = ~self.hits
        pairs = zip(self.predicted[wrong].tolist(), self.labels[wrong].tolist(), strict=True)
        if len(classes) == 2:
            counts = Counter(f"“{classes[one]}” was predicted, “{classes[other]}” was right" for one, other in pairs)
        else:
            names = (f"“{classes[i]}” was {what}" for each in pairs for i, what in zip(each, NAMED, strict=True))
            counts = Counter(names)
        return _most_common(counts, int(wrong.sum()))

    @property
    def loss(self) -> float:
        """Cross-entropy per example."""
        logits = self.logits.astype(np.float64)
        right = logits[np.arange(len(logits)), self.labels]
        with np.errstate(invalid="ignore"):  # of logits that are no numbers, the loss is none
            return float((np.logaddexp.reduce(logits, axis=1) - right).mean())

    @property
    def margins(self) -> NDArray[np.float32]:
        """The lead of the right class over the best other one."""
        rows = np.arange(len(self.labels))
        others = self.logits.copy()
        others[rows, self.labels] = -np.inf
        return np.asarray(self.logits[rows, self.labels] - others.max(axis=1))


def classify(
    model: Classifier, task: ClassTask, examples: Examples, at_once: int | None = None, *, first: int = 0
) -> ClassAnswers:
    """Ask the model about each example; `first` is the id of its first position."""
    batch = task.encode(examples)
    size = at_once or rows_at_once(batch.source.shape[1])
    logits = []
    with eval_mode(model, gradients=False) as device:
        for i in range(0, len(batch), size):
            (source,) = on_device(device, batch[i : i + size].source)
            logits.append(model(source, first=first).float().cpu().numpy())
    return ClassAnswers(np.concatenate(logits), batch.labels)


def rows_at_once(length: int) -> int:
    """Sequences of this length for one forward pass."""
    return max(1, min(MOST_AT_ONCE, TOKENS_AT_ONCE // length))


def constant_answer(predicted: Sequence[int] | Tokens, labels: Tokens, classes: tuple[str, ...]) -> str | None:
    """The one answer that is given to (nearly) everything, if it is shown that the other one is rare and should not be.

    >>> constant_answer([1] * 200, np.arange(200) % 2, ("unsorted", "sorted"))
    'sorted'
    >>> constant_answer([1] * 100, np.arange(100) % 2, ("unsorted", "sorted"))  # the other one may come in 3.7 %
    """
    for i, name in enumerate(classes):
        if Proportion.count(np.asarray(predicted) != i).high < RARELY < (labels != i).mean():
            return name
    return None
