"""The sorter for headcount: headcount heads sorter_adapter.py:Sorted --stats"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sorter_model import CLASSES, Sorter, to_ids
from torch import Tensor, nn

from headcount import Adapter, Sites


class Sorted(Adapter):
    checkpoint = "sorter.pth"
    task, settings = "sortedness", {"n_validation": 400, "n_test": 400}
    trained = (8, 16)

    def build(self) -> nn.Module:
        return Sorter()

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, "blocks.*.attn.proj", n_heads=4)

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        ids = to_ids([[int(word) for word in question.split()] for question in questions])
        return ids, torch.tensor([CLASSES.index(answer) for answer in answers])
