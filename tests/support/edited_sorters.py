"""Copies of a proved sorter with planted faults: noise, another threshold, one wrong context."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.analysis.context_proof import bounded_table, context_shape
from headcount.experiments.models import RunModel
from headcount.models.transformer import Classifier
from headcount.runs.config import RunConfig
from headcount.runs.run import Run, build
from headcount.tasks.sortedness import Sortedness
from headcount.training.contexts import ContextShape, Undecidable
from headcount.training.violations import Decision

N = 6
"""Number of different numbers in the sequences of the proved sorter of the tests."""
Edit = Callable[[Classifier], object]


def edited(run: Run, edit: Edit) -> RunModel:
    """Return the model of a run with other weights."""
    model = cast(Classifier, deepcopy(run.model))
    with torch.no_grad():
        edit(model)
    return RunModel.of(replace(run, model=model))


def with_settings(run: Run, **settings: Any) -> RunModel:
    """Return an untrained model of the same task with other settings, whose leads have both signs."""
    config = RunConfig.build("sortedness", base=run.config, **settings)
    torch.manual_seed(3)
    model = cast(Classifier, build(config)[1])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("to_logits"):
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return RunModel.of(replace(run, config=config, model=model.eval()))


def classifier_of(model: RunModel) -> Classifier:
    return cast(Classifier, model.run.model)


def add_noise(size: float, seed: int) -> Edit:
    generator = torch.Generator().manual_seed(seed)

    def edit(model: Classifier) -> None:
        for parameter in model.parameters():
            parameter.add_(size * parameter.std(correction=0) * torch.randn(parameter.shape, generator=generator))

    return edit


def shift(by: float) -> Edit:
    """Move every lead, so that the tightest answers become wrong."""
    return lambda model: model.to_logits.bias[0].add_(by)


def context_shape_or_none(model: RunModel) -> ContextShape | None:
    try:
        return context_shape(model)[1]
    except Undecidable:
        return None


def quiet_leads(model: RunModel) -> NDArray[np.float64]:
    """Return the leads of the contexts without a broken pair, -inf elsewhere."""
    task = cast(Sortedness, model.run.task)
    shape = ContextShape.of(classifier_of(model), N)
    leads, _ = bounded_table(classifier_of(model), shape)
    assert task.allowed_neighbours is not None
    return np.where(Decision(shape, task.allowed_neighbours, leads).unbroken, leads, -np.inf)


def with_a_wrong_context(
    run: Run, is_wanted: Callable[[tuple[int, ...]], bool]
) -> tuple[RunModel, set[tuple[int, ...]]]:
    """Return a model in which only such a context without a broken pair fires, and all contexts of the same lead.

    Noise decides which context has the largest lead; a shift of all leads makes this one positive, and no other.
    """
    for seed in range(200):
        model = edited(run, add_noise(1.0, seed))
        if context_shape_or_none(model) is None:
            continue
        leads = quiet_leads(model)
        first = leads.max()
        second = leads[leads < first - 0.01].max()
        contexts = {tuple(map(int, context)) for context in np.argwhere(leads > second + 1e-9)}
        is_one = leads[leads > second].min() > first - 1e-9
        if is_one and any(map(is_wanted, contexts)):
            with torch.no_grad():
                shift(float(-(first + second) / 2))(classifier_of(model))
            return model, contexts
    raise AssertionError("no seed gives such a model")


FAULTS: dict[str, Callable[[tuple[int, ...]], bool]] = {
    "inside": lambda c: N not in c and len(set(c)) > 1,
    "the left border": lambda c: c[0] == N != c[2] != c[1],
    "the right border": lambda c: c[1] != c[0] != N == c[2],
    "length 1": lambda c: c[0] == N == c[2],
}
