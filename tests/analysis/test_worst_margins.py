"""The worst margins equal brute force over all sequences, and wrong sequences are really wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headcount.analysis.worst_margins import WorstMargins, judge, require_mean, verdict, worst_margins
from headcount.errors import CheckFailed, InputError
from headcount.experiments.models import RunModel
from headcount.runs.config import RunConfig
from headcount.runs.run import Run, build
from headcount.tasks.base import EMPTY, ClassBatch, Examples
from headcount.tasks.sortedness import Sortedness, SortednessConfig
from headcount.training.answers import ClassAnswers
from headcount.training.contexts import ContextShape, Undecidable
from headcount.training.violations import Decision

SETTINGS: dict[str, Any] = {
    **{"n_values": 4, "shortest": 2, "longest": 4, "n_validation": 2, "n_test": 2},
    **{"d_model": 8, "n_heads": 2, "n_layers": 1, "d_ff": 16, "pooling": "mean", "window": 1},
    **{"encoding": "relative", "clip_distance": 2},
}
NAMED: Any = SimpleNamespace(name="planted", weights_sha256="digest")
MODELS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "five values": {"n_values": 5},
    "post-norm": {"norm": "post"},
    "causal": {"causal": True},
    "causal, two layers": {"causal": True, "n_layers": 2},
    "two layers": {"n_layers": 2},
    "window of 2": {"window": 2},
    "no encoding": {"encoding": "none"},
}


@pytest.fixture
def random_model(tiny_sorter: Run) -> Callable[..., RunModel]:
    """Return a model with large random weights, which is wrong on some sequences of each class."""

    def make(seed: int, **changes: Any) -> RunModel:
        config = RunConfig.build("sortedness", **SETTINGS | {"seed": seed} | changes)
        task, model = build(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2).add_(
                    0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                )
        return RunModel.of(replace(tiny_sorter, config=config, task=task, model=model.eval()))

    return make


def all_sequences(n_values: int, length: int) -> Examples:
    return np.array(list(itertools.product(range(n_values), repeat=length)))


def brute_force(model: RunModel, length: int) -> Iterator[tuple[int, float, set[str]]]:
    """Yield the smallest margin of each class over all sequences of a length, and the sequences that have it."""
    task: Any = model.run.task
    answers: Any = model.answers
    sequences = all_sequences(task.config.n_values, length)
    margins = answers.classify(sequences).margins.astype(np.float64)
    is_sorted = (np.diff(sequences, axis=1) >= 0).all(axis=1)
    for label in (1, 0):
        if (rows := is_sorted == label).any():
            least = margins[rows].min()
            yield label, least, {task.show(each) for each in sequences[rows][margins[rows] < least + 1e-4]}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_worst_margins_equal_brute_force(random_model: Callable[..., RunModel], name: str, seed: int) -> None:
    model = random_model(seed, **MODELS[name])
    lengths = range(1, 6 if seed else 5)
    result = worst_margins(model, lengths)
    assert [row.length for row in result.rows] == list(lengths)
    for row in result.rows:
        cases = dict(zip((1, 0), (row.last, row.first), strict=True))
        for label, least, examples in brute_force(model, row.length):
            case = cases.pop(label)
            assert case is not None
            assert case.margin == pytest.approx(least, abs=1e-4)
            assert case.example in examples
            assert case.own_margin == pytest.approx(case.margin, abs=1e-4)
            assert (case.answer == model.run.task.answer(model.run.task.parse(case.example)[0])) == case.is_right
        assert set(cases.values()) <= {None}
    assert WorstMargins.from_json(result.to_json()) == result
    assert 0 < result.rounding < 1e-4


@pytest.mark.parametrize("seed", range(6))
def test_constant_stretches_are_wrong_from_the_named_length_on(
    random_model: Callable[..., RunModel], seed: int
) -> None:
    model = random_model(seed, **list(MODELS.values())[seed])
    task, result = model.run.task, worst_margins(model, [2])
    answers: Any = model.answers
    constants = result.constants
    assert constants is not None
    assert constants.wrong_from is not None
    assert constants.shown is not None
    assert result.verdict == "refuted"
    assert constants.shown in result.wrong
    assert model.predict(constants.shown.example).predicted == constants.shown.predicted != constants.shown.right
    beginning = constants.beginning.split()
    assert len(beginning) == (0 if constants.leads[constants.token] > 0 else 2)

    def margin(length: int) -> float:
        words = [*beginning, *[constants.token] * (length - len(beginning))]
        return float(answers.classify(task.parse(" ".join(words))).margins[0])

    shortest = max(1, len(beginning))
    assert all(margin(n) < 1e-5 for n in range(constants.wrong_from, constants.wrong_from + 20))
    if constants.wrong_from > shortest:
        assert margin(constants.wrong_from - 1) > -1e-5
    limit = -abs(constants.leads[constants.token])
    assert margin(2000) == pytest.approx(limit, abs=0.05 * (1 + abs(limit)))


# --- planted tables ---------------------------------------------------------------------------------------------------


class TableModel:
    """A model whose lead of a sequence is the mean of a table over its contexts, computed in plain Python."""

    def __init__(self, leads: NDArray[np.float64], error: float = 0.0) -> None:
        self.leads, self.error, self.n = leads, error, len(leads) - 1
        self.task = Sortedness(SortednessConfig(n_values=self.n, shortest=2, longest=4, n_validation=2, n_test=2))

    def classify(self, examples: Examples) -> ClassAnswers:
        logits = []
        for row in examples:
            padded = [self.n, *row[row != EMPTY].tolist(), self.n]
            leads = [self.leads[context] for context in zip(padded, padded[1:], padded[2:], strict=False)]
            logits.append([sum(leads) / len(leads) + self.error, 0.0])
        return ClassAnswers(np.array(logits), self.task.encode(examples).labels)


def planted(n: int = 6) -> NDArray[np.float64]:
    """Return leads that are right at every length: -1 at the beginning, 3 in each context with a broken pair."""
    leads = np.full((n + 1,) * 3, np.nan)
    for a, b, c in itertools.product(range(n + 1), range(n), range(n + 1)):
        leads[a, b, c] = -(a == n) + 3 * ((a < n and a > b) or b > c)
    return leads


def judged(leads: NDArray[np.float64], lengths: tuple[int, ...], error: float = 0.0) -> WorstMargins:
    model: Any = TableModel(leads, error)
    decision = Decision(ContextShape(1, 1, model.n), model.task.allowed_neighbours, leads)
    return judge(NAMED, model, decision, lengths)


def test_a_table_that_is_right_is_right_at_all_lengths() -> None:
    result = judged(planted(), (1, 2, 3, 10, 300))
    assert result.verdict == "right at these lengths"
    assert (result.wrong, result.first_wrong_length) == ((), None)
    assert [row.last.margin for row in result.rows if row.last] == pytest.approx([1 / n for n in (1, 2, 3, 10, 300)])
    # One broken pair at the end is in two contexts, unless the sequence has two numbers.
    assert [row.first and row.first.margin for row in result.rows] == [
        None,
        *(pytest.approx(5 / n) for n in (2, 3, 10, 300)),
    ]
    assert result.constants is not None
    assert (result.constants.wrong_from, result.constants.token) == (None, "")
    assert result.right_when_trained is None, "length 4 was not examined"
    assert judged(planted(), (2, 3, 4)).right_when_trained is True
    assert WorstMargins.from_json(result.to_json()) == result


def test_a_constant_stretch_that_is_too_high_is_wrong_from_an_exact_length_on() -> None:
    leads = planted()
    leads[4, 4, 4] = 1 / 128
    result = judged(leads, (2, 3, 4, 300))
    constants = result.constants
    assert constants is not None
    assert constants.shown is not None
    assert (constants.token, constants.beginning, constants.wrong_from) == ("4", "", 131)  # -1 + (131 - 2) / 128 > 0
    assert constants.shown.example == " ".join(["4"] * 131)
    assert (constants.smallest[1], constants.largest) == (0, ("4", 1 / 128))
    assert [row.length for row in result.rows] == [2, 3, 4, 130, 300], "the first wrong length is added"
    assert result.first_wrong_length == 130, "a tie counts for the first class"
    worst = result.rows[-1].last
    assert worst is not None
    assert worst.example == " ".join(["4"] * 300)
    assert worst.margin == pytest.approx((1 - 298 / 128) / 300)
    assert (result.verdict, result.right_when_trained) == ("refuted", True)


def test_a_constant_stretch_that_is_too_low_hides_a_broken_pair_from_an_exact_length_on() -> None:
    leads = planted()
    leads[4, 4, 4] = -1 / 128
    constants = judged(leads, (2,)).constants
    assert constants is not None
    # 5 4 4 4 ...: the first two contexts have 2 and 3, and 5 - (644 - 3) / 128 < 0.
    assert (constants.token, constants.beginning, constants.wrong_from) == ("4", "5 4", 644)
    assert constants.shown is not None
    assert constants.shown_length == 644
    leads[4, 4, 4] = -1 / 1024
    constants = judged(leads, (2,)).constants
    assert constants is not None
    assert (constants.wrong_from, constants.shown) == (5 * 1024 + 4, None), "too long for a forward pass"


def test_a_margin_within_rounding_is_undecided() -> None:
    assert judged(planted(), (2, 3), error=1e-3).verdict == "right at these lengths"
    result = judged(planted() * 1e-3, (2, 3), error=9e-4 / 2)
    assert result.rounding == pytest.approx(9e-4 / 2)
    assert verdict(result.rows, (), 1e-3) == "undecided"
    assert judged(planted() * 1e-3, (2,), error=9e-4).verdict == "refuted", "what the model answers counts"


def test_a_model_that_differs_from_its_table_gets_no_margins() -> None:
    with pytest.raises(CheckFailed, match=r"differ by 5\.0e-02 from the mean of the logits"):
        judged(planted(), (2, 3), error=0.05)


def test_a_task_that_contradicts_its_pairs_gets_no_margins() -> None:
    leads = planted()
    model: Any = TableModel(leads)
    decision = Decision(ContextShape(1, 1, model.n), ~model.task.allowed_neighbours, leads)
    with pytest.raises(CheckFailed, match="contradict its own table of numbers that may stand side by side"):
        judge(NAMED, model, decision, (2, 3))


class OtherPairs(Sortedness):
    """A task that allows other pairs of neighbours."""

    def encode(self, examples: Examples) -> ClassBatch:
        sequences = [row[row != EMPTY] for row in examples]
        labels = [self.allowed_neighbours[row[:-1], row[1:]].all() for row in sequences]
        return ClassBatch(super().encode(examples).source, np.array(labels).astype(np.int64))


@pytest.mark.parametrize("allowed", ["strict", "all"])
def test_the_theorem_is_left_out_where_it_does_not_apply(allowed: str) -> None:
    leads, model = planted(3), TableModel(planted(3))
    pairs = np.arange(3)[:, None] < np.arange(3) if allowed == "strict" else np.ones((3, 3), dtype=bool)
    model.task = OtherPairs(model.task.config)
    model.task.allowed_neighbours = pairs
    answers: Any = model
    result = judge(NAMED, answers, Decision(ContextShape(1, 1, 3), pairs, leads), (1, 2, 4))
    assert result.constants is None
    cases = result.rows[-1].last, result.rows[-1].first
    assert [case is None for case in cases] == ([True, False] if allowed == "strict" else [False, True])


# --- models without worst margins -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"window": None}, "no attention window"),
        ({"pooling": "max"}, r"no exact decision is known for the model's pooling \(max\)"),
        ({"pooling": "top-score"}, r"pooling is top-score, not a mean"),
        ({"encoding": "sinusoidal", "clip_distance": 4}, "not a bias of the distance"),
        ({"padding_is_zero": True}, "does not mask padding"),
    ],
)
def test_a_model_without_a_table_says_why(
    random_model: Callable[..., RunModel], changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Undecidable, match=reason):
        worst_margins(random_model(0, **changes))


def test_a_model_of_others_or_of_another_task_says_why(tiny_run: Run, random_model: Callable[..., RunModel]) -> None:
    with pytest.raises(Undecidable, match="only classifiers that headcount trained"):
        require_mean(RunModel.of(tiny_run))
    with pytest.raises(Undecidable, match="only classifiers that headcount trained"):
        require_mean(replace(random_model(0), module=torch.nn.Identity()))


def test_lengths_must_be_lengths(random_model: Callable[..., RunModel]) -> None:
    for lengths in ([], [0, 2]):
        with pytest.raises(InputError, match="at least 1"):
            worst_margins(random_model(0), lengths)
    assert [row.length for row in worst_margins(random_model(0)).rows] == [1, 2, 3, 4, 32, 64, 128, 256]
