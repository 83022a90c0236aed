"""Prepare a trained model for a page that runs it: readers type an example, switch heads off, and see the answer
change.

The page's engine (`rendering/static/engine.js`) knows the models that headcount trains. For other models, the page only
shows stored attention patterns.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np
import torch

from headcount.describing.live import LiveModel, LiveTask
from headcount.errors import InputError
from headcount.experiments.donors_and_means import means_of
from headcount.experiments.models import OpenModel, RunModel
from headcount.hooks.gates import eval_mode
from headcount.models.exporting import ExportedModel, export, in_half_precision, not_runnable
from headcount.models.transformer import Classifier, DecoderOnly, EncoderDecoder, Model
from headcount.seeds import stream
from headcount.tasks.base import ClassTask, SequenceTask, Task
from headcount.training.answers import answer, classify

N_EXAMPLES = 500
"""Number of held-out examples in the page, on which it measures the drop in accuracy if heads are switched off."""
LONGEST = 256
"""Length in tokens of the longest sequence that the page accepts."""
N_FOR_MEANS = 2_000
"""Number of test examples over which the mean outputs of heads are computed."""


def live_model(model: OpenModel, n_examples: int = N_EXAMPLES) -> LiveModel:
    """Return a run as data for a page that runs it in the browser; raise an error for models that the page cannot run.

    Weights are rounded to half precision if that changes no answer to the examples, else they stay in single precision.
    """
    if not isinstance(model, RunModel):
        raise InputError(
            f"{model.label} cannot run inside a web page: only models that headcount trained can",
            "name one, such as runs/addition or sample:addition",
        )
    task, module = model.run.task, model.run.model
    if isinstance(module, DecoderOnly):
        raise not_runnable("decoder-only model")
    if not getattr(task, "masks_padding", True):
        raise not_runnable("padding that is not masked")
    examples = held_out(task, n_examples)
    exact, rounded = copy.deepcopy(module).float().cpu(), in_half_precision(module)
    answers = _answers(exact, task, examples)
    is_finite = all(bool(parameter.isfinite().all()) for parameter in rounded.parameters())
    is_half = is_finite and np.array_equal(answers, _answers(rounded, task, examples))
    n_positions = LONGEST if task.output_type == "class" else task.longest + 1
    exported = export(module, n_positions, in_half=is_half)
    n_mean = _add_means(exported, model)
    right = _right_answers(task, examples)
    return LiveModel(
        _live_task(task, examples, right),
        exported.architecture,
        exported.arrays,
        exported.n_positions,
        n_mean,
        "half" if is_half else "single",
        int((answers == right).all(axis=-1).sum()),
    )


def held_out(task: Task, n: int) -> Any:
    """Return `n` random examples of the test set; its first examples may all be of one class."""
    test_set = task.split("test")
    return test_set[np.sort(stream(0, "live").permutation(len(test_set))[:n])]


def _answers(module: Model, task: Task, examples: Any) -> Any:
    """Return the model's answers to examples, [example, token]; a class counts as one token."""
    with eval_mode(module):
        if isinstance(module, EncoderDecoder):
            return answer(module, cast(SequenceTask, task), examples).free
        assert isinstance(module, Classifier), "decoder-only models are refused"
        return classify(module, cast(ClassTask, task), examples).predicted[:, None]


def _right_answers(task: Task, examples: Any) -> Any:
    if task.output_type == "class":
        return cast(ClassTask, task).encode(examples).labels[:, None]
    return cast(SequenceTask, task).encode(examples).answer


def _live_task(task: Task, examples: Any, right: Any) -> LiveTask:
    words = {name: getattr(task.words, name) for name in ("example", "examples", "place", "symbols", "model")}
    words["event"] = task.words.event.name if task.words.event else ""
    rows = [cast(Any, task).encode(examples[i : i + 1]).source[0].tolist() for i in range(len(examples))]
    shown = tuple(
        (task.show(example), row, answer.tolist()) for example, row, answer in zip(examples, rows, right, strict=True)
    )
    common = task.name, task.output_type, asdict(task.config), words, tuple(task.tokens), shown
    if task.output_type == "class":
        kinds = cast(ClassTask, task)
        return LiveTask(
            *common, classes=kinds.classes, trained_lengths=kinds.trained_lengths, script=task.page_script()
        )
    sequence = cast(SequenceTask, task)
    start = sequence.decoding_start
    return LiveTask(
        *common,
        source_places=tuple(each.label for each in sequence.source_positions),
        answer_places=tuple(each.label for each in sequence.answer_positions),
        start={"first": start.first, "given": list(start.given), "n": start.n_tokens},
        script=task.page_script(),
    )


def _add_means(exported: ExportedModel, model: RunModel) -> int:
    """Add to an exported model the mean output of every head at each position; return the number of positions."""
    with torch.no_grad():
        means = means_of(replace(model.experiment(n=N_FOR_MEANS), reference=()))[0]
    for site, mean in means.items():
        exported.arrays[f"mean.{site.short}"] = mean.cpu().numpy().astype(np.float32)
    return min((len(mean) for mean in means.values()), default=0)
