"""Compute a model's answers to examples; training/evaluation.py computes scores from them.

A model that answers token by token has two ways: teacher-forced (it is fed the right answer) and free-running (it is
fed its own output). A classifier answers with a class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from headcount.hooks.gates import eval_mode
from headcount.limits import RARELY
from headcount.models.transformer import Classifier, SequenceTransformer, greedy
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE, Batch, ClassTask, Examples, SequenceTask, Tokens, past_end

BLOCK = 256
"""Number of examples per forward pass: large enough to be efficient, small enough for a processor's cache."""
TOKENS_AT_ONCE = 2**16
"""Largest number of tokens per forward pass, so that memory does not grow with the number of examples."""
MOST_AT_ONCE = 256
"""Largest number of sequences per forward pass."""


@dataclass(frozen=True)
class SequenceAnswers:
    """A model's token-by-token predictions for some examples, teacher-forced and free-running, and which are right."""

    batch: Batch
    """The examples and their right answers, in the task's tokens."""
    asked: NDArray[np.bool_]
    """A mask [example, answer token]: whether the model is asked for this token (has a label) under teacher forcing."""
    teacher_forced_hits: NDArray[np.bool_]
    """A mask [example, answer token]: whether the teacher-forced prediction is right, or the token has no label."""
    forced_right: NDArray[np.bool_]
    """A mask [example]: whether all teacher-forced predictions are right, including the end token of the answer."""
    free: Tokens | None
    """The decoded (free-running) answers, [example, answer token]; -1 for output that is not a token of the task.

    None if the model did not decode answers.
    """
    loss: float
    """The teacher-forced cross-entropy in nats, averaged over all tokens that have a label."""
    texts: Sequence[str] = ()
    """The decoded answers as text, for a model with its own output format; empty for other models."""
    filled: NDArray[np.bool_] | None = None
    """A mask [example, answer token] of tokens in `free` that headcount filled in, because the model omits them.

    They are leading zeros, or end tokens behind the first one. None if the model output every token itself.
    """
    optional: NDArray[np.bool_] | None = None
    """A mask [example, answer token] of tokens of the right answer that may be omitted, as in `filled`; None if none.
    """

    @property
    def free_hits(self) -> NDArray[np.bool_]:
        """A mask [example, answer token]: whether the decoded token is right, or an omitted leading zero."""
        assert self.free is not None, "the model was decoded"
        return self.free == self.batch.answer

    @property
    def is_answer(self) -> NDArray[np.bool_]:
        """A mask [example]: whether the decoded output is a valid answer of the task, right or wrong."""
        assert self.free is not None, "the model was decoded"
        return np.asarray((self.free >= 0).all(axis=1))

    @property
    def written(self) -> NDArray[np.bool_]:
        """A mask [example, answer token]: whether the model itself output this token of its decoded answer."""
        is_answer = np.broadcast_to(self.is_answer[:, None], self.batch.answer.shape)
        return np.asarray(is_answer if self.filled is None else is_answer & ~self.filled)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """A mask [example, answer token]: whether the model output this token, or should have output it."""
        return np.ones_like(self.written) if self.optional is None else self.written | ~self.optional

    @property
    def written_hits(self) -> NDArray[np.bool_]:
        """A mask [example, answer token]: whether the model itself output this token, and the token is right."""
        return self.free_hits & self.written

    def common_error(self, task: SequenceTask) -> str:
        """Describe the most common error, such as "94 of 94 errors: a 0 would have been right"; "" without errors."""
        hits = self.teacher_forced_hits if self.free is None else self.free_hits
        wrong = ~hits.all(axis=1)
        is_answer = np.ones(len(hits), dtype=bool) if self.free is None else (self.free >= 0).all(axis=1)
        counts = Counter({"the output was no valid answer": int((~is_answer).sum())})
        for expected, is_hit in zip(self.batch.answer[wrong & is_answer], hits[wrong & is_answer], strict=True):
            tokens = (task.tokens[token] for token in np.unique(expected[~is_hit]).tolist())
            counts.update(f"{'an' if token.startswith('8') else 'a'} {token} would have been right" for token in tokens)
        for place, position in enumerate(task.answer_positions[: self.batch.answer.shape[1]]):
            counts[f"the {position.label} place was wrong"] = int((~hits[is_answer, place]).sum())
        return _most_common(counts, int(wrong.sum()))


