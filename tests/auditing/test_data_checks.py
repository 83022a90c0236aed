"""Test sets that overlap with training, repeat themselves, are out of balance or too small; and sound ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from planted import OrderModel, PlantedAdder, PlantedSorter, look, look_at, observed
from torch import Tensor, nn

import headcount
from headcount.auditing.audited_model import AuditedModel, audited_model
from headcount.experiments.models import RunModel

pytestmark = pytest.mark.slow  # seconds together


def sample(name: str) -> AuditedModel:
    return audited_model(RunModel.of(headcount.load(f"sample:{name}")))


SOUND = {
    "adder": lambda: observed(PlantedAdder),
    "sorter": lambda: observed(PlantedSorter),
    "sample adder": lambda: sample("addition"),
    "sample sorter": lambda: sample("sortedness"),
}


@pytest.mark.parametrize("check", ["shared-examples", "duplicates", "imbalance", "small-test-set"])
@pytest.mark.parametrize("model", SOUND)
def test_nothing_is_said_of_sound_data(check: str, model: str) -> None:
    assert look_at(check, SOUND[model]()).verdict == "pass"


# --- HC401 -----------------------------------------------------------------------------------------------------------


class SplitsOverlap(PlantedAdder):
    """As the newer reports drew their data: three digits, 10,000 and 2,000."""

    task, settings = "addition", {"n_train": 10_000, "n_validation": 10, "n_test": 2000, "splits_may_overlap": True}


class FewSums(PlantedAdder):
    """The same with two digits: a quarter of the test set is known."""

    task, settings = (
        "addition",
        {"digits": 2, "n_train": 1000, "n_validation": 10, "n_test": 400, "splits_may_overlap": True},
    )


class FixedSet(PlantedAdder):
    task, settings = "addition", {"digits": 2, "n_train": 1000, "n_validation": 10, "n_test": 400}


class KnowsTrainingSums(FewSums):
    """Wrong on whatever was not in its training set."""

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        task = observed(FewSums).task
        known = {task.show(each) for each in task.split("train")}
        right = super().generate(model, questions)
        return [answer if question in known else "000" for question, answer in zip(questions, right, strict=True)]


def test_few_examples_shared_with_training_are_a_warning() -> None:
    found = look("shared-examples", SplitsOverlap)
    assert found.verdict == "warn"
    assert 10 < int(found.evidence["same"] or 0) < 50
    assert 10 < int(found.evidence["swapped"] or 0) < 50
    assert "more with operands swapped: accuracy is 100 % on all test examples" in found.finding
    assert "the author's training data are not known" in found.finding


def test_many_are_a_failure_with_the_figure_without_them() -> None:
    found = look("shared-examples", KnowsTrainingSums)
    assert found.verdict == "fail"
    assert float(found.evidence["share"] or 0) == pytest.approx(0.23, abs=0.05)
    assert ", and 0 % without these (3" in found.finding


def test_a_fixed_set_that_was_cut_from_the_same_sums_shares_none() -> None:
    assert look("shared-examples", FixedSet).verdict == "pass"


def test_operands_are_swapped_for_every_test_example() -> None:
    of = observed(PlantedAdder)
    of.task.splits["train"] = of.examples[:, ::-1]
    found = look_at("shared-examples", of)
    palindromes = int((of.examples[:, 0] == of.examples[:, 1]).sum())
    assert (found.verdict, found.evidence["same"], found.evidence["swapped"]) == (
        "fail",
        palindromes,
        400 - palindromes,
    )
    assert "no test example is new" in found.finding


@pytest.mark.parametrize("adapter", [PlantedAdder, PlantedSorter])
def test_fresh_examples_that_are_not_kept_apart(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    of = observed(adapter)
    draw = of.task.sample
    with_test = lambda rng, n: np.concatenate([draw(rng, n - 30), of.examples[::20], of.examples[:10]])  # noqa: E731
    monkeypatch.setattr(of.task, "sample", with_test)
    found = look_at("shared-examples", of)
    assert (found.verdict, found.evidence["same"]) == ("fail", 29)
    assert "29 of 400 test examples are among 20,000 examples drawn as in training" in found.finding


# --- HC402 -----------------------------------------------------------------------------------------------------------


def test_the_same_sum_twice_and_the_swap_of_another() -> None:
    of = observed(PlantedAdder)
    before = len(np.unique(np.sort(of.examples, axis=1), axis=0))
    different = of.examples[of.examples[:, 0] != of.examples[:, 1]]
    of.examples = np.concatenate([of.examples, of.examples[:3], different[:2, ::-1]])
    found = look_at("duplicates", of)
    assert (found.verdict, found.evidence["again"], found.evidence["swapped"]) == ("warn", 3, 2)
    assert before == 400
    assert "only 400 of 405 test examples are distinct" in found.finding


def test_a_sequence_and_its_reverse_are_two_examples() -> None:
    of = observed(PlantedSorter)
    full = of.examples[of.task.lengths(of.examples) == 16]
    of.examples = np.concatenate([full, full[:, ::-1]])
    assert look_at("duplicates", of).verdict == "pass"
    of.examples = np.concatenate([of.examples, of.examples[:1]])
    assert look_at("duplicates", of).evidence["again"] == 1


def test_pairs_are_pairs_only_where_their_order_does_not_matter() -> None:
    of = observed(PlantedSorter)
    of.examples = np.array([[1, 2], [2, 1]])
    assert look_at("duplicates", of).verdict == "pass"


# --- HC403 -----------------------------------------------------------------------------------------------------------


def with_test_set(of: AuditedModel, examples: Any) -> AuditedModel:
    of.task.splits["test"] = of.examples = examples
    return of


@pytest.mark.parametrize(("unsorted", "verdict"), [(200, "pass"), (120, "warn"), (165, "pass"), (190, "pass")])
def test_classes_out_of_balance(unsorted: int, verdict: str) -> None:
    of = observed(PlantedSorter)  # unsorted ones come first
    found = look_at("imbalance", with_test_set(of, of.examples[200 - unsorted :]))
    assert found.verdict == verdict
    if verdict == "warn":
        share = 200 / (200 + unsorted)
        assert found.evidence["share"] == pytest.approx(share)
        assert f"a model that always gives this answer reaches {100 * share:.1f} %" in found.finding


@pytest.mark.parametrize(("first", "last", "verdict"), [(190, 225, "warn"), (194, 208, "pass")])
def test_a_few_examples_may_be_out_of_balance_by_luck(first: int, last: int, verdict: str) -> None:
    of = observed(PlantedSorter)
    found = look_at("imbalance", with_test_set(of, of.examples[first:last]))  # 25 of 35 sorted, and 8 of 14
    assert (found.verdict, found.evidence["n"]) == (verdict, last - first)


def test_the_first_examples_of_a_balanced_set_are_no_set_of_their_own() -> None:
    assert look("imbalance", PlantedSorter, n=60).verdict == "pass"


def test_one_answer_to_a_third_of_all_sums() -> None:
    of = observed(PlantedAdder)
    of = with_test_set(
        of, np.concatenate([of.examples[:200], np.stack([np.arange(10, 60), 120 - np.arange(10, 60)], 1)])
    )
    assert look_at("imbalance", of).verdict == "pass"  # 50 of 250, or a few more: not shown to be above a fifth
    of = with_test_set(of, of.examples[150:])
    found = look_at("imbalance", of)
    assert found.verdict == "warn"
    assert found.finding.startswith("one answer, 120, is right on 5")


# --- HC404 -----------------------------------------------------------------------------------------------------------


class WrongOnTwelve(PlantedAdder):
    """Right on 388 of 400, if the rest of the code is."""

    wrong = 12

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        known = {observed(PlantedAdder).task.show(each) for each in observed(PlantedAdder).examples[: self.wrong]}
        right = super().generate(model, questions)
        return ["000" if question in known else answer for question, answer in zip(questions, right, strict=True)]


class ClaimsALittleMore(WrongOnTwelve):
    claimed = 0.98


class ClaimsTheSame(WrongOnTwelve):
    claimed = 0.968


class ClaimsMuchMore(WrongOnTwelve):
    claimed = 1.0


class WrongOrder(OrderModel):
    """Wrong on whatever begins with a 0."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return super().is_sorted(ids, visible) ^ (ids[:, 0] < 1)


