"""A model's own tensors as texts are given elsewhere: row by row, with a name for each position."""

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
"""Rows of tensors that heads are measured on unasked."""
NO_TOKENS = ("mask", "type", "position")
"""What the names of tensors hold that are no tokens."""


def are_tensors(given: Any) -> TypeGuard[Tensor | Sequence[Tensor] | Mapping[str, Tensor]]:
    """Return whether these are a model's tensors, and not texts."""
    parts = given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else [given]
    return bool(parts) and all(isinstance(each, Tensor) for each in parts)


@dataclass(frozen=True, repr=False)
class ModuleWithInputs(OpenModel):
    """A bare module, with tensors to look at its heads on where no texts are named."""

    inputs: tuple[Tensor, ...]

    @classmethod
    def of_opened(cls, opened: OpenModel, inputs: Tensor | Sequence[Tensor]) -> ModuleWithInputs:
        """A module that is open, with its tensors in the order in which it takes them."""
        module, batch = input_batch(opened, inputs)
        return cls(opened.name, opened.label, "", module, opened.sites, None, batch.inputs)

    def texts(self, on: Sequence[str], data: str | Path | None = None) -> list[TokenizedText]:
        """Return its tensors row by row: it takes no texts."""
        return super().texts(on, data) or self.rows(MOST_ROWS)

    def rows(self, most: int) -> list[TokenizedText]:
        """Return the first rows of its tensors."""
        n = len(self.inputs[0])
        return tensor_rows(self, [each[:most] if len(each) == n else each for each in self.inputs])[1]


def tensor_rows(opened: OpenModel, inputs: Inputs) -> tuple[nn.Module, list[TokenizedText]]:
    """Return what is called, and every row of these tensors by itself.

    Positions have the ids of whole numbers that the model is given there, or else their places: 0, 1, ...
    """
    if not are_tensors(inputs):
        raise InputError(f"inputs are tensors, not {type(inputs).__name__}", "texts go into `on`")
    module, batch = input_batch(opened, inputs)
    if batch.n_inputs < 1:
        raise InputError("inputs of 0 rows", "give tensors whose first axis counts the examples")
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
    """Return one row; a tensor without an axis of rows, such as a causal mask, stays as it is."""
    return tuple(each[i : i + 1] if len(each) == batch.n_inputs else each for each in batch.inputs)


def _stack_sizes(module: nn.Module, opened: OpenModel, row: Sequence[Tensor]) -> dict[str, int]:
    """Return how many positions each stack has, by its attention weights."""
    sizes = dict[str, int]()
    for site, weights in attention_of(module, opened.sites, *row).items():
        sizes |= dict(zip(stacks_of(site), weights.shape[2:], strict=True))
    return sizes


def _token_tensor(batch: EvalBatch, stack: str, n: int, names: Sequence[str]) -> Tensor | None:
    """Return the whole numbers [row, position] that stand for tokens of a stack; None if there are none."""
    given = list(enumerate(batch.inputs))
    if names:
        is_fed = {i: names[i].startswith("decoder") for i, _ in given}
        given = [(i, each) for i, each in given if not any(word in names[i] for word in NO_TOKENS)]
        given = [(i, each) for i, each in given if is_fed[i] == (stack == "decoder") or stack == "layer"]
    whole = [each for _, each in given if not (each.is_floating_point() or each.is_complex())]
    whole = [each for each in whole if each.dtype != torch.bool and each.shape == (batch.n_inputs, n)]
    is_mask = [bool(i) and bool(((each == 0) | (each == 1)).all()) for i, each in enumerate(whole)]
    known = [each for each, mask in zip(whole, is_mask, strict=True) if not mask]
    return None if not known else known[-1 if stack == "decoder" else 0]


def _n_unpadded(batch: EvalBatch, sizes: Mapping[str, int], i: int) -> dict[str, int]:
    """Return how many positions of each stack a row has before the padding that a mask shows at its end."""
    mask = batch.token_mask.get("layer")
    if set(sizes) != {"layer"} or mask is None or mask.shape != (batch.n_inputs, sizes["layer"]):
        return dict(sizes)
    n = int(mask[i].sum())
    return {"layer": n} if n and bool(mask[i][:n].all()) else dict(sizes)
