"""Models that look at something else than order, planted; and models that are merely weak."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from planted import (
    LeastFirst,
    OrderModel,
    PlainAdder,
    PlantedAdder,
    PlantedSorter,
    SumModel,
    look,
    look_at,
    observed,
)
from torch import Tensor, nn

import headcount
from headcount import Adapter
from headcount.auditing.audit import checks_named, run_checks
from headcount.auditing.audited_model import audited_model
from headcount.auditing.check import EXPLAINED, FAIL, NOT_APPLICABLE, PASS, WARN
from headcount.auditing.checks.surface_cues import Rule
from headcount.experiments.models import RunModel

pytestmark = pytest.mark.slow  # seconds together


def sorter(model: type[nn.Module]) -> type[PlantedSorter]:
    return type(model.__name__, (PlantedSorter,), {"model_class": model})


def by_chance(ids: Tensor, share: float) -> Tensor:
    """[row]: the same for the same numbers, and of no other meaning."""
    return ((ids + 1).double() * torch.arange(1, ids.shape[1] + 1) ** 2 * 0.7548776662).sum(dim=1) % 1 < share


# --- minimal pairs ----------------------------------------------------------------------------------------------------


class NearItsPlace(OrderModel):
    """As in one report: is every value about where it would be in order?"""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        n = visible.sum(dim=1, keepdim=True)
        expected = 100 * (torch.arange(ids.shape[1]) + 0.5) / n
        return ((ids - expected).abs() * visible).sum(dim=1) / n[:, 0] < 20


class LargeSteps(OrderModel):
    """A step down of a few is overlooked."""

    least = 4

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return (ids.masked_fill(~visible, 100).diff(dim=1) >= -self.least).all(dim=1)


class AlmostAllSteps(LargeSteps):
    least = 1


class Unsorted(OrderModel):
    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return torch.zeros(len(ids), dtype=torch.bool)


class SortedOnly(OrderModel):
    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return torch.ones(len(ids), dtype=torch.bool)


def test_values_near_their_places_pass_for_sorted() -> None:
    found = look("minimal-pairs", sorter(NearItsPlace))
    assert found.verdict == FAIL
    assert float(found.evidence["adjacent"] or 0) < 0.1 < 0.9 < float(found.evidence["shuffle"] or 0)
    assert "of 200 that differ from sorted ones in one place (adjacent), and " in found.finding


def test_large_steps_alone_are_found() -> None:
    class OnlyBigSteps(LargeSteps):
        least = 30

    found = look("minimal-pairs", sorter(OnlyBigSteps))
    assert found.verdict == FAIL
    assert float(found.evidence["adjacent"] or 0) < 0.03 < 0.9 < float(found.evidence["shuffle"] or 0)


def test_some_swaps_that_are_overlooked_are_a_warning_and_few_are_none() -> None:
    assert look("minimal-pairs", sorter(LargeSteps)).verdict == WARN
    assert look("minimal-pairs", sorter(AlmostAllSteps)).verdict == PASS


@pytest.mark.parametrize("constant", [Unsorted, SortedOnly])
def test_one_answer_to_everything_is_another_fault(constant: type[OrderModel]) -> None:
    assert look("minimal-pairs", sorter(constant)).verdict == PASS
    assert look("surface-cues", sorter(constant)).verdict == PASS


# --- surface cues -----------------------------------------------------------------------------------------------------


class Cue(OrderModel):
    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return self.cue(ids.masked_fill(~visible, 0), visible.sum(dim=1))

    def cue(self, numbers: Tensor, lengths: Tensor) -> Tensor:
        raise NotImplementedError


class ByLength(Cue):
    def cue(self, numbers: Tensor, lengths: Tensor) -> Tensor:
        return lengths >= 12


class BySum(Cue):
    def cue(self, numbers: Tensor, lengths: Tensor) -> Tensor:
        return numbers.sum(dim=1) < 600


class ByFirst(Cue):
    def cue(self, numbers: Tensor, lengths: Tensor) -> Tensor:
        return numbers[:, 0] < 7


class ByLast(Cue):
    def cue(self, numbers: Tensor, lengths: Tensor) -> Tensor:
        return numbers.gather(1, lengths[:, None] - 1)[:, 0] >= 93


class ByRange(Cue):
    def cue(self, numbers: Tensor, lengths: Tensor) -> Tensor:
        least = numbers.masked_fill(torch.arange(numbers.shape[1]) >= lengths[:, None], 100).amin(dim=1)
        return numbers.amax(dim=1) - least >= 85


class MostlyBySum(Cue):
    def cue(self, numbers: Tensor, lengths: Tensor) -> Tensor:
        return (numbers.sum(dim=1) < 600) ^ by_chance(numbers, 0.08)


class Weak(OrderModel):
    """Right in nine of ten cases, whatever the numbers are."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return super().is_sorted(ids, visible) ^ by_chance(ids.masked_fill(~visible, -1), 0.1)


