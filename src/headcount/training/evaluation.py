"""How good a model is, each number with its interval: one that writes its answers, or a classifier.

The first is scored under teacher forcing and free-running, always both. For a sound model the two exact-match rates are
one number: fed the right prefix, the first wrong token is the same either way. A gap between them is a fault in the
pipeline (no start token, a class the loss ignores), never "cascading errors".

A classifier that gives one answer to everything is right on "about 50 %" of a balanced set, which several reports took
for a weak model. So it is scored per class, the share of each answer stands beside every accuracy, and one answer to
everything is marked where there are enough examples to say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from headcount.hooks.gates import eval_mode
from headcount.models.finite import require_numbers
from headcount.models.masking import padding_of
from headcount.models.transformer import Classifier, EncoderDecoder, Model
from headcount.results import Contradiction, Positive, Result, outside
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE, ClassTask, Examples, SequenceTask, Task, Tokens
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
    """Each facet's groups of examples, and which examples belong to them."""
    for facet, labels in task.facets(examples).items():
        for group in sorted(set(labels)):
            yield facet, group, np.array(labels) == group


@dataclass(frozen=True)
class Scores:
    """One group of examples, or one output position."""

    facet: str
    group: str
    teacher_forced: Proportion | None
    """None where teacher forcing asks nothing, as the first digit under the missing start token."""
    free_running: Proportion | None
    """None where a model of others was not decoded."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Both ways of answering are measured on the same examples; teacher forcing may leave some out."""
        if self.teacher_forced and self.free_running and self.teacher_forced.n > self.free_running.n:
            yield "teacher_forced", f"at most {self.free_running.n} examples"


def _groups_that_do_not_add_up(whole: Proportion | None, parts: Mapping[str, Sequence[Proportion | None]]) -> bool:
    """Whether the groups of some facet are not all the examples, each once, with all the hits."""
    return any(
        (sum(each.n for each in some if each), sum(each.correct for each in some if each)) != (whole.n, whole.correct)
        for some in parts.values()
        if whole is not None
    )


@dataclass(frozen=True)
class Claim:
    """What the author of a model reports, beside what the author's own scoring of decoded answers gives here."""

    claimed: float | None
    """None if there is a scoring of the author's, but no figure."""
    scoring: str
    """`exact match`, or the docstring or name of the author's own."""
    measured: float
    low: float
    high: float
    """95 % interval."""
    n: Positive

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the interval with the figure that was measured."""
        return outside(self, "measured")

    @property
    def agrees(self) -> bool | None:
        """Whether the figure lies in the interval, to the digits that people write."""
        return None if self.claimed is None else self.low - 5e-4 <= self.claimed <= self.high + 5e-4


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
    """Leading tokens of every answer that the decoder is handed, and so never predicts."""
    claim: Claim | None = None
    audit: str = ""
    """What is at the bottom of what quick checks found; empty if none fails."""
    common_error: str = ""
    """What most wrong answers share: "94 of 94 errors: a 0 was right"; empty if none is wrong."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the list of wrong answers, the digits and the groups with the number of examples."""
        forced, free = self.exact.teacher_forced, self.exact.free_running
        n_wrong = 0 if free is None else free.n - free.correct
        if len(self.wrong) != n_wrong:
            yield "wrong", f"a list of {n_wrong:,} answers, as exact.free_running says, not of {len(self.wrong):,}"
        if forced and free and forced.n != free.n:
            yield "exact", "the same examples both ways"
        most = [each.n for each in (forced, free) if each]
        shares = [each for row in self.digits for each in (row.teacher_forced, row.free_running) if each]
        if any(each.n > max(most, default=0) for each in shares):
            yield "digits", "no more examples than in exact"
        for way in self.COLUMNS:
            facets: dict[str, list[Proportion | None]] = {}
            for row in self.groups:
                facets.setdefault(row.facet, []).append(getattr(row, way))
            if _groups_that_do_not_add_up(getattr(self.exact, way), facets):
                yield "groups", f"groups of all examples, each once, as exact.{way} has them"

    @property
    def rows(self) -> tuple[Scores, ...]:
        """Everything that was scored."""
        return (self.exact, *self.digits, *self.groups)


