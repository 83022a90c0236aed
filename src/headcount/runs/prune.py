"""Cut heads out of a finished run, prove the cut, and write the rest as a new run.

The new run is written only if the cut model has the output of the original model with these heads ablated. (If the
heads' mean outputs are folded into biases, that is, added to them, the heads are replaced by these means instead.)
After writing, the model is loaded again and its output compared. The new run has the settings of its parent, the
original run, and the names of the cut heads in the setting `pruned`. The manifest records the changes:

    steps            the number of steps of the parent's training and of the fine-tuning
    pruned_from      the digest of the parent's weights
    fine_tuned       the number of training steps after the cut
    fine_tuned_at    the highest learning rate of these steps, if there were any
    folded_over      the number of training examples over which folded means were taken, if means were folded
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from headcount.config import parse, type_adapter
from headcount.errors import CheckFailed, InputError, Interrupted, argument
from headcount.files import friendly_os_errors, write_atomically
from headcount.heads import HeadId
from headcount.hooks.wrapping import Wrapped, wrap
from headcount.limits import N_MEANS
from headcount.models.transformer import DecoderOnly, Model, Transformer
from headcount.runs.folder import RunFolder, require_vacant, staged
from headcount.runs.run import Run, load
from headcount.runs.train import Log, environment, stop_on_interrupt, weights_of
from headcount.seeds import integer, stream
from headcount.surgery.cut_proof import prove_cut, prove_folded, require_same_output
from headcount.surgery.cutting import Cut, Inputs, Size, cut_heads, fold, mean_outputs
from headcount.surgery.tracing import cut_traced
from headcount.tasks.base import ClassTask, Examples, SequenceTask
from headcount.training.answers import BLOCK, on_device
from headcount.training.config import TrainingConfig
from headcount.training.device import n_threads
from headcount.training.loop import Listener, StepScores, averaged, fit, new_state

FINE_TUNE_LR_FACTOR = 0.1
"""The default learning rate of fine-tuning after a cut, as a fraction of that of the original training."""


def prune_run(
    run: Run,
    heads: Iterable[str | HeadId],
    path: Path,
    *,
    fold_mean: bool = False,
    fine_tune: int = 0,
    learning_rate: float | None = None,
    listeners: Sequence[Listener] = (),
) -> Cut[Run]:
    """Cut these heads out of a run's model, train it for `fine_tune` more steps, and write a new run to `path`.

    With `fold_mean`, the mean outputs of the cut heads over training examples are added to the biases. Return the new
    run, with the proof of the cut.
    """
    gone = tuple(dict.fromkeys(run.find_head(head) for head in heads))
    if not gone:
        raise InputError("no heads to cut out were named", f"list the heads: headcount heads {argument(run.name)}")
    if learning_rate is not None and not fine_tune:
        raise InputError(
            f"a learning rate of {learning_rate:g} does nothing without fine-tuning",
            "give the number of training steps, too: fine_tune=...",
        )
    recipe = _recipe(run.config.training, fine_tune, learning_rate) if fine_tune else None
    require_vacant(path)
    inputs, _ = _inputs(run, run.task.split("validation")[:BLOCK])
    n_means = N_MEANS if fold_mean else 0
    model, difference, _ = cut_and_prove(run.model, gone, inputs, _training_inputs(run), n_means)
    with staged(path) as draft:
        folder, n_past = RunFolder(draft), int(run.folder.read_manifest()["steps"])
        write_atomically(folder.config_file, replace(run.config, model=model.config).to_json().encode())
        folder.write_json(folder.environment_file, environment(next(model.parameters()).device))
        write_atomically(folder.log_file, run.folder.log_bytes())
        if recipe:
            model = _fine_tuned(model, run, recipe, folder, n_past, listeners)
        write_atomically(folder.weights_file, weights_of(model, n_past + fine_tune))
        summary = {"steps": n_past + fine_tune, "pruned_from": run.weights_sha256, "fine_tuned": fine_tune}
        summary |= {"folded_over": n_means} if n_means else {}
        summary |= {"fine_tuned_at": recipe.learning_rate} if recipe else {}
        folder.write_manifest(summary)
        require_same_output(model, load(draft).model, inputs)
    after = load(path, next(model.parameters()).device)
    return Cut(after, gone, difference, _size(run), _size(after), n_means)


def cut_and_prove(
    whole: nn.Module, gone: Sequence[HeadId], inputs: Sequence[Tensor], batches: Iterable[Inputs] = (), n_means: int = 0
) -> tuple[Any, float, Callable[[nn.Module], float]]:
    """Return a copy of a model without the heads `gone`, the error of the proof, and a function that repeats the proof.

    The proof compares the outputs of the copy and of the model with these heads ablated; its error is their relative
    difference. The function does so for another copy, such as one read from a file.

    If `n_means` is not 0, the heads' mean outputs over `batches`, which hold `n_means` examples, are added to biases
    (folded). The copy is then compared with the model whose heads output these means.
    """
    means = mean_outputs(whole, wrap(whole).head_sites, batches) if n_means else None
    folded: Any = whole if means is None else fold(whole, gone, means, n_means)
    is_known = isinstance(folded, Wrapped | Transformer)  # a known family or headcount's own model needs no tracing
    model = cut_heads(folded, gone) if is_known else cut_traced(folded, gone, inputs)

    def prove(cut: nn.Module) -> float:
        difference = prove_cut(folded, cut, gone, inputs)
        return difference if means is None else prove_folded(whole, cut, gone, means, inputs)

    try:
        return model, prove(model), prove
    except CheckFailed as error:
        raise type(error)(f"{error.what}: nothing was written", *error.advice) from error


def _training_inputs(run: Run) -> Iterator[Inputs]:
    """Yield the model's inputs for training examples in batches; the decoder's input is the right answer."""
    examples = run.task.sample(stream(0, "reference"), N_MEANS)
    for start in range(0, N_MEANS, BLOCK):
        yield _inputs(run, examples[start : start + BLOCK])


def _inputs(run: Run, examples: Examples) -> Inputs:
    """Return the model's inputs for these examples, and for each stack a mask of the tokens (False at padding)."""
    device, pad_id = next(run.model.parameters()).device, run.model.pad_id
    if run.task.output_type == "sequence":
        batch = cast(SequenceTask, run.task).encode(examples)
        inputs = on_device(device, batch.source, batch.decoder_input)
        if isinstance(run.model, DecoderOnly):  # one stack, in which the decoder's input follows the source
            return inputs, {"layer": torch.cat(inputs, dim=1).ne(run.model.pad_id)}
        tokens = dict(zip(("encoder", "decoder"), inputs, strict=True))
    else:
        tokens = {"layer": on_device(device, cast(ClassTask, run.task).encode(examples).source)[0]}
    masks = {} if pad_id is None else {stack: ids != pad_id for stack, ids in tokens.items()}
    return list(tokens.values()), masks


