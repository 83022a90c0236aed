"""Where does each head attend? Read its attention weights on one example, on a text, or averaged over a held-out set.

`AttentionPatterns` stores every attention weight, as the models that headcount trains are small. Larger models and
longer texts get an `AttentionSummary` (attention_summary.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.attention_measures import Matrix, matrix_of
from headcount.analysis.role_measures import (
    SPREAD,
    only_row,
    stacks_of,
)
from headcount.analysis.roles import RoleScore
from headcount.attention_roles import ROLES
from headcount.data.dataset import TokenizedText
from headcount.errors import InputError
from headcount.experiments.task_attention import TaskAttention
from headcount.heads import HeadId, HeadSite
from headcount.hooks.attention import attention_of
from headcount.hooks.sites import Sites
from headcount.models.reading import WEIGHTINGS, AttentionChunk, ValueNorms
from headcount.models.transformer import DecoderOnly
from headcount.results import Contradiction, Count, HeadName, Result, Share, Size, misnamed, unequal
from headcount.runs.run import Prediction, Run, predict_equal_lengths
from headcount.tasks.base import ClassTask, SequenceTask

PARTS = 10_000
"""Pooled attention weights are stored as integers from 0 to PARTS, where PARTS stands for 1. This halves the JSON."""
MEASURES = (*ROLES, *SPREAD)
Array = NDArray[np.floating[Any]]
Moments = Mapping[HeadSite, tuple[Array, Array | None]]
Labels = tuple[str, ...]


@dataclass(frozen=True)
class Axis:
    """The tokens of one stack (encoder or decoder), and the bins into which neighbouring tokens are pooled."""

    stack: str
    tokens: tuple[str, ...]
    special: tuple[int, ...] | None
    """Indices of special tokens, such as [CLS]; None if it is unknown which tokens are special."""
    edges: tuple[int, ...]
    """Boundaries of the bins of neighbouring tokens: bin i holds the tokens edges[i] to edges[i + 1] - 1."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the bin boundaries or the special tokens do not fit the number of tokens."""
        if self.edges[:1] != (0,) or self.edges[-1] != len(self.tokens) or list(self.edges) != sorted(set(self.edges)):
            yield "edges", f"ascending numbers from 0 to {len(self.tokens)}, the number of tokens"
        if any(not 0 <= position < len(self.tokens) for position in self.special or ()):
            yield "special", f"positions from 0 to {len(self.tokens) - 1}, as there are {len(self.tokens)} tokens"


@dataclass(frozen=True, kw_only=True)
class HeadAttention:
    """The attention weights of one head, and measures of them such as the entropy.

    A measure is None if it is undefined, for example because no query can see the kind of key that the measure counts.
    """

    head: HeadName
    short: str
    first: Share | None = None
    previous: Share | None = None
    itself: Share | None = None
    next: Share | None = None
    farthest: Share | None = None
    special: Share | None = None
    separator: Share | None = None
    duplicate: Share | None = None
    induction: Share | None = None
    matching: Share | None = None
    entropy_share: Share | None = None
    distance: Size | None = None
    named: tuple[RoleScore, ...] = ()
    """Roles by which the head stands out from other heads, such as `previous` (token); the strongest role first."""
    weights: Matrix = ()
    """Attention weights [query][key]; empty in an `AttentionSummary`, which stores `pooled` weights only."""
    deviation: Matrix | None = None
    """Standard deviation of each weight over examples, [query][key]; None for a single example."""
    pooled: tuple[tuple[int, ...], ...] = ()
    """Pooled weights [query bin][key bin] as integers, where `PARTS` stands for 1; empty in `AttentionPatterns`."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction for a wrong head name, negative weights, rows with a sum above 1, or unequal shapes."""
        yield from misnamed(self)
        for name, whole in (("weights", 1.0), ("pooled", float(PARTS))):
            rows = getattr(self, name)
            if len({len(row) for row in rows}) > 1:
                yield name, "a matrix with rows of equal length"
            elif any(min(row, default=0.0) < 0 or sum(row) > whole * 1.01 for row in rows):
                yield name, f"numbers of at least 0, with rows that sum to at most {whole:g}"
        if self.deviation is not None and [*map(len, self.deviation)] != [*map(len, self.weights)]:
            yield "deviation", "a matrix of the same shape as weights"

    @property
    def array(self) -> NDArray[np.float64]:
        """Return the attention weights [query, key], or the pooled weights if only these are stored."""
        return np.array(self.pooled) / PARTS if self.pooled else np.array(self.weights)


