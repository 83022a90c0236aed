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
from typing import ClassVar, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from headcount.hooks.gates import eval_mode
from headcount.models.finite import require_numbers
from headcount.models.masking import padding_of
from headcount.models.transformer import Classifier, EncoderDecoder, Model, greedy
from headcount.results import Result
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE, Batch, ClassTask, Examples, SequenceTask, Task, Tokens

BLOCK = 256
"""Examples per forward pass: large enough to be efficient, small enough to stay in a processor's cache."""
TOKENS_AT_ONCE = 2**16
"""Tokens per forward pass, so that memory does not grow with the number of examples."""
MOST_AT_ONCE = 256
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

    @property
    def free_hits(self) -> NDArray[np.bool_]:
        """[example, answer token]."""
        assert self.free is not None, "it was decoded"
        return self.free == self.batch.answer


def in_blocks(batch: Batch) -> Iterator[Batch]:
    """The batch, a forward pass' worth at a time."""
    for i in range(0, len(batch), BLOCK):
        yield batch[i : i + BLOCK]


def on_device(device: torch.device, *arrays: Tokens) -> list[torch.Tensor]:
    """Arrays as tensors where the model is."""
    return [torch.from_numpy(array).to(device) for array in arrays]


def _groups(task: Task, examples: Examples) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    """Each facet's groups of examples, and which examples belong to them."""
    for facet, labels in task.facets(examples).items():
        for group in sorted(set(labels)):
            yield facet, group, np.array(labels) == group


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


@dataclass(frozen=True)
class Scores:
    """One group of examples, or one output position."""

    facet: str
    group: str
    teacher_forced: Proportion | None
    """None where teacher forcing asks nothing, as the first digit under the missing start token."""
    free_running: Proportion | None
    """None where a model of others was not decoded."""


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
    n: int

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
    FORMER: ClassVar[Mapping[str, str]] = {"model": "weights_sha256", "said": "predicted", "why": "explanation"}
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

    @property
    def rows(self) -> tuple[Scores, ...]:
        """Everything that was scored."""
        return (self.exact, *self.digits, *self.groups)


def wrong_answers(
    task: SequenceTask, examples: Examples, predicted: Tokens, texts: Sequence[str] = ()
) -> tuple[WrongAnswer, ...]:
    """Each wrong answer with what is wrong about it; as it was written, where `texts` say so."""
    right = task.encode(examples).answer if len(examples) else predicted
    found = []
    for i, (example, expected, tokens) in enumerate(zip(examples, right, predicted, strict=True)):
        is_answer = (tokens >= 0).all()
        text = texts[i] if len(texts) else task.show_tokens(tokens)
        explanation = task.explain(example, tokens) if is_answer else f"{text!r} is no answer of {task.name}"
        found.append(WrongAnswer(task.show(example), task.show_tokens(expected), text, explanation))
    return tuple(found)


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


def evaluate_sequences(model: SequenceModel, split: str, weights_sha256: str = "") -> Evaluation:
    """Both ways, by digit and by carries, on a held-out set."""
    task, examples = model.task, model.task.split(split)
    found = model.answer(examples)
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
        by_itself = None if free_hits is None else Proportion.count(free_hits[:, i])
        digits.append(Scores("digit", position.label, by_force, by_itself))
    wrong: tuple[WrongAnswer, ...] = ()
    if found.free is not None and free is not None:
        texts = [found.texts[i] for i in np.flatnonzero(~free).tolist()] if len(found.texts) else ()
        wrong = wrong_answers(task, examples[~free], found.free[~free], texts)
    return Evaluation(
        split=split,
        weights_sha256=weights_sha256,
        exact=scores("exact match", "all", everything),
        digits=tuple(digits),
        groups=tuple(scores(*group) for group in _groups(task, examples)),
        wrong=wrong,
        given=model.given,
        claim=model.claim(examples, found),
    )


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

    @property
    def loss(self) -> float:
        """Cross-entropy per example."""
        logits = self.logits.astype(np.float64)
        right = logits[np.arange(len(logits)), self.labels]
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
    says_last, is_last = np.asarray(predicted) == len(classes) - 1, labels == len(classes) - 1
    for name, is_other, should_be in ((classes[0], says_last, is_last), (classes[-1], ~says_last, ~is_last)):
        if Proportion.count(is_other).high < RARELY < should_be.mean():
            return name
    return None


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
    FORMER: ClassVar[Mapping[str, str]] = {
        "model": "weights_sha256",
        "says": "answer_shares",
        "said": "predicted",
        "why": "explanation",
    }
    COLUMNS: ClassVar[dict[str, str]] = {"right": "right"}
    split: str
    weights_sha256: str
    accuracy: ClassScores
    groups: tuple[ClassScores, ...]
    answer_shares: tuple[ClassScores, ...]
    """The share of each answer, right or wrong."""
    constant: str | None
    """The one answer that it gives to everything, if that is shown: see `RARELY`."""
    wrong: tuple[WrongAnswer, ...]

    claim: Claim | None = None

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


def evaluate_classes(model: ClassModel, split: str, weights_sha256: str = "") -> Classification:
    """By class, by broken pairs and by length, on a held-out set."""
    task, examples = model.task, model.task.split(split)
    found = model.classify(examples)
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
    )


def evaluate(model: SequenceModel | ClassModel, split: str, weights_sha256: str = "") -> Evaluation | Classification:
    """Everything that is measured on a held-out set, by what the task asks for."""
    if model.task.output_type == "class":
        return evaluate_classes(cast(ClassModel, model), split, weights_sha256)
    return evaluate_sequences(cast(SequenceModel, model), split, weights_sha256)


EVALUATIONS: dict[str, type[Evaluation] | type[Classification]] = {"sequence": Evaluation, "class": Classification}
"""What an evaluation is, by what the task asks for."""


Learner = SequenceLearner | ClassLearner
"""A model and its task: what training needs to know of the two."""


def learner_of(model: Model, task: Task) -> Learner:
    """The learner for what the task asks for."""
    return {"sequence": SequenceLearner, "class": ClassLearner}[task.output_type](model, task)
