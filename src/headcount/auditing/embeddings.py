"""Read the input of the first attention block: embeddings of tokens and positions, before attention mixes them."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from headcount.auditing.audited_model import AuditedClassifier, AuditedModel
from headcount.hooks.gates import eval_mode, unfused
from headcount.tasks.base import Examples

NOT_FOUND = "the embeddings that the first attention block reads were not found in the model"
MIXED = "tokens are mixed before the first attention block, so that positions cannot be told from tokens"
N_PROJECTIONS = 3
"""Number of linear layers that compute queries, keys and values."""
MIN_VARIATION = 1e-5
"""Rows of embeddings are different if they differ by more than this fraction of the largest value (not rounding)."""
MIN_MIXING = 1e-6
"""Tokens are mixed if embeddings change by more than this fraction of the largest value."""


def first_stream(model: AuditedModel, examples: Examples) -> Tensor | None:
    """Return the input of the first attention block, [row, position, width]; None if it cannot be found.

    If queries, keys and values have different inputs, these are concatenated along the last axis.
    """
    streams = first_streams(model, examples)
    return torch.cat(streams, dim=2) if streams else None


def first_streams(model: AuditedModel, examples: Examples) -> list[Tensor]:
    """Return the different inputs [row, position, width] of the first attention block, or of its linear layers.

    Queries, keys and values have different inputs if, for example, positions are added to queries and keys alone.
    The list is empty if no input can be found, for example in a model without heads.
    """
    sites, module, inputs = model.opened.sites, model.opened.module, model.inputs(examples)
    if not sites:
        return []
    with eval_mode(module, gradients=False), unfused(sites), StreamReader(module, sites.projections) as reader:
        module(*inputs)
    if reader.streams and len(set(reader.streams[0].shape[:2])) == 1 < len(examples) == len(reader.streams[0]):
        return first_streams(model, examples[:-1])  # else rows and positions could not be told apart
    return [each for stream in reader.streams if (each := _rows_first(stream, len(examples))) is not None]


def is_mixed(model: AuditedModel, examples: Examples) -> bool:
    """Return whether embeddings in the first half of a sequence change with the numbers in the second half."""
    half, others = examples.shape[1] // 2, examples.copy()
    others[:, half:] = np.roll(examples[:, half:], 1, axis=0)
    one, other = first_stream(model, examples), first_stream(model, others)
    if one is None or other is None or one.shape != other.shape:
        return False
    is_moved = (other - one).abs().amax(dim=(0, 2)) > MIN_MIXING * one.abs().max()
    for before, after in zip(model.inputs(examples), model.inputs(others), strict=True):
        if before.dim() == 2 and before.shape == after.shape and before.shape[1] == one.shape[1]:
            return bool((is_moved & ~(before != after).any(dim=0).cpu()).any())
    return isinstance(model, AuditedClassifier) and int(is_moved.sum()) > examples.shape[1] - half


def constant_sequences(model: AuditedClassifier, length: int, n: int) -> Examples:
    """Return `n` sequences that repeat one number each, no two of them the same number."""
    drawn = np.unique(model.task.sample_of_length(model.rng("one number"), max(length, 4 * n), None, 1)[0])
    numbers = drawn[np.unique(np.linspace(0, len(drawn) - 1, n).astype(int))]
    return np.repeat(numbers[:, None], length, axis=1)


def number_columns(stream: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    """Return for each position whether it holds a number: embeddings vary there, and each row repeats one token id."""
    varies = (stream - stream[:1]).abs().amax(dim=(0, 2)) > MIN_VARIATION * stream.abs().max()
    for ids in (each.cpu() for each in inputs):
        if ids.dim() == 2 and ids.shape[1] == stream.shape[1] and not ids.is_floating_point() and varies.any():
            return varies & (ids == ids[:, varies.nonzero()[0]]).all(dim=0)
    return varies


class StreamReader:
    """A recorder of the inputs of modules in a forward pass, up to the first output projection of a block."""

    def __init__(self, model: nn.Module, projections: Iterable[nn.Module]) -> None:
        self._model, self._projections = model, set(projections)
        self._open: list[tuple[list[Tensor], int]] = []  # modules that have not returned: inputs, linear inputs before
        self._linear: list[Tensor] = []
        self._is_done = False
        self.streams: list[Tensor] = []
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        for module in self._model.modules():
            self._hooks.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
            self._hooks.callback(module.register_forward_hook(self._leave).remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_done:
            return
        if module in self._projections:
            self.streams, self._is_done = self._distinct(), True
            return
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        given = [each.detach().clone() for each in tensors if each.dim() == 3 and each.is_floating_point()]
        self._open.append((given, len(self._linear)))
        if isinstance(module, nn.Linear):
            self._linear += given[:1]

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not self._is_done:
            self._open.pop()

    def _candidates(self) -> list[Tensor]:
        """Return the tensors that may be the inputs of the attention block whose output projection is being called.

        These are the inputs of the linear layers in the innermost module around the projection or, without linear
        layers, of this module itself. If no module around it has inputs, they are those of the last linear layers.
        """
        for given, n_before in reversed(self._open):
            if given:
                return self._linear[n_before:] or given
        return self._linear[: -N_PROJECTIONS - 1 : -1]

    def _distinct(self) -> list[Tensor]:
        """Return the tensors that may be the inputs of attention: without duplicates, all of the first one's shape."""
        streams: list[Tensor] = []
        for each in self._candidates():
            has_shape = not streams or each.shape == streams[0].shape
            if has_shape and not any(torch.equal(each, other) for other in streams):
                streams.append(each)
        return streams


def _rows_first(stream: Tensor, n_rows: int) -> Tensor | None:
    """Return the tensor as [row, position, width], with the axis of `n_rows` in front; None without such an axis."""
    if n_rows not in stream.shape[:2]:
        return None
    return (stream if stream.shape[0] == n_rows else stream.transpose(0, 1)).double().cpu()
