"""Cut heads out of a finished run, and keep what is left as a run of its own.

Nothing is written unless the cut model says what the whole one says with these heads silenced (or with their means in
their places, if those are folded into the biases that stay); once written, it is loaded and must say it again. The new
run has the settings of its parent, those of the training too, and `pruned`. What was done since the parent was trained
stands in the manifest:

    steps            of the parent's training and of the fine-tuning
    pruned_from      the digest of the parent's weights
    fine_tuned       steps after the cut
    fine_tuned_at    their highest learning rate, if there were any
    folded_over      training examples whose means were folded into biases, if they were
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from headcount.config import adapter, parse
from headcount.errors import CheckFailed, InputError, Interrupted, argument
from headcount.heads import HeadId
from headcount.models.build import Model
from headcount.models.pruning import Means, folded, held_at_means, mean_outputs, silenced, without
from headcount.runs.draft import drafted, require_vacant
from headcount.runs.folder import RunFolder
from headcount.runs.run import Run, load
from headcount.runs.storage import explained, read_bytes, write_atomically
from headcount.runs.train import Log, environment, stop_on_interrupt, weights_of
from headcount.seeds import integer, stream
from headcount.tasks.base import ClassTask, Examples, SequenceTask
from headcount.training.averaging import averaged
from headcount.training.config import TrainingConfig
from headcount.training.device import n_threads
from headcount.training.evaluation import BLOCK, evaluating, on_device
from headcount.training.learners import StepScores
from headcount.training.loop import Listener, fit, new_state

TOLERANCE = 1e-9
"""Most that two logits may differ in double precision, as a share of the largest: sums in another order, no fault."""
OWN_TOLERANCE = 1e-5
"""Likewise in the model's own precision, in which a folded bias is rounded."""
N_FOLDED = 16_384
"""Training examples that the means of cut heads are taken over, if they are folded."""
GENTLY = 0.1
"""The learning rate of fine-tuning, as a share of the one that the parent was trained with."""


@dataclass(frozen=True)
class Size:
    """Of a model, and of the file that holds its weights."""

    parameters: int
    n_bytes: int


@dataclass(frozen=True)
class Cut:
    """A run without some of its parent's heads."""

    run: Run
    heads: tuple[HeadId, ...]
    """Those that were cut out now."""
    difference: float
    """From the parent with these heads silenced or at their means, in the model's own precision: as a share of the
    largest logit."""
    before: Size
    after: Size
    folded_over: int = 0
    """Examples whose means were folded into biases; 0 if none were."""


def prune_run(
    run: Run,
    heads: Iterable[str | HeadId],
    path: Path,
    *,
    fold_mean: bool = False,
    fine_tune: int = 0,
    learning_rate: float | None = None,
    listeners: Sequence[Listener] = (),
) -> Cut:
    """Cut these heads out, train the rest for `fine_tune` steps more, and write a new run to `path`.

    With `fold_mean`, what the heads said on average over training examples stays in the biases.
    """
    gone = tuple(dict.fromkeys(run.find_head(head) for head in heads))
    if not gone:
        raise InputError("no heads to cut out", f"list the heads: headcount heads {argument(run.name)}")
    if learning_rate is not None and not fine_tune:
        raise InputError(f"a learning rate of {learning_rate:g} does nothing without fine-tuning", "say how many steps")
    recipe = _recipe(run.config.training, fine_tune, learning_rate) if fine_tune else None
    require_vacant(path)
    means = _means(run) if fold_mean else None
    whole = run.model if means is None else folded(run.model, gone, means)
    model, silent = without(whole, gone), silenced(whole, gone)
    _require_alike(model, silent, run, "the cut model and the model with those heads silenced")
    difference = _apart(model, silent, run) if means is None else _require_folded(model, run, gone, means)
    folded_over = N_FOLDED if fold_mean else 0
    with drafted(path) as draft:
        _begin(draft, run, model)
        if recipe:
            model = _fine_tuned(model, run, recipe, draft, listeners)
        _finish(draft, run, model, recipe, folded_over)
        _require_alike(load(draft.path).model, model if recipe else silent, run, "what was written and what is read")
    after = load(path, next(model.parameters()).device)
    return Cut(after, gone, difference, _size(run), _size(after), folded_over)


def _means(run: Run) -> Means:
    with evaluating(run.model):
        return mean_outputs(run.model, _training_inputs(run))


def _training_inputs(run: Run) -> Iterator[list[Tensor]]:
    """What the model is given for examples of its training, a forward pass' worth at a time; fed the right answers."""
    examples, device = run.task.draw(stream(0, "reference"), N_FOLDED), next(run.model.parameters()).device
    for start in range(0, N_FOLDED, BLOCK):
        yield _inputs(run, examples[start : start + BLOCK], device)


