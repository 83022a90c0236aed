"""Use the rows of a model's input tensors, instead of texts, as examples on which heads are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from headcount.analysis.role_measures import stacks_of
from headcount.api.intervening import Inputs, input_batch
from headcount.data.dataset import EvalBatch, TokenizedText
from headcount.errors import InputError
from headcount.experiments.models import OpenModel
from headcount.hooks.attention import attention_of

MOST_ROWS = 64
"""Heads are measured on at most this many rows of the input tensors, unless the user asks for more."""
NO_TOKENS = ("mask", "type", "position")
"""Words in the names of input tensors that hold no token ids, such as `mask` in `attention_mask`."""


def are_tensors(given: Any) -> TypeGuard[Tensor | Sequence[Tensor] | Mapping[str, Tensor]]:
    """Return whether the inputs are tensors (one, several, or by name) and not texts."""
    parts = given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else [given]
    return bool(parts) and all(isinstance(part, Tensor) for part in parts)


@dataclass(frozen=True, repr=False)
class ModuleWithInputs(OpenModel):
    """A PyTorch module with the input tensors on which its heads are measured."""

    inputs: tuple[Tensor, ...]

    @classmethod
    def of_opened(cls, opened: OpenModel, inputs: Tensor | Sequence[Tensor]) -> ModuleWithInputs:
        """Return an opened module together with its input tensors, in the order of the arguments of `forward`."""
        module, batch = input_batch(opened, inputs)
        return cls(opened.name, opened.label, "", module, opened.sites, None, batch.inputs)

    def texts(self, on: Sequence[str], data: str | Path | None = None) -> list[TokenizedText]:
        """Return tokenized texts: those in `on` and in the file `data`; without any, the rows of the input tensors."""
        return super().texts(on, data) or self.rows(MOST_ROWS)

    def rows(self, most: int) -> list[TokenizedText]:
        """Return the first rows of the input tensors, at most `most`, each as one text."""
        n = len(self.inputs[0])
        return tensor_rows(self, [tensor[:most] if len(tensor) == n else tensor for tensor in self.inputs])[1]


def tensor_rows(opened: OpenModel, inputs: Inputs) -> tuple[nn.Module, list[TokenizedText]]:
    """Return the module to call, and each row of the input tensors as one example.

    Positions are named by the token ids of the row, or 0, 1, ... if no tensor holds token ids.
    """
    if not are_tensors(inputs):
        raise InputError(
            f"inputs must be tensors, got {type(inputs).__name__}",
            "give tensors, or give texts with the argument on=...",
        )
    module, batch = input_batch(opened, inputs)
    if batch.n_inputs < 1:
        raise InputError("the input tensors have 0 rows", "give tensors whose first axis counts the examples")
    names = tuple(inputs) if isinstance(inputs, Mapping) else ()
    sizes = _stack_sizes(module, opened, _row(batch, 0))
    tokens = {stack: _token_tensor(batch, stack, n, names) for stack, n in sizes.items()}
    rows = list[TokenizedText]()
    for i in range(batch.n_inputs):
        n_tokens = _n_unpadded(batch, sizes, i)
        labels = {
            stack: [str(int(each)) for each in tokens[stack][i][:n]]  # type: ignore[index]
            if tokens[stack] is not None
            else list(map(str, range(n)))
            for stack, n in n_tokens.items()
        }
        cut = {sizes[stack]: n for stack, n in n_tokens.items() if n < sizes[stack]}
        parts = (
            each[:, : cut.get(each.shape[1], each.shape[1])] if each.dim() > 1 else each for each in _row(batch, i)
        )
        rows.append(TokenizedText(tuple(parts), labels))
    return module, rows


def _row(batch: EvalBatch, i: int) -> tuple[Tensor, ...]:
    """Return row `i` of each tensor. A tensor without a row axis, such as a causal mask, is returned whole."""
    return tuple(each[i : i + 1] if len(each) == batch.n_inputs else each for each in batch.inputs)


def _stack_sizes(module: nn.Module, opened: OpenModel, row: Sequence[Tensor]) -> dict[str, int]:
    """Return the number of positions of each stack (encoder, decoder), read from the shapes of attention weights."""
    sizes = dict[str, int]()
    for site, weights in attention_of(module, opened.sites, *row).items():
        sizes |= dict(zip(stacks_of(site), weights.shape[2:], strict=True))
    return sizes


def _token_tensor(batch: EvalBatch, stack: str, n: int, names: Sequence[str]) -> Tensor | None:
    """Return the token ids [row, position] of a stack (such as the encoder) with `n` positions, or None."""
    tensors = list(batch.inputs)
    if names:
        tensors = [
            tensor
            for name, tensor in zip(names, tensors, strict=False)
            if not any(word in name for word in NO_TOKENS)
            and (stack == "layer" or name.startswith("decoder") == (stack == "decoder"))
        ]
    integers = [tensor for tensor in tensors if not (tensor.is_floating_point() or tensor.is_complex())]
    integers = [tensor for tensor in integers if tensor.dtype != torch.bool and tensor.shape == (batch.n_inputs, n)]
    tokens = [tensor for i, tensor in enumerate(integers) if i == 0 or bool(((tensor != 0) & (tensor != 1)).any())]
    return None if not tokens else tokens[-1 if stack == "decoder" else 0]


def _n_unpadded(batch: EvalBatch, sizes: Mapping[str, int], i: int) -> dict[str, int]:
    """Return for each stack the number of positions of row `i`, without the padding at its end."""
    mask = batch.token_mask.get("layer")
    if set(sizes) != {"layer"} or mask is None or mask.shape != (batch.n_inputs, sizes["layer"]):
        return dict(sizes)
    n = int(mask[i].sum())
    return {"layer": n} if n and bool(mask[i][:n].all()) else dict(sizes)
