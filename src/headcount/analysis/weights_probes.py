"""Fit linear probes for an event such as the carry, and compare them with patches that show what the model uses.

A probe is a logistic regression from the residual stream at the positions of one place (such as the 10s of both
operands) to the event at one place of the answer. It is fitted on some examples and measured on others. Two controls
are measured too (Hewitt and Liang 2019, "Designing and interpreting probes with control tasks", arXiv 1909.03368):

    raw input     the same regression from one-hot tokens of the whole question, before any model

    shuffled      the same regression with the labels in random order, which shows what a probe can memorise

A carry is linear in one-hot digits, so the raw input decodes it without any model. A probe therefore shows that the
tokens are still there, not that the model computed the event or uses it. Patches show what is used
(analysis/routes.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.analysis.routes import Progress, Routes, positions_by_place, require_event
from headcount.bands import PART
from headcount.experiments.models import OpenModel
from headcount.hooks.gates import eval_mode
from headcount.hooks.streams import StreamCapture, Streams
from headcount.results import Contradiction, Count, Positive
from headcount.results import Share as Fraction
from headcount.seeds import stream
from headcount.stats import Proportion
from headcount.training.evaluation import SequenceModel

N_FIT, N_HELD_OUT = 2000, 1000
"""Number of examples on which a probe is fitted, and number of held-out examples on which it is measured."""
RIDGE, N_NEWTON = 0.1, 15
"""L2 penalty on the weights of a probe (whose inputs are standardised), and number of Newton steps of the fit."""
DECODABLE = 0.9
"""The event (a carry) counts as decodable if the 95 % CI of a probe's accuracy lies above this and above guessing."""


@dataclass(frozen=True)
class Probe:
    """The accuracy, on held-out examples, of one linear probe that decodes an event such as a carry."""

    stream: str
    position: str
    read: str
    """Place of the answer, such as `100s`, whose event (a carry into it) the probe decodes."""
    accuracy: Proportion
    shuffled: Proportion
    """Accuracy of the same probe, fitted to labels in random order."""
    moved: float | None = None
    """Largest share of the event (a carry) that patching this stream and position moves into the place `read`.

    None if it was not patched.
    """
    moved_high: float | None = None
    """Upper end of the confidence interval of `moved`."""


@dataclass(frozen=True)
class Baseline:
    """How well the event (a carry) at one place of the answer (10s) can be predicted without the model."""

    read: str
    guessing: Fraction
    """Accuracy of always predicting the more frequent case: a carry, or none."""
    raw: Proportion
    """Accuracy of a probe on one-hot tokens of the question instead of the model's activations."""


@dataclass(frozen=True)
class Probes:
    """Linear probes for an event (a carry): one per residual stream, position in it, and place of the answer (10s)."""

    event: str
    n_fit: Positive
    n_held_out: Positive
    baselines: tuple[Baseline, ...]
    cells: tuple[Probe, ...]
    n_decodable: Count
    """Number of cells (stream and position) from which a probe reads the event (a carry) with over 90 % accuracy."""
    n_moved: Count
    """Number of decodable cells (stream and position) that were also patched, to see how much of a carry they move."""
    n_idle: Count
    """Number of decodable cells (stream and position) that, when patched, move less than 10 % of a carry."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the counts disagree with the list of probes."""
        counts = _counts(self.cells, self.baselines)
        for name, count in counts.items():
            if getattr(self, name) != count:
                yield name, str(count)


def is_decodable(cell: Probe, baselines: Sequence[Baseline]) -> bool:
    """Return whether the whole 95 % CI of a probe's accuracy lies above 90 % and above guessing."""
    guessing = {each.read: each.guessing for each in baselines}
    return cell.accuracy.low > max(DECODABLE, guessing.get(cell.read, 1.0))


def _counts(cells: Sequence[Probe], baselines: Sequence[Baseline]) -> dict[str, int]:
    decodable = [cell for cell in cells if is_decodable(cell, baselines)]
    moved = [cell.moved_high for cell in decodable if cell.moved_high is not None]
    return {"n_decodable": len(decodable), "n_moved": len(moved), "n_idle": sum(high < PART for high in moved)}


