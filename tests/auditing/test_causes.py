"""Which check explains which: the table of causes, and a planted model for each pair that could be confused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from planted import END, START, SURE, OrderModel, PlainAdder, PlainModel, PlantedAdder, PlantedSorter, SumModel, audit
from torch import Tensor, nn
from torch.nn import functional as F

from headcount import Adapter
from headcount.auditing.audit import checks_named
from headcount.auditing.causes import CAUSES, Cause

CHECKS = {check.id: check for check in checks_named().values()}


def test_the_table_is_read_from_top_to_bottom() -> None:
    """No check is an effect of a check below it, so there is no cycle."""
    for i, cause in enumerate(CAUSES):
        above = {each.id for each in CAUSES[: i + 1]}
        assert not above & set(cause.effects), f"{cause.id} explains a check above it"


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: f"{cause.id} {cause.effects[0]}")
def test_every_edge_has_checks_and_a_reason(cause: Cause) -> None:
    assert len(cause.reason.split()) > 5
    assert cause.reason.endswith(".")
    assert len(set(cause.effects)) == len(cause.effects) > 0
    for effect in cause.effects:
        source, target = CHECKS[cause.id], CHECKS[effect]
        is_shared = (source.sequences and target.sequences) or (source.classes and target.classes)
        assert is_shared, f"{cause.id} and {effect} never run on the same model"


def test_no_edge_is_written_twice() -> None:
    edges = [(cause.id, effect) for cause in CAUSES for effect in cause.effects]
    assert len(set(edges)) == len(edges)


# --- planted pairs ----------------------------------------------------------------------------------------------------


class Given(PlantedAdder):
    """Trained without a start token: generation begins with a 0 that is never predicted."""

    given = "0"

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        (source, fed), labels = super().encode(questions, answers)
        return (source, fed), labels.masked_fill(torch.arange(labels.shape[1]) == 0, -100)

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["0" + text[1:] for text in super().generate(model, questions)]


class ShortFromOtherStarts(PlainModel):
    """From any other start token it ends one digit early."""

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        logits = super().right(source, F.pad(written, (0, 1)))
        ids = logits.argmax(dim=-1)
        ends_next = F.pad(ids[:, 1:] == END, (0, 1))
        early = SURE * F.one_hot(ids.masked_fill(ends_next, END), 13).to(logits)
        return torch.where((written[:, :1] == START)[..., None], logits, early)[:, : written.shape[1]]


class StartsFromTwo(PlainAdder):
    model_class = ShortFromOtherStarts

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        self.start = 2
        try:
            return super().generate(model, questions)
        finally:
            self.start = START


class NoFiveFromOtherStarts(SumModel):
    """From any other start token it outputs 6 where 5 is right."""

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        logits = super().right(source, written)
        ids = logits.argmax(dim=-1)
        without = SURE * F.one_hot(ids.masked_fill(ids == 5, 6), 13).to(logits)
        return torch.where((written[:, :1] == START)[..., None], logits, without)


class StartsFromTwoWithoutFive(PlantedAdder):
    model_class = NoFiveFromOtherStarts

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        self.start = 2
        try:
            return super().generate(model, questions)
        finally:
            self.start = START


class FirstIsSevenModel(SumModel):
    """Sure of a first digit that is never right: the loss is far above that of guessing."""

    def digits(self, source: Tensor) -> Tensor:
        digits = super().digits(source)
        return digits.masked_fill(torch.arange(digits.shape[1]) == 0, 7)


class FirstIsSeven(PlantedAdder):
    model_class = FirstIsSevenModel


class NeverZeroModel(SumModel):
    def right(self, source: Tensor, written: Tensor) -> Tensor:
        ids = super().right(source, written).argmax(dim=-1)
        return 2 * SURE * F.one_hot(ids.masked_fill(ids == 0, 9), 13).to(self.head.weight)


class NeverZero(PlantedAdder):
    """Nearly every answer has a zero, so that hardly any is right."""

    task, settings = "addition", {**PlantedAdder.settings, "digits": 4}
    model_class = NeverZeroModel


class UntrainedModel(SumModel):
    """Learned nothing: 1 is a little more likely at the first place, and elsewhere a digit that has no meaning."""

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        places = torch.arange(written.shape[1])
        digits = (7 * source[:, :1] + 3 * source[:, -1:] + places) % 10
        return 0.5 * F.one_hot(digits.masked_fill(places == 0, 1), 13).to(self.head.weight)


class Untrained(PlantedAdder):
    model_class = UntrainedModel


class OrderBlindModel(OrderModel):
    """Without positions, and with one answer to everything."""

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids)

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return ids[:, 0] >= 0


class OrderBlind(PlantedSorter):
    model_class = OrderBlindModel


PAIRS = [
    (Given, "HC107", "HC101"),
    (StartsFromTwo, "HC104", "HC105"),
    (StartsFromTwoWithoutFive, "HC104", "HC102"),
    (OrderBlind, "HC505", "HC301"),
    (Untrained, "HC304", "HC101"),
]


@pytest.mark.parametrize(("adapter", "first", "effect"), PAIRS, ids=lambda each: getattr(each, "__name__", each))
def test_of_two_checks_that_could_be_confused_the_cause_comes_first(
    adapter: type[Adapter], first: str, effect: str
) -> None:
    result = audit(adapter, 300)
    assert result.causes[0] == first, result.summary
    verdict = next(each for each in result.verdicts if each.id == effect)
    assert (verdict.verdict, verdict.explained_by) == ("explained", first)


@pytest.mark.parametrize(("adapter", "first"), [(FirstIsSeven, "HC101"), (NeverZero, "HC102")])
def test_a_high_loss_is_not_a_lack_of_training_where_other_tokens_are_right(adapter: type[Adapter], first: str) -> None:
    """A constant place or a missing token can cost more than guessing, but the other tokens were learned."""
    result = audit(adapter, 300)
    assert result.causes[0] == first, result.summary
    loss = next(each for each in result.verdicts if each.id == "HC304")
    assert float(loss.evidence["loss"] or 0) > float(loss.evidence["guessing"] or 0), "the planted loss"
    assert loss.verdict == "pass"


# --- a place that the loss leaves out ---------------------------------------------------------------------------------


class FirstByChanceModel(SumModel):
    """The first digit varies, and is right by chance."""

    def digits(self, source: Tensor) -> Tensor:
        digits = super().digits(source)
        return torch.where(torch.arange(digits.shape[1]) == 0, source.sum(dim=1, keepdim=True) % 2, digits)


class FirstByChance(PlantedAdder):
    model_class = FirstByChanceModel


def test_a_place_that_is_right_by_chance_is_named() -> None:
    result = audit(FirstByChance)
    assert result.causes == ("HC108",), result.summary
    assert result.summary.startswith("the 100s digit is right in ")
    assert result.predicted == result.measured


@pytest.mark.parametrize("sound", [PlantedAdder, PlainAdder])
@pytest.mark.slow
def test_sound_models_learn_every_place(sound: type[Adapter]) -> None:
    verdicts = {each.id: each.verdict for each in audit(sound, 200).verdicts}
    assert verdicts["HC108"] == "pass"
