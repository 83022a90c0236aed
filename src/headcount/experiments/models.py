"""`OpenModel`, the type of model that every command works on, whether headcount trained the model or not.

A run, a Hugging Face folder, an adapter's model and a bare PyTorch module each become an `OpenModel`. A command asks
the `OpenModel` for what it needs, such as an experiment, a prediction or a task. If the model cannot provide this, an
error says what is missing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from torch import Tensor, nn

from headcount.data.dataset import (
    EvalBatch,
    EvalDataset,
    Rows,
    ScoreFunction,
    TokenizedText,
    split_in_half,
    subsample,
    tensor_dataset,
)
from headcount.data.from_task import given_examples, held_out, of_length, reference_for, task_dataset
from headcount.data.tables import Columns, TextLines, is_dataset
from headcount.encodings.base import EncodingInUse
from headcount.errors import InputError, argument
from headcount.experiments.experiment import AT_ONCE, Experiment, experiment_on, task_experiment
from headcount.experiments.task_attention import TaskAttention
from headcount.heads import HeadId
from headcount.hooks.sites import Sites, SupportsHeads, SupportsSites, unwrap
from headcount.hooks.wrapping import Wrapped, wrap
from headcount.limits import N_DECIDING
from headcount.runs.folder import RunFolder, Snapshot, digest
from headcount.runs.run import Prediction, Run
from headcount.seeds import stream
from headcount.tasks.base import SequenceTask, Task
from headcount.training.evaluation import ClassModel, SequenceModel, learner_of
from headcount.training.loop import Listener

if TYPE_CHECKING:
    from headcount.surgery.cutting import Cut

SPLITS = ("train", "validation", "test")
"""Names of splits; as data, such a name means the split, even if there is a file of this name."""
N_SELECTION = 1000
"""Largest number of examples on which heads to remove are selected."""
N_NULL = 500
"""Largest number of examples on which each random order of removing heads is measured."""
NO_FOLDER = "a bare PyTorch module cannot be saved in a folder, because only its own code can load it again"
CUT_IT = "cut the heads out of a copy in memory: headcount.cut_heads(model, heads)"
Data = str | Path | TextLines | Columns | EvalDataset | Sequence[Any] | np.ndarray[Any, Any] | None
ExperimentMetric = str | ScoreFunction | None


@dataclass(frozen=True)
class ModelDescription:
    """The known settings of a model, by which its curve in a figure is labelled and told from other models' curves."""

    label: str
    """A short description for a legend, such as `rotary, max` (encoding and pooling)."""
    encoding: str = ""
    pooling: str = ""
    hard_codes: tuple[str, ...] = ()
    """The structure of the task that is built into the model, in words; empty for a generic model, or if unknown."""
    seed: int = 0
    digest: str = ""
    """A digest of all settings but the seed; models with the same digest differ only in their seed."""
    window: int = 0
    """The largest distance between a query and a key that it can see; 0 for no limit."""


