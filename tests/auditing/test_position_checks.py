"""Positions that were never trained, run out, are weak, depend on the length, or do not arrive; and sound ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from planted import N_HEADS, D, OrderModel, PlantedAdder, PlantedSorter, SumModel, look, look_at, observed
from torch import Tensor, nn
from torch.nn import functional as F

import headcount
from headcount import Adapter, Sites
from headcount.auditing.audited_model import AuditedModel, audited_model
from headcount.experiments.external_models import ExternalModel
from headcount.experiments.models import RunModel
from headcount.external.adapter import load_adapted, load_adapter
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder
from headcount.runs.run import Run, build

pytestmark = pytest.mark.slow  # seconds together

SMALL = {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_layers": 1, "pooling": "mean", "n_validation": 20, "n_test": 200}
FOREIGN = Path(__file__).parents[1]


def sample(name: str) -> AuditedModel:
    return audited_model(RunModel.of(headcount.load(f"sample:{name}")))


def untrained(**settings: Any) -> AuditedModel:
    """A sortedness run of headcount's own, as training begins."""
    config = RunConfig.build("sortedness", **(SMALL | settings))
    task, model = build(config)
    return audited_model(RunModel.of(Run("untrained", RunFolder(Path("nowhere")), config, task, model.eval(), "")))


def foreign(name: str) -> AuditedModel:
    """A trained model of others."""
    adapter = load_adapter(f"{FOREIGN}/{name}")
    return audited_model(ExternalModel.opened(load_adapted(adapter), name, adapter=adapter))


def sorter(model: type[nn.Module], base: type[Adapter] = PlantedSorter) -> type[Adapter]:
    return type(model.__name__, (base,), {"model_class": model})


def sinusoids(places: Tensor) -> Tensor:
    angle = places[..., None].float() * 10000.0 ** (-torch.arange(0, D, 2) / D)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


# --- what must be silent ---------------------------------------------------------------------------------------------


class Sinusoidal(OrderModel):
    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + sinusoids(torch.arange(ids.shape[1]))


class NoPositions(OrderModel):
    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids)


class OwnTable(OrderModel):
    """A parameter that is sliced."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(512, D))

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.table[: ids.shape[1]]


class ClassToken(OrderModel):
    """Put in front inside the model, which has a place of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.randn(1, 1, D))

    def embed(self, ids: Tensor) -> Tensor:
        x = torch.cat([self.cls.expand(len(ids), -1, -1), self.tokens(ids)], dim=1)
        return x + self.places(torch.arange(x.shape[1]))

    def forward(self, ids: Tensor) -> Tensor:
        visible = ids != 100
        read = self.attention(self.embed(ids), F.pad(visible, (1, 0), value=True))[:, 0]
        return 10 * F.one_hot(self.is_sorted(ids, visible).long(), 2) + 0.1 * self.head(read)


class TorchLayers(OrderModel):
    """PyTorch's own layer, with positions first; it writes into its stream."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(D, N_HEADS, 16, norm_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        visible = ids != 100
        x = self.embed(ids).transpose(0, 1)
        read = self.layer(x, src_key_padding_mask=~visible).transpose(0, 1).mean(dim=1)
        return 10 * F.one_hot(self.is_sorted(ids, visible).long(), 2) + 0.1 * self.head(read)


class TorchSorter(PlantedSorter):
    model_class = TorchLayers

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, layer="layer.self_attn")


class FlatModel(OrderModel):
    """All in one forward(), without a module around attention, which is written to in place."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        x, visible = self.embed(ids), ids != 100
        scores = (self.q(x) @ self.k(x).transpose(1, 2)).masked_fill(~visible[:, None], -1e9)
        x += self.out(scores.softmax(dim=-1) @ self.v(x))
        return 10 * F.one_hot(self.is_sorted(ids, visible).long(), 2) + 0.1 * self.head(x.mean(dim=1))


class FlatSorter(PlantedSorter):
    model_class = FlatModel

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, layer="out", n_heads=N_HEADS)


class FillsUpInFront(PlantedSorter):
    """Sixteen tokens always, padding first."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        rows = [[int(word) for word in question.split()] for question in questions]
        if max(map(len, rows)) > 16:
            raise ValueError("16 numbers at most")
        ids = torch.tensor([[self.pad] * (16 - len(row)) + row for row in rows])
        return ids, torch.tensor([int(answer == "sorted") for answer in answers])


class Convolved(NoPositions):
    """Neighbours are mixed before attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(D, D, 3, padding=1)

    def embed(self, ids: Tensor) -> Tensor:
        return self.conv(self.tokens(ids).transpose(1, 2)).transpose(1, 2)


