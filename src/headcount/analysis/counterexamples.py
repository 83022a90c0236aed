"""Search for an example inside the range of training that the model answers wrong.

An accuracy describes random examples. A model can be right on 2,000 random sequences and wrong on `0 0 0 0 0 0 0 17`.
The search therefore tries examples that are not random:

1. the task's hard examples: simple patterns on which models often fail;
2. climbing: the right answers with the smallest margins are changed a little, and the changed ones with the smallest
   margins are changed again. If margins stop falling, climbing begins anew from other examples.

The model answers each wrong example once more, alone, as the command `predict` does. A search that finds no wrong
answer proves nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from headcount.errors import InputError, argument
from headcount.experiments.models import OpenModel
from headcount.hooks.gates import eval_mode
from headcount.models.finite import require_numbers
from headcount.results import Contradiction, Count, Result, Size
from headcount.seeds import stream
from headcount.tasks.base import Examples, Task
from headcount.training.evaluation import ClassModel, SequenceModel, WrongAnswer, wrong_answers

ENOUGH = 20
"""Default number of wrong answers after which the search for counterexamples stops."""
N_HARD = 2048
"""Number of the task's hard examples (simple patterns on which models often fail) that are tried first."""
AT_ONCE = 256
"""Number of examples that the model answers together in one step of the search."""
N_KEPT = 64
"""Number of right answers with the smallest margins that each round of the search changes to get new examples."""
PATIENCE = 10
"""Number of rounds without a smaller margin after which the search starts again from other examples."""
MOST_IDLE = 50
"""Number of rounds without a new example after which the search ends, because the task has no more examples."""
Margins = NDArray[np.floating]
REFUTED, NOT_REFUTED = "refuted", "not refuted"


@dataclass(frozen=True)
class CounterexampleSearch(Result):
    """Result of a search for examples that a model answers wrong."""

    ROWS: ClassVar[tuple[str, ...]] = ("wrong",)
    name: str
    weights_sha256: str
    verdict: Literal["refuted", "not refuted"]
    wrong: tuple[WrongAnswer, ...]
    """The wrong answers, each confirmed by the model; the shortest example first, then the smallest margin."""
    n_tried: Count
    """Number of different examples that were tried."""
    n_families: Count
    """Number of the tried examples that came from the task's list of hard examples (simple patterns)."""
    seconds: Size
    """Duration of the search in seconds."""
    least_margin: float | None
    """Smallest margin, in logits, between a right answer and the next best one; None if no margin is finite."""
    output_type: Literal["sequence", "class"]
    """Whether an answer is a sequence of tokens or a class."""
    noun: str = "example"
    plural: str = "examples"
    """The task's words for one example and for several."""
    stopped_at: Count = ENOUGH
    """Number of wrong answers at which the search stops."""
    why_not_proved: str = ""
    """Reason why wrong answers were searched for instead of attempting a proof; empty if unknown."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the verdict, the wrong answers and the number of tried examples disagree."""
        verdict = REFUTED if self.wrong else NOT_REFUTED
        if self.verdict != verdict:
            yield "verdict", f"{verdict!r}, as the field wrong lists {len(self.wrong):,} answers"
        if len({answer.example for answer in self.wrong}) != len(self.wrong):
            yield "wrong", "answers to examples that differ from each other"
        for name, n in (("wrong", len(self.wrong)), ("n_families", self.n_families)):
            if n > self.n_tried:
                yield name, f"at most {self.n_tried:,}, the value of n_tried"
        if len(self.wrong) > self.stopped_at:
            yield "wrong", f"at most {self.stopped_at:,} answers, the value of stopped_at"