@dataclass(frozen=True)
class OpenModel:
    """A model with named heads, on which every command works.

    This base class is a bare PyTorch module, which is measured on tensors that the user gives. Methods that need more
    than a module raise an error; the subclasses `RunModel` and `ExternalModel` override them.
    """

    name: str
    """The name by which the user opened the model, such as `runs/addition-0`."""
    label: str
    """A short name of the model, for titles."""
    weights_sha256: str
    """SHA-256 digest of the weights, which every result contains; empty for a bare module."""
    module: nn.Module
    """The PyTorch module that experiments call."""
    sites: Sites
    """The attention blocks of the model, with their heads."""
    task: Task | None
    """The task that the model was trained on; None if it is none of headcount's tasks."""
    has_output: ClassVar[bool] = False
    """Whether the model has a folder for results (`output`)."""
    can_lose_all_heads: ClassVar[bool] = False
    """Whether all heads of the model may be cut out; otherwise at least one must stay."""
    measures_itself: ClassVar[bool] = False
    """Whether `cost_experiment` can make its own experiment; otherwise it must be given one."""
    records_attention: ClassVar[bool] = False
    """Whether attention weights can be recorded while the model decodes its own answer."""
    runs_in_threads: ClassVar[bool] = False
    """Whether several batches may run at the same time; not for users' code, which may keep state between calls."""
    SEE_ATTENTION: ClassVar[str] = "or give its tensors: show_heads, summarise_attention and head_roles take inputs=..."
    """The advice, in error messages, on how to see the attention of a model without a task."""

    @classmethod
    def of_module(cls, module: nn.Module, sites: Sites | None = None) -> OpenModel:
        """Return a bare PyTorch module opened for all commands.

        Its heads are given by `sites`, named by the module itself, or known from its Hugging Face family.
        """
        if sites is None:
            is_known = isinstance(module, SupportsHeads | SupportsSites)
            sites = Sites.of(module) if is_known else wrap(module).head_sites
        inner = module.model if isinstance(module, Wrapped) else unwrap(module)
        return cls("model", type(inner).__name__, "", module, sites, None)

    def __repr__(self) -> str:
        n, kind = sum(weight.numel() for weight in self.inner.parameters()), type(self.inner).__name__
        name = f"{self.name}: {kind}" if self.name not in ("model", kind) else kind
        return f"{name}, {len(self.sites.heads)} heads, {n:,} parameters"

    @property
    def inner(self) -> nn.Module:
        """The model without headcount's wrapper, as its author wrote it."""
        return self.module

    @property
    def output(self) -> RunFolder:
        """The folder for the model's results."""
        raise InputError(
            "the results of a PyTorch module have no folder to be saved in", 'name a folder: save="results"'
        )

    def find_head(self, head: str | HeadId) -> HeadId:
        """Return the head called `head`, such as "E1H2"; raise an error if the model does not have this head."""
        head_id = HeadId.parse(head) if isinstance(head, str) else head
        self.sites.head_slots((head_id,))
        return head_id

    @property
    def answers(self) -> SequenceModel | ClassModel:
        """The model joined with its task, so that its answers to any examples can be computed and scored."""
        raise no_task(self.name)

    def in_double(self) -> SequenceModel | ClassModel:
        """Return a copy of `answers` (the model joined with its task) in double precision on the CPU."""
        return self.answers

    @property
    def description(self) -> ModelDescription:
        """The known settings of the model, such as its encoding and its pooling."""
        return ModelDescription(self.label, digest=self.weights_sha256)

    @property
    def trained(self) -> tuple[int, int] | None:
        """The shortest and the longest training length; None if unknown, or if all examples have one length."""
        return None

    def predict(self, text: str) -> Prediction:
        """Return the model's answer to one example, given as text."""
        raise InputError(
            f"{self.name} has no task, so headcount does not know how to ask it a question",
            "give a model trained by headcount (a run, or sample:addition), or an adapter (a subclass of "
            "headcount.Adapter) that names a task",
        )

    def task_attention(self) -> TaskAttention:
        """Return an object that reads the model's attention weights in the positions of its task.

        Raise an error if the model has no task.
        """
        raise InputError(
            "heads are described by the positions of a task that they attend to (such as a digit), but "
            f"{self.label or self.name} has no task",
            'write an adapter (a subclass of headcount.Adapter) that names one: task = "addition", or "sortedness"',
            self.SEE_ATTENTION,
        )

    def encoding_in_use(self) -> EncodingInUse:
        """Return the trained position encoding of the model; raise an error if it is not known."""
        raise InputError(
            f"the position encoding of {self.label or self.name} is not known",
            "write an adapter (a subclass of headcount.Adapter): headcount then looks for a table of position "
            "embeddings, or the adapter's positions() returns it",
        )

    def some_inputs(self, n: int) -> tuple[Tensor, ...]:
        """Return the input tensors of the first `n` examples, with which hooks are checked."""
        dataset, _ = self.examples()
        return dataset.encode(np.arange(min(n, len(dataset)))).inputs

    def text_input(self, text: str) -> TokenizedText:
        """Return one text as the model's inputs, to show attention on it; raise an error if the model takes no text."""
        raise InputError(
            f"{self.label} is a PyTorch module without a tokenizer, so it takes no texts",
            "give its tensors: inputs=...",
        )

    def texts(self, on: Sequence[str], data: str | Path | None = None) -> list[TokenizedText]:
        """Return the texts `on` and the texts of the file `data` as model inputs, to show attention on them."""
        if data is not None:
            raise InputError(f"{self.label} takes no text files", "leave data out, and " + self.SEE_ATTENTION[3:])
        return [self.text_input(text) for text in on]

    def repeated_tokens(self) -> list[TokenizedText]:
        """Return sequences in which random tokens are repeated; empty if the model's tokens are not known."""
        return []

    def experiment(
        self,
        data: Data = None,
        metric: ExperimentMetric = None,
        n: int | None = None,
        *,
        length: int | None = None,
        at_once: int = AT_ONCE,
    ) -> Experiment:
        """Return an experiment (model, examples and metric) on `n` examples of `data`, or on sequences of one length.

        `data` is a split, a file or the examples themselves. `at_once` is the number of examples per batch.
        """
        dataset, rows = self.examples(data, metric, n, length)
        return experiment_on(self.module, self.sites, dataset, rows, metric, at_once=at_once)

    def examples(
        self, data: Data = None, metric: ExperimentMetric = None, n: int | None = None, length: int | None = None
    ) -> tuple[EvalDataset, Rows | None]:
        """Return the dataset on which the model is measured, and the rows to use (None: all rows).

        A bare module needs tensors as `data`, and a function as `metric`.
        """
        self._refuse("lengths", length)
        if isinstance(data, EvalDataset):
            return data, subsample(data, n)
        if not callable(metric):
            raise InputError(
                "a PyTorch module needs a metric to score its output",
                "give a function metric(output, rows) that returns one score for each example; rows holds the index "
                "of each example of the batch in the data",
            )
        inputs = [data] if isinstance(data, Tensor) else data
        if (
            not isinstance(inputs, list | tuple)
            or not inputs
            or not all(isinstance(tensor, Tensor) for tensor in inputs)
        ):
            raise InputError(
                "a PyTorch module needs its input tensors as data", "give one tensor, or a list of tensors"
            )
        return tensor_dataset(inputs, metric), None

    def confirmation(self, data: Data, metric: ExperimentMetric, n: int | None, at_once: int) -> Experiment | None:
        """Return an experiment on new examples, to measure some heads a second time; None without new examples."""
        return None

    def selection(
        self, data: Data, metric: ExperimentMetric, n: int | None, *, length: int | None, at_once: int
    ) -> tuple[Experiment, Experiment, Experiment]:
        """Return three experiments: to select heads on, to measure the selection on, and for random removal orders."""
        dataset, _ = self.examples(data, metric, n, length)
        rows, others = split_in_half(dataset, n)

        def on(part: Rows, half: str) -> Experiment:
            name = f"{half} of the {dataset.data}"
            return experiment_on(self.module, self.sites, dataset, part, metric, data=name, at_once=at_once)

        return (
            on(rows[:N_SELECTION], "one half"),
            on(others, "the other half"),
            on(others[:N_NULL], "the other half"),
        )

    def require_training(self) -> None:
        """Raise an error if headcount cannot train this model further."""
        raise InputError(
            f"--fine-tune is not possible: headcount does not know how {self.name} is trained",
            "leave --fine-tune out, and fine-tune the smaller model with its own code",
        )

    def cut(
        self,
        heads: Sequence[str | HeadId],
        out: Path,
        measured: Experiment | None,
        *,
        fold_mean: bool = False,
        fine_tune: int = 0,
        listeners: Sequence[Listener] = (),
    ) -> Cut[OpenModel]:
        """Cut these heads out, write the smaller model to the folder `out`, and return it with the proof of the cut."""
        raise InputError(NO_FOLDER, CUT_IT)

    def cost_experiment(self, measured: Experiment | None) -> Experiment:
        """Return the experiment on which the model is compared with the cut model: by default, `measured`."""
        assert measured is not None, "the caller makes an experiment before it cuts"
        return measured

    def _refuse(self, what: str, length: int | None) -> None:
        if length is not None:
            raise InputError(
                f"examples of other lengths cannot be generated for {self.name}: it has no task whose examples can "
                "have any length",
                f"leave the {what} out",
            )


