"""Every fault of decoding, planted on answers in every style: each is named, and no style is taken for a fault."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import pytest
import torch
from planted import END, SURE, PlantedAdder, SumModel, observed
from torch import Tensor, nn
from torch.nn import functional as F

import headcount
from headcount.auditing.audit import Audit, checks_named, run_check, run_checks
from headcount.auditing.observed import Observed
from headcount.data.adapter_task import AdapterSequences
from headcount.experiments.external_models import LoadedModel
from headcount.external.models import ExternalModel
from headcount.training.evaluation import Evaluation

STYLES = {
    "zero-filled": {},
    "unfilled": {"fills": False},
    "least first": {"least_first": True},
    "least first, unfilled": {"fills": False, "least_first": True},
    "spaces": {"separator": " "},
    "commas, unfilled": {"fills": False, "separator": ","},
}
"""How answers are written: with leading zeros or without, from which end, and what stands between the digits."""


class StyledModel(SumModel):
    """Right answers in one of the styles, an end token behind those that are not filled; a wrong digit comes second."""

    fills, least_first = True, False
    missing: int | None = None
    """A digit that the loss has ignored."""
    needs_start = False
    """Whether another token at the start makes odd last digits wrong."""

    def written(self, source: Tensor) -> list[str]:
        texts = ["".join(map(str, row)) for row in self.digits(source).tolist()]
        texts = texts if self.fills else [text.lstrip("0") or "0" for text in texts]
        return [text[::-1] for text in texts] if self.least_first else texts

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        rows = [[*map(int, text), END, END, END, END, END][: written.shape[1]] for text in self.written(source)]
        ids = torch.tensor(rows)
        if self.needs_start:
            is_last = torch.arange(ids.shape[1]) == torch.tensor([[len(text) - 1] for text in self.written(source)])
            is_off = (written[:, :1] != PlantedAdder.start) & is_last & (ids % 2 == 1)
            ids = torch.where(is_off, (ids + written[:, :1] + 1) % 10, ids)
        seconds = torch.where(ids < 10, (ids + 1) % 10, ids)
        logits = SURE * F.one_hot(ids, 13) + SURE / 2 * F.one_hot(seconds, 13)
        if self.missing is not None:
            logits = logits.index_fill(2, torch.tensor([self.missing]), -SURE)
        return logits.to(self.head.weight)


class Styled(PlantedAdder):
    """A sound adder in one of the styles; a fault is planted in a subclass."""

    fills, least_first, separator = True, False, ""
    settings = PlantedAdder.settings | {"n_test": 200}
    begin: int | None = None
    """The token that generation starts from, if not the trained one."""
    model_settings: ClassVar[dict[str, object]] = {}

    def build(self) -> nn.Module:
        style = {"fills": self.fills, "least_first": self.least_first}
        return type("Planted", (StyledModel,), style | self.model_settings)()

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        texts = [answer.zfill(3) if self.fills else answer for answer in answers]
        rows = [[*map(int, text[::-1] if self.least_first else text), *([] if self.fills else [END])] for text in texts]
        width = max(map(len, rows))
        labels = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
        fed = torch.tensor([[self.start, *row[:-1]] + [END] * (width - len(row)) for row in rows])
        return (self.read(questions), fed), labels

    @torch.no_grad()
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        source = self.read(questions)
        written = torch.full((len(questions), 1), self.start if self.begin is None else self.begin)
        for _ in range(3 if self.fills else 4):
            written = torch.cat([written, model(source, written)[:, -1:].argmax(dim=-1)], dim=1)
        return [self.text(self.changed(self.tokens_of(row))) for row in written[:, 1:].tolist()]

    def tokens_of(self, ids: list[int]) -> list[str]:
        return list(map(str, ids[: ids.index(END)] if END in ids else ids))

    def changed(self, tokens: list[str]) -> list[str]:
        """What a faulty loop makes of an answer, in the order of writing."""
        return tokens

    def text(self, tokens: list[str]) -> str:
        return self.separator.join(tokens[::-1] if self.least_first else tokens)


class NeverZero(Styled):
    model_settings: ClassVar = {"missing": 0}


class NeverFive(Styled):
    model_settings: ClassVar = {"missing": 5}


class LabelsWithoutZero(NeverZero):
    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        inputs, labels = super().encode(questions, answers)
        return inputs, labels.masked_fill(labels == 0, -100)


class FirstIsConstant(Styled):
    def changed(self, tokens: list[str]) -> list[str]:
        return ["1", *tokens[1:]]


class LastIsConstant(Styled):
    def changed(self, tokens: list[str]) -> list[str]:
        return [*tokens[:-1], "7"]


class ReturnsTheStart(Styled):
    def changed(self, tokens: list[str]) -> list[str]:
        return ["3", *tokens[:-1]]


class DropsTheFirst(Styled):
    def changed(self, tokens: list[str]) -> list[str]:
        return tokens[1:]


class Backwards(Styled):
    def changed(self, tokens: list[str]) -> list[str]:
        return tokens[::-1]


class StartsFromTwo(Styled):
    begin = 2
    model_settings: ClassVar = {"needs_start": True}


class StopsEarly(Styled):
    def changed(self, tokens: list[str]) -> list[str]:
        return tokens[:-1]


class GoesOn(Styled):
    def changed(self, tokens: list[str]) -> list[str]:
        return [*tokens, "4", "4"]


FAULTS = {
    NeverZero: ("HC102", "0 is never output"),
    NeverFive: ("HC102", "5 is never output"),
    LabelsWithoutZero: ("HC102", "0 is never output"),
    FirstIsConstant: ("HC101", "digit is 1 in"),
    LastIsConstant: ("HC101", "digit is 7 in"),
    ReturnsTheStart: ("HC103", "one place late"),
    DropsTheFirst: ("HC103", "without the first token"),
    Backwards: ("HC103", "backwards"),
    StartsFromTwo: ("HC104", "from the token 2"),
    StopsEarly: ("HC105", "stop early"),
    GoesOn: ("HC105", "go on after their end"),
}


def styled(fault: type[Styled], style: str) -> type[Styled]:
    chosen = STYLES[style]
    settings = fault.settings | ({"least_first": True} if "least_first" in chosen else {})
    return type(fault.__name__, (fault,), {**chosen, "settings": settings})


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_named_in_every_style(fault: type[Styled], style: str) -> None:
    check, words = FAULTS[fault]
    found = audited(fault, style)
    assert check in [each.id for each in found.of("fail")], found.summary
    assert words in found.summary
    if "separator" not in STYLES[style]:
        first = next(each for each in found.of("fail") if found.summary.startswith(each.finding))
        assert first.id == check, found.summary


@cache
def audited(fault: type[Styled], style: str) -> Audit:
    checks = {name: check for name, check in checks_named().items() if check.id[:3] in ("HC1", "HC2", "HC3")}
    return run_checks(observed(styled(fault, style)), checks)


@pytest.mark.parametrize("style", [style for style in STYLES if "separator" not in STYLES[style]])
def test_no_style_is_a_fault(style: str) -> None:
    found = audited(Styled, style)
    assert (found.measured, found.of("fail"), found.of("warn")) == (1.0, [], []), found.summary


# --- a model that was trained so --------------------------------------------------------------------------------------

ADDER = Path(__file__).parents[1] / "foreign_adder" / "adder_adapter.py"


@pytest.fixture
def without_zero() -> ExternalModel:
    """The foreign adder, which writes no leading zeros, as a loss leaves it that ignores the digit 0."""
    external = headcount.load_external(f"{ADDER}:Adder")
    with torch.no_grad():
        external.inner.fc_out.bias[3] = -1e3  # type: ignore[union-attr,index]  # the id of 0
    return external


def test_a_trained_adder_that_never_outputs_zero_is_found(without_zero: ExternalModel) -> None:
    """Its texts have no 0 in any answer; 0 was filled in front of them, and counted as right."""
    seen = Observed(LoadedModel.of(without_zero), 250)
    assert not any("0" in text for text in seen.sequences.texts)
    (check,) = checks_named(["HC102"]).values()
    found = run_check(check, seen)
    n_zeros = sum(seen.task.answer(example).count("0") for example in seen.examples)
    assert found.verdict == "fail"
    assert found.finding.startswith(f"0 is never output: in 0 of {n_zeros} places where that is right")
    assert found.right_despite_fault is not None
    assert (found.right_despite_fault == seen.right).mean() > 0.98


def test_evaluate_names_the_digit_and_no_carry(without_zero: ExternalModel) -> None:
    found = headcount.evaluate(without_zero)
    assert isinstance(found, Evaluation)
    assert found.audit.startswith("0 is never output")
    wrong = [each for each in found.wrong if "0" in each.right.lstrip("0")]
    assert {each.explanation for each in wrong} == {"HC102 (never output) explains it"}
    hundreds = found.digits[0].free_running
    assert hundreds is not None
    assert hundreds.n < 500, "sums below 100 have no 100s to be right in"


def test_a_digit_that_is_not_written_is_no_hit() -> None:
    """Of 105, an answer 5 has neither the 1 nor the 0."""
    model = cast(AdapterSequences, observed(styled(Styled, "unfilled")).answers)
    found = model.with_texts(model.answer(np.array([[52, 53], [20, 30]])), ["5", "50"])
    assert found.written.tolist() == [[False, False, True], [False, True, True]]
    assert found.written_hits.tolist() == [[False, False, True], [False, True, True]]
    assert found.counted.tolist() == [[True, True, True], [False, True, True]]
    assert found.free_hits.tolist() == [[False, True, True], [True, True, True]], "exact match takes 50 for 050"
