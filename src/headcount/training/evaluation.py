"""Evaluate a model on a held-out set; every accuracy has a confidence interval.

An encoder-decoder is always scored both teacher-forced and free-running. In a correct pipeline the two exact-match
rates are equal, because the first wrong token is the same in both. A gap between them is a fault of the pipeline (no
start token, a class that the loss ignores), never "cascading errors".

A classifier that gives one answer to everything is right on about 50 % of a balanced set, which several reports took
for a weak model. A classifier is therefore scored per class, with the share of each answer, and a constant answer is
reported if there are enough examples to show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from headcount.hooks.gates import eval_mode
from headcount.models.finite import require_numbers
from headcount.models.masking import padding_of
from headcount.models.transformer import Classifier, Model, SequenceTransformer
from headcount.results import Contradiction, Positive, Result, outside
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE, ClassTask, Examples, SequenceTask, Task, Tokens, natural_order, past_end
from headcount.training.answers import (
    ClassAnswers,
    SequenceAnswers,
    answer,
    classify,
    constant_answer,
    in_blocks,
    margins,
    on_device,
)


def _groups(task: Task, examples: Examples) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    """Yield (facet, group, mask) for each group of examples; a facet is a way to group, such as by length."""
    for facet, labels in task.facets(examples).items():
        for group in sorted(set(labels), key=natural_order):
            yield facet, group, np.array(labels) == group


@dataclass(frozen=True)
class Scores:
    """The accuracies on one group of examples, or at one position of the answer.

    `facet` is the way of grouping, such as "length", and `group` is the group, such as "8".
    """

    facet: str
    group: str
    teacher_forced: Proportion | None
    """The teacher-forced accuracy; None if the model is never asked for the token.

    For example, a model without a start token is never asked for the first digit.
    """
    free_running: Proportion | None
    """The accuracy of the decoded answers; None if the model did not decode."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if more examples were scored teacher-forced than free-running."""
        if self.teacher_forced and self.free_running and self.teacher_forced.n > self.free_running.n:
            yield "teacher_forced", f"at most {self.free_running.n} examples"


def _is_incomplete(whole: Proportion | None, groups: Sequence[Scores | ClassScores], column: str) -> bool:
    """Return whether the groups of some facet (a way of grouping, such as by length) do not add up to all examples.

    `column` is the name of the score whose counts are added, such as "free_running".
    """
    totals: dict[str, tuple[int, int]] = {}
    for row in groups:
        (n, correct), share = totals.get(row.facet, (0, 0)), getattr(row, column)
        totals[row.facet] = (n + share.n, correct + share.correct) if share else (n, correct)
    return whole is not None and any(total != (whole.n, whole.correct) for total in totals.values())


