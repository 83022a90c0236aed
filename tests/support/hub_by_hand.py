"""What Hugging Face models say without some heads, computed with nothing of headcount: paths and widths by hand."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from copy import deepcopy
from functools import lru_cache
from typing import Any

import hub_models as hub
import torch
from torch import Tensor, nn

PROJECTIONS = {
    "bert": {"L": "bert.encoder.layer.{}.attention.output.dense"},
    "bert alone": {"L": "encoder.layer.{}.attention.output.dense"},
    "roberta": {"L": "roberta.encoder.layer.{}.attention.output.dense"},
    "electra": {"L": "electra.encoder.layer.{}.attention.output.dense"},
    "distilbert": {"L": "distilbert.transformer.layer.{}.attention.out_lin"},
    "gpt2": {"L": "transformer.h.{}.attn.c_proj"},
    "gpt_neo": {"L": "transformer.h.{}.attn.attention.out_proj"},
    "gpt_neox": {"L": "gpt_neox.layers.{}.attention.dense"},
    "llama": {"L": "model.layers.{}.self_attn.o_proj"},
    "mistral": {"L": "model.layers.{}.self_attn.o_proj"},
    "qwen2": {"L": "model.layers.{}.self_attn.o_proj"},
    "t5": {
        "E": "encoder.block.{}.layer.0.SelfAttention.o",
        "D": "decoder.block.{}.layer.0.SelfAttention.o",
        "X": "decoder.block.{}.layer.1.EncDecAttention.o",
    },
    "bart": {
        "E": "model.encoder.layers.{}.self_attn.out_proj",
        "D": "model.decoder.layers.{}.self_attn.out_proj",
        "X": "model.decoder.layers.{}.encoder_attn.out_proj",
    },
    "vit": {"L": "vit.layers.{}.attention.o_proj"},
}
PROJECTIONS["marian"] = PROJECTIONS["bart"]
SHAPES = {name: {"L": (3, 4)} for name in hub.FAMILIES}
"""Layers and heads of every stack, off the configurations in hub_models."""
SHAPES |= {"gpt_neo": {"L": (2, 4)}, "albert in groups": {"L": (8, 4)}}
SHAPES |= {"t5": dict.fromkeys("EDX", (2, 4)), "bart": {"E": (2, 4), "D": (3, 2), "X": (3, 2)}}
SHAPES["marian"] = SHAPES["bart"]

Place = tuple[str, int, int]
"""A stack's letter, the layer and the head."""


def places(name: str) -> list[Place]:
    """Every head there should be."""
    return [
        (stack, layer, head)
        for stack, (n_layers, n_heads) in SHAPES[name].items()
        for layer in range(n_layers)
        for head in range(n_heads)
    ]


def without(name: str, model: Any, silent: Iterable[Place], inputs: tuple[Tensor, ...]) -> Tensor:
    """Logits (or hidden states) of a copy in which the weights that read these heads are 0."""
    copy = _copy(model)
    copy.load_state_dict(model.state_dict())
    if name.startswith("albert"):
        return _of_shared(name, copy, set(silent), inputs)
    with torch.no_grad():
        for stack, layer, head in silent:
            projection = copy.get_submodule(PROJECTIONS[name][stack].format(layer))
            weight = projection.weight if isinstance(projection, nn.Linear) else projection.weight.T  # a GPT-2 Conv1D
            d_head = weight.shape[1] // SHAPES[name][stack][1]
            weight[:, head * d_head : (head + 1) * d_head] = 0.0
    return answer(hub.called(name, copy, inputs))


@lru_cache(maxsize=1)
def _copy(model: Any) -> Any:
    return deepcopy(model)


def answer(output: Any) -> Tensor:
    return output.logits if "logits" in output else output.last_hidden_state


def _of_shared(name: str, copy: nn.Module, silent: set[Place], inputs: tuple[Tensor, ...]) -> Tensor:
    """ALBERT's layers share weights: the n-th time that any of its projections is called is layer n."""
    n_heads, called = SHAPES[name]["L"][1], 0

    def zero(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        nonlocal called
        parts = list(args[0].chunk(n_heads, dim=-1))
        for _, layer, head in silent:
            if layer == called:
                parts[head] = torch.zeros_like(parts[head])
        called += 1
        return (torch.cat(parts, dim=-1),)

    with ExitStack() as stack:
        for path, module in copy.named_modules():
            if path.endswith("attention.dense"):
                stack.callback(module.register_forward_pre_hook(zero).remove)
        said = answer(hub.called(name, copy, inputs))
    assert called == SHAPES[name]["L"][0]
    return said


def shown(name: str, inputs: tuple[Tensor, ...], **changes: Any) -> dict[str, tuple[Tensor, ...]]:
    """The attention weights that a model in eager mode returns, stack by stack."""
    said = hub.called(
        name, hub.build(name, attn_implementation="eager", **changes), inputs, output_attentions=True, return_dict=True
    )
    if "encoder_attentions" not in said:
        return {"L": said.attentions}
    return {"E": said.encoder_attentions, "D": said.decoder_attentions, "X": said.cross_attentions}
