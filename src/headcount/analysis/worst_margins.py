"""Find the smallest margin of a classifier with mean pooling at each length, over all sequences of that length.

The model has a window, so each position sees a bounded context of neighbours (training/contexts.py). The lead is the
logit of the first class minus that of the last class. With mean pooling, the lead of a sequence is the mean of the
leads of its contexts. Dynamic programming over contexts therefore finds the worst sequence of each length exactly:

    best[t + 1][b, c] = min over a of best[t][a, b] + margin(a, b, c)

Here best[t][a, b] is the smallest sum over the first t contexts of a sequence that ends in a, b. A second state says
whether the sequence already has a broken pair (two neighbours that the last class does not allow). The model's own
forward pass answers each worst sequence, and must agree with the table.

The same table shows that mean pooling fails at long lengths. Let u(v) be the lead of the context that repeats v. The
constant sequence v v v ... is in the last class, and its lead tends to u(v), so u(v) must be at most 0. A broken pair
before a long stretch of v is in the first class, and its lead tends to u(v) too, so u(v) must be at least 0. A model
that is right at every length has u(v) = 0, exactly, for every v.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from headcount.errors import CheckFailed, InputError
from headcount.experiments.models import OpenModel
from headcount.models.finite import require_numbers
from headcount.models.transformer import Classifier
from headcount.results import Contradiction, Positive, Result, Size
from headcount.tasks.base import ClassTask
from headcount.training.answers import ClassAnswers
from headcount.training.contexts import ContextShape, Undecidable, lead_table
from headcount.training.evaluation import ClassModel, WrongAnswer
from headcount.training.violations import Decision, as_examples

BEYOND = (32, 64, 128, 256)
"""Lengths beyond the training lengths at which the smallest margins are computed by default."""
LONGEST_SHOWN = 4096
"""Largest length at which the model itself classifies a constant stretch (7 7 7 ...), to show that it answers wrong."""
TOLERANCE = 1e-2
"""Largest accepted difference, in logits, between a sequence and the mean of its contexts (what positions see)."""
Verdict = Literal["refuted", "right at these lengths", "undecided"]
Margins = NDArray[np.float64]
Sequences = NDArray[np.int64]


@dataclass(frozen=True)
class WorstCase:
    """The sequence with the smallest margin among all sequences of one class and one length."""

    margin: float
    """Logit of the right class minus that of the other, added up from what single positions see; negative if wrong."""
    example: str
    answer: str
    """The class that the model's forward pass predicts for the sequence."""
    own_margin: float
    """Logit of the right class minus that of the other class, in the model's own forward pass."""
    is_right: bool
    """Whether the model's forward pass predicts the right class."""


@dataclass(frozen=True)
class LengthMargins:
    """For one length, the sequence of each class that has the smallest margin."""

    length: Positive
    last: WorstCase | None
    """The sequence of the last class (sorted) with the smallest margin; None if there is no such sequence."""
    first: WorstCase | None
    """The sequence of the first class (unsorted) with the smallest margin; None if there is none, as at length 1."""

    @property
    def cases(self) -> tuple[WorstCase, ...]:
        """The sequences with the smallest margins of this length: one of each class that has sequences."""
        return tuple(case for case in (self.last, self.first) if case)

    @property
    def is_right(self) -> bool:
        """Whether the model answers the sequence of each class with the smallest margin right, and so all sequences."""
        return all(case.is_right for case in self.cases)