@dataclass(frozen=True)
class Claim:
    """The accuracy that a model's author claims, and the author's metric as headcount measured it."""

    claimed: float | None
    """The accuracy that the author claims; None if the author has a metric but claims no figure."""
    scoring: str
    """The metric: `exact match`, or the docstring or name of the author's own metric."""
    measured: float
    low: float
    high: float
    """The upper end of the 95 % CI of `measured`, and `low` its lower end."""
    n: Positive

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the measured figure lies outside of its own interval."""
        return outside(self, "measured")

    @property
    def agrees(self) -> bool | None:
        """Whether the claimed figure lies in the measured 95 % CI, up to rounding; None if no figure is claimed."""
        return None if self.claimed is None else self.low - 5e-4 <= self.claimed <= self.high + 5e-4


@dataclass(frozen=True)
class WrongAnswer:
    """One example that the model answers wrong, with the right answer and an explanation of the error."""

    example: str
    right: str
    predicted: str
    explanation: str


@dataclass(frozen=True)
class Evaluation(Result):
    """The scores of an encoder-decoder on one held-out set: exact match, per answer position and per group."""

    ROWS: ClassVar[tuple[str, ...]] = ("exact", "digits", "groups")
    SCHEMA: ClassVar[int] = 2
    COLUMNS: ClassVar[dict[str, str]] = {"teacher_forced": "teacher-forced", "free_running": "free-running"}
    split: str
    weights_sha256: str
    exact: Scores
    digits: tuple[Scores, ...]
    groups: tuple[Scores, ...]
    wrong: tuple[WrongAnswer, ...]
    given: str = ""
    """The first tokens of every answer, if the decoder is given them and never predicts them; empty if it predicts all.
    """
    claim: Claim | None = None
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""
    common_error: str = ""
    """The most common error, such as "94 of 94 errors: a 0 would have been right"; empty if nothing is wrong."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction for each list (wrong answers, digits, groups) that does not fit the examples."""
        forced, free = self.exact.teacher_forced, self.exact.free_running
        n_wrong = 0 if free is None else free.n - free.correct
        if len(self.wrong) != n_wrong:
            yield "wrong", f"a list of {n_wrong:,} answers, as exact.free_running says, not of {len(self.wrong):,}"
        if forced and free and forced.n != free.n:
            yield "exact", "the same examples teacher-forced and free-running"
        sizes = [share.n for share in (forced, free) if share]
        shares = [share for row in self.digits for share in (row.teacher_forced, row.free_running) if share]
        if any(share.n > max(sizes, default=0) for share in shares):
            yield "digits", "no more examples than in exact"
        for column in self.COLUMNS:
            if _is_incomplete(getattr(self.exact, column), self.groups, column):
                yield "groups", f"groups of all examples, each once, as exact.{column} has them"

    @property
    def rows(self) -> tuple[Scores, ...]:
        """All scores in one tuple: of the whole set, then of each answer position, then of each group of examples."""
        return (self.exact, *self.digits, *self.groups)


def wrong_answers(
    task: SequenceTask, examples: Examples, predicted: Tokens, texts: Sequence[str] = (), causes: Sequence[str] = ()
) -> tuple[WrongAnswer, ...]:
    """Return all examples that are answered wrong, each with an explanation of the error.

    `predicted` are the decoded answers as tokens, and `texts` the same answers as the model wrote them, if it has its
    own format. `causes` has one text per example: a fault of the whole model that explains a wrong answer, or "".
    """
    right = task.encode(examples).answer if len(examples) else predicted
    answers = []
    for i, (example, expected, tokens) in enumerate(zip(examples, right, predicted, strict=True)):
        is_answer = (tokens >= 0).all()
        text = texts[i] if len(texts) else task.show_tokens(tokens)
        explanation = task.explain(example, tokens) if is_answer else f"{text!r} is no answer of {task.name}"
        explanation = (causes[i] if len(causes) else "") or explanation
        answers.append(WrongAnswer(task.show(example), task.show_tokens(expected), text, explanation))
    return tuple(answers)


class SequenceModel(Protocol):
    """The interface of a model, headcount's own or another, that answers examples of a task token by token."""

    @property
    def task(self) -> SequenceTask:
        """The task whose examples and right answers the model is scored on."""

    @property
    def given(self) -> str:
        """The first tokens of every answer, if the decoder is given them and never predicts them; else empty."""

    def answer(self, examples: Examples) -> SequenceAnswers:
        """Return the model's answers to these examples, teacher-forced and free-running."""

    def claim(self, examples: Examples, answers: SequenceAnswers) -> Claim | None:
        """Return the accuracy that the model's author claims, compared with these answers; None without a claim."""

    def margins(self, examples: Examples) -> NDArray[np.floating]:
        """Return one margin per example: the smallest (right logit - best other logit) of its answer tokens.

        The margin is positive if the answer is right.
        """

    def teacher_forced(self, examples: Examples) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Return the model's inputs under teacher forcing, and the label at each position of its logits."""


