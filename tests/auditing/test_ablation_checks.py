"""Interventions that do nothing, floors, orders that do not hold, and heads that were never removed together."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from planted import N_HEADS, Attention, D, OrderModel, PlantedAdder, PlantedSorter, SumModel, look, look_at, observed
from torch import Tensor, nn

import headcount
from headcount import Sites
from headcount.auditing import head_sweep
from headcount.auditing.audited_model import AuditedModel, audited_model
from headcount.errors import InputError
from headcount.experiments.models import RunModel

pytestmark = pytest.mark.slow  # seconds together

N_SIGNALS = 8
SOUND = [PlantedAdder, PlantedSorter]


@pytest.fixture(scope="module")
def sample() -> AuditedModel:
    return audited_model(RunModel.of(headcount.load("sample:addition")))


# --- HC701 ------------------------------------------------------------------------------------------------------------


class Dropped(SumModel):
    """A block that is called, and whose output goes nowhere."""

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        self.encoder(self.embed(source))
        return self.right(source, written) + 0.1 * self.head(self.decoder(self.embed(written), causal=True))


class DropsTheEncoder(PlantedAdder):
    model_class = Dropped


class Bypassing(Attention):
    """Computes its output projection without calling it, as fused code does."""

    def forward(self, x: Tensor, visible: Tensor | None = None, *, causal: bool = False) -> Tensor:
        values = self.qkv(x)[..., 2 * D :].cumsum(dim=1)
        return values @ self.out.weight.T + self.out.bias


class Uncalled(SumModel):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = Bypassing()


class NeverCalls(PlantedAdder):
    model_class = Uncalled


class Squashed(Attention):
    """What follows the projection is part of what is named as such."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(D, D), nn.Tanh())  # type: ignore[assignment]


class NotLinear(SumModel):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Squashed()


class NamesMoreThanTheProjection(PlantedAdder):
    model_class = NotLinear


