"""Adapters with data of their own: audited and evaluated on the author's sets, leaks and claims included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from planted import OrderModel, PlantedAdder, PlantedSorter, audit, look, observed
from torch import Tensor, nn

from headcount import Adapter, ablate_heads
from headcount.auditing.audit import checks_named, run_checks
from headcount.cli import main
from headcount.describing.sections.ablation import describe
from headcount.rendering.markdown import markdown_text

Pairs = Sequence[tuple[str, str]]


def sums(*numbers: int) -> Pairs:
    return [(f"{a}+{b}", str(a + b).zfill(3)) for a in numbers for b in range(10, 30)]


class OwnAdder(PlantedAdder):
    """The sound adder, on sums of its author's."""

    task, settings = None, {}  # type: ignore[assignment]

    def data(self) -> Pairs:
        return sums(*range(31, 46))

    def training_data(self) -> Pairs:
        return sums(*range(61, 99))


class LeakyAdder(OwnAdder):
    def training_data(self) -> Pairs:
        return [*sums(*range(61, 99)), *self.data()[:100]]


class FirstDigit(OwnAdder):
    """Claims what it has without its last digit."""

    claimed = 1.0

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [answer[:-1] + "7" for answer in super().generate(model, questions)]

    def metric(self, question: str, answer: str, predicted: str) -> float:
        return float(answer[:-1] == predicted[:-1])


class OwnSorter(PlantedSorter):
    task, settings, trained = None, {}, None  # type: ignore[assignment]

    def data(self) -> Pairs:
        rising = [" ".join(str(start + i * step) for i in range(8)) for start in range(30) for step in range(1, 9)]
        mixed = [" ".join([*each.split()[4:], *each.split()[:4]]) for each in rising]
        return [*((each, "sorted") for each in rising), *((each, "unsorted") for each in mixed)]


class OneAnswer(OwnSorter):
    class model_class(OrderModel):  # noqa: N801
        def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
            return super().is_sorted(ids, visible) | True


class FiveClasses(OwnSorter):
    """More than two classes, and nothing learned."""

    class model_class(OrderModel):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.tokens.weight.data *= 5
            self.head = nn.Linear(8, 5, bias=False)

        def forward(self, ids: Tensor) -> Tensor:
            visible = (ids != 100)[..., None]
            attended = self.attention(self.embed(ids), visible[..., 0]) * visible
            return self.head(attended.sum(dim=1) / visible.sum(dim=1))

    def data(self) -> Pairs:
        rows = [[(i * 29 + j * 13 + i * i * j) % 91 for j in range(8 + i % 3)] for i in range(200)]
        return [(" ".join(map(str, row)), "abcde"[row[0] % 5]) for row in rows]

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        return super().encode(questions, answers)[0], torch.tensor(["abcde".index(answer) for answer in answers])

    def metric(self, question: str, answer: str, predicted: str) -> float:
        return 1 - abs("abcde".index(answer) - "abcde".index(predicted)) / 4


@pytest.mark.slow
def test_more_than_two_classes() -> None:
    found = audit(FiveClasses)
    assert found.measured < 0.4
    assert [each.id for each in found.of("fail")][:1] == ["HC304"]
    assert "was predicted" in found.common_error
    assert "Error" not in " ".join(each.finding for each in found.of("not applicable"))


class Equal(OwnAdder):
    def data(self) -> Pairs:
        return [("11+11", "022")] * 30


def test_answers_that_are_all_equal_are_evaluated() -> None:
    """There is no other character to put in the place of one."""
    found = run_checks(observed(Equal), checks_named(["HC101", "HC102"]))
    assert found.n == 30


@pytest.mark.parametrize(("adapter", "name"), [(FirstDigit, "own-teacher-forced"), (FiveClasses, "own")])
def test_heads_are_ablated_by_the_authors_metric(adapter: type[Adapter], name: str) -> None:
    """The mean of metric() over answers of the whole model, read off one pass."""
    model = observed(adapter).opened
    found = ablate_heads(model, metric=name, replacements=["zero"], quiet=True).result
    assert (found.metric, found.unit, found.is_accuracy) == (name, "points", False)
    assert "rho" not in markdown_text(describe(found)), "a share, and no correlation"
    audited = observed(adapter)
    if adapter is FirstDigit:
        assert found.conditions[0].clean == 1
        return
    predicted = [audited.task.classes[i] for i in audited.classify(audited.task.split("test")).predicted]
    marks = [adapter().metric(*pair, text) for pair, text in zip(adapter().data(), predicted, strict=True)]
    assert found.conditions[0].clean == pytest.approx(sum(marks) / len(marks))
    assert any(abs(effect.drop) > 1e-3 for effect in found.heads), "heads matter to it"


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [OwnAdder, OwnSorter])
def test_a_sound_model_is_audited_on_its_authors_data(adapter: type[Adapter]) -> None:
    found = audit(adapter)
    assert found.measured == 1
    assert not found.of("fail"), [each.finding for each in found.of("fail")]
    assert len(found.of("pass")) > 10
    reasons = " ".join(each.finding for each in found.of("not applicable"))
    assert "Error" not in reasons, "what cannot be asked is said in a sentence"


def test_a_leak_into_the_authors_own_test_set() -> None:
    assert look("HC401", OwnAdder).finding == "none of 300 test examples is in the author's training set"
    found = look("HC401", LeakyAdder)
    assert found.verdict == "fail"
    assert found.finding.startswith("100 of 300 test examples are in the author's training set")


def test_a_leak_into_the_test_set_of_a_named_task() -> None:
    """By the author's training set, and not by headcount's."""

    class Named(PlantedAdder):
        def training_data(self) -> Pairs:
            task = observed(PlantedAdder).task
            return [(task.show(each), task.answer(each)) for each in task.split("test")[:90]]

    found = look("HC401", Named)
    assert found.verdict == "fail"
    assert found.finding.startswith("90 of 400 test examples are in the author's training set")
    assert "not known" not in found.finding


def test_a_claim_is_held_against_the_authors_test_set() -> None:
    found = look("HC802", FirstDigit)
    assert found.verdict == "warn"
    assert "metric() of FirstDigit (100 %)" in found.finding


def test_one_answer_to_everything_is_seen() -> None:
    assert look("HC301", OneAnswer).verdict == "fail"
    assert observed(OneAnswer).common_error == "240 of 240 errors: “sorted” was predicted, “unsorted” was right"


def test_evaluate_and_audit_take_data(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "from test_own_data import FirstDigit\n\n\nclass Model(FirstDigit):\n    pass\n"
    Path("my_adapter.py").write_text(text)
    assert main(["evaluate", "my_adapter.py:Model", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exact"]["free_running"]["correct"] == 30
    assert found["claim"]["measured"] == 1
    assert found["common_error"].startswith("270 of 270 errors: the 3. place was wrong")
    assert main(["audit", "my_adapter.py:Model", "--only", "HC401,HC802", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "the author's data"
    assert main(["evaluate", "my_adapter.py:Model", "--split", "validation"]) == 2
    assert "have no split 'validation'" in capsys.readouterr().err


def test_an_adapter_without_task_and_data_is_told_what_to_write(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "from planted import PlantedAdder\n\n\nclass Model(PlantedAdder):\n    task, settings = None, {}\n"
    Path("my_adapter.py").write_text(text)
    assert main(["audit", "my_adapter.py:Model"]) == 2
    told = capsys.readouterr().err
    assert "or write data()" in told
    assert "--data FILE" not in told, "which an adapter refuses"
