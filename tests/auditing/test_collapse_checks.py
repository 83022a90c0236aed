"""One answer to everything, and answers no better than that, planted and not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from planted import SURE, OrderModel, PlantedAdder, PlantedSorter, SumModel, look, look_at, observed
from torch import Tensor, nn

import headcount
from headcount import Adapter
from headcount.auditing.audit import Audit, checks_named, run_checks
from headcount.auditing.audited_model import AuditedModel, ConstantBaseline, audited_model
from headcount.auditing.check import EXPLAINED, FAIL, NOT_APPLICABLE, PASS, WARN, Finding
from headcount.auditing.checks.guessing_loss import entropy
from headcount.auditing.checks.one_answer_beyond import fresh_examples
from headcount.experiments.models import RunModel
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder
from headcount.runs.run import Run, build
from headcount.stats import Proportion

pytestmark = pytest.mark.slow  # seconds together

CHECKS = ("one-answer", "one-answer-beyond", "no-better-than-constant", "guessing-loss", "ignores-input")


def sorter(model: type[nn.Module]) -> type[PlantedSorter]:
    return type(model.__name__, (PlantedSorter,), {"model_class": model})


def untrained(task: str, **settings: object) -> AuditedModel:
    """A run of headcount's own before its first step."""
    config = RunConfig.build(task, n_validation=50, n_test=400, **settings)
    made = build(config)
    return audited_model(RunModel.of(Run("untrained", RunFolder(Path("nowhere")), config, *made, "0" * 64)))


def audited(adapter: type[Adapter]) -> Audit:
    """By these checks alone."""
    return run_checks(observed(adapter), checks_named(CHECKS))


# --- one answer -------------------------------------------------------------------------------------------------------


class AlwaysSorted(OrderModel):
    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return torch.ones(len(ids), dtype=torch.bool)


class HardlyEverSorted(OrderModel):
    """A handful of sequences get the other answer."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return (ids * visible).sum(dim=1) % 113 == 0


class OneSum(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["110" for _ in questions]


class NoAnswer(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["<eos>" for _ in questions]


class ManyKindsOfNoAnswer(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [f"{question}=" for question in questions]


class DoesNotDecode(PlantedAdder):
    generate = Adapter.generate


def test_one_class_for_everything_is_named_with_the_share_that_it_leaves() -> None:
    found = look("one-answer", sorter(AlwaysSorted))
    assert found.finding == "the model gives the answer sorted to 400 of 400 examples, and this answer is right for 200"
    assert (found.verdict, found.evidence["predicted"], found.evidence["measured"]) == (FAIL, 0.5, 0.5)


def test_one_class_explains_what_follows_from_it() -> None:
    found = {each.check: each for each in audited(sorter(AlwaysSorted)).verdicts}
    assert found["one-answer"].verdict == FAIL
    for check in ("no-better-than-constant", "guessing-loss", "one-answer-beyond"):
        assert (found[check].verdict, found[check].explained_by) == (EXPLAINED, "HC301"), check
    assert audited(sorter(AlwaysSorted)).summary.endswith(
        "this predicts an accuracy of 50.00 %, and 50.00 % is measured"
    )


def test_a_handful_of_other_answers_are_no_other_answer() -> None:
    found = look("one-answer", sorter(HardlyEverSorted))
    assert (found.verdict, found.evidence["answer"]) == (FAIL, "unsorted")
    assert 0.97 < float(found.evidence["answer_share"] or 0) < 1


def test_one_sum_for_everything() -> None:
    found = look("one-answer", OneSum)
    assert (found.verdict, found.evidence["answer"]) == (FAIL, "110")
    assert found.evidence["predicted"] == found.evidence["measured"]
    assert 0 < float(found.evidence["measured"] or 0) < 0.05


def test_one_text_that_is_no_answer() -> None:
    assert "the model gives the answer <eos> to 400 of 400 examples" in look("one-answer", NoAnswer).finding
    assert look("one-answer", ManyKindsOfNoAnswer).verdict == PASS


def test_one_answer_needs_answers_and_enough_of_them() -> None:
    assert look("one-answer", DoesNotDecode).verdict == NOT_APPLICABLE
    assert look("one-answer", OneSum, n=60).verdict == PASS


def test_a_run_that_was_never_trained_has_one_answer() -> None:
    seen = untrained("sortedness", d_model=16, n_heads=2, n_layers=1, d_ff=16)
    found = run_checks(seen, checks_named(CHECKS))
    assert found.of(FAIL)[0].id == "HC301"
    assert {each.id for each in found.of(EXPLAINED)} >= {"HC303", "HC304"}


# --- one answer beyond the range --------------------------------------------------------------------------------------


class UnsortedBeyond(OrderModel):
    """As sinusoidal positions did in one report: long sequences all get one answer."""

    most = 16

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return super().is_sorted(ids, visible) & (visible.sum(dim=1) <= self.most)


class UnsortedFarBeyond(UnsortedBeyond):
    most = 40


class SortedBeyond(OrderModel):
    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return super().is_sorted(ids, visible) | (visible.sum(dim=1) > 16)


class FindsShufflesBeyond(OrderModel):
    """Weak, but not one answer to everything."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return (ids.masked_fill(~visible, 100).diff(dim=1) >= -30).all(dim=1)