def _recipe(training: TrainingConfig, steps: int, learning_rate: float | None) -> TrainingConfig:
    """Return the settings for fine-tuning: those of the original training, with fewer steps and a lower learning rate.

    There is no target accuracy, and no snapshots are kept.
    """
    rate = FINE_TUNE_LR_FACTOR * training.learning_rate if learning_rate is None else learning_rate
    changes = {"steps": steps, "learning_rate": rate, "target": None, "snapshots": ()}
    settings = {"fine-tuning": type_adapter(TrainingConfig).dump_python(training) | changes}
    return cast(TrainingConfig, parse({"fine-tuning": TrainingConfig}, settings)["fine-tuning"])


def _fine_tuned(
    model: Model, run: Run, recipe: TrainingConfig, folder: RunFolder, n_past: int, listeners: Sequence[Listener]
) -> Model:
    """Train a cut model by the settings `recipe`, on other random examples than in the original training; return it.

    `n_past` is the number of steps of the original training.
    """
    state, seed = new_state(model, recipe), integer(run.config.seed, "fine-tuning")
    with torch.random.fork_rng(), n_threads(recipe.threads), Log(folder) as log, stop_on_interrupt() as asked_to_stop:
        all_listeners = [_ContinuedLog(log, n_past), *listeners]
        done = fit(state, run.task, recipe, seed, listeners=all_listeners, asked_to_stop=asked_to_stop)
    if not done:
        what = f"stopped at step {state.step:,} of the fine-tuning; nothing was written"
        raise Interrupted(what, signal=asked_to_stop.signal)
    with averaged(state):
        return deepcopy(model).eval()


@dataclass(frozen=True)
class _ContinuedLog:
    """A training listener that appends steps to a log which already has the `n_past` steps of the original training."""

    log: Log
    n_past: int

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        self.log.on_steps(self.n_past + last_step, losses, rates)

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        self.log.on_evaluation(self.n_past + step, scores)


def _size(run: Run) -> Size:
    with friendly_os_errors(f"read {run.folder.weights_file}"):
        return Size.of(run.model, run.folder.weights_file.stat().st_size)
