"""Are test examples also training examples?

Some published reports drew each split independently: 25 of 2,000 test sums were also in the training set, and 24 more
with the operands swapped. The check looks for test examples in the training set that the adapter's training_data()
returns, or else in the task's training set. If training draws new examples at every step, the check draws 20,000 such
examples. Where swapped operands have the same answer, it looks for swapped examples as well.
"""

from contextlib import suppress

import numpy as np

from headcount.auditing.audited_model import AuditedModel, Hits, row_keys
from headcount.auditing.check import CONCLUSIONS, Check, Finding, failed, passed, warned
from headcount.data.from_adapter import training_pairs
from headcount.errors import InputError
from headcount.external.adapter import Adapter
from headcount.formatting import percent
from headcount.tasks.base import Examples

N_FRESH = 20_000
"""Number of training examples to draw if training has no fixed set."""
MAX_SHARED = 0.05
"""If a larger share of the test set is also in the training set, the check fails instead of warning."""


def run(model: AuditedModel) -> Finding:
    """Count test examples that are also training examples, exactly or with their operands swapped."""
    train, where = _training_examples(model)
    same = _are_among(model.examples, train)
    swapped = np.zeros_like(same)
    if model.is_commutative:
        swapped = _are_among(model.examples[:, ::-1], train) & ~same
    shared, origin = same | swapped, _origin(model)
    if not shared.any():
        return passed(f"none of {model.n:,} test examples is {where}{origin}", n=model.n, train=len(train))
    counted = f"{int(same.sum()):,} of {model.n:,} test examples are {where}"
    counted += f", and {int(swapped.sum()):,} more with operands swapped" if swapped.any() else ""
    report = failed if shared.mean() > MAX_SHARED else warned
    return report(
        f"{counted}: {_accuracy_without(model, shared)}{origin}",
        cause="the splits were drawn independently, so an example may be in two of them",
        fix="draw one set without repeats, count a+b and b+a as one example, and divide the set into splits",
        same=int(same.sum()),
        swapped=int(swapped.sum()),
        n=model.n,
        share=float(shared.mean()),
    )


def _training_examples(model: AuditedModel) -> tuple[Examples, str]:
    """Return the training examples, and a phrase that says where a shared example was found."""
    if (authors := _authors_examples(model)) is not None:
        return authors, "in the author's training set"
    train = model.task.splits.get("train")
    if train is not None and len(train):
        return train, "in the training set"
    fresh = model.task.sample(model.rng("shared examples"), N_FRESH)
    return fresh, f"among {len(fresh):,} examples drawn as in training"


def _are_among(examples: Examples, others: Examples) -> Hits:
    """Return for each example whether it also occurs among `others`."""
    known = set(row_keys(others))
    return np.array([key in known for key in row_keys(examples)], dtype=bool)


def _accuracy_without(model: AuditedModel, shared: Hits) -> str:
    right = model.right
    if shared.all():
        return f"accuracy is {percent(right.mean(), 2)}, and no test example is new"
    others = right[~shared]
    rest = f"{percent(others.mean(), 2)} without these ({len(others):,} examples)"
    return f"accuracy is {percent(right.mean(), 2)} on all test examples, and {rest}"


def _authors_examples(model: AuditedModel) -> Examples | None:
    """Return the training examples that an adapter gives, as examples of the task; None if it gives none."""
    if model.adapter is None or not (pairs := training_pairs(model.adapter)):
        return None
    examples = list[Examples]()
    for question, _ in pairs:
        with suppress(InputError):  # a question that the task cannot parse cannot be in its test set
            examples.append(model.task.parse(question)[0])
    return np.array(examples) if examples else model.examples[:0]


def _origin(model: AuditedModel) -> str:
    """Return a note that the author's training data are unknown, or an empty text if they are known."""
    if model.adapter is None or type(model.adapter).training_data is not Adapter.training_data:
        return ""
    return " (the task's own training set; the author's training data are not known)"


PART = Check("HC401", "Are test examples also training examples?", sequences=run, classes=run, affects=CONCLUSIONS)
