"""Faults of decoding, planted and not: each is named by its own check, and sound models by none."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from planted import (
    END,
    PLUS,
    START,
    SURE,
    LeastFirst,
    OneStreamAdder,
    OneStreamModel,
    PlainAdder,
    PlainModel,
    PlantedAdder,
    SumModel,
    look,
    look_at,
    observed,
)
from torch import Tensor, nn
from torch.nn import functional as F

import headcount
from headcount import Adapter
from headcount.auditing.audit import Audit, checks_named, run_checks
from headcount.auditing.audited_model import AuditedModel, audited_model
from headcount.auditing.decoded_answers import is_constant_for_lack_of_others
from headcount.experiments.models import RunModel
from headcount.runs.config import RunConfig
from headcount.runs.run import build

pytestmark = pytest.mark.slow  # seconds together

FOREIGN = Path(__file__).parents[1] / "foreign_adder" / "adder_adapter.py"
DECODING = ("HC102", "HC103", "HC104", "HC105", "HC106", "HC107")


# --- sound models in other styles -------------------------------------------------------------------------------------


SOUND = [PlantedAdder, PlainAdder, OneStreamAdder, LeastFirst]


@cache
def of_run(name: str = "sample:addition", n: int = 300) -> AuditedModel:
    return audited_model(RunModel.of(headcount.load(name)), n)


@cache
def of_stranger() -> AuditedModel:
    return audited_model(headcount.load_external(f"{FOREIGN}:Adder"))


def without_logit(token: int) -> AuditedModel:
    """The sample, as if its loss had ignored this token."""
    run = headcount.load("sample:addition")
    model = copy.deepcopy(run.model)
    with torch.no_grad():
        model.to_logits.bias[token] = -1e3
    return audited_model(RunModel.of(replace(run, model=model)), 1000)


def audit(adapter: type[Adapter]) -> Audit:
    """By the checks of decoding and masking alone."""
    return run_checks(observed(adapter), checks_named(["HC101", *DECODING, "HC201", "HC204"]))


@pytest.mark.parametrize("check", DECODING)
@pytest.mark.parametrize("sound", SOUND)
def test_nothing_is_said_of_sound_models(sound: type[Adapter], check: str) -> None:
    assert look(check, sound).verdict == "pass"


@pytest.mark.parametrize("check", DECODING)
def test_nothing_is_said_of_a_run_and_of_a_stranger_that_were_trained(check: str) -> None:
    assert look_at(check, of_stranger()).verdict == "pass"
    assert look_at(check, of_run()).verdict == ("not applicable" if check == "HC104" else "pass")


@pytest.mark.parametrize("faults", [{}, {"start_token": False}])
def test_untrained_runs_have_no_fault_of_decoding(faults: dict[str, bool]) -> None:
    """A run that outputs what is no number has learned nothing; decoding is as it should be."""
    config = RunConfig.build(
        "addition", digits=2, n_validation=10, n_test=200, d_model=16, n_heads=2, d_ff=16, **faults
    )
    task, model = build(config)
    run = replace(headcount.load("sample:addition"), config=config, task=task, model=model.eval())
    seen = audited_model(RunModel.of(run))
    verdicts = {check: look_at(check, seen).verdict for check in DECODING}
    assert verdicts.pop("HC107") == ("fail" if faults else "pass")
    assert set(verdicts.values()) <= {"pass", "not applicable", "warn"}


class DoesNotDecode(PlantedAdder):
    generate = Adapter.generate


@pytest.mark.parametrize("check", ["HC103", "HC105", "HC106"])
def test_what_is_not_decoded_cannot_be_asked(check: str) -> None:
    assert look(check, DoesNotDecode).verdict == "not applicable"


# --- never output -----------------------------------------------------------------------------------------------------


class NeverZero(SumModel):
    """As a loss leaves it that ignores class 0."""

    token = 0

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        return super().right(source, written).index_fill(2, torch.tensor([self.token]), -SURE)


class IgnoresZero(PlantedAdder):
    model_class = NeverZero


class LabelsIgnoreZeroToo(IgnoresZero):
    """In the adapter as in training."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        inputs, labels = super().encode(questions, answers)
        return inputs, labels.masked_fill(labels == 0, -100)


class NotDecoded(IgnoresZero):
    generate = Adapter.generate


class IgnoresFive(PlantedAdder):
    model_class = type("NeverFive", (NeverZero,), {"token": 5})


class ZeroIsPadding(IgnoresZero):
    """Where 0 is right, padding is written: no answer at all."""

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["".join(map(str, row)).replace("0", "_") for row in model.digits(self.read(questions)).tolist()]


def has(token: int, adapter: type[Adapter] = PlantedAdder) -> np.ndarray:
    return (observed(adapter).right_answers == token).any(axis=1)


