"""Adders whose weights are written by hand, so that the way of every carry is known.

Each is headcount's own encoder-decoder with one layer per stack and without LayerNorm, and is right on every sum. A
head is written as a table of attention weights (query position by key position), a feature that it reads and a feature
that it writes. At the position that predicts column c, two heads of the cross-attention X0 read the source:

    X0H0 aligner    own = a_c + b_c                                          the digits of the column itself
    X0H1 carrier    low = the sum of the lower columns / 10^c                from 1 on, a carry comes in

The decoder's MLP turns own + low into a digit by steep steps. Between two steps nothing changes, so the digits of lower
columns reach the answer only as a carry. The other models differ in one respect each:

    one_carrier     as above; X0H2 may attend as the carrier does, but its output is thrown away
    digit_movers    E0H0 first moves the digits of a to those of b, and X0 reads the places of b alone
    smooth          the steps are so wide that the answer depends on every digit of the lower columns
    two_carriers    the encoder computes carries; X0H1 and X0H2 fetch them; either is enough, or both are needed

Everything is in double precision, so shares are exact up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount import Adapter
from headcount.experiments.external_models import ExternalModel
from headcount.experiments.models import OpenModel
from headcount.external.adapter import load_adapted
from headcount.heads import HeadSite
from headcount.hooks.sites import Sites
from headcount.models.attention import AttentionCache
from headcount.models.config import EncoderDecoderConfig
from headcount.models.transformer import EncoderDecoder, Residual
from headcount.tasks.addition import START, Addition, AdditionConfig
from headcount.tasks.base import IGNORE
from headcount.training.evaluation import SequenceLearner

N_HEADS = 4
ENCODER, DECODER, CROSS = HeadSite("encoder", 0), HeadSite("decoder", 0), HeadSite("decoder", 0, "cross")
SURE = 10.0
"""The logit of the right digit; every other logit is 0."""
END = 12
"""The id of the end token, in a model that has one."""
NEVER = -60.0
"""The score of a key that a head does not attend to; its weight is 1e-26."""
FEATURES = ("digit", "aligned", "own", "low", "echo", "carry", "unread")
Weights = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class KnownModel(OpenModel):
    """A bare module with a task, whose answers are known by construction."""

    @property
    def answers(self) -> SequenceLearner:
        assert isinstance(self.module, EncoderDecoder)
        assert isinstance(self.task, Addition)
        return SequenceLearner(self.module, self.task)


def task_of(digits: int, **settings: Any) -> Addition:
    return Addition(AdditionConfig(**{"digits": digits, "n_validation": 10, "n_test": 10} | settings))


# --- the models -------------------------------------------------------------------------------------------------------


def one_carrier(task: Addition, echo: str = "") -> KnownModel:
    """X0H1 alone carries.

    With `echo`, X0H2 attends and reads as X0H1 does, and E0H1 finds the carry of each column. They write "nothing" or a
    feature that is "unread".
    """
    made = Writing(task)
    made.head(CROSS, 0, made.own_column(), {"digit": 1.0}, "own", gain=2.0)
    made.head(CROSS, 1, made.lower_columns(), {"digit": 1.0}, "low", gain=2 / 9)
    if echo:
        into, gain = ("echo", 0.0) if echo == "nothing" else ("unread", 2 / 9)
        made.head(CROSS, 2, made.lower_columns(), {"digit": 1.0}, into, gain)
        made.head(ENCODER, 1, made.columns_so_far(), {"digit": 1.0}, into, gain)
    made.digits({"own": 1.0, "low": 1.0}, width=made.smallest_step)
    return made.opened()


def digit_movers(task: Addition) -> KnownModel:
    """E0H0 moves each digit of a to the place of b. X0 finds both digits there."""
    made = Writing(task)
    made.head(ENCODER, 0, made.same_column(), {"digit": 1.0}, "aligned")
    made.head(CROSS, 0, made.own_column(operands=(1,)), {"digit": 1.0, "aligned": 1.0}, "own")
    made.head(CROSS, 1, made.lower_columns(operands=(1,)), {"digit": 1.0, "aligned": 1.0}, "low", gain=1 / 9)
    made.digits({"own": 1.0, "low": 1.0}, width=made.smallest_step)
    return made.opened()


SMOOTH_SHIFT = -0.45
"""The shift at which the sums 9 and 10 of one column lie as far below and above the middle of a wide step."""


def smooth(task: Addition) -> KnownModel:
    """X0H1 alone carries, but the logits follow the digits of the lower columns and not the carry."""
    assert task.config.digits == 1, "with two lower columns, 99 and 100 would be too close to each other"
    made = Writing(task)
    made.head(CROSS, 0, made.own_column(), {"digit": 1.0}, "own", gain=2.0)
    made.head(CROSS, 1, made.lower_columns(), {"digit": 1.0}, "low", gain=2 / 9)
    made.digits({"own": 1.0, "low": 1.0}, width=1.0, shift=SMOOTH_SHIFT)
    return made.opened()


def two_carriers(task: Addition, *, needs_both: bool = False) -> KnownModel:
    """E0H0 and the encoder's MLP compute the carry of each column; X0H1 and X0H2 each fetch it for the next column.

    Each adds one half. Either is enough for a carry, or, with `needs_both`, only both together are.
    """
    made = Writing(task)
    made.head(ENCODER, 0, made.columns_so_far(), {"digit": 1.0}, "low", gain=2 / 9)
    made.step(mlp_of(made.model.encoder[0]), "low", "carry", width=made.smallest_step)
    made.head(CROSS, 0, made.own_column(), {"digit": 1.0}, "own", gain=2.0)
    made.head(CROSS, 1, made.previous_column(), {"carry": 1.0}, "low", gain=0.5)
    made.head(CROSS, 2, made.previous_column(), {"carry": 1.0}, "echo", gain=0.5)
    # A step is complete after the first half, and the second half falls onto the flat part behind it; or vice versa.
    made.digits({"own": 1.0, "low": 1.0, "echo": 1.0}, width=0.5, shift=0.0 if needs_both else 0.5)
    return made.opened()


# --- writing weights --------------------------------------------------------------------------------------------------


class Writing:
    """An encoder-decoder whose weights are all 0 at first, and the means to write heads and steps into it.

    The first features of either stream say which position it is, one feature per position. Then come `FEATURES` and one
    feature per digit of the answer.
    """

    def __init__(self, task: Addition) -> None:
        self.task, self.n_columns, self.n_places = task, task.n_columns, task.longest
        names = [*(f"place {i}" for i in range(self.n_places)), *FEATURES, *(f"is {digit}" for digit in range(10))]
        self.at = {name: i for i, name in enumerate(names)}
        self.d_head = max(self.n_places, math.ceil(len(names) / N_HEADS))
        config = EncoderDecoderConfig(
            encoding="learned",
            n_positions=self.n_places,
            d_model=N_HEADS * self.d_head,
            n_heads=N_HEADS,
            d_ff=2 * len(STEPS),
            norm="post",
            n_encoder_layers=1,
            n_decoder_layers=1,
        )
        model = EncoderDecoder(config, n_tokens=len(task.tokens), pad_id=task.pad_id).double().eval()
        for module in model.modules():
            if isinstance(module, Residual):
                module.norm = nn.Identity()
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()
            for positions in (model.source_positions, model.target_positions):
                positions.get_parameter("rows.weight")[:, : self.n_places] = torch.eye(self.n_places)
            model.source_tokens.weight[:10, self.at["digit"]] = torch.arange(10.0).double()
            for digit in range(10):
                model.to_logits.weight[digit, self.at[f"is {digit}"]] = SURE
        self.model = model

    @property
    def smallest_step(self) -> float:
        """The smallest difference between two sums of lower columns, where 1 is a carry."""
        return 10.0**-self.n_columns

    def opened(self) -> KnownModel:
        return KnownModel("by hand", "by hand", "0" * 64, self.model, Sites.of(self.model), self.task)

    @torch.no_grad()
    def head(
        self, site: HeadSite, index: int, weights: Weights, reads: dict[str, float], writes: str, gain: float = 1.0
    ) -> None:
        """Write a head with these attention weights [query, key], which need not sum to 1."""
        attention: Any = self.model.blocks[site].attention
        slots = slice(index * self.d_head, (index + 1) * self.d_head)
        scores = np.log(weights, where=weights > 0, out=np.full(weights.shape, NEVER)) * math.sqrt(self.d_head)
        n_queries, n_keys = weights.shape
        attention.query.weight[slots][:n_keys, :n_queries] = torch.from_numpy(scores.T)
        attention.key.weight[slots][:n_keys, :n_keys] = torch.eye(n_keys).double()
        for feature, factor in reads.items():
            attention.value.weight[slots][0, self.at[feature]] = factor
        attention.output.weight[self.at[writes], index * self.d_head] = gain

    @torch.no_grad()
    def step(self, layers: Any, reads: str, writes: str, width: float) -> None:
        """Write an MLP that adds 1 to a feature if another one is at least 1, and rises over this width before 1."""
        first, _, second = layers
        first.weight[:2, self.at[reads]] = 1.0
        first.bias[:2] = torch.tensor([width - 1.0, -1.0], dtype=torch.float64)
        second.weight[self.at[writes], :2] = UP_DOWN / width

    @torch.no_grad()
    def digits(self, reads: dict[str, float], width: float, shift: float = 0.0) -> None:
        """Write the decoder's MLP, which turns the sum of these features, plus `shift`, into a digit.

        The step at m rises from 0 to 1 over this width before m. The digit is m (or m - 10) from the step at m on, and
        until the step at m + 1.
        """
        first, _, second = mlp_of(self.model.decoder[0])
        for m in STEPS:
            for unit, bias in ((2 * m, shift - m + width), (2 * m + 1, shift - m)):
                first.bias[unit] = bias
                for feature, factor in reads.items():
                    first.weight[unit, self.at[feature]] = factor
            for digit, sign in ((m, 1.0), (m - 1, -1.0)):
                if digit >= 0:
                    row = second.weight[self.at[f"is {digit % 10}"]]
                    row[2 * m : 2 * m + 2] += sign * UP_DOWN / width

    # --- attention weights, [query, key] ------------------------------------------------------------------------------

    def _table(self, queries: str) -> tuple[Weights, list[int]]:
        """Return a table of zeros and the column of each query, in the source or in the answer; -1 for none."""
        predicted = self.task.answer_positions[len(self.task.decoding_start.given) :]
        positions = self.task.source_positions if queries == "source" else predicted
        columns = [-1 if position.column is None else position.column for position in positions]
        return np.zeros((len(positions), self.n_places)), columns

    def _keys(self, column: int, operands: tuple[int, ...] = (0, 1)) -> list[int]:
        positions = enumerate(self.task.source_positions)
        return [i for i, each in positions if each.column == column and each.operand in operands]

    @property
    def _sink(self) -> int:
        """The place of the plus sign, where every feature is 0: heads attend to it where they should add nothing."""
        return self.n_columns

    def own_column(self, operands: tuple[int, ...] = (0, 1)) -> Weights:
        """The digits of the column that is predicted."""
        table, columns = self._table("answer")
        for row, column in zip(table, columns, strict=True):
            row[self._keys(column, operands) if column < self.n_columns else self._sink] = 1.0
        return table

    def lower_columns(self, operands: tuple[int, ...] = (0, 1)) -> Weights:
        """The digits of all lower columns in proportion to 1, 10, 100; z is their sum / 10^c * 9 / n_operands.

        The weight of the sink makes the total n_operands / 9 * 10^c.
        """
        table, columns = self._table("answer")
        for row, column in zip(table, columns, strict=True):
            row[self._sink] = len(operands) / 9
            for lower in range(column):
                row[self._keys(lower, operands)] = 10.0**lower
        return table

    def previous_column(self) -> Weights:
        """The place of b one column below the one that is predicted."""
        table, columns = self._table("answer")
        for row, column in zip(table, columns, strict=True):
            row[self._keys(column - 1, (1,)) if column else self._sink] = 1.0
        return table

    def same_column(self) -> Weights:
        """From b, the digit of a in the same column; from elsewhere, the sink."""
        table, columns = self._table("source")
        for i, (row, column) in enumerate(zip(table, columns, strict=True)):
            is_b = self.task.source_positions[i].operand == 1
            row[self._keys(column, (0,)) if is_b else self._sink] = 1.0
        return table

    def columns_so_far(self) -> Weights:
        """From b, the digits of this column and of all lower ones in proportion to 1, 10, 100."""
        table, columns = self._table("source")
        for i, (row, column) in enumerate(zip(table, columns, strict=True)):
            row[self._sink] = 2 / 9
            if self.task.source_positions[i].operand == 1:
                for lower in range(column + 1):
                    row[self._keys(lower)] = 10.0**lower
        return table


def mlp_of(layer: Any) -> Any:
    """Return the linear layer, the ReLU and the second linear layer of a layer's MLP."""
    return layer.feed_forward.layers


