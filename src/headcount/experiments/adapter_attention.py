"""Attention weights of an adapter's model, with its queries and keys mapped to positions of a headcount task.

To find which token of the task is at which position of the model, the adapter's encode() is called on random texts
(data/probing.py). The task fills numbers up with leading zeros, but the model may write numbers without them, and then
has fewer positions. Examples are therefore grouped by pattern, such as the question `00+00` and an answer of 3 tokens.
Each pattern has its own layout of positions. In a decoder-only model, the queries are the positions that predict the
answer, and the keys are those of the question, as in cross-attention.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.data.from_adapter import encoded, pairs_of
from headcount.data.probing import (
    ONE_POSITION,
    AnswerProbe,
    AnswerTokens,
    Ids,
    QuestionProbe,
    ids_of,
    question_shape,
    random_questions,
    random_sequences,
)
from headcount.errors import InputError, shortened
from headcount.experiments.task_attention import visible_in
from headcount.external.adapter import Adapted, Adapter, adapter_name, digest_of, rebuilt, task_of
from headcount.external.user_code import user_code_errors
from headcount.heads import HeadId, HeadSite
from headcount.hooks.attention import Weights, read_attention
from headcount.models.finite import require_numbers
from headcount.models.reading import AlignedExamples, AttentionChunk, Places, ShowChunk, examples_per_pass
from headcount.runs.run import shuffle_weights
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task

Pattern = tuple[str, int]
"""The shape of a question, such as `00+00`, and the number of tokens of its answer; for a classifier "" and the length.
"""


@dataclass(frozen=True)
class Layout:
    """Which token of the task is at each position of the model's inputs, for examples of one pattern, such as 00+00."""

    pattern: Pattern
    widths: tuple[int, ...]
    """The number of positions of each input tensor."""
    source: int
    """The index of the input tensor that holds the question."""
    source_places: Places
    """For each position of the question's tensor, the task's position there; -1 for tokens that only the model has."""
    decoder: int | None = None
    """The index of the input tensor that holds the answer: `source` if one stack reads both; None for a classifier."""
    fed_places: Places = field(default_factory=lambda: np.arange(0))
    """For each position of the tensor `decoder`, the position of the task's decoder input there; -1 for none."""
    predicted_places: Places = field(default_factory=lambda: np.arange(0))
    """For each position of the tensor `decoder`, the index of the answer token that is predicted there; -1 for none."""

    def at(self, site: HeadSite) -> tuple[Places, Places]:
        """Return the task's positions for the queries and for the keys of an attention block; -1 for none."""
        if self.decoder is None or site.stack == "encoder":
            return self.source_places, self.source_places
        is_fed = (site.stack, site.kind) == ("decoder", "self")
        return self.predicted_places, self.fed_places if is_fed else self.source_places


