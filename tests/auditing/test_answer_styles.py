"""Every fault of decoding, planted on answers in every style: each is named, and no style is taken for a fault."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from answer_styles import Styled
from planted import observed
from torch import Tensor

import headcount
from headcount.auditing.audit import Audit, checks_named, run_check, run_checks
from headcount.auditing.audited_model import audited_model
from headcount.experiments.external_models import ExternalModel
from headcount.training.evaluation import Evaluation

pytestmark = pytest.mark.slow  # every style of answer is audited

STYLES: dict[str, dict[str, Any]] = {
    "zero-filled": {},
    "unfilled": {"fills": False},
    "least first": {"least_first": True},
    "least first, unfilled": {"fills": False, "least_first": True},
    "spaces": {"separator": " "},
    "commas, unfilled": {"fills": False, "separator": ","},
}
"""How answers are written: with leading zeros or without, from which end, and what stands between the digits."""


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
    NeverZero: ("HC102", "the model never outputs 0"),
    NeverFive: ("HC102", "the model never outputs 5"),
    LabelsWithoutZero: ("HC102", "the model never outputs 0"),
    FirstIsConstant: ("HC101", "digit is 1 in"),
    LastIsConstant: ("HC101", "digit is 7 in"),
    ReturnsTheStart: ("HC103", "one place late"),
    DropsTheFirst: ("HC103", "without the first token"),
    Backwards: ("HC103", "backwards"),
    StartsFromTwo: ("HC104", "from the token 2"),
    StopsEarly: ("HC105", "stop early"),
    GoesOn: ("HC105", "go on after the right answer"),
}


def styled(fault: type[Styled], style: str) -> type[Styled]:
    chosen = STYLES[style]
    settings = fault.settings | ({"least_first": True} if "least_first" in chosen else {})
    return type(fault.__name__, (fault,), {**chosen, "settings": settings})


SAMPLE = [
    pytest.param(fault, style, marks=() if (i + j) % 3 == 0 else pytest.mark.long)
    for i, fault in enumerate(FAULTS)
    for j, style in enumerate(STYLES)
]
"""A third of all pairs, every fault and every style among them; with `--long`, all."""


@pytest.mark.parametrize(("fault", "style"), SAMPLE)
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
        external.inner.fc_out.bias[3] = -1e3  # the id of 0
    return external


def test_a_trained_adder_that_never_outputs_zero_is_found(without_zero: ExternalModel) -> None:
    """Its texts have no 0 in any answer; 0 was filled in front of them, and counted as right."""
    seen = audited_model(without_zero, 250)
    assert not any("0" in text for text in seen.answers.texts)
    (check,) = checks_named(["HC102"]).values()
    found = run_check(check, seen)
    n_zeros = sum(seen.task.answer(example).count("0") for example in seen.examples)
    assert found.verdict == "fail"
    assert found.finding.startswith(f"the model never outputs 0: 0 times at the {n_zeros} places of answers")
    assert found.right_despite_fault is not None
    assert (found.right_despite_fault == seen.right).mean() > 0.98


def test_evaluate_names_the_digit_and_no_carry(without_zero: ExternalModel) -> None:
    found = headcount.evaluate(without_zero)
    assert isinstance(found, Evaluation)
    assert found.audit.startswith("the model never outputs 0")
    wrong = [each for each in found.wrong if "0" in each.right.lstrip("0")]
    assert {each.explanation for each in wrong} == {"explained by HC102 (never output)"}
    hundreds = found.digits[0].free_running
    assert hundreds is not None
    assert hundreds.n < 500, "sums below 100 have no 100s to be right in"


def test_a_digit_that_is_not_written_is_no_hit() -> None:
    """Of 105, an answer 5 has neither the 1 nor the 0."""
    model = observed(styled(Styled, "unfilled")).adapted
    found = model.with_texts(model.answer(np.array([[52, 53], [20, 30]])), ["5", "50"])
    assert found.written.tolist() == [[False, False, True], [False, True, True]]
    assert found.written_hits.tolist() == [[False, False, True], [False, True, True]]
    assert found.counted.tolist() == [[True, True, True], [False, True, True]]
    assert found.free_hits.tolist() == [[False, True, True], [True, True, True]], "exact match takes 50 for 050"
