"""Right adders that write answers in any style: zero-filled or not, from either end, with separators or without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from planted import END, SURE, PlantedAdder, SumModel
from torch import Tensor, nn
from torch.nn import functional as F


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
    model_settings: ClassVar[dict[str, Any]] = {}

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
