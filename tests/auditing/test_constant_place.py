"""A digit that is always the same, planted and not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from planted import PlantedAdder, PlantedSorter, audit, look
from torch import nn

from headcount import Adapter

pytestmark = pytest.mark.slow  # whole audits


class NeverPredictsTheFirst(PlantedAdder):
    """As a decoder does that was trained without a start token: generation begins with a 0 that it made up."""

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["0" + answer[1:] for answer in super().generate(model, questions)]


class ForgetsTheLast(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [answer[:-1] + "7" for answer in super().generate(model, questions)]


class HardlyLearned(NeverPredictsTheFirst):
    """Its other digits are those of another sum."""

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        answers = super().generate(model, questions)
        return [first[0] + other[1:] for first, other in zip(answers, answers[1:] + answers[:1], strict=True)]


class DoesNotDecode(PlantedAdder):
    generate = Adapter.generate


def test_a_first_digit_that_is_never_predicted_is_named_with_both_figures() -> None:
    found = look("constant-place", NeverPredictsTheFirst)
    assert (found.verdict, found.evidence["places"]) == ("fail", "100s")
    assert found.evidence["predicted"] == found.evidence["measured"] == pytest.approx(0.34, abs=0.1)
    assert "start token" in found.cause
    first = audit(NeverPredictsTheFirst).summary
    assert first.startswith("the 100s digit is 0 in 400 of 400 decoded answers, and in ")
    assert "this predicts an accuracy of 34.25 %, and 34.25 % is measured" in first


def test_another_place_has_another_cause() -> None:
    found = look("constant-place", ForgetsTheLast)
    assert (found.verdict, found.evidence["places"]) == ("fail", "1s")
    assert "start token" not in found.cause + found.fix


def test_it_is_not_blamed_for_what_it_does_not_explain() -> None:
    found = look("constant-place", HardlyLearned)
    assert found.verdict == "warn"
    assert "of the 137 answers that can be right despite this, only " in found.finding


@pytest.mark.parametrize("sound", [PlantedAdder, PlantedSorter])
def test_nothing_is_said_of_sound_models(sound: type[PlantedAdder]) -> None:
    assert audit(sound).is_sound


def test_what_is_not_decoded_cannot_be_asked() -> None:
    assert look("constant-place", DoesNotDecode).verdict == "not applicable"


def test_few_examples_show_nothing() -> None:
    assert look("constant-place", NeverPredictsTheFirst, n=60).verdict == "pass"
