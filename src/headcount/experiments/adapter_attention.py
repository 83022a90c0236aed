"""Which of a task's tokens stands where in an adapter's inputs, and its model's attention read by that.

Nobody has to say it. encode() is given texts whose tokens are drawn at random, and a position whose ids go one to one
with one of these tokens holds that token:

    question  37+81      answer  118                    of an encoder-decoder with tokens of its own
    encoder   <cls> 3 7 + 8 1 <sep>                     .  a10  a1  +  b10  b1  .
    decoder   <s> 1 1 8                                 start  100s  10s  1s        as keys
    labels    1 1 8 <eos>                               100s  10s  1s  .            as queries: what is predicted there

What never changes is a token of the model's own; or an operator, where it stands between the operands. A sum that is
written short has fewer positions than the task, which fills it with zeros: texts are taken by their pattern, `00+00`
and the length of the answer, and each pattern has a layout of its own. In a stack that reads question and answer
(a decoder alone), queries are those that predict the answer and keys the question, as in cross-attention.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.data.from_adapter import encoded
from headcount.errors import HeadcountError, InputError, shortened
from headcount.external.adapter import Adapted, Adapter, digest_of, rebuilt, task_of
from headcount.external.models import ExternalModel
from headcount.external.user_code import user_code_errors
from headcount.heads import HeadId, HeadSite
from headcount.hooks.attention import Weights, read_attention
from headcount.models.finite import require_numbers
from headcount.models.reading import AlignedExamples, AttentionChunk, Places, ShowChunk, examples_per_pass
from headcount.runs.run import shuffle_weights
from headcount.seeds import stream
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task

N_PROBES, N_WORDS, MOST_TRIES = 64, 6, 40
"""Random texts that show where tokens stand; words that a sequence is made of; and tries for each text."""
ONE_TOKEN = "let encode() give each digit or number one position; single examples can be seen all the same: --on"
Pattern = tuple[str, int]
"""What a question looks like, and how long its answer is."""
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """What stands where in the inputs of one pattern."""

    pattern: Pattern
    widths: tuple[int, ...]
    source: int
    """Which input the question stands in."""
    source_places: Places
    decoder: int | None = None
    """Which one the answer stands in; the same, if a stack reads both. None of a classifier."""
    fed_places: Places = field(default_factory=lambda: np.arange(0))
    predicted_places: Places = field(default_factory=lambda: np.arange(0))

    def at(self, site: HeadSite) -> tuple[Places, Places]:
        """What the queries and the keys of a site stand for."""
        if self.decoder is None or site.stack == "encoder":
            return self.source_places, self.source_places
        is_fed = (site.stack, site.kind) == ("decoder", "self")
        return self.predicted_places, self.fed_places if is_fed else self.source_places


@dataclass(frozen=True)
class AdapterAttention:
    """A model that an adapter brought, on the task that it names."""

    name: str
    weights_sha256: str
    task: Task
    adapted: Adapted
    _layouts: dict[Pattern, Layout] = field(default_factory=dict)
    _visible: dict[tuple[Pattern, HeadSite], Tensor] = field(default_factory=dict)
    _controls: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, external: ExternalModel) -> AdapterAttention:
        """As it was loaded, by an adapter that names a task."""
        adapter, model = external.adapter, external.model
        assert adapter is not None and isinstance(model, Adapted), "brought by one"  # noqa: PT018
        task = task_of(adapter)
        if adapter.trained is not None and task.output_type == "class":
            cast(Any, task).trained_lengths = tuple(adapter.trained)
        return cls(external.label, external.weights_sha256, task, model)

    @property
    def shape(self) -> object:
        """Equal for models whose untrained weights are drawn alike."""
        return self.adapted.adapter.origin or id(self.adapted), self.adapted.cuts

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """Every attention site that has heads."""
        return tuple(self.adapted.head_sites)

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """The heads of one site, in the order of their weights."""
        return self.adapted.head_sites[site].heads

    def read_attention(
        self,
        examples: Examples,
        show: ShowChunk,
        *,
        norm_weighted: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """`show` all weights while these examples are answered with right answers; `progress` counts examples."""
        if norm_weighted:
            raise InputError(
                f"what each key adds is not known of {self.name}: only weights can be read off others' attention",
                "leave --norm-weighted out",
            )
        done, device = 0, next(self.adapted.parameters()).device
        for pattern, rows in self._by_pattern(examples).items():
            layout = self._layout(pattern)
            size = examples_per_pass(max(layout.widths))
            for part in (rows[i : i + size] for i in range(0, len(rows), size)):
                given = encoded(self.adapted.adapter, self._texts(examples[part]))[0]
                self._require_as_probed(layout, given, examples[part])
                inputs, shower = [each.to(device) for each in given], _shower(self, layout, part, show)
                output = read_attention(self.adapted, self.adapted.head_sites, inputs, shower)
                require_numbers(output, self.task.show(examples[part[0]]))
                done += len(part)
                if progress:
                    progress(done)

    def aligned_examples(self, examples: Examples) -> AlignedExamples:
        """Those of the commonest pattern; of a classifier, the longest sequences."""
        groups = self._by_pattern(examples)
        pattern = max(groups, key=(lambda each: each[1]) if self._is_class else (lambda each: len(groups[each])))
        rows, layout = groups[pattern], self._layout(pattern)
        question, answer = self._texts(examples[rows[:1]])[0]
        shown = self._token_names((question, answer), layout)
        if self._is_class:
            names = list(map(str, range(len(layout.source_places))))
            words = f"the sequences of {pattern[1]} in "
            return AlignedExamples(rows, words, _labels(layout.source_places, names, shown[layout.source]))
        words = f"the examples that are as long as {question} = {answer} in " if len(rows) < len(examples) else ""
        return AlignedExamples(rows, words, *_axes(cast(SequenceTask, self.task), layout, shown))

    def value_outputs(self, examples: Examples) -> None:
        """Not known: values are inside of others' attention."""

    def workers(self) -> AbstractContextManager[Callable[..., Iterator[Any]]]:
        """One after the other: while a user's code runs, imports are its own."""
        return nullcontext(map)

    @property
    def controls(self) -> tuple[str, ...]:
        """`untrained` only where build() draws its weights."""
        if not self._controls:
            one, other = (digest_of(self.untrained(seed).adapted.model) for seed in (0, 1))
            self._controls.extend(("shuffled",) if one == other else ("untrained", "shuffled"))
        return tuple(self._controls)

    def untrained(self, seed: int) -> AdapterAttention:
        """The same as build() makes it."""
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            fresh = rebuilt(self.adapted.adapter, self.adapted.cuts)
        return replace(self, adapted=fresh.to(next(self.adapted.parameters()).device).eval())

    def shuffled(self, seed: int) -> AdapterAttention:
        """The same with the entries of each of its weight matrices in random order."""
        return replace(self, adapted=shuffle_weights(copy.deepcopy(self.adapted), seed))

    # --- layouts ------------------------------------------------------------------------------------------------------

    @property
    def _is_class(self) -> bool:
        return self.task.output_type == "class"

    def _texts(self, examples: Examples) -> list[tuple[str, str]]:
        return [(self.task.show(example), self.task.answer(example)) for example in examples]

    def _by_pattern(self, examples: Examples) -> dict[Pattern, NDArray[np.int64]]:
        """Examples whose texts look alike; sequences of numbers by their length."""
        found: dict[Pattern, list[int]] = {}
        if self._is_class:
            for row, n in enumerate(cast(ClassTask, self.task).lengths(examples).tolist()):
                found.setdefault(("", n), []).append(row)
        else:
            for row, (question, answer) in enumerate(self._texts(examples)):
                found.setdefault((re.sub(r"\d", "0", question), len(answer)), []).append(row)
        return {pattern: np.array(rows) for pattern, rows in found.items()}

    def _layout(self, pattern: Pattern) -> Layout:
        if pattern not in self._layouts:
            found = _class_layout if self._is_class else _sequence_layout
            self._layouts[pattern] = found(self.adapted.adapter, cast(Any, self.task), pattern)
        return self._layouts[pattern]

    def _require_as_probed(self, layout: Layout, inputs: Sequence[Tensor], examples: Examples) -> None:
        """Tokens stand where those of random texts stood: each has one id at its position."""
        ids, tokens = _ids(inputs[layout.source]), cast(Any, self.task).encode(examples).source
        known = np.flatnonzero(layout.source_places >= 0)
        is_same = ids.shape[1] == len(layout.source_places)
        if is_same:
            meant = tokens[:, layout.source_places[known]]
            both = meant * (ids.max() + 1) + ids[:, known]
            is_same = bool((_n_values(both) == _n_values(meant)).all())
        if not is_same:
            what = f"encode() puts the tokens of {shortened(self.task.show(examples[0]))} elsewhere than in other texts"
            raise InputError(f"{what} that look like it", ONE_TOKEN)

    def _token_names(self, pair: tuple[str, str], layout: Layout) -> list[list[str]]:
        """What the adapter writes on axes; else numbers."""
        adapter = self.adapted.adapter
        with user_code_errors(adapter, "tokens"):
            names = [list(map(str, part)) for part in adapter.tokens(*pair)]
        names += [[]] * (len(layout.widths) - len(names))
        return [
            each if len(each) == width else [f"({i})" for i in range(width)]
            for each, width in zip(names, layout.widths, strict=False)
        ]

    def visible(self, layout: Layout, site: HeadSite, weights: Weights) -> Tensor:
        """Which keys a query may see: what any head attends to in any example, and between that."""
        key = layout.pattern, site
        if key not in self._visible:
            self._visible[key] = visible_in(weights, site.kind).cpu()
        return self._visible[key].to(weights.device)


