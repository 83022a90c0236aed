"""Decoders that see what they should not, or not what they should: planted and not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from planted import SURE, Attention, PlainAdder, PlainModel, PlantedAdder, SumModel, look, look_at
from tests.auditing.test_decoding_checks import SOUND, audit, of_run, of_stranger
from torch import Tensor
from torch.nn import functional as F

from headcount import Adapter

pytestmark = pytest.mark.slow  # seconds together

MASKING = ("HC201", "HC204")


@pytest.mark.parametrize("check", MASKING)
@pytest.mark.parametrize("sound", SOUND)
def test_nothing_is_said_of_sound_models(sound: type[Adapter], check: str) -> None:
    assert look(check, sound).verdict == "pass"


@pytest.mark.parametrize("check", MASKING)
def test_nothing_is_said_of_a_run_and_of_a_stranger_that_were_trained(check: str) -> None:
    assert look_at(check, of_run()).verdict == look_at(check, of_stranger()).verdict == "pass"


# --- sees ahead -------------------------------------------------------------------------------------------------------


class NotCausal(Attention):
    def forward(self, x: Tensor, visible: Tensor | None = None, *, causal: bool = False) -> Tensor:
        return super().forward(x)


class OneTooFar(Attention):
    """triu(diagonal=2) where 1 was meant."""

    def forward(self, x: Tensor, visible: Tensor | None = None, *, causal: bool = False) -> Tensor:
        n = x.shape[1]
        seen = torch.ones(n, n, dtype=torch.bool).tril(1)
        return torch.cat([super(OneTooFar, self).forward(x, seen[i].expand(len(x), n))[:, [i]] for i in range(n)], 1)


class NoMaskModel(SumModel):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = NotCausal()


class OffByOneModel(SumModel):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = OneTooFar()


class CopyModel(SumModel):
    """What a decoder without a mask learns: each position outputs the token after it, the last one the 1s."""

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        copied = torch.cat([written[:, 1:], self.digits(source)[:, -1:]], dim=1)
        return SURE * F.one_hot(copied, 13).to(self.head.weight)


class PooledModel(SumModel):
    """A mask, and beside it a mean over all that is fed."""

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        return super().forward(source, written) + self.head(self.embed(written).mean(dim=1, keepdim=True))


class PlainNoMaskModel(PlainModel):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = NotCausal()


class NoMask(PlantedAdder):
    model_class = NoMaskModel


class OffByOne(PlantedAdder):
    model_class = OffByOneModel


class Copies(PlantedAdder):
    model_class = CopyModel


class Pooled(PlantedAdder):
    model_class = PooledModel


class PlainNoMask(PlainAdder):
    model_class = PlainNoMaskModel


class NotShifted(PlantedAdder):
    """Is fed the very tokens that it is asked for."""

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        (source, _), labels = super().encode(questions, answers)
        return (source, labels), labels


@pytest.mark.parametrize("adapter", [NoMask, Copies, Pooled, PlainNoMask])
def test_a_later_token_that_moves_the_first_logit_is_named(adapter: type[Adapter]) -> None:
    found = look("sees-ahead", adapter)
    assert (found.verdict, found.evidence["earliest"]) == ("fail", "100s")
    assert "in 32 of 32 examples" in found.finding
    assert audit(adapter).summary.startswith(found.finding)


@pytest.mark.parametrize("adapter", [OffByOne, NotShifted])
def test_a_token_that_is_fed_where_it_is_asked_for_is_named(adapter: type[Adapter]) -> None:
    found = look("HC201", adapter)
    assert found.verdict == "fail"
    assert "changes the logits that predict it in 32 of 32 examples" in found.finding
    assert "off by one" in found.cause


def test_what_a_copying_decoder_gets_wrong_is_explained_by_it() -> None:
    found = {each.id: each for each in audit(Copies).verdicts}
    assert [each.id for each in audit(Copies).of("fail")] == ["HC201"]
    assert (found["HC106"].verdict, found["HC106"].explained_by) == ("explained", "HC201")


class NotFedModel(SumModel):
    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        return self.right(source, written)


class NotFed(PlantedAdder):
    model_class = NotFedModel


class Noisy(SumModel):
    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        return super().forward(source, written) + torch.rand(1)


class Stochastic(PlantedAdder):
    model_class = Noisy


def test_what_cannot_see_anything_or_is_never_the_same_cannot_be_asked() -> None:
    assert look("HC201", NotFed).finding == "the logits do not depend on the answer that the decoder is fed"
    assert look("HC201", Stochastic).finding.startswith("two passes on the same input differ by")


# --- blind ------------------------------------------------------------------------------------------------------------


class BlindModel(SumModel):
    """Writes from what was written alone."""

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        return torch.zeros(*written.shape, 13)

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        return self.head(self.decoder(self.embed(written), causal=True))


class ShutOutModel(BlindModel):
    """The encoder's mask is inverted: nothing of the question is visible, and zeros are read instead."""

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        visible = source > 20
        read = (self.encoder(self.embed(source)) * visible[..., None]).sum(dim=1, keepdim=True)
        return self.head(read + self.decoder(self.embed(written), causal=True))


class Blind(PlantedAdder):
    model_class = BlindModel


class ShutOut(PlantedAdder):
    model_class = ShutOutModel


class NotPassed(PlantedAdder):
    """The question never reaches the model."""

    def read(self, questions: Sequence[str]) -> Tensor:
        return torch.zeros_like(super().read(questions))


@pytest.mark.parametrize("adapter", [Blind, ShutOut, NotPassed])
def test_a_decoder_that_cannot_see_the_question_is_named(adapter: type[Adapter]) -> None:
    found = look("blind-decoder", adapter)
    assert found.verdict == "fail"
    assert "64 of 64 examples" in found.finding
    assert audit(adapter).summary.startswith(found.finding)


class BarelySeeing(SumModel):
    """Right answers move no more than a hundredth of the logits."""

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        return 0.01 * super().right(source, written)


class Barely(PlantedAdder):
    model_class = BarelySeeing


def test_a_model_that_has_learned_little_is_not_blind() -> None:
    assert look("HC204", Barely).verdict == "pass"
