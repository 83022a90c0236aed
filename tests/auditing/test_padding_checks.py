"""Padding that is read, or that is also a symbol, planted and not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from planted import PAD, PLUS, SURE, OrderModel, PlantedAdder, PlantedSorter, SumModel, look, look_at, observed
from torch import Tensor, nn
from torch.nn import functional as F

import headcount
from headcount.auditing.audit import checks_named, run_checks
from headcount.auditing.audited_model import AuditedModel, audited_model
from headcount.auditing.check import EXPLAINED, FAIL, NOT_APPLICABLE, PASS, WARN
from headcount.experiments.models import RunModel
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder
from headcount.runs.run import Run, build

pytestmark = pytest.mark.slow  # seconds together

SMALL: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_ff": 16, "n_validation": 50, "n_test": 400}


def untrained(task: str, **settings: object) -> AuditedModel:
    config = RunConfig.build(task, **SMALL | settings)
    return audited_model(RunModel.of(Run("untrained", RunFolder(Path("nowhere")), config, *build(config), "0" * 64)))


def sorter(model: type[nn.Module]) -> type[PlantedSorter]:
    return type(model.__name__, (PlantedSorter,), {"model_class": model})


# --- padding that is read ---------------------------------------------------------------------------------------------


class Unmasked(OrderModel):
    """Attention reads padding; answers are so sure that none changes."""

    def forward(self, ids: Tensor) -> Tensor:
        visible = ids != 100
        attended = self.attention(self.embed(ids)) * visible[..., None]
        pooled = attended.sum(dim=1) / visible.sum(dim=1, keepdim=True)
        return SURE * F.one_hot(self.is_sorted(ids, visible).long(), 2) + self.head(pooled)


class PoolsPadding(OrderModel):
    """The mean is over all positions."""

    def forward(self, ids: Tensor) -> Tensor:
        attended = self.attention(self.embed(ids), ids != 100)
        return SURE * F.one_hot(self.is_sorted(ids, ids != 100).long(), 2) + self.head(attended.mean(dim=1))


class PaddingIsAStepDown(OrderModel):
    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return (ids.masked_fill(~visible, -1).diff(dim=1) >= 0).all(dim=1)


class RelativePositions(OrderModel):
    """Positions run over the width of the batch, as those of one report did."""

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1]) * 511 // ids.shape[1])

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + self.head(self.attention(self.embed(ids), ids != 100)[:, 0])


class BatchSecond(OrderModel):
    """torch's layers take the batch second, unless they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.torch_layer = nn.MultiheadAttention(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        visible = (ids != 100)[..., None]
        mixed = self.torch_layer(x, x, x, need_weights=False)[0] * visible
        return super().forward(ids) + 9 * self.head(mixed.sum(dim=1) / visible.sum(dim=1))


class HidesAll(OrderModel):
    """A query that is padding sees nothing at all, and the mean runs over it."""

    def forward(self, ids: Tensor) -> Tensor:
        visible = (ids != 100)[..., None]
        scores = torch.zeros(*ids.shape, ids.shape[1]).masked_fill(~(visible & visible.transpose(1, 2)), -torch.inf)
        return super().forward(ids) + self.head((scores.softmax(dim=2) @ self.embed(ids)).mean(dim=1))


def test_logits_that_padding_turns_into_no_numbers() -> None:
    assert "logits become NaN" in look("padding-leaks", sorter(HidesAll)).finding


@pytest.mark.parametrize("model", [Unmasked, PoolsPadding, RelativePositions])
def test_padding_that_moves_logits_is_found_though_no_answer_changes(model: type[OrderModel]) -> None:
    found = look("padding-leaks", sorter(model))
    assert found.verdict == FAIL
    assert "in a batch with a sequence of length 16 than alone" in found.finding
    assert float(found.evidence["moved"] or 0) > 1e-3


def test_answers_that_change_are_counted() -> None:
    found = look("padding-leaks", sorter(PaddingIsAStepDown))
    assert found.verdict == FAIL
    assert 20 < int(found.evidence["changed"] or 0) < 64  # the sorted half of 64
    told = "of 64 shorter sequences get another answer in a batch with a sequence of length 16 than alone"
    assert f"{found.evidence['changed']} {told}" in found.finding


