"""A model whose modules keep state is swept by plain passes: slower, with a note, and right."""

from __future__ import annotations

from typing import Any

import torch
from tensor_experiments import tensor_experiment
from torch import Tensor, nn

from headcount import Sites, ablate_heads
from headcount.describing.blocks import Paragraph
from headcount.describing.sections.ablation import describe
from headcount.experiments.interventions import run_interventions
from headcount.hooks.replay import Intervention

TOKENS = torch.arange(24).reshape(6, 4) % 7


class Layer(nn.Module):
    """Two heads, each a map of its own half; the second layer reads what the first one left on the blackboard."""

    def __init__(self, blackboard: dict[str, Tensor], is_first: bool) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(8, 8), nn.Linear(8, 8)
        self.blackboard, self.is_first = blackboard, is_first

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.mix(x)).unflatten(-1, (2, 4)).flatten(-2)
        written = x + self.out(z)
        if self.is_first:
            self.blackboard["left"] = written.mean(dim=1, keepdim=True)
            return written
        return written + torch.tanh(self.blackboard["left"])


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        board: dict[str, Tensor] = {}
        self.embed, self.layers = nn.Embedding(7, 8), nn.ModuleList(Layer(board, i == 0) for i in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


def made() -> tuple[Stateful, Sites]:
    torch.manual_seed(0)
    model = Stateful().double().eval()
    return model, Sites.of(model, "layers.*.out", n_heads=2)


def first_logit(output: Tensor, rows: Any) -> Tensor:
    return output[:, 0]


def test_every_score_is_that_of_a_model_with_zeroed_columns() -> None:
    model, sites = made()
    experiment = tensor_experiment(model, sites, [TOKENS], first_logit, at_once=3)
    outcome = run_interventions(experiment, [Intervention((head,)) for head in sites.heads])
    assert outcome.is_plain
    for head, scores in zip(sites.heads, outcome.scores, strict=True):
        other, others = made()
        with torch.no_grad():
            others[head.site].projection.weight[:, 4 * head.index : 4 * head.index + 4] = 0.0
            torch.testing.assert_close(torch.from_numpy(scores), other(TOKENS)[:, 0], atol=1e-9, rtol=0)


def test_a_note_says_so() -> None:
    model, sites = made()
    result = ablate_heads(model, [TOKENS], first_logit, sites=sites, quiet=True).result
    notes = [block.text for block in describe(result) if isinstance(block, Paragraph)]
    assert any("each ablation needed a whole forward pass" in note for note in notes)


def test_a_sound_model_is_not_swept_so() -> None:
    model, sites = made()
    for layer in model.layers:
        layer.forward = lambda x, layer=layer: x + layer.out(torch.tanh(layer.mix(x)))
    experiment = tensor_experiment(model, sites, [TOKENS], first_logit, at_once=3)
    assert not run_interventions(experiment, [Intervention((head,)) for head in sites.heads]).is_plain
