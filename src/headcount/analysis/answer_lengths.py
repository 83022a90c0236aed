"""How far does a model that answers token by token extrapolate beyond its training lengths?

Exact match is measured for each length and each kind of example that the task can draw (`SequenceTask.kinds`), and
again by the group of a facet such as the longest carry chain. It comes from one teacher-forced pass per example: the
first wrong token of an answer is the same when the model decodes. Some answers are also decoded, and must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from headcount.errors import CheckFailed, HeadcountError, InputError
from headcount.experiments.models import OpenModel
from headcount.hooks.gates import eval_mode
from headcount.limits import ANSWER_LENGTHS, require_room_for
from headcount.results import Contradiction, Positive, Result
from headcount.seeds import stream
from headcount.stats import Proportion
from headcount.suggestions import suggestion
from headcount.tasks.base import SequenceTask
from headcount.training.evaluation import SequenceModel

N, N_LONG, LONG = 200, 50, 100
"""Number of examples per length and kind: N for lengths up to LONG, otherwise N_LONG."""
LONGEST = 100_000
DECODED = 2
"""Number of examples of each length and kind that are also decoded token by token."""


@dataclass(frozen=True)
class AnswerLength:
    """Exact match at one length, on one kind of example."""

    length: Positive
    kind: str
    exact: Proportion
    margin: float
    """Median, over examples, of the smallest logit lead of the right token over the best other token of an answer."""


@dataclass(frozen=True)
class GroupLength:
    """Exact match at one length, over all kinds, for the examples of one group, such as carry chains of 4 to 7."""

    length: Positive
    group: str
    exact: Proportion


@dataclass(frozen=True)
class AnswerStretch(Result):
    """Exact match of one model at many lengths, for each kind of example."""

    ROWS: ClassVar[tuple[str, ...]] = ("cells",)
    SCHEMA: ClassVar[int] = 1
    name: str
    weights_sha256: str
    encoding: str
    hard_codes: tuple[str, ...]
    """Structure of the task that is built into the model, such as a window; empty for a generic model."""
    label: str
    """Short description of the model's settings, such as its encoding."""
    seed: int
    trained: tuple[int, int] | None
    """Shortest and longest training length; None if unknown."""
    unit: str
    """What the length counts, such as `digits`."""
    facet: str
    """The facet (way of grouping) of `groups`, such as `carry chain`."""
    cells: tuple[AnswerLength, ...]
    groups: tuple[GroupLength, ...]
    n_decoded: int
    """Number of answers that were also decoded token by token, with equal results."""
    recipe: str = ""
    """Digest of all settings except the seed. Runs with the same digest differ in the seed only."""
    refused_lengths: tuple[int, ...] = ()
    """Lengths that the model refuses, such as those beyond a learned table of positions."""
    draw: int = 0
    """Number of the random draw of new examples; another number gives other examples."""
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield an error if cells, groups and lengths do not fit together."""
        for name, keys in (
            ("cells", [(cell.length, cell.kind) for cell in self.cells]),
            ("groups", [(group.length, group.group) for group in self.groups]),
        ):
            if len(set(keys)) != len(keys):
                yield name, "different entries"
        totals = [
            {
                length: (sum(each.exact.n for each in rows), sum(each.exact.correct for each in rows))
                for length in {cell.length for cell in self.cells}
                if (rows := [each for each in entries if each.length == length])
            }
            for entries in (self.cells, self.groups)
        ]
        if self.facet and totals[0] != totals[1]:
            yield "groups", "groups of all examples of each length, each once"
        if self.trained and not 1 <= self.trained[0] <= self.trained[1]:
            yield "trained", "the shortest and the longest training length"
        if set(self.refused_lengths) & {cell.length for cell in self.cells}:
            yield "refused_lengths", "only lengths that are not in cells"


def stretches_answers(model: OpenModel) -> bool:
    """Return whether a model answers token by token on a task whose examples can have any length."""
    task = model.answers.task
    return task.output_type == "sequence" and bool(cast(SequenceTask, task).kinds)


def require_answer_lengths(
    model: OpenModel, lengths: Sequence[int], kinds: Sequence[str] | None, n: int | None, draw: int
) -> tuple[str, ...]:
    """Check the arguments of `stretch_answers`, and return the kinds of examples; raise an error for a bad one."""
    task = cast(SequenceTask, model.answers.task)
    if not lengths or min(lengths) < 1 or max(lengths) > LONGEST:
        given = ", ".join(map(str, lengths)) or "none"
        raise InputError(f"--lengths must be numbers from 1 to {LONGEST:,}, got {given}")
    if n is not None and n < 1:
        raise InputError(f"--n must be at least 1, got {n}")
    if draw < 0:
        raise InputError(f"--draw must be at least 0, got {draw}")
    require_room_for(n or 0, 3 * max(lengths), "lower --n or --lengths")
    if unknown := [kind for kind in kinds or () if kind not in task.kinds]:
        raise InputError(f"there is no kind of {task.words.example} {unknown[0]!r}", suggestion(unknown[0], task.kinds))
    return tuple(dict.fromkeys(kinds)) if kinds else task.kinds


def stretch_answers(
    model: OpenModel,
    lengths: Sequence[int] = ANSWER_LENGTHS,
    kinds: Sequence[str] | None = None,
    n: int | None = None,
    *,
    draw: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> AnswerStretch:
    """Measure exact match at these lengths, on `n` new examples of each kind.

    `draw` chooses the random examples. `progress(done, total)` is called with percentages: total is 100.
    """
    kinds, lengths = require_answer_lengths(model, lengths, kinds, n, draw), sorted(set(lengths))
    answers, recipe = cast(SequenceModel, model.answers), model.description
    task = answers.task
    n_at = {length: n or (N if length <= LONG else N_LONG) for length in lengths}
    total, done = sum(length * n_at[length] for length in lengths) * len(kinds), 0
    cells, groups, refused = list[AnswerLength](), list[GroupLength](), list[int]()
    refusal: HeadcountError | None = None
    n_decoded = 0
    for length in lengths:
        labels, hits = list[str](), list[NDArray[np.bool_]]()
        for kind in kinds:
            examples = task.sample_of_length(stream(draw, f"stretch {kind}", length), length, kind, n_at[length])
            try:
                with eval_mode(model.module, gradients=False):
                    margins = answers.margins(examples)
            except InputError as error:
                refused, refusal = [*refused, length], error
                break
            is_right = np.asarray(margins > 0)
            n_decoded += _check_decoded(answers, task, examples[:DECODED], is_right[:DECODED])
            cells.append(AnswerLength(length, kind, Proportion.count(is_right), float(np.median(margins))))
            hits.append(is_right)
            labels += task.facets(examples)[task.length_facet] if task.length_facet else []
            done += length * n_at[length]
            if progress:
                progress(round(100 * done / total), 100)
        if labels:
            bins = np.array(list(map(doubling_bin, labels)))
            for group in sorted(set(bins.tolist()), key=lambda text: int(text.partition("-")[0])):
                groups.append(GroupLength(length, group, Proportion.count(np.concatenate(hits)[bins == group])))
    if refusal and not cells:
        raise refusal
    return AnswerStretch(
        name=model.name,
        weights_sha256=model.weights_sha256,
        encoding=recipe.encoding,
        hard_codes=recipe.hard_codes,
        label=recipe.label,
        seed=recipe.seed,
        trained=model.trained,
        unit=task.words.length,
        facet=task.length_facet,
        cells=tuple(cells),
        groups=tuple(groups),
        n_decoded=n_decoded,
        recipe=recipe.digest,
        refused_lengths=tuple(refused),
        draw=draw,
    )


def doubling_bin(number: str) -> str:
    """Return the bin of a number, among bins that double: 0, 1, 2-3, 4-7, 8-15, and so on.

    >>> [doubling_bin(number) for number in ("0", "1", "3", "4", "100")]
    ['0', '1', '2-3', '4-7', '64-127']
    """
    value = int(number)
    if value < 2:
        return str(value)
    low = 1 << (value.bit_length() - 1)
    return f"{low}-{2 * low - 1}"


def _check_decoded(
    answers: SequenceModel, task: SequenceTask, examples: NDArray[np.int64], is_right: NDArray[np.bool_]
) -> int:
    """Decode some examples, and return their number; raise an error if their answers are not as the margins say."""
    decoded = answers.answer(examples)
    if decoded.free is None:
        return 0
    disagree = decoded.free_hits.all(axis=1) != is_right
    if disagree.any():
        example = task.show(examples[int(disagree.argmax())])
        raise CheckFailed(
            f"one forward pass and real decoding disagree on {example[:60]}",
            "in a sound model, both have the same first wrong token: check that padding is masked, and that decoding "
            "feeds the model as the forward pass does",
        )
    return len(examples)
