"""How does a classifier extrapolate beyond its training lengths, and what fails first?

Accuracy is measured for each length, kind of negative (such as unsorted in one place) and class, with the frequency of
each answer. A model that gives one answer to everything is marked as constant, not reported as "about 50 %".

Three things change together when a sequence becomes longer: its length, its content (over a fixed range of numbers,
neighbours become more alike), and its position ids. Two of them are also changed alone, at a training length and on the
task's local negatives, which have one broken place:

    content   long negatives are cropped around the place that makes them negative, and paired with positives made of
              the same tokens (`ClassTask.cropped`)
    ids       sequences of the longest training length get the position ids of the end of a long sequence

A loss of accuracy that appears in neither comes from the length itself, or from several of these together.

Two more things, which help to explain the accuracy, are measured at each length: the margin of the right class, and
each head's attention to neighbours and to equal tokens. Attention flattens as the softmax runs over more tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from headcount.errors import InputError
from headcount.experiments.models import OpenModel
from headcount.heads import HeadSite
from headcount.hooks.gates import eval_mode
from headcount.limits import LENGTHS, LONG, N_STRETCH, N_STRETCH_LONG, require_room_for
from headcount.models.attention import Weights
from headcount.models.finite import require_numbers
from headcount.models.transformer import Classifier
from headcount.results import ROUNDING, Contradiction, Count, HeadName, Positive, Result, Share, Size, unequal
from headcount.seeds import stream
from headcount.stats import Proportion
from headcount.suggestions import suggestion
from headcount.tasks.base import ClassTask, Examples
from headcount.training.answers import ClassAnswers, constant_answer, on_device, rows_at_once
from headcount.training.device import workers
from headcount.training.evaluation import ClassModel

LONGEST = 2**20
"""Largest length of a sequence at which a classifier can be measured; longer ones do not fit into memory."""
MOST_WORKERS = 4
"""Largest number of worker threads; each takes up to 0.7 GiB of memory at a length of 4,096 tokens."""
NEAR = (0, 1, 4)
"""Position ids of the first token that are always tried, besides those that reach the end of each measured length."""
FEWEST, MOST, TOKENS = 8, 64, 2**14
"""Limits for measuring attention at a length: fewest and most examples, and the number of tokens in all examples."""
AT_ONCE = 2**12
"""Number of tokens in one forward pass that reads attention; a pass has at least one example."""
PATTERNS = "patterns"
"""Name for the task's hard patterns (on which models often fail) as a kind of example; half are positives."""
REPORTED = 1
"""Number of the random draw of sequences for reports and docs.

No training recipe was chosen by its accuracy on this draw.
"""


@dataclass(frozen=True)
class LengthResult:
    """Accuracy of a classifier at one length, on one kind of negative (unsorted) and as many positives (sorted).

    For the kind `patterns`, the examples are hard patterns of both classes instead.
    """

    length: Positive
    negative: str
    accuracy: Share
    low: float
    high: float
    n: Positive
    constant: bool
    """Whether nearly all examples get the same answer, which makes the accuracy meaningless."""
    constant_class: str | None
    """The answer that nearly all examples get; None if the answers differ."""
    recall: tuple[Proportion, ...]
    """Recall of each class: the accuracy on the examples of this class, in the order of `Stretch.classes`."""
    answers: tuple[Proportion, ...]
    """Frequency of each class among the model's answers."""
    margin: tuple[float, ...]
    """Mean margin of the right class over the best other class, in logits, for the examples of each class."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the accuracy, its CI, the frequencies of answers and the recalls disagree."""
        correct, n = sum(recall.correct for recall in self.recall), sum(recall.n for recall in self.recall)
        if n != self.n:
            yield "n", f"{n:,}, the number of examples of all classes in recall"
        elif correct <= self.n:
            right = Proportion.of(correct, self.n)
            yield from unequal(self, accuracy=right.rate, low=right.low, high=right.high)
        if {part.n for part in self.answers} != {self.n} or sum(part.correct for part in self.answers) != self.n:
            yield "answers", f"counts that add up to {self.n:,}, the number of examples"
        yield from unequal(self, constant=self.constant_class is not None)


@dataclass(frozen=True)
class ShiftedIds:
    """Accuracy at the longest training length when position ids begin at `first` instead of 0."""

    first: Count
    cell: LengthResult
    moved: Size
    """Largest change of a logit compared with ids that begin at 0; about 0 if the model uses only distances."""