class Normalised(OrderModel):
    """By all tokens of the sequence, and so by its length too."""

    def embed(self, ids: Tensor) -> Tensor:
        x = super().embed(ids)
        return x - 3 * x.mean(dim=1, keepdim=True)


class RandomPositions(OrderModel):
    """Drawn anew in every pass, as in training."""

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places(torch.randperm(512)[: ids.shape[1]].sort().values)


SOUND = {
    "sinusoidal": lambda: observed(sorter(Sinusoidal)),
    "learned": lambda: observed(PlantedSorter),
    "own table": lambda: observed(sorter(OwnTable)),
    "class token": lambda: observed(sorter(ClassToken)),
    "torch": lambda: observed(TorchSorter),
    "flat": lambda: observed(FlatSorter),
    "in front": lambda: observed(FillsUpInFront),
    "conv": lambda: observed(sorter(Convolved)),
    "normalised": lambda: observed(sorter(Normalised)),
    "random": lambda: observed(sorter(RandomPositions)),
    "sample": lambda: sample("sortedness"),
    "our sinusoidal": lambda: untrained(encoding="sinusoidal"),
    "our rotary": lambda: untrained(encoding="rotary", norm="post"),
    "our random": lambda: untrained(encoding="sinusoidal", random_positions=64),
    "our table": lambda: untrained(encoding="learned", past_table="error"),
    "our alibi": lambda: untrained(encoding="alibi"),
}
CHECKS = ["untrained-positions", "past-table", "weak-positions", "length-dependent", "order-blind"]


@pytest.mark.parametrize("model", SOUND)
def test_nothing_is_said_of_sound_positions(model: str) -> None:
    of = SOUND[model]()
    assert {
        check: look_at(check, of).finding for check in CHECKS if look_at(check, of).verdict in ("warn", "fail")
    } == {}


@pytest.mark.parametrize("model", ["torch", "flat", "class token", "own table", "our sinusoidal"])
def test_and_these_were_really_looked_at(model: str) -> None:
    of = SOUND[model]()
    found = {check: look_at(check, of).verdict for check in ("past-table", "weak-positions", "length-dependent")}
    assert set(found.values()) == {"pass"}


@pytest.mark.parametrize("of", [lambda: observed(PlantedAdder), lambda: sample("addition")])
@pytest.mark.parametrize("check", ["untrained-positions", "weak-positions", "order-blind"])
def test_nothing_is_said_of_sound_sums(of: Any, check: str) -> None:
    assert look_at(check, of()).verdict == "pass"


# --- HC501 -----------------------------------------------------------------------------------------------------------


class NeedsItsTable(OrderModel):
    """Right as long as positions are those that it was trained with, and none of the later ones."""

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        return super().is_sorted(ids, visible) | (ids.shape[1] > 16)


class Longer(PlantedSorter):
    model_class = NeedsItsTable


class NobodySaid(Longer):
    trained = None  # type: ignore[assignment]


def test_rows_that_were_never_trained_with_what_becomes_of_longer_sequences() -> None:
    found = look("untrained-positions", Longer)
    assert (found.verdict, found.evidence["rows"], found.evidence["trained"]) == ("warn", 512, 16)
    assert found.finding.startswith("rows 16 to 511 of the position table were never trained")
    assert "100 % of 200 sequences of length 16 are right, and 50.0 % of 200 of length 32" in found.finding


def test_a_trained_model_of_others_has_such_rows() -> None:
    found = look_at("untrained-positions", foreign("foreign_sorter/sorter_adapter.py:Sorted"))
    assert found.verdict == "warn"
    assert "rows 17 to 64" in found.finding


def test_report_003_in_our_own_settings() -> None:
    found = look_at("untrained-positions", untrained(encoding="learned", n_positions=300, past_table="clamp"))
    assert (found.verdict, found.evidence["rows"], found.evidence["trained"]) == ("warn", 300, 16)


def test_what_was_trained_must_be_known() -> None:
    found = look("untrained-positions", NobodySaid)
    assert found.verdict == "not applicable"
    assert "trained = (8, 16)" in found.finding