def probe(model: OpenModel, routes: Routes | None = None, *, seed: int = 0, progress: Progress | None = None) -> Probes:
    """Fit linear probes that decode the task's event (a carry) from residual streams, for each place of the answer.

    A place is, for example, the 10s digit. `routes` gives the share of the event that each stream moves when patched.
    """
    task = require_event(model)
    assert task.words.event is not None, "require_event has checked this"
    examples = task.sample(stream(seed, "probes"), N_FIT + N_HELD_OUT)
    inputs, _ = cast(SequenceModel, model.answers).teacher_forced(examples)
    with eval_mode(model.module), torch.no_grad():
        streams = Streams.of(model.module, model.sites, [each[:4] for each in inputs])
        with StreamCapture(streams) as seen:
            model.module(*inputs)
    names = [each.label for each in task.answer_positions]
    events = {name: task.has_event(examples, i) for i, name in enumerate(names)}
    events = {name: has for name, has in events.items() if 0 < has[:N_FIT].mean() < 1}
    tokens = task.encode(examples).source
    one_hot = np.eye(len(task.tokens))[tokens].reshape(len(tokens), -1)
    labels, order = np.stack(list(events.values()), axis=1), stream(seed, "shuffled").permutation(N_FIT)
    raw = _hits(one_hot, labels, np.arange(N_FIT))
    baselines = tuple(
        Baseline(name, float(max(has.mean(), 1 - has.mean())), Proportion.count(raw[:, i]))
        for i, (name, has) in enumerate((name, events[name][N_FIT:]) for name in events)
    )
    places = [
        (str(place), name, seen[place][:, positions])
        for place in streams
        if place.kind != "mlp"
        for name, positions in positions_by_place(task, place.stack, seen[place].shape[1]).items()
    ]
    cells: list[Probe] = []
    for done, (name, position, values) in enumerate(places):
        cells += _cells(name, position, values, labels, order, list(events), routes)
        if progress:
            progress(done + 1, len(places))
    counts = _counts(cells, baselines)
    return Probes(task.words.event.name, N_FIT, N_HELD_OUT, baselines, tuple(cells), **counts)


def _cells(
    name: str,
    position: str,
    values: Tensor,
    labels: NDArray[np.bool_],
    order: NDArray[np.int64],
    reads: Sequence[str],
    routes: Routes | None,
) -> list[Probe]:
    """Return the probes of one residual stream at one place (10s), one for each place of the answer in `reads`."""
    x = values.flatten(start_dim=1).double().cpu().numpy()
    own, control = _hits(x, labels, np.arange(len(order))), _hits(x, labels, order)
    cells = []
    for i, read in enumerate(reads):
        shares = [
            each.moved
            for each in (routes.streams if routes else ())
            if (each.what, each.position) == (name, position) and each.way.endswith(f" to {read}")
        ]
        moved = max((each.share for each in shares), default=None)
        high = max((each.high for each in shares), default=None)
        cells.append(
            Probe(name, position, read, Proportion.count(own[:, i]), Proportion.count(control[:, i]), moved, high)
        )
    return cells


def _hits(x: NDArray[np.float64], labels: NDArray[np.bool_], order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Fit one probe per column of labels [example, column]; return which held-out examples each probe gets right.

    `order` reorders the labels of the fitted examples; with a random order, probes show what they can memorise.
    """
    n, is_constant = len(order), x[: len(order)].std(axis=0) < 1e-9
    deviation = np.where(is_constant, 1.0, x[:n].std(axis=0))
    inputs = np.concatenate([(x - x[:n].mean(axis=0)) / deviation, np.ones((len(x), 1))], axis=1)
    predicted = [inputs[n:] @ fit_logistic(inputs[:n], labels[:n][order, i]) > 0 for i in range(labels.shape[1])]
    return np.stack(predicted, axis=1) == labels[n:]


def fit_logistic(x: NDArray[np.float64], y: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the weights of a logistic regression of y on x with an L2 penalty, fitted by Newton's method."""
    weights, penalty = np.zeros(x.shape[1]), RIDGE * np.eye(x.shape[1])
    for _ in range(N_NEWTON):
        chance = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        slope = np.maximum(chance * (1 - chance), 1e-6)
        gradient = x.T @ (chance - y) + RIDGE * weights
        weights = weights - np.linalg.solve(x.T @ (x * slope[:, None]) + penalty, gradient)
    return weights
