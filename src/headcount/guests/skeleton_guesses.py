"""What a checkpoint tells of a model that cannot be built yet: the names and shapes of its weights."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def arguments_of(kind: type) -> dict[str, str]:
    """What a class must be given, each as it stands in its signature."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return {}  # a class that does not say
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = [each for each in parameters if each.kind in plain and each.default is inspect.Parameter.empty]
    return {each.name: str(each).replace("'", "") for each in wanted}


def guessed_values(names: Iterable[str], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments by their names: sizes that can be read off shapes, and layers that can be counted.

    >>> guessed_values(["d_model", "vocab", "eps"], {"embed.weight": torch.zeros(14, 48)})
    {'d_model': 48, 'vocab': 14}
    """
    sizes = _sizes(weights)
    found = {}
    for name in names:
        for pattern, size in sizes.items():
            if re.search(pattern, name, re.IGNORECASE):
                found[name] = size
                break
    return found


def tree_of(weights: Mapping[str, Tensor]) -> nn.Module:
    """Modules at the weights' paths, without any numbers in them: enough to look for output projections."""
    root = nn.Module()
    for name, tensor in weights.items():
        *above, last = name.split(".")
        module = root
        for part in above:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        if last not in module._parameters:
            module.register_parameter(last, nn.Parameter(torch.empty_like(tensor, device="meta"), False))
    return root


def _sizes(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """Patterns of names, and what they would be; the first that fits counts."""
    tables = [each for name, each in weights.items() if re.search(r"emb|tok|wte", name, re.I) and each.dim() == 2]
    layers = [int(found[1]) for name in weights if (found := re.search(r"(?:^|\.)(\d+)\.", name))]
    sizes = {}
    if layers:
        sizes[r"layer|depth|block"] = max(layers) + 1
    if tables:
        n_tokens, width = tables[0].shape
        wide = [len(each) for name, each in weights.items() if _is_wide(name, each, width)]
        if wide:
            sizes[r"ff|mlp|inner|feed|hidden_dim"] = max(wide)
        sizes |= {r"vocab|token|n_words|num_emb": n_tokens, r"model|emb|hidden|width|^dim$": width}
    return sizes


def _is_wide(name: str, tensor: Tensor, width: int) -> bool:
    return "." in name and tensor.dim() == 2 and tensor.shape[1] == width and bool(re.search(r"\.\d+\.", name))
