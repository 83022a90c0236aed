"""Find the position of the logits at which a model decides the token that an event, such as a carry, changes.

Models that headcount trained write every digit of a sum at a fixed position. Other models may leave out leading zeros,
write in the opposite order, add an end token, or get the first digit as an input. The labels of two examples that
differ in the event show where the changed token is.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.tasks.base import Quartets, SequenceTask
from headcount.training.evaluation import SequenceModel

Layout = tuple[int, ...]
"""The positions of an example's answer that have labels.

In examples with equal layouts, each place of the answer (such as the 10s) has the same position.
"""


def read_positions(task: SequenceTask, quartets: Quartets, labels: Tensor) -> Tensor:
    """Return the position of the logits at which the model decides the token that an event changes, for each quartet.

    A quartet is four examples that differ in one event, such as a carry. `labels` [4, quartet, position] are their
    labels. The position is the first or the last one at which the labels of a pair differ, depending on the task's
    order of writing; the other end if the model writes in the opposite order. Positions differ between quartets if a
    model leaves out leading zeros: the 10s digit is first in 95 and second in 195.
    """
    is_changed = _changed_labels(labels).int()
    ends = [is_changed.argmax(dim=1), is_changed.shape[1] - 1 - is_changed.flip(1).argmax(dim=1)]
    if quartets.place != np.flatnonzero(_changed_places(task, quartets).any(axis=0))[0]:
        ends.reverse()
    return next((end for end in ends if _has_own_labels(task, quartets, labels, end)), ends[0])


def is_readable(task: SequenceTask, quartets: Quartets, labels: Tensor) -> Tensor:
    """Return, for each quartet (four examples that differ in one event), whether its effect can be read off the logits.

    Every place of the answer that the event changes must have a label of its own. It has none in three cases. The
    decoder may be given the first token of the answer. One token may stand for several digits. Without leading zeros,
    the event may make the answer longer: in 95 and 105, the first tokens are digits of different columns, so a head
    that moves this digit would seem to move the carry.
    """
    n_places = torch.from_numpy(_changed_places(task, quartets).sum(axis=1)).to(labels.device)
    has_labels = _changed_labels(labels).sum(dim=1) >= n_places
    return (
        has_labels
        & _is_aligned(labels)
        & _has_own_labels(task, quartets, labels, read_positions(task, quartets, labels))
    )


def _has_own_labels(task: SequenceTask, quartets: Quartets, labels: Tensor, positions: Tensor) -> bool:
    """Return whether the answers' tokens at the changed place match the labels at `positions` one to one.

    The changed place is the one where an event, such as a carry, changes the answer.
    """
    rows, pairs = torch.nonzero(_is_aligned(labels)).flatten().tolist(), set[tuple[int, int]]()
    for i in (1, 2):
        tokens = task.encode(quartets.examples[i]).answer[rows, quartets.place]
        pairs.update(zip(tokens.tolist(), labels[i, rows, positions[rows]].tolist(), strict=True))
    return len(pairs) == len({token for token, _ in pairs}) == len({label for _, label in pairs})


def _changed_places(task: SequenceTask, quartets: Quartets) -> NDArray[np.bool_]:
    without, with_event = (task.encode(part).answer for part in quartets.examples[1:3])
    return np.asarray(without != with_event)


def _changed_labels(labels: Tensor) -> Tensor:
    return labels[1] != labels[2]


def _is_aligned(labels: Tensor) -> Tensor:
    """Return whether the answers with and without the event (a carry) have labels at the same positions.

    The result has one value per quartet, which is a set of four examples.
    """
    return ((labels[1] >= 0) == (labels[2] >= 0)).all(dim=1)


def layouts_of(labels: Tensor) -> list[Layout]:
    """Return the layout of each example: the tuple of its positions that have labels."""
    return [tuple(np.flatnonzero(row).tolist()) for row in (labels >= 0).cpu().numpy()]


def positions_by_layout(answers: SequenceModel, quartets: Quartets) -> dict[Layout, int]:
    """Return the position of the token that the event changes, for each layout (set of labelled positions) of answers.

    Quartets are sets of four examples that differ in one event, such as a carry.
    """
    _, labels = answers.teacher_forced(np.concatenate(quartets.examples))
    labels = labels.unflatten(0, (4, len(quartets)))
    positions = read_positions(answers.task, quartets, labels).tolist()
    readable = is_readable(answers.task, quartets, labels).tolist()
    rows = zip(layouts_of(labels[1]), positions, readable, strict=True)
    return {layout: position for layout, position, is_read in rows if is_read}
