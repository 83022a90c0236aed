"""How far does a classifier reach beyond the lengths it was trained on, and what fails first?

Each length and each kind of negative is measured apart, both classes apart, with the share of each answer: a model that
gives one answer to everything is marked, not averaged into "about 50 %".

Three things change together when a sequence of 0-99 grows: its length, the gaps between its numbers (at 4,096 places
ties and steps of 1 are all there is), and the ids of its positions. Two of them are also changed alone, at a trained
length and on single adjacent swaps:

    gaps   the long examples are cut down around their broken pair; the sorted ones are these pieces put in order
    ids    sequences with the gaps of training are given the ids that the end of a long sequence has

What is lost in neither is lost to the length itself, or to several of these together.

Beside accuracy stands what explains it, against length: the lead of the right class, and how much attention each head
still pays to neighbours and to equal numbers, for a softmax over more tokens is flatter.
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
from headcount.limits import require_room_for
from headcount.models.attention import Weights
from headcount.models.finite import require_numbers
from headcount.models.transformer import Classifier
from headcount.registry import suggestion
from headcount.results import ROUNDING, Contradiction, Count, HeadName, Positive, Result, Share, Size, unequal
from headcount.seeds import stream
from headcount.stats import Proportion
from headcount.tasks.base import ClassTask, Examples
from headcount.training.answers import ClassAnswers, constant_answer, on_device, rows_at_once
from headcount.training.device import workers
from headcount.training.evaluation import ClassModel

LENGTHS = (8, 12, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
N, N_LONG, LONG = 1000, 200, 1024
"""Examples per length and kind; fewer beyond a length where attention to everything takes minutes per hundred."""
LONGEST = 2**20
"""Longer sequences would not fit into memory."""
MOST_WORKERS = 4
"""Each takes up to 0.7 GiB at 4,096."""
NEAR = (0, 1, 4)
"""First ids that are always measured; beyond them, where the last positions of each length begin."""
FEWEST, MOST, TOKENS = 8, 64, 2**14
"""Examples per length whose attention is read: as many as have so many tokens together, within these bounds."""
AT_ONCE = 2**12
"""Tokens per forward pass, or one long example."""
REPORTED = 1
"""The draw of fresh sequences that reports and docs are made of: no recipe was chosen on it."""


@dataclass(frozen=True)
class LengthResult:
    """One length and one kind of negative, half of the examples sorted."""

    length: Positive
    negative: str
    accuracy: Share
    low: float
    high: float
    n: Positive
    constant: bool
    """Whether (nearly) everything gets one answer; the accuracy then says nothing."""
    constant_class: str | None
    """That answer."""
    recall: tuple[Proportion, ...]
    """Of each class, in the order of `Stretch.classes`."""
    answers: tuple[Proportion, ...]
    """How often each class was predicted."""
    margin: tuple[float, ...]
    """Mean lead of the right class, in logits, of each class; negative where it is mostly wrong."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the accuracy, its interval and the answers with the hits of each class."""
        correct = sum(each.correct for each in self.recall)
        if sum(each.n for each in self.recall) != self.n:
            yield "n", f"{sum(each.n for each in self.recall):,}, the examples of all classes in recall"
        elif correct <= self.n:
            right = Proportion.of(correct, self.n)
            yield from unequal(self, accuracy=right.rate, low=right.low, high=right.high)
        if {each.n for each in self.answers} != {self.n} or sum(each.correct for each in self.answers) != self.n:
            yield "answers", f"shares that add up to all {self.n:,} examples"
        yield from unequal(self, constant=self.constant_class is not None)


@dataclass(frozen=True)
class ShiftedIds:
    """The same sequences of the longest trained length, with ids that begin at `first`."""

    first: Count
    cell: LengthResult
    moved: Size
    """Largest change of a logit against ids from 0; (nearly) nothing where only distances matter."""