STEPS = range(21)
"""The numbers at which the decoder's MLP has a step: own + low is below 20."""
UP_DOWN = torch.tensor([1.0, -1.0], dtype=torch.float64)
"""How two units of an MLP make a step: one begins to rise where the step begins, one cancels it where the step ends."""


# --- the same models behind an adapter --------------------------------------------------------------------------------


class KnownAdder(Adapter):
    """One head carries, and the tokens are those of headcount's own runs."""

    task, settings = "addition", {"digits": 2, "n_validation": 10, "n_test": 10}
    own = task_of(2)
    """The task as the model inside writes it."""

    def build(self) -> nn.Module:
        return one_carrier(self.own).module.float()

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model)

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        batch = self.own.encode(np.concatenate([self.own.parse(question) for question in questions]))
        rows = [[int(digit) for digit in answer.zfill(self.own.n_columns + 1)] for answer in answers]
        labels = torch.tensor(rows).flip(1) if self.own.config.least_first else torch.tensor(rows)
        return (torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input)), labels


class BackwardsAdder(KnownAdder):
    """Writes the least significant digit first, and does not say so in its settings."""

    own = task_of(2, least_first=True)


class NaturalAdder(KnownAdder):
    """Leaves out leading zeros, and writes an end token."""

    def build(self) -> nn.Module:
        return Natural(one_carrier(self.own).module.float())

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model.get_submodule("inner"))

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        (source, _), _ = super().encode(questions, answers)
        rows, width = [[*map(int, answer), END] for answer in answers], max(map(len, answers)) + 1
        labels = torch.tensor([row + [IGNORE] * (width - len(row)) for row in rows])
        return (source, torch.full_like(labels, START)), labels