@dataclass(frozen=True)
class SequenceLearner:
    """A model that answers token by token and its task, with the loss and the scores that training needs."""

    model: SequenceTransformer
    task: SequenceTask
    target_metric: ClassVar[str] = "free_running"
    """The name of the score that the training setting `target` refers to."""

    def loss(self, examples: Examples) -> torch.Tensor:
        """Return the training loss: cross-entropy per token."""
        batch = self.task.encode(examples)
        device = next(self.model.parameters()).device
        source, decoder_input, labels = on_device(device, batch.source, batch.decoder_input, batch.labels)
        logits = self.model(source, decoder_input, padding=padding_of(batch.source, self.model.pad_id))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)

    @property
    def given(self) -> str:
        """The first tokens of every answer, if the decoder is given them and never predicts them; else empty."""
        return self.task.show_tokens(np.array(self.task.decoding_start.given, dtype=np.int64))

    def claim(self, examples: Examples, answers: SequenceAnswers) -> None:
        """Return None, because headcount's own models have no author who claims an accuracy."""

    def answer(self, examples: Examples) -> SequenceAnswers:
        """Return the model's answers to these examples, teacher-forced and free-running."""
        return answer(self.model, self.task, examples)

    def scores(self, examples: Examples) -> tuple[dict[str, Proportion], float]:
        """Return two scores by name (exact match teacher-forced and free-running), and the cross-entropy per token."""
        answers = self.answer(examples)
        hits = {"teacher_forced": answers.forced_right, "free_running": np.all(answers.free_hits, axis=1)}
        return {name: Proportion.count(np.asarray(rows)) for name, rows in hits.items()}, answers.loss

    def training_scores(self, examples: Examples) -> dict[str, Proportion]:
        """Return the score on training examples by name: teacher-forced exact match, which needs no decoding."""
        hits = []
        with eval_mode(self.model, gradients=False) as device:
            for part in in_blocks(self.task.encode(examples)):
                source, decoder_input, labels = on_device(device, part.source, part.decoder_input, part.labels)
                right = (self.model(source, decoder_input).argmax(dim=-1) == labels) | (labels == IGNORE)
                hits.append(right.all(dim=1).cpu().numpy())
        return {"teacher_forced": Proportion.count(np.concatenate(hits))}

    def margins(self, examples: Examples) -> NDArray[np.floating]:
        """Return one margin per example: the smallest (right logit - best other logit) of its answer tokens."""
        return margins(self.model, self.task, examples)

    def teacher_forced(self, examples: Examples) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Return the inputs (source and decoder input), and the right token at each position of the logits.

        Behind the end of an answer, it is `IGNORE`.
        """
        batch, n_given = self.task.encode(examples), len(self.task.decoding_start.given)
        device = next(self.model.parameters()).device
        right = np.where(past_end(batch.answer, self.task.end_id), IGNORE, batch.answer)
        source, decoder_input, labels = on_device(
            device, batch.source, batch.decoder_input, np.ascontiguousarray(right[:, n_given:])
        )
        return (source, decoder_input), labels

    def evaluate(self, split: str, weights_sha256: str = "") -> Evaluation:
        """Return the model's scores on a held-out set, such as "test"."""
        return evaluate_sequences(self, split, weights_sha256)