@pytest.mark.parametrize("encoding", ["sinusoidal", "rotary", "none"])
def test_what_is_not_learned_needs_no_training(encoding: str) -> None:
    assert look_at("untrained-positions", untrained(encoding=encoding)).verdict == "not applicable"


# --- HC502 -----------------------------------------------------------------------------------------------------------


class Clamped(OrderModel):
    n_rows = 40

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places(self.rows(torch.arange(ids.shape[1])))

    def rows(self, places: Tensor) -> Tensor:
        return places.clamp(max=self.n_rows - 1)

    def __init__(self) -> None:
        super().__init__(self.n_rows)


class ClampedTooSoon(Clamped):
    n_rows = 12


class Wrapped(Clamped):
    def rows(self, places: Tensor) -> Tensor:
        return places % self.n_rows


class CutsOff(PlantedSorter):
    """A padded batch is 64 wide, whatever the questions are."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        ids, labels = super().encode(questions, answers)
        return ids[:, :64], labels


class CutOffModel(OrderModel):
    def __init__(self) -> None:
        super().__init__(64)


@pytest.mark.parametrize(
    ("model", "place", "same_as", "cause"),
    [(Clamped, 40, 39, "clamped"), (Wrapped, 40, 0, "modulo"), (ClampedTooSoon, 12, 11, "clamped")],
)
def test_places_that_share_a_row(model: type[nn.Module], place: int, same_as: int, cause: str) -> None:
    found = look("past-table", sorter(model))
    assert (found.verdict, found.evidence["place"], found.evidence["same_as"]) == ("warn", place, same_as)
    assert cause in found.cause


def test_a_table_that_ends_within_the_training_lengths_is_told_as_such() -> None:
    assert "as in training" in look("past-table", sorter(ClampedTooSoon)).finding
    assert "position table: 40 rows" in look("past-table", sorter(Clamped)).finding


def test_sequences_that_are_cut_off() -> None:
    found = look("past-table", sorter(CutOffModel, CutsOff))
    assert (found.verdict, found.evidence["reached"], found.evidence["length"]) == ("warn", 64, 72)


@pytest.mark.parametrize(
    ("past_table", "what"),
    [("clamp", "position 16 has the vector of position 15"), ("untrained", "did not occur in training")],
)
def test_our_own_ways_past_the_table(past_table: str, what: str) -> None:
    found = look_at("past-table", untrained(encoding="learned", past_table=past_table))
    assert found.verdict == "warn"
    assert what in found.finding


def test_an_error_is_honest() -> None:
    assert "the model refuses a sequence of" in look("past-table", PlantedSorter).finding
    assert (
        "the model refuses a sequence of"
        in look_at("past-table", untrained(encoding="learned", past_table="error")).finding
    )


@pytest.mark.parametrize("encoding", ["none", "rotary", "t5"])
def test_nothing_added_is_no_table(encoding: str) -> None:
    assert look_at("past-table", untrained(encoding=encoding)).verdict == "not applicable"


# --- HC503 -----------------------------------------------------------------------------------------------------------


class WeakTable(OrderModel):
    """A constant that is added as well is no signal."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.places.weight.mul_(1 / 15).add_(3.0)


class ScaledTokens(Sinusoidal):
    """As in the paper, but with embeddings of unit variance; the width of a larger model."""

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) * 256**0.5 + sinusoids(torch.arange(ids.shape[1]))


class WeakSums(SumModel):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.places.weight.mul_(1 / 15)


class WeakTorch(TorchLayers):
    def embed(self, ids: Tensor) -> Tensor:
        return 20 * self.tokens(ids) + self.places(torch.arange(ids.shape[1]))


class AsManyPlacesAsNumbers(TorchSorter):
    """Positions come first, and 13 of them are no less than the numbers that are tried."""

    model_class = WeakTorch
    trained = (8, 13)


def spread(rows: Tensor) -> float:
    return float((rows - rows.mean(dim=0)).norm(dim=1).square().mean().sqrt())


@pytest.mark.parametrize(
    ("adapter", "positions", "scale"),
    [
        (sorter(WeakTable), lambda model: model.places.weight[:16], 1),
        (sorter(ScaledTokens), lambda model: sinusoids(torch.arange(16)), 16),
        (sorter(WeakSums, PlantedAdder), lambda model: model.places.weight[[0, 1, 3, 4]], 1),
    ],
)
def test_positions_that_are_much_weaker_than_tokens(adapter: type[Adapter], positions: Any, scale: float) -> None:
    found, model = look("weak-positions", adapter), adapter().build()
    assert found.verdict == "warn"
    with torch.no_grad():  # by the tables, of which a run tries some tokens only
        by_tables = scale * spread(model.tokens.weight[:100]) / spread(positions(model))
    assert 1 / float(found.evidence["ratio"] or 1) == pytest.approx(by_tables, rel=0.25)
    assert (
        f"depend {1 / float(found.evidence['ratio'] or 1):.0f} times less on the position than on the token"
        in found.finding
    )