@dataclass(frozen=True)
class Stretch(Result):
    """The accuracy of one classifier at many lengths, and measurements that help to explain why it fails."""

    ROWS: ClassVar[tuple[str, ...]] = ("cells",)
    SCHEMA: ClassVar[int] = 3
    name: str
    weights_sha256: str
    encoding: str
    pooling: str
    hard_codes: tuple[str, ...]
    """Structure of the task that is built into the model, such as a window; empty for a generic model."""
    label: str
    """Short description of the model's settings, such as encoding and pooling."""
    seed: int
    trained: tuple[int, int] | None
    """Shortest and longest length of a sequence in training; None if unknown."""
    classes: tuple[str, ...]
    cells: tuple[LengthResult, ...]
    cropped_results: tuple[LengthResult, ...]
    """Accuracy on long local negatives (one broken place) that were cropped to the longest training length.

    Cropped positives with the same tokens are included. Empty unless local negatives are measured and training lengths
    are known.
    """
    ids: tuple[ShiftedIds, ...]
    """Accuracy at the longest training length with shifted position ids.

    Empty for models that headcount did not train, and if local negatives (one broken place) are not measured.
    """
    attention_shares: tuple[AttentionShare, ...]
    """Attention of each head to neighbours and equal tokens, by length; empty without a model of headcount."""
    recipe: str = ""
    """Digest (hash) of all settings except the seed. Runs with the same digest differ in the seed only."""
    refused_lengths: tuple[int, ...] = ()
    """Lengths at which the model raises an error, such as those beyond its learned table of positions."""
    refused_first_ids: tuple[int, ...] = ()
    """Position ids of the first token with which the model raises an error, such as ids beyond a learned table."""
    draw: int = 0
    """Number of the random draw of new sequences; another number gives other sequences."""
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the results, the classes and the lengths disagree with each other."""
        n_classes, shifted = len(self.classes), tuple(ids.cell for ids in self.ids)
        for name, cells in (("cells", self.cells), ("cropped_results", self.cropped_results), ("ids", shifted)):
            if any({len(cell.recall), len(cell.answers), len(cell.margin)} != {n_classes} for cell in cells):
                yield name, f"one recall, frequency and margin for each of the {n_classes} classes"
            if any(cell.constant_class not in (None, *self.classes) for cell in cells):
                yield name, f"null or one of {', '.join(self.classes)} as constant_class"
        for name, keys in (
            ("cells", [(cell.length, cell.negative) for cell in self.cells]),
            ("cropped_results", [(cell.length, cell.negative) for cell in self.cropped_results]),
            ("ids", [ids.first for ids in self.ids]),
            ("attention_shares", [(share.length, share.head) for share in self.attention_shares]),
        ):
            if len(set(keys)) != len(keys):
                yield name, "entries for different lengths, kinds, ids or heads"
        if self.trained and not 1 <= self.trained[0] <= self.trained[1]:
            yield "trained", "the shortest training length, then the longest one"
        lengths = {cell.length for cell in self.cells}
        if {cell.length for cell in self.cropped_results} - lengths:
            yield "cropped_results", "only lengths that are in cells"
        if set(self.refused_lengths) & lengths:
            yield "refused_lengths", "only lengths that are not in cells"


def stretch(
    model: OpenModel,
    lengths: Sequence[int] = LENGTHS,
    kinds: Sequence[str] | None = None,
    n: int | None = None,
    *,
    batch_size: int | None = None,
    draw: int = 0,
    explain: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Stretch:
    """Measure a classifier's accuracy at the given lengths, on `n` examples for each kind of negative.

    `draw` is the number of the random draw of sequences. With `explain`, also measure what explains a loss of accuracy:
    content, position ids and attention. `progress(done, total)` is called with percentages: total is 100.
    """
    kinds = require_possible(model, lengths, kinds, n, batch_size, draw)
    answers, recipe, trained = cast(ClassModel, model.answers), model.description, model.trained
    task, all_lengths = answers.task, sorted(set(lengths))
    lengths = _accepted(answers, all_lengths)
    n_at = {length: n or (N_STRETCH if recipe.window or length <= LONG else N_STRETCH_LONG) for length in lengths}
    # Approximate time per sequence: linear in its tokens for the layers, quadratic for full attention.
    cost = {length: length if recipe.window else length * (1 + length / 512) for length in lengths}
    # All kinds of negatives are paired with the same positives; patterns have positives of their own.
    negatives = [kind for kind in kinds if kind != PATTERNS]
    n_halves = len(negatives) + 1 + 2 * (PATTERNS in kinds)
    total = sum(cost[length] * size / 2 * n_halves for length, size in n_at.items())
    cells, cropped, last, done = list[LengthResult](), list[LengthResult](), task.classes[-1], 0.0

    def count(length: int, n_rows: int) -> None:
        nonlocal done
        done += cost[length] * n_rows
        if progress:
            progress(min(100, round(100 * done / total)), 100)

    for length in lengths:
        rng, half = stream(draw, "stretch", length), n_at[length] // 2
        examples = {last: task.sample_of_length(rng, length, None, n_at[length] - half)}
        examples |= {kind: task.sample_of_length(rng, length, kind, half) for kind in negatives}
        predicted = {kind: _predict(model, rows, batch_size, count) for kind, rows in examples.items()}
        cells += [_cell(task, length, kind, predicted[last], predicted[kind]) for kind in negatives]
        if PATTERNS in kinds:
            cells.append(
                _cell(
                    task,
                    length,
                    PATTERNS,
                    *_predict_patterns(model, task, length, n_at[length], draw, batch_size, count),
                )
            )
        if explain and trained and length > trained[1] and task.local_negative in negatives:
            pieces = task.cropped(rng, examples[task.local_negative], trained[1])
            wrong, right = (_predict(model, rows, batch_size) for rows in pieces)
            cropped.append(_cell(task, length, task.local_negative, right, wrong))
    ids, refused = list[ShiftedIds](), list[int]()
    # Only headcount's own models allow shifting ids and reading attention.
    own = model.module if explain and isinstance(model.module, Classifier) else None
    if own and task.local_negative in negatives:
        ids, refused = _at_other_ids(model, task, all_lengths, n or N_STRETCH, batch_size, draw)
    return Stretch(
        name=model.name,
        weights_sha256=model.weights_sha256,
        encoding=recipe.encoding,
        pooling=recipe.pooling,
        hard_codes=recipe.hard_codes,
        label=recipe.label,
        seed=recipe.seed,
        trained=trained,
        classes=task.classes,
        cells=tuple(cells),
        cropped_results=tuple(cropped),
        ids=tuple(ids),
        attention_shares=tuple(
            share for length in lengths if own for share in attention_share(own, task, length, draw)
        ),
        recipe=recipe.digest,
        refused_lengths=tuple(length for length in all_lengths if length not in lengths),
        refused_first_ids=tuple(refused),
        draw=draw,
    )


def _predict_patterns(
    model: OpenModel,
    task: ClassTask,
    length: int,
    n: int,
    draw: int,
    batch_size: int | None,
    count: Callable[[int, int], None],
) -> tuple[ClassAnswers, ClassAnswers]:
    """Classify the task's hard patterns of one length; return the answers to positives, then those to negatives.

    Hard patterns are simple sequences on which models often fail.
    """
    rng, last = stream(draw, "stretch patterns", length), len(task.classes) - 1
    parts: list[Examples] = []
    labels = np.empty(0, dtype=np.int64)
    while min((labels == last).sum(), (labels != last).sum()) < n - n // 2:  # usually once
        rows = task.patterns_of_length(rng, length, 2 * n)
        assert rows is not None, "require_possible has checked this"
        parts.append(rows)
        labels = np.concatenate([labels, task.encode(rows).labels])
    rows = np.concatenate(parts)
    positives, negatives = rows[labels == last][: n - n // 2], rows[labels != last][: n // 2]
    right, wrong = (_predict(model, part, batch_size, count) for part in (positives, negatives))
    return right, wrong


def kinds_of(task: ClassTask) -> tuple[str, ...]:
    """Return the kinds of example that can be measured: the task's negatives and, if it has any, hard patterns."""
    has_patterns = task.patterns_of_length(stream(0, "stretch"), task.trained_lengths[1], 1) is not None
    return (*task.negatives, *([PATTERNS] if has_patterns else []))