class Natural(nn.Module):
    """An adder whose digits are moved to the left until no zero leads."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        n_digits = (source.shape[1] + 1) // 2
        logits = self.inner(source, written.new_full((len(source), n_digits), START))
        n_zeros = (logits.argmax(dim=-1) == 0)[:, :-1].cumprod(dim=1).sum(dim=1)
        end = SURE * nn.functional.one_hot(torch.tensor(END), logits.shape[-1]).to(logits)
        logits = torch.cat([logits, end.expand(len(logits), 1, -1)], dim=1)
        places = (torch.arange(written.shape[1]) + n_zeros[:, None]).clamp(max=n_digits)
        return logits.gather(1, places[..., None].expand(-1, -1, logits.shape[-1]))


def opened_by(adapter: type[Adapter]) -> ExternalModel:
    made = adapter()
    return ExternalModel.opened(load_adapted(made), adapter.__name__, adapter=made)


# --- the same arithmetic, without a model -----------------------------------------------------------------------------


def lower_sums(task: Addition, examples: NDArray[np.int64], column: int) -> Weights:
    """Return the sum of the columns below this one, where 1 is a carry."""
    return (examples % 10**column).sum(axis=1) / 10**column


def ramp(x: Weights, width: float) -> Weights:
    """Return a step at 0 that rises over this width before 0."""
    return np.clip(x / width + 1, 0.0, 1.0)


def all_sums(task: Addition) -> NDArray[np.int64]:
    return np.concatenate(list(task.iter_domain()))


def is_right(model: KnownModel, examples: NDArray[np.int64]) -> bool:
    """Return whether every answer is right, teacher-forced and decoded."""
    answers = model.answers.answer(examples)
    return bool(answers.forced_right.all() and np.all(answers.free_hits))


def attention_weights(model: KnownModel, examples: NDArray[np.int64]) -> AttentionCache:
    """Return the attention weights of every head, [example, head, query, key] by site."""
    weights = AttentionCache()
    with torch.no_grad():
        model.module(*model.answers.teacher_forced(examples)[0], weights=weights)
    return weights