def evaluate_sequences(
    model: SequenceModel,
    split: str,
    weights_sha256: str = "",
    answers: SequenceAnswers | None = None,
    causes: Sequence[str] = (),
) -> Evaluation:
    """Score an encoder-decoder on a held-out set (`split`): exact match, accuracy per answer position and per group.

    `answers` are the model's answers, if they were computed before. `causes` has one text per example: a fault of the
    whole model that explains a wrong answer, or "".
    """
    task, examples = model.task, model.task.split(split)
    answers = model.answer(examples) if answers is None else answers
    require_numbers(answers.loss, f"the {split} set")
    free_right = None if answers.free is None else np.asarray(np.all(answers.free_hits, axis=1))

    def scores(facet: str, group: str, rows: NDArray[np.bool_]) -> Scores:
        forced = Proportion.count(answers.forced_right[rows])
        return Scores(facet, group, forced, None if free_right is None else Proportion.count(free_right[rows]))

    digits = []
    for i, position in enumerate(task.answer_positions):
        rows = answers.asked[:, i]
        forced = Proportion.count(answers.teacher_forced_hits[rows, i]) if rows.any() else None
        free_running = None
        if answers.free is not None and (counted := answers.counted[:, i]).any():
            free_running = Proportion.count(answers.written_hits[counted, i])
        digits.append(Scores(task.words.place, position.label, forced, free_running))
    wrong: tuple[WrongAnswer, ...] = ()
    if answers.free is not None and free_right is not None:
        places = np.flatnonzero(~free_right).tolist()
        texts, reasons = ([column[i] for i in places] if len(column) else () for column in (answers.texts, causes))
        wrong = wrong_answers(task, examples[~free_right], answers.free[~free_right], texts, reasons)
    return Evaluation(
        split=split,
        weights_sha256=weights_sha256,
        exact=scores("exact match", "all", np.ones(len(examples), dtype=bool)),
        digits=tuple(digits),
        groups=tuple(scores(*group) for group in _groups(task, examples)),
        wrong=wrong,
        given=model.given,
        claim=model.claim(examples, answers),
        common_error=answers.common_error(task),
    )


# --- classifiers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassScores:
    """The accuracy of a classifier on one group of examples, such as `group` "8" of the `facet` (grouping) "length"."""

    facet: str
    group: str
    right: Proportion


@dataclass(frozen=True)
class Classification(Result):
    """The scores of a classifier on one held-out set: accuracy, per group, and how often each class is predicted."""

    ROWS: ClassVar[tuple[str, ...]] = ("accuracy", "groups")
    SCHEMA: ClassVar[int] = 3
    COLUMNS: ClassVar[dict[str, str]] = {"right": "right"}
    split: str
    weights_sha256: str
    accuracy: ClassScores
    groups: tuple[ClassScores, ...]
    answer_shares: tuple[ClassScores, ...]
    """For each class, the share of examples that the model predicts as this class, right or wrong."""
    constant: str | None
    """The class that the model predicts for (nearly) all examples, whatever is right; None if there is none."""
    wrong: tuple[WrongAnswer, ...]
    claim: Claim | None = None
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""
    common_error: str = ""
    """The most common error, such as "94 of 94 errors: a 0 would have been right"; empty if nothing is wrong."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction for each list (wrong answers, groups, answer shares) that does not fit the examples."""
        whole = self.accuracy.right
        if len(self.wrong) != whole.n - whole.correct:
            yield "wrong", f"a list of {whole.n - whole.correct:,} answers, not of {len(self.wrong):,}"
        if _is_incomplete(whole, self.groups, "right"):
            yield "groups", "groups of all examples, each once, as accuracy has them"
        shares = [row.right for row in self.answer_shares]
        if {share.n for share in shares} != {whole.n} or sum(share.correct for share in shares) != whole.n:
            yield "answer_shares", f"shares that add up to all {whole.n:,} examples"
        classes = [row.group for row in self.answer_shares]
        if self.constant is not None and self.constant not in classes:
            yield "constant", f"one of {', '.join(classes)}"

    @property
    def rows(self) -> tuple[ClassScores, ...]:
        """All scores in one tuple: of the whole set, then of each group of examples."""
        return (self.accuracy, *self.groups)


class ClassModel(Protocol):
    """The interface of a model, headcount's own or another, that classifies examples of a task."""

    @property
    def task(self) -> ClassTask:
        """The task whose examples and right answers the model is scored on."""

    def classify(self, examples: Examples, at_once: int | None = None, *, first: int = 0) -> ClassAnswers:
        """Return the model's answers to these examples; `first` is the position id of the first token."""

    def claim(self, examples: Examples, answers: ClassAnswers) -> Claim | None:
        """Return the accuracy that the model's author claims, compared with these answers; None without a claim."""


