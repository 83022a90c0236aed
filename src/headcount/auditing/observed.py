"""A model on its task as an outsider sees it: what it answers, and what changes that.

Everything is computed when a check first asks for it and kept, so that many checks cost little more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.auditing.head_sweep import HeadSweep, sweep_heads
from headcount.data.adapter_task import AdapterClasses, AdapterModel, AdapterSequences
from headcount.data.from_adapter import encoded, pairs_of
from headcount.data.probing import AnswerTokens
from headcount.experiments.external_models import ExternalModel
from headcount.experiments.models import OpenModel
from headcount.external.adapter import Adapter
from headcount.hooks.gates import eval_mode
from headcount.models.transformer import Classifier, EncoderDecoder
from headcount.seeds import stream
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task, Tokens
from headcount.training.answers import BLOCK, ClassAnswers, SequenceAnswers, on_device
from headcount.training.evaluation import ClassModel, SequenceModel

Hits = NDArray[np.bool_]
N_SWAPPED = 50
"""Examples whose operands are swapped to see whether answers stay."""


class Observed:
    """A model, up to `n` of its test examples, and what it answers to them."""

    def __init__(self, model: OpenModel, n: int | None = None, split: str = "test") -> None:
        self.model, self.split = model, split
        self.answers: SequenceModel | ClassModel = model.answers
        every = self.task.split(split)
        rows = np.sort(self.rng("examples").permutation(len(every))[:n])  # a set may be in the order of its classes
        self.examples: Examples = every[rows]

    @property
    def task(self) -> Task:
        """What it is asked."""
        return self.answers.task

    @property
    def n(self) -> int:
        """How many examples."""
        return len(self.examples)

    @property
    def adapter(self) -> Adapter | None:
        """Whose code it is; None of a run."""
        return self.model.adapter if isinstance(self.model, ExternalModel) else None

    def rng(self, name: str) -> np.random.Generator:
        """A random stream of a check's own, the same in every process."""
        return stream(0, f"audit {name}")

    @property
    def trained_lengths(self) -> tuple[int, int]:
        """The shortest and the longest sequence in training, or else in the task."""
        return self.model.trained or cast(ClassTask, self.task).trained_lengths

    @cached_property
    def is_commutative(self) -> bool:
        """Whether examples are pairs whose order does not change the right answer."""
        if self.examples.ndim != 2 or self.examples.shape[1] != 2:
            return False
        return all(self.task.answer(each) == self.task.answer(each[::-1]) for each in self.examples[:N_SWAPPED])

    @cached_property
    def right(self) -> Hits:
        """[example]: which answers are right."""
        return self.right_on(self.examples)

    def right_on(self, examples: Examples) -> Hits:
        """The same of other examples: decoded if the model can be, else in one pass."""
        is_known = examples is self.examples
        if self.task.output_type == "class":
            return (self.classes if is_known else self.classify(examples)).hits
        model = cast(SequenceModel, self.answers)
        if not self.decodes:
            return np.asarray(model.margins(examples) > 0)
        found = self.sequences if is_known else model.answer(examples)
        return np.asarray(np.all(found.free_hits, axis=1))

    @property
    def common_error(self) -> str:
        """What most wrong answers share; empty if none is wrong."""
        if self.task.output_type == "class":
            return self.classes.common_error(cast(ClassTask, self.task).classes)
        return self.sequences.common_error(cast(SequenceTask, self.task))

    # --- models that write answers ---

    @cached_property
    def sequences(self) -> SequenceAnswers:
        """Answers both ways."""
        return cast(SequenceModel, self.answers).answer(self.examples)

    @cached_property
    def readable(self) -> SequenceAnswers:
        """The answers with what stands between their tokens left out, so that 1 1 8 reads as 118.

        Only exact match takes an answer as it was written.
        """
        found = self.sequences
        if AnswerTokens.of(cast(SequenceTask, self.task)).separator:
            return found  # the task writes them itself
        texts = without_separators(found.texts)
        is_other = isinstance(self.answers, AdapterSequences) and texts != list(found.texts)
        return cast(AdapterSequences, self.answers).with_texts(found, texts) if is_other else found

    @property
    def right_without_separators(self) -> Hits:
        """[example]: which answers are right once separators are left out."""
        return np.asarray(self.readable.free_hits.all(axis=1)) if self.decodes else self.right

    @property
    def free(self) -> Tokens:
        """[example, place]: the readable answers as the model writes them itself; -1 for what is no answer at all."""
        assert self.readable.free is not None, "ask `decodes` first"
        return self.readable.free

    @property
    def decodes(self) -> bool:
        """Whether it writes answers itself: an adapter need not have `generate`."""
        return self.sequences.free is not None

    @property
    def right_answers(self) -> Tokens:
        """[example, place]."""
        return self.sequences.batch.answer

    @property
    def places(self) -> tuple[str, ...]:
        """What each token of an answer is, such as `10s`."""
        return tuple(position.label for position in cast(SequenceTask, self.task).answer_positions)

    def token(self, number: int) -> str:
        """As it is written."""
        return self.task.tokens[number]

    def logits_when_fed(self, examples: Examples, answers: Tokens) -> tuple[Tensor, Tensor]:
        """Logits [example, label, token] and labels of one pass; the answers need not be right."""
        task = cast(SequenceTask, self.task)
        if isinstance(self.answers, AdapterSequences):
            pairs, writing = pairs_of(task, examples), AnswerTokens.of(task)
            fed = [
                (question, writing.join(writing.split(task.show_tokens(tokens))[-len(writing.split(right)) :]))
                for tokens, (question, right) in zip(answers, pairs, strict=True)
            ]
            parts = list(self.answers.passes(fed, BLOCK))
            return torch.cat([logits for logits, _ in parts]).cpu(), torch.cat([labels for _, labels in parts]).cpu()
        start, batch = task.decoding_start, task.encode(examples)
        before = () if start.given else (start.first,)
        head = np.broadcast_to(np.array(before, dtype=np.int64), (len(examples), len(before)))
        decoder_input = np.concatenate([head, answers[:, :-1]], axis=1)
        model = cast(EncoderDecoder, self.model.module)
        with eval_mode(model, gradients=False) as device:
            logits = model(*on_device(device, batch.source, decoder_input))
        return logits.cpu(), torch.from_numpy(answers[:, len(start.given) :])

    # --- classifiers ---

    @cached_property
    def classes(self) -> ClassAnswers:
        """Its answers."""
        return cast(ClassModel, self.answers).classify(self.examples)

    def classify(self, examples: Examples) -> ClassAnswers:
        """Its answers to other examples, those of one length together."""
        return cast(ClassModel, self.answers).classify(examples)

    def logits_in_one_batch(self, examples: Examples) -> NDArray[np.float64]:
        """[example, class], short examples padded as the model's own code does."""
        task = cast(ClassTask, self.task)
        if isinstance(self.answers, AdapterClasses):
            ((logits, _),) = self.answers.passes(pairs_of(task, examples), len(examples))
            return np.asarray(logits[:, self.answers.columns].double().cpu().numpy())
        model = cast(Classifier, self.model.module)
        with eval_mode(model, gradients=False) as device:
            return np.asarray(model(*on_device(device, task.encode(examples).source)).double().cpu().numpy())

    # --- heads ---

    @cached_property
    def head_sweep(self) -> HeadSweep:
        """What every head costs alone; what it cannot be made of is an error that says why."""
        return sweep_heads(self.model, self.split, self.n)

    # --- as tensors ---

    def inputs(self, examples: Examples) -> tuple[Tensor, ...]:
        """What the model is given of these examples, on its device."""
        device = next(self.model.module.parameters()).device
        if isinstance(self.answers, AdapterModel):
            made = encoded(self.answers.adapter, pairs_of(self.task, examples))[0]
            return tuple(self.answers.as_weights(each).to(device) for each in made)
        batch = cast(SequenceTask, self.task).encode(examples)
        names: Sequence[str] = ("source",) if self.task.output_type == "class" else ("source", "decoder_input")
        return tuple(on_device(device, *(getattr(batch, name) for name in names)))


