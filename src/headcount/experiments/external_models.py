"""Models that headcount did not train, opened for all commands: from a Hugging Face folder, or through an adapter."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from headcount.data.adapter_task import AdapterClasses, AdapterSequences
from headcount.data.dataset import EvalDataset, Rows, TokenizedText, split_in_half, subsample
from headcount.data.from_adapter import adapter_dataset, adapter_input, is_right, own_answer
from headcount.data.from_file import TokenizedModel, read_dataset, text_input
from headcount.data.from_images import image_input
from headcount.data.own_task import own_task
from headcount.data.sequences import adapter_questions, file_texts, repeated_tokens
from headcount.data.tables import TextLines, is_dataset
from headcount.encodings.base import EncodingInUse
from headcount.errors import CheckFailed, HeadcountError, InputError
from headcount.experiments.adapter_attention import AdapterAttention
from headcount.experiments.decoding_check import require_same_answers
from headcount.experiments.experiment import Experiment, experiment_on
from headcount.experiments.models import N_NULL, N_SELECTION, Data, ExperimentMetric, OpenModel, means_over, smaller
from headcount.experiments.position_tables import find_encoding
from headcount.experiments.task_attention import TaskAttention
from headcount.external.adapter import (
    TOLERANCE,
    Adapted,
    Adapter,
    digest_of,
    load_adapted,
    load_adapter,
    load_cut,
    save_cut,
    task_of,
)
from headcount.external.hugging_face import load_image_processor, load_model, load_tokenizer, save_model
from headcount.external.models import code_of, is_adapter_class, longest_of, require_fit
from headcount.files import read_bytes
from headcount.heads import HeadId
from headcount.hooks.wrapping import Wrapped, wrap
from headcount.models.finite import require_finite_model
from headcount.runs.folder import RunFolder, claimed_folder, digest
from headcount.runs.prune import cut_and_prove
from headcount.runs.run import Prediction
from headcount.surgery.cutting import Cut, Inputs, Size
from headcount.tasks import words_of
from headcount.training.evaluation import ClassModel, SequenceModel
from headcount.training.loop import Listener

LENGTH = 128
"""Default largest number of tokens of a text that are given to a model; the rest is cut off."""


@dataclass(frozen=True, repr=False)
class ExternalModel(OpenModel):
    """A model that headcount did not train, opened for all commands: a Hugging Face model, or one with an adapter."""

    origin: str
    """The full path of the model, which distinguishes models of the same name."""
    tokenizer: Any = None
    """The tokenizer or, for a model that takes images, the image processor; None without one."""
    adapter: Adapter | None = None
    """The adapter whose encode() and data() are used; None if the tokenizer encodes texts and files."""
    length: int = LENGTH
    """The largest number of tokens of a text that are given to the model; the rest is cut off."""
    has_title: bool = False
    """Whether the user gave the `label`, such as a student's name; results then go to a folder of this name."""
    has_output: ClassVar[bool] = True
    SEE_ATTENTION: ClassVar[str] = 'or look at a text: --on "a text"'

    @classmethod
    def of(
        cls, model: nn.Module, tokenizer: Any = None, *, name: str | None = None, length: int = LENGTH
    ) -> ExternalModel:
        """Return a loaded Hugging Face model, with its tokenizer or image processor, opened for all commands."""
        wrapped = wrap(model)
        name = name or type(wrapped.model).__name__
        require_fit(wrapped.model, tokenizer, name)
        require_finite_model(wrapped.model, name)
        return cls.opened(wrapped, name, tokenizer=tokenizer, length=length)

    @classmethod
    def opened(
        cls,
        model: Wrapped | Adapted,
        name: str,
        *,
        origin: str = "",
        title: str = "",
        tokenizer: Any = None,
        adapter: Adapter | None = None,
        length: int = LENGTH,
    ) -> ExternalModel:
        """Return a model whose heads are known, opened for all commands.

        Its label is `title` or, without a title, the last part of `name`.
        """
        task = None
        if adapter is not None and adapter.task:
            with suppress(HeadcountError):  # raised again when examples are needed; listing heads needs none
                task = task_of(adapter)
        label = title or name.rstrip("/").rpartition("/")[2]
        base = name, label, digest_of(model.model), model, model.head_sites, task
        return cls(*base, origin or name, tokenizer, adapter, length, has_title=bool(title))

    @property
    def model(self) -> Wrapped | Adapted:
        """The model inside its wrapper, which names its heads."""
        return cast(Wrapped | Adapted, self.module)

    @property
    def inner(self) -> nn.Module:
        """The model without headcount's wrapper, as its author wrote it."""
        return self.model.model

    @property
    def tokenized(self) -> TokenizedModel:
        """The model with its tokenizer or image processor; raises an error if it has neither."""
        return TokenizedModel(self.name, self.model, self.tokenizer, min(self.length, longest_of(self.inner)))

    @property
    def takes_images(self) -> bool:
        """Whether the inputs of the model are images, which an image processor prepares."""
        return "pixel_values" in getattr(self.model, "inputs", ())

    @cached_property
    def output(self) -> RunFolder:
        """The folder in runs/ for results about these weights and this version of the adapter's file."""
        stem = re.sub(r"[^\w.-]+", "-", self.label).strip("-.") or "model"
        if (Path("runs") / stem).resolve() == Path(self.name).resolve():
            stem = f"{stem}-results"
        identity = self.weights_sha256
        if self.adapter is not None and self.adapter.origin:  # the adapter's file decides which examples are used
            identity = digest(identity.encode() + read_bytes(Path(self.adapter.origin.rpartition(":")[0])))
        return RunFolder(claimed_folder(stem, self.origin, identity, is_title=self.has_title))

    @property
    def _adapted(self) -> Adapted:
        assert isinstance(self.model, Adapted), "an adapter's model"
        return self.model

    @cached_property
    def answers(self) -> SequenceModel | ClassModel:  # kept, as probing takes time
        """The adapter's model joined with its task (or own data), so that its answers can be computed and scored."""
        return self._on_task() if self.adapter is not None else super().answers

    def in_double(self) -> SequenceModel | ClassModel:
        """Return a copy of `answers` (the model joined with its task) in double precision on the CPU."""
        if self.adapter is None:
            return super().answers
        return self._on_task(copy.deepcopy(self._adapted).cpu().double())

    def _on_task(self, adapted: Adapted | None = None) -> AdapterSequences | AdapterClasses:
        adapter = cast(Adapter, self.adapter)
        task: Any = self.task or (task_of(adapter) if adapter.task else own_task(adapter))
        return (AdapterSequences if task.output_type == "sequence" else AdapterClasses)(adapted or self._adapted, task)

    @property
    def trained(self) -> tuple[int, int] | None:
        """The shortest and the longest training length that the adapter gives; None if it gives none."""
        if self.adapter is None or (self.adapter.trained is None and "longest" not in self.adapter.settings):
            return None
        return getattr(self.task, "trained_lengths", None)

    def task_attention(self) -> TaskAttention:
        """Return an object that reads the model's attention weights in the positions of the adapter's task.

        Raise an error if there is no adapter, or if it names no task.
        """
        if self.adapter is None or self.adapter.task is None:
            return super().task_attention()
        return AdapterAttention.of(self.label, self.weights_sha256, self._adapted)

    def encoding_in_use(self) -> EncodingInUse:
        """Return the position table of an adapter's model, found by testing which tensor acts like one."""
        return super().encoding_in_use() if self.adapter is None else find_encoding(self.label, self._adapted)

    def text_input(self, text: str) -> TokenizedText:
        """Return one text (or image file) as the model's inputs, made by the adapter or the tokenizer."""
        if self.adapter:
            return adapter_input(self._adapted, text)
        return image_input(self.tokenized, text) if self.takes_images else text_input(self.tokenized, text)

    def texts(self, on: Sequence[str], data: str | Path | None = None) -> list[TokenizedText]:
        """Return the texts `on` and those of the file `data` as model inputs; by default, the adapter's questions."""
        if self.adapter is None:
            return super().texts(on) + ([] if data is None else file_texts(data, self.tokenized))
        return super().texts(on or adapter_questions(self.adapter), data)

    def repeated_tokens(self) -> list[TokenizedText]:
        """Return sequences in which random tokens of the vocabulary are repeated; empty for an adapter's model."""
        return repeated_tokens(self.model, self.tokenizer)

    def predict(self, text: str) -> Prediction:
        """Return the model's answer to one text: from the adapter's generate(), or the class with the largest logit."""
        if self.adapter is None:
            return super().predict(text)
        if self.task is not None and self.task.output_type == "class":
            return _classified(cast(AdapterClasses, self.answers), text)
        if type(self.adapter).generate is Adapter.generate:
            raise InputError(
                f"{self.name} cannot decode answers, because its adapter class has no method generate()",
                "write generate() in the adapter class",
            )
        question, answer, right = own_answer(self._adapted, text)
        fault = "" if right is None or is_right(self.adapter, answer, right) else f"should be {right}"
        places = tuple(map(str, range(len(answer))))
        return Prediction(
            question,
            answer,
            right or "",
            fault,
            output_tokens=tuple(answer),
            positions=places,
            sign=words_of(self.adapter.task).sign,
        )

    def dataset(self, data: Data = None, length: int | None = None, n: int | None = None) -> EvalDataset:
        """Return the examples on which the model is measured: a file, a folder, a Hugging Face dataset or a split."""
        if isinstance(data, EvalDataset):
            return data
        if not (data is None or isinstance(data, str | Path | TextLines) or is_dataset(data)):
            raise InputError(
                f"{self.name} cannot be measured on data of the type {type(data).__name__}",
                "give a file, a folder or a Hugging Face dataset; for tensors, give the PyTorch model, not its name",
            )
        if self.adapter:
            if not (data is None or isinstance(data, str | Path)):
                raise InputError(
                    f"{self.name} is measured only on the examples of its own task or of data() in its adapter "
                    "class, and takes no other data",
                    "return your examples from data() in the adapter class",
                )
            return adapter_dataset(self._adapted, str(data or "test"), length, n)
        if data is None:
            raise InputError(
                f"{self.name} has no task, so examples to measure it on must be given",
                "add --data FILE: plain text; a table (.tsv, .csv or .jsonl) with columns text and label, or first, "
                "second and score, or source and target; or a folder of images by class",
            )
        return read_dataset(data, self.tokenized)

    def examples(
        self, data: Data = None, metric: ExperimentMetric = None, n: int | None = None, length: int | None = None
    ) -> tuple[EvalDataset, Rows | None]:
        """Return the dataset on which the model is measured, and the rows of `n` random examples (None: all rows)."""
        if self.task is None:
            self._refuse("lengths", length)
        dataset = self.dataset(data, length, n)
        return dataset, subsample(dataset, n)

    def selection(
        self, data: Data, metric: ExperimentMetric, n: int | None, *, length: int | None, at_once: int
    ) -> tuple[Experiment, Experiment, Experiment]:
        """Return three experiments: to select heads on, to measure the selection on, and for random orders of removal.

        They are on the validation set and the test set or, without a task, on two halves of the data.
        """
        if self.task is None:
            self._refuse("length", length)
        if data is None and self.task is not None:
            first, second = (self.dataset(split, length, n) for split in ("validation", "test"))
            rows, others = subsample(first, smaller(n, N_SELECTION)), subsample(second, n)
            halves = ("", "")
        else:
            first = second = self.dataset(data)
            rows, others = split_in_half(first, n)
            halves = ("one half of ", "the other half of ")

        def on(dataset: EvalDataset, part: Rows, half: str) -> Experiment:
            name = half + dataset.data
            return experiment_on(self.module, self.sites, dataset, part, metric, data=name, at_once=at_once)

        chosen_on, measured_on = on(first, rows[:N_SELECTION], halves[0]), on(second, others, halves[1])
        require_same_answers(measured_on)
        return chosen_on, measured_on, on(second, others[:N_NULL], halves[1])

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
        assert measured is not None, "the caller makes an experiment before it cuts"
        over = means_over(measured) if fold_mean else ()
        means, n_means = [(batch.inputs, batch.token_mask) for batch in over], sum(len(batch.rows) for batch in over)
        return cast(Any, prune_external(self, heads, out, measured.batches[0].inputs, means, n_means))