def answer(model: SequenceTransformer, task: SequenceTask, examples: Examples) -> SequenceAnswers:
    """Return a model's answers to these examples, teacher-forced and free-running."""
    task = task.sized_for(examples)
    batch, start = task.encode(examples), task.decoding_start
    forced, free, losses = [], [], []
    with eval_mode(model, gradients=False) as device:
        for part in in_blocks(batch):
            source, decoder_input, labels = on_device(device, part.source, part.decoder_input, part.labels)
            memory: Any = model.encode(source)
            logits = model.decode(decoder_input, memory)
            forced.append(logits.argmax(dim=-1).cpu().numpy())
            token_losses = F.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="none"
            )
            losses.append(token_losses.view(labels.shape).cpu().numpy())
            free.append(greedy(model, memory, start.first, start.n_tokens, end_id=task.end_id).cpu().numpy())
    predicted = np.concatenate(free)
    given = np.broadcast_to(np.array(start.given, dtype=np.int64), (len(predicted), len(start.given)))
    is_label = batch.labels != IGNORE
    hits = (np.concatenate(forced) == batch.labels) | ~is_label
    unlabelled = (0, 0), (len(start.given), 0)  # tokens given to generation have no label
    free_tokens = np.concatenate([given, predicted], axis=1)
    return SequenceAnswers(
        batch,
        asked=np.pad(is_label, unlabelled),
        teacher_forced_hits=np.pad(hits, unlabelled, constant_values=True),
        forced_right=hits.all(axis=1),
        free=free_tokens,
        filled=None if task.end_id is None else past_end(free_tokens, task.end_id),
        optional=None if task.end_id is None else past_end(batch.answer, task.end_id),
        loss=float(np.concatenate(losses).sum(dtype=np.float64) / max(1, is_label.sum())),
    )


def leading_zeros(task: SequenceTask, tokens: Tokens) -> NDArray[np.bool_]:
    """Return a mask [example, answer token] of the answer tokens that are leading zeros of a number."""
    columns = np.array([-1 if position.column is None else position.column for position in task.answer_positions])
    from_the_left = np.argsort(-columns, kind="stable")
    is_zero = (tokens >= 0) & (np.array(task.tokens)[tokens] == "0")
    leading = np.empty_like(is_zero)
    leading[:, from_the_left] = np.logical_and.accumulate(is_zero[:, from_the_left], axis=1)
    return leading & (columns > 0)


def margins(model: SequenceTransformer, task: SequenceTask, examples: Examples) -> NDArray[np.float64]:
    """Return one margin per example, which is positive exactly if the model's decoded answer is right.

    A token's margin is the logit of the right token minus the largest other logit, under teacher forcing. An example's
    margin is the smallest one of its answer tokens. No decoding is needed: under teacher forcing, a model's first wrong
    token is the one that it would also predict when it decodes. The margin is -inf if the right answer does not begin
    with the tokens that decoding starts from. Examples that share one answer are faster, because they share the
    decoder's first self-attention.
    """
    batch, given = task.encode(examples), task.decoding_start.given
    is_filled = past_end(batch.answer, task.end_id)[:, len(given) :]
    shared = slice(1) if (batch.answer == batch.answer[0]).all() else slice(None)
    least = []
    with eval_mode(model, gradients=False) as device:
        for part in in_blocks(batch):
            source, decoder_input, right = on_device(
                device, part.source, part.decoder_input[shared], part.answer[:, len(given) :]
            )
            logits = model(source, decoder_input)
            right_logits = logits.gather(-1, right[..., None]).squeeze(-1)
            margin = right_logits - logits.scatter(-1, right[..., None], -torch.inf).amax(dim=-1)
            least.append(margin.cpu().double().numpy())
    begins_right = (batch.answer[:, : len(given)] == given).all(axis=1)
    margins_by_token = np.where(is_filled, np.inf, np.concatenate(least))
    return np.where(begins_right, margins_by_token.min(axis=1), -np.inf)


def _most_common(counts: Counter[str], n_wrong: int) -> str:
    """Return a description of the most frequent kind of error, or of two kinds if they are equally frequent."""
    if not n_wrong:
        return ""
    most = max(counts.values())
    kinds = [kind for kind, count in counts.items() if count == most][:2]
    return f"{most:,} of {n_wrong:,} errors: {', and '.join(kinds)}"


