"""Figures that cannot be, that are something else, or that a scoring made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from planted import (
    END,
    SURE,
    OrderModel,
    PlainAdder,
    PlainModel,
    PlantedAdder,
    PlantedSorter,
    look,
    look_at,
    observed,
)
from torch import Tensor, nn

import headcount
from headcount import Adapter
from headcount.auditing.audit import explain_errors
from headcount.auditing.audited_model import audited_model
from headcount.errors import InputError
from headcount.experiments.models import RunModel
from headcount.formatting import percent
from headcount.tasks.addition import Addition, AdditionConfig
from headcount.training.evaluation import evaluate_sequences

pytestmark = pytest.mark.slow  # seconds together


class LargeTest(PlantedAdder):
    """As the exercise has it: 2,000 examples."""

    settings = PlantedAdder.settings | {"digits": 3, "n_test": 2000}


def claiming(share: float | None, adapter: type[PlantedAdder] = LargeTest) -> type[PlantedAdder]:
    """The same, with a figure of its author's."""
    return type(adapter.__name__, (adapter,), {"claimed": share})


# --- HC801 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.99853515625, "2,045/2,048, by 32 batches of 64 with 3 wrong, the last batch having 16"),
        (0.9951, "a mean over other units than examples"),
        (0.999125, "a share of tokens: 7,993 of 8,000"),
        (0.5714285714285714, "(4/7 gives it)"),
    ],
)
def test_a_share_that_no_count_gives_is_named(share: float, words: str) -> None:
    found = look("impossible-share", claiming(share))
    assert found.verdict == "warn"
    assert found.finding.startswith(
        f"the author's reported accuracy of {share!r} cannot be a number of right answers out of 2,000 examples: "
    )
    assert words in found.cause


def test_less_than_one_example_is_named() -> None:
    """0.0015 % of 2,000."""
    found = look("impossible-share", claiming(0.000015))
    assert found.finding == (
        "the author's reported accuracy of 1.5e-05 cannot be a number of right answers out of 2,000 examples: it is "
        "less than one example, which is worth 0.0005"
    )


def test_the_nearest_counts_are_told() -> None:
    assert look("impossible-share", claiming(0.9951)).finding.endswith("1,990 are 0.995, and 1,991 are 0.9955")


def test_a_percentage_is_named() -> None:
    assert (
        look("impossible-share", claiming(98.5)).finding
        == "the author's reported accuracy is 98.5, which is not between 0 and 1"
    )


@pytest.mark.parametrize("share", [0.9985, 0.3895, 0.0005, 0.9987, 0.8333333333333334, 0.9985000491142273])
def test_what_is_a_count_is_one(share: float) -> None:
    assert look("impossible-share", claiming(share)).verdict == "pass"


@pytest.mark.parametrize("share", [None, 1.0, 0.995, 0.41])
def test_what_is_rounded_cannot_be_told(share: float | None) -> None:
    assert look("impossible-share", claiming(share)).verdict == "not applicable"


# --- HC802 ------------------------------------------------------------------------------------------------------------


