"""The audit's view of a model: its answers to examples of its task, and everything else that checks need.

`AuditedSequenceModel` is the view of a model that outputs sequences, `AuditedClassifier` that of a classifier, and
`AuditedModel` has what both share. Everything is computed when a check first needs it and then kept, so that many
checks cost little more than one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.auditing.head_sweep import HeadSweep, sweep_heads
from headcount.data.adapter_task import AdapterClasses, AdapterModel, AdapterSequences
from headcount.data.from_adapter import Pairs, encoded, pairs_of
from headcount.data.from_task import of_length
from headcount.data.probing import AnswerTokens
from headcount.errors import HeadcountError
from headcount.experiments.external_models import ExternalModel
from headcount.experiments.models import OpenModel
from headcount.external.adapter import Adapter
from headcount.formatting import percent
from headcount.hooks.gates import eval_mode
from headcount.seeds import stream
from headcount.stats import Proportion
from headcount.tasks.base import Batch, ClassTask, Examples, SequenceTask, Task, Tokens
from headcount.training.answers import BLOCK, ClassAnswers, SequenceAnswers, leading_zeros, on_device
from headcount.training.evaluation import Claim, ClassModel, SequenceModel

Hits = NDArray[np.bool_]
Logits = NDArray[np.float64]
N_SWAPPED = 50
"""Number of examples whose operands are swapped to see whether the right answer depends on their order."""
MIN_CLASS_ACCURACY = 0.5
"""Minimum accuracy on one class for the model to recognise that class."""
MAX_OPEN_LEAD = 0.15
"""More examples could decide if the upper end of accuracy's 95 % CI is this far above the best constant answer."""
MIN_PER_LENGTH, MAX_PER_LENGTH, MAX_NUMBERS = 20, 200, 2**14
"""To measure accuracy at one length: smallest and largest number of sequences, and largest number of all tokens."""


@dataclass(frozen=True)
class ConstantBaseline:
    """The model's accuracy, beside the accuracy of always giving the most common right answer to the same examples."""

    measured: Proportion
    answer: str
    """The most common right answer."""
    share: float
    """The fraction of examples on which the most common answer is right."""
    by_class: tuple[Proportion, ...] = ()
    """Accuracy on each class; empty for models that output sequences."""

    @property
    def is_beaten(self) -> bool:
        """Whether the model's accuracy is significantly above that of the constant answer.

        If one class is very common, accuracy need only be above that of the constant answer, but on every class above
        `MIN_CLASS_ACCURACY`.
        """
        # If one class is very common, accuracy cannot be far above its share. Then every class must be recognised.
        is_recognised = bool(self.by_class) and all(each.low > MIN_CLASS_ACCURACY for each in self.by_class)
        return self.measured.low > self.share or (is_recognised and self.measured.rate > self.share)

    @property
    def is_undecided(self) -> bool:
        """Whether accuracy is above that of the constant answer, but on too few examples to be sure."""
        is_open = self.measured.rate > self.share and self.measured.high > self.share + MAX_OPEN_LEAD
        return is_open and not self.is_beaten