class AlmostSorter(PlantedSorter):
    model_class = WrongOrder


def test_a_claim_that_so_few_examples_cannot_tell_from_what_is_measured() -> None:
    found = look("small-test-set", ClaimsALittleMore)
    assert (found.verdict, found.evidence["measured"]) == ("warn", 0.97)
    assert found.evidence["needed"] == 1873
    assert "the measured accuracy is 97.00 % of 400 and the claimed one 98.00 %, 1.0 points apart" in found.finding
    assert "about 1,873 examples would tell them apart" in found.finding


@pytest.mark.parametrize("adapter", [ClaimsTheSame, ClaimsMuchMore, WrongOnTwelve])
def test_claims_that_are_confirmed_or_refuted_need_no_more_examples(adapter: type[PlantedAdder]) -> None:
    assert look("small-test-set", adapter).verdict == "pass"


@pytest.mark.parametrize(("more", "verdict"), [(0.007, "warn"), (0.2, "pass")])
def test_a_claim_about_classes_is_compared_too(more: float, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = float(observed(AlmostSorter).right.mean())
    assert 0.9 < right < 0.99
    monkeypatch.setattr(AlmostSorter, "claimed", right + more)
    assert look("small-test-set", AlmostSorter).verdict == verdict


@pytest.mark.parametrize("adapter", [PlantedAdder, PlantedSorter])
def test_less_than_a_hundred_examples_are_few_for_anything(adapter: Any) -> None:
    found = look("small-test-set", adapter, n=40)
    assert (found.verdict, found.evidence["n"]) == ("warn", 40)
    assert "± 4.4 points" in found.finding
    assert look("small-test-set", adapter, n=100).verdict == "pass"