def _shower(
    model: AdapterAttention, layout: Layout, rows: NDArray[np.int64], show: ShowChunk
) -> Callable[[HeadSite, Weights], None]:
    """Hands weights on with what their queries and keys stand for."""

    def shower(site: HeadSite, weights: Weights) -> None:
        queries, keys = layout.at(site)
        n_queries, n_keys = weights.shape[2:]
        if (n_queries, n_keys) != (len(queries), len(keys)):
            raise InputError(
                f"{site} has {n_queries} queries and {n_keys} keys, but encode() made {len(queries)} and {len(keys)} "
                f"positions for them: the model adds or drops some, and which is not known",
                "put such tokens into encode(), so that every position is in its tensors",
            )
        sees = model.visible(layout, site, weights)
        whole = slice(0, n_queries), slice(0, n_keys), (n_queries, n_keys)
        show(AttentionChunk(site, rows, weights, *whole, queries, keys, sees))

    return shower


def visible_in(weights: Weights, kind: str) -> Tensor:
    """Keys that any head attends to in any row; within one text, as far as any query does, for weights round to 0."""
    seen = (weights > 0).any(dim=0).any(dim=0)
    sees = seen.any(dim=0).expand_as(seen)
    if kind == "self" and seen.any():
        lag = torch.sub(*torch.meshgrid(*(torch.arange(n, device=seen.device) for n in seen.shape), indexing="ij"))
        sees = sees & (lag >= lag[seen].min()) & (lag <= lag[seen].max())
    return sees