def wrong_answers(
    task: SequenceTask, examples: Examples, predicted: Tokens, texts: Sequence[str] = (), blamed: Sequence[str] = ()
) -> tuple[WrongAnswer, ...]:
    """Each wrong answer with what is wrong about it; as it was written, where `texts` say so.

    Where a fault of the model as a whole is to be `blamed`, that is what is wrong, and no story of carries is told.
    """
    right = task.encode(examples).answer if len(examples) else predicted
    found = []
    for i, (example, expected, tokens) in enumerate(zip(examples, right, predicted, strict=True)):
        is_answer = (tokens >= 0).all()
        text = texts[i] if len(texts) else task.show_tokens(tokens)
        explanation = task.explain(example, tokens) if is_answer else f"{text!r} is no answer of {task.name}"
        explanation = (blamed[i] if len(blamed) else "") or explanation
        found.append(WrongAnswer(task.show(example), task.show_tokens(expected), text, explanation))
    return tuple(found)


class SequenceModel(Protocol):
    """A model, whoever wrote it, that answers examples of a task token by token."""

    @property
    def task(self) -> SequenceTask:
        """What it is asked."""

    @property
    def given(self) -> str:
        """Leading tokens of every answer that the decoder is handed."""

    def answer(self, examples: Examples) -> SequenceAnswers:
        """Both ways of answering these examples."""

    def claim(self, examples: Examples, found: SequenceAnswers) -> Claim | None:
        """What its author reports, beside what was found; None if nothing is known of that."""

    def margins(self, examples: Examples) -> NDArray[np.floating]:
        """How surely it is right on each, by the least sure token: positive if it is."""


@dataclass(frozen=True)
class SequenceLearner:
    """An encoder-decoder and its task: it is fed the right answer while it learns."""

    model: EncoderDecoder
    task: SequenceTask
    target_metric: ClassVar[str] = "free_running"
    """The score that training is for."""

    def loss(self, examples: Examples) -> torch.Tensor:
        """What a training step makes smaller: cross-entropy per token."""
        batch = self.task.encode(examples)
        device = next(self.model.parameters()).device
        source, decoder_input, labels = on_device(device, batch.source, batch.decoder_input, batch.labels)
        logits = self.model(source, decoder_input, padding=padding_of(batch.source, self.model.pad_id))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)

    @property
    def given(self) -> str:
        """What generation takes for written already."""
        return self.task.show_tokens(np.array(self.task.decoding_start.given, dtype=np.int64))

    def claim(self, examples: Examples, found: SequenceAnswers) -> None:
        """Of its own runs nobody reports anything else."""

    def answer(self, examples: Examples) -> SequenceAnswers:
        """Both ways of answering these examples."""
        return answer(self.model, self.task, examples)

    def scores(self, examples: Examples) -> tuple[dict[str, Proportion], float]:
        """Exact match, both ways, and cross-entropy per token, from one pass over these examples."""
        predicted = self.answer(examples)
        hits = {"teacher_forced": predicted.forced_right, "free_running": np.all(predicted.free_hits, axis=1)}
        return {name: Proportion.count(np.asarray(each)) for name, each in hits.items()}, predicted.loss

    def training_scores(self, examples: Examples) -> dict[str, Proportion]:
        """Exact match, fed the right answer: no decoding."""
        hits = []
        with eval_mode(self.model, gradients=False) as device:
            for part in in_blocks(self.task.encode(examples)):
                source, decoder_input, labels = on_device(device, part.source, part.decoder_input, part.labels)
                right = (self.model(source, decoder_input).argmax(dim=-1) == labels) | (labels == IGNORE)
                hits.append(right.all(dim=1).cpu().numpy())
        return {"teacher_forced": Proportion.count(np.concatenate(hits))}

    def margins(self, examples: Examples) -> NDArray[np.floating]:
        """How surely it is right on each, by the least sure token: positive if it is."""
        return margins(self.model, self.task, examples)

    def evaluate(self, split: str, weights_sha256: str = "") -> Evaluation:
        """Everything that is measured on a held-out set."""
        return evaluate_sequences(self, split, weights_sha256)


