"""The one type that every verb works on, whoever wrote the model.

A run, a Hugging Face folder, an adapter's model and a bare module with tensors each become an `OpenModel`. A verb asks
it for what it needs (an experiment, a prediction, a task) and, where that is missing, gets an error that says which.
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
from headcount.encodings.base import HasPositions
from headcount.errors import InputError, argument
from headcount.experiments.experiment import AT_ONCE, Experiment, experiment_on, task_experiment
from headcount.experiments.task_attention import TaskAttention
from headcount.heads import HeadId
from headcount.hooks.sites import Sites, SupportsHeads, SupportsSites, unwrap
from headcount.hooks.wrapping import Wrapped, wrap
from headcount.runs.folder import RunFolder, digest
from headcount.runs.run import Prediction, Run
from headcount.seeds import stream
from headcount.tasks.base import SequenceTask, Task
from headcount.training.evaluation import ClassModel, SequenceModel, learner_of
from headcount.training.loop import Listener

if TYPE_CHECKING:
    from headcount.surgery.cutting import Cut

SPLITS = ("train", "validation", "test")
"""Names of splits: a file of such a name is not read."""
N_DECIDING = 40_000
"""New examples on which heads that change an answer are measured again."""
N_SELECTION = 1000
"""Examples that heads to remove are selected on, at most."""
N_NULL = 500
"""Examples that each random order is measured on, at most."""
NO_FOLDER = "a bare module is not written into a folder: only its own code knows how to read it again"
CUT_IT = "cut the heads out of a copy in memory: headcount.cut_heads(model, heads)"
Data = str | Path | TextLines | Columns | EvalDataset | Sequence[Any] | np.ndarray[Any, Any] | None
ExperimentMetric = str | ScoreFunction | None


@dataclass(frozen=True)
class ModelDescription:
    """How a model was made, as far as it is known, so that curves of several models can be told apart."""

    label: str
    """A few words for a legend."""
    encoding: str = ""
    pooling: str = ""
    hard_codes: tuple[str, ...] = ()
    """Structure of the task that is built into the model; empty if there is none, or it is not known."""
    seed: int = 0
    digest: str = ""
    """Digest of all settings but the seed: models with the same digest differ only in their seed."""
    window: int = 0
    """Positions to each side that attention reaches; 0 if it reaches all."""


@dataclass(frozen=True)
class OpenModel:
    """A model whose heads are known. This class alone is a bare PyTorch module, measured on given tensors.

    Methods that a bare module cannot answer raise an error; runs and external models override them.
    """

    name: str
    """The name that it was opened by."""
    label: str
    """A short name, for titles."""
    weights_sha256: str
    """SHA-256 of the weights, which every result names."""
    module: nn.Module
    """The module that experiments call."""
    sites: Sites
    """Where its heads are."""
    task: Task | None
    """The task that it was trained on, if that is one of headcount's."""
    has_output: ClassVar[bool] = False
    """Whether there is a folder for results; reading `output` creates it."""
    can_lose_all_heads: ClassVar[bool] = False
    measures_itself: ClassVar[bool] = False
    """Whether a pruned copy can be measured without an experiment that was made before."""
    records_attention: ClassVar[bool] = False
    """Whether its attention can be recorded while it answers."""
    runs_in_threads: ClassVar[bool] = False
    """Whether several batches may run at a time; code of others may keep state between calls."""
    LOOKED_AT: ClassVar[str] = "or give its tensors: show_heads, summarise_attention and head_roles take inputs=..."
    """Advice on how to see its attention without a task."""

    @classmethod
    def of_module(cls, module: nn.Module, sites: Sites | None = None) -> OpenModel:
        """Open a bare module; its heads are where `sites`, the module or its family says."""
        if sites is None:
            is_known = isinstance(module, SupportsHeads | SupportsSites)
            sites = Sites.of(module) if is_known else wrap(module).head_sites
        inner = module.model if isinstance(module, Wrapped) else unwrap(module)
        return cls("model", type(inner).__name__, "", module, sites, None)

    def __repr__(self) -> str:
        n, what = sum(each.numel() for each in self.inner.parameters()), type(self.inner).__name__
        name = f"{self.name}: {what}" if self.name not in ("model", what) else what
        return f"{name}, {len(self.sites.heads)} heads, {n:,} parameters"

    @property
    def inner(self) -> nn.Module:
        """The model as its author wrote it."""
        return self.module

    @property
    def output(self) -> RunFolder:
        """The folder for results."""
        raise InputError("a bare module has no folder of its own for results", 'name one: save="results"')

    def find_head(self, head: str | HeadId) -> HeadId:
        """Return the head of that name; raise an error if the model has none."""
        head_id = HeadId.parse(head) if isinstance(head, str) else head
        self.sites.head_slots((head_id,))
        return head_id

    @property
    def answers(self) -> SequenceModel | ClassModel:
        """The model on its task, which answers any example."""
        raise no_task(self.name)

    def in_double(self) -> SequenceModel | ClassModel:
        """Return the model on its task in double precision, on the processor."""
        return self.answers

    @property
    def description(self) -> ModelDescription:
        """How the model was made."""
        return ModelDescription(self.label, digest=self.weights_sha256)

    @property
    def trained(self) -> tuple[int, int] | None:
        """The shortest and the longest sequence in training; None if not known, or if there is only one length."""
        return None

    def predict(self, text: str) -> Prediction:
        """Return the model's own answer to one example."""
        raise InputError(
            f"{self.name} has no task, so it has no questions to answer",
            "give a run, sample:addition, or an adapter that names a task",
        )

    def task_attention(self) -> TaskAttention:
        """Return its attention in the positions of its task."""
        raise InputError(
            f"heads are described by the positions of a task, and {self.label or self.name} names no task",
            'write an adapter that names one: task = "addition", or "sortedness"',
            self.LOOKED_AT,
        )

    def positions(self) -> HasPositions:
        """Return its encoding of positions."""
        raise InputError(
            f"the positions of {self.label or self.name} are not known",
            "bring it by an adapter: a table of positions is found by what it does, or positions() says where it is",
        )

    def some_inputs(self, n: int) -> tuple[Tensor, ...]:
        """Return inputs of its first `n` examples, to prove hooks on."""
        dataset, _ = self.examples()
        return dataset.encode(np.arange(min(n, len(dataset)))).inputs

    def text_input(self, text: str) -> TokenizedText:
        """Encode one text or example, to look at attention on it."""
        raise InputError(
            f"{self.label} is a PyTorch module without a tokenizer, so it takes no texts",
            "give its tensors: inputs=...",
        )

    def texts(self, on: Sequence[str], data: str | Path | None = None) -> list[TokenizedText]:
        """Encode texts, and those of a file, to look at attention on them."""
        if data is not None:
            raise InputError(f"{self.label} reads no files of texts", "leave data out, and " + self.LOOKED_AT[3:])
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
        """Run the model on `n` examples of a split or a file, on given examples, or on sequences of one `length`."""
        dataset, rows = self.examples(data, metric, n, length)
        return experiment_on(self.module, self.sites, dataset, rows, metric, at_once=at_once)

    def examples(
        self, data: Data = None, metric: ExperimentMetric = None, n: int | None = None, length: int | None = None
    ) -> tuple[EvalDataset, Rows | None]:
        """Return a dataset (here of tensors) and the rows of an experiment; None for all rows."""
        self._refuse("lengths", length)
        if isinstance(data, EvalDataset):
            return data, subsample(data, n)
        if not callable(metric):
            raise InputError("a model of your own needs a metric", "give a function: metric(output, rows) -> [row]")
        inputs = [data] if isinstance(data, Tensor) else data
        if not isinstance(inputs, list | tuple) or not inputs or not all(isinstance(each, Tensor) for each in inputs):
            raise InputError("a model of your own needs its input tensors as data", "give one, or a list of them")
        return tensor_dataset(inputs, metric), None

    def confirmation(self, data: Data, metric: ExperimentMetric, n: int | None, at_once: int) -> Experiment | None:
        """Return many new examples to measure heads on again; None if others were asked for, or there are none."""
        return None

    def selection(
        self, data: Data, metric: ExperimentMetric, n: int | None, *, length: int | None, at_once: int
    ) -> tuple[Experiment, Experiment, Experiment]:
        """Return experiments to select heads on, to measure on, and to measure random orders on."""
        dataset, _ = self.examples(data, metric, n, length)
        rows, others = split_in_half(dataset, n)

        def on(some: Rows, half: str) -> Experiment:
            what = f"{half} of the {dataset.data}"
            return experiment_on(self.module, self.sites, dataset, some, metric, data=what, at_once=at_once)

        return (
            on(rows[:N_SELECTION], "one half"),
            on(others, "the other half"),
            on(others[:N_NULL], "the other half"),
        )

    def require_training(self) -> None:
        """Raise an error if it is not known how the model is trained."""
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
        """Write the model without these heads to a new folder; prove the cut before and after writing."""
        raise InputError(NO_FOLDER, CUT_IT)

    def cost_experiment(self, measured: Experiment | None) -> Experiment:
        """Return the experiment that the models before and after a cut are compared on."""
        assert measured is not None, "made for the cut"
        return measured

    def _refuse(self, what: str, length: int | None) -> None:
        if length is not None:
            raise InputError(f"{self.name} has no task with sequences of any length", f"leave the {what} out")