class AuditedModel(ABC):
    """A model, up to `n` of its test examples, and everything that checks need to know about its answers to them."""

    def __init__(self, opened: OpenModel, n: int | None, split: str) -> None:
        self.opened, self.split = opened, split
        examples = self.task.split(split)
        rows = np.sort(self.rng("examples").permutation(len(examples))[:n])  # a split may be sorted by class
        self.examples: Examples = examples[rows]

    @property
    @abstractmethod
    def task(self) -> Task:
        """The task whose examples and right answers the audit uses."""

    @property
    def n(self) -> int:
        """The number of test examples on which the model is audited."""
        return len(self.examples)

    @property
    def adapter(self) -> Adapter | None:
        """The adapter (a user's Python file) that loaded the model; None for a model that headcount trained."""
        return self.opened.adapter if isinstance(self.opened, ExternalModel) else None

    @property
    def pairs(self) -> Pairs:
        """The audited questions and their right answers, as texts."""
        return pairs_of(self.task, self.examples)

    def rng(self, name: str) -> np.random.Generator:
        """Return a random generator for the check of this name; equal names give equal numbers in every process."""
        return stream(0, f"audit {name}")

    @cached_property
    def is_commutative(self) -> bool:
        """Whether examples are pairs whose order does not change the right answer."""
        if self.examples.ndim != 2 or self.examples.shape[1] != 2:
            return False
        return all(self.task.answer(each) == self.task.answer(each[::-1]) for each in self.examples[:N_SWAPPED])

    @property
    @abstractmethod
    def answers(self) -> SequenceAnswers | ClassAnswers:
        """The model's answers to the audited examples, computed once for all checks."""

    @cached_property
    def right(self) -> Hits:
        """[example]: whether the model's answer is right."""
        return self.right_on(self.examples)

    @abstractmethod
    def right_on(self, examples: Examples) -> Hits:
        """Return for each of these examples whether the model's answer is right."""

    @property
    def loss(self) -> float:
        """Cross-entropy per label in nats: per answer token under teacher forcing, or per example of a classifier."""
        return self.answers.loss

    @property
    def scoring(self) -> str:
        """The name of the measure of accuracy: `accuracy`, or `exact match` for models that output sequences."""
        return "accuracy"

    @property
    @abstractmethod
    def common_error(self) -> str:
        """What most wrong answers have in common, such as "94 of 94 errors: a 0 would have been right"; "" if none."""

    @property
    @abstractmethod
    def baseline(self) -> ConstantBaseline | None:
        """The model's accuracy and that of the best constant answer; None if all right answers are the same."""

    @abstractmethod
    def claim(self) -> Claim | None:
        """Return the accuracy that the model's author reports and the measured one; None if the author reports none."""

    @cached_property
    def head_sweep(self) -> HeadSweep:
        """Which examples are right without each head; raises an InputError if heads cannot be ablated one by one."""
        return sweep_heads(self.opened, self.split, self.n)

    def inputs(self, examples: Examples) -> tuple[Tensor, ...]:
        """Encode examples as the input tensors of the model, on the model's device."""
        device = next(self.opened.module.parameters()).device
        if isinstance(adapted := self.opened.answers, AdapterModel):
            tensors = encoded(adapted.adapter, pairs_of(self.task, examples))[0]
            return tuple(adapted.as_weights(each).to(device) for each in tensors)
        batch = self.opened.answers.task.encode(examples)
        return tuple(on_device(device, batch.source, *([batch.decoder_input] if isinstance(batch, Batch) else [])))


# --- models that output sequences -------------------------------------------------------------------------------------