def evaluate_sequences(
    model: SequenceModel,
    split: str,
    weights_sha256: str = "",
    found: SequenceAnswers | None = None,
    blamed: Sequence[str] = (),
) -> Evaluation:
    """Both ways, by digit and by carries, on a held-out set; answers may be known, and what is to blame."""
    task, examples = model.task, model.task.split(split)
    found = model.answer(examples) if found is None else found
    require_numbers(found.loss, f"the {split} set")
    free_hits = None if found.free is None else found.free_hits
    free = None if free_hits is None else np.asarray(np.all(free_hits, axis=1))
    everything = np.ones(len(examples), dtype=bool)

    def scores(facet: str, group: str, rows: NDArray[np.bool_]) -> Scores:
        by_force = Proportion.count(found.forced_right[rows])
        return Scores(facet, group, by_force, None if free is None else Proportion.count(free[rows]))

    digits = []
    for i, position in enumerate(task.answer_positions):
        rows = found.asked[:, i]
        by_force = Proportion.count(found.teacher_forced_hits[rows, i]) if rows.any() else None
        by_itself = None
        if found.free is not None and (counted := found.counted[:, i]).any():
            by_itself = Proportion.count(found.written_hits[counted, i])
        digits.append(Scores("digit", position.label, by_force, by_itself))
    wrong: tuple[WrongAnswer, ...] = ()
    if found.free is not None and free is not None:
        mistaken = np.flatnonzero(~free).tolist()
        texts, causes = ([each[i] for i in mistaken] if len(each) else () for each in (found.texts, blamed))
        wrong = wrong_answers(task, examples[~free], found.free[~free], texts, causes)
    return Evaluation(
        split=split,
        weights_sha256=weights_sha256,
        exact=scores("exact match", "all", everything),
        digits=tuple(digits),
        groups=tuple(scores(*group) for group in _groups(task, examples)),
        wrong=wrong,
        given=model.given,
        claim=model.claim(examples, found),
        common_error=found.common_error(task),
    )


# --- classifiers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassScores:
    """One group of examples."""

    facet: str
    group: str
    right: Proportion


@dataclass(frozen=True)
class Classification(Result):
    """A classifier on one held-out set."""

    ROWS: ClassVar[tuple[str, ...]] = ("accuracy", "groups")
    SCHEMA: ClassVar[int] = 3
    COLUMNS: ClassVar[dict[str, str]] = {"right": "right"}
    split: str
    weights_sha256: str
    accuracy: ClassScores
    groups: tuple[ClassScores, ...]
    answer_shares: tuple[ClassScores, ...]
    """The share of each answer, right or wrong."""
    constant: str | None
    """The one answer that it gives to everything, if that is shown: see `constant_answer`."""
    wrong: tuple[WrongAnswer, ...]
    claim: Claim | None = None
    audit: str = ""
    """What is at the bottom of what quick checks found; empty if none fails."""
    common_error: str = ""
    """What most wrong answers share: "94 of 94 errors: a 0 was right"; empty if none is wrong."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the list of wrong answers, the groups and the answers with the number of examples."""
        whole = self.accuracy.right
        if len(self.wrong) != whole.n - whole.correct:
            yield "wrong", f"a list of {whole.n - whole.correct:,} answers, not of {len(self.wrong):,}"
        facets: dict[str, list[Proportion | None]] = {}
        for row in self.groups:
            facets.setdefault(row.facet, []).append(row.right)
        if _groups_that_do_not_add_up(whole, facets):
            yield "groups", "groups of all examples, each once, as accuracy has them"
        answers = [row.right for row in self.answer_shares]
        if {each.n for each in answers} != {whole.n} or sum(each.correct for each in answers) != whole.n:
            yield "answer_shares", f"shares that add up to all {whole.n:,} examples"
        classes = [row.group for row in self.answer_shares]
        if self.constant is not None and self.constant not in classes:
            yield "constant", f"one of {', '.join(classes)}"

    @property
    def rows(self) -> tuple[ClassScores, ...]:
        """Everything that was scored."""
        return (self.accuracy, *self.groups)


