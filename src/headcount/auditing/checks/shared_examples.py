"""Are test examples among those that the model was trained on?

The newer reports drew each split by itself: 25 of their 2,000 test sums were in the training set as they were, and 24
more with the operands swapped. Test examples are looked up in the training set that an adapter's `training_data` gives,
in the task's own or, where training draws fresh examples, in 20,000 of them; with operands swapped too, where that does
not change the answer.
"""

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from headcount.auditing.check import CONCLUSIONS, Check, Finding, failed, passed, warned
from headcount.auditing.observed import Hits, Observed, row_keys
from headcount.data.from_adapter import training_pairs
from headcount.errors import InputError
from headcount.external.adapter import Adapter
from headcount.tasks.base import Examples

N_FRESH = 20_000
"""Training examples that are drawn where training has no fixed set."""
MUCH = 0.05
"""Share of the test set from which on its figure is no longer one of unseen examples."""


def run(observed: Observed) -> Finding:
    """Exactly, and swapped."""
    train, where = _trained_on(observed)
    same = _are_among(observed.examples, train)
    swapped = np.zeros_like(same)
    if observed.is_commutative:
        swapped = _are_among(observed.examples[:, ::-1], train) & ~same
    shared, whose = same | swapped, _whose(observed)
    if not shared.any():
        return passed(f"none of {observed.n:,} test examples is {where}{whose}", n=observed.n, train=len(train))
    told = f"{int(same.sum()):,} of {observed.n:,} test examples are {where}"
    told += f", and {int(swapped.sum()):,} more with operands swapped" if swapped.any() else ""
    verdict = failed if shared.mean() > MUCH else warned
    return verdict(
        f"{told}: {_without(observed, shared)}{whose}",
        cause="the splits were drawn each by itself, so that nothing keeps an example out of two of them",
        fix="draw one set without repeats, a sum and its swap being one thing, and cut it into the splits",
        same=int(same.sum()),
        swapped=int(swapped.sum()),
        n=observed.n,
        share=float(shared.mean()),
    )


def _trained_on(observed: Observed) -> tuple[Examples, str]:
    """Return the training examples, and where a shared one is."""
    if (authors := _authors_examples(observed)) is not None:
        return authors, "in the author's training set"
    train = observed.task.splits.get("train")
    if train is not None and len(train):
        return train, "in the training set"
    fresh = observed.task.sample(observed.rng("shared examples"), N_FRESH)
    return fresh, f"among {len(fresh):,} drawn for training"


def _are_among(examples: Examples, others: Examples) -> Hits:
    """[example]."""
    known = set(row_keys(others))
    found: NDArray[np.bool_] = np.array([key in known for key in row_keys(examples)], dtype=bool)
    return found


def _without(observed: Observed, shared: Hits) -> str:
    right = observed.right
    if shared.all():
        return f"{100 * right.mean():.2f} % are right, and none is left that is new"
    others = right[~shared]
    return f"{100 * right.mean():.2f} % of all are right, and {100 * others.mean():.2f} % of the other {len(others):,}"


def _authors_examples(observed: Observed) -> Examples | None:
    """Return what the author trained on, in the task's examples; None where the adapter does not give it."""
    if observed.adapter is None or not (pairs := training_pairs(observed.adapter)):
        return None
    examples = list[Examples]()
    for question, _ in pairs:
        with suppress(InputError):  # a question that is none of the task's cannot be in its test set
            examples.append(observed.task.parse(question)[0])
    return np.array(examples) if examples else observed.examples[:0]


def _whose(observed: Observed) -> str:
    """Without `training_data`, an adapter tells the task and its settings, not what its author trained on."""
    if observed.adapter is None or type(observed.adapter).training_data is not Adapter.training_data:
        return ""
    return " (by the split of the task; the author's own data are not known)"


PART = Check("HC401", "Are test examples among those that the model was trained on?", run, affects=CONCLUSIONS)