@dataclass(frozen=True)
class Stretch(Result):
    """One model at many lengths."""

    ROWS: ClassVar[tuple[str, ...]] = ("cells",)
    SCHEMA: ClassVar[int] = 3
    name: str
    weights_sha256: str
    encoding: str
    pooling: str
    hard_codes: tuple[str, ...]
    """The structure of the task that the model was given; nothing if it is generic."""
    label: str
    """The configuration in a few words."""
    seed: int
    trained: tuple[int, int] | None
    """The shortest and the longest sequence in training; None if nobody said."""
    classes: tuple[str, ...]
    cells: tuple[LengthResult, ...]
    cropped_results: tuple[LengthResult, ...]
    """Adjacent swaps beyond the trained lengths cut down to one, and the same pieces sorted: the gaps of the long ones.

    Nothing unless adjacent swaps were asked for, and the trained lengths are known.
    """
    ids: tuple[ShiftedIds, ...]
    """Adjacent swaps of the longest trained length at other ids, from 0 on. Nothing unless they were asked for.

    Nor of models of others, whose positions begin where they begin.
    """
    attention_shares: tuple[AttentionShare, ...]
    """Of headcount's own models."""
    recipe: str = ""
    """The digest of all settings but the seed: runs that share it differ in their seed alone."""
    refused_lengths: tuple[int, ...] = ()
    """Lengths that the model refuses, such as those past a learned table."""
    refused_first_ids: tuple[int, ...] = ()
    """First ids that it refuses."""
    draw: int = 0
    """Which draw of fresh sequences it was measured on."""
    audit: str = ""
    """What is at the bottom of what quick checks on its test set found; empty if none fails."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the cells with the classes and with each other."""
        n_classes, shifted = len(self.classes), tuple(each.cell for each in self.ids)
        for name, cells in (("cells", self.cells), ("cropped_results", self.cropped_results), ("ids", shifted)):
            if any({len(each.recall), len(each.answers), len(each.margin)} != {n_classes} for each in cells):
                yield name, f"a recall, a share of answers and a margin for each of {n_classes} classes"
            if any(each.constant_class not in (None, *self.classes) for each in cells):
                yield name, f"a constant_class that is one of {', '.join(self.classes)}"
        for name, keys in (
            ("cells", [(each.length, each.negative) for each in self.cells]),
            ("cropped_results", [(each.length, each.negative) for each in self.cropped_results]),
            ("ids", [each.first for each in self.ids]),
            ("attention_shares", [(each.length, each.head) for each in self.attention_shares]),
        ):
            if len(set(keys)) != len(keys):
                yield name, "different entries"
        if self.trained and not 1 <= self.trained[0] <= self.trained[1]:
            yield "trained", "the shortest and the longest trained length"
        if {each.length for each in self.cropped_results} - {each.length for each in self.cells}:
            yield "cropped_results", "lengths that are in cells"
        if set(self.refused_lengths) & {each.length for each in self.cells}:
            yield "refused_lengths", "lengths that are not in cells"


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
    """Measure a model at these lengths, `n` examples for each kind of negative; `progress(done, total)` in %.

    Without `explain`, accuracy alone is measured: not the effect of gaps and of ids, and no attention.
    """
    kinds = require_possible(model, lengths, kinds, n, batch_size, draw)
    answers, recipe, trained = cast(ClassModel, model.answers), model.description, model.trained
    task, asked = answers.task, sorted(set(lengths))
    lengths = _possible(answers, asked)
    n_at = {length: n or (N if recipe.window or length <= LONG else N_LONG) for length in lengths}
    # How long a sequence takes, roughly: the layers for each token, and attention for each pair.
    cost = {length: length if recipe.window else length * (1 + length / 512) for length in lengths}
    # All kinds of negatives share their sorted examples.
    total = sum(cost[length] * (each - each // 2 + each // 2 * len(kinds)) for length, each in n_at.items())
    cells, cut, last, done = list[LengthResult](), list[LengthResult](), task.classes[-1], 0.0

    def count(length: int, n_rows: int) -> None:
        nonlocal done
        done += cost[length] * n_rows
        if progress:
            progress(min(100, round(100 * done / total)), 100)

    for length in lengths:
        rng, half = stream(draw, "stretch", length), n_at[length] // 2
        examples = {last: task.sample_of_length(rng, length, None, n_at[length] - half)}
        examples |= {kind: task.sample_of_length(rng, length, kind, half) for kind in kinds}
        predicted = {kind: _predict(model, rows, batch_size, count) for kind, rows in examples.items()}
        cells += [_cell(task, length, kind, predicted[last], predicted[kind]) for kind in kinds]
        if explain and trained and length > trained[1] and task.local_negative in kinds:
            pieces = task.cropped(rng, examples[task.local_negative], trained[1])
            wrong, right = (_predict(model, rows, batch_size) for rows in pieces)
            cut.append(_cell(task, length, task.local_negative, right, wrong))
    ids, refused = list[ShiftedIds](), list[int]()
    # Of headcount's own models, ids can be shifted and attention can be read.
    own = model.module if explain and isinstance(model.module, Classifier) else None
    if own and task.local_negative in kinds:
        ids, refused = _at_other_ids(model, task, asked, n or N, batch_size, draw)
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
        cropped_results=tuple(cut),
        ids=tuple(ids),
        attention_shares=tuple(each for length in lengths if own for each in attention_share(own, task, length, draw)),
        recipe=recipe.digest,
        refused_lengths=tuple(length for length in asked if length not in lengths),
        refused_first_ids=tuple(refused),
        draw=draw,
    )


def _at_other_ids(
    model: OpenModel, task: ClassTask, lengths: Sequence[int], n: int, batch_size: int | None, draw: int
) -> tuple[list[ShiftedIds], list[int]]:
    """The longest trained length at the ids near 0 and at the last ids of each length; and first ids it refuses."""
    longest, rng, half = task.trained_lengths[1], stream(draw, "stretch ids"), n // 2
    examples = (
        task.sample_of_length(rng, longest, task.local_negative, half),
        task.sample_of_length(rng, longest, None, n - half),
    )
    found, refused, base = list[ShiftedIds](), list[int](), None
    for first in sorted({*NEAR, *(length - longest for length in lengths if length > longest)}):
        try:
            wrong, right = (_predict(model, rows, batch_size, first=first) for rows in examples)
        except InputError:
            refused.append(first)
            continue
        logits = np.concatenate([wrong.logits, right.logits])
        base = logits if base is None else base
        cell = _cell(task, longest, task.local_negative, right, wrong)
        found.append(ShiftedIds(first, cell, float(np.abs(logits - base).max())))
    return found, refused


def _possible(answers: ClassModel, lengths: Sequence[int]) -> list[int]:
    """The lengths that the model takes; its own reason if it takes none."""
    possible, refusal = [], None
    for length in lengths:
        try:
            answers.classify(answers.task.sample_of_length(stream(0, "stretch"), length, None, 1))
            possible.append(length)
        except InputError as error:
            refusal = error
    if refusal and not possible:
        raise refusal
    return possible


def require_possible(
    model: OpenModel,
    lengths: Sequence[int],
    kinds: Sequence[str] | None,
    n: int | None,
    batch_size: int | None,
    draw: int = 0,
) -> tuple[str, ...]:
    """The kinds of negatives to measure, if all that is asked for can be done."""
    task = cast(ClassTask, model.answers.task)
    if task.output_type != "class":
        raise InputError(f"{model.name} writes its answers; only a classifier can be stretched", "try a sortedness run")
    if not lengths or min(lengths) < 2 or max(lengths) > LONGEST:
        what = ", ".join(map(str, lengths)) or "nothing"
        raise InputError(f"{what} is not a list of lengths", f"each is 2 to {LONGEST:,}")
    if n is not None and n < 2:
        raise InputError(f"{n} examples are too few", "at least 2: one of each class")
    require_room_for(n or 0, max(lengths), "lower --n or --lengths")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"a batch of {batch_size} is none", "at least 1 example per forward pass")
    if draw < 0:
        raise InputError(f"{draw} is no draw of fresh sequences", "draws are counted from 0")
    unknown = [kind for kind in kinds or () if kind not in task.negatives]
    if unknown:
        raise InputError(f"no kind of negative {unknown[0]!r}", suggestion(unknown[0], task.negatives))
    return tuple(dict.fromkeys(kinds)) if kinds else task.negatives