class AuditedSequenceModel(AuditedModel):
    """A model that outputs its answer token by token."""

    def __init__(self, opened: OpenModel, sequence_model: SequenceModel, n: int | None, split: str) -> None:
        self.sequence_model = sequence_model
        super().__init__(opened, n, split)

    @property
    def task(self) -> SequenceTask:
        """The task whose examples and right answers the audit uses."""
        return self.sequence_model.task

    @property
    def adapted(self) -> AdapterSequences | None:
        """The adapter's model together with its task; None for a model that headcount trained."""
        return self.sequence_model if isinstance(self.sequence_model, AdapterSequences) else None

    @cached_property
    def answers(self) -> SequenceAnswers:
        """The model's teacher-forced and decoded answers to the audited examples."""
        return self.sequence_model.answer(self.examples)

    @property
    def scoring(self) -> str:
        """The name of the measure of accuracy: exact match of decoded answers or, without decoding, of one pass."""
        return "exact match" if self.can_decode else "exact match in one pass"

    @property
    def common_error(self) -> str:
        """What most wrong answers have in common; empty if all answers are right."""
        return self.answers.common_error(self.task)

    @cached_property
    def baseline(self) -> ConstantBaseline | None:
        """The model's exact match and that of the best constant answer; None if all right answers are the same."""
        answer, count = Counter(self.task.show_tokens(row) for row in self.right_answers).most_common(1)[0]
        return None if count == self.n else ConstantBaseline(Proportion.count(self.right), answer, count / self.n)

    def claim(self) -> Claim | None:
        """Return the exact match that the model's author reports and the measured one; None if none is reported."""
        return self.sequence_model.claim(self.examples, self.answers)

    def right_on(self, examples: Examples) -> Hits:
        """Return for each example whether the decoded answer is right or, without decoding, one teacher-forced pass."""
        if not self.can_decode:
            return np.asarray(self.sequence_model.margins(examples) > 0)
        answers = self.answers if examples is self.examples else self.sequence_model.answer(examples)
        return np.asarray(np.all(answers.free_hits, axis=1))

    @property
    def can_decode(self) -> bool:
        """Whether the model decodes answers; an adapter without `generate` does not."""
        return self.answers.free is not None

    @cached_property
    def readable_answers(self) -> SequenceAnswers:
        """The decoded answers in the task's format: without separators, and without wrong leading zeros.

        "1 1 8" is read as 118, and so is "00118" if 118 is right, because these are differences of format and not of
        value. Exact match still compares the answer exactly as the model wrote it.
        """
        texts = self.answers.texts if self.answer_tokens.separator else without_separators(self.answers.texts)
        texts = [self._with_usual_zeros(text, example) for text, example in zip(texts, self.examples, strict=False)]
        if self.adapted is None or texts == list(self.answers.texts):
            return self.answers
        return self.adapted.with_texts(self.answers, texts)

    def _with_usual_zeros(self, text: str, example: Examples) -> str:
        """Return the right answer if an invalid text differs from it only in leading zeros, otherwise the text."""
        right = self.task.answer(example)
        is_value_right = text.startswith("0") and (text.lstrip("0") or "0") == right
        return right if is_value_right and self.task.read_answer(text) is None else text

    @cached_property
    def answer_tokens(self) -> AnswerTokens:
        """The way in which the task cuts answers into tokens, and the separator that it writes between tokens."""
        return AnswerTokens.of(self.task)

    @property
    def right_when_readable(self) -> Hits:
        """[example]: whether the answer is right if differences of format are ignored (see `readable_answers`)."""
        return np.asarray(self.readable_answers.free_hits.all(axis=1)) if self.can_decode else self.right

    @property
    def decoded(self) -> Tokens:
        """[example, place]: token ids of the decoded answers (of `readable_answers`); -1 where an answer is invalid."""
        assert self.readable_answers.free is not None, "the model does not decode answers: check can_decode first"
        return self.readable_answers.free

    @property
    def right_answers(self) -> Tokens:
        """[example, place]: the token ids of the right answers to the audited examples."""
        return self.answers.batch.answer

    @property
    def places(self) -> tuple[str, ...]:
        """The name of each position of an answer, such as `10s`."""
        return tuple(position.label for position in self.task.answer_positions)

    def token(self, id: int) -> str:
        """Return the text of a token id, as the task writes it."""
        return self.task.tokens[id]

    @property
    def begins_as_given(self) -> Hits:
        """[example]: whether the right answer begins with the tokens that the decoder is given (if it is given any)."""
        if self.adapted is not None:
            return self.adapted.begins_right(self.examples)
        given = self.task.decoding_start.given
        return np.asarray((self.right_answers[:, : len(given)] == given).all(axis=1))

    def rows_of_one_length(self, n: int) -> NDArray[np.int64]:
        """Return the row indices of up to `n` examples whose questions and whose answers have the same lengths."""
        lengths = [(len(self.task.show(example)), len(self.task.answer(example))) for example in self.examples]
        ((usual, _),) = Counter(lengths).most_common(1)
        return np.array([row for row, each in enumerate(lengths) if each == usual][:n])

    def logits_when_fed(self, examples: Examples, answers: Tokens) -> tuple[Tensor, Tensor]:
        """Feed the decoder these answers, right or wrong; return the logits [example, label, token] and the labels."""
        if self.adapted is not None:
            pairs = pairs_of(self.task, examples)
            split, join = self.answer_tokens.split, self.answer_tokens.join
            fed = [
                (question, join(split(text)[-len(split(right)) :]))
                for text, (question, right) in zip(map(self.task.show_tokens, answers), pairs, strict=True)
            ]
            parts = list(self.adapted.passes(fed, BLOCK))
            return torch.cat([logits for logits, _ in parts]).cpu(), torch.cat([labels for _, labels in parts]).cpu()
        start, batch = self.task.decoding_start, self.task.encode(examples)
        before = () if start.given else (start.first,)
        first = np.broadcast_to(np.array(before, dtype=np.int64), (len(examples), len(before)))
        decoder_input = np.concatenate([first, answers[:, :-1]], axis=1)
        with eval_mode(self.opened.module, gradients=False) as device:
            logits: Tensor = self.opened.module(*on_device(device, batch.source, decoder_input))
        return logits.cpu(), torch.from_numpy(answers[:, len(start.given) :])

    # --- tokens that count ---

    @property
    def token_hits(self) -> tuple[Hits, Hits]:
        """Return two arrays [example, place]: whether each token is right, and whether it counts.

        Invalid decoded answers are replaced by teacher-forced tokens. A leading zero that the model omits does not
        count.
        """
        answers = self.readable_answers
        if answers.free is None:
            return answers.teacher_forced_hits, answers.asked
        is_answer = answers.is_answer[:, None]
        hits = np.where(is_answer, answers.written_hits, answers.teacher_forced_hits)
        return hits, np.where(is_answer, answers.counted, answers.asked)

    @property
    def required_tokens(self) -> Hits:
        """[example, place]: whether the answer must have this token.

        Leading zeros that the model omits are optional.
        """
        answers = self.readable_answers
        if answers.free is None or answers.optional is None:
            return answers.asked | ~leading_zeros(self.task, self.right_answers)
        return np.where(answers.is_answer[:, None], answers.counted, answers.asked | ~answers.optional)