@dataclass(frozen=True)
class ConstantStretches:
    """For each token, the logit difference (first class minus last) at a position that sees only copies of this token.

    A model that is right at every length has a difference (lead) of 0 for every token.
    """

    leads: Mapping[str, float]
    """For each token, the logit of the first class minus that of the last, where a position sees only copies of it."""
    token: str
    """The token whose constant stretch (such as 7 7 7 7) makes the model answer wrong; empty if there is none.

    Candidates are the tokens with the smallest and the largest lead; the one that fails at the shorter length is given.
    """
    beginning: str
    """The broken pair (such as 5 4) before the constant stretch; empty if the stretch alone is answered wrong."""
    wrong_from: Positive | None
    """Shortest length from which on sequences with this constant stretch are answered wrong; None if there is none."""
    shown: WrongAnswer | None
    """A sequence with this stretch that the model's forward pass answers wrong; None if such sequences are too long."""
    shown_length: Positive | None

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the wrongly answered sequence disagrees with the logits of constant stretches."""
        if (self.wrong_from is None) != (not any(self.leads.values())):
            yield "wrong_from", "a length if any of leads differs from 0, and null otherwise"
        if self.wrong_from is not None and self.token not in self.leads:
            yield "token", "a token that is listed in leads"
        elif self.wrong_from is not None and (self.leads[self.token] > 0) != (not self.beginning):
            yield "beginning", "empty if the lead of the token is above 0, and a broken pair otherwise"
        if (self.shown is None) != (self.shown_length is None):
            yield "shown_length", "the length of the sequence in shown, and null without one"
        elif self.shown_length is not None and (self.wrong_from is None or self.shown_length < self.wrong_from):
            yield "shown_length", f"at least {self.wrong_from}, the value of wrong_from"

    @property
    def smallest(self) -> tuple[str, float]:
        """The token whose repetition has the smallest lead (first class minus last), and this lead in logits."""
        return min(self.leads.items(), key=lambda item: item[1])

    @property
    def largest(self) -> tuple[str, float]:
        """The token whose repetition has the largest lead (first class minus last), and this lead in logits."""
        return max(self.leads.items(), key=lambda item: item[1])


@dataclass(frozen=True)
class WorstMargins(Result):
    """The smallest margins of a classifier with mean pooling, over all sequences of each length."""

    ROWS: ClassVar[tuple[str, ...]] = ("rows",)
    name: str
    weights_sha256: str
    verdict: Verdict
    """`refuted` if a sequence is answered wrong, `undecided` if rounding could change an answer, else right."""
    example: str
    """The task's word for one example, such as `sequence`."""
    classes: tuple[str, str]
    """The two classes, such as `unsorted` and `sorted`.

    Examples of the first have a broken pair (neighbours such as 5 4), those of the second have none.
    """
    trained: tuple[int, int]
    """Lengths of the shortest and the longest sequence in training."""
    rows: tuple[LengthMargins, ...]
    """The sequences with the smallest margins by length; the shortest length with a wrong answer is always included."""
    constants: ConstantStretches | None
    """What constant stretches such as 7 7 7 show about all lengths; None if `constant_stretches` does not apply."""
    rounding: Size
    """Largest difference, in logits, between a sequence in the model and the mean over what its positions see."""
    wrong: tuple[WrongAnswer, ...]
    """Sequences that the model's forward pass answers wrong, the shortest first."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the verdict, the sequences with the smallest margins and these margins disagree."""
        lengths = [row.length for row in self.rows]
        if lengths != sorted(set(lengths)):
            yield "rows", "rows in the order of increasing lengths"
        if verdict(self.rows, self.wrong, self.rounding) != self.verdict:
            yield "verdict", f"{verdict(self.rows, self.wrong, self.rounding)!r}, which follows from rows and wrong"
        cases = [case for row in self.rows for case in row.cases]
        if any(abs(case.margin - case.own_margin) > self.rounding * (1 + 1e-6) for case in cases):
            yield "rounding", "a number that is at least the difference between margin and own_margin in every row"
        if any(case.is_right == (case.own_margin < 0) for case in cases if case.own_margin):
            yield "rows", "is_right true where own_margin is above 0, and false where it is below"
        expected = {case.example for case in cases if not case.is_right}
        expected |= {self.constants.shown.example} if self.constants and self.constants.shown else set()
        if len(self.wrong) != len(expected) or {answer.example for answer in self.wrong} != expected:
            yield "wrong", f"the {len(expected)} examples that rows and constants list as wrong, each once"

    @property
    def first_wrong_length(self) -> int | None:
        """The shortest examined length at which the model answers a sequence wrong; None if there is none."""
        return next((row.length for row in self.rows if not row.is_right), None)

    @property
    def right_when_trained(self) -> bool | None:
        """Whether every sequence of every training length is right; None if a training length was not examined."""
        first, last = self.trained
        rows = [row for row in self.rows if first <= row.length <= last]
        if not all(row.is_right for row in rows):
            return False
        return True if len(rows) == last - first + 1 else None