class FortyPositions(OrderModel):
    def __init__(self) -> None:
        super().__init__(n_positions=40)


class SixteenPositions(OrderModel):
    def __init__(self) -> None:
        super().__init__(n_positions=16)


def test_one_answer_beyond_the_range_is_a_warning_with_the_length_where_it_begins() -> None:
    found = look("one-answer-beyond", sorter(UnsortedBeyond))
    assert (found.verdict, found.evidence["begins_at"]) == (WARN, 32)
    assert "at lengths beyond those of training (8 to 16)" in found.finding
    assert "unsorted at 32, unsorted at 64, unsorted at 128" in found.finding
    assert look("one-answer-beyond", sorter(UnsortedFarBeyond)).evidence["lengths"] == "64, 128"
    assert "sorted at 32" in look("one-answer-beyond", sorter(SortedBeyond)).finding
    assert look("one-answer", sorter(UnsortedBeyond)).verdict == PASS


def test_what_finds_some_kinds_has_two_answers() -> None:
    assert look("one-answer-beyond", sorter(FindsShufflesBeyond)).verdict == PASS


def test_lengths_that_are_refused_are_named_and_do_not_count() -> None:
    found = look("one-answer-beyond", sorter(FortyPositions))
    assert found.verdict == PASS
    assert found.finding.endswith("the model refuses 64, 128")
    assert look("one-answer-beyond", sorter(SixteenPositions)).verdict == NOT_APPLICABLE


def test_fresh_examples_are_half_sorted_and_of_every_kind() -> None:
    task = headcount.load("sample:sortedness").task
    examples = fresh_examples(np.random.default_rng(0), task, 20)
    assert examples.shape == (200, 20)
    assert task.encode(examples).labels.mean() == 0.5  # type: ignore[attr-defined]


# --- no better than a constant ----------------------------------------------------------------------------------------


class Tosses(OrderModel):
    """By the parity of the sum: as good as a coin, and sure of it."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return (ids * visible).sum(dim=1) % 2 == 0


class SometimesKnows(OrderModel):
    """Right on a third, and a coin on the rest."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        total = (ids * visible).sum(dim=1)
        return torch.where(total % 3 == 0, super().is_sorted(ids, visible), total % 2 == 0)


