"""What has no order cannot tell the classes apart: sums, ranges, ties and values of every set that is printed.

A classifier that knows everything of a sequence but its order is fitted on one half of a set and tried on the other.
Where it does better than chance, the set gives its classes away, and a model may be right without comparing anything.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from headcount.limits import LENGTHS
from headcount.stats import Proportion
from headcount.tasks.base import EMPTY
from headcount.tasks.sortedness import NEGATIVES, Sortedness, SortednessConfig, first_broken

pytestmark = pytest.mark.slow

N, NUMBERS = 2000, 2**19
"""Examples of each class, half of them to fit on; fewer where they are long, so that they have so many numbers."""
BINS = 8
RIDGE = 1.0
SHORT, N_VALUES = 16, 100
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "paired": {"paired": True},
    "small_steps": {"small_steps": 0.5},
    "all small_steps": {"small_steps": 1.0},
    "distinct": {"distinct": True},
    "coin": {"balance": "coin"},
    "paired and small_steps": {"paired": True, "small_steps": 0.5},
    "padded with zeros": {"padding_is_zero": True, "distinct": True},
}
Set = tuple[np.ndarray, np.ndarray]
"""Examples, and whether each is sorted."""


# --- what has no order ------------------------------------------------------------------------------------------


def order_free(examples: np.ndarray) -> np.ndarray:
    """[example, feature], all of them functions of how often each number comes."""
    row, place = np.nonzero(examples != EMPTY)
    counts = np.bincount(row * N_VALUES + examples[row, place], minlength=len(examples) * N_VALUES)
    counts = counts.reshape(-1, N_VALUES)
    there, numbers, length = counts > 0, np.arange(N_VALUES), counts.sum(axis=1)
    total, least, most = counts @ numbers, there.argmax(axis=1), N_VALUES - 1 - there[:, ::-1].argmax(axis=1)
    steps, largest, last = np.zeros((2, len(counts))), np.zeros(len(counts)), np.where(there[:, 0], 0, -1)
    for value in numbers[1:]:
        step = np.where(there[:, value] & (last >= 0), value - last, 0)
        steps += [step == 1, step > 5]
        largest, last = np.maximum(largest, step), np.where(there[:, value], value, last)
    few = [length, total, total / length, counts @ numbers**2, least, most, most - least, largest, *steps]
    few += [there.sum(axis=1), length - there.sum(axis=1), counts.max(axis=1), counts[:, ::2].sum(axis=1)]
    few += [(counts.cumsum(axis=1) < q * length[:, None]).sum(axis=1) for q in (0.1, 0.25, 0.5, 0.75, 0.9)]
    return np.column_stack([*few, counts.reshape(len(counts), 10, -1).sum(axis=2)])


def one_hot(features: np.ndarray, fitted_on: np.ndarray) -> np.ndarray:
    """Each feature as one of `BINS` equally full bins, so that a line through them is any curve of each."""
    edges = np.quantile(fitted_on, np.linspace(0, 1, BINS + 1)[1:-1], axis=0)
    which = (features[:, None, :] > edges).sum(axis=1)
    return np.hstack([np.ones((len(features), 1)), *(np.eye(BINS)[column] for column in which.T)])


def told_apart(examples: np.ndarray, is_sorted: np.ndarray) -> np.ndarray:
    """On which examples of a half that it was not fitted on is a classifier without order right?

    The first half of each class is fitted on, so that a pair of a sequence and its sorted self is never split.
    """
    features, target = order_free(examples), np.where(is_sorted, 1.0, -1.0)
    halves = [np.array_split(np.flatnonzero(is_sorted == each), 2) for each in (False, True)]
    known, unseen = (np.concatenate(parts) for parts in zip(*halves, strict=True))
    fit, tried = (one_hot(features[rows], features[known]) for rows in (known, unseen))
    weights = np.linalg.solve(fit.T @ fit + RIDGE * np.eye(fit.shape[1]), fit.T @ target[known])
    return (tried @ weights > 0) == is_sorted[unseen]


# --- every set that is printed ----------------------------------------------------------------------------------


def task_of(**settings: Any) -> Sortedness:
    return Sortedness(SortednessConfig(n_validation=2, n_test=2, **settings))


def labelled(unsorted: np.ndarray, ordered: np.ndarray) -> Set:
    return np.concatenate([unsorted, ordered]), np.repeat([False, True], [len(unsorted), len(ordered)])


def sample_of_length(rng: np.random.Generator, length: int, kind: str, **settings: Any) -> Set:
    task = task_of(**settings)
    n = min(N, NUMBERS // length)
    return labelled(task.sample_of_length(rng, length, kind, n), task.sample_of_length(rng, length, None, n))


def drawn(rng: np.random.Generator, kind: str, **settings: Any) -> Set:
    task = task_of(negatives=kind, **settings)
    examples = task.sample(rng, 2 * N)
    return examples, task.encode(examples).labels == 1


def held_out(rng: np.random.Generator) -> Set:
    task = Sortedness(SortednessConfig(n_validation=2, n_test=2 * N))
    examples = task.split("test")
    return examples, task.encode(examples).labels == 1


def cut(rng: np.random.Generator, length: int) -> Set:
    task = task_of()
    n = min(N, NUMBERS // length)
    return labelled(*task.cropped(rng, task.sample_of_length(rng, length, task.local_negative, n), SHORT))


def cut_before(rng: np.random.Generator, length: int, kind: str) -> Set:
    """As it was: both classes cut apart, each around its broken pair or around a random rise."""
    parts = []
    for examples in (task_of().sample_of_length(rng, length, each, N) for each in (kind, None)):
        n, width = examples.shape
        rises = np.where(examples[:, :-1] < examples[:, 1:], rng.random((n, width - 1)), -1.0)
        broken = first_broken(examples)
        pair = np.where(broken < 0, rises.argmax(axis=1), broken)
        start = np.clip(pair - rng.integers(SHORT - 1, size=n), 0, width - SHORT)
        parts.append(np.take_along_axis(examples, start[:, None] + np.arange(SHORT), axis=1))
    return labelled(*parts)


Maker = Callable[[np.random.Generator], Set]
PRINTED: dict[str, Maker] = {
    **{
        f"{kind} at {length}": partial(sample_of_length, length=length, kind=kind)
        for kind, length in product(NEGATIVES, LENGTHS)
    },
    **{
        f"{kind} of different numbers at {length}": partial(sample_of_length, length=length, kind=kind, distinct=True)
        for kind, length in product(NEGATIVES, (16, 64))
    },
    **{
        f"training on {kind}, {name}": partial(drawn, kind=kind, **settings)
        for kind, (name, settings) in product(NEGATIVES, SETTINGS.items())
    },
    "the test set": held_out,
    **{f"{SHORT} of {length}": partial(cut, length=length) for length in LENGTHS if length > SHORT},
}


@pytest.fixture(scope="module")
def hits() -> dict[str, np.ndarray]:
    return {name: told_apart(*make(np.random.default_rng(i))) for i, (name, make) in enumerate(PRINTED.items())}


def test_nothing_without_order_tells_the_classes_apart(hits: dict[str, np.ndarray]) -> None:
    """Of all sets together, one interval in twenty may miss 50 %: so each is wide enough for all of them."""
    shares = {name: Proportion.of(int(each.sum()), len(each), 1 - 0.05 / len(hits)) for name, each in hits.items()}
    assert {name: str(share) for name, share in shares.items() if not share.low <= 0.5 <= share.high} == {}


def test_nor_does_a_little_of_it_in_all_sets_together(hits: dict[str, np.ndarray]) -> None:
    together = Proportion.count(np.concatenate(list(hits.values())))
    assert together.low <= 0.5 <= together.high, str(together)


@pytest.mark.parametrize(("kind", "least"), [("shuffle", 0.99), ("transpositions", 0.99), ("moved_one", 0.9)])
def test_it_would_be_seen(kind: str, least: float) -> None:
    """Pieces of 16 numbers as they were once cut from 256."""
    found = told_apart(*cut_before(np.random.default_rng(0), 256, kind))
    assert Proportion.count(found).low > least
