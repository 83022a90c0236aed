"""Models that others wrote, opened: a Hugging Face folder's, or an adapter's."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from torch import nn

from headcount.data.adapter_task import AdapterClasses, AdapterSequences
from headcount.data.dataset import EvalDataset, Rows, TokenizedText, split_in_half, subsample
from headcount.data.from_adapter import adapter_dataset, adapter_input, is_right, own_answer
from headcount.data.from_file import read_dataset, text_input, tokenized_model
from headcount.data.from_images import image_input
from headcount.data.own_task import own_task
from headcount.data.sequences import adapter_questions, file_texts, repeated_tokens
from headcount.data.tables import TextLines, is_dataset
from headcount.encodings.base import HasPositions
from headcount.errors import HeadcountError, InputError
from headcount.experiments.adapter_attention import AdapterAttention
from headcount.experiments.decoding_check import require_same_answers
from headcount.experiments.experiment import Experiment, experiment_on
from headcount.experiments.models import N_NULL, N_SELECTION, Data, ExperimentMetric, OpenModel, means_over, smaller
from headcount.experiments.position_tables import AdapterPositions
from headcount.experiments.task_attention import TaskAttention
from headcount.external.adapter import Adapter, task_of
from headcount.external.models import ExternalModel, prune_external
from headcount.heads import HeadId
from headcount.runs.folder import RunFolder
from headcount.runs.run import Prediction
from headcount.surgery.cutting import Cut
from headcount.training.evaluation import ClassModel, SequenceModel
from headcount.training.loop import Listener


@dataclass(frozen=True, repr=False)
class LoadedModel(OpenModel):
    """A model that others wrote: a Hugging Face folder's, or an adapter's."""

    external: ExternalModel
    has_output: ClassVar[bool] = True
    LOOKED_AT: ClassVar[str] = 'or look at a text: --on "a text"'

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

    @cached_property
    def answers(self) -> SequenceModel | ClassModel:  # what is found out of it is kept
        """Return an adapter's model on the task that it names, or on its own data."""
        return self._on_task(self.external)

    def in_double(self) -> SequenceModel | ClassModel:
        """A copy."""
        return self._on_task(replace(self.external, model=copy.deepcopy(self.external.model).cpu().double()))

    def _on_task(self, external: ExternalModel) -> SequenceModel | ClassModel:
        if external.adapter is None:
            return super().answers
        task = self.task or (task_of(external.adapter) if external.adapter.task else own_task(external.adapter))
        return (AdapterSequences if task.output_type == "sequence" else AdapterClasses)(external, task)

    @property
    def trained(self) -> tuple[int, int] | None:
        """As the adapter says, by `trained` or in its settings."""
        adapter = self.external.adapter
        if adapter is None or (adapter.trained is None and "longest" not in adapter.settings):
            return None
        return getattr(self.task, "trained_lengths", None)

    @property
    def output(self) -> RunFolder:
        """A folder in runs/, which becomes this model's own."""
        return self.external.output

    def task_attention(self) -> TaskAttention:
        """As its adapter names a task and encodes its examples."""
        if self.external.adapter is None or self.external.adapter.task is None:
            return super().task_attention()
        return AdapterAttention.of(self.external)

    def positions(self) -> HasPositions:
        """A table that is found in an adapter's model."""
        if self.external.adapter is None:
            return super().positions()
        return AdapterPositions(self.label, self.weights_sha256, self.external)

    def text_input(self, text: str) -> TokenizedText:
        """As its tokenizer or its adapter has it."""
        if self.external.adapter:
            return adapter_input(self.external, text)
        return image_input(self.external, text) if self.external.takes_images else text_input(self.external, text)

    def texts(self, on: Sequence[str], data: str | Path | None = None) -> list[TokenizedText]:
        """As its tokenizer or its adapter has them; an adapter's own questions, if no others are given."""
        if self.external.adapter is None:
            return super().texts(on) + ([] if data is None else file_texts(data, self.external))
        return super().texts(on or adapter_questions(self.external.adapter), data)

    def repeated_tokens(self) -> list[TokenizedText]:
        """Of its vocabulary; an adapter's is not known."""
        return repeated_tokens(self.external)

    def predict(self, text: str) -> Prediction:
        """The answer that the adapter's own code generates."""
        if self.external.adapter is None:
            return super().predict(text)
        if self.task is not None and self.task.output_type == "class":
            return _classified(cast(AdapterClasses, self.answers), text)
        adapter = self.external.adapter
        if type(adapter).generate is Adapter.generate:
            raise InputError(f"{self.name} generates no answers", "write generate() in the adapter")
        question, answer, right = own_answer(self.external, text)
        fault = "" if right is None or is_right(adapter, answer, right) else f"should be {right}"
        places = tuple(map(str, range(len(answer))))
        return Prediction(question, answer, right or "", fault, output_tokens=tuple(answer), positions=places)

    def dataset(self, data: Data = None, length: int | None = None, n: int | None = None) -> EvalDataset:
        """A file's, a folder's, Hugging Face's library's; a split of the adapter's task, or `n` of a length."""
        if isinstance(data, EvalDataset):
            return data
        if not (data is None or isinstance(data, str | Path | TextLines) or is_dataset(data)):
            raise InputError(
                f"{self.name} cannot be measured on {type(data).__name__}", "give a file, or the model and its tensors"
            )
        if self.external.adapter:
            if not (data is None or isinstance(data, str | Path)):
                raise InputError(f"{self.name} is measured on its adapter's examples", "write data() in the adapter")
            return adapter_dataset(self.external, str(data or "test"), length, n)
        if data is None:
            raise InputError(
                f"what shall {self.name} be measured on?",
                "add --data FILE: plain text, or a table (.tsv, .csv or .jsonl): text label; first second score; "
                "source target; or a folder of images by class",
            )
        return read_dataset(data, tokenized_model(self.external))

    def examples(
        self, data: Data = None, metric: ExperimentMetric = None, n: int | None = None, length: int | None = None
    ) -> tuple[EvalDataset, Rows | None]:
        """A file's, or those of a split of the adapter's task."""
        if self.task is None:
            self._refuse("lengths", length)
        dataset = self.dataset(data, length, n)
        return dataset, subsample(dataset, n)

    def selection(
        self, data: Data, metric: ExperimentMetric, n: int | None, *, length: int | None, at_once: int
    ) -> tuple[Experiment, Experiment, Experiment]:
        """From both splits of the adapter's task; else one half of the data, and the other."""
        if self.task is None:
            self._refuse("length", length)
        if data is None and self.task is not None:
            first, second = (self.dataset(split, length, n) for split in ("validation", "test"))
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
        require_same_answers(measured_on)
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


def _classified(answers: AdapterClasses, text: str) -> Prediction:
    """One example's class by the model's largest logit."""
    task, example = answers.task, answers.task.parse(text)
    found = answers.classify(example)
    predicted, probability = int(found.predicted[0]), np.exp(found.logits[0] - np.logaddexp.reduce(found.logits[0]))
    return Prediction(
        task.show(example[0]),
        task.classes[predicted],
        task.classes[int(found.labels[0])],
        task.explain(example[0], predicted),
        note=task.describe(example[0]),
        probability=float(probability[predicted]),
    )