class AnyDigits(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [str(sum(map(int, question.split("+"))) * 7919 % 199) for question in questions]


def test_as_good_as_a_coin_is_no_better_than_a_constant() -> None:
    found = look("no-better-than-constant", sorter(Tosses))
    assert found.verdict == FAIL
    assert "no better than a constant answer: always answering unsorted is right on 50.00 %" in found.finding


def test_sums_that_are_no_better_than_the_most_common_one() -> None:
    found = look("no-better-than-constant", AnyDigits)
    assert found.verdict == FAIL
    assert float(found.evidence["measured"] or 0) < 0.03


def test_what_is_a_little_better_is_better() -> None:
    assert look("no-better-than-constant", sorter(SometimesKnows)).verdict == PASS


def unsorted_only(check: str) -> Finding:
    """What a check says where all examples are of one class."""
    some = observed(PlantedSorter)
    some.examples = some.examples[some.answers.labels == 0]
    del some.answers
    return look_at(check, some)


@pytest.mark.parametrize("check", ["no-better-than-constant", "guessing-loss"])
def test_one_right_answer_cannot_be_beaten(check: str) -> None:
    assert unsorted_only(check).verdict == NOT_APPLICABLE


@pytest.mark.parametrize(
    ("correct", "n", "share", "by_class", "verdict"),
    [
        (200, 400, 0.5, (), FAIL),
        (210, 400, 0.5, (), FAIL),
        (240, 400, 0.5, (), PASS),
        (36, 60, 0.5, (), WARN),  # 60 %, and perhaps 71
        (30, 60, 0.5, (), FAIL),
        (399, 400, 0.99, (Proportion.of(396, 396), Proportion.of(3, 4)), FAIL),
        (400, 400, 0.992, (Proportion.of(396, 396), Proportion.of(4, 4)), PASS),
    ],
)
def test_accuracy_beside_the_best_constant_answer(
    correct: int, n: int, share: float, by_class: tuple[Proportion, ...], verdict: str
) -> None:
    baseline = ConstantBaseline(Proportion.of(correct, n), "sorted", share, by_class)
    assert (baseline.is_beaten, baseline.is_undecided) == (verdict == PASS, verdict == WARN)


# --- the loss of guessing ---------------------------------------------------------------------------------------------


class Undecided(OrderModel):
    """As after training that never got anywhere: logits near zero that depend on what was read."""

    def forward(self, ids: Tensor) -> Tensor:
        total = (ids * (ids != 100)).sum(dim=1)
        return 0.01 * torch.stack([total.sin(), total.cos()], dim=1)


class SureWhenWrong(OrderModel):
    """Right in 97 % and very sure of the rest, so that the loss is above ln 2."""

    def forward(self, ids: Tensor) -> Tensor:
        odd = (ids.masked_fill(ids == 100, 0).sum(dim=1) % 33 == 0)[:, None]
        right = super().forward(ids)
        return torch.where(odd, -10 * right, right)


class SpreadSums(SumModel):
    """Gives every digit the same chance."""

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        logits = super().forward(source, written)
        logits = logits - self.right(source, written)
        logits[..., 10:] = -SURE
        return logits


class SpreadAdder(PlantedAdder):
    model_class = SpreadSums


class WithEnd(PlantedAdder):
    """The end of the answer is asked for, and always right: a loss per token that looks lower."""

    model_class = SpreadSums

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        (source, fed), labels = super().encode(questions, answers)
        return (source, torch.cat([fed, labels[:, -1:]], dim=1)), torch.nn.functional.pad(labels, (0, 1), value=12)

    def forward(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        logits = model(*inputs)
        logits[:, -1] = SURE * torch.nn.functional.one_hot(torch.tensor(12), 13)
        return logits


def test_a_loss_of_ln_2_is_named() -> None:
    found = look("guessing-loss", sorter(Undecided))
    assert found.verdict == FAIL
    assert "the loss is 0.693 per example, and that of guessing is ln 2 = 0.693" in found.finding
    assert {each.id for each in audited(sorter(Undecided)).of(EXPLAINED)} >= {"HC303"}


def test_digits_that_all_have_the_same_chance() -> None:
    found = look("guessing-loss", SpreadAdder)
    assert found.verdict == FAIL
    assert float(found.evidence["loss"] or 0) == pytest.approx(np.log(10), abs=0.1)
    assert float(found.evidence["guessing"] or 0) < np.log(10)


def test_an_end_token_hides_nothing() -> None:
    found = look("guessing-loss", WithEnd)
    assert found.verdict == FAIL
    assert float(found.evidence["loss"] or 0) == pytest.approx(np.log(10) * 3 / 4, abs=0.1)


def test_a_high_loss_with_good_accuracy_has_another_reason() -> None:
    found = look("guessing-loss", sorter(SureWhenWrong))
    assert found.verdict == PASS
    assert float(found.evidence["loss"] or 0) > 0.7
    assert "very sure of its wrong answers" in found.finding


def test_entropy_is_the_loss_of_guessing_shares() -> None:
    assert entropy(np.array([0, 1, 0, 1])) == pytest.approx(np.log(2))
    assert entropy(np.array([3, 3])) == 0


def test_a_sum_model_that_was_never_trained() -> None:
    seen = untrained("addition", digits=2, d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, d_ff=16)
    assert look_at("guessing-loss", seen).verdict == FAIL
    assert look_at("no-better-than-constant", seen).verdict == FAIL


# --- outputs that do not depend on the input --------------------------------------------------------------------------


class ReadsNothing(OrderModel):
    """The mask is the wrong way round, and what is left is a bias."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.zeros(len(ids), self.head.in_features))


class ReadsPositions(OrderModel):
    """Ids never reach the embedding."""

    def embed(self, ids: Tensor) -> Tensor:
        return super().embed(torch.zeros_like(ids))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.attention(self.embed(ids)).mean(dim=1))


class ReadsOneNumber(OrderModel):
    """It depends on the input, though on little of it."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.tokens(ids[:, 0]))


def test_outputs_that_depend_on_nothing() -> None:
    found = look("ignores-input", sorter(ReadsNothing))
    assert found.verdict == FAIL
    assert "do not depend on anything in the input" in found.finding
    assert "anything but the length" in look("ignores-input", sorter(ReadsPositions)).finding
    assert audited(sorter(ReadsNothing)).of(FAIL)[0].id == "HC305"
    assert {each.id for each in audited(sorter(ReadsNothing)).of(EXPLAINED)} >= {"HC301", "HC303", "HC304"}


def test_outputs_that_depend_on_little() -> None:
    assert look("ignores-input", sorter(ReadsOneNumber)).verdict == PASS
    assert unsorted_only("ignores-input").verdict == NOT_APPLICABLE


# --- sound models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_found_in_sound_models(check: str) -> None:
    subject = checks_named([check])[check].subject
    assert look(check, PlantedSorter).verdict == PASS
    assert look_at(check, audited_model(RunModel.of(headcount.load("sample:sortedness")))).verdict == PASS
    if not subject:
        assert look(check, PlantedAdder).verdict == PASS
        assert look_at(check, audited_model(RunModel.of(headcount.load("sample:addition")), n=400)).verdict == PASS
        assert look_at(check, observed(DoesNotDecode)).verdict in (PASS, NOT_APPLICABLE)