class Valueless(SumModel):
    """The heads of the encoder find zeros: their values were never trained, or pruned away."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.encoder.qkv.weight[2 * D :] = 0
            self.encoder.qkv.bias[2 * D :] = 0


class FindsNothing(PlantedAdder):
    model_class = Valueless


@pytest.mark.parametrize(
    ("faulty", "words"),
    [
        (NeverCalls, "decoder.0.self was called 0 times"),
        (NamesMoreThanTheProjection, "the contributions of the heads and the bias do not sum to the output"),
    ],
)
def test_interventions_that_do_not_act_are_named(faulty: type[PlantedAdder], words: str) -> None:
    found = look("inert-intervention", faulty)
    assert found.verdict == "fail"
    assert words in found.finding


@pytest.mark.parametrize("inert", [FindsNothing, DropsTheEncoder])
def test_heads_that_do_nothing_are_named(inert: type[PlantedAdder]) -> None:
    """A block that the model drops was once refused as an instrument that fails; but its heads truly do nothing."""
    found = look("inert-intervention", inert)
    assert (found.verdict, found.evidence["sites"]) == ("warn", "encoder.0.self")
    assert (
        found.finding == "the heads of encoder.0.self do nothing: removing all of them changes no logit on 64 examples"
    )


@pytest.mark.parametrize("sound", SOUND)
def test_hooks_act_on_sound_models(sound: type[PlantedAdder], sample: AuditedModel) -> None:
    assert look("inert-intervention", sound).verdict == "pass"
    assert look_at("inert-intervention", sample).verdict == "pass"


class SixteenBits(OrderModel):
    """Runs under autocast."""

    def forward(self, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(ids)


class UnderAutocast(PlantedSorter):
    model_class = SixteenBits


@pytest.mark.parametrize("check", ["inert-intervention", "never-together"])
def test_heads_of_a_model_under_autocast_can_be_removed(check: str) -> None:
    assert look(check, UnderAutocast).verdict == "pass"


# --- HC702 ------------------------------------------------------------------------------------------------------------


class OneAnswer(OrderModel):
    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return torch.zeros(len(ids), dtype=torch.bool)


class Unsorted(PlantedSorter):
    model_class = OneAnswer


class Mute(PlantedAdder):
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return ["no" for _ in questions]


class MostlyMute(PlantedAdder):
    """Right where both numbers are below 30: 5 % of them."""

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        small = [max(map(int, question.split("+"))) < 30 for question in questions]
        return [a if is_small else "no" for a, is_small in zip(super().generate(model, questions), small, strict=True)]


def test_a_floor_is_named() -> None:
    found = look("floor", Unsorted)
    assert found.verdict == "fail"
    assert found.finding.startswith("50.0 % of 400 answers are right, and the best constant answer reaches 50.0 %")
    assert look("floor", Mute).finding.startswith(
        "0 % of 400 answers are right, and the best constant answer reaches 1"
    )


def test_what_is_near_a_floor_is_a_warning() -> None:
    found = look("floor", MostlyMute)
    assert found.verdict == "warn"
    assert "ablating heads can lower accuracy by at most" in found.finding


def test_few_examples_are_a_warning() -> None:
    found = look("floor", PlantedAdder, n=60)
    assert found.verdict == "warn"
    assert "one example is worth 1.7 percentage points" in found.finding
    assert look("floor", Unsorted, n=60).verdict == "warn"


@pytest.mark.parametrize("sound", SOUND)
def test_sound_models_have_room(sound: type[PlantedAdder], sample: AuditedModel) -> None:
    assert look("floor", sound).verdict == "pass"
    assert look_at("floor", sample).verdict == "pass"


# --- HC703 and HC704: heads whose outputs are known, one number each --------------------------------------------------


class Signals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(N_SIGNALS, N_SIGNALS, bias=False)
        nn.init.eye_(self.out.weight)

    def forward(self, z: Tensor) -> Tensor:
        return self.out(z)


class SignalModel(SumModel):
    """Right as long as its heads say what they should; `broken` is told what reaches the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.signals = Signals()

    def draw(self, source: Tensor, n: int) -> Tensor:
        """[row, n] numbers in [0, 1) that go with an example."""
        code = (source * torch.tensor([7919, 104729, 0, 1299709, 15485863])).sum(dim=1)
        generators = (torch.Generator().manual_seed(int(each)) for each in code)
        return torch.stack([torch.rand(n, generator=each) for each in generators])

    def said(self, source: Tensor) -> Tensor:
        """[row, head]: an example's own numbers, -1 or 1."""
        return 2.0 * (self.draw(source, N_SIGNALS) < 0.5) - 1

    def broken(self, source: Tensor, heard: Tensor) -> Tensor:
        """[row]: without head h, a share of examples that grows with h."""
        shares = torch.linspace(0, 0.7, N_SIGNALS)
        return ((heard.abs() < 0.5) & (self.draw(source, 2 * N_SIGNALS)[:, N_SIGNALS:] < shares)).any(dim=1)

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        heard = self.signals(self.said(source)[:, None].expand(-1, written.shape[1], -1))
        logits = super().forward(source, written) + 0.01 * heard.sum(dim=-1, keepdim=True)
        wrong = self.broken(source, heard[:, 0])[:, None, None]
        return torch.where(wrong, logits.roll(1, dims=-1), logits)


class Signalling(PlantedAdder):
    """Heads that cost from 0 to 70 points, by zero and by mean alike."""

    model_class: type[nn.Module] = SignalModel
    settings = PlantedAdder.settings | {"n_test": 200}

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, layer="signals.out", n_heads=N_SIGNALS)


class TwoKinds(SignalModel):
    """Four heads say a constant that is counted on, four a number of the example whose mean means nothing."""

    def said(self, source: Tensor) -> Tensor:
        return torch.cat([torch.ones(len(source), 4), super().said(source)[:, 4:] + 1], dim=1)

    def broken(self, source: Tensor, heard: Tensor) -> Tensor:
        shares = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.1, 0.3, 0.5, 0.7])
        is_odd = torch.cat([heard[:, :4].abs() < 0.5, (heard[:, 4:] - 1).abs() < 0.5], dim=1)
        return (is_odd & (self.draw(source, 2 * N_SIGNALS)[:, N_SIGNALS:] < shares)).any(dim=1)