def test_rows_are_not_taken_for_positions() -> None:
    assert look("weak-positions", AsManyPlacesAsNumbers).verdict == "warn"


@pytest.mark.parametrize("name", ["foreign_sorter/sorter_adapter.py:Sorted", "foreign_adder/adder_adapter.py:Adder"])
def test_trained_models_of_others_have_strong_positions(name: str) -> None:
    assert look_at("weak-positions", foreign(name)).verdict == "pass"


@pytest.mark.parametrize("encoding", ["none", "rotary", "alibi"])
def test_positions_that_are_not_added_are_not_weak(encoding: str) -> None:
    assert look_at("weak-positions", untrained(encoding=encoding)).verdict == "not applicable"


# --- HC504 -----------------------------------------------------------------------------------------------------------


class DividedByLength(OrderModel):
    """Report 000's."""

    def embed(self, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        return self.tokens(ids) + sinusoids(torch.arange(n) * (512 / n))


class ScaledByLength(OrderModel):
    def embed(self, ids: Tensor) -> Tensor:
        return super().embed(ids) / ids.shape[1] ** 0.5


class CountsBackwards(OrderModel):
    """From the end: the last number is at 0."""

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1]).flip(0))


class TakesPlaces(OrderModel):
    """Is handed its positions."""

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:  # type: ignore[override]
        visible = ids != 100
        read = self.attention(self.tokens(ids) + sinusoids(places), visible).mean(dim=1)
        return 10 * F.one_hot(self.is_sorted(ids, visible).long(), 2) + 0.1 * self.head(read)


class EncodesRelativePlaces(PlantedSorter):
    model_class = TakesPlaces

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> Any:
        ids, labels = super().encode(questions, answers)
        return (ids, (torch.arange(ids.shape[1]) * (512 / ids.shape[1])).expand(len(ids), -1)), labels