MAX_LOGIT_CHANGE = 1e-4
"""Largest change of a logit, as a fraction of the largest logit, that rounding can cause in single precision."""


def logit_changes(logits: Tensor, others: Tensor) -> Tensor:
    """Return [example, label]: the largest change of a label's logits, as a fraction of the largest logit."""
    is_number = logits.isfinite() & others.isfinite()
    largest = logits.masked_fill(~is_number, 0).abs().max().clamp(min=torch.finfo(logits.dtype).tiny)
    return (logits - others).masked_fill(~is_number, 0).abs().amax(dim=-1) / largest


SEPARATORS = (" ", ",", ", ", ";", "|", ".", "-", "\t")
"""Texts that a model may write between the characters of an answer."""
MIN_SEPARATED = 0.9
"""A character is a separator if at least this fraction of the longer answers contain it."""


def without_separators(texts: Sequence[str]) -> list[str]:
    """Return the texts without the separator that nearly all of them have between characters or thousands.

    >>> without_separators(["1 1 8", "4 2", "7"]), without_separators(["1,188", "420"])
    (['118', '42', '7'], ['1188', '420'])
    >>> without_separators(["118", "1 8"])  # a space in a few texts stands for something else
    ['118', '1 8']
    """
    for separator in SEPARATORS:
        parts = [text.strip().split(separator) for text in texts]
        for is_separated in (_in_characters, _in_thousands):
            longer = [each for each in parts if len("".join(each)) > (1 if is_separated is _in_characters else 3)]
            if longer and sum(map(is_separated, longer)) >= MIN_SEPARATED * len(longer):
                return ["".join(each) if is_separated(each) else text for each, text in zip(parts, texts, strict=True)]
    return list(texts)


def _in_characters(parts: Sequence[str]) -> bool:
    return len(parts) > 1 and all(len(each) == 1 and each.isalnum() for each in parts)


def _in_thousands(parts: Sequence[str]) -> bool:
    first, *rest = parts
    return bool(rest) and "".join(parts).isdigit() and 0 < len(first) < 4 and all(len(each) == 3 for each in rest)


# --- classifiers ------------------------------------------------------------------------------------------------------