def test_rows_that_reach_each_other_are_another_cause() -> None:
    found = look("padding-leaks", sorter(BatchSecond))
    assert found.verdict == FAIL
    assert "batch_first" in found.cause + found.fix


class OneLength(PlantedSorter):
    trained = (9, 9)


def test_sequences_of_one_length_have_no_padding() -> None:
    assert look("padding-leaks", OneLength).verdict == NOT_APPLICABLE
    assert look("pad-is-symbol", OneLength).verdict == NOT_APPLICABLE


# --- padding that is always there -------------------------------------------------------------------------------------


class AlwaysSixteen(PlantedSorter):
    """Filled up to one width, whatever stands beside."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        ids, labels = super().encode(questions, answers)
        return F.pad(ids, (0, max(0, 16 - ids.shape[1])), value=self.pad), labels


class AlwaysSixteenUnmasked(AlwaysSixteen):
    model_class = PoolsPadding


class OneWidth(OrderModel):
    """Takes sixteen positions, and no others."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Linear(16 * 8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + self.flat(self.embed(ids).flatten(1))


class AlwaysSixteenFlat(AlwaysSixteen):
    model_class = OneWidth


class AlwaysSixteenBefore(AlwaysSixteenUnmasked):
    """Padding stands before the numbers."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        ids, labels = super().encode(questions, answers)
        return torch.stack([row.roll(int((row == 100).sum())) for row in ids]), labels


def test_padding_to_one_width_that_is_read_is_a_warning() -> None:
    found = look("padding-leaks", AlwaysSixteenUnmasked)
    assert found.verdict == WARN
    assert "always padded to 16 tokens" in found.finding
    assert look("padding-leaks", AlwaysSixteenBefore).verdict == WARN


def test_padding_to_one_width_that_is_masked_or_needed_is_none() -> None:
    assert look("padding-leaks", AlwaysSixteen).verdict == PASS
    assert look("padding-leaks", AlwaysSixteenFlat).verdict == PASS


# --- padding that is a symbol -----------------------------------------------------------------------------------------


class PaddedWithZero(PlantedSorter):
    pad = 0


class ZeroBefore(PlantedSorter):
    """Padding before the numbers, again with a number."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        ids, labels = super().encode(questions, answers)
        rows = [row.roll(int((row == 100).sum())) for row in ids]
        return torch.stack(rows).masked_fill(torch.stack(rows) == 100, 99), labels