def _predict(
    model: OpenModel,
    examples: Examples,
    batch_size: int | None,
    count: Callable[[int, int], None] = lambda length, n_rows: None,
    *,
    first: int = 0,
) -> ClassAnswers:
    """Some examples per core at a time; batches of a stated size one after another, so that memory is as stated."""
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
    """One head at one length: the mean share of its attention on the token itself, on its neighbours, on its equals.

    In a sorted sequence the equals of a token, itself among them, are the largest numbers up to there. A share is taken
    over the tokens of each sequence, then over sequences: `_se` is the standard error of that mean.
    """

    length: Positive
    head: HeadName
    n: Positive
    """Sequences."""
    left: Share
    itself: Share
    right: Share
    alike: Share
    left_se: Size
    itself_se: Size
    right_se: Size
    alike_se: Size
    neighbours_se: Size
    """Of left and right together: they are not independent."""

    def contradictions(self) -> Iterator[Contradiction]:
        """A token's attention to itself and its neighbours is at most all of it."""
        if self.left + self.itself + self.right > 1 + ROUNDING:
            yield "itself", f"at most {1 - self.left - self.right}, what left and right leave of 1"

    @property
    def neighbours(self) -> float:
        """Left and right together."""
        return self.left + self.right


class NeighbourMass:
    """Reads weights as they are made, a few queries at a time, and keeps only what falls on neighbours and equals.

    So no matrix of queries times keys is ever held.
    """

    def __init__(self, model: Classifier) -> None:
        self._model = model
        self._tokens = torch.empty(0)
        self._done: dict[HeadSite, int] = {}
        self.sums: dict[HeadSite, list[NDArray[np.float64]]] = {}
        """For each batch, [example, head, (left, itself, right, alike)], summed over queries."""

    def begin(self, tokens: Int[Tensor, "batch length"]) -> None:
        """A new batch: its first queries come next."""
        self._tokens = tokens
        self._done.clear()

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Add the next queries: for each example and head, the sums over queries of (left, itself, right, alike)."""
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
        """Means over all queries of all examples so far, which had this length."""
        for site, batches in self.sums.items():
            shares = np.concatenate(batches) / self._tokens.shape[1]  # [example, head, share]
            shares = np.concatenate([shares, shares[..., [0]] + shares[..., [2]]], axis=2)
            n, means = len(shares), shares.mean(axis=0)[:, :4]
            errors = shares.std(axis=0, ddof=1) / np.sqrt(n)
            for head, mean, error in zip(self._model.heads_at(site), means.tolist(), errors.tolist(), strict=True):
                yield AttentionShare(length, str(head), n, *mean, *error)


def attention_share(model: Classifier, task: ClassTask, length: int, draw: int = 0) -> Iterator[AttentionShare]:
    """Every head on a few sorted sequences of this length."""
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
