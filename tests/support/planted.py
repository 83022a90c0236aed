"""Models that are right by construction, for audits: a fault is planted in a subclass, and nothing has to be trained.

Right answers are computed in `forward`; a small attention block beside them gives the models heads, whose share of the
logits is small. Everything is reached through an adapter, as models that others wrote are.

    class Mute(PlantedAdder):              # a fault in the decoding loop
        def generate(self, model, questions):
            return ["0" for _ in questions]

    observed(Mute)                         # what a check is given
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount import Adapter, Sites
from headcount.auditing.audit import Audit, checks_named, run_check, run_checks
from headcount.auditing.audited_model import AuditedModel, audited_model
from headcount.auditing.check import Finding
from headcount.experiments.external_models import ExternalModel
from headcount.external.adapter import load_adapted

PLUS, START, PAD = 10, 11, 12
END = PAD
"""Of answers that are not filled up."""
D, N_HEADS, SURE = 8, 2, 10.0


class Attention(nn.Module):
    """Causal if told so; padding is masked where `visible` is given."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, visible: Tensor | None = None, *, causal: bool = False) -> Tensor:
        q, k, v = (part.unflatten(2, (N_HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        mask = None if visible is None else visible[:, None, None, :]
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.out(z.transpose(1, 2).flatten(2))


class SumModel(nn.Module):
    """[3,7,+,8,1] and what was written so far, behind a start token: logits of each next digit of 118."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(13, D), nn.Embedding(32, D)
        self.encoder, self.decoder, self.head = Attention(), Attention(), nn.Linear(D, 13)

    def digits(self, source: Tensor) -> Tensor:
        """The right answer of each row, most significant digit first."""
        n = (source.shape[1] - 1) // 2
        powers = 10 ** torch.arange(n - 1, -1, -1)
        total = (source[:, :n] * powers).sum(1) + (source[:, n + 1 :] * powers).sum(1)
        return total[:, None] // 10 ** torch.arange(n, -1, -1) % 10

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1]))

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        """Logits [row, position, token] that are sure of the right digit; another model may be sure of others."""
        digits = self.digits(source)[:, : written.shape[1]]
        return SURE * F.one_hot(F.pad(digits, (0, written.shape[1] - digits.shape[1])), 13).to(self.head.weight)

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        read = self.encoder(self.embed(source)).mean(dim=1, keepdim=True)
        return self.right(source, written) + 0.1 * self.head(read + self.decoder(self.embed(written), causal=True))


class PlantedAdder(Adapter):
    """Two-digit sums, always right."""

    task, settings = "addition", {"digits": 2, "n_validation": 200, "n_test": 400}
    model_class: type[nn.Module] = SumModel
    start = START

    def build(self) -> nn.Module:
        return self.model_class()

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, encoder="encoder.out", decoder="decoder.out", n_heads=N_HEADS)

    def read(self, questions: Sequence[str]) -> Tensor:
        width = max(len(question.partition("+")[0]) for question in questions)
        rows = [[part.zfill(width) for part in question.split("+")] for question in questions]
        return torch.tensor([[*map(int, a), PLUS, *map(int, b)] for a, b in rows])

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        source = self.read(questions)
        width = (source.shape[1] + 1) // 2
        labels = torch.tensor([[int(digit) for digit in answer.zfill(width)] for answer in answers])
        return (source, F.pad(labels[:, :-1], (1, 0), value=self.start)), labels

    @torch.no_grad()
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        source = self.read(questions)
        written = torch.full((len(questions), 1), self.start)
        for _ in range((source.shape[1] + 1) // 2):
            written = torch.cat([written, model(source, written)[:, -1:, :10].argmax(dim=-1)], dim=1)
        return ["".join(map(str, row)) for row in written[:, 1:].tolist()]


# --- other ways to write a sum ----------------------------------------------------------------------------------------


class PlainModel(SumModel):
    """Writes sums as people do, without leading zeros, and an end token behind them."""

    def right(self, source: Tensor, written: Tensor) -> Tensor:
        numbers = ["".join(map(str, row)).lstrip("0") or "0" for row in self.digits(source).tolist()]
        ids = [[*map(int, number), END, END, END, END][: written.shape[1]] for number in numbers]
        return SURE * F.one_hot(torch.tensor(ids), 13).to(self.head.weight)


class PlainAdder(PlantedAdder):
    """Answers of any length, an end token, and padding that nothing is asked of."""

    model_class = PlainModel
    after_the_end = -100
    longest = 4

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        rows, width = [[*map(int, answer), END] for answer in answers], max(map(len, answers)) + 1
        labels = torch.tensor([row + [self.after_the_end] * (width - len(row)) for row in rows])
        fed = torch.tensor([[self.start, *row[:-1]] + [END] * (width - len(row)) for row in rows])
        return (self.read(questions), fed), labels

    @torch.no_grad()
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        source, written = self.read(questions), torch.full((len(questions), 1), self.start)
        for _ in range(self.longest):
            written = torch.cat([written, model(source, written)[:, -1:].argmax(dim=-1)], dim=1)
        return [self.text(row) for row in written[:, 1:].tolist()]

    def text(self, ids: list[int]) -> str:
        return "".join(map(str, ids[: ids.index(END)] if END in ids else ids))


class OneStreamModel(SumModel):
    """One stack that reads the question, and then the answer behind a start token."""

    def forward(self, ids: Tensor, _: Tensor | None = None) -> Tensor:
        source, written = ids[:, :5], ids[:, 5:]
        logits = F.pad(self.right(source, written), (0, 0, 5, 0))
        return logits + 0.1 * self.head(self.decoder(self.embed(ids), causal=True))


class OneStreamAdder(PlantedAdder):
    model_class = OneStreamModel

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        inputs, labels = super().encode(questions, answers)
        return (torch.cat(inputs, dim=1),), F.pad(labels, (5, 0), value=-100)

    @torch.no_grad()
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        ids = F.pad(self.read(questions), (0, 1), value=self.start)
        for _ in range(3):
            ids = torch.cat([ids, model(ids)[:, -1:, :10].argmax(dim=-1)], dim=1)
        return ["".join(map(str, row)) for row in ids[:, 6:].tolist()]


class LeastFirstModel(SumModel):
    def digits(self, source: Tensor) -> Tensor:
        return super().digits(source).flip(1)


class LeastFirst(PlantedAdder):
    """Writes the 1s first; texts are as people write them."""

    task, settings = "addition", {**PlantedAdder.settings, "least_first": True}
    model_class = LeastFirstModel

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        return super().encode(questions, [answer.zfill(3)[::-1] for answer in answers])

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        return [answer[::-1] for answer in super().generate(model, questions)]


# --- classifiers ------------------------------------------------------------------------------------------------------


class OrderModel(nn.Module):
    """Numbers, then padding: logits of unsorted and sorted."""

    def __init__(self, n_positions: int = 512) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(101, D), nn.Embedding(n_positions, D)
        self.attention, self.head = Attention(), nn.Linear(D, 2)

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1]))

    def is_sorted(self, ids: Tensor, visible: Tensor) -> Tensor:
        """[row]: what the model is sure of; padding, whose id is the largest, is never a step down."""
        return (ids.masked_fill(~visible, 100).diff(dim=1) >= 0).all(dim=1)

    def forward(self, ids: Tensor) -> Tensor:
        visible = ids != 100
        attended = self.attention(self.embed(ids), visible) * visible[..., None]
        pooled = attended.sum(dim=1) / visible.sum(dim=1, keepdim=True)
        return SURE * F.one_hot(self.is_sorted(ids, visible).long(), 2) + 0.1 * self.head(pooled)


class PlantedSorter(Adapter):
    """Is a sequence in order? Always right, at any length."""

    task, settings = "sortedness", {"n_validation": 200, "n_test": 400}
    trained = (8, 16)
    model_class: type[nn.Module] = OrderModel
    pad = 100

    def build(self) -> nn.Module:
        return self.model_class()

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, layer="attention.out", n_heads=N_HEADS)

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        rows = [[int(word) for word in question.split()] for question in questions]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [self.pad] * (longest - len(row)) for row in rows])
        return ids, torch.tensor([int(answer == "sorted") for answer in answers])


def observed(adapter: type[Adapter], n: int | None = None) -> Any:
    """What checks are given of a planted model."""
    made = adapter()
    external = ExternalModel.opened(load_adapted(made), adapter.__name__, adapter=made)
    return audited_model(external, n)


def look(check: str, adapter: type[Adapter], n: int | None = None) -> Finding:
    """What one check says of a planted model."""
    return look_at(check, observed(adapter, n))


def look_at(check: str, seen: AuditedModel) -> Finding:
    """What it says of any model."""
    (found,) = checks_named([check]).values()
    return run_check(found, seen)


def audit(adapter: type[Adapter], n: int | None = None) -> Audit:
    """What all checks say of it."""
    return run_checks(observed(adapter, n))