class WithMask(OrderModel):
    def forward(self, ids: Tensor, visible: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(ids.masked_fill(visible == 0, 100))


class ZeroAndMask(PlantedSorter):
    """As tokenizers do it: padding has the id 0, and a mask tells it from the number."""

    model_class = WithMask

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> Any:
        ids, labels = super().encode(questions, answers)
        visible = ids != 100
        return (ids * visible, visible.long()), labels


class WithEnd(OrderModel):
    """101 ends a sequence; what follows is padding, whatever its id."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(102, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids.masked_fill((ids == 101).cumsum(dim=1) > 0, 100))


class ZeroBehindAnEnd(PlantedSorter):
    model_class = WithEnd

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        ids, labels = super().encode(questions, answers)
        ids = F.pad(ids, (0, 1), value=100)
        ends = (ids == 100) & ((ids == 100).cumsum(dim=1) == 1)
        return ids.masked_fill(ends, 101).masked_fill((ids == 100) & ~ends, 0), labels


class ReadsEight(PlantedSorter):
    """Only the first eight numbers reach the model."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        return super().encode([" ".join(question.split()[:8]) for question in questions], answers)


def test_padding_with_a_number_is_named() -> None:
    found = look("pad-is-symbol", PaddedWithZero)
    assert (found.verdict, found.evidence["symbol"]) == (FAIL, "0")
    assert " (sorted) with padding and for " in found.finding
    assert found.finding.endswith(" 0 (unsorted)")
    assert (look("pad-is-symbol", ZeroBefore)).evidence["symbol"] == "99"


def test_a_mask_beside_the_ids_tells_padding_from_a_number() -> None:
    assert look("pad-is-symbol", ZeroAndMask).verdict == PASS
    assert look("padding-leaks", ZeroAndMask).verdict == PASS


def test_an_end_between_them_is_a_warning() -> None:
    found = look("pad-is-symbol", ZeroBehindAnEnd)
    assert (found.verdict, found.evidence["symbol"]) == (WARN, "0")


def test_examples_that_are_cut_off_are_another_cause() -> None:
    found = look("pad-is-symbol", ReadsEight)
    assert found.verdict == FAIL
    assert "truncating them" in found.cause


def test_a_run_that_pads_with_zero_is_named_and_what_follows_is_explained() -> None:
    seen = untrained("sortedness", n_layers=1, padding_is_zero=True)
    found = run_checks(seen, checks_named(["padding-leaks", "pad-is-symbol"]))
    assert [(each.id, each.verdict) for each in found.verdicts] == [("HC202", EXPLAINED), ("HC203", FAIL)]
    assert "always padded to 16 tokens" in found.verdicts[0].finding


@pytest.mark.parametrize("check", ["padding-leaks", "pad-is-symbol"])
@pytest.mark.parametrize("encoding", ["sinusoidal", "learned", "none", "rotary", "alibi", "relative"])
@pytest.mark.parametrize("pooling", ["mean", "max", "last"])
def test_our_own_models_mask_their_padding(check: str, encoding: str, pooling: str) -> None:
    seen = untrained("sortedness", n_layers=1, encoding=encoding, pooling=pooling, n_test=60)
    assert look_at(check, seen).verdict == PASS


# --- written answers --------------------------------------------------------------------------------------------------


class AnyLength(PlantedAdder):
    """Sums of numbers with one or two digits, which are read as they are written, and padded behind."""

    settings = {"digits": 2, "low": 0, "n_validation": 50, "n_test": 200}  # noqa: RUF012
    pad = PAD

    def read(self, questions: Sequence[str]) -> Tensor:
        rows = [[PLUS if character == "+" else int(character) for character in question] for question in questions]
        longest = max(map(len, rows))
        return torch.tensor([row + [self.pad] * (longest - len(row)) for row in rows])

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        labels = torch.tensor([[int(digit) for digit in answer.zfill(3)] for answer in answers])
        return (self.read(questions), F.pad(labels[:, :-1], (1, 0), value=self.start)), labels

    @torch.no_grad()
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        source, written = self.read(questions), torch.full((len(questions), 1), self.start)
        for _ in range(3):
            written = torch.cat([written, model(source, written)[:, -1:, :10].argmax(dim=-1)], dim=1)
        return ["".join(map(str, row)) for row in written[:, 1:].tolist()]


class ReadsPadded(SumModel):
    """Right, and padding is left out."""

    def numbers(self, row: list[int]) -> int:
        text = "".join("+" if token == PLUS else str(token) for token in row if token != PAD)
        return sum(map(int, text.split("+")))

    def digits(self, source: Tensor) -> Tensor:
        totals = torch.tensor([self.numbers(row) for row in source.tolist()])
        return totals[:, None] // 10 ** torch.arange(2, -1, -1) % 10

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        return self.right(source, written) + 0.1 * self.head(self.decoder(self.embed(written), causal=True))


class ReadsPadding(ReadsPadded):
    """Padding is read as a zero behind the second number."""

    def numbers(self, row: list[int]) -> int:
        return super().numbers([0 if token == PAD else token for token in row])


class SoundAnyLength(AnyLength):
    model_class = ReadsPadded


class LeakyAnyLength(AnyLength):
    model_class = ReadsPadding


class LeakyOperands(LeakyAnyLength):
    """Each operand is padded by itself: 1+22 and 11+2 are as long as each other, and padded beside each other."""

    def read(self, questions: Sequence[str]) -> Tensor:
        operands = [question.split("+") for question in questions]
        widths = [max(map(len, each)) for each in zip(*operands, strict=True)]
        filled = [
            [[*map(int, number), *[PAD] * (width - len(number))] for number, width in zip(pair, widths, strict=True)]
            for pair in operands
        ]
        return torch.tensor([[*first, PLUS, *second] for first, second in filled])


class ZeroAnyLength(SoundAnyLength):
    pad = 0


class EndsForAll(SoundAnyLength):
    """As decoding loops do that end for the whole batch as soon as some row ends."""

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        answers = super().generate(model, questions)
        return [answer[: 3 - answers[-1].count("1")] for answer in answers] if len(answers) > 1 else answers


class DrawsAnswers(SoundAnyLength):
    """Answers that differ from call to call are another fault."""

    calls = 0

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        self.calls += 1
        return [str(self.calls % 100) for _ in questions]


def test_sums_that_padding_changes() -> None:
    found = look("padding-leaks", LeakyAnyLength)
    assert found.verdict == FAIL
    assert "16 of 16 questions get another answer in a batch with 41+70 than alone" in found.finding
    assert look("padding-leaks", SoundAnyLength).verdict == PASS
    assert look("padding-leaks", DrawsAnswers).verdict == PASS


def test_operands_that_are_padded_by_themselves_are_no_rows_that_meet() -> None:
    found = look("padding-leaks", LeakyOperands, n=30)  # the shortest of which are 6+19 and others of four characters
    assert found.verdict == FAIL
    assert " in a batch with 84+28 than alone: " in found.finding
    assert "the model reads padding" in found.cause


def test_questions_of_one_length_that_change_each_other() -> None:
    found = look("padding-leaks", EndsForAll)
    assert found.verdict == FAIL
    assert "in a batch with others of their own length" in found.finding
    assert "ends for all" in found.cause


def test_questions_that_are_padded_with_a_digit() -> None:
    found = look("pad-is-symbol", ZeroAnyLength)
    assert (found.verdict, found.evidence["symbol"]) == (FAIL, "0")
    assert look("pad-is-symbol", SoundAnyLength).verdict == PASS


class SkipsZero(PlantedAdder):
    """Labels of the digit 0 are ignored, as if that were padding."""

    digit = 0

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        inputs, labels = super().encode(questions, answers)
        return inputs, labels.masked_fill(labels == self.digit, -100)


class SkipsSeven(SkipsZero):
    digit = 7


class WithoutLeadingZeros(PlantedAdder):
    """Answers as people write them; what is left of them has no label."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        inputs, labels = super().encode(questions, answers)
        return inputs, labels.masked_fill(labels.cumsum(dim=1) == 0, -100)


def test_a_digit_that_labels_never_ask_for() -> None:
    found = look("pad-is-symbol", SkipsZero)
    assert (found.verdict, found.evidence["digits"]) == (FAIL, "0")
    assert "labels never contain the digit 0 at any of the " in found.finding
    assert look("pad-is-symbol", SkipsSeven).evidence["digits"] == "7"
    assert look("pad-is-symbol", WithoutLeadingZeros).verdict == PASS


@pytest.mark.parametrize("least_first", [False, True])
def test_a_run_whose_loss_ignores_zero(least_first: bool) -> None:
    settings: dict[str, Any] = {"digits": 2, "n_encoder_layers": 1, "n_decoder_layers": 1, "least_first": least_first}
    assert look_at("pad-is-symbol", untrained("addition", **settings, loss_ignores_zero=True)).verdict == FAIL
    assert look_at("pad-is-symbol", untrained("addition", **settings)).verdict == PASS
    assert look_at("pad-is-symbol", untrained("addition", **settings, start_token=False)).verdict == PASS


# --- sound models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", ["padding-leaks", "pad-is-symbol"])
def test_nothing_is_found_in_sound_models(check: str) -> None:
    assert look(check, PlantedSorter).verdict == PASS
    assert look_at(check, audited_model(RunModel.of(headcount.load("sample:sortedness")))).verdict == PASS
    for seen in (observed(PlantedAdder), audited_model(RunModel.of(headcount.load("sample:addition")), n=200)):
        assert look_at(check, seen).verdict == (NOT_APPLICABLE if check == "padding-leaks" else PASS)