def _labels(places: Places, names: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The task's name of each position, or the model's own."""
    return tuple(names[place] if place >= 0 else other for place, other in zip(places, others, strict=True))


def _axes(task: SequenceTask, layout: Layout, shown: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """What stands in the encoder, in the decoder, and what is predicted there; in one stack, all of it thrice."""
    source, fed = ([p.label for p in positions] for positions in (task.source_positions, task.decoder_input_positions))
    predicted = [position.label for position in task.answer_positions[len(task.decoding_start.given) :]]
    read, asked = shown[layout.source], layout.predicted_places
    # What is predicted at one position stands at the next.
    follows = _labels(np.append(-1, asked[:-1]), predicted, shown[cast(int, layout.decoder)])
    names, written = _labels(layout.source_places, source, read), _labels(layout.fed_places, fed, follows)
    if layout.source == layout.decoder:
        names = _labels(layout.source_places, source, follows)
        yield from (names, names, names)
        return
    yield from (names, written, _labels(asked, [f"→ {label}" for label in predicted], ["→"] * len(asked)))


# --- probing ----------------------------------------------------------------------------------------------------------


def _class_layout(adapter: Adapter, task: ClassTask, pattern: Pattern) -> Layout:
    """Of sequences of one length, made of a few words."""
    rng, n = stream(0, "layout", pattern[1]), pattern[1]
    words = sorted({word for row in task.sample(rng, N_PROBES) for word in task.show(row).split()}, key=len)
    few = [*words[:2], *rng.permutation(words)[: N_WORDS - 2]]  # long words and short ones
    examples = np.concatenate([task.parse(" ".join(rng.choice(few, size=n))) for _ in range(N_PROBES)])
    inputs, _ = encoded(adapter, [(task.show(row), task.answer(row)) for row in examples])
    ids = [_ids(each) for each in inputs]
    source, places = _question_places(ids, task.encode(examples).source)
    return Layout(pattern, tuple(each.shape[1] for each in ids), source, places)


def _sequence_layout(adapter: Adapter, task: SequenceTask, pattern: Pattern) -> Layout:
    """Of questions and answers with these places for digits."""
    rng, (shape, n_answer) = stream(0, f"layout {pattern}"), pattern
    examples = _random_questions(task, shape, rng)
    questions, n_tokens = [task.show(row) for row in examples], len(task.answer_positions)
    probe = Probe.of(adapter, questions, n_answer, rng)
    source, source_places = _question_places(probe.inputs, task.encode(examples).source)
    fed, predicted = probe.fed, probe.predicted
    if n_answer < n_tokens:
        filled = Probe.of(adapter, questions, n_tokens, rng)
        if filled.widths == probe.widths:  # does encode() write 57 as 057?
            fed = probe.with_zeros(fed, probe.inputs[probe.decoder], filled.fed)
            predicted = probe.with_zeros(predicted, probe.labels, filled.predicted)
    # Columns of the text, from its last digit on, as the task writes them.
    text = task.show_tokens(np.arange(n_tokens))
    order = np.array([text[::-1].index(task.tokens[i]) for i in range(n_tokens)]).argsort()
    fed, predicted = (np.where(each < 0, -1, order[each]) for each in (fed, predicted))
    has_start, given = task.decoder_input_positions[0].role == "start", len(task.decoding_start.given)
    fed = np.where((fed < 0) | (fed + has_start >= len(task.decoder_input_positions)), -1, fed + has_start)
    predicted = np.where(predicted < given, -1, predicted - given)
    asked = np.flatnonzero(predicted >= 0)
    if not len(asked):
        raise InputError(f"where {adapter_name(adapter)} predicts the digits of an answer is not known", ONE_TOKEN)
    if (np.diff(predicted[asked]) < 0).any():
        raise InputError(
            f"{adapter_name(adapter)} writes answers in the other order than its task",
            f'say so: settings = {{"least_first": {text.startswith(task.tokens[0])}}}',
        )
    if has_start and fed[asked[0]] < 0:
        fed[asked[0]] = 0
    return Layout(pattern, probe.widths, source, source_places, probe.decoder, fed, predicted)


@dataclass(frozen=True)
class Probe:
    """Random answers of one length, as encode() has them; columns count from the last digit, -1 is none."""

    inputs: tuple[Ids, ...]
    labels: Ids
    digits: Ids
    """[text, column]."""

    @classmethod
    def of(cls, adapter: Adapter, questions: Sequence[str], n_digits: int, rng: np.random.Generator) -> Probe:
        """Answers need not be right."""
        answers = ["".join(map(str, _digits(n_digits, rng))) for _ in questions]
        try:
            inputs, labels = encoded(adapter, list(zip(questions, answers, strict=True)))
        except HeadcountError as error:
            what = f"encode() fails on {questions[0]!r} with the answer {answers[0]!r}, which is not right"
            raise InputError(
                what, "it should take any digits, so that it can be seen where they go", error.what
            ) from error
        if labels.dim() != 2:
            raise InputError("encode() made labels of classes for a task of sequences", "[row, position] is needed")
        digits = np.array([list(map(int, reversed(answer))) for answer in answers])
        return cls(tuple(map(_ids, inputs)), _ids(labels), digits)

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the inputs."""
        return tuple(each.shape[1] for each in self.inputs)

    @property
    def decoder(self) -> int:
        """The input that most of the answer stands in; if it is in none, the last."""
        n_found = [len(set(_places(ids, self.digits)) - {-1}) for ids in self.inputs]
        return n_found.index(max(n_found)) if any(n_found) else len(n_found) - 1

    @property
    def fed(self) -> Places:
        """Which column each position of the decoder's input holds."""
        return _places(self.inputs[self.decoder], self.digits)

    @property
    def predicted(self) -> Places:
        """Which column is to be predicted at each position."""
        if self.labels.shape[1] == self.widths[self.decoder]:
            return _places(self.labels, self.digits)
        fed = self.fed  # logits of some positions only: each digit is predicted where the one before it is fed
        found = np.append(fed[1:], -1)
        if len(left := set(range(self.digits.shape[1])) - set(found)) == 1 and (fed >= 0).any():
            found[np.flatnonzero(fed >= 0)[-1]] = left.pop()
        return found

    def with_zeros(self, places: Places, ids: Ids, filled: Places) -> Places:
        """Also positions that hold a 0 here and a digit further left in longer answers."""
        known = np.flatnonzero(places >= 0)
        zero = [ids[self.digits[:, places[p]] == 0, p] for p in known]
        zeros = np.concatenate(zero)[:1] if zero else np.arange(0)
        is_zero = (ids == zeros).all(axis=0) if len(zeros) else np.zeros(ids.shape[1], dtype=bool)
        return np.where((places < 0) & is_zero & (filled >= self.digits.shape[1]), filled, places)


def adapter_name(adapter: Adapter) -> str:
    """As a message has it."""
    return adapter.origin.rpartition("/")[2] or type(adapter).__name__


def _digits(n: int, rng: np.random.Generator) -> list[int]:
    """Of a random number with so many."""
    return [int(rng.integers(int(n > 1 and i == 0), 10)) for i in range(n)]


def _random_questions(task: SequenceTask, shape: str, rng: np.random.Generator) -> Examples:
    """Examples with a digit for each 0 of this shape."""
    found = list[Examples]()
    for _ in range(MOST_TRIES * N_PROBES):
        text = re.sub("0+", lambda zeros: "".join(map(str, _digits(len(zeros.group()), rng))), shape)
        with suppress(InputError):
            found += [row for row in task.parse(text) if task.show(row) == text]
        if len(found) == N_PROBES:
            break
    if len(found) < 2:
        raise InputError(f"no examples of {task.name} look like {shape}", ONE_TOKEN)
    return np.stack(found)


def _ids(tensor: Tensor) -> Ids:
    """[row, position], equal where what stands there is equal; no positions of a tensor that has none."""
    values = tensor.detach().cpu().numpy()
    if values.ndim < 2:
        return np.zeros((len(values), 0), dtype=np.int64)
    flat = values.reshape(values.shape[0] * values.shape[1], -1)
    return np.unique(flat, axis=0, return_inverse=True)[1].reshape(values.shape[:2])


def _n_values(columns: Ids) -> NDArray[np.int64]:
    """How many different values each column has."""
    return np.asarray((np.diff(np.sort(columns, axis=0), axis=0) != 0).sum(axis=0))


def _places(ids: Ids, tokens: Ids) -> Places:
    """The token that goes one to one with each position's ids; -1 if none does."""
    known = {code: t for t, code in enumerate(map(_code, tokens.T)) if any(code)}
    return np.array([known.get(_code(column), -1) for column in ids.T], dtype=np.int64)


def _code(column: Ids) -> bytes:
    """The same for columns that go one to one: values are numbered as they come; zeros if it never changes."""
    _, first, which = np.unique(column, return_index=True, return_inverse=True)
    return first.argsort().argsort()[which].astype(np.uint8).tobytes()


def _question_places(inputs: Sequence[Ids], tokens: Ids) -> tuple[int, Places]:
    """Which input holds the question, and which of its tokens each position is."""
    found = [_places(ids, tokens) for ids in inputs]
    source = max(range(len(found)), key=lambda i: len(set(found[i]) - {-1}))
    places, changes = found[source], (tokens != tokens[0]).any(axis=0)
    if missing := set(np.flatnonzero(changes)) - set(places):
        raise InputError(
            f"where the {len(missing)} tokens of a question stand in what encode() makes is not known: no position "
            f"goes one to one with them",
            ONE_TOKEN,
        )
    is_fixed = (inputs[source] == inputs[source][0]).all(axis=0)
    for t in np.flatnonzero(~changes):  # such as an operator: what is alone between its neighbours
        ends = [np.flatnonzero(places == near) for near in (t - 1, t + 1)]
        if all(map(len, ends)):
            low, high = sorted(int(end[0]) for end in ends)
            between = [p for p in range(low + 1, high) if is_fixed[p]]
            if len(between) == 1:
                places[between[0]] = t
    return source, places