class AuditedClassifier(AuditedModel):
    """A model that answers with one of a few classes, as the checks see it."""

    def __init__(self, opened: OpenModel, class_model: ClassModel, n: int | None, split: str) -> None:
        self.class_model = class_model
        super().__init__(opened, n, split)

    @property
    def task(self) -> ClassTask:
        """The task whose examples and right answers the audit uses."""
        return self.class_model.task

    @property
    def trained_lengths(self) -> tuple[int, int]:
        """The shortest and the longest training length or, if these are unknown, the lengths of the task."""
        return self.opened.trained or self.task.trained_lengths

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[example]: the number of tokens of each audited sequence."""
        return self.task.lengths(self.examples)

    @cached_property
    def answers(self) -> ClassAnswers:
        """The model's answers to the audited examples, computed once for all checks."""
        return self.classify(self.examples)

    def classify(self, examples: Examples) -> ClassAnswers:
        """Return the model's answers to examples, in batches of equal length so that no example is padded."""
        return self.class_model.classify(examples)

    @property
    def common_error(self) -> str:
        """What most wrong answers have in common; empty if all answers are right."""
        return self.answers.common_error(self.task.classes)

    @cached_property
    def baseline(self) -> ConstantBaseline | None:
        """The model's accuracy and that of the best constant answer; None if all right answers are the same."""
        labels, hits = self.answers.labels, self.answers.hits
        label, count = Counter(labels.tolist()).most_common(1)[0]
        by_class = tuple(Proportion.count(hits[labels == each]) for each in np.unique(labels))
        baseline = ConstantBaseline(Proportion.count(hits), self.task.classes[label], count / self.n, by_class)
        return None if count == self.n else baseline

    def claim(self) -> Claim | None:
        """Return the accuracy that the model's author reports and the measured one; None if the author reports none."""
        return self.class_model.claim(self.examples, self.answers)

    def right_on(self, examples: Examples) -> Hits:
        """Return for each of these examples whether the model's answer is right."""
        return (self.answers if examples is self.examples else self.classify(examples)).hits

    def accuracy_at(self, length: int) -> Proportion | None:
        """Return the accuracy on sequences of one length, half of each class; None if the model refuses the length."""
        n = max(MIN_PER_LENGTH, min(MAX_PER_LENGTH, MAX_NUMBERS // length))
        examples, _ = of_length(self.task, length, n, "audit")
        try:
            return Proportion.count(self.classify(examples).hits)
        except HeadcountError:
            return None

    def compare_lengths(self, trained: int, longer: int) -> LengthComparison | None:
        """Return the accuracy at a training length and at a longer one; None if the model refuses one of the two."""
        inside, beyond = self.accuracy_at(trained), self.accuracy_at(longer)
        return None if inside is None or beyond is None else LengthComparison(trained, longer, inside, beyond)

    def logits_in_one_batch(self, examples: Examples) -> Logits:
        """Run all examples in one batch, which pads short ones as the model does; return logits [example, class]."""
        if isinstance(self.class_model, AdapterClasses):
            ((logits, _),) = self.class_model.passes(pairs_of(self.task, examples), len(examples))
            return np.asarray(logits[:, self.class_model.columns].double().cpu().numpy())
        return self.logits_of(self.inputs(examples))

    def logits_of(self, inputs: tuple[Tensor, ...]) -> Logits:
        """Run the model on these input tensors and return logits [example, class]."""
        columns = self.class_model.columns if isinstance(self.class_model, AdapterClasses) else slice(None)
        with eval_mode(self.opened.module, gradients=False):
            return np.asarray(self.opened.module(*inputs)[:, columns].double().cpu().numpy())


@dataclass(frozen=True)
class LengthComparison:
    """The accuracy of a classifier on sequences of one training length, and on longer sequences."""

    trained: int
    longer: int
    inside: Proportion
    """Accuracy at the training length."""
    beyond: Proportion
    """Accuracy at the longer length."""

    @property
    def is_kept(self) -> bool:
        """Whether accuracy is above chance at the training length, and not significantly lower at the longer length."""
        return self.inside.low > MIN_CLASS_ACCURACY and self.beyond.high >= self.inside.low

    @property
    def shares(self) -> dict[str, float]:
        """Both accuracies as a dictionary: `inside` at the training length, and `beyond` at the longer length."""
        return {"inside": self.inside.rate, "beyond": self.beyond.rate}

    def __str__(self) -> str:
        return (
            f"{percent(self.inside.rate)} of {self.inside.n} sequences of length {self.trained} are right, and "
            f"{percent(self.beyond.rate)} of {self.beyond.n} of length {self.longer}"
        )


def audited_model(
    opened: OpenModel, n: int | None = None, split: str = "test"
) -> AuditedSequenceModel | AuditedClassifier:
    """Return the object by which checks see a model, with up to `n` examples of a split of its task."""
    if opened.answers.task.output_type == "class":
        return AuditedClassifier(opened, cast(ClassModel, opened.answers), n, split)
    return AuditedSequenceModel(opened, cast(SequenceModel, opened.answers), n, split)


def row_keys(examples: Examples) -> list[bytes]:
    """Return a key for each example; equal examples have equal keys."""
    return [row.tobytes() for row in np.ascontiguousarray(examples, dtype=np.int64)]