@dataclass(frozen=True)
class SiteAttention:
    """The attention of all heads of one attention block.

    `queries` and `keys` are the tokens. In an `AttentionSummary`, they are instead the names of the stacks that have
    these tokens, such as `encoder`.
    """

    site: str
    stack: str
    layer: int
    kind: str
    queries: tuple[str, ...] | str
    keys: tuple[str, ...] | str
    heads: tuple[HeadAttention, ...]
    n_queries: Mapping[str, int] = field(default_factory=dict)
    """For each measure of attention, the number of queries it is averaged over; empty in `AttentionPatterns`."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the block's name, its heads and the shapes of their weights disagree."""
        yield from unequal(self, site=f"{self.stack}.{self.layer}.{self.kind}")
        if any(head.head.rpartition(".")[0] != self.site for head in self.heads):
            yield "heads", f"only heads of {self.site}"
        shape = len(self.queries), len(self.keys)
        is_whole = not isinstance(self.queries, str) and not isinstance(self.keys, str)
        if is_whole and any((len(head.weights), *map(len, head.weights[:1])) != shape for head in self.heads):
            yield "heads", f"heads with weights between {shape[0]} queries and {shape[1]} keys"


@dataclass(frozen=True, kw_only=True)
class Attention(Result):
    """The attention of every head of a model: the common base of `AttentionPatterns` and `AttentionSummary`.

    Each of the two classes leaves fields out of its JSON that only the other one uses.
    """

    ROWS: ClassVar[tuple[str, ...]] = ("sites.heads",)
    SCHEMA: ClassVar[int] = 2
    ABSENT: ClassVar[tuple[str, ...]]
    """Names of the fields that this class does not use and leaves out of its JSON."""
    name: str
    weights_sha256: str
    title: str
    """Title of the figure: an example with its answer, a description of the averaged examples, or a shortened text."""
    n: Count = 0
    """Number of examples that the attention weights are averaged over."""
    n_tokens: Count = 0
    """Number of tokens, added up over all stacks (encoder and decoder)."""
    axes: tuple[Axis, ...] = ()
    sites: tuple[SiteAttention, ...]
    example: str | None = None
    note: str = ""
    """Remark on how the model reads the text, such as a shortened input; empty if there is none."""
    predicted: str | None = None
    """The model's answer, as text; None if unknown."""
    right: str | None = None
    """The right answer, as text; None if unknown."""
    probability: Share | None = None
    """Probability that the model assigns to its whole answer."""
    correct: bool | None = None
    explanation: str | None = None
    """What is wrong with the answer, such as `1000s: 0, should be 1`; empty if the answer is right, None if unknown."""
    weighting: str = WEIGHTINGS[0]
    """What is shown as attention: attention weights, or these times the norms of the value vectors."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the answer and its verdict, or the tokens and the shapes of weights, disagree."""
        if self.correct is not None and self.correct == bool(self.explanation):
            yield "correct", "true if explanation is empty, and false otherwise"
        if self.axes:
            yield from unequal(self, n_tokens=sum(len(axis.tokens) for axis in self.axes))
        bins: dict[object, int] = {axis.stack: len(axis.edges) - 1 for axis in self.axes}
        for site in self.sites:
            if bool(bins) != isinstance(site.queries, str) or bool(bins) != isinstance(site.keys, str):
                yield "sites", f"{'names of stacks' if bins else 'tokens'} as queries and keys of {site.site}"
                continue
            shape = bins.get(site.queries), bins.get(site.keys)
            if bins and any((len(head.pooled), *map(len, head.pooled[:1])) != shape for head in site.heads):
                yield "sites", f"pooled weights of {site.site} with one row and column per bin of its axes"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON, without the fields that this class does not use."""
        data = super().to_dict()
        for part in (data, *data["sites"], *(head for site in data["sites"] for head in site["heads"])):
            for name in self.ABSENT:
                part.pop(name, None)
        return data

    def sites_of(self, stack: str, kind: str) -> list[SiteAttention]:
        """Return the attention blocks of one stack (`encoder`) and kind of attention (`self`), by layer."""
        sites = [site for site in self.sites if (site.stack, site.kind) == (stack, kind)]
        if not sites:
            raise InputError(f"{self.name} has no {stack} {kind}-attention", self._inventory)
        return sites

    def find(self, head: str | HeadId) -> tuple[SiteAttention, HeadAttention]:
        """Return the attention block and the head with the given name, such as `E1H2`."""
        name = str(HeadId.parse(str(head)))
        for site in self.sites:
            for candidate in site.heads:
                if candidate.head == name:
                    return site, candidate
        raise InputError(f"no head {name!r} in {self.name}", self._inventory)

    @property
    def _inventory(self) -> str:
        sizes = (f"{site.site} ({len(site.heads):,} head{'s' * (len(site.heads) != 1)})" for site in self.sites)
        return f"it has {', '.join(sizes)}"

    def axes_of(self, site: SiteAttention) -> tuple[Axis, Axis]:
        """Return the axes (tokens and bins of tokens) of the queries and of the keys of an attention block."""
        axes: dict[object, Axis] = {axis.stack: axis for axis in self.axes}
        return axes[site.queries], axes[site.keys]


@dataclass(frozen=True, kw_only=True)
class AttentionPatterns(Attention):
    """All attention weights of a model on one example, or averaged over examples."""

    ABSENT = ("n_tokens", "axes", "note", *MEASURES, "named", "pooled", "n_queries")

    @property
    def verdict(self) -> str:
        """Return the example, the model's answer and whether it is right as one line; the title for averaged examples.

        For instance, `374+814 = 0188 (wrong: 1000s: 0, should be 1; probability 0.9312)`.
        """
        if self.example is None or self.correct is None:
            return self.title
        verdict = "right" if self.correct else f"wrong: {self.explanation}"
        answer = f"{self.predicted} ("
        sign = self.title.removeprefix(shortened(self.example)).partition(answer)[0]
        return f"{self.example}{sign}{answer}{verdict}; probability {self.probability:.4f})"


def patterns_on(run: Run, text: str, *, norm_weighted: bool = False) -> AttentionPatterns:
    """Return the attention weights of every head on one example, while the model decodes its own answer to it."""
    with ValueNorms(run.model, norm_weighted) as norms:
        prediction = run.predict_one(text)
    shares = {site: norms.share(site, weights[None])[0] for site, weights in prediction.weights.items()}
    return _patterns_of(run, prediction, shares, WEIGHTINGS[norm_weighted])


def patterns_on_each(run: Run, texts: Sequence[str]) -> tuple[AttentionPatterns, ...]:
    """Return the attention weights of every head on each of several examples, one result per example.

    Examples with equally many tokens share forward passes, so this is faster than one `patterns_on` per example.
    """
    examples = [run.task.parse(text) for text in texts]
    task = cast(ClassTask | SequenceTask, run.task)
    sizes = [(example.shape[1:], task.encode(example).source.shape[1]) for example in examples]
    patterns = dict[int, AttentionPatterns]()
    for size in dict.fromkeys(sizes):
        rows = [i for i in range(len(sizes)) if sizes[i] == size]
        predictions = predict_equal_lengths(run.model, run.task, np.concatenate([examples[i] for i in rows]))
        for i, prediction in zip(rows, predictions, strict=True):
            patterns[i] = _patterns_of(run, prediction, prediction.weights, WEIGHTINGS[False])
    return tuple(patterns[i] for i in range(len(texts)))


def _patterns_of(
    run: Run, prediction: Prediction, weights: Mapping[HeadSite, Tensor], weighting: str
) -> AttentionPatterns:
    moments = {site: (of_site.numpy(), None) for site, of_site in weights.items()}
    fed, output = prediction.decoder_input, prediction.output_tokens
    steps = tuple(f"{given} → {token}" for given, token in zip(fed, output, strict=True))
    verdict = f"wrong, should be {prediction.right}" if prediction.explanation else "right"
    answer = f"{prediction.predicted} ({verdict}; probability {prediction.probability:.4f})"
    return AttentionPatterns(
        name=run.name,
        weights_sha256=run.weights_sha256,
        title=f"{shortened(prediction.example)}{prediction.sign}{answer}",
        n=1,
        sites=_sites(run, moments, prediction.source, fed, steps),
        example=prediction.example,
        predicted=prediction.predicted,
        right=prediction.right,
        probability=prediction.probability,
        correct=not prediction.explanation,
        explanation=prediction.explanation,
        weighting=weighting,
    )


def shortened(example: str) -> str:
    """Shorten the text of an example to about 60 characters, to fit into a title."""
    return example if len(example) <= 60 else f"{example[:40]} … {example[-15:]}"


def average_patterns(model: TaskAttention, split: str, *, norm_weighted: bool = False) -> AttentionPatterns:
    """Average the attention weights of every head over a split (such as `test`), position by position.

    If examples differ in length, only the longest ones are averaged, because they have no padding.
    """
    examples = model.task.split(split)
    alike = model.aligned_examples(examples)
    n, sums = len(alike.rows), dict[HeadSite, tuple[Array, Array]]()

    def add(chunk: AttentionChunk) -> None:
        """Add the attention weights of the next queries, and their squares, to the running sums."""
        weights = chunk.weights.cpu().double()
        shape = weights.shape[1], *chunk.shape
        totals = sums.setdefault(chunk.site, (np.zeros(shape), np.zeros(shape)))
        for total, values in zip(totals, (weights, weights * weights), strict=True):
            total[:, chunk.queries, chunk.keys] += values.sum(dim=0).numpy()

    model.read_attention(examples[alike.rows], add, norm_weighted=norm_weighted)
    moments = {
        site: (first / n, np.sqrt(np.maximum(second / n - (first / n) ** 2, 0)))
        for site, (first, second) in sums.items()
    }
    return AttentionPatterns(
        name=model.name,
        weights_sha256=model.weights_sha256,
        title=f"average over {alike.words}the {split} set (n = {n:,})",
        n=n,
        sites=_sites(model, moments, alike.source, alike.decoder_input, alike.steps),
        weighting=WEIGHTINGS[norm_weighted],
    )


def _sites(
    model: TaskAttention, moments: Moments, source: Labels, decoder_input: Labels, steps: Labels
) -> tuple[SiteAttention, ...]:
    """Combine the mean and deviation of attention weights with the tokens that label queries and keys.

    The queries of the decoder are labelled by `steps`: the token that is fed, and the token that is predicted from it.
    In the one stack of a decoder-only model, the decoder's input follows the source.
    """
    queries, keys = source, source
    if isinstance(model, Run) and isinstance(model.model, DecoderOnly):
        queries, keys = (*source, *steps), (*source, *decoder_input)
    return tuple(
        _site(
            site,
            model.heads_at(site),
            *moments[site],
            queries=steps if site.stack == "decoder" else queries,
            keys=decoder_input if (site.stack, site.kind) == ("decoder", "self") else keys,
        )
        for site in model.sites
    )


def _site(
    site: HeadSite, heads: Sequence[HeadId], mean: Array, deviation: Array | None, *, queries: Labels, keys: Labels
) -> SiteAttention:
    attention = tuple(
        HeadAttention(
            head=str(head),
            short=head.short,
            weights=matrix_of(mean[i]),
            deviation=None if deviation is None else matrix_of(deviation[i]),
        )
        for i, head in enumerate(heads)
    )
    return SiteAttention(str(site), site.stack, site.layer, site.kind, queries, keys, attention)


def patterns_on_inputs(
    name: str, digest: str, model: nn.Module, sites: Sites, rows: Sequence[TokenizedText], text: str | None = None
) -> AttentionPatterns:
    """Return the attention of every head of any model on one tokenized input, or averaged over equally long inputs."""
    sizes = {tuple((stack, len(labels)) for stack, labels in row.tokens.items()) for row in rows}
    if len(sizes) != 1:
        raise InputError(
            "attention weights are averaged position by position, and the inputs have different lengths",
            "give inputs with equally many tokens",
        )
    sums = dict[HeadSite, tuple[Array, Array]]()
    for row in rows:
        for site, weights in attention_of(model, sites, *row.inputs).items():
            values = only_row(weights).float().nan_to_num().cpu().double().numpy()
            first, second = sums.get(site, (np.zeros_like(values), np.zeros_like(values)))
            sums[site] = first + values, second + values * values
    n, results = len(rows), list[SiteAttention]()
    labels = {
        stack: tuple(tokens) if n == 1 else tuple(map(str, range(len(tokens))))
        for stack, tokens in rows[0].tokens.items()
    }
    for site in sites:
        mean, square = (total / n for total in sums[site])
        deviation = None if n == 1 else np.sqrt(np.maximum(square - mean**2, 0))
        queries, keys = (labels[stack] for stack in stacks_of(site))
        results.append(_site(site, sites[site].heads, mean, deviation, queries=queries, keys=keys))
    title = shortened(text or " ".join(next(iter(labels.values())))) if n == 1 else f"average over {n:,} inputs"
    weighting, example = WEIGHTINGS[False], text if n == 1 else None
    return AttentionPatterns(
        name=name, weights_sha256=digest, title=title, n=n, sites=tuple(results), example=example, weighting=weighting
    )