def no_task(name: str) -> InputError:
    """Build the error for a command that needs a task, and a model that has none; it says what to do."""
    return InputError(
        f"{name} has no task, so the right answers are not known",
        "give a model trained by headcount (a run, or sample:addition), or an adapter (a subclass of "
        'headcount.Adapter) that names a task: task = "addition"',
        f"to measure the heads of any model on your own data: headcount ablate {argument(name)} --data FILE",
    )


@dataclass(frozen=True, repr=False)
class RunModel(OpenModel):
    """A run (a model that headcount trained), opened for all commands."""

    run: Run
    has_output: ClassVar[bool] = True
    can_lose_all_heads: ClassVar[bool] = True
    measures_itself: ClassVar[bool] = True
    records_attention: ClassVar[bool] = True
    runs_in_threads: ClassVar[bool] = True

    @classmethod
    def of(cls, run: Run) -> RunModel:
        """Return a loaded run, opened for all commands."""
        sites = Sites.of(run.model) if run.model.heads else Sites.empty()
        return cls(run.name, run.name, run.weights_sha256, run.model, sites, run.task, run)

    @property
    def output(self) -> RunFolder:
        """The folder for results: the run's own folder or, for a run that comes with the package, one in runs/."""
        return self.run.output

    def find_head(self, head: str | HeadId) -> HeadId:
        """Return the head called `head`; if the run does not have it, the error also lists the heads cut out before."""
        return self.run.find_head(head)

    @property
    def answers(self) -> SequenceModel | ClassModel:
        """The run's model joined with its task, so that its answers to any examples can be computed and scored."""
        return learner_of(self.run.model, self.run.task)

    def in_double(self) -> SequenceModel | ClassModel:
        """Return a copy of `answers` (the model joined with its task) in double precision on the CPU."""
        return learner_of(copy.deepcopy(self.run.model).cpu().double(), self.run.task)

    @property
    def description(self) -> ModelDescription:
        """The settings of the run, with a digest that distinguishes different models.

        A pruned run has another digest than a run that was trained without these heads, and a snapshot (weights of an
        earlier step) another digest than the trained model. Keeping snapshots does not change a run's digest.
        """
        config, folder = self.run.config.model, self.run.folder
        training = replace(self.run.config.training, snapshots=())
        settings = replace(self.run.config, seed=0, training=training).to_json()
        if isinstance(folder, Snapshot):
            settings += f"step: {folder.step}"
        if config.pruned:
            settings += f"fine-tuned: {self.run.folder.read_manifest().get('fine_tuned', 'never cut')}"
        of_classifier = (getattr(config, "pooling", ""), tuple(getattr(self.run.model, "hard_codes", ())))
        digested, window = digest(settings.encode()), getattr(config, "window", 0) or 0
        label = f"{_label(config)}, step {folder.step}" if isinstance(folder, Snapshot) else _label(config)
        return ModelDescription(label, config.encoding, *of_classifier, self.run.config.seed, digested, window)

    @property
    def trained(self) -> tuple[int, int] | None:
        """The shortest and the longest training length, from the settings of the run."""
        return getattr(self.run.task, "trained_lengths", None)

    def task_attention(self) -> TaskAttention:
        """Return the run itself, because its positions are those of its task."""
        return self.run

    def encoding_in_use(self) -> EncodingInUse:
        """Return the trained position encoding of the run."""
        return self.run.encoding_in_use()

    def predict(self, text: str) -> Prediction:
        """Return the model's answer to one example, given as text, such as "374+814"."""
        return self.run.predict_one(text, with_attention=False)

    def text_input(self, text: str) -> TokenizedText:
        """Raise an error, because a run's attention is shown by another command, while the run decodes an answer."""
        raise InputError(
            f"{self.name} is a model trained by headcount, whose attention is shown on an example of its task, not "
            "on any text",
            f"use `headcount heads {argument(self.name)}` with --on and the example, or show_heads in Python",
        )

    def examples(
        self, data: Data = None, metric: ExperimentMetric = None, n: int | None = None, length: int | None = None
    ) -> tuple[EvalDataset, Rows | None]:
        """Return the dataset on which the run is measured (a split, given examples, or one length), and its rows."""
        if not self.sites:
            raise InputError(f"{self.name} has no heads: all were cut out", "give a run that still has heads")
        task, data = self.run.task, "test" if data is None else data
        is_file = isinstance(data, str) and data not in SPLITS and Path(data).is_file()
        if isinstance(data, Path | TextLines | EvalDataset) or is_file or is_dataset(data):
            raise InputError(
                f"{self.name} is measured on examples of its own task, and takes no other data",
                "leave --data and --lines out",
            )
        if length is not None:
            examples, what = of_length(task, length, n, str(data))
        elif isinstance(data, str):
            examples, what = held_out(task, data, n)
        else:
            examples, what = given_examples(task, data), "given examples"
        device = next(self.module.parameters()).device
        return task_dataset(task, examples, what, device, reference=lambda: reference_for(task, length)), None

    def confirmation(self, data: Data, metric: ExperimentMetric, n: int | None, at_once: int) -> Experiment | None:
        """Return an experiment on new examples drawn as in training, or on all examples if the task has few."""
        task, is_usual = self.run.task, data is None or (isinstance(data, str) and data == "test")
        if not is_usual or n is not None or callable(metric) or len(task.splits.get("train", ())):
            return None  # new examples may be among those of a fixed training set
        if is_all := getattr(task, "domain_size", math.inf) <= 2 * N_DECIDING:
            examples, what = np.concatenate(list(cast(SequenceTask, task).iter_domain())), "examples, all there are"
        else:
            examples = task.sample(stream(0, "deciding"), N_DECIDING)
            what = "fresh examples such as it was trained on"
        return task_experiment(self.run, examples, what, metric, at_once=at_once, is_all=is_all)

    def selection(
        self, data: Data, metric: ExperimentMetric, n: int | None, *, length: int | None, at_once: int
    ) -> tuple[Experiment, Experiment, Experiment]:
        """Return three experiments: on the validation set, on the test set, and on a part of the test set.

        Heads to remove are selected on the first, the selection is measured on the second, and random orders of removal
        on the third.
        """
        if data is not None or metric is not None:
            raise InputError(
                f"--data and --metric are not allowed here: the heads to remove from {self.name} are selected by its "
                "accuracy on its own task",
                "leave --data and --metric out",
            )

        def on(split: str, most: int | None) -> Experiment:
            return self.experiment(split, None, smaller(n, most), length=length, at_once=at_once)

        return on("validation", N_SELECTION), on("test", None), on("test", N_NULL)

    def require_training(self) -> None:
        """Raise no error, because headcount can train every run."""

    def cut(
        self,
        heads: Sequence[str | HeadId],
        out: Path,
        measured: Experiment | None,
        *,
        fold_mean: bool = False,
        fine_tune: int = 0,
        listeners: Sequence[Listener] = (),
    ) -> Cut[OpenModel]:
        """Cut these heads out, write the smaller model as a new run to `out`, and return it with the cut's proof."""
        from headcount.runs.prune import prune_run  # slow to import, and most verbs cut nothing

        cut = prune_run(self.run, heads, out, fold_mean=fold_mean, fine_tune=fine_tune, listeners=listeners)
        return replace(cast(Any, cut), model=RunModel.of(cut.model))

    def cost_experiment(self, measured: Experiment | None) -> Experiment:
        """Return the experiment on the whole test set, on which the run is compared with the cut run."""
        return task_experiment(self.run, *held_out(self.run.task, "test", None))


