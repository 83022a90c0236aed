"""Models of other styles brought by adapters, and a cut of them by a route of its own."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import foreign_styles as styles
import torch
from torch import Tensor, nn

from headcount import Adapter, Sites
from headcount.external.adapter import Adapted, load_adapted
from headcount.heads import HeadId
from headcount.surgery.tracing import cut_traced

ADDER = Path(__file__).parents[1] / "foreign_adder"
ADAPTER = f"""
import sys
sys.path.insert(0, {str(ADDER)!r})
from adder_ablation import solve
from adder_model import PAD, AdderTransformer, to_ids
from headcount import Adapter, Sites

class Model(Adapter):
    checkpoint = {str(ADDER / "adder.pth")!r}
    task, settings = "addition", {{"digits": 2, "n_validation": 10, "n_test": 40}}

    def build(self):
        return AdderTransformer()

    def sites(self, model):
        stacks = ("encoder_layers.*.self_attn", "decoder_layers.*.self_attn", "decoder_layers.*.cross_attn")
        return Sites.of(model, *(f"{{path}}.W_o" for path in stacks), n_heads=4)

    def encode(self, questions, answers):
        labels = to_ids(list(answers), eos=True)
        return (to_ids(list(questions)), to_ids(list(answers), sos=True)), labels.masked_fill(labels == PAD, -100)

    def generate(self, model, questions):
        return solve(model, list(questions))
"""
STYLES = {
    "separate": (styles.Separate, "narrow", "layers.*.attn.out"),
    "fused": (styles.Fused, "narrow", "layers.*.attn.out"),
    "braided": (styles.Braided, "narrow", "layers.*.attn.out"),
    "by width": (styles.ByWidth, "narrow", "layers.*.attn.out"),
    "by input": (styles.ByInput, "spread", "layers.*.attn.out"),
    "one key": (styles.OneKey, "narrow", "layers.*.attn.out.0"),
}
SETS = ["L0H0", "L0H1", "L0H2", "L1H1", "L0H0,L0H2,L1H1", "L0H0,L0H1,L0H2"]


class Styled(Adapter):
    def __init__(self, model: nn.Module, **where: str) -> None:
        self.model, self.where = model, where

    def build(self) -> nn.Module:
        return self.model

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, n_heads=styles.HEADS, **self.where) if self.where else super().sites(model)


def adapted(adapter: Adapter) -> Adapted:
    return load_adapted(adapter)


def stack(style: str, adapter: type[Styled] = Styled) -> Adapted:
    torch.manual_seed(0)
    kind, _, path = STYLES[style]
    return adapted(adapter(styles.Stack(kind), layer=path))


def named(heads: str) -> list[HeadId]:
    return [HeadId.parse(head) for head in heads.split(",")]


def without(whole: Adapted, heads: list[HeadId], *inputs: Tensor) -> Tensor:
    """By a route of its own: the heads' columns of the output projections are zeros."""
    copy = deepcopy(whole)
    for site, places in copy.head_sites.head_slots(heads).items():
        weight = copy.head_sites[site].projection.weight
        for place in places:
            weight.data.unflatten(1, (len(copy.head_sites[site].heads), -1))[:, place] = 0
    return predicted(copy, *inputs)


def predicted(model: nn.Module, *inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model(*inputs)


def check(whole: Adapted, heads: list[HeadId], *inputs: Tensor) -> Adapted:
    before = predicted(whole, *inputs)
    cut = cut_traced(whole, heads, inputs)
    expected = without(whole, heads, *inputs)
    assert not torch.allclose(expected, before, atol=1e-4)
    torch.testing.assert_close(predicted(cut, *inputs), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(predicted(whole, *inputs), before), "the whole model was changed"
    assert cut.head_sites.heads == tuple(head for head in whole.head_sites.heads if head not in heads)
    assert size(cut) < size(whole)
    return cut


def size(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


def tokens(n: int = 5) -> Tensor:
    return torch.randint(1, styles.TOKENS, (4, n), generator=torch.Generator().manual_seed(1))