def _inputs(run: Run, examples: Examples, device: torch.device) -> list[Tensor]:
    if run.task.asks_for == "sequence":
        batch = cast(SequenceTask, run.task).encode(examples)
        return on_device(device, batch.source, batch.fed)
    return on_device(device, cast(ClassTask, run.task).encode(examples).source)


def _require_folded(model: Model, run: Run, gone: Sequence[HeadId], means: Means) -> float:
    """How far the cut model is from the whole one whose heads say their means; folded in double precision, hardly."""
    held, double = held_at_means(run.model, gone, means), deepcopy(run.model).cpu().double()
    what = "the cut model and the model with those heads' means in their places"
    _require_alike(without(folded(double, gone, means), gone), held, run, what)
    apart = _apart(model, held, run)
    _require_near(apart, OWN_TOLERANCE, what)
    return apart


def _recipe(training: TrainingConfig, steps: int, learning_rate: float | None) -> TrainingConfig:
    """The parent's, at a tenth of its learning rate and to the end."""
    rate = GENTLY * training.learning_rate if learning_rate is None else learning_rate
    changes = {"steps": steps, "learning_rate": rate, "target": None}
    settings = {"fine-tuning": adapter(TrainingConfig).dump_python(training) | changes}
    return cast(TrainingConfig, parse({"fine-tuning": TrainingConfig}, settings)["fine-tuning"])


def _fine_tuned(
    model: Model, run: Run, recipe: TrainingConfig, folder: RunFolder, listeners: Sequence[Listener]
) -> Model:
    """The model after some more steps, on batches that the parent's training has not drawn."""
    state, seed = new_state(model, recipe), integer(run.config.seed, "fine-tuning")
    with (
        torch.random.fork_rng(),
        n_threads(recipe.threads),
        Log(folder) as log,
        stop_on_interrupt() as asked_to_stop,
    ):
        everyone = [_GoingOn(log, _steps(run)), *listeners]
        done = fit(state, run.task, recipe, seed, listeners=everyone, asked_to_stop=asked_to_stop)
    if not done:
        what = f"stopped at step {state.step:,} of the fine-tuning; nothing was written"
        raise Interrupted(what, signal=asked_to_stop.signal)
    with averaged(state):
        return deepcopy(model).eval()


@dataclass(frozen=True)
class _GoingOn:
    """Writes to a log whose first steps are the parent's."""

    log: Log
    n_past: int

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        self.log.on_steps(self.n_past + last_step, losses, rates)

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        self.log.on_evaluation(self.n_past + step, scores)


def _begin(folder: RunFolder, run: Run, model: Model) -> None:
    write_atomically(folder.config_file, replace(run.config, model=model.config).to_json().encode())
    folder.write_json(folder.environment_file, environment(next(model.parameters()).device))
    write_atomically(folder.log_file, read_bytes(run.folder.log_file))


def _finish(folder: RunFolder, run: Run, model: Model, recipe: TrainingConfig | None, folded_over: int) -> None:
    steps = recipe.steps if recipe else 0
    write_atomically(folder.weights_file, weights_of(model, _steps(run) + steps))
    summary = {"steps": _steps(run) + steps, "pruned_from": run.digest, "fine_tuned": steps}
    summary |= {"folded_over": folded_over} if folded_over else {}
    folder.write_manifest(summary | ({"fine_tuned_at": recipe.learning_rate} if recipe else {}))


def _steps(run: Run) -> int:
    return int(run.folder.read_manifest()["steps"])


def _require_alike(one: Model, other: Model, run: Run, what: str) -> None:
    """In double precision on the CPU, where no rounding hides a fault or looks like one."""
    _require_near(_apart(deepcopy(one).cpu().double(), deepcopy(other).cpu().double(), run), TOLERANCE, what)


def _require_near(apart: float, most: float, what: str) -> None:
    if not apart <= most:  # NaN is not
        raise CheckFailed(
            f"{what} differ by {apart:.2g} of the largest logit (at most {most:g}): nothing was written",
            "this is a fault in headcount, not in the model: please report it",
        )


def _apart(one: Model, other: Model, run: Run) -> float:
    """The greatest difference between two logits, as a share of the largest logit."""
    found, expected = _logits(one, run), _logits(other, run)
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=torch.finfo(expected.dtype).tiny))


def _logits(model: Model, run: Run) -> Tensor:
    """What a model says of the validation set, up to one forward pass of it; fed the right answers, if it is fed."""
    with evaluating(model) as device:
        logits: Tensor = model(*_inputs(run, run.task.split("validation")[:BLOCK], device))
        return logits.cpu()


def _size(run: Run) -> Size:
    with explained(f"read {run.folder.weights_file}"):
        n_bytes = run.folder.weights_file.stat().st_size
    return Size(sum(weight.numel() for weight in run.model.parameters()), n_bytes)