@dataclass(frozen=True)
class ClassLearner:
    """A classifier and its task, as the training loop needs them: with loss and scores."""

    model: Classifier
    task: ClassTask
    target_metric: ClassVar[str] = "accuracy"
    """The name of the score that the training setting `target` refers to."""

    def loss(self, examples: Examples) -> torch.Tensor:
        """Return the training loss: cross-entropy per example."""
        batch = self.task.encode(examples)
        source, labels = on_device(next(self.model.parameters()).device, batch.source, batch.labels)
        logits = self.model(source, padding=padding_of(batch.source, self.model.pad_id))
        return F.cross_entropy(logits, labels)

    def claim(self, examples: Examples, answers: ClassAnswers) -> None:
        """Return None, because headcount's own models have no author who claims an accuracy."""

    def classify(self, examples: Examples, at_once: int | None = None, *, first: int = 0) -> ClassAnswers:
        """Return the model's answers to these examples; `first` is the position id of the first token."""
        return classify(self.model, self.task, examples, at_once, first=first)

    def scores(self, examples: Examples) -> tuple[dict[str, Proportion], float]:
        """Return two scores and the loss: the accuracy, and the share of examples predicted as the last class.

        The share reveals a model that gives one answer to everything.
        """
        answers = self.classify(examples)
        shares = {"accuracy": Proportion.count(answers.hits), f"says_{self.task.classes[-1]}": answers.says_last}
        return shares, answers.loss

    def training_scores(self, examples: Examples) -> dict[str, Proportion]:
        """Return the accuracy on these training examples, by name."""
        return {"accuracy": Proportion.count(self.classify(examples).hits)}

    def margins(self, examples: Examples) -> NDArray[np.floating]:
        """Return one margin per example: the logit of the right class minus the largest other logit."""
        return self.classify(examples).margins

    def evaluate(self, split: str, weights_sha256: str = "") -> Classification:
        """Return the model's scores on a held-out set, such as "test"."""
        return evaluate_classes(self, split, weights_sha256)


def evaluate_classes(
    model: ClassModel, split: str, weights_sha256: str = "", answers: ClassAnswers | None = None
) -> Classification:
    """Score a classifier on a held-out set (`split`): accuracy, per group, and how often each class is predicted.

    `answers` are the model's answers, if they were computed before.
    """
    task, examples = model.task, model.task.split(split)
    answers = model.classify(examples) if answers is None else answers
    predicted, hits = answers.predicted, answers.hits
    require_numbers(answers.loss, f"the {split} set")
    return Classification(
        split=split,
        weights_sha256=weights_sha256,
        accuracy=ClassScores("accuracy", "all", Proportion.count(hits)),
        groups=tuple(
            ClassScores(facet, group, Proportion.count(hits[rows])) for facet, group, rows in _groups(task, examples)
        ),
        answer_shares=tuple(
            ClassScores("says", name, Proportion.count(predicted == i)) for i, name in enumerate(task.classes)
        ),
        constant=constant_answer(predicted, answers.labels, task.classes),
        wrong=tuple(
            WrongAnswer(
                task.show(examples[i]),
                task.classes[answers.labels[i]],
                task.classes[predicted[i]],
                task.explain(examples[i], int(predicted[i])),
            )
            for i in np.flatnonzero(~hits)
        ),
        claim=model.claim(examples, answers),
        common_error=answers.common_error(task.classes),
    )


EVALUATIONS: dict[str, type[Evaluation] | type[Classification]] = {"sequence": Evaluation, "class": Classification}
"""Maps the type of a task's answers (a sequence or a class) to the class of its evaluation results."""


Learner = SequenceLearner | ClassLearner
"""An object that joins a model and its task, and computes the loss and the scores that training needs."""


def learner_of(model: Model, task: Task) -> Learner:
    """Join a model and its task in an object that computes the training loss and the scores."""
    return {"sequence": SequenceLearner, "class": ClassLearner}[task.output_type](model, task)
