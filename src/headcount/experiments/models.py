"""The one type that every verb works on, whoever wrote the model.

A run, a Hugging Face folder, an adapter's model and a bare PyTorch module each become an `OpenModel`. A verb asks the
`OpenModel` for what the verb needs, such as an experiment, a prediction or a task. If the model lacks it, an error says
what is missing.
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
from headcount.runs.folder import RunFolder, Snapshot, digest
from headcount.runs.run import Prediction, Run
from headcount.seeds import stream
from headcount.tasks.base import SequenceTask, Task
from headcount.training.evaluation import ClassModel, SequenceModel, learner_of
from headcount.training.loop import Listener

if TYPE_CHECKING:
    from headcount.surgery.cutting import Cut

SPLITS = ("train", "validation", "test")
"""Names of splits. Such a name always means the split, even if there is a file of that name."""
N_DECIDING = 40_000
"""Number of new examples on which heads whose ablation changes an answer are measured again."""
N_SELECTION = 1000
"""Largest number of examples on which heads to remove are selected."""
N_NULL = 500
"""Largest number of examples on which each random order of removal is measured."""
NO_FOLDER = "a bare module is not written into a folder: only its own code can read it again"
CUT_IT = "cut the heads out of a copy in memory: headcount.cut_heads(model, heads)"
Data = str | Path | TextLines | Columns | EvalDataset | Sequence[Any] | np.ndarray[Any, Any] | None
ExperimentMetric = str | ScoreFunction | None


@dataclass(frozen=True)
class ModelDescription:
    """Settings of a model, as far as they are known, by which the curves of several models are told apart."""

    label: str
    """Short description for a legend, such as `rotary, max`."""
    encoding: str = ""
    pooling: str = ""
    hard_codes: tuple[str, ...] = ()
    """Structure of the task that is built into the model; empty for a generic model, or if unknown."""
    seed: int = 0
    digest: str = ""
    """Digest of all settings but the seed: models with the same digest differ only in their seed."""
    window: int = 0
    """Largest distance over which attention reaches; 0 if it reaches all positions."""


@dataclass(frozen=True)
class OpenModel:
    """A model whose heads are known. This base class is a bare PyTorch module, which is measured on given tensors.

    Methods that need more than a bare module raise an error. Runs and external models override them.
    """

    name: str
    """The name that the model was opened by, such as `runs/addition-0`."""
    label: str
    """A short name for titles."""
    weights_sha256: str
    """SHA-256 digest of the weights, which every result contains; empty for a bare module."""
    module: nn.Module
    """The module that experiments call."""
    sites: Sites
    """The attention blocks and their heads."""
    task: Task | None
    """The task that the model was trained on; None if it is none of headcount's tasks."""
    has_output: ClassVar[bool] = False
    """Whether the model has a folder for results (`output`)."""
    can_lose_all_heads: ClassVar[bool] = False
    """Whether all heads can be cut out."""
    measures_itself: ClassVar[bool] = False
    """Whether `cost_experiment` needs no experiment that was made before."""
    records_attention: ClassVar[bool] = False
    """Whether attention can be recorded while the model decodes its own answer."""
    runs_in_threads: ClassVar[bool] = False
    """Whether several batches may run at the same time. Code of others may keep state between calls."""
    SEE_ATTENTION: ClassVar[str] = "or give its tensors: show_heads, summarise_attention and head_roles take inputs=..."
    """Advice on how to see the attention of a model without a task."""

    @classmethod
    def of_module(cls, module: nn.Module, sites: Sites | None = None) -> OpenModel:
        """Open a bare module. Its heads are given by `sites`, by the module itself, or found from its family."""
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
        """The model as its author wrote it."""
        return self.module

    @property
    def output(self) -> RunFolder:
        """The folder for results, which is created when it is read."""
        raise InputError("a bare module has no folder of its own for results", 'name one: save="results"')

    def find_head(self, head: str | HeadId) -> HeadId:
        """Return the head of this name; raise an error if the model does not have it."""
        head_id = HeadId.parse(head) if isinstance(head, str) else head
        self.sites.head_slots((head_id,))
        return head_id

    @property
    def answers(self) -> SequenceModel | ClassModel:
        """The model together with its task, so that it answers any example."""
        raise no_task(self.name)

    def in_double(self) -> SequenceModel | ClassModel:
        """Return a copy of `answers` that computes in double precision on the CPU."""
        return self.answers

    @property
    def description(self) -> ModelDescription:
        """What is known about how the model was built, such as its encoding and its pooling."""
        return ModelDescription(self.label, digest=self.weights_sha256)

    @property
    def trained(self) -> tuple[int, int] | None:
        """The shortest and the longest training length; None if unknown, or if all examples have one length."""
        return None

    def predict(self, text: str) -> Prediction:
        """Return the answer that the model decodes for one example."""
        raise InputError(
            f"{self.name} has no task, so it has no questions to answer",
            "give a run, sample:addition, or an adapter that names a task",
        )

    def task_attention(self) -> TaskAttention:
        """Return the model as one whose attention can be read; raise an error if the model has no task.

        Queries and keys are positions of the task.
        """
        raise InputError(
            f"heads are described by the positions of a task, and {self.label or self.name} names no task",
            'write an adapter that names one: task = "addition", or "sortedness"',
            self.SEE_ATTENTION,
        )

    def encoding_in_use(self) -> EncodingInUse:
        """Return the position encoding of the model, as trained."""
        raise InputError(
            f"the positions of {self.label or self.name} are not known",
            "bring it by an adapter: a table of positions is found by what it does, or positions() says where it is",
        )

    def some_inputs(self, n: int) -> tuple[Tensor, ...]:
        """Return the input tensors of the first `n` examples, on which hooks are verified."""
        dataset, _ = self.examples()
        return dataset.encode(np.arange(min(n, len(dataset)))).inputs

    def text_input(self, text: str) -> TokenizedText:
        """Encode one text or example, whose attention will be read."""
        raise InputError(
            f"{self.label} is a PyTorch module without a tokenizer, so it takes no texts",
            "give its tensors: inputs=...",
        )

    def texts(self, on: Sequence[str], data: str | Path | None = None) -> list[TokenizedText]:
        """Encode texts and the texts of a file, whose attention will be read."""
        if data is not None:
            raise InputError(f"{self.label} reads no files of texts", "leave data out, and " + self.SEE_ATTENTION[3:])
        return [self.text_input(text) for text in on]

    def repeated_tokens(self) -> list[TokenizedText]:
        """Return sequences of repeated random tokens; none if the model's tokens are not known."""
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
        """Return an experiment on `n` examples of a split or file, on given examples, or on sequences of a `length`."""
        dataset, rows = self.examples(data, metric, n, length)
        return experiment_on(self.module, self.sites, dataset, rows, metric, at_once=at_once)

    def examples(
        self, data: Data = None, metric: ExperimentMetric = None, n: int | None = None, length: int | None = None
    ) -> tuple[EvalDataset, Rows | None]:
        """Return the dataset of an experiment, and the rows to use (None for all); a bare module needs tensors."""
        self._refuse("lengths", length)
        if isinstance(data, EvalDataset):
            return data, subsample(data, n)
        if not callable(metric):
            raise InputError(
                "a PyTorch module needs a metric to score its output", "give a function: metric(output, rows) -> [row]"
            )
        inputs = [data] if isinstance(data, Tensor) else data
        if (
            not isinstance(inputs, list | tuple)
            or not inputs
            or not all(isinstance(tensor, Tensor) for tensor in inputs)
        ):
            raise InputError("a model of your own needs its input tensors as data", "give one, or a list of them")
        return tensor_dataset(inputs, metric), None

    def confirmation(self, data: Data, metric: ExperimentMetric, n: int | None, at_once: int) -> Experiment | None:
        """Return an experiment on many new examples, for a second measurement; None if there are no new examples."""
        return None

    def selection(
        self, data: Data, metric: ExperimentMetric, n: int | None, *, length: int | None, at_once: int
    ) -> tuple[Experiment, Experiment, Experiment]:
        """Return experiments to select heads on, to measure the selection on, and to measure random orders on."""
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
        """Raise an error if headcount cannot train the model."""
        raise InputError(
            f"--fine-tune: how {self.name} is trained is not known", "fine-tune what is left with its own code"
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
        """Cut heads out and write the smaller model to a new folder; verify the cut before and after writing."""
        raise InputError(NO_FOLDER, CUT_IT)

    def cost_experiment(self, measured: Experiment | None) -> Experiment:
        """Return the experiment on which the models before and after a cut are compared."""
        assert measured is not None, "made for the cut"
        return measured

    def _refuse(self, what: str, length: int | None) -> None:
        if length is not None:
            raise InputError(f"{self.name} has no task with sequences of any length", f"leave the {what} out")


def no_task(name: str) -> InputError:
    """Return the error for a command that needs a task, with advice on what to do without one."""
    return InputError(
        f"{name} has no task whose right answers are known",
        'give a run, sample:addition, or an adapter that names one: task = "addition"',
        f"what heads of any model are worth on data of yours: headcount ablate {argument(name)} --data FILE",
    )


@dataclass(frozen=True, repr=False)
class RunModel(OpenModel):
    """A run: a model that headcount trained."""

    run: Run
    has_output: ClassVar[bool] = True
    can_lose_all_heads: ClassVar[bool] = True
    measures_itself: ClassVar[bool] = True
    records_attention: ClassVar[bool] = True
    runs_in_threads: ClassVar[bool] = True

    @classmethod
    def of(cls, run: Run) -> RunModel:
        """Wrap a loaded run with its heads and its task, so that every analysis can use it."""
        sites = Sites.of(run.model) if run.model.heads else Sites.empty()
        return cls(run.name, run.name, run.weights_sha256, run.model, sites, run.task, run)

    @property
    def output(self) -> RunFolder:
        """The run's own folder; for a packaged sample, a folder in runs/."""
        return self.run.output

    def find_head(self, head: str | HeadId) -> HeadId:
        """Return the head of this name; raise an error that also lists the heads that were cut out."""
        return self.run.find_head(head)

    @property
    def answers(self) -> SequenceModel | ClassModel:
        """The run's model with its task, which computes and scores answers."""
        return learner_of(self.run.model, self.run.task)

    def in_double(self) -> SequenceModel | ClassModel:
        """Return a copy of `answers` that computes in double precision on the CPU."""
        return learner_of(copy.deepcopy(self.run.model).cpu().double(), self.run.task)

    @property
    def description(self) -> ModelDescription:
        """The settings of the run. A pruned run has another digest than a run that was trained without these heads.

        A snapshot has another digest than the trained model, but keeping snapshots does not change the model's digest.
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
        """Return the run itself: its positions are those of the task."""
        return self.run

    def encoding_in_use(self) -> EncodingInUse:
        """Return the position encoding that the run's settings name."""
        return self.run.encoding_in_use()

    def predict(self, text: str) -> Prediction:
        """Decode the model's own answer."""
        return self.run.predict_one(text, with_attention=False)

    def text_input(self, text: str) -> TokenizedText:
        """Raise an error: a run's attention is recorded while it decodes."""
        raise InputError(
            f"{self.name} is a run: its attention is drawn while it decodes its own answer to an example of its task",
            f"`headcount heads {argument(self.name)}` with --on and the example, or show_heads in Python",
        )

    def examples(
        self, data: Data = None, metric: ExperimentMetric = None, n: int | None = None, length: int | None = None
    ) -> tuple[EvalDataset, Rows | None]:
        """Return examples of a split, given examples, or sequences of one length."""
        if not self.sites:
            raise InputError(f"{self.name} has no heads", "choose a run from which not all heads were cut out")
        task, data = self.run.task, "test" if data is None else data
        is_file = isinstance(data, str) and data not in SPLITS and Path(data).is_file()
        if isinstance(data, Path | TextLines | EvalDataset) or is_file or is_dataset(data):
            raise InputError(f"{self.name} is measured on its own task", "leave --data out, and --lines")
        if length is not None:
            examples, what = of_length(task, length, n, str(data))
        elif isinstance(data, str):
            examples, what = held_out(task, data, n)
        else:
            examples, what = given_examples(task, data), "given examples"
        device = next(self.module.parameters()).device
        return task_dataset(task, examples, what, device, reference=lambda: reference_for(task, length)), None

    def confirmation(self, data: Data, metric: ExperimentMetric, n: int | None, at_once: int) -> Experiment | None:
        """Return new examples from the training distribution, or all examples of a small domain."""
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
        """Select on the validation set, measure on the test set, and measure random orders on a part of that."""
        if data is not None or metric is not None:
            raise InputError(f"{self.name} is measured on its own task", "leave --data and --metric out")

        def on(split: str, most: int | None) -> Experiment:
            return self.experiment(split, None, smaller(n, most), length=length, at_once=at_once)

        return on("validation", N_SELECTION), on("test", None), on("test", N_NULL)

    def require_training(self) -> None:
        """Do nothing: headcount can train every run."""

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
        """Write the run without these heads as a new run."""
        from headcount.runs.prune import prune_run  # slow to import, and most verbs cut nothing

        cut = prune_run(self.run, heads, out, fold_mean=fold_mean, fine_tune=fine_tune, listeners=listeners)
        return replace(cast(Any, cut), model=RunModel.of(cut.model))

    def cost_experiment(self, measured: Experiment | None) -> Experiment:
        """Return the experiment on the whole test set."""
        return task_experiment(self.run, *held_out(self.run.task, "test", None))


def _label(config: Any) -> str:
    """Describe the encoding, the pooling and all unusual settings of attention in a few words: `rotary, max`."""
    random = f"random of {config.random_positions}" if config.random_positions else ""
    window = f"window ±{config.window}" if getattr(config, "window", 0) else ""
    softmax = "log-length" if config.softmax == "log-length" else ""
    causal = "causal" if getattr(config, "causal", False) else ""
    cut = f"less {len(config.pruned)} heads" if config.pruned else ""
    pooling = getattr(config, "pooling", "")
    return ", ".join(filter(None, [config.encoding, random, causal, window, softmax, pooling, cut]))


def smaller(n: int | None, most: int | None) -> int | None:
    """Return the smaller of two counts; None means no limit."""
    return min((count for count in (n, most) if count is not None), default=None)


def means_over(experiment: Experiment) -> Sequence[EvalBatch]:
    """Return the batches over which mean outputs are computed for folding; prefer batches that are not measured on."""
    measured = {id(batch) for batch in experiment.batches}
    return [batch for batch in experiment.reference if id(batch) not in measured] or experiment.batches