CUES = {"length": ByLength, "sum": BySum, "first number": ByFirst, "last number": ByLast, "range": ByRange}


@pytest.mark.parametrize(("name", "model"), CUES.items(), ids=list(CUES))
def test_each_cue_is_named(name: str, model: type[OrderModel]) -> None:
    found = look("surface-cues", sorter(model))
    assert (found.verdict, found.evidence["cue"]) == (FAIL, name)
    assert float(found.evidence["right"] or 0) < 0.85
    assert f"are those that the {name} alone predicts" in found.finding


def test_a_cue_explains_poor_accuracy_and_predicts_it() -> None:
    names = ("no-better-than-constant", "guessing-loss", "surface-cues")
    found = run_checks(observed(sorter(BySum)), checks_named(names))
    assert [each.id for each in found.of(FAIL)] == ["HC602"]
    assert [each.id for each in found.of(EXPLAINED)] == ["HC303", "HC304"]
    assert found.predicted == pytest.approx(found.measured, abs=0.02)


def test_a_cue_that_explains_most_is_a_warning() -> None:
    found = look("surface-cues", sorter(MostlyBySum))
    assert (found.verdict, found.evidence["cue"]) == (WARN, "sum")


def test_a_weak_model_is_no_function_of_a_cue() -> None:
    found = look("surface-cues", sorter(Weak))
    assert found.verdict == PASS
    assert "no cue explains" in found.finding


def test_few_examples_show_no_cue() -> None:
    assert look("surface-cues", sorter(BySum), n=20).verdict == NOT_APPLICABLE


def test_a_rule_is_the_best_of_both_directions() -> None:
    cue = np.array([1.0, 2.0, 3.0, 4.0, 4.0])
    assert Rule.fitted(cue, cue >= 3) == Rule(3.0, is_above=True)
    assert Rule.fitted(cue, cue < 4) == Rule(4.0, is_above=False)
    for constant in (np.zeros(5, dtype=bool), np.ones(5, dtype=bool)):
        assert (Rule.fitted(cue, constant)(cue) == constant).all()


# --- easy counterexamples ---------------------------------------------------------------------------------------------


