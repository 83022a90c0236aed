"""A search finds what was planted, nothing in models that are right, and only what the model itself answers wrong."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from planted import OrderModel, PlantedAdder, PlantedSorter, SumModel
from torch import Tensor, nn

from headcount.analysis import counterexamples
from headcount.analysis.counterexamples import CounterexampleSearch, can_be_searched, search
from headcount.api import open_model
from headcount.data.own_task import OwnSequences
from headcount.errors import CheckFailed, InputError
from headcount.experiments.external_models import ExternalModel
from headcount.experiments.models import OpenModel
from headcount.external.adapter import Adapter, load_adapted
from headcount.tasks.addition import Addition
from headcount.tasks.base import Examples
from headcount.tasks.sortedness import Sortedness, SortednessConfig
from headcount.training.answers import ClassAnswers


def opened(adapter: type[Adapter]) -> OpenModel:
    made = adapter()
    return ExternalModel.opened(load_adapted(made), adapter.__name__, adapter=made)


def sorter(model: type[nn.Module]) -> OpenModel:
    return opened(type(model.__name__, (PlantedSorter,), {"model_class": model}))


@dataclass
class Classifier:
    """A classifier given by its margins; `tried` keeps the examples that it was given."""

    task: Sortedness
    margins_of: Callable[[Examples], Any]

    def __post_init__(self) -> None:
        self.tried = list[Examples]()

    def classify(self, examples: Examples, at_once: int | None = None, *, first: int = 0) -> ClassAnswers:
        self.tried.append(examples)
        labels = self.task.encode(examples).labels
        logits = np.zeros((len(examples), 2), dtype=np.float32)
        logits[np.arange(len(examples)), labels] = self.margins_of(examples)
        return ClassAnswers(logits, labels)

    @property
    def opened(self) -> OpenModel:
        return cast(OpenModel, SimpleNamespace(name="rule", weights_sha256="", module=nn.Linear(1, 1), answers=self))


def without_time(result: CounterexampleSearch) -> CounterexampleSearch:
    return dataclasses.replace(result, seconds=0.0)


# --- what is planted is found -----------------------------------------------------------------------------------------


class NoFarJumps(OrderModel):
    """Calls sequences unsorted if their last number is far above all others, which are alike."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        lengths = visible.sum(dim=1, keepdim=True)
        last = ids.gather(1, lengths - 1)[:, 0]
        before = ids.gather(1, lengths - 2)[:, 0]
        is_odd = (before - ids[:, 0] < 8) & (last - before > 15)
        return super().is_sorted(ids, visible) & ~is_odd


class LostChains(SumModel):
    """Loses a carry that runs through more than one column."""

    def digits(self, source: Tensor) -> Tensor:
        digits, n = super().digits(source), (source.shape[1] - 1) // 2
        low = source[:, n - 1] + source[:, 2 * n] > 9
        runs = low & (source[:, n - 2] + source[:, 2 * n - 1] == 9)
        return torch.where(runs[:, None] & (torch.arange(n + 1) == 0), 0, digits)


def test_a_classifier_that_errs_on_a_pattern_is_refuted_by_its_own_answers() -> None:
    model = sorter(NoFarJumps)
    found = search(model, most_tried=1500)
    assert (found.verdict, found.noun, found.plural) == ("refuted", "sequence", "sequences")
    assert 0 < len(found.wrong) <= counterexamples.ENOUGH
    for answer in found.wrong:
        numbers = [int(word) for word in answer.example.split()]
        assert 8 <= len(numbers) <= 16
        assert answer.right == ("sorted" if numbers == sorted(numbers) else "unsorted") != answer.predicted
        assert model.predict(answer.example).predicted == answer.predicted
    lengths = [len(answer.example.split()) for answer in found.wrong]
    assert lengths == sorted(lengths)


def test_an_adder_that_loses_long_chains_is_refuted_by_decoded_answers() -> None:
    model = opened(type("Lossy", (PlantedAdder,), {"model_class": LostChains}))
    found = search(model, most_tried=600)
    assert found.verdict == "refuted"
    assert found.plural == "sums"
    for answer in found.wrong:
        a, b = map(int, answer.example.split("+"))
        assert int(answer.right) == a + b != int(answer.predicted)
        assert model.predict(answer.example).predicted == answer.predicted


RARE = (13, 29, 47, 71, 88)


def test_climbing_finds_what_neither_patterns_nor_draws_show() -> None:
    """The margin falls with each of five numbers that a sequence contains, and is negative with all five."""
    task = Sortedness()

    def margins(examples: Examples) -> Any:
        return 9 - 2 * sum((examples == number).any(axis=1) for number in RARE)

    rng = np.random.default_rng(0)
    assert (margins(task.sample(rng, 6000)) > 0).all()
    assert (margins(task.hard_examples(rng, 6000)) > 0).all()
    found = search(Classifier(task, margins).opened, most_tried=6000, enough=3)
    assert found.verdict == "refuted"
    assert found.least_margin == -1
    assert all(set(map(str, RARE)) <= set(answer.example.split()) for answer in found.wrong)


def test_answers_that_only_decoding_gets_wrong_are_found() -> None:
    class Mute(PlantedAdder):
        def generate(self, model: nn.Module, questions: Any) -> list[str]:
            return ["0" for _ in questions]

    found = search(opened(Mute), most_tried=300, enough=5)
    assert (found.verdict, len(found.wrong)) == ("refuted", 5)
    assert found.least_margin is not None
    assert found.least_margin > 0, "one forward pass is right"