def no_task(name: str) -> InputError:
    """Return the error for a verb that needs a task, and what can be done without one."""
    return InputError(
        f"{name} has no task whose right answers are known",
        'give a run, sample:addition, or an adapter that names one: task = "addition"',
        f"what heads of any model are worth on data of yours: headcount ablate {argument(name)} --data FILE",
    )


@dataclass(frozen=True, repr=False)
class RunModel(OpenModel):
    """A run of headcount's own."""

    run: Run
    has_output: ClassVar[bool] = True
    can_lose_all_heads: ClassVar[bool] = True
    measures_itself: ClassVar[bool] = True
    records_attention: ClassVar[bool] = True
    runs_in_threads: ClassVar[bool] = True

    @classmethod
    def of(cls, run: Run) -> RunModel:
        """Open a loaded run."""
        sites = Sites.of(run.model) if run.model.heads else Sites.empty()
        return cls(run.name, run.name, run.weights_sha256, run.model, sites, run.task, run)

    @property
    def output(self) -> RunFolder:
        """The run's own folder; for a packaged sample, a folder in runs/."""
        return self.run.output

    def find_head(self, head: str | HeadId) -> HeadId:
        """Return the head of that name; raise an error if the run has none."""
        return self.run.find_head(head)

    @property
    def answers(self) -> SequenceModel | ClassModel:
        """The run's model on its task."""
        return learner_of(self.run.model, self.run.task)

    def in_double(self) -> SequenceModel | ClassModel:
        """Return a copy of the model on its task, in double precision on the processor."""
        return learner_of(copy.deepcopy(self.run.model).cpu().double(), self.run.task)

    @property
    def description(self) -> ModelDescription:
        """How the run was made, by its settings; a pruned run differs from one trained without these heads."""
        config = self.run.config.model
        settings = replace(self.run.config, seed=0).to_json()
        if config.pruned:
            settings += f"fine-tuned: {self.run.folder.read_manifest().get('fine_tuned', 'never cut')}"
        of_classifier = (getattr(config, "pooling", ""), tuple(getattr(self.run.model, "hard_codes", ())))
        digested, window = digest(settings.encode()), getattr(config, "window", 0) or 0
        return ModelDescription(_label(config), config.encoding, *of_classifier, self.run.config.seed, digested, window)

    @property
    def trained(self) -> tuple[int, int] | None:
        """The training lengths, by its settings."""
        return getattr(self.run.task, "trained_lengths", None)

    def task_attention(self) -> TaskAttention:
        """Return the run, whose positions are the task's."""
        return self.run

    def positions(self) -> HasPositions:
        """Return the run, which knows its encoding."""
        return self.run

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
            raise InputError(f"{self.name} has no heads", "choose a run that was not stripped of all of them")
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
        """Return new examples drawn as in training, or all examples if there are few."""
        task, is_usual = self.run.task, data is None or (isinstance(data, str) and data == "test")
        if not is_usual or n is not None or callable(metric) or len(task.splits.get("train", ())):
            return None  # training examples are no test of the model
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

        def some(split: str, most: int | None) -> Experiment:
            return self.experiment(split, None, smaller(n, most), length=length, at_once=at_once)

        return some("validation", N_SELECTION), some("test", None), some("test", N_NULL)

    def require_training(self) -> None:
        """Do nothing: a run's settings say how it is trained."""

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
        from headcount.runs.prune import prune_run  # surgery is much to load, and most verbs cut nothing

        made = prune_run(self.run, heads, out, fold_mean=fold_mean, fine_tune=fine_tune, listeners=listeners)
        return replace(cast(Any, made), model=RunModel.of(made.model))

    def cost_experiment(self, measured: Experiment | None) -> Experiment:
        """Return the experiment on the whole test set."""
        return task_experiment(self.run, *held_out(self.run.task, "test", None))


def _label(config: Any) -> str:
    """Return the encoding, the pooling and settings of attention that are not the default: `rotary, max`."""
    random = f"random of {config.random_positions}" if config.random_positions else ""
    window = f"window ±{config.window}" if getattr(config, "window", 0) else ""
    softmax = "log-length" if config.softmax == "log-length" else ""
    causal = "causal" if getattr(config, "causal", False) else ""
    cut = f"less {len(config.pruned)} heads" if config.pruned else ""
    pooling = getattr(config, "pooling", "")
    return ", ".join(filter(None, [config.encoding, random, causal, window, softmax, pooling, cut]))


def smaller(n: int | None, most: int | None) -> int | None:
    """Return the smaller of two counts, where None is no limit."""
    return min((each for each in (n, most) if each is not None), default=None)


def means_over(experiment: Experiment) -> Sequence[EvalBatch]:
    """Return batches to take means over: those that are not measured on, if there are any."""
    measured = {id(batch) for batch in experiment.batches}
    return [batch for batch in experiment.reference if id(batch) not in measured] or experiment.batches
