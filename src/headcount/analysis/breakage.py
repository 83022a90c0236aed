"""What breaks without a head: which digits, which carries, which examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task, Tokens
from headcount.training.evaluation import WrongAnswer, wrong_answers

SHOWN = 5
"""Broken examples that are kept of each head."""


class Broken(NamedTuple):
    """An example that was right before, and what is said of it now (None where there are but two things to say)."""

    example: int
    said: Tokens | None


@dataclass(frozen=True)
class Group:
    """Examples of one kind, and how many of them broke."""

    facet: str
    group: str
    broken: int
    n: int


@dataclass(frozen=True)
class Breakage:
    """One head silenced in one way."""

    head: str
    kind: str
    n_broken: int
    digits: tuple[Group, ...]
    """Wrong tokens of the answer, by position, among the broken examples that were decoded."""
    faults: tuple[Group, ...]
    """What is wrong with them in words, the most frequent first."""
    groups: tuple[Group, ...]
    """Of all examples of a group, how many broke: by number of carries, by length, ..."""
    examples: tuple[WrongAnswer, ...]


def breakage(
    task: Task, examples: Examples, head: str, kind: str, rows: NDArray[np.int64], broken: Sequence[Broken]
) -> Breakage:
    """Put together what was collected: the numbers of all broken examples, and the answers to some of them."""
    groups = _groups(task, examples, rows)
    if task.asks_for == "class":
        shown = tuple(_wrong_class(cast(ClassTask, task), examples[each.example]) for each in broken[:SHOWN])
        return Breakage(head, kind, len(rows), (), (), groups, shown)
    decoded = [(each.example, each.said) for each in broken if each.said is not None]
    if not decoded:
        return Breakage(head, kind, len(rows), (), (), groups, ())
    asked = cast(SequenceTask, task)
    mine, said = examples[[i for i, _ in decoded]], np.stack([tokens for _, tokens in decoded])
    wrong = said != asked.encode(mine).answer
    digits = tuple(
        Group("digit", position.label, int(wrong[:, i].sum()), len(wrong))
        for i, position in enumerate(asked.answer_positions)
    )
    return Breakage(
        head,
        kind,
        len(rows),
        digits,
        _faults(asked, mine, said),
        groups,
        wrong_answers(asked, mine[:SHOWN], said[:SHOWN]),
    )


def _groups(task: Task, examples: Examples, rows: NDArray[np.int64]) -> tuple[Group, ...]:
    found = []
    for facet, labels in task.facets(examples).items():
        total, broke = Counter(labels), Counter(labels[i] for i in rows)
        found += [Group(facet, group, broke[group], total[group]) for group in sorted(total)]
    return tuple(found)


def _faults(task: SequenceTask, examples: Examples, said: Tokens) -> tuple[Group, ...]:
    counts = Counter(
        fault for example, tokens in zip(examples, said, strict=True) for fault in task.faults(example, tokens)
    )
    return tuple(Group("fault", fault, n, len(examples)) for fault, n in counts.most_common())


def _wrong_class(task: ClassTask, example: Examples) -> WrongAnswer:
    right = int(task.encode(example[None]).labels[0])
    said = len(task.classes) - 1 - right
    return WrongAnswer(task.show(example), task.classes[right], task.classes[said], task.explain(example, said))