def test_a_wrong_answer_that_the_model_does_not_give_alone_is_none() -> None:
    classifier = Classifier(Sortedness(), lambda examples: np.full(len(examples), 1 if len(examples) == 1 else -1))
    found = search(classifier.opened, most_tried=500)
    assert (found.verdict, found.least_margin) == ("not refuted", -1)


# --- nothing is found in models that are right ------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", [PlantedAdder, PlantedSorter])
def test_models_that_are_right_are_not_refuted(adapter: type[Adapter]) -> None:
    found = search(opened(adapter), most_tried=1000)
    assert (found.verdict, found.wrong, found.n_tried) == ("not refuted", (), 1000)
    assert found.n_families > 0


def test_the_packaged_adder_is_not_refuted() -> None:
    """It is right on all 810,000 sums (tests/analysis/test_exhaustive_check.py)."""
    found = search(open_model("sample:addition"), most_tried=1024)
    assert (found.verdict, found.n_tried) == ("not refuted", 1024)
    assert found.least_margin is not None
    assert found.least_margin > 9


# --- budgets ----------------------------------------------------------------------------------------------------------


def sure(examples: Examples) -> Any:
    return np.full(len(examples), 5.0)


def test_the_same_seed_tries_the_same_examples_each_once() -> None:
    runs = []
    for seed in (0, 0, 1):
        classifier = Classifier(Sortedness(), lambda examples: examples.max(axis=1) - 20)
        runs.append((without_time(search(classifier.opened, most_tried=3000, seed=seed, enough=9)), classifier.tried))
    (one, tried), (again, tried_again), (other, _) = runs
    assert one == again != other
    assert all(np.array_equal(a, b) for a, b in zip(tried, tried_again, strict=True))
    classifier = Classifier(Sortedness(), sure)
    assert search(classifier.opened, most_tried=3000).n_tried == 3000
    rows = [row.tobytes() for block in classifier.tried[1:] for row in block]  # the first block is asked about twice
    assert len(set(rows)) == len(rows) == 3000


def test_a_small_domain_is_tried_as_a_whole_and_then_the_search_ends() -> None:
    settings = {"digits": 1, "n_validation": 5, "n_test": 5}
    found = search(opened(type("Small", (PlantedAdder,), {"settings": settings})), most_tried=100_000)
    assert (found.verdict, found.n_tried) == ("not refuted", 100)


def test_time_ends_the_search_after_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("headcount.analysis.counterexamples.time.perf_counter", lambda: float(next(ticks)))
    told = list[tuple[int, int]]()
    found = search(
        Classifier(Sortedness(), sure).opened, seconds=60.0, progress=lambda done, total: told.append((done, total))
    )
    assert found.verdict == "not refuted"
    assert found.n_tried >= 256
    assert found.seconds >= 60
    assert {total for _, total in told} == {60}
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_the_search_stops_when_it_has_enough() -> None:
    found = search(Classifier(Sortedness(), lambda examples: np.full(len(examples), -1.0)).opened, most_tried=5000)
    assert (len(found.wrong), found.stopped_at) == (20, 20)
    assert found.n_tried <= 256


@pytest.mark.parametrize("budget", [{}, {"seconds": 0}, {"most_tried": -1}, {"seconds": float("nan")}])
def test_a_search_needs_a_budget(budget: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"needs a limit|must be above 0"):
        search(Classifier(Sortedness(), sure).opened, **budget)


# --- models and tasks that cannot be searched -------------------------------------------------------------------------


def test_a_task_without_patterns_and_changes_is_searched_by_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hard_examples", "mutate"):
        monkeypatch.setattr(Sortedness, name, lambda *args: None)
    task = Sortedness(SortednessConfig(n_test=20, n_validation=20))
    assert not can_be_searched(task)
    found = search(Classifier(task, lambda examples: examples[:, 0] - 1).opened, most_tried=2000)
    assert (found.verdict, found.n_families) == ("refuted", 0)


def test_which_tasks_can_be_searched() -> None:
    assert can_be_searched(Addition())
    assert can_be_searched(Sortedness())
    assert not can_be_searched(OwnSequences([("a", "b")]))


def test_a_model_that_does_not_decode_is_told_so() -> None:
    with pytest.raises(InputError, match=r"has no generate\(\)"):
        search(opened(type("Silent", (PlantedAdder,), {"generate": Adapter.generate})), most_tried=300)


def test_logits_that_are_no_numbers_are_no_wrong_answers() -> None:
    with pytest.raises(CheckFailed, match="NaN"):
        search(Classifier(Sortedness(), lambda examples: np.full(len(examples), np.nan)).opened, most_tried=300)


# --- the result -------------------------------------------------------------------------------------------------------


def test_a_result_round_trips_and_is_checked() -> None:
    found = search(sorter(NoFarJumps), most_tried=600, why_not_proved="no exact decision is known")
    assert CounterexampleSearch.from_json(found.to_json()) == found
    for changes, what in (
        ({"verdict": "not refuted"}, "verdict"),
        ({"wrong": ()}, "verdict"),
        ({"wrong": (found.wrong[0], found.wrong[0])}, "differ from each other"),
        ({"n_tried": 1}, "the value of n_tried"),
        ({"n_families": 10**6}, "the value of n_tried"),
        ({"stopped_at": 1}, "the value of stopped_at"),
    ):
        with pytest.raises(InputError, match=what):
            CounterexampleSearch.from_json(dataclasses.replace(found, **cast(Any, changes)).to_json())