def worst_margins(model: OpenModel, lengths: Iterable[int] | None = None) -> WorstMargins:
    """Find the smallest margin of each class over all sequences of each length, and test constant stretches.

    The default lengths are 1 to the longest training length, then 32, 64, 128 and 256. If the model's positions do not
    see a bounded context, the error `Undecidable` says why nothing can be decided.
    """
    shape, task, classifier = require_mean(model)
    longest = task.trained_lengths[1]
    chosen = {*range(1, longest + 1), *(n for n in BEYOND if n > longest)} if lengths is None else set(lengths)
    if not chosen or min(chosen) < 1:
        raise InputError("lengths must be a list of whole numbers of at least 1", "name at least one length, such as 8")
    table = lead_table(classifier, shape)
    require_numbers(float(np.nansum(table)), "all contexts")
    assert task.allowed_neighbours is not None, "required above"
    decision = Decision(shape, task.allowed_neighbours, table)
    return judge(model, cast(ClassModel, model.answers), decision, chosen)


def require_mean(model: OpenModel) -> tuple[ContextShape, ClassTask, Classifier]:
    """Return the shape of the contexts, the task and the classifier.

    Raise `Undecidable` if the contexts (the tokens that a position sees) are not bounded or pooling is not a mean.
    """
    task, module = cast(ClassTask, model.task), cast(Classifier, model.module)
    shape = ContextShape.on_task(module, task)
    if module.pooling.combines != "mean":
        raise Undecidable(f"the model's pooling is {module.config.pooling}, not a mean over positions")
    return shape, task, module


def judge(model: OpenModel, answers: ClassModel, decision: Decision, lengths: Iterable[int]) -> WorstMargins:
    """Find the sequences with the smallest margins, and classify them with the model.

    The search uses the table of contexts (what one position sees) in `decision`.
    """
    task, chosen = answers.task, set(lengths)
    walks = last_class_walk(decision), first_class_walk(decision)
    for walk in walks:
        walk.grow(max(chosen))
    is_wrong = np.minimum(*(walk.margins for walk in walks)) <= 0
    if is_wrong.any():
        chosen.add(int(is_wrong.argmax()) + 1)
    found = [(n, walk) for n in sorted(chosen) for walk in walks if np.isfinite(walk.margins[n - 1])]
    sequences = [walk.worst(n) for n, walk in found]
    answered = _answer(answers, sequences, [walk is walks[0] for _, walk in found])
    cases = {
        (n, walk): WorstCase(
            margin=float(walk.margins[n - 1]),
            example=task.show(np.array(sequences[i])),
            answer=task.classes[answered.predicted[i]],
            own_margin=float(answered.margins[i]),
            is_right=bool(answered.hits[i]),
        )
        for i, (n, walk) in enumerate(found)
    }
    rows = tuple(LengthMargins(n, *(cases.get((n, walk)) for walk in walks)) for n in sorted(chosen))
    constants = constant_stretches(answers, decision)
    wrong = [
        (len(sequences[i]), _wrong_answer(task, sequences[i], answered, i)) for i in np.flatnonzero(~answered.hits)
    ]
    if constants and constants.shown and constants.shown_length:
        wrong.append((constants.shown_length, constants.shown))
    unique = {answer.example: answer for _, answer in sorted(wrong, key=lambda item: item[0])}
    rounding = max((abs(case.margin - case.own_margin) for case in cases.values()), default=0.0)
    if rounding > TOLERANCE:
        raise CheckFailed(
            f"the model's logits for whole sequences differ by {rounding:.1e} from the mean of the logits that "
            "headcount computes for each position",
            "this is a fault in headcount, not in what the model has learned: please report it",
        )
    return WorstMargins(
        name=model.name,
        weights_sha256=model.weights_sha256,
        verdict=verdict(rows, tuple(unique.values()), rounding),
        example=task.words.example,
        classes=(task.classes[0], task.classes[-1]),
        trained=task.trained_lengths,
        rows=rows,
        constants=constants,
        rounding=rounding,
        wrong=tuple(unique.values()),
    )


def verdict(rows: Sequence[LengthMargins], wrong: Sequence[WrongAnswer], rounding: float) -> Verdict:
    """Return the verdict: `refuted` if an answer is wrong, `undecided` if a margin is within rounding, else right."""
    if wrong:
        return "refuted"
    is_right = all(case.margin > rounding for row in rows for case in row.cases)
    return "right at these lengths" if is_right else "undecided"


# --- the worst sequence of each length --------------------------------------------------------------------------------