class WholeEncoder(nn.Module):
    """Adds positions to what it is given, and attends without a module for that."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        x = tokens + sinusoids(torch.arange(tokens.shape[1]) * (512 / tokens.shape[1]))
        return x + self.out((self.q(x) @ self.k(x).transpose(1, 2)).softmax(dim=-1) @ self.v(x))


class DividedInside(OrderModel):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = WholeEncoder()

    def forward(self, ids: Tensor) -> Tensor:
        read = self.encoder(self.tokens(ids)).mean(dim=1)
        return 10 * F.one_hot(self.is_sorted(ids, ids != 100).long(), 2) + 0.1 * self.head(read)


class InsideSorter(PlantedSorter):
    model_class = DividedInside

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, layer="encoder.out", n_heads=N_HEADS)


class OneLength(PlantedSorter):
    model_class = DividedByLength
    trained = (16, 16)


@pytest.mark.parametrize(
    "adapter",
    [*map(sorter, (DividedByLength, ScaledByLength)), EncodesRelativePlaces, InsideSorter, OneLength],
)
def test_positions_that_depend_on_the_length(adapter: type[Adapter]) -> None:
    found = look("length-dependent", adapter)
    assert found.verdict == "fail"
    assert float(found.evidence["moved"] or 0) > 0.1
    grows = "16 to 32" if adapter is OneLength else "8 to 16"
    assert f"when a sequence grows from {grows} numbers" in found.finding


def test_positions_may_be_counted_from_the_end() -> None:
    found = look("length-dependent", sorter(CountsBackwards))
    assert (found.verdict, found.finding) == (
        "pass",
        "positions are counted from the end of the sequence, where embeddings stay the same",
    )


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_our_own_length_normalised_encoding(norm: str) -> None:
    assert look_at("length-dependent", untrained(encoding="length-normalised", norm=norm)).verdict == "fail"


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned", "none", "rotary", "t5", "fire"])
def test_our_other_encodings_do_not_depend_on_it(encoding: str) -> None:
    assert look_at("length-dependent", untrained(encoding=encoding)).verdict == "pass"


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (lambda: observed(sorter(RandomPositions)), "differ between two passes"),
        (lambda: observed(FillsUpInFront), "at other positions"),
        (lambda: observed(sorter(Normalised)), "mixed before the first attention"),
    ],
)
def test_what_cannot_be_compared(of: Any, reason: str) -> None:
    found = look_at("length-dependent", of())
    assert found.verdict == "not applicable"
    assert reason in found.finding


# --- HC505 -----------------------------------------------------------------------------------------------------------


class Blind(OrderModel):
    """What attention without positions gives, and nothing else."""

    causal = False

    def forward(self, ids: Tensor) -> Tensor:
        visible = ids != 100
        attended = self.attention(self.tokens(ids), None if self.causal else visible, causal=self.causal)
        return self.head((attended * visible[..., None]).mean(dim=1))


class CausalBlind(Blind):
    """A mask alone gives the order away."""

    causal = True


class Sums(OrderModel):
    """The sum of its numbers decides, and positions are added to no avail."""

    def forward(self, ids: Tensor) -> Tensor:
        self.attention(self.embed(ids))
        return torch.stack([ids.sum(dim=1), -ids.sum(dim=1)], dim=1) / 100.0


class Constant(OrderModel):
    def forward(self, ids: Tensor) -> Tensor:
        self.attention(self.embed(ids))
        return self.head.bias.expand(len(ids), -1)


class SmallerFirst(PlantedAdder):
    """Trained on sums whose first operand is the smaller one."""

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        ascends = [int(a) <= int(b) for a, b in (question.split("+") for question in questions)]
        return [x if up else "0" for x, up in zip(super().generate(model, questions), ascends, strict=True)]


class OftenWrong(PlantedAdder):
    """On one sum in ten, whatever its order."""

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        known = [(int(a) * 37 + int(b) * 11) % 10 > 0 for a, b in (question.split("+") for question in questions)]
        return [x if right else "0" for x, right in zip(super().generate(model, questions), known, strict=True)]


class SmallerFirstModel(SumModel):
    def right(self, source: Tensor, written: Tensor) -> Tensor:
        a, b = source[:, 0] * 10 + source[:, 1], source[:, 3] * 10 + source[:, 4]
        return super().right(source, written) * (a <= b)[:, None, None]


class NotDecoded(PlantedAdder):
    model_class = SmallerFirstModel
    generate = Adapter.generate


@pytest.mark.parametrize("model", [Blind, Sums])
def test_a_function_of_the_multiset(model: type[nn.Module]) -> None:
    found = look("order-blind", sorter(model))
    assert (found.verdict, found.evidence["same"], found.evidence["n"]) == ("fail", 100, 100)


@pytest.mark.parametrize("pooling", ["mean", "max", "score-max"])
def test_our_own_without_positions(pooling: str) -> None:
    assert look_at("order-blind", untrained(encoding="none", pooling=pooling)).verdict == "fail"


@pytest.mark.parametrize("settings", [{"causal": True}, {"pooling": "last"}, {"window": 1}, {"encoding": "learned"}])
def test_whatever_knows_places_is_not_blind(settings: dict[str, Any]) -> None:
    assert look_at("order-blind", untrained(**({"encoding": "none"} | settings))).verdict == "pass"
    assert look("order-blind", sorter(CausalBlind)).verdict == "pass"


def test_a_model_that_sees_nothing_has_another_fault() -> None:
    assert look("order-blind", sorter(Constant)).verdict == "not applicable"


@pytest.mark.parametrize("adapter", [SmallerFirst, NotDecoded])
def test_sums_that_are_right_in_one_order_only(adapter: type[Adapter]) -> None:
    found = look("order-blind", adapter)
    assert (found.verdict, found.evidence["smaller_first"]) == ("warn", 1.0)
    assert float(found.evidence["larger_first"] or 0) < 0.1


def test_errors_that_have_nothing_to_do_with_the_order_are_counted_and_no_more() -> None:
    found = look("order-blind", OftenWrong)
    assert found.verdict == "pass"
    assert 20 < int(found.evidence["changed"] or 0) < 200


def test_a_few_sums_tell_nothing_of_their_order() -> None:
    found = look("order-blind", OftenWrong, n=15)
    assert abs(float(found.evidence["smaller_first"] or 0) - float(found.evidence["larger_first"] or 0)) > 0.05
    assert found.verdict == "pass"


# --- HC506 -----------------------------------------------------------------------------------------------------------


class DifferencePooling(NoPositions):
    """Report 003's pooling, in short: the least difference of neighbours, behind attention that hardly matters."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.tokens.weight[:, 0] = torch.arange(101.0)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + 1e-3 * self.attention(self.embed(ids))
        least = x[..., 0].diff(dim=1).amin(dim=1)
        return torch.stack([-least - 0.5, least + 0.5], dim=1)