def _classified(answers: AdapterClasses, text: str) -> Prediction:
    """Return a classifier's prediction for one example given as text: the class with the largest logit."""
    task, example = answers.task, answers.task.parse(text)
    answer = answers.classify(example)
    predicted, probability = int(answer.predicted[0]), np.exp(answer.logits[0] - np.logaddexp.reduce(answer.logits[0]))
    return Prediction(
        task.show(example[0]),
        task.classes[predicted],
        task.classes[int(answer.labels[0])],
        task.explain(example[0], predicted),
        note=task.describe(example[0]),
        probability=float(probability[predicted]),
        sign=task.words.sign,
    )


def load_external(
    name: str | Path,
    device: str | torch.device = "cpu",
    *,
    length: int = LENGTH,
    run_adapter: bool = False,
    title: str = "",
) -> ExternalModel:
    """Return a model that headcount did not train, given as `my_adapter.py:Model` or as a model's folder.

    The folder was written by Hugging Face or by headcount. The folder of a pruned adapter model names the adapter's
    file; this file is run only with `run_adapter`. `length` limits the tokens of a text, and `title` is a label.
    """
    path, code = Path(name), code_of(name, run_adapter=run_adapter)
    origin = str(path.resolve())
    if code is None:
        model = load_model(path, device)
        wrapped = wrap(model)
        tokenizer = load_image_processor(path) if "pixel_values" in wrapped.inputs else load_tokenizer(path)
        require_fit(model, tokenizer, str(name))
        return ExternalModel.opened(wrapped, str(name), origin=origin, title=title, tokenizer=tokenizer, length=length)
    if is_adapter_class(name):
        adapted = load_adapted(load_adapter(str(name))).to(device)
        origin = adapted.adapter.origin
    else:
        adapted = load_cut(path).to(device)
    if (adapter := adapted.adapter).pretrained is None or type(adapter).encode is not Adapter.encode:
        return ExternalModel.opened(adapted, str(name), origin=origin, title=title, adapter=adapter)
    tokenizer = load_tokenizer(adapter.folder / adapter.pretrained)
    require_fit(adapted.model, tokenizer, str(name))
    return ExternalModel.opened(adapted, str(name), origin=origin, title=title, tokenizer=tokenizer, length=length)