@dataclass(frozen=True)
class AdapterAttention:
    """An adapter's model whose attention weights are read in the positions of the task that the adapter names."""

    name: str
    weights_sha256: str
    task: Task
    adapted: Adapted
    _layouts: dict[Pattern, Layout] = field(default_factory=dict)
    _visible: dict[tuple[Pattern, HeadSite], Tensor] = field(default_factory=dict)
    _controls: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, weights_sha256: str, adapted: Adapted) -> AdapterAttention:
        """Return the object that reads the attention of a loaded model, whose adapter must name a task."""
        task = task_of(adapted.adapter)
        if adapted.adapter.trained is not None and task.output_type == "class":
            cast(Any, task).trained_lengths = tuple(adapted.adapter.trained)
        return cls(name, weights_sha256, task, adapted)

    @property
    def shape(self) -> object:
        """A key that is equal for two models if their untrained weights have the same distribution."""
        return self.adapted.adapter.origin or id(self.adapted), self.adapted.cuts

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """The names of all attention blocks that have heads."""
        return tuple(self.adapted.head_sites)

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """Return the heads of one attention block, in the order of its attention weights."""
        return self.adapted.head_sites[site].heads

    def read_attention(
        self,
        examples: Examples,
        show: ShowChunk,
        *,
        norm_weighted: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Run the model on these examples, fed the right answers, and call `show` with the attention weights in chunks.

        `progress` is called with the number of finished examples. `norm_weighted` raises an error, because the value
        vectors of an adapter's model cannot be read.
        """
        if norm_weighted:
            raise InputError(
                f"the value vectors of {self.name} cannot be read, so its attention cannot be weighted by their norms",
                "leave --norm-weighted out",
            )
        done, device = 0, next(self.adapted.parameters()).device
        for pattern, rows in self._by_pattern(examples).items():
            layout = self._layout(pattern)
            size = examples_per_pass(max(layout.widths))
            for part in (rows[i : i + size] for i in range(0, len(rows), size)):
                tensors = encoded(self.adapted.adapter, pairs_of(self.task, examples[part]))[0]
                self._require_as_probed(layout, tensors, examples[part])
                inputs, receive = [tensor.to(device) for tensor in tensors], _receiver(self, layout, part, show)
                output = read_attention(self.adapted, self.adapted.head_sites, inputs, receive)
                require_numbers(output, self.task.show(examples[part[0]]))
                done += len(part)
                if progress:
                    progress(done)

    def aligned_examples(self, examples: Examples) -> AlignedExamples:
        """Return the examples of the most frequent pattern, such as 00+00; for a classifier, the longest sequences.

        In these examples, each position has the same meaning.
        """
        groups = self._by_pattern(examples)
        pattern = max(groups, key=(lambda key: key[1]) if self._is_class else (lambda key: len(groups[key])))
        rows, layout = groups[pattern], self._layout(pattern)
        question, answer = pairs_of(self.task, examples[rows[:1]])[0]
        shown = self._token_names((question, answer), layout)
        if self._is_class:
            names = list(map(str, range(len(layout.source_places))))
            words = f"the sequences of {pattern[1]} tokens in "
            return AlignedExamples(rows, words, _labels(layout.source_places, names, shown[layout.source]))
        words = (
            f"the examples that are as long as {question}{self.task.words.sign}{answer} in "
            if len(rows) < len(examples)
            else ""
        )
        return AlignedExamples(rows, words, *_axes(cast(SequenceTask, self.task), layout, shown))

    def value_outputs(self, examples: Examples) -> None:
        """Return None, because the value vectors inside the attention of an adapter's model cannot be read."""

    def workers(self) -> AbstractContextManager[Callable[..., Iterator[Any]]]:
        """Return a context that yields `map`: user code cannot run in parallel, because modules may share a name."""
        return nullcontext(map)

    @property
    def controls(self) -> tuple[str, ...]:
        """The names of the possible control models: `shuffled`, and `untrained` if build() draws random weights."""
        if not self._controls:
            one, other = (digest_of(self.untrained(seed).adapted.model) for seed in (0, 1))
            self._controls.extend(("shuffled",) if one == other else ("untrained", "shuffled"))
        return tuple(self._controls)

    def untrained(self, seed: int) -> AdapterAttention:
        """Return a copy whose model has random weights, drawn by the adapter's build() with this seed (a control)."""
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            fresh = rebuilt(self.adapted.adapter, self.adapted.cuts)
        return replace(self, adapted=fresh.to(next(self.adapted.parameters()).device).eval())

    def shuffled(self, seed: int) -> AdapterAttention:
        """Return a copy whose model has the entries of each weight matrix in random order (a control)."""
        return replace(self, adapted=shuffle_weights(copy.deepcopy(self.adapted), seed))

    # --- patterns -----------------------------------------------------------------------------------------------------

    @property
    def _is_class(self) -> bool:
        return self.task.output_type == "class"

    def _by_pattern(self, examples: Examples) -> dict[Pattern, NDArray[np.int64]]:
        """Return the indices of the examples of each pattern, such as the question 00+00 and an answer of 3 tokens."""
        if self._is_class:
            patterns = [("", n) for n in cast(ClassTask, self.task).lengths(examples).tolist()]
        else:
            task = cast(SequenceTask, self.task)
            pairs, writing = pairs_of(task, examples), AnswerTokens.of(task)
            patterns = [(question_shape(question), len(writing.split(answer))) for question, answer in pairs]
        rows: dict[Pattern, list[int]] = {}
        for row, pattern in enumerate(patterns):
            rows.setdefault(pattern, []).append(row)
        return {pattern: np.array(numbers) for pattern, numbers in rows.items()}

    def _layout(self, pattern: Pattern) -> Layout:
        if pattern not in self._layouts:
            probe = _class_layout if self._is_class else _sequence_layout
            self._layouts[pattern] = probe(self.adapted.adapter, cast(Any, self.task), pattern)
        return self._layouts[pattern]

    def _require_as_probed(self, layout: Layout, inputs: Sequence[Tensor], examples: Examples) -> None:
        """Raise an error if encode() puts the tokens of these examples at other positions than the layout says.

        The layout was found with random texts of the same pattern.
        """
        ids, tokens = ids_of(inputs[layout.source]), cast(Any, self.task).encode(examples).source
        known = np.flatnonzero(layout.source_places >= 0)
        is_same = ids.shape[1] == len(layout.source_places)
        if is_same:
            expected = tokens[:, layout.source_places[known]]
            both = expected * (ids.max() + 1) + ids[:, known]
            is_same = bool((_n_values(both) == _n_values(expected)).all())
        if not is_same:
            text = shortened(self.task.show(examples[0]))
            raise InputError(
                f"encode() puts the tokens of {text} at other positions than the tokens of other examples of the "
                "same length",
                ONE_POSITION,
            )

    def _token_names(self, pair: tuple[str, str], layout: Layout) -> list[list[str]]:
        """Return a name for each position of each input: from the adapter's tokens() or, without it, `[index]`."""
        adapter = self.adapted.adapter
        with user_code_errors(adapter, "tokens"):
            names = [list(map(str, part)) for part in adapter.tokens(*pair)]
        names += [[]] * (len(layout.widths) - len(names))
        return [
            labels if len(labels) == width else [f"({i})" for i in range(width)]
            for labels, width in zip(names, layout.widths, strict=False)
        ]

    def visible(self, layout: Layout, site: HeadSite, weights: Weights) -> Tensor:
        """Return a mask [query, key] of the keys that each query of an attention block may see.

        It is inferred from the first attention weights of this layout's pattern, and then remembered.
        """
        key = layout.pattern, site
        if key not in self._visible:
            self._visible[key] = visible_in(weights.flatten(0, 1), site.kind).cpu()
        return self._visible[key].to(weights.device)


def _receiver(
    model: AdapterAttention, layout: Layout, rows: NDArray[np.int64], show: ShowChunk
) -> Callable[[HeadSite, Weights], None]:
    """Return a callback that takes an attention block's weights and calls `show` with them in the task's positions."""

    def receive(site: HeadSite, weights: Weights) -> None:
        queries, keys = layout.at(site)
        n_queries, n_keys = weights.shape[2:]
        if (n_queries, n_keys) != (len(queries), len(keys)):
            raise InputError(
                f"{site} has {n_queries} queries and {n_keys} keys, but encode() makes {len(queries)} and {len(keys)} "
                "positions for them: the model adds or drops positions",
                "add or drop these tokens in encode(), so that its tensors have the positions that the model uses",
            )
        sees = model.visible(layout, site, weights)
        whole = slice(0, n_queries), slice(0, n_keys), (n_queries, n_keys)
        show(AttentionChunk(site, rows, weights, *whole, queries, keys, sees))

    return receive


def _labels(places: Places, names: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Return one name per position: its place's name in `names` or, if the place is -1, the position's in `others`."""
    return tuple(names[place] if place >= 0 else other for place, other in zip(places, others, strict=True))


def _axes(task: SequenceTask, layout: Layout, shown: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yield the labels of the positions: of the encoder's input, of the decoder's input, and of the predicted tokens.

    A single stack has one tuple of labels for both inputs.
    """
    source, fed = ([p.label for p in positions] for positions in (task.source_positions, task.decoder_input_positions))
    predicted = [position.label for position in task.answer_positions[len(task.decoding_start.given) :]]
    places = layout.predicted_places
    # A token that is predicted at one position stands at the next one.
    follows = _labels(np.append(-1, places[:-1]), predicted, shown[cast(int, layout.decoder)])
    if layout.source == layout.decoder:
        yield from [_labels(layout.source_places, source, follows)] * 3
        return
    yield _labels(layout.source_places, source, shown[layout.source])
    yield _labels(layout.fed_places, fed, follows)
    yield _labels(places, [f"→ {label}" for label in predicted], ["→"] * len(places))


# --- layouts ----------------------------------------------------------------------------------------------------------


def _class_layout(adapter: Adapter, task: ClassTask, pattern: Pattern) -> Layout:
    """Return where the task's tokens are in the inputs of an adapter's classifier, for sequences of one length."""
    examples = random_sequences(task, pattern[1])
    ids = [ids_of(tensor) for tensor in encoded(adapter, pairs_of(task, examples))[0]]
    question = QuestionProbe.of(ids, task.encode(examples).source)
    return Layout(pattern, tuple(each.shape[1] for each in ids), question.source, question.places)


def _sequence_layout(adapter: Adapter, task: SequenceTask, pattern: Pattern) -> Layout:
    """Return where the task's tokens are in an adapter's inputs, for questions and answers of one pattern (00+00)."""
    shape, n_written = pattern
    examples = random_questions(task, shape)
    answer = AnswerProbe.of(adapter, task, [task.show(row) for row in examples], n_written)
    question = QuestionProbe.of(answer.inputs, task.encode(examples).source)
    has_start, n_given = task.decoder_input_positions[0].role == "start", len(task.decoding_start.given)
    fed, predicted = answer.fed, answer.predicted
    fed = np.where((fed < 0) | (fed + has_start >= len(task.decoder_input_positions)), -1, fed + has_start)
    predicted = np.where(predicted < n_given, -1, predicted - n_given)
    answering = np.flatnonzero(predicted >= 0)
    if not len(answering):
        raise InputError(
            f"no position in the tensors that encode() of {adapter_name(adapter)} returns predicts a token of the "
            "answer",
            ONE_POSITION,
        )
    if (np.diff(predicted[answering]) < 0).any():
        raise InputError(
            f"{adapter_name(adapter)} writes the tokens of answers in reverse order, compared with its task",
            f'change its settings: settings = {{"least_first": {not task.config.least_first}}}'
            if hasattr(task.config, "least_first")
            else "write them in the order of the task, in encode() and in generate()",
        )
    if has_start and fed[answering[0]] < 0:
        fed[answering[0]] = 0
    return Layout(pattern, answer.widths, question.source, question.places, answer.decoder, fed, predicted)


def _n_values(columns: Ids) -> NDArray[np.int64]:
    """Return the number of different values in each column of ids, minus one: 0 for a constant column."""
    return np.asarray((np.diff(np.sort(columns, axis=0), axis=0) != 0).sum(axis=0))