class DependsOnTheReplacement(Signalling):
    model_class = TwoKinds


class AllAlike(SignalModel):
    """Every head costs 10 points, of other examples: which costs most is luck."""

    def broken(self, source: Tensor, heard: Tensor) -> Tensor:
        return ((heard.abs() < 0.5) & (self.draw(source, 2 * N_SIGNALS)[:, N_SIGNALS:] < 0.1)).any(dim=1)


class RankedByLuck(Signalling):
    model_class = AllAlike


class Backups(SignalModel):
    """Any three heads will do."""

    def broken(self, source: Tensor, heard: Tensor) -> Tensor:
        return (heard.abs() > 0.5).sum(dim=1) < 3


class StandInForEachOther(Signalling):
    model_class = Backups


def test_an_order_that_holds_is_none_of_its_business() -> None:
    found = look("unstable-ranking", Signalling)
    assert found.verdict == "pass"
    assert found.evidence["between_halves"] > 0.8
    assert found.evidence["zero_and_mean"] > 0.8


def test_an_order_that_depends_on_the_replacement_is_named() -> None:
    found = look("unstable-ranking", DependsOnTheReplacement)
    assert found.verdict == "warn"
    assert "depends on the kind of ablation: its rank correlation between zero and mean ablation is -" in found.finding


def test_an_order_that_depends_on_the_examples_is_named() -> None:
    found = look("unstable-ranking", RankedByLuck)
    assert found.verdict == "warn"
    assert "depends on the examples: its rank correlation between two halves of 200 examples" in found.finding


def test_where_nothing_costs_anything_there_is_no_order() -> None:
    found = look("unstable-ranking", StandInForEachOther)
    assert found.verdict == "pass"
    assert found.finding.endswith("nothing to rank")
    assert look("unstable-ranking", PlantedAdder).verdict == "not applicable"


def test_heads_that_stand_in_for_each_other_are_named() -> None:
    found = look("never-together", StandInForEachOther)
    assert found.verdict == "pass", "nobody has called them prunable"
    assert found.finding == (
        "8 of 8 heads each cost under 1 point alone; if all of these are removed, 0 % of 200 examples are right "
        "(with all heads: 100 %); no stored result calls heads prunable from single ablations"
    )


@pytest.mark.parametrize("sound", [*SOUND, Signalling])
def test_heads_that_can_be_spared_together_are_not(sound: type[PlantedAdder]) -> None:
    assert look("never-together", sound).verdict == "pass"


def test_of_a_sample_the_order_holds_and_the_cheap_heads_do_not_add_up(sample: AuditedModel) -> None:
    assert look_at("unstable-ranking", sample).verdict == "pass"
    found = look_at("never-together", sample)  # as every report found out, or did not
    assert found.verdict == "pass"
    assert found.evidence["cheap"] > 12
    assert found.evidence["left"] < 0.5


def test_heads_that_were_ablated_alone_and_never_together_are_warned_of(tmp_path: Path) -> None:
    shutil.copytree(headcount.load("sample:addition").folder.path, tmp_path / "run")
    results = tmp_path / "run" / "results"
    for name, verdict in (("ablation-zero.json", "warn"), ("pruning.json", "pass")):
        (results / name).write_text("{}")
        found = look_at("never-together", audited_model(RunModel.of(headcount.load(tmp_path / "run")), 100))
        assert found.verdict == verdict, name
        assert "if all of these are removed" in found.finding


def test_one_sweep_serves_both(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = observed(Signalling)
    first = seen.head_sweep
    monkeypatch.setattr(head_sweep, "run_interventions", None)
    assert seen.head_sweep is first
    assert len(first.heads) == N_SIGNALS != N_HEADS


def test_too_many_heads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_sweep, "MAX_HEADS", 4)
    with pytest.raises(InputError, match="the model has 8 heads, but an audit ablates heads only if there are 2 to 4"):
        _ = observed(Signalling).head_sweep
    assert look("never-together", Signalling).verdict == "not applicable"
