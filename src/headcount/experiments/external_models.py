"""Models that others wrote, opened: a Hugging Face folder's, or an adapter's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from torch import nn

from headcount.data.dataset import EvalDataset, Rows, TokenizedText, split_in_half, subsample
from headcount.data.from_adapter import adapter_dataset, adapter_input
from headcount.data.from_file import read_dataset, text_input, tokenized_model
from headcount.errors import HeadcountError, InputError
from headcount.experiments.experiment import Experiment, experiment_on
from headcount.experiments.models import N_NULL, N_SELECTION, Data, ExperimentMetric, OpenModel, means_over, smaller
from headcount.external.adapter import task_of
from headcount.external.models import ExternalModel, prune_external
from headcount.heads import HeadId
from headcount.runs.folder import RunFolder
from headcount.runs.run import Prediction
from headcount.surgery.cutting import Cut
from headcount.training.loop import Listener


@dataclass(frozen=True)
class LoadedModel(OpenModel):
    """A model that others wrote: a Hugging Face folder's, or an adapter's."""

    external: ExternalModel
    has_output: ClassVar[bool] = True

    @classmethod
    def of(cls, external: ExternalModel) -> LoadedModel:
        """A model as it was loaded."""
        task = None
        if external.adapter and external.adapter.task:
            with suppress(HeadcountError):  # told when its examples are asked for: heads can be listed all the same
                task = task_of(external.adapter)
        identity = external.name, external.label, external.weights_sha256
        return cls(*identity, external.model, external.sites, task, external)

    @property
    def inner(self) -> nn.Module:
        """The model as whoever wrote it has it."""
        return self.external.inner

    @property
    def output(self) -> RunFolder:
        """A folder in runs/, which becomes this model's own."""
        return self.external.output

    def text_input(self, text: str) -> TokenizedText:
        """As its tokenizer or its adapter has it."""
        return adapter_input(self.external, text) if self.external.adapter else text_input(self.external, text)

    def predict(self, text: str) -> Prediction:
        """The answer that the adapter's own code generates."""
        if self.external.adapter is None:
            return super().predict(text)
        given = adapter_input(self.external, text)
        if given.predicted is None:
            raise InputError(f"{self.name} generates no answers", "write generate() in the adapter")
        fault = "" if given.right in (None, given.predicted) else f"should be {given.right}"
        answer = tuple(given.predicted)
        places = tuple(map(str, range(len(answer))))
        return Prediction(text, given.predicted, given.right or "", fault, output_tokens=answer, positions=places)

    def dataset(self, data: Data = None) -> EvalDataset:
        """A file's, or a split of the adapter's task."""
        if isinstance(data, EvalDataset):
            return data
        if not (data is None or isinstance(data, str | Path)):
            raise InputError(
                f"{self.name} cannot be measured on {type(data).__name__}", "give a file, or the model and its tensors"
            )
        if self.external.adapter:
            return adapter_dataset(self.external, str(data or "test"))
        if data is None:
            raise InputError(
                f"what shall {self.name} be measured on?",
                "add --data FILE: plain text, or a table with tabs and a header: text label; first second score; "
                "source target",
            )
        return read_dataset(data, tokenized_model(self.external))

    def examples(
        self, data: Data = None, metric: ExperimentMetric = None, n: int | None = None, length: int | None = None
    ) -> tuple[EvalDataset, Rows | None]:
        """A file's, or those of a split of the adapter's task."""
        self._refuse("lengths", length)
        dataset = self.dataset(data)
        return dataset, subsample(dataset, n)

    def selection(
        self, data: Data, metric: ExperimentMetric, n: int | None, *, length: int | None, at_once: int
    ) -> tuple[Experiment, Experiment, Experiment]:
        """From both splits of the adapter's task; else one half of the data, and the other."""
        self._refuse("length", length)
        if data is None and self.task is not None:
            first, second = self.dataset("validation"), self.dataset("test")
            rows, others = subsample(first, smaller(n, N_SELECTION)), subsample(second, n)
            names = ("", "")
        else:
            first = second = self.dataset(data)
            rows, others = split_in_half(first, n)
            names = ("one half of ", "the other half of ")

        def on(dataset: EvalDataset, some: Rows, name: str) -> Experiment:
            what = name + dataset.data
            return experiment_on(self.module, self.sites, dataset, some, metric, data=what, at_once=at_once)

        chosen_on, measured_on = on(first, rows[:N_SELECTION], names[0]), on(second, others, names[1])
        return chosen_on, measured_on, on(second, others[:N_NULL], names[1])

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
        """As a folder that Hugging Face's library or the adapter's file is needed for."""
        assert measured is not None, "made for the cut"
        over = means_over(measured) if fold_mean else ()
        means, n_means = [(batch.inputs, batch.token_mask) for batch in over], sum(len(batch.rows) for batch in over)
        made = prune_external(self.external, heads, out, measured.batches[0].inputs, means, n_means)
        return replace(cast(Any, made), model=LoadedModel.of(made.model))
