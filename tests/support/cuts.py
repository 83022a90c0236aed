"""Which heads are cut out of which models in tests, and what models say without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hub_models as hub
import torch
from torch import Tensor, nn

from headcount.heads import HeadId
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.wrapping import wrap

FAMILIES = tuple(hub.FAMILIES)
DECODERS = ("gpt2", "gpt_neo", "gpt_neox", "llama", "mistral", "qwen2")
GENERATING = (*DECODERS, *hub.SEQUENCE_TO_SEQUENCE)
PLANS = ("one head", "several", "a layer", "all but one")


def planned(plan: str, model: nn.Module) -> tuple[HeadId, ...]:
    """One head; heads of several layers; the first layer of every stack; all but one."""
    wrapped = wrap(model)
    heads = wrapped.heads
    if plan == "a layer":
        return tuple(head for head in heads if head.site.layer == 0)
    if plan == "several":
        last = wrapped.heads_at(wrapped.sites[-1])
        return (heads[1], *wrapped.heads_at(wrapped.sites[1])[-1:], last[0])
    return {"one head": heads[2:3], "all but one": heads[:-2] + heads[-1:]}[plan]


@torch.no_grad()
def masked(model: nn.Module, heads: Sequence[HeadId], inputs: Sequence[Tensor]) -> Tensor:
    """What a model says with heads silenced."""
    wrapped = wrap(model)
    with Gates(wrapped.head_sites, closed_gates(wrapped.head_sites, heads)):
        return wrapped(*inputs)


@torch.no_grad()
def says(model: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
    return wrap(model)(*inputs)


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


@torch.no_grad()
def generated(name: str, model: Any, **more: Any) -> tuple[Tensor, Tensor]:
    """Tokens, greedily and with a cache, and the logits that they were chosen by."""
    tokens = hub.inputs_of(name)[0][:1].clamp(min=2)
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False} | more
    settings |= {"return_dict_in_generate": True, "output_logits": True}
    output = model.generate(tokens, attention_mask=torch.ones_like(tokens), **settings)
    return output.sequences, torch.stack(output.logits)


def size(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())