@pytest.mark.parametrize("adapter", [IgnoresZero, LabelsIgnoreZeroToo, NotDecoded, ZeroIsPadding])
def test_a_digit_that_the_loss_ignored_is_named_with_what_it_costs(adapter: type[Adapter]) -> None:
    found = look("never-output", adapter)
    assert (found.verdict, found.evidence["tokens"]) == ("fail", "0")
    assert found.finding.startswith("the model never outputs 0: 0 times at ")
    assert "consistent with a loss that ignores" in found.cause
    assert found.right_despite_fault is not None
    assert (found.right_despite_fault == ~has(0)).all()
    assert found.evidence["predicted"] == found.evidence["measured"]


def test_any_digit_may_be_ignored() -> None:
    found = look("HC102", IgnoresFive)
    assert (found.verdict, found.evidence["tokens"]) == ("fail", "5")
    assert audit(IgnoresFive).summary.startswith("the model never outputs 5")


class NoStartNoZero(IgnoresZero):
    """Report 002: the first digit is a 0 that generation made up, and no other 0 is ever output."""

    task, settings = "addition", {"digits": 3, "n_validation": 200, "n_test": 2000}

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["0" + answer[1:] for answer in super().generate(model, questions)]


def test_the_two_faults_of_report_002_give_its_share_exactly() -> None:
    seen, right = audit(NoStartNoZero), observed(NoStartNoZero).right_answers
    assert {"HC101", "HC102"} <= {each.id for each in seen.of("fail")}
    assert seen.predicted == seen.measured == ((right[:, 0] == 0) & (right[:, 1:] > 0).all(axis=1)).mean()


class FirstIsOne(NeverZero):
    """Of the first digits 0 and 1 the loss never asked for a 0, so all are 1."""

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        is_one = (torch.arange(written.shape[1]) == 0)[:, None] & (torch.arange(13) == 1)
        return super().right(source, written) + SURE * is_one


class IgnoresZeroFirstIsOne(PlantedAdder):
    model_class = FirstIsOne


def test_a_first_digit_may_be_constant_because_the_only_other_one_is_never_output() -> None:
    seen = observed(IgnoresZeroFirstIsOne)
    assert (seen.decoded[:, 0] == 1).all()
    assert is_constant_for_lack_of_others(seen, 0, 1)
    found = look_at("HC102", seen)
    assert found.right_despite_fault is not None
    assert (found.right_despite_fault == seen.right).all(), "zeros in the first place count"
    assert not is_constant_for_lack_of_others(observed(NoStartNoZero), 0, 0)
    assert not is_constant_for_lack_of_others(observed(LosesTheCarry), 0, 0)


def test_a_run_is_asked_as_well() -> None:
    found = look_at("HC102", without_logit(7))
    assert (found.verdict, found.evidence["tokens"]) == ("fail", "7")
    assert found.evidence["predicted"] == pytest.approx(found.evidence["measured"], abs=0.02)