def in_blocks(batch: Batch) -> Iterator[Batch]:
    """Yield parts of a batch that are small enough for one forward pass each."""
    n_tokens = batch.source.shape[1] + batch.decoder_input.shape[1]
    size = max(1, min(BLOCK, TOKENS_AT_ONCE // n_tokens))
    for i in range(0, len(batch), size):
        yield batch[i : i + size]


def on_device(device: torch.device, *arrays: Tokens) -> list[torch.Tensor]:
    """Return NumPy arrays as PyTorch tensors on this device."""
    return [torch.from_numpy(array).to(device) for array in arrays]


# --- classifiers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassAnswers:
    """A classifier's logits for some examples, and the right classes."""

    logits: NDArray[np.float32]
    """The logits, [example, class]."""
    labels: Tokens

    @property
    def predicted(self) -> Tokens:
        """For each example, the index of the class with the largest logit."""
        return np.asarray(self.logits.argmax(axis=1))

    @property
    def hits(self) -> NDArray[np.bool_]:
        """A mask [example]: whether the predicted class is the right one."""
        return np.asarray(self.predicted == self.labels)

    @property
    def says_last(self) -> Proportion:
        """The proportion of examples that are predicted as the last class (such as sorted), right or wrong."""
        return Proportion.count(self.predicted == self.logits.shape[1] - 1)

    def common_error(self, classes: Sequence[str]) -> str:
        """Describe the most common error: which class was predicted, and which was right; "" without any errors."""
        wrong = ~self.hits
        pairs = zip(self.predicted[wrong].tolist(), self.labels[wrong].tolist(), strict=True)
        if len(classes) == 2:
            counts = Counter(f"“{classes[one]}” was predicted, “{classes[other]}” was right" for one, other in pairs)
        else:
            counts = Counter()
            for one, other in pairs:
                counts.update([f"“{classes[one]}” was predicted", f"“{classes[other]}” was right"])
        return _most_common(counts, int(wrong.sum()))

    @property
    def loss(self) -> float:
        """The cross-entropy of the right classes in nats, averaged over examples."""
        logits = self.logits.astype(np.float64)
        right = logits[np.arange(len(logits)), self.labels]
        with np.errstate(invalid="ignore"):  # logits that are NaN give a loss of NaN
            return float((np.logaddexp.reduce(logits, axis=1) - right).mean())

    @property
    def margins(self) -> NDArray[np.float32]:
        """For each example, the logit of the right class minus the largest other logit; positive if right."""
        rows = np.arange(len(self.labels))
        others = self.logits.copy()
        others[rows, self.labels] = -np.inf
        return np.asarray(self.logits[rows, self.labels] - others.max(axis=1))


def classify(
    model: Classifier, task: ClassTask, examples: Examples, at_once: int | None = None, *, first: int = 0
) -> ClassAnswers:
    """Return a classifier's answers to these examples; `first` is the position id of the first token.

    `at_once` is the number of examples per forward pass; the default depends on their length.
    """
    batch = task.encode(examples)
    size = at_once or rows_at_once(batch.source.shape[1])
    logits = []
    with eval_mode(model, gradients=False) as device:
        for i in range(0, len(batch), size):
            (source,) = on_device(device, batch[i : i + size].source)
            logits.append(model(source, first=first).float().cpu().numpy())
    return ClassAnswers(np.concatenate(logits), batch.labels)


def rows_at_once(length: int) -> int:
    """Return how many sequences of this length fit into one forward pass."""
    return max(1, min(MOST_AT_ONCE, TOKENS_AT_ONCE // length))


def constant_answer(predicted: Sequence[int] | Tokens, labels: Tokens, classes: tuple[str, ...]) -> str | None:
    """Return the class that a model predicts for (nearly) all examples although others are right for many, or None.

    All other predictions together must be rarer than `RARELY` (by the 95 % CI), while labels of other classes are not.

    >>> constant_answer([1] * 200, np.arange(200) % 2, ("unsorted", "sorted"))
    'sorted'
    >>> constant_answer([1] * 100, np.arange(100) % 2, ("unsorted", "sorted"))  # the CI reaches 3.7 %
    """
    for i, name in enumerate(classes):
        if Proportion.count(np.asarray(predicted) != i).high < RARELY < (labels != i).mean():
            return name
    return None
