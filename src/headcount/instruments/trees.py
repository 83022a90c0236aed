"""Tensors inside what modules return: tuples, lists and dictionaries of them, and their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

PLAIN = (int, float, bool, str, type(None))


def tensors_in(tree: Any) -> list[Tensor] | None:
    """Every tensor, in order; None if there is something whose tensors cannot be known."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, PLAIN):
        return []
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if not isinstance(tree, (tuple, list)):
        return None
    parts = [tensors_in(part) for part in tree]
    return None if any(part is None for part in parts) else [tensor for part in parts for tensor in part or ()]


def contains(tree: Any, wanted: Tensor) -> bool:
    """Whether this very tensor is in it."""
    return any(tensor is wanted for tensor in tensors_in(tree) or ())


def map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with every tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict) and is_dataclass(tree):  # what Hugging Face models return
        return type(tree)(**{name: map_tensors(part, change) for name, part in tree.items()})
    if isinstance(tree, dict):
        return type(tree)({name: map_tensors(part, change) for name, part in tree.items()})
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(part, change) for part in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map_tensors(part, change) for part in tree)
    return tree


def replace_tensor(tree: Any, old: Tensor, new: Tensor, others: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with one tensor replaced and the others changed."""
    return map_tensors(tree, lambda tensor: new if tensor is old else others(tensor))


class Rows:
    """The rows of one pass, repeated for several; knows its repetitions again."""

    def __init__(self, n: int, times: int) -> None:
        self.n, self.times = n, times
        self._made: dict[int, tuple[Tensor, Tensor, int]] = {}

    def repeat(self, tensor: Tensor) -> Tensor:
        """All rows, `times` over; a tensor that has no rows of the pass, such as a table, stays as it is."""
        _, made, version = self._made.get(id(tensor), (tensor, None, -1))
        if made is None or made._version != version:
            made = tensor
            if tensor.dim() and len(tensor) == self.n:
                made = tensor.repeat(self.times, *[1] * (tensor.dim() - 1))
            self._made[id(tensor)] = tensor, made, made._version  # both kept, so that no other gets their ids
        return made

    def repeat_tree(self, tree: Any) -> Any:
        """Every tensor in it."""
        return map_tensors(tree, self.repeat)

    def repeats_very(self, tensor: Tensor, recorded: Tensor) -> bool:
        """Whether this very tensor is our repetition of the recorded one, and was not changed in place since."""
        _, made, version = self._made.get(id(recorded), (recorded, None, -1))
        return made is tensor and tensor._version == version

    def repeats(self, tensor: Tensor, recorded: Tensor) -> bool:
        """Whether a tensor holds the recorded rows, `times` over, bit for bit."""
        if tensor.shape[1:] != recorded.shape[1:] or len(tensor) != self.times * self.n or len(recorded) != self.n:
            return False
        if not torch.equal(tensor[0], recorded[0]):
            return False  # most that differ do so at once
        return torch.equal(tensor.unflatten(0, (self.times, self.n)), recorded.expand(self.times, *recorded.shape))