def prune_external(
    model: ExternalModel,
    heads: Iterable[str | HeadId],
    out: Path,
    inputs: Sequence[Tensor],
    means: Sequence[Inputs] = (),
    n_means: int = 0,
) -> Cut[ExternalModel]:
    """Cut heads out of a model, write it to the folder `out`, and return the model that is read from there.

    The cut is proven on `inputs`, before writing and after reading. If `means` has batches (of `n_means` examples), the
    heads' mean outputs over these are added to the biases.
    """
    removed = tuple(dict.fromkeys(model.find_head(head) for head in heads))
    if len(removed) == len(model.sites.heads):
        raise InputError(
            f"this would remove all heads of {model.name}, but at least one must stay",
            "lower --loss (the accuracy that may be lost), or name the heads to remove with --heads",
        )
    cut, difference, prove = cut_and_prove(model.model, removed, inputs, means, n_means)
    is_adapted = isinstance(cut, Adapted)  # the adapter's code has run already, so it may run again
    if is_adapted:
        save_cut(cut, model.weights_sha256, out, inputs, folded_over=n_means)
    else:
        save_model(cut, out, model.tokenizer)
    smaller_model = load_external(
        out, next(model.inner.parameters()).device, length=model.length, run_adapter=is_adapted
    )
    again = prove(smaller_model.model)
    if not again <= TOLERANCE:
        raise CheckFailed(
            f"the model that was written to {out} does not have the output of the model whose heads were removed: "
            f"they differ by {again:.1e} of the largest output",
            "this is a fault in headcount: please report it",
        )
    sizes = Size.of(model.inner), Size.of(smaller_model.inner)
    return Cut(smaller_model, removed, max(difference, again), *sizes, n_means)