class ComparesByHead(DifferencePooling):
    """The same differences, computed by a head: whose query at i sees i + 1 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(D, D, bias=False)
        nn.init.eye_(self.out.weight)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        z = torch.cat([x[:, 1:], x[:, -1:]], dim=1)
        least = (self.out(z) - x)[:, :-1, 0].amin(dim=1)
        return torch.stack([-least - 0.5, least + 0.5], dim=1)


class HeadSorter(PlantedSorter):
    model_class = ComparesByHead

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, layer="out", n_heads=N_HEADS)


@pytest.mark.parametrize("model", [DifferencePooling, OrderModel])
def test_order_that_does_not_come_from_attention(model: type[nn.Module]) -> None:
    found = look("pooled-order", sorter(model))
    assert found.verdict == "warn"
    assert (found.evidence["headless"], found.evidence["whole"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    "of",
    [
        lambda: observed(HeadSorter),
        lambda: sample("sortedness"),
        lambda: foreign("foreign_sorter/sorter_adapter.py:Sorted"),
        lambda: untrained(encoding="sinusoidal"),
    ],
)
def test_order_that_comes_from_heads_or_not_at_all(of: Any) -> None:
    found = look_at("pooled-order", of())
    assert found.verdict == "pass"
    assert float(found.evidence["headless"] or 0) < 0.6


# --- positions in queries and keys alone ------------------------------------------------------------------------------


class SplitAttention(nn.Module):
    """Values are read first, and without positions, as in DETR."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.q, self.k, self.out = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        v, q, k = self.v(x), self.q(x + places), self.k(x + places)
        q, k, v = (each.unflatten(2, (N_HEADS, -1)).transpose(1, 2) for each in (q, k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ValuesWithoutPositions(OrderModel):
    attention: Any
    strength = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.attention = SplitAttention()

    def attend(self, x: Tensor, places: Tensor) -> Tensor:
        return self.attention(x, places)

    def forward(self, ids: Tensor) -> Tensor:
        places = self.strength * sinusoids(torch.arange(ids.shape[1])).expand(len(ids), -1, -1)
        pooled = self.attend(self.tokens(ids), places).mean(dim=1)
        return 10.0 * F.one_hot(self.is_sorted(ids, ids != 100).long(), 2) + 0.1 * self.head(pooled)


class InlineValuesWithoutPositions(ValuesWithoutPositions):
    """The same without a module around the attention that hooks could see."""

    def attend(self, x: Tensor, places: Tensor) -> Tensor:
        return SplitAttention.forward(self.attention, x, places)


SPLIT = [ValuesWithoutPositions, InlineValuesWithoutPositions]


@pytest.mark.parametrize("model", SPLIT)
def test_positions_that_values_do_not_have_are_read_where_they_are(model: type[ValuesWithoutPositions]) -> None:
    strong, weak = (
        look("weak-positions", sorter(type(f"Of{strength}", (model,), {"strength": strength})))
        for strength in (1.0, 0.02)
    )
    assert strong.verdict == "pass"
    assert "positions are strong enough" in strong.finding
    assert weak.verdict == "warn"
    assert float(weak.evidence["ratio"] or 0) == pytest.approx(0.02 * float(strong.evidence["ratio"] or 0), rel=0.05)


class QueriesByLength(ValuesWithoutPositions):
    def forward(self, ids: Tensor) -> Tensor:
        along = torch.arange(ids.shape[1]) * 512 / ids.shape[1]
        pooled = self.attention(self.tokens(ids), sinusoids(along).expand(len(ids), -1, -1)).mean(dim=1)
        return 10.0 * F.one_hot(self.is_sorted(ids, ids != 100).long(), 2) + 0.1 * self.head(pooled)


def test_positions_of_queries_that_depend_on_the_length_are_found() -> None:
    assert look("length-dependent", sorter(QueriesByLength)).verdict == "fail"
    assert look("length-dependent", sorter(ValuesWithoutPositions)).verdict == "pass"