class Walk:
    """Finds the sequence with the smallest sum of margins at each length, by dynamic programming.

    A sequence is a path of overlapping contexts (what positions see). The state of a path says whether the sequence
    already has a broken pair (5 4). A path begins in state 0 and must end in the last state. For each state, `edges`
    lists the states that can come before, with the margins of the contexts that lead from there; a margin is infinite
    where no context leads.
    """

    def __init__(self, decision: Decision, edges: Sequence[Sequence[tuple[int, Margins]]]) -> None:
        self.shape, self.ends = decision.shape, decision.ends
        self.edges = [[(source, _first_axis_last(part).copy()) for source, part in parts] for parts in edges]
        self.sums = [np.where(decision.starts & (state == 0), 0.0, np.inf) for state in range(len(edges))]
        self.origins: list[list[NDArray[np.integer]]] = []
        """For each length, state and node of the search, the node before it on the best path:
        `origins[t][state][node]`.

        A node is stored as its first token + (n_tokens + 1) * its state.
        """
        self.best: list[tuple[float, tuple[int, ...]]] = []
        """For each length from 1 on: the smallest sum of margins (infinity without a sequence), and its last node."""

    def grow(self, longest: int) -> None:
        """Extend the search to sequences of up to `longest` tokens, unless it is that long already."""
        kind = np.min_scalar_type(len(self.edges) * (self.shape.n_tokens + 1))  # paths of 256 steps need much memory
        while len(self.best) < longest:
            steps = [self._step(parts) for parts in self.edges]
            self.sums = [sums for sums, _ in steps]
            self.origins.append([origins.astype(kind) for _, origins in steps])
            at_end = np.where(self.ends, self.sums[-1], np.inf)
            node = np.unravel_index(at_end.argmin(), at_end.shape)
            self.best.append((float(at_end[node]), tuple(map(int, node))))

    def _step(self, parts: Sequence[tuple[int, Margins]]) -> tuple[Margins, NDArray[np.intp]]:
        """Return the smallest sums of margins after one more position, and the node before the last of each path."""
        least, origins = np.array(np.inf), np.array(0)
        for source, margins in parts:
            totals = _first_axis_last(self.sums[source])[..., None, :] + margins
            tokens = totals.argmin(axis=-1)
            sums = np.take_along_axis(totals, tokens[..., None], axis=-1)[..., 0]
            origins = np.where(sums < least, tokens + source * (self.shape.n_tokens + 1), origins)
            least = np.minimum(sums, least)
        return least, origins

    @property
    def margins(self) -> Margins:
        """The smallest mean margin at each length from 1 on, in logits; infinity if there is no sequence."""
        return np.array([total / n for n, (total, _) in enumerate(self.best, start=1)])

    def worst(self, length: int) -> list[int]:
        """Return the tokens of the sequence of the given length with the smallest mean margin."""
        symbols, state = list(self.best[length - 1][1]), len(self.edges) - 1
        for origins in reversed(self.origins[:length]):
            node = tuple(symbols[: self.shape.width - 1])
            state, token = divmod(int(origins[state][node]), self.shape.n_tokens + 1)
            symbols.insert(0, token)
        return [symbol for symbol in symbols if symbol != self.shape.n_tokens]


def last_class_walk(decision: Decision) -> Walk:
    """Return the search for the sequences of the last class (sorted) with the smallest margins.

    They have no broken pair: two neighbours that the last class does not allow, such as 5 4.
    """
    margins = np.where(decision.unbroken, -decision.leads.astype(np.float64), np.inf)
    return Walk(decision, [[(0, margins)]])


def first_class_walk(decision: Decision) -> Walk:
    """Return the search for the sequences of the first class (unsorted) with the smallest margins.

    They have a broken pair: two neighbours that the last class does not allow, such as 5 4. State 1 of the search means
    that the sequence already has one.
    """
    margins = np.where(np.isnan(decision.leads), np.inf, decision.leads.astype(np.float64))
    unbroken, broken = (np.where(marks, margins, np.inf) for marks in (decision.unbroken, ~decision.unbroken))
    return Walk(decision, [[(0, unbroken)], [(0, broken), (1, margins)]])


def _first_axis_last(values: Margins) -> Margins:
    """Return the array with its first axis moved to the end, where a minimum is computed faster."""
    return np.moveaxis(values, 0, -1)


# --- constant stretches -----------------------------------------------------------------------------------------------


