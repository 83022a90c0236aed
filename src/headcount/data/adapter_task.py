"""An adapter's model on the task that the adapter names: its answers, converted to the task's tokens and classes.

The model has token ids and classes of its own. The adapter need not explain them: calling its encode() on random texts
shows which label stands for which token of an answer (data/probing.py), and which class for which class of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from headcount.data.from_adapter import Pairs, cached_metric, encoded, generated, pairs_of, require_logits, whole_answer
from headcount.data.probing import N_PROBES, AnswerProbe, AnswerTokens
from headcount.errors import InputError
from headcount.external.adapter import Adapted, Adapter
from headcount.hooks.gates import eval_mode
from headcount.stats import Z95, Proportion
from headcount.tasks.base import IGNORE, ClassTask, Examples, SequenceTask, Task, Tokens
from headcount.training.answers import BLOCK, ClassAnswers, SequenceAnswers, leading_zeros, rows_at_once
from headcount.training.evaluation import Claim

Hits = NDArray[np.bool_]


@dataclass(frozen=True)
class AdapterModel:
    """Base class of an adapter's models on a task: `AdapterSequences` and `AdapterClasses`."""

    adapted: Adapted
    task: Task

    @property
    def adapter(self) -> Adapter:
        """The adapter, whose code encodes questions, decodes answers and scores them."""
        return self.adapted.adapter

    def passes(self, pairs: Pairs, at_once: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the model's logits and the labels for batches of `at_once` pairs of question and answer."""
        with eval_mode(self.adapted, gradients=False) as device:
            for i in range(0, len(pairs), at_once):
                inputs, labels = encoded(self.adapter, pairs[i : i + at_once])
                logits = self.adapted(*(self.as_weights(each).to(device) for each in inputs))
                yield logits, labels.to(logits.device)

    def as_weights(self, given: Tensor) -> Tensor:
        """Return an input tensor in the precision of the model's weights; token ids are returned as they are."""
        weight = next(self.adapted.parameters())
        return given.to(weight.dtype) if given.is_floating_point() else given

    def _claim_of(self, pairs: Pairs, predicted: Sequence[str], right: Hits) -> Claim | None:
        """Return the accuracy that the author claims, beside the score of these answers by the author's metric.

        Without a metric(), the score is exact match. Return None if the adapter has neither a claim nor a metric.
        """
        adapter, scoring, scores = self.adapter, "exact match", right.astype(float)
        if type(adapter).metric is not Adapter.metric:
            scoring = f"metric() of {type(adapter).__name__}"
            scores = np.array([self._metric(*pair, text) for pair, text in zip(pairs, predicted, strict=True)])
        elif adapter.claimed is None:
            return None
        if set(np.unique(scores)) <= {0.0, 1.0}:
            share = Proportion.count(scores == 1)
            return Claim(adapter.claimed, scoring, share.rate, share.low, share.high, share.n)
        mean, half = float(scores.mean()), Z95 * float(scores.std(ddof=1)) / len(scores) ** 0.5
        return Claim(adapter.claimed, scoring, mean, mean - half, mean + half, len(scores))

    @cached_property
    def _metric(self) -> Callable[[str, str, str], float]:
        return cached_metric(self.adapter)


@dataclass(frozen=True)
class AdapterSequences(AdapterModel):
    """An adapter's model that predicts answers token by token, on a task."""

    task: SequenceTask

    @property
    def given(self) -> str:
        """The first tokens of every answer, if the decoder is given them and does not predict them; usually empty."""
        return self.adapter.given

    def claim(self, examples: Examples, answers: SequenceAnswers) -> Claim | None:
        """Return the accuracy that the author claims, beside the score of the decoded answers by the author's metric.

        Return None without decoded answers, or if the adapter has neither a claim nor a metric.
        """
        if answers.free is None:
            return None
        return self._claim_of(pairs_of(self.task, examples), answers.texts, np.all(answers.free_hits, axis=1))

    def answer(self, examples: Examples) -> SequenceAnswers:
        """Return the model's answers from a teacher-forced pass and, if the adapter has `generate`, from decoding."""
        pairs, batch = pairs_of(self.task, examples), self.task.encode(examples)
        asked, hits = np.zeros(batch.answer.shape, dtype=bool), np.ones(batch.answer.shape, dtype=bool)
        right, loss, n_labels, done = np.empty(len(pairs), dtype=bool), 0.0, 0, 0
        for logits, labels in self.passes(pairs, BLOCK):
            require_logits(logits, labels)
            is_label, rows = labels != IGNORE, slice(done, done := done + len(labels))
            is_hit = (logits.argmax(dim=-1) == labels) | ~is_label
            right[rows] = is_hit.all(dim=1).cpu().numpy()
            self._by_token(examples[rows], is_label.cpu().numpy(), is_hit.cpu().numpy(), asked[rows], hits[rows])
            losses = F.cross_entropy(logits.transpose(1, 2).float(), labels, ignore_index=IGNORE, reduction="none")
            loss, n_labels = loss + float(losses.double().sum()), n_labels + int(is_label.sum())
        answers = SequenceAnswers(batch, asked, hits, right, None, loss / max(1, n_labels))
        if not self.generates:
            return answers
        return self.with_texts(answers, self.generate([question for question, _ in pairs]))

    def with_texts(self, answers: SequenceAnswers, texts: Sequence[str]) -> SequenceAnswers:
        """Return `answers` with decoded texts added, converted to the task's tokens.

        Leading zeros that a text leaves out are filled in and marked as such.
        """
        free = np.stack([self._read(text) for text in texts])
        zeros = leading_zeros(self.task, free)
        shown = [self.task.show_tokens(row) if (row >= 0).all() else "" for row in free]
        filled = zeros & (np.array(shown) != np.array(texts))[:, None]
        optional = leading_zeros(self.task, answers.batch.answer)
        return replace(answers, free=free, texts=texts, filled=filled, optional=optional)

    @property
    def generates(self) -> bool:
        """Whether the adapter has the method `generate`, so that the model's decoded answers can be measured."""
        return type(self.adapter).generate is not Adapter.generate

    def generate(self, questions: Sequence[str]) -> list[str]:
        """Return the answers to these questions, decoded by the adapter's method `generate`."""
        texts = list[str]()
        with eval_mode(self.adapted, gradients=False):
            for i in range(0, len(questions), BLOCK):
                texts += generated(self.adapter, self.adapted.model, questions[i : i + BLOCK])
        return texts

    def _read(self, text: str) -> Tokens:
        tokens = self.task.read_answer(text)
        return np.full(len(self.task.answer_positions), -1) if tokens is None else tokens

    def margins(self, examples: Examples) -> NDArray[np.float64]:
        """Return one margin per example: the smallest (right logit - best other logit) of its answer tokens.

        The margin is -inf if the right answer does not begin with the tokens that the decoder is given.
        """
        pairs, leads = pairs_of(self.task, examples), list[Any]()
        for logits, labels in self.passes(pairs, BLOCK):
            require_logits(logits, labels)
            right = labels.clamp(min=0)[..., None]
            lead = logits.gather(-1, right).squeeze(-1) - logits.scatter(-1, right, -torch.inf).amax(dim=-1)
            leads.append(lead.masked_fill(labels == IGNORE, torch.inf).amin(dim=1).cpu().double().numpy())
        return np.where(self.begins_right(examples), np.concatenate(leads), -np.inf)

    def teacher_forced(self, examples: Examples) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the model's inputs under teacher forcing, and the labels, both on the model's device."""
        device = next(self.adapted.parameters()).device
        inputs, labels = encoded(self.adapter, pairs_of(self.task, examples))
        return tuple(self.as_weights(each).to(device) for each in inputs), labels.to(device)

    def begins_right(self, examples: Examples) -> Hits:
        """Return a mask of the examples whose right answer begins with the tokens that the decoder is given."""
        answers = (self.task.answer(example) for example in examples)
        return np.array([whole_answer(self.task, answer).startswith(self.given) for answer in answers])

    # --- which label stands for which token of the answer ---

    def _by_token(self, examples: Examples, is_label: Hits, is_hit: Hits, asked: Hits, hits: Hits) -> None:
        """Fill in two masks [example, answer token]: `asked` (the token has a label) and `hits` (predicted right).

        `is_label` and `is_hit` say the same for the positions of the model's labels.
        """
        split = self._answer_tokens.split
        n_written = np.array([len(split(self.task.answer(example))) for example in examples])
        for n in np.unique(n_written).tolist():
            rows = np.flatnonzero(n_written == n)
            for column, token in enumerate(self._labelled_tokens(n, examples[rows[0]])):
                if token >= 0 and column < is_label.shape[1]:
                    asked[rows, token], hits[rows, token] = is_label[rows, column], is_hit[rows, column]

    @cached_property
    def _answer_tokens(self) -> AnswerTokens:
        return AnswerTokens.of(self.task)

    @cached_property
    def _known_tokens(self) -> dict[int, list[int]]:
        return {}

    def _labelled_tokens(self, n_written: int, example: Examples) -> list[int]:
        """Return, for each label of an answer with `n_written` tokens, the index of its token; -1 for none."""
        if n_written not in self._known_tokens:
            places: list[int] = []
            with suppress(InputError):  # encode() may refuse wrong answers; then no token has a known label
                question = self.task.show(example)
                places = AnswerProbe.of(self.adapter, self.task, [question] * N_PROBES, n_written).labelled.tolist()
            self._known_tokens[n_written] = places
        return self._known_tokens[n_written]


@dataclass(frozen=True)
class AdapterClasses(AdapterModel):
    """An adapter's model that predicts classes, on a task; its classes are converted to those of the task."""

    task: ClassTask

    def claim(self, examples: Examples, answers: ClassAnswers) -> Claim | None:
        """Return the accuracy that the author claims, beside the score of the predicted classes by the author's metric.

        Return None if the adapter has neither a claim nor a metric.
        """
        classes = [self.task.classes[i] for i in answers.predicted.tolist()]
        return self._claim_of(pairs_of(self.task, examples), classes, answers.hits)

    @cached_property
    def columns(self) -> list[int]:
        """For each class of the task, its index among the model's logits."""
        example = self.task.split("test")[:1]
        question = self.task.show(example[0])
        labels = encoded(self.adapter, [(question, name) for name in self.task.classes])[1]
        columns = labels.tolist() if labels.dim() == 1 else []
        if len(set(columns)) < len(self.task.classes):
            raise InputError(
                f"encode() must return a different label for each class, got the labels {labels.tolist()} for the "
                f"answers {', '.join(self.task.classes)}",
                "return one label per question: the number of the class that is its answer",
            )
        return [int(column) for column in columns]

    def classify(self, examples: Examples, at_once: int | None = None, *, first: int = 0) -> ClassAnswers:
        """Return the model's answers to these examples; only examples of equal length share a batch (no padding)."""
        if first:
            raise InputError(
                "position ids can be shifted (`first`) only in models that headcount trained", "leave `first` out"
            )
        pairs, columns = pairs_of(self.task, examples), self.columns
        all_logits = np.empty((len(pairs), len(columns)), dtype=np.float32)
        lengths = self.task.lengths(examples)
        for length in np.unique(lengths).tolist():  # one length at a time, so that no example is padded
            rows, parts = np.flatnonzero(lengths == length), []
            for logits, labels in self.passes([pairs[i] for i in rows.tolist()], at_once or rows_at_once(length)):
                require_logits(logits, labels)
                parts.append(logits[:, columns].float().cpu().numpy())
            all_logits[rows] = np.concatenate(parts)
        return ClassAnswers(all_logits, self.task.encode(examples).labels)