def _at_other_ids(
    model: OpenModel, task: ClassTask, lengths: Sequence[int], n: int, batch_size: int | None, draw: int
) -> tuple[list[ShiftedIds], list[int]]:
    """Measure sequences of the longest training length with other position ids, such as those of longer sequences.

    Ids begin near 0, or so that they end where those of each measured length end. Return the results, and the first ids
    with which the model raises an error.
    """
    longest, rng, half = task.trained_lengths[1], stream(draw, "stretch ids"), n // 2
    examples = (
        task.sample_of_length(rng, longest, task.local_negative, half),
        task.sample_of_length(rng, longest, None, n - half),
    )
    results, refused, base = list[ShiftedIds](), list[int](), None
    for first in sorted({*NEAR, *(length - longest for length in lengths if length > longest)}):
        try:
            wrong, right = (_predict(model, rows, batch_size, first=first) for rows in examples)
        except InputError:
            refused.append(first)
            continue
        logits = np.concatenate([wrong.logits, right.logits])
        base = logits if base is None else base
        cell = _cell(task, longest, task.local_negative, right, wrong)
        results.append(ShiftedIds(first, cell, float(np.abs(logits - base).max())))
    return results, refused


def _accepted(answers: ClassModel, lengths: Sequence[int]) -> list[int]:
    """Return those lengths that the model accepts. If it accepts none, raise the error that the model raises."""
    accepted, refusal = [], None
    for length in lengths:
        try:
            answers.classify(answers.task.sample_of_length(stream(0, "stretch"), length, None, 1))
            accepted.append(length)
        except InputError as error:
            refusal = error
    if refusal and not accepted:
        raise refusal
    return accepted