def search(
    model: OpenModel,
    *,
    seconds: float | None = None,
    most_tried: int | None = None,
    seed: int = 0,
    enough: int = ENOUGH,
    why_not_proved: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> CounterexampleSearch:
    """Search for examples that a model answers wrong; stop after `enough` wrong answers or at the end of the budget.

    The budget is a number of seconds, a number of examples (`most_tried`), or both. With `most_tried` alone, the
    same seed gives the same examples. `progress(done, total)` counts examples if their number is limited, else
    seconds.
    """
    budget = Budget(seconds, most_tried)
    answers, rng = model.answers, stream(seed, "counterexamples")
    trials, task = Trials(_probe(answers, model.name), budget, enough, progress), answers.task
    with eval_mode(model.module, gradients=False):
        hard = task.hard_examples(rng, N_HARD)
        if hard is not None:
            for start in range(0, len(hard), AT_ONCE):
                trials.add(hard[start : start + AT_ONCE])
        n_families, population = trials.n_tried, trials.nearest
        while not trials.is_over:
            _climb(task, rng, trials, population)
            population = trials.add(_fresh(task, rng))
    wrong = tuple(answer for _, _, answer in sorted(trials.wrong, key=lambda found: found[:2]))
    return CounterexampleSearch(
        name=model.name,
        weights_sha256=model.weights_sha256,
        verdict="refuted" if wrong else "not refuted",
        wrong=wrong,
        n_tried=trials.n_tried,
        n_families=n_families,
        seconds=budget.elapsed,
        least_margin=trials.least_margin if math.isfinite(trials.least_margin) else None,
        output_type=task.output_type,
        noun=task.words.example,
        plural=task.words.examples,
        stopped_at=enough,
        why_not_proved=why_not_proved,
    )


def can_be_searched(task: Task) -> bool:
    """Return whether a task offers a search more than random examples: hard patterns, or small changes of examples."""
    rng = stream(0, "counterexamples")
    return task.hard_examples(rng, 1) is not None or task.mutate(rng, task.split("test")[:1]) is not None


def _fresh(task: Task, rng: np.random.Generator) -> Examples:
    """Return new examples from which the search starts: random ones and, if the task has any, as many hard patterns."""
    sample = task.sample(rng, AT_ONCE)
    hard = task.hard_examples(rng, AT_ONCE // 2)
    return sample if hard is None else np.concatenate([hard, sample])[:AT_ONCE]


def _climb(task: Task, rng: np.random.Generator, trials: Trials, population: Nearest) -> None:
    """Search among small changes of the examples with the smallest margins, until the margins stop falling.

    `population` are right answers with small margins. Each round changes them and keeps the smallest margins.
    """
    patience = PATIENCE
    while len(population.examples) and patience and not trials.is_over:
        parents = np.resize(population.examples, (AT_ONCE, *population.examples.shape[1:]))
        children = task.mutate(rng, parents)
        if children is None:
            return
        before = population.margins.sum(), len(population.margins)
        population = population.joined(trials.add(children))
        is_lower = (population.margins.sum(), len(population.margins)) != before
        patience = PATIENCE if is_lower else patience - 1


class Budget:
    """The limit of a search for wrong answers: a number of seconds, a number of examples, or both."""

    def __init__(self, seconds: float | None, most_tried: int | None) -> None:
        if seconds is None and most_tried is None:
            raise InputError(
                "the search for wrong answers needs a limit of time or examples",
                "give a number of seconds, such as seconds=10, or of examples to try, such as most_tried=10_000",
            )
        for name, value in (("seconds", seconds), ("most_tried", most_tried)):
            if value is not None and not value > 0:
                raise InputError(f"{name} must be above 0, got {value}")
        self.seconds, self.most_tried, self._start = seconds, most_tried, time.perf_counter()

    @property
    def elapsed(self) -> float:
        """The seconds that have passed since the budget was created."""
        return time.perf_counter() - self._start

    def left(self, n_tried: int) -> int:
        """Return how many more examples may be tried in the next step; 0 or less if the budget is used up."""
        if self.seconds is not None and n_tried and self.elapsed >= self.seconds:
            return 0
        return AT_ONCE if self.most_tried is None else min(AT_ONCE, self.most_tried - n_tried)

    def done(self, n_tried: int) -> tuple[int, int]:
        """Return the used part and the total of the budget: in examples, or in seconds if examples are not limited."""
        if self.most_tried is not None:
            return n_tried, self.most_tried
        total = math.ceil(self.seconds or 0)
        return min(int(self.elapsed), total), total


@dataclass(frozen=True)
class Nearest:
    """The right answers that are closest to an error, as examples with their margins; the smallest margin first."""

    examples: Examples
    margins: Margins

    @classmethod
    def of(cls, examples: Examples, margins: Margins) -> Nearest:
        """Return the examples with the smallest margins, at most `N_KEPT` of them."""
        order = np.argsort(margins, kind="stable")[:N_KEPT]
        return cls(examples[order], margins[order])

    def joined(self, other: Nearest) -> Nearest:
        """Return the examples with the smallest margins among both collections."""
        if not len(other.examples):
            return self
        return Nearest.of(
            np.concatenate([self.examples, other.examples]), np.concatenate([self.margins, other.margins])
        )


@dataclass
class Trials:
    """All examples that a search has tried so far, and the wrong answers among them."""

    probe: ClassProbe | SequenceProbe
    budget: Budget
    enough: int
    progress: Callable[[int, int], None] | None
    n_tried: int = 0
    least_margin: float = math.inf
    nearest: Nearest = field(default_factory=lambda: Nearest(np.empty((0, 0), dtype=np.int64), np.empty(0)))
    """The right answers with the smallest margins so far."""
    wrong: list[tuple[int, float, WrongAnswer]] = field(default_factory=list)
    """For each example that the model answers wrong: its size (tokens or characters), margin and wrong answer."""
    _seen: set[bytes] = field(default_factory=set)
    _n_idle: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the search ends: enough wrong answers, the budget used up, or no new examples."""
        is_enough = len(self.wrong) >= self.enough or self._n_idle >= MOST_IDLE
        return is_enough or self.budget.left(self.n_tried) <= 0

    def add(self, examples: Examples) -> Nearest:
        """Let the model answer examples that were not tried before; return right answers with small margins."""
        if self.is_over:
            return Nearest(examples[:0], np.empty(0))
        examples = self._new(examples)[: self.budget.left(self.n_tried)]
        self._n_idle = 0 if len(examples) else self._n_idle + 1
        if not len(examples):
            return Nearest(examples, np.empty(0))
        self._seen.update(example.tobytes() for example in examples)
        is_first, self.n_tried = not self.n_tried, self.n_tried + len(examples)
        margins = self.probe.margins(examples)
        require_numbers(float(margins.sum()), self.probe.show(examples[0]))
        self.least_margin = min(self.least_margin, float(margins.min()))
        # Decoding can fail where one forward pass is right, so the first examples are decoded whatever their margins.
        suspect = margins <= 0 if not is_first else (margins <= 0) | ~self.probe.hits(examples)
        self._confirm(examples[suspect], margins[suspect])
        found = Nearest.of(examples[~suspect], margins[~suspect])
        self.nearest = found.joined(self.nearest)
        if self.progress:
            self.progress(*self.budget.done(self.n_tried))
        return found

    def _new(self, examples: Examples) -> Examples:
        """Return the examples that the search has not tried before, without duplicates."""
        rows = {example.tobytes(): i for i, example in reversed(list(enumerate(np.ascontiguousarray(examples))))}
        return examples[sorted(i for key, i in rows.items() if key not in self._seen)]

    def _confirm(self, examples: Examples, margins: Margins) -> None:
        """Let the model answer each suspicious example alone, the shortest first, and record wrong answers."""
        sizes = self.probe.sizes(examples)
        for i in np.lexsort((margins, sizes)).tolist():
            answer = self.probe.wrong_answer(examples[i])
            if answer is not None:
                self.wrong.append((int(sizes[i]), float(margins[i]), answer))
            if len(self.wrong) >= self.enough:
                return


# --- the model on its task --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassProbe:
    """Give the search a classifier's margins, right answers and wrong answers for examples."""

    model: ClassModel

    def margins(self, examples: Examples) -> Margins:
        """Return each example's margin in logits: right class minus best other class; positive if right."""
        return self.model.classify(examples).margins

    def hits(self, examples: Examples) -> NDArray[np.bool_]:
        """Return for each example whether the classifier's answer is right."""
        return self.model.classify(examples).hits

    def wrong_answer(self, example: Examples) -> WrongAnswer | None:
        """Classify one example alone; return the answer if it is wrong, and None if it is right."""
        task, answers = self.model.task, self.model.classify(example[None])
        predicted, right = int(answers.predicted[0]), int(answers.labels[0])
        if predicted == right:
            return None
        names = task.classes[right], task.classes[predicted]
        return WrongAnswer(self.show(example), *names, task.explain(example, predicted))

    def sizes(self, examples: Examples) -> NDArray[np.int64]:
        """Return the number of tokens of each example, by which wrong answers are ordered: the shortest first."""
        return self.model.task.lengths(examples)

    def show(self, example: Examples) -> str:
        """Return one example as text, as the task writes it."""
        return self.model.task.show(example)


@dataclass(frozen=True)
class SequenceProbe:
    """Give the search margins, right answers and wrong answers of a model that writes its answers token by token."""

    model: SequenceModel
    name: str

    def margins(self, examples: Examples) -> Margins:
        """Return the smallest margin of any token of each answer, in logits; positive if the answer is right."""
        return self.model.margins(examples)

    def hits(self, examples: Examples) -> NDArray[np.bool_]:
        """Return for each example whether free-running decoding gives the right answer."""
        answers = self.model.answer(examples)
        if answers.free is None:
            raise InputError(
                f"{self.name} has no generate(), so its answers cannot be decoded and searched for wrong ones",
                "write generate() in its headcount.Adapter class, or measure teacher-forced accuracy instead: "
                f"headcount evaluate {argument(self.name)}",
            )
        return np.asarray(answers.free_hits.all(axis=1))

    def wrong_answer(self, example: Examples) -> WrongAnswer | None:
        """Decode the answer to one example alone; return the answer if it is wrong, and None if it is right."""
        answers = self.model.answer(example[None])
        assert answers.free is not None, "tested by `hits` of the first examples"
        if answers.free_hits.all():
            return None
        return wrong_answers(self.model.task, example[None], answers.free, answers.texts)[0]

    def sizes(self, examples: Examples) -> NDArray[np.int64]:
        """Return the number of characters of each example, by which wrong answers are ordered: the shortest first."""
        return np.array([len(self.show(example)) for example in examples], dtype=np.int64)

    def show(self, example: Examples) -> str:
        """Return one example as text, as the task writes it."""
        return self.model.task.show(example)


def _probe(answers: SequenceModel | ClassModel, name: str) -> ClassProbe | SequenceProbe:
    if answers.task.output_type == "class":
        return ClassProbe(cast(ClassModel, answers))
    return SequenceProbe(cast(SequenceModel, answers), name)