SEPARATORS = (" ", ",", ", ", ";", "|", ".", "-", "\t")
"""What may stand between the characters of every answer."""
USUAL = 0.9
"""Share of answers of several characters that a separator has to part, to be taken for one."""


def without_separators(texts: Sequence[str]) -> list[str]:
    """Leave out what stands between all characters of nearly all texts, or before every third digit.

    >>> without_separators(["1 1 8", "4 2", "7"]), without_separators(["1,188", "420"])
    (['118', '42', '7'], ['1188', '420'])
    >>> without_separators(["118", "1 8"])  # a space in few of them stands for something else
    ['118', '1 8']
    """
    for separator in SEPARATORS:
        parts = [text.strip().split(separator) for text in texts]
        for is_parted in (_in_characters, _in_thousands):
            several = [each for each in parts if len("".join(each)) > (1 if is_parted is _in_characters else 3)]
            if several and sum(map(is_parted, several)) >= USUAL * len(several):
                return ["".join(each) if is_parted(each) else text for each, text in zip(parts, texts, strict=True)]
    return list(texts)


def _in_characters(parts: Sequence[str]) -> bool:
    return len(parts) > 1 and all(len(each) == 1 and each.isalnum() for each in parts)


def _in_thousands(parts: Sequence[str]) -> bool:
    first, *rest = parts
    return bool(rest) and "".join(parts).isdigit() and 0 < len(first) < 4 and all(len(each) == 3 for each in rest)


def row_keys(examples: Examples) -> list[bytes]:
    """A key for each example, equal for equal ones."""
    return [row.tobytes() for row in np.ascontiguousarray(examples, dtype=np.int64)]