def _label(config: Any) -> str:
    """Return a short description of a model's settings, such as `rotary, max`: encoding, pooling, unusual attention."""
    n_random, n_starts = getattr(config, "random_positions", None), getattr(config, "random_start", None)
    random = f"random of {n_random}" if n_random else f"random start below {n_starts}" if n_starts else ""
    ids = f"{config.position_ids} ids" if getattr(config, "position_ids", "order") != "order" else ""
    window = f"window ±{config.window}" if getattr(config, "window", 0) else ""
    softmax = "log-length" if config.softmax == "log-length" else ""
    causal = "causal" if getattr(config, "causal", False) else ""
    cut = f"less {len(config.pruned)} heads" if config.pruned else ""
    pooling = getattr(config, "pooling", "")
    return ", ".join(filter(None, [config.encoding, ids, random, causal, window, softmax, pooling, cut]))


def smaller(n: int | None, most: int | None) -> int | None:
    """Return the smaller of two counts; None means no limit."""
    return min((count for count in (n, most) if count is not None), default=None)


def means_over(experiment: Experiment) -> Sequence[EvalBatch]:
    """Return the batches over which mean head outputs are computed, to be added to biases when heads are cut out.

    These are the experiment's reference batches, which are not measured on, or else its own batches.
    """
    measured = {id(batch) for batch in experiment.batches}
    return [batch for batch in experiment.reference if id(batch) not in measured] or experiment.batches
