"""Models that reverse lists, right by construction, with adapters; a fault of decoding is planted in a subclass.

Right answers are computed in `forward`, as in `planted`; ids are the model's own, not the task's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from planted import N_HEADS, SURE, Attention, D
from torch import Tensor, nn
from torch.nn import functional as F

from headcount import Adapter, Sites

START, PAD, OFFSET, N_IDS = 1, 2, 3, 103
"""Special ids; the id of the number 0; and how many ids there are."""
SEPARATOR = " "


class ReversalModel(nn.Module):
    """Ids of a list, and of what was written so far behind a start token: logits of each next number."""

    needs_start = False
    """Whether another token at the start makes the last number wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(N_IDS, D), nn.Embedding(16, D)
        self.encoder, self.decoder, self.head = Attention(), Attention(), nn.Linear(D, N_IDS)

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1]))

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        n = written.shape[1]
        right = F.pad(source.flip(1), (0, max(0, n - source.shape[1])), value=PAD)[:, :n]
        if self.needs_start:
            is_off = (written[:, :1] != START) & (torch.arange(n) == source.shape[1] - 1)
            tens, ones = (right - OFFSET) // 10 * 10, (right - OFFSET + written[:, :1]) % 10
            right = torch.where(is_off, tens + ones + OFFSET, right)
        read = self.encoder(self.embed(source)).mean(dim=1, keepdim=True)
        logits = SURE * F.one_hot(right, N_IDS).to(self.head.weight)
        return logits + 0.1 * self.head(read + self.decoder(self.embed(written), causal=True))


class Reverser(Adapter):
    """Lists of four numbers, always right."""

    task, settings = "reversal", {"n_validation": 60, "n_test": 200}
    model_class: type[nn.Module] = ReversalModel
    starts_from: int | None = None
    """The number that generation starts from instead of the start token."""

    def build(self) -> nn.Module:
        return self.model_class()

    def load(self, model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, encoder="encoder.out", decoder="decoder.out", n_heads=N_HEADS)

    def ids(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([[int(word) + OFFSET for word in text.split()] for text in texts])

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        labels = self.ids(answers)
        return (self.ids(questions), F.pad(labels[:, :-1], (1, 0), value=START)), labels

    @torch.no_grad()
    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        source = self.ids(questions)
        written = torch.full((len(questions), 1), self.begin)
        for _ in range(source.shape[1]):
            written = torch.cat([written, model(source, written)[:, -1:].argmax(dim=-1)], dim=1)
        rows = (written[:, 1:] - OFFSET).tolist()
        return [SEPARATOR.join(self.changed(list(map(str, row)))) for row in rows]

    @property
    def begin(self) -> int:
        """The id that generation starts from."""
        return START if self.starts_from is None else int(self.number(self.starts_from)) + OFFSET

    def number(self, two_digits: int) -> str:
        """Return a number that the task's lists may have: of one digit where they have no others."""
        return str(two_digits if self.settings.get("high", 99) > 9 else two_digits % 10)

    def changed(self, numbers: list[str]) -> list[str]:
        """Return what a faulty loop makes of an answer."""
        return numbers


class ReturnsTheStart(Reverser):
    def changed(self, numbers: list[str]) -> list[str]:
        return [self.number(33), *numbers[:-1]]


class DropsTheFirst(Reverser):
    def changed(self, numbers: list[str]) -> list[str]:
        return numbers[1:]


class Backwards(Reverser):
    def changed(self, numbers: list[str]) -> list[str]:
        return numbers[::-1]


class FirstIsConstant(Reverser):
    def changed(self, numbers: list[str]) -> list[str]:
        return [self.number(11), *numbers[1:]]


class LastIsConstant(Reverser):
    def changed(self, numbers: list[str]) -> list[str]:
        return [*numbers[:-1], self.number(77)]


class StopsEarly(Reverser):
    def changed(self, numbers: list[str]) -> list[str]:
        return numbers[:-1]


class GoesOn(Reverser):
    def changed(self, numbers: list[str]) -> list[str]:
        return [*numbers, self.number(44)]


class NeedsStart(ReversalModel):
    needs_start = True


class StartsFromANumber(Reverser):
    starts_from = 18
    model_class = NeedsStart