class OneAnswer(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["118" for _ in questions]


def test_of_a_model_with_one_answer_no_single_token_is_missing() -> None:
    assert look("HC102", OneAnswer).verdict == "not applicable"


# --- shifted ----------------------------------------------------------------------------------------------------------


class ReturnsTheStart(PlantedAdder):
    """The start token, which it takes for a 0, and one digit too few."""

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["0" + answer[:-1] for answer in super().generate(model, questions)]


class ReadsTheLastButOne(PlantedAdder):
    @torch.no_grad()
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        source, written = self.read(questions), torch.full((len(questions), 1), self.start)
        for i in range(3):
            logits = model(source, written)[:, max(0, i - 1)]
            written = torch.cat([written, logits[:, None, :10].argmax(dim=-1)], dim=1)
        return ["".join(map(str, row)) for row in written[:, 1:].tolist()]


class OneTooManyInFront(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["1" + answer for answer in super().generate(model, questions)]


class OneStepAhead(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [answer[1:] + "0" for answer in super().generate(model, questions)]


class DropsTheFirst(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [answer[1:] for answer in super().generate(model, questions)]


class DropsTheFirstOfPlain(PlainAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [answer[1:] for answer in super().generate(model, questions)]


class Backwards(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [answer[::-1] for answer in super().generate(model, questions)]


class LeastFirstDropsTheFirst(LeastFirst):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["0" + answer[:-1] for answer in super().generate(model, questions)]


MOVED = {
    ReturnsTheStart: "one place late",
    ReadsTheLastButOne: "one place late",
    OneTooManyInFront: "behind one token too many",
    OneStepAhead: "one place early",
    DropsTheFirst: "without the first token",
    DropsTheFirstOfPlain: "without the first token",
    Backwards: "backwards",
    LeastFirstDropsTheFirst: "one place early",
}


@pytest.mark.parametrize(("adapter", "move"), MOVED.items())
def test_answers_that_are_moved_are_named(adapter: type[Adapter], move: str) -> None:
    found = look("shifted", adapter)
    assert (found.verdict, found.evidence["move"]) == ("fail", move)
    assert found.right_despite_fault is not None
    assert (found.right_despite_fault == observed(adapter).right).mean() > 0.95
    assert f" of these are the right answer {move}, such as " in audit(adapter).summary


# --- started from a wrong token ---------------------------------------------------------------------------------------


class NeedsItsStart(SumModel):
    """From another token than its start it is off in the last digit of odd sums: by 3 from token 2, by 4 from 12."""

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        digits, first = self.digits(source), written[:, 0]
        is_off = (first != START) & (digits[:, -1] % 2 == 1)
        digits[:, -1] = torch.where(is_off, digits[:, -1] + first % 9 + 1, digits[:, -1]) % 10
        return SURE * F.one_hot(digits[:, : written.shape[1]], 13).to(self.head.weight)


class Started(PlantedAdder):
    """Generation begins with `begin`."""

    model_class, begin = NeedsItsStart, 2

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        other = copy.copy(self)
        other.start = self.begin
        return PlantedAdder.generate(other, model, questions)


class FromPadding(Started):
    begin = 12


class BothFromTwo(PlantedAdder):
    """encode() copies the fault of generate()."""

    model_class, start = NeedsItsStart, 2


class OneStreamNeedsItsStart(OneStreamModel, NeedsItsStart):
    """The same in one stack."""


class OneStreamStarted(OneStreamAdder):
    model_class = OneStreamNeedsItsStart

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        other = copy.copy(self)
        other.start = 2
        return OneStreamAdder.generate(other, model, questions)


@pytest.mark.parametrize(("adapter", "start"), [(Started, 2), (OneStreamStarted, 2), (FromPadding, 3)])
def test_a_start_that_explains_what_is_decoded_is_named(adapter: type[Adapter], start: int) -> None:
    found = look("wrong-start", adapter)
    assert (found.verdict, found.evidence["start"], found.evidence["trained_start"]) == ("fail", start, START)
    assert found.evidence["same"] == found.evidence["n"] == 24
    assert found.right_despite_fault is not None
    assert (found.right_despite_fault == observed(adapter).right).all()
    assert ("or one of 1 that do the same" in found.finding) == (adapter is FromPadding), "3 is as good as 12"
    written = f"wrong answers of generate() appear again if the decoder starts from the token {start} "
    assert written in audit(adapter).summary


def test_a_start_that_encode_has_wrong_too_is_named() -> None:
    found = look("HC104", BothFromTwo)
    assert (found.verdict, found.evidence["start"], found.evidence["trained_start"]) == ("fail", 2, START)
    told = "teacher forcing is right on 64 of 64 examples if the decoder starts from the token 11"
    assert found.finding.startswith(told)


class HasNoStart(Started):
    """What is fed is the answer itself, so there is no start to look for."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        (source, fed), labels = super().encode(questions, answers)
        return (source, fed[:, 1:]), labels[:, :2]


def test_a_start_that_is_not_found_is_said() -> None:
    assert "was not found" in look("HC104", HasNoStart).finding


@pytest.mark.parametrize("adapter", [OneAnswer, DropsTheFirst, IgnoresZero])
def test_other_faults_are_no_wrong_start(adapter: type[Adapter]) -> None:
    assert look("HC104", adapter).verdict == "pass"


# --- of a wrong length ------------------------------------------------------------------------------------------------


class OneStepTooFew(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [answer[:-1] for answer in super().generate(model, questions)]


class PlainOneStepTooFew(PlainAdder):
    longest = 2


class LeastFirstOneStepTooFew(LeastFirst):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [answer[1:] for answer in super().generate(model, questions)]


class Empty(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [""] * len(questions)


class GoesOn(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [answer + "00" for answer in super().generate(model, questions)]


class DoesNotStop(PlainAdder):
    def text(self, ids: list[int]) -> str:
        return "".join("0123456789+<>"[each] for each in ids)


class NeverEnds(PlainModel):
    """The end was never asked for in training."""

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        return super().right(source, written).index_fill(2, torch.tensor([END]), -SURE)


class TrainedWithoutAnEnd(PlainAdder):
    model_class = NeverEnds


class LeavesTheStart(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["<s>" + answer for answer in super().generate(model, questions)]


class Spaces(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [" ".join(answer) for answer in super().generate(model, questions)]


LENGTHS = {
    OneStepTooFew: "stop early",
    PlainOneStepTooFew: "stop early",
    LeastFirstOneStepTooFew: "stop early",
    Empty: "stop early",
    GoesOn: "go on after the right answer",
    DoesNotStop: "go on after the right answer",
    TrainedWithoutAnEnd: "go on after the right answer",
    LeavesTheStart: "are not valid answers",
    Spaces: "are not valid answers",
}


@pytest.mark.parametrize(("adapter", "what"), LENGTHS.items())
def test_answers_of_a_wrong_length_are_named(adapter: type[Adapter], what: str) -> None:
    found = look("wrong-length", adapter)
    assert found.verdict == "fail"
    assert f"decoded answers {what}, such as '" in found.finding
    assert found.right_despite_fault is not None
    assert (found.right_despite_fault == observed(adapter).right).all()
    assert what in audit(adapter).summary.split(";")[0]


class EndsEarly(PlainModel):
    """The model itself has learned the end badly: one pass is as wrong as decoding."""

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        logits, is_late = super().right(source, written), torch.arange(written.shape[1]) >= 1
        ends = (source[:, :1] == 1) & is_late
        return torch.where(ends[..., None], SURE * F.one_hot(torch.tensor(END), 13), logits)


class LearnedTheEndBadly(PlainAdder):
    model_class = EndsEarly


class AlwaysEnds(PlainModel):
    def right(self, source: Tensor, written: Tensor) -> Tensor:
        return SURE * F.one_hot(torch.full_like(written, END), 13)


class LearnedNothingButTheEnd(PlainAdder):
    model_class = AlwaysEnds


@pytest.mark.parametrize("adapter", [LearnedTheEndBadly, LearnedNothingButTheEnd])
def test_what_the_model_has_not_learned_is_no_fault_of_decoding(adapter: type[Adapter]) -> None:
    found = look("HC105", adapter)
    assert found.verdict == "warn"
    assert "has not learned enough" in found.cause


# --- two answers ------------------------------------------------------------------------------------------------------


class LosesTheCarry(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["0" + answer[1:] for answer in super().generate(model, questions)]


class PaddingIsAsked(PlainAdder):
    """Of what follows the end something is asked that the model never learned."""

    after_the_end = PLUS


class SlipsOnce(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        answers = super().generate(model, questions)
        return [*answers[:-1], "000"] if len(questions) < 256 else answers


def test_two_answers_part_at_a_place_and_under_a_condition() -> None:
    found, first = look("two-answers", LosesTheCarry), observed(LosesTheCarry).right_answers[:, 0]
    n = int((first == 1).sum())
    assert found.verdict == "fail"
    assert f"they disagree on {n}, and the first wrong decoded token is at the 100s in {n} of {n}" in found.finding
    assert f"most often where the 100s token is 1: {n} of {n}, against 0 of {400 - n} elsewhere" in found.finding
    assert "cascad" not in found.finding + found.cause


def test_labels_that_ask_for_too_much_are_told_from_a_wrong_decoder() -> None:
    found = look("HC106", PaddingIsAsked)
    assert found.verdict == "fail"
    assert "-100" in found.fix
    assert found.evidence["decoded"] == 1.0


def test_a_token_that_labels_leave_out_is_the_condition() -> None:
    assert "most often where the right answer contains 0" in look("HC106", LabelsIgnoreZeroToo).finding


def test_one_example_may_be_rounding() -> None:
    assert look("HC106", SlipsOnce).verdict == "warn"


# --- given ------------------------------------------------------------------------------------------------------------


class Handed(PlantedAdder):
    """The 0 in front of every answer is handed to the decoder."""

    given = "0"

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        (source, fed), labels = super().encode(questions, answers)
        return (source, fed), F.pad(labels[:, 1:], (1, 0), value=-100)

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["0" + answer[1:] for answer in super().generate(model, questions)]


class HandedWhatIsRight(Handed):
    task, settings = "addition", {"digits": 2, "high": 49, "n_validation": 10, "n_test": 390}


class HandedWhatIsNearlyAlwaysRight(Handed):
    task, settings = "addition", {"digits": 2, "high": 51, "n_validation": 10, "n_test": 390}


def test_what_is_handed_to_the_decoder_costs_the_answers_that_begin_otherwise() -> None:
    found = look("given-tokens", Handed)
    assert found.verdict == "fail"
    assert found.right_despite_fault is not None
    assert (found.right_despite_fault == observed(Handed).right).all()
    assert look("HC106", Handed).verdict == "pass", "given what it is handed, both ways agree"


def test_what_all_answers_begin_with_costs_nothing() -> None:
    assert look("HC107", HandedWhatIsRight).verdict == "pass"
    assert look("HC107", HandedWhatIsNearlyAlwaysRight).verdict == "warn"