class ClassModel(Protocol):
    """A model, whoever wrote it, that answers examples of a task by a class."""

    @property
    def task(self) -> ClassTask:
        """What it is asked."""

    def classify(self, examples: Examples, at_once: int | None = None, *, first: int = 0) -> ClassAnswers:
        """What it predicts for each example; `first` is the id of its first position."""

    def claim(self, examples: Examples, found: ClassAnswers) -> Claim | None:
        """What its author reports, beside what was found; None if nothing is known of that."""


@dataclass(frozen=True)
class ClassLearner:
    """A classifier and its task."""

    model: Classifier
    task: ClassTask
    target_metric: ClassVar[str] = "accuracy"
    """The score that training is for."""

    def loss(self, examples: Examples) -> torch.Tensor:
        """What a training step makes smaller: cross-entropy per example."""
        batch = self.task.encode(examples)
        source, labels = on_device(next(self.model.parameters()).device, batch.source, batch.labels)
        logits = self.model(source, padding=padding_of(batch.source, self.model.pad_id))
        return F.cross_entropy(logits, labels)

    def claim(self, examples: Examples, found: ClassAnswers) -> None:
        """Of its own runs nobody reports anything else."""

    def classify(self, examples: Examples, at_once: int | None = None, *, first: int = 0) -> ClassAnswers:
        """What it predicts for each example; `first` is the id of its first position."""
        return classify(self.model, self.task, examples, at_once, first=first)

    def scores(self, examples: Examples) -> tuple[dict[str, Proportion], float]:
        """How often it is right, and how often it predicts the last class: a constant answer shows at once."""
        predicted = self.classify(examples)
        shares = {"accuracy": Proportion.count(predicted.hits), f"says_{self.task.classes[-1]}": predicted.says_last}
        return shares, predicted.loss

    def training_scores(self, examples: Examples) -> dict[str, Proportion]:
        """How often it is right."""
        return {"accuracy": Proportion.count(self.classify(examples).hits)}

    def margins(self, examples: Examples) -> NDArray[np.floating]:
        """How surely it is right on each, by the lead of the right class: positive if it is."""
        return self.classify(examples).margins

    def evaluate(self, split: str, weights_sha256: str = "") -> Classification:
        """Everything that is measured on a held-out set."""
        return evaluate_classes(self, split, weights_sha256)


def evaluate_classes(
    model: ClassModel, split: str, weights_sha256: str = "", found: ClassAnswers | None = None
) -> Classification:
    """By class, by broken pairs and by length, on a held-out set; its answers may be known."""
    task, examples = model.task, model.task.split(split)
    found = model.classify(examples) if found is None else found
    predicted, hits = found.predicted, found.hits
    require_numbers(found.loss, f"the {split} set")
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
        constant=constant_answer(predicted, found.labels, task.classes),
        wrong=tuple(
            WrongAnswer(
                task.show(examples[i]),
                task.classes[found.labels[i]],
                task.classes[predicted[i]],
                task.explain(examples[i], int(predicted[i])),
            )
            for i in np.flatnonzero(~hits)
        ),
        claim=model.claim(examples, found),
        common_error=found.common_error(task.classes),
    )


EVALUATIONS: dict[str, type[Evaluation] | type[Classification]] = {"sequence": Evaluation, "class": Classification}
"""What an evaluation is, by what the task asks for."""


Learner = SequenceLearner | ClassLearner
"""A model and its task: what training needs to know of the two."""


def learner_of(model: Model, task: Task) -> Learner:
    """The learner for what the task asks for."""
    return {"sequence": SequenceLearner, "class": ClassLearner}[task.output_type](model, task)