def constant_stretches(answers: ClassModel, decision: Decision) -> ConstantStretches | None:
    """Return the leads of contexts that repeat one token and, if a lead is not 0, a sequence that is answered wrong.

    A context is the tokens that one position sees; its lead is the logit of the first class minus that of the last.
    Return None if nothing follows from the leads: a token must not follow itself, or all pairs of neighbours are
    allowed.
    """
    task, allowed = answers.task, decision.allowed
    if not allowed.diagonal().all() or allowed.all():
        return None
    tokens = range(decision.shape.n_tokens)
    leads = np.array([decision.leads[(token,) * decision.shape.width] for token in tokens], dtype=np.float64)
    by_name = {task.tokens[token]: float(leads[token]) for token in tokens}
    extremes = [token for token in (int(leads.argmin()), int(leads.argmax())) if leads[token]]
    if not extremes:
        return ConstantStretches(by_name, "", "", None, None, None)
    wrong_from, beginning, token = min(_wrong_from(decision, token) for token in dict.fromkeys(extremes))
    shown, shown_length, length = None, None, wrong_from
    while shown is None and length <= LONGEST_SHOWN:
        sequence = [*beginning, *[token] * (length - len(beginning))]
        answered = _answer(answers, [sequence], [not beginning])
        if not answered.hits[0]:
            shown, shown_length = _wrong_answer(task, sequence, answered, 0), length
        length *= 2  # just above 0, rounding may hide the error
    text = task.show(np.array(beginning)) if beginning else ""
    return ConstantStretches(by_name, task.tokens[token], text, wrong_from, shown, shown_length)


def _wrong_from(decision: Decision, token: int) -> tuple[int, list[int], int]:
    """Find the shortest length from which on a constant stretch of `token` is answered wrong.

    Return the length, the pair of tokens before the stretch, and the token. A lead is the logit of the first class
    minus that of the last. Beyond the width of a context, each further token adds the lead of the constant context to
    the sum. If this lead is negative, the returned pair is the broken pair (such as 5 4) that makes the answer wrong at
    the shortest length. If the lead is positive, the constant sequence alone is answered wrong, and the pair is empty.
    """
    shape = decision.shape
    lead = float(decision.leads[(token,) * shape.width])
    sign = 1 if lead > 0 else -1
    pairs = np.argwhere(~decision.allowed) if lead < 0 else np.empty((1, 0), dtype=np.int64)
    n_before = pairs.shape[1]
    sums = sign * _lead_sums(decision, pairs, token, n_before + shape.width)
    pair, base = pairs[[sums.argmax()]], n_before + shape.width
    length, total = base, Fraction(float(sums.max()))
    if total <= 0:
        length = base + -total // Fraction(abs(lead)) + 1
    while length <= base and length > max(1, n_before) and sign * _lead_sums(decision, pair, token, length - 1)[0] > 0:
        length -= 1
    return length, pair[0].tolist(), token


def _lead_sums(decision: Decision, beginnings: Sequences, token: int, length: int) -> Margins:
    """Return the sum of leads over each sequence that starts with one of `beginnings` and then repeats `token`.

    A lead is the logit of the first class minus that of the last, for one context. Each sequence has `length` tokens.
    """
    shape = decision.shape
    rows = np.pad(beginnings, ((0, 0), (0, length - beginnings.shape[1])), constant_values=token)
    rows = np.pad(rows, ((0, 0), (shape.left, shape.right)), constant_values=shape.n_tokens)
    contexts = np.lib.stride_tricks.sliding_window_view(rows, shape.width, axis=1)
    return decision.leads[tuple(np.moveaxis(contexts, -1, 0))].astype(np.float64).sum(axis=1)


# --- what the model answers -------------------------------------------------------------------------------------------


def _answer(answers: ClassModel, sequences: Sequence[list[int]], in_last_class: Sequence[bool]) -> ClassAnswers:
    """Classify sequences with the model; raise an error if their right classes contradict the task's own rules.

    The rules are the pairs of neighbours that the last class (such as sorted) allows.
    """
    answered = answers.classify(as_examples(list(sequences), max(map(len, sequences))))
    last = len(answers.task.classes) - 1
    if (answered.labels != np.where(in_last_class, last, 0)).any():
        raise CheckFailed(
            f"the right answers of the task {answers.task.name} contradict its own table of numbers that may stand "
            "side by side",
            "this is a fault in the task: please report it",
        )
    return answered


def _wrong_answer(task: ClassTask, sequence: list[int], answered: ClassAnswers, i: int | np.intp) -> WrongAnswer:
    """Return the i-th sequence as a `WrongAnswer`, with its right class, the predicted class and the reason."""
    example, predicted = np.array(sequence), int(answered.predicted[i])
    right = task.classes[int(answered.labels[i])]
    return WrongAnswer(task.show(example), right, task.classes[predicted], task.explain(example, predicted))