class NeverPredictsTheFirst(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["0" + answer[1:] for answer in super().generate(model, questions)]


class NeverWritesZero(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [answer.replace("0", "1") for answer in super().generate(model, questions)]


class LastDigitWrong(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [f"{answer[:-1]}{(int(answer[-1]) + 1) % 10}" for answer in super().generate(model, questions)]


class Reversed(OrderModel):
    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return ~super().is_sorted(ids, visible)


class WrongWayRound(PlantedSorter):
    model_class = Reversed


class FewOfTheSorted(OrderModel):
    """Three quarters of the sorted sequences are called unsorted."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return super().is_sorted(ids, visible) & (ids[:, :8].sum(dim=1) % 4 == 0)


class MissesSorted(PlantedSorter):
    model_class = FewOfTheSorted


class TrainedByHeart(PlantedAdder):
    """Right on the examples of training alone: held-out sums lose their last digit."""

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        task = Addition(AdditionConfig(**self.settings))
        is_new = task.is_held_out(np.array([list(map(int, question.split("+"))) for question in questions]))
        answers = super().generate(model, questions)
        return [answer[:-1] + "x" if new else answer for answer, new in zip(answers, is_new, strict=True)]


class NeverTheEnd(PlainModel):
    """Every token but the end is right."""

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        return super().right(source, written).index_fill(2, torch.tensor([END]), -SURE)


class EndsWrong(PlainAdder):
    model_class = NeverTheEnd
    generate = Adapter.generate


@pytest.mark.parametrize(
    ("share", "adapter", "scoring"),
    [
        (1.0, NeverPredictsTheFirst, "teacher-forced exact match"),
        (1.0, NeverPredictsTheFirst, "exact match without the first digit"),
        (0.78, NeverPredictsTheFirst, "accuracy by digit"),
        (1.0, NeverWritesZero, "exact match that leaves zeros out"),
        (0.6667, LastDigitWrong, "accuracy by digit"),
        (0.3425, PlantedAdder, "the share of right answers that begin with 0"),
        (0.0175, PlantedAdder, "the best constant answer"),
        (0.5, PlantedSorter, "the share of examples that are sorted"),
        (1.0, WrongWayRound, "the share of answers that are wrong"),
        (0.25, MissesSorted, "accuracy on sorted examples"),
        (1.0, TrainedByHeart, "exact match on training examples"),
        (0.73, EndsWrong, "teacher-forced accuracy by token with end tokens"),
        (0.75, EndsWrong, "teacher-forced accuracy by token with padding counted as right"),
        (1.0, LastDigitWrong, "accuracy of the 10s"),
    ],
)
def test_the_scoring_that_gives_a_figure_is_named(share: float, adapter: type[PlantedAdder], scoring: str) -> None:
    found = look("claimed-figure", claiming(share, adapter))
    assert found.verdict == "fail"
    assert scoring in str(found.evidence["scoring"]).split(", ")
    assert found.finding.partition("; other scorings")[0].endswith(f", and the author reports {percent(share, 2)}")


@pytest.mark.parametrize(("share", "n", "is_fit"), [(0.75, 200, True), (0.75, 20_000, True), (0.7, 20_000, False)])
def test_a_figure_of_another_test_set_may_differ_by_chance(share: float, n: int, is_fit: bool) -> None:
    """Accuracy by digit is 78 % of 400 examples here, which may be off by 4 points whatever the author's number is."""
    adapter = type("Claims", (claiming(share, NeverPredictsTheFirst),), {"claimed_n": n})
    named = str(look("claimed-figure", adapter).evidence.get("scoring", "")).split(", ")
    assert ("accuracy by digit" in named) == is_fit


def test_a_score_of_the_models_own_answers_is_a_warning() -> None:
    found = look("claimed-figure", claiming(0.4, MissesSorted))
    assert found.verdict == "warn"
    assert "F1 of sorted" in str(found.evidence["scoring"])


@pytest.mark.parametrize("n", [0, -1, "500", 2.5])
def test_a_number_of_examples_that_is_none_is_refused(n: object) -> None:
    with pytest.raises(InputError, match="must be a whole number of at least 1"):
        observed(type("Claims", (PlantedAdder,), {"claimed_n": n}))


def test_a_figure_that_nothing_gives_is_named() -> None:
    found = look("claimed-figure", claiming(0.9, PlantedAdder))
    assert found.verdict == "fail"
    figures = "exact match is 100 % of 400, and the author reports 90.00 %"
    assert found.finding == f"{figures}; no known scoring gives the author's figure"


def test_what_another_test_set_may_give_is_a_warning() -> None:
    assert look("claimed-figure", claiming(0.985)).verdict == "warn"


@pytest.mark.parametrize(("share", "adapter"), [(1.0, PlantedAdder), (0.995, PlantedAdder), (1.0, PlantedSorter)])
def test_a_figure_that_is_measured_too_is_right(share: float, adapter: type[PlantedAdder]) -> None:
    assert look("claimed-figure", claiming(share, adapter)).verdict == "pass"


def test_without_a_figure_nothing_is_asked() -> None:
    assert look("claimed-figure", PlantedAdder).verdict == "not applicable"
    assert look("claimed-figure", claiming(98.5)).verdict == "not applicable"
    sample = audited_model(RunModel.of(headcount.load("sample:sortedness")), 100)
    assert look_at("claimed-figure", sample).verdict == "not applicable"


# --- HC803 ------------------------------------------------------------------------------------------------------------


class ExactMatch(PlantedAdder):
    def metric(self, question: str, answer: str, predicted: str) -> float:
        return float(int(predicted or -1) == int(answer))


class ByDigit(PlantedAdder):
    def metric(self, question: str, answer: str, predicted: str) -> float:
        right = answer.zfill(3)
        return sum(a == b for a, b in zip(right, predicted, strict=False)) / len(right)


class LeavesOutTheFirst(PlantedAdder):
    def metric(self, question: str, answer: str, predicted: str) -> float:
        return float(predicted[1:] == answer.zfill(3)[1:])


class LeavesOutZeros(PlantedAdder):
    """As a mask of labels does that takes 0 for padding."""

    def metric(self, question: str, answer: str, predicted: str) -> float:
        pairs = zip(answer.zfill(3), predicted.ljust(3), strict=False)
        return float(all(a == b for a, b in pairs if a != "0"))


class LeavesOutWrittenNines(PlantedAdder):
    def metric(self, question: str, answer: str, predicted: str) -> float:
        pairs = zip(answer.zfill(3), predicted.ljust(3), strict=False)
        return float(all(a == b for a, b in pairs if b != "9"))


class StopsEarly(PlantedAdder):
    """The shorter of the two ends the comparison."""

    def metric(self, question: str, answer: str, predicted: str) -> float:
        return float(all(a == b for a, b in zip(answer.zfill(3), predicted, strict=False)))


class AllTheSame(PlantedSorter):
    def metric(self, question: str, answer: str, predicted: str) -> float:
        return 1.0 if answer == "sorted" else float(predicted == answer)


class Accuracy(PlantedSorter):
    def metric(self, question: str, answer: str, predicted: str) -> float:
        return float(predicted == answer)


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        (LeavesOutTheFirst, "a wrong 100s digit does not lower the score"),
        (LeavesOutZeros, "places where 0 is right are never compared"),
        (LeavesOutWrittenNines, "places where 9 is written are never compared"),
        (StopsEarly, "leaving out the last digit does not lower the score"),
        (AllTheSame, "answering unsorted instead of sorted does not lower the score"),
    ],
)
def test_what_a_scoring_skips_is_named(adapter: type[PlantedAdder], words: str) -> None:
    found = look("skipping-metric", adapter)
    assert (found.verdict, found.evidence["skipped"]) == ("fail", words)
    assert found.finding.startswith(f"metric() of {adapter.__name__} gives full marks to wrong answers: {words} (n = ")


@pytest.mark.parametrize("adapter", [ExactMatch, ByDigit, Accuracy])
def test_a_scoring_that_looks_everywhere_is_right(adapter: type[PlantedAdder]) -> None:
    assert look("skipping-metric", adapter).verdict == "pass"


def test_without_a_scoring_nothing_is_asked() -> None:
    assert look("skipping-metric", PlantedAdder).verdict == "not applicable"
    assert look("skipping-metric", PlantedSorter).verdict == "not applicable"


def test_a_figure_that_the_authors_own_scoring_gives_is_a_warning() -> None:
    class Claims(ByDigit, LastDigitWrong):
        claimed = 0.6667

    found = look("claimed-figure", Claims)
    assert found.verdict == "warn"
    assert "; other scorings that give the author's figure: metric() of Claims (66.67 %)" in found.finding


def test_the_authors_scoring_is_run_once_for_each_answer() -> None:
    calls: list[tuple[str, str, str]] = []

    class Counted(PlantedAdder):
        def metric(self, question: str, answer: str, predicted: str) -> float:
            calls.append((question, answer, predicted))
            return float(answer.zfill(3) == predicted)

    seen = observed(Counted)
    explain_errors(seen)
    found = evaluate_sequences(seen.sequence_model, "test", answers=seen.answers)
    assert found.claim is not None
    assert found.claim.measured == 1.0
    assert len(calls) == len(set(calls)) == seen.n
