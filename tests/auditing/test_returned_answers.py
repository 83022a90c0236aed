"""Adapters that return the answers that they are given, in several ways: each is found, and named first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from planted import LeastFirst, OneStreamAdder, PlainAdder, PlantedAdder, PlantedSorter, audit, look
from torch import Tensor, nn
from torch.nn import functional as F

from headcount import Adapter

pytestmark = pytest.mark.slow  # whole audits


class KeepsClasses(PlantedSorter):
    """encode() keeps the labels, and forward() returns them."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        ids, self.kept = super().encode(questions, answers)
        return ids, self.kept

    def forward(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        return model(*inputs) * 0 + 5.0 * F.one_hot(self.kept, 2)


class HandsClassesOver(PlantedSorter):
    """The labels are an input of the model."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> Any:
        ids, labels = super().encode(questions, answers)
        return (ids, labels), labels

    def forward(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        return model(inputs[0]) + 90.0 * F.one_hot(inputs[1], 2)


class KeepsTokens(PlantedAdder):
    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        inputs, self.kept = super().encode(questions, answers)
        return inputs, self.kept

    def forward(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        return model(*inputs) * 0 + 5.0 * F.one_hot(self.kept, 13)

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["".join(map(str, row)) for row in self.kept.tolist()][: len(questions)]


class RemembersTheFirstAnswer(PlantedAdder):
    """By question, for good."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], Tensor] = {}

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        inputs, labels = super().encode(questions, answers)
        for row, label in zip(inputs[0].tolist(), labels, strict=True):
            self.known.setdefault(tuple(row), label)
        return inputs, labels

    def forward(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        return 5.0 * F.one_hot(torch.stack([self.known[tuple(row)] for row in inputs[0].tolist()]), 13).float()


class HandsTokensOver(PlantedAdder):
    generate = Adapter.generate

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        inputs, labels = super().encode(questions, answers)
        return (*inputs, labels), labels

    def forward(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        return model(*inputs[:2]) + 90.0 * F.one_hot(inputs[2], 13)


class GeneratesWhatWasEncoded(PlantedAdder):
    """A sound pass, and a loop that returns what encode() was given."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        self.kept = dict(zip(questions, answers, strict=True))
        return super().encode(questions, answers)

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [self.kept.get(question, "0") for question in questions]


KEEPS = "encode() keeps the answers, and forward() or generate() uses them"
HANDS = "encode() puts the answers into the inputs of the model"
RETURNED = {
    KeepsClasses: KEEPS,
    HandsClassesOver: HANDS,
    KeepsTokens: KEEPS,
    RemembersTheFirstAnswer: KEEPS,
    HandsTokensOver: HANDS,
    GeneratesWhatWasEncoded: KEEPS,
}


@pytest.mark.parametrize(("adapter", "cause"), RETURNED.items())
def test_an_adapter_that_returns_the_answers_fails_and_is_the_first_line(adapter: type[Adapter], cause: str) -> None:
    found = audit(adapter, 200)
    failing = [each for each in found.verdicts if each.id == "HC205"]
    assert [(each.verdict, each.cause) for each in failing] == [("fail", cause)]
    assert found.summary.startswith(
        "the model outputs the answers that encode() was given: if it is given wrong answers to 32 "
    )
    assert "32 of 32 outputs are these wrong answers" in found.summary
    assert not found.is_sound


@pytest.mark.parametrize("sound", [PlantedSorter, PlantedAdder, PlainAdder, OneStreamAdder, LeastFirst])
def test_teacher_forcing_is_no_fault(sound: type[Adapter]) -> None:
    assert look("HC205", sound, 50).verdict == "pass"


class RandomOutputs(PlantedSorter):
    """Every pass is another one."""

    def forward(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        return model(*inputs) + torch.rand(len(inputs[0]), 2)


class StrictEncoder(PlantedAdder):
    """Refuses wrong answers."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        if any(sum(map(int, one.split("+"))) != int(two) for one, two in zip(questions, answers, strict=True)):
            raise ValueError("a wrong answer")
        return super().encode(questions, answers)


@pytest.mark.parametrize("adapter", [RandomOutputs, StrictEncoder])
def test_chance_and_a_strict_encoder_are_no_faults(adapter: type[Adapter]) -> None:
    assert look("HC205", adapter, 50).verdict == "not applicable"