def require_possible(
    model: OpenModel,
    lengths: Sequence[int],
    kinds: Sequence[str] | None,
    n: int | None,
    batch_size: int | None,
    draw: int = 0,
) -> tuple[str, ...]:
    """Check the arguments of `stretch`, and return the kinds of negatives to measure; raise an error for a bad one."""
    task = cast(ClassTask, model.answers.task)
    if task.output_type != "class":
        raise InputError(
            f"only a classifier can be measured at several sequence lengths, and {model.name} generates its answers",
            "choose a model that classifies sequences",
        )
    if not lengths or min(lengths) < 2 or max(lengths) > LONGEST:
        given = ", ".join(map(str, lengths)) or "none"
        raise InputError(f"--lengths must be numbers from 2 to {LONGEST:,}, got {given}")
    if n is not None and n < 2:
        raise InputError(f"--n must be at least 2, one example of each class, got {n}")
    require_room_for(n or 0, max(lengths), "lower --n or --lengths")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"--batch-size must be at least 1, got {batch_size}")
    if draw < 0:
        raise InputError(
            f"--draw must be at least 0, got {draw}",
            "it is the number of a random draw of test sequences: another number gives other sequences",
        )
    known = kinds_of(task)
    unknown = [kind for kind in kinds or () if kind not in known]
    if unknown:
        raise InputError(f"the task has no kind of example {unknown[0]!r}", suggestion(unknown[0], known))
    return tuple(dict.fromkeys(kinds)) if kinds else known


def _predict(
    model: OpenModel,
    examples: Examples,
    batch_size: int | None,
    count: Callable[[int, int], None] = lambda length, n_rows: None,
    *,
    first: int = 0,
) -> ClassAnswers:
    """Classify examples: one batch after another if `batch_size` is given, otherwise several batches in parallel.

    `first` is the position id of the first token. `count(length, n_rows)` is called after each batch.
    """
    length = examples.shape[1]
    size = batch_size or rows_at_once(length)
    blocks = (examples[i : i + size] for i in range(0, len(examples), size))
    parts: list[ClassAnswers] = []
    answers, alone = cast(ClassModel, model.answers), bool(batch_size) or not model.runs_in_threads
    with (
        eval_mode(model.module, gradients=False),
        nullcontext(map) if alone else workers(model.module, most=MOST_WORKERS) as compute,
    ):
        for part in compute(lambda block: answers.classify(block, size, first=first), blocks):
            parts.append(part)
            count(length, len(part.labels))
    predicted = ClassAnswers(np.concatenate([p.logits for p in parts]), np.concatenate([p.labels for p in parts]))
    require_numbers(predicted.loss, f"sequences of {length:,}")
    return predicted


