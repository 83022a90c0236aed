"""Examples with and without padding: which are padded beside others, and how far apart two tables of logits are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.auditing.observed import Observed
from headcount.data.adapter_task import AdapterClasses
from headcount.hooks.gates import eval_mode
from headcount.tasks.base import ClassTask, Examples

Logits = NDArray[np.float64]
MOVED = 1e-3
"""Of the largest logit: what rounding never reaches in single precision."""


@dataclass(frozen=True)
class LogitDifference:
    """Between two tables [example, class] of the same examples."""

    changed: int
    """Answers that differ."""
    moved: float
    """The largest difference of a logit as a share of the largest one."""

    @classmethod
    def between(cls, one: Logits, other: Logits) -> LogitDifference:
        """What is added to all classes alike is no difference; a number that becomes none is an infinite one."""
        changed = int((one.argmax(axis=1) != other.argmax(axis=1)).sum())
        if (np.isfinite(one) != np.isfinite(other)).any():  # such as by a row that is all masked
            return cls(changed, np.inf)
        one, other = (np.nan_to_num(each - each.mean(axis=1, keepdims=True)) for each in (one, other))
        largest = max(float(np.abs(one).max()), float(np.abs(other).max()))
        return cls(changed, float(np.abs(one - other).max()) / largest if largest else 0.0)

    def __str__(self) -> str:
        moved = f"logits move by up to {100 * self.moved:.3g} % of the largest"
        return moved if self.moved < np.inf else "logits become NaN"

    def is_beyond_rounding(self, observed: Observed) -> bool:
        """Half precision rounds more: a tie may change sides by that."""
        eps = torch.finfo(next(observed.model.module.parameters()).dtype).eps
        return self.moved > max(MOVED, 16 * eps)


def logits_by_length(observed: Observed, examples: Examples, lengths: NDArray[np.int64]) -> Logits:
    """Those of one length in one batch, so that none is padded to another's."""
    found = np.empty((len(examples), len(cast(ClassTask, observed.task).classes)))
    for length in np.unique(lengths):
        found[lengths == length] = observed.logits_in_one_batch(examples[lengths == length])
    return found


def logits_of(observed: Observed, inputs: tuple[Tensor, ...]) -> Logits:
    """By the task's classes, of tensors as they are."""
    columns = observed.answers.columns if isinstance(observed.answers, AdapterClasses) else slice(None)
    with eval_mode(observed.model.module, gradients=False):
        return np.asarray(observed.model.module(*inputs)[:, columns].double().cpu().numpy())


def without_padding(inputs: tuple[Tensor, ...], surplus: int) -> tuple[Tensor, ...]:
    """Inputs without so many positions at the end or else the beginning, if all hold one id there; none if not."""
    ids, width = inputs[0], inputs[0].shape[1]
    for kept, rest in (
        (slice(0, width - surplus), slice(width - surplus, width)),
        (slice(surplus, width), slice(surplus)),
    ):
        if ids.dim() == 2 and surplus < width and bool((ids[:, rest] == ids[0, rest.stop - 1]).all()):
            return tuple(each[:, kept] if each.shape[1:2] == (width,) else each for each in inputs)
    return ()


def groups_without_padding(questions: Iterable[str]) -> list[list[str]]:
    """Questions whose numbers have as many digits each, for some code fills up every number by itself.

    >>> groups_without_padding(["1+22", "3+44", "11+2"])
    [['1+22', '3+44'], ['11+2']]
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for question in questions:
        numbers = re.findall(r"\d+", question)
        groups.setdefault((len(question), *map(len, numbers)), []).append(question)
    return list(groups.values())