class NoFarJumps(OrderModel):
    """Calls a sequence unsorted if its last number is far above all others, which are close together."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        numbers = ids.masked_fill(~visible, 0).sort(dim=1).values
        least = ids.masked_fill(~visible, 100).amin(dim=1)
        is_odd = (numbers[:, -2] - least < 8) & (numbers[:, -1] - numbers[:, -2] > 15)
        return super().is_sorted(ids, visible) & ~is_odd


class LostChain(SumModel):
    """Wrong on sums whose carry runs from the 1s through a column that adds to 9 to the 1000s."""

    def digits(self, source: Tensor) -> Tensor:
        tens, ones = source[:, 1] + source[:, 5], source[:, 2] + source[:, 6]
        is_chain = (source[:, 0] + source[:, 4] == 9) & (tens == 9) & (ones > 9)
        return torch.where(is_chain[:, None], 0, super().digits(source))


def wrong_adder(**changes: object) -> type[PlantedAdder]:
    settings = {**PlantedAdder.settings, "digits": 3}
    return type("Lossy", (PlantedAdder,), {"model_class": LostChain, "settings": settings, **changes})


def test_a_pattern_that_no_draw_shows_is_a_warning_with_the_shortest_examples() -> None:
    found = look("easy-counterexamples", sorter(NoFarJumps))
    assert (found.verdict, found.evidence["accuracy"]) == (WARN, 1.0)
    assert found.finding.startswith("the model gets 400 of 400 random sequences right, but a search finds ")
    shown = [text.partition(" (") for text in found.finding.partition("same range: ")[2].split("; ")]
    assert len(shown) == 3
    for example, _, verdict in shown:
        numbers = [int(word) for word in example.split()]
        assert numbers == sorted(numbers)
        assert verdict == "predicted unsorted, right sorted)"
    assert [len(example.split()) for example, _, _ in shown] == sorted(len(example.split()) for example, _, _ in shown)
    assert "headcount verify" in found.fix


def test_sums_that_no_draw_shows_are_a_warning() -> None:
    found = look("easy-counterexamples", wrong_adder())
    assert found.verdict == WARN
    assert "random sums right, but a search finds 20 wrong answers" in found.finding


@pytest.mark.parametrize(("claimed", "verdict"), [(None, WARN), (0.999, WARN), (1.0, FAIL), (1, FAIL)])
def test_it_fails_only_where_the_author_claims_everything(claimed: float | None, verdict: str) -> None:
    found = look("easy-counterexamples", type("Claims", (sorter(NoFarJumps),), {"claimed": claimed}))
    assert found.verdict == verdict
    assert ("although the author claims 100 %" in found.finding) is (verdict == FAIL)


def test_a_claim_of_everything_is_the_cause_if_nothing_else_is_wrong() -> None:
    found = run_checks(observed(type("Claims", (sorter(NoFarJumps),), {"claimed": 1.0})))
    assert found.causes == ("HC603",)
    assert "20 wrong answers" in found.summary


def test_a_low_accuracy_needs_no_search_and_some_models_cannot_be_searched() -> None:
    low = look("easy-counterexamples", sorter(Weak))
    assert low.verdict == NOT_APPLICABLE
    assert "shows many errors" in low.finding
    mute = look("easy-counterexamples", type("Mute", (PlantedAdder,), {"generate": Adapter.generate}))
    assert mute.verdict == NOT_APPLICABLE


def test_what_minimal_pairs_explain_is_not_told_twice() -> None:
    class ByShuffles(PlantedSorter):
        model_class, settings = NearItsPlace, {**PlantedSorter.settings, "negatives": "shuffle"}

    found = run_checks(observed(ByShuffles), checks_named(["minimal-pairs", "easy-counterexamples"]))
    verdicts = {each.id: (each.verdict, each.explained_by) for each in found.verdicts}
    assert verdicts == {"HC601": (FAIL, ""), "HC603": (EXPLAINED, "HC601")}


def test_large_models_get_fewer_examples() -> None:
    class Large(OrderModel):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(1000, 1000)

    small, large = (look("easy-counterexamples", sorter(each)).evidence["n_tried"] for each in (OrderModel, Large))
    assert 512 < int(large or 0) < 2000 < int(small or 0) == 6000


# --- sound models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", [PlantedSorter, PlantedAdder, PlainAdder, LeastFirst])
def test_no_counterexample_is_found_in_sound_models(adapter: type[Adapter]) -> None:
    found = look("easy-counterexamples", adapter)
    assert found.verdict == PASS
    assert "finds no wrong answer in" in found.finding


@pytest.mark.parametrize("check", ["minimal-pairs", "surface-cues"])
def test_nothing_is_found_in_sound_models(check: str) -> None:
    assert look(check, PlantedSorter).verdict == PASS
    assert look_at(check, audited_model(RunModel.of(headcount.load("sample:sortedness")))).verdict == PASS
    assert look(check, PlantedAdder).verdict == NOT_APPLICABLE
