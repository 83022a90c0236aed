"""What the first attention block reads: tokens and positions, before attention mixes anything."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from headcount.auditing.observed import Observed
from headcount.hooks.gates import eval_mode, unfused
from headcount.tasks.base import ClassTask, Examples

UNSEEN = "where its first attention block reads the embeddings was not found"
MIXED = "tokens are mixed before the first attention block, so that what is added for a place cannot be told"
N_PROJECTIONS = 3
"""Queries, keys and values."""
VARIES = 1e-5
"""Of the largest value: what differs by more is not the same."""


def first_stream(observed: Observed, examples: Examples) -> Tensor | None:
    """[row, position, width]: what the first attention block reads; None if `first_streams` finds nothing.

    Where queries, keys and values have different inputs, the vectors of each position are joined.
    """
    streams = first_streams(observed, examples)
    return torch.cat(streams, dim=2) if streams else None


def first_streams(observed: Observed, examples: Examples) -> list[Tensor]:
    """Return the different inputs [row, position, width] of the first attention block, or of its linear layers.

    Queries, keys and values may have different ones, such as where positions are added to queries and keys alone.
    Nothing is returned where the inputs cannot be told, such as in a model without heads.
    """
    sites, module, inputs = observed.model.sites, observed.model.module, observed.inputs(examples)
    if not sites:
        return []
    with eval_mode(module, gradients=False), unfused(sites), StreamReader(module, sites.projections) as seen:
        module(*inputs)
    if seen.streams and len(set(seen.streams[0].shape[:2])) == 1 < len(examples) == len(seen.streams[0]):
        return first_streams(observed, examples[:-1])  # else rows and positions could not be told apart
    return [each for stream in seen.streams if (each := _rows_first(stream, len(examples))) is not None]


def is_mixed(observed: Observed, examples: Examples) -> bool:
    """Whether other numbers in the second half of the examples change more than what stands there."""
    half, others = examples.shape[1] // 2, examples.copy()
    others[:, half:] = np.roll(examples[:, half:], 1, axis=0)
    one, other = first_stream(observed, examples), first_stream(observed, others)
    if one is None or other is None or one.shape != other.shape:
        return False
    moved = (other - one).abs().amax(dim=(0, 2)) > 1e-6 * one.abs().max()
    for before, after in zip(observed.inputs(examples), observed.inputs(others), strict=True):
        if before.dim() == 2 and before.shape == after.shape and before.shape[1] == one.shape[1]:
            return bool((moved & ~(before != after).any(dim=0).cpu()).any())
    return observed.task.output_type == "class" and int(moved.sum()) > examples.shape[1] - half


def constant_sequences(observed: Observed, length: int, n: int) -> Examples:
    """Of one number each, no two rows alike."""
    task = cast(ClassTask, observed.task)
    drawn = np.unique(task.sample_of_length(observed.rng("one number"), max(length, 4 * n), None, 1)[0])
    numbers = drawn[np.unique(np.linspace(0, len(drawn) - 1, n).astype(int))]
    return np.repeat(numbers[:, None], length, axis=1)


def number_columns(stream: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    """Places where the numbers are: what stands there differs between rows, and within a row it is one token."""
    varies = (stream - stream[:1]).abs().amax(dim=(0, 2)) > VARIES * stream.abs().max()
    for ids in (each.cpu() for each in inputs):
        if ids.dim() == 2 and ids.shape[1] == stream.shape[1] and not ids.is_floating_point() and varies.any():
            return varies & (ids == ids[:, varies.nonzero()[0]]).all(dim=0)
    return varies


class StreamReader:
    """Follows a pass through its modules until the first output projection of heads is called."""

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
        given = [each.detach().clone() for each in (*args, *kwargs.values()) if _is_stream(each)]  # may be written into
        self._open.append((given, len(self._linear)))
        if isinstance(module, nn.Linear):
            self._linear += given[:1]

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not self._is_done:
            self._open.pop()

    def _candidates(self) -> list[Tensor]:
        """Inputs of linear layers in the innermost block around the projection, or else of the block itself.

        Without blocks, they are what the last linear layers read: queries, keys and values.
        """
        for given, n_before in reversed(self._open):
            if given:
                return self._linear[n_before:] or given
        return self._linear[: -N_PROJECTIONS - 1 : -1]

    def _distinct(self) -> list[Tensor]:
        """Candidates of the shape of the first one, each once."""
        found: list[Tensor] = []
        for each in self._candidates():
            is_alike = not found or each.shape == found[0].shape
            if is_alike and not any(torch.equal(each, other) for other in found):
                found.append(each)
        return found


def _is_stream(given: Any) -> bool:
    return isinstance(given, Tensor) and given.dim() == 3 and given.is_floating_point()


def _rows_first(stream: Tensor, n_rows: int) -> Tensor | None:
    """Some models have positions first."""
    if n_rows not in stream.shape[:2]:
        return None
    return (stream if stream.shape[0] == n_rows else stream.transpose(0, 1)).double().cpu()