def _cell(task: ClassTask, length: int, kind: str, right: ClassAnswers, wrong: ClassAnswers) -> LengthResult:
    both = ClassAnswers(np.concatenate([wrong.logits, right.logits]), np.concatenate([wrong.labels, right.labels]))
    accuracy = Proportion.count(both.hits)
    constant_class = constant_answer(both.predicted, both.labels, task.classes)
    return LengthResult(
        length=length,
        negative=kind,
        accuracy=accuracy.rate,
        low=accuracy.low,
        high=accuracy.high,
        n=accuracy.n,
        constant=constant_class is not None,
        constant_class=constant_class,
        recall=tuple(Proportion.count(part.hits) for part in (wrong, right)),
        answers=tuple(Proportion.count(both.predicted == i) for i in range(len(task.classes))),
        margin=tuple(float(part.margins.mean()) for part in (wrong, right)),
    )


@dataclass(frozen=True)
class AttentionShare:
    """Mean attention of one head, at one length, to the token itself, its neighbours and equal tokens.

    The mean is taken over the tokens of each positive sequence, then over sequences. Fields that end in `_se` are
    standard errors over sequences. `alike` is the attention to all tokens of the same value, the token itself included.
    """

    length: Positive
    head: HeadName
    n: Positive
    """Number of sequences that the attention is averaged over."""
    left: Share
    itself: Share
    right: Share
    alike: Share
    left_se: Size
    itself_se: Size
    right_se: Size
    alike_se: Size
    neighbours_se: Size
    """Standard error of the sum of attention on the left and the right neighbour, which are not independent."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the attention to the token itself and its neighbours adds up to more than 1."""
        if self.left + self.itself + self.right > 1 + ROUNDING:
            yield "itself", f"at most {1 - self.left - self.right}, which is 1 - left - right"

    @property
    def neighbours(self) -> float:
        """Return the attention to the left and the right neighbour together, as a fraction of 1."""
        return self.left + self.right


class NeighbourMass:
    """Running sums of each head's attention to the neighbours of a token and to equal tokens.

    Weights are read a few queries at a time, because a matrix of all queries and keys may not fit into memory.
    """

    def __init__(self, model: Classifier) -> None:
        self._model = model
        self._tokens = torch.empty(0)
        self._done: dict[HeadSite, int] = {}
        self.sums: dict[HeadSite, list[NDArray[np.float64]]] = {}
        """Sums over queries, by attention block and batch: [example, head, (left, itself, right, alike)]."""

    def begin(self, tokens: Int[Tensor, "batch length"]) -> None:
        """Begin a new batch, and keep its tokens to find out which keys are equal to a query."""
        self._tokens = tokens
        self._done.clear()

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Add the attention weights of the next queries of one attention block to the sums."""
        first = self._done.get(site, 0)
        self._done[site] = last = first + weights.shape[2]
        near = [weights.diagonal(offset=first - keys.start + step, dim1=2, dim2=3).sum(dim=2) for step in (-1, 0, 1)]
        same = self._tokens[:, None, first:last, None] == self._tokens[:, None, None, keys]
        sums = torch.stack([*near, (weights * same).sum(dim=(2, 3))], dim=2).cpu().double().numpy()
        batches = self.sums.setdefault(site, [])
        if first == 0:
            batches.append(sums)
        else:
            batches[-1] += sums

    def attention_shares(self, length: int) -> Iterator[AttentionShare]:
        """Yield the mean attention of every head over all examples read so far, which must all have this length."""
        for site, batches in self.sums.items():
            shares = np.concatenate(batches) / self._tokens.shape[1]  # [example, head, share]
            shares = np.concatenate([shares, shares[..., [0]] + shares[..., [2]]], axis=2)
            n, means = len(shares), shares.mean(axis=0)[:, :4]
            errors = shares.std(axis=0, ddof=1) / np.sqrt(n)
            for head, mean, error in zip(self._model.heads_at(site), means.tolist(), errors.tolist(), strict=True):
                yield AttentionShare(length, str(head), n, *mean, *error)


def attention_share(model: Classifier, task: ClassTask, length: int, draw: int = 0) -> Iterator[AttentionShare]:
    """Yield every head's attention to neighbours and equal tokens, in a few positive sequences of one length."""
    n = max(FEWEST, min(MOST, TOKENS // length))
    examples = task.sample_of_length(stream(draw, "stretch looks", length), length, None, n)
    mass = NeighbourMass(model)
    with eval_mode(model, gradients=False) as device:
        source, at_once = task.encode(examples).source, max(1, AT_ONCE // length)
        for i in range(0, n, at_once):
            (tokens,) = on_device(device, source[i : i + at_once])
            mass.begin(tokens)
            model(tokens, weights=mass)
    yield from mass.attention_shares(length)
