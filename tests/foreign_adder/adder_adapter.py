"""The adder for headcount: headcount ablate adder_adapter.py:Adder"""

from __future__ import annotations

from collections.abc import Sequence

from adder_ablation import solve
from adder_model import PAD, AdderTransformer, to_ids
from torch import Tensor, nn

from headcount import Adapter, Sites

PROJECTIONS = ("encoder_layers.*.self_attn.W_o", "decoder_layers.*.self_attn.W_o", "decoder_layers.*.cross_attn.W_o")


class Adder(Adapter):
    checkpoint = "adder.pth"
    task, settings = "addition", {"digits": 2, "n_validation": 500, "n_test": 500}

    def build(self) -> nn.Module:
        return AdderTransformer()

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, *PROJECTIONS, n_heads=4)

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        labels = to_ids(list(answers), eos=True)
        return (to_ids(list(questions)), to_ids(list(answers), sos=True)), labels.masked_fill(labels == PAD, -100)

    def generate(self, model: AdderTransformer, questions: Sequence[str]) -> list[str]:  # type: ignore[override]
        return solve(model, list(questions))

    def tokens(self, question: str, answer: str) -> list[list[str]]:
        return [list(question), ["<s>", *answer]]
