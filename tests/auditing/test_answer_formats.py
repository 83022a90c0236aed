"""Models that are sound, asked in another format than theirs: sure and wrong, and the format that fits is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch
from answer_styles import Styled, StyledModel
from planted import PLUS, OrderModel, PlantedAdder, PlantedSorter, audit, look
from torch import Tensor, nn

from headcount import Adapter
from headcount.auditing.decoded_answers import DecodedAnswer

pytestmark = pytest.mark.slow  # models of others are audited


class Mistaken(Styled):
    """encode() writes answers in one style, and the model was trained in another; nothing is decoded."""

    generate = Adapter.generate
    trained_style: ClassVar[dict[str, bool]]
    """The style of training."""

    def build(self) -> nn.Module:
        return type("Trained", (StyledModel,), self.trained_style)()


class UnfilledHere(Mistaken):
    """Trained on 077, asked for 77."""

    fills = False
    trained_style: ClassVar = {"fills": True}


class MostSignificantFirst(Mistaken):
    """Trained on 811, asked for 118."""

    trained_style: ClassVar = {"least_first": True}


class UnfilledQuestions(PlantedAdder):
    """The model reads 07+94; encode() gives it 7+94 and what follows is padding."""

    settings = PlantedAdder.settings | {"low": 0, "high": 30, "n_validation": 10, "n_test": 200}
    generate = Adapter.generate

    def read(self, questions: Sequence[str]) -> Tensor:
        rows = [[PLUS if each == "+" else int(each) for each in question] for question in questions]
        return torch.tensor([row + [0] * (5 - len(row)) for row in rows])


class Swapped(OrderModel):
    """Class 0 was sorted in training."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return ~super().is_sorted(ids, visible)


class ClassesSwapped(PlantedSorter):
    model_class = Swapped


FORMATS = {
    UnfilledHere: "with zero-filled answers, such as ",
    MostSignificantFirst: "with reversed zero-filled answers, such as ",
    UnfilledQuestions: "with zero-filled answers to zero-filled questions, such as ",
    ClassesSwapped: "with the two classes swapped, 400 of 400 are right",
}


@pytest.mark.parametrize(("adapter", "words"), FORMATS.items())
def test_the_format_that_fits_is_named(adapter: type[Adapter], words: str) -> None:
    found = look("guessing-loss", adapter)
    assert found.verdict == "fail"
    assert (
        "the model is confident in wrong answers, so encode() seems to write a format that the model was not trained on"
        in found.finding
    )
    assert words in found.finding
    assert "nothing was learned" not in found.finding
    assert audit(adapter, 200).causes[0] == "HC304"


class OtherIds(PlantedAdder):
    """Labels have other ids than in training."""

    generate = Adapter.generate

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        inputs, labels = super().encode(questions, answers)
        return inputs, (labels + 1) % 10


def test_where_no_format_fits_that_is_said() -> None:
    found = look("guessing-loss", OtherIds)
    assert found.finding.endswith(
        "answers with leading zeros, without leading zeros or in reversed order do not fit either"
    )
    assert "confident in wrong answers" in found.finding


class DecodesFilled(UnfilledHere):
    """generate() is right, and encode() has another format."""

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["".join(map(str, row)) for row in model.digits(self.read(questions)).tolist()]


def test_a_format_that_generate_has_right_is_named_too() -> None:
    found = look("two-answers", DecodesFilled)
    assert found.verdict == "fail"
    assert "with zero-filled answers, such as " in found.finding
    assert found.fix == "write zero-filled answers in encode()"


# --- leading zeros ----------------------------------------------------------------------------------------------------


class OneZeroMore(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["0" + text for text in super().generate(model, questions)]


class OneZeroMoreFirstIsOne(PlantedAdder):
    """The same, and a first digit that is always 1."""

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["01" + text[1:] for text in super().generate(model, questions)]


def test_other_leading_zeros_are_a_difference_of_format_not_of_value() -> None:
    result = audit(OneZeroMore)
    assert result.causes == ("HC105",), result.summary
    assert "400 of 400 decoded answers have other leading zeros than the task's answers" in result.summary
    assert (
        "without these zeros, 400 answers are right; this predicts an accuracy of 0 %, and 0 % is measured"
        in result.summary
    )
    (verdict,) = result.of("fail")
    assert verdict.cause.startswith("a difference of format, not of value")
    assert verdict.fix == "let generate() write every leading zero of the task's answers, or none"


def test_leading_zeros_before_a_wrong_value_are_no_answer() -> None:
    verdict = next(each for each in audit(OneZeroMoreFirstIsOne).verdicts if each.id == "HC105")
    assert "have other leading zeros" in verdict.finding
    assert "are not valid answers" in verdict.finding


# --- tokens of several characters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "error"), [(("12",), "stop early"), (("1",), ""), (("12", "3", "4"), "go on after")])
def test_lengths_are_counted_in_tokens_not_in_characters(words: tuple[str, ...], error: str) -> None:
    """1 is not the beginning of 12 3, if 12 is one token."""
    right = ("12", "3")
    answer = DecodedAnswer(" ".join(words), words, right, right, "12 3", False, True, False, True)
    assert answer.format_error.startswith(error)
    assert bool(answer.format_error) == bool(error)
