"""Where does each head attend? On one example, on average over a held-out set, or on a text that any model is given.

Of a run every weight is kept (`AttentionPatterns`). Other models have many heads, and texts are long, so theirs are
small enough to be kept and drawn at once (`AttentionSummary`): a head's weights are pooled to a few bins of
neighbouring tokens, the mean over a bin's queries of the weight on a bin's keys, so that rows sum to 1 (in a short text
a bin is a token). Of the weights themselves come the measures that `role_measures` defines, as means over queries, and
the names of heads that stand out by one of them (`roles`; on one text, without controls).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.head_measures import Matrix, matrix_of, rounded
from headcount.analysis.role_measures import (
    ROLES,
    SPREAD,
    RoleSums,
    in_clusters,
    marks_of,
    only_row,
    site_measures,
    stacks_of,
)
from headcount.analysis.roles import TEXTS, Standing, name_heads
from headcount.data.dataset import TokenizedText
from headcount.errors import InputError
from headcount.experiments.task_attention import TaskAttention
from headcount.heads import HeadId, HeadSite
from headcount.hooks.attention import Weights, attention_of, read_attention
from headcount.hooks.sites import Sites
from headcount.models.reading import WEIGHTINGS, AttentionChunk, ValueNorms
from headcount.results import Contradiction, Count, HeadName, Result, Share, Size, misnamed, unequal
from headcount.runs.run import Prediction, Run, predict_equal_lengths
from headcount.tasks.base import ClassTask, SequenceTask

MOST_BINS = 32
"""Bins on an axis."""
MOST_CELLS = 150_000
"""Of all heads together: more than 146 heads get wider bins, so that a result stays under 1 MB."""
PARTS = 10_000
"""Pooled weights are whole numbers of these parts of 1: half as long in JSON as decimals."""
MEASURES = (*ROLES, *SPREAD)
Array = NDArray[np.floating[Any]]
Moments = Mapping[HeadSite, tuple[Array, Array | None]]
Labels = tuple[str, ...]


@dataclass(frozen=True)
class Axis:
    """The tokens of a stack, which its queries and keys stand for."""

    stack: str
    tokens: tuple[str, ...]
    special: tuple[int, ...] | None
    """Where special tokens are; None if nobody said."""
    edges: tuple[int, ...]
    """Bin i holds the tokens from edges[i] to just before edges[i + 1]."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the bins and the special tokens with the number of tokens."""
        if self.edges[:1] != (0,) or self.edges[-1] != len(self.tokens) or list(self.edges) != sorted(set(self.edges)):
            yield "edges", f"ascending, from 0 to {len(self.tokens)}, the number of tokens"
        if any(not 0 <= place < len(self.tokens) for place in self.special or ()):
            yield "special", f"places of the {len(self.tokens)} tokens"


@dataclass(frozen=True, kw_only=True)
class HeadAttention:
    """One head. A measure is None where it has no meaning, or no query sees what it is about."""

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
    named: tuple[Standing, ...] = ()
    """What it stands out for against the other heads, most first."""
    weights: Matrix = ()
    """[query][key], of a run."""
    deviation: Matrix | None = None
    """Standard deviation over examples; None for a single example."""
    pooled: tuple[tuple[int, ...], ...] = ()
    """[query bin][key bin], in ten-thousandths, of a text."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the head's names; attention weights are shares of 1, and each row of them adds up to at most 1."""
        yield from misnamed(self)
        for name, whole in (("weights", 1.0), ("pooled", float(PARTS))):
            rows = getattr(self, name)
            if len({len(row) for row in rows}) > 1:
                yield name, "a matrix, with rows of one length"
            elif any(min(row, default=0.0) < 0 or sum(row) > whole * 1.01 for row in rows):
                yield name, f"shares of {whole:g}, of which no row has more"
        if self.deviation is not None and [*map(len, self.deviation)] != [*map(len, self.weights)]:
            yield "deviation", "the shape of weights"

    @property
    def array(self) -> NDArray[np.float64]:
        """Weights, whole or pooled; each row sums to 1, but for rounding."""
        return np.array(self.pooled) / PARTS if self.pooled else np.array(self.weights)


@dataclass(frozen=True)
class SiteAttention:
    """The heads of one attention block, and the tokens that are its queries and keys or, of a text, their stacks."""

    site: str
    stack: str
    layer: int
    kind: str
    queries: tuple[str, ...] | str
    keys: tuple[str, ...] | str
    heads: tuple[HeadAttention, ...]
    n_queries: Mapping[str, int] = field(default_factory=dict)
    """How many queries each measure is a mean over, of a text."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the site with its heads, and the weights with the tokens that they are between."""
        yield from unequal(self, site=f"{self.stack}.{self.layer}.{self.kind}")
        if any(each.head.rpartition(".")[0] != self.site for each in self.heads):
            yield "heads", f"heads of {self.site}"
        shape = len(self.queries), len(self.keys)
        is_whole = not isinstance(self.queries, str) and not isinstance(self.keys, str)
        if is_whole and any((len(each.weights), *map(len, each.weights[:1])) != shape for each in self.heads):
            yield "heads", f"weights between {shape[0]} queries and {shape[1]} keys"


@dataclass(frozen=True, kw_only=True)
class Attention(Result):
    """Every head of a model; what there is for one source alone is in the JSON of that source alone."""

    ROWS: ClassVar[tuple[str, ...]] = ("sites.heads",)
    SCHEMA: ClassVar[int] = 2
    ABSENT: ClassVar[tuple[str, ...]]
    """Fields of the other source."""
    name: str
    weights_sha256: str
    title: str
    """What was predicted, or averaged over; or the text, shortened."""
    n: Count = 0
    """Examples averaged over."""
    n_tokens: Count = 0
    """Of all stacks."""
    axes: tuple[Axis, ...] = ()
    sites: tuple[SiteAttention, ...]
    example: str | None = None
    note: str = ""
    """What else there is to know of the text as the model takes it."""
    predicted: str | None = None
    right: str | None = None
    """The model's own answer and the right one, where they are known."""
    probability: Share | None = None
    """That the model gave to its whole answer."""
    correct: bool | None = None
    explanation: str | None = None
    """What is wrong with the answer; empty if it is right."""
    weighting: str = WEIGHTINGS[0]
    """Whether a key counts by its attention weight or by its share of norms."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the answer with the verdict on it, and the axes with the tokens and the pooled weights."""
        if self.correct is not None and self.correct == bool(self.explanation):
            yield "correct", "true if there is no explanation of what is wrong, and false otherwise"
        if self.axes:
            yield from unequal(self, n_tokens=sum(len(axis.tokens) for axis in self.axes))
        bins: dict[object, int] = {axis.stack: len(axis.edges) - 1 for axis in self.axes}
        for site in self.sites:
            if bool(bins) != isinstance(site.queries, str) or bool(bins) != isinstance(site.keys, str):
                yield "sites", f"the {'stacks' if bins else 'tokens'} of the queries and the keys of {site.site}"
                continue
            shape = bins.get(site.queries), bins.get(site.keys)
            if bins and any((len(each.pooled), *map(len, each.pooled[:1])) != shape for each in site.heads):
                yield "sites", f"weights of {site.site} in the bins of its axes"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        told = super().to_dict()
        for part in (told, *told["sites"], *(head for site in told["sites"] for head in site["heads"])):
            for name in self.ABSENT:
                part.pop(name, None)
        return told

    def sites_of(self, stack: str, kind: str) -> list[SiteAttention]:
        """The sites of one kind, layer after layer."""
        found = [site for site in self.sites if (site.stack, site.kind) == (stack, kind)]
        if not found:
            raise InputError(f"{self.name} has no {stack} {kind}-attention", self._has)
        return found

    def find(self, head: str | HeadId) -> tuple[SiteAttention, HeadAttention]:
        """A head, and the site that it is at."""
        name = str(HeadId.parse(str(head)))
        for site in self.sites:
            for each in site.heads:
                if each.head == name:
                    return site, each
        raise InputError(f"no head {name!r} in {self.name}", self._has)

    @property
    def _has(self) -> str:
        sizes = (f"{site.site} ({len(site.heads):,} head{'s' * (len(site.heads) != 1)})" for site in self.sites)
        return f"it has {', '.join(sizes)}"

    def axes_of(self, site: SiteAttention) -> tuple[Axis, Axis]:
        """What stands down and across: queries and keys."""
        found: dict[object, Axis] = {axis.stack: axis for axis in self.axes}
        return found[site.queries], found[site.keys]


@dataclass(frozen=True, kw_only=True)
class AttentionPatterns(Attention):
    """Of a run: every weight, on one example or on average."""

    ABSENT = ("n_tokens", "axes", "note", *MEASURES, "named", "pooled", "n_queries")

    @property
    def verdict(self) -> str:
        """`374+814 = 0188 (wrong: 1000s: 0, should be 1; probability 0.9312)`, in full; of averages, their title."""
        if self.example is None or self.correct is None:  # an average, or a result of before
            return self.title
        told = "right" if self.correct else f"wrong: {self.explanation}"
        return f"{self.example} = {self.predicted} ({told}; probability {self.probability:.4f})"


@dataclass(frozen=True, kw_only=True)
class AttentionSummary(Attention):
    """Of any model on one text: pooled weights, and measures of the weights themselves."""

    ABSENT = ("n", "example", "probability", "correct", "explanation", "weighting", "weights", "deviation")
    INDENT: ClassVar[int | None] = None  # a line per number would take several times as much

    def pattern(self, head: str | HeadId, weights: Array, most: int) -> tuple[tuple[Axis, Axis], Array]:
        """A head's own weights [query, key] in at most so many bins, and its axes with these bins."""
        axes = self.axes_of(self.find(head)[0])
        queries, keys = (replace(axis, edges=_edges(len(axis.tokens), most)) for axis in axes)
        n_queries, n_keys = len(queries.tokens), len(keys.tokens)
        if weights.shape != (n_queries, n_keys):
            raise InputError(f"weights of {weights.shape} for {n_queries} queries and {n_keys} keys")
        return (queries, keys), _pooled(weights, queries, keys)


# --- runs: while they decode their own answer, or on average ----------------------------------------------------------


def patterns_on(run: Run, text: str, *, norm_weighted: bool = False) -> AttentionPatterns:
    """Every head on one example, while the model gives its own answer."""
    with ValueNorms(run.model, norm_weighted) as norms:
        found = run.predict_one(text)
    shares = {site: norms.share(site, weights[None])[0] for site, weights in found.weights.items()}
    return _patterns_of(run, found, shares, WEIGHTINGS[norm_weighted])


def patterns_on_each(run: Run, texts: Sequence[str]) -> tuple[AttentionPatterns, ...]:
    """The same on many examples, in their order; those with equally many tokens go through the model together."""
    examples = [run.task.parse(text) for text in texts]
    task = cast(ClassTask | SequenceTask, run.task)
    sizes = [(example.shape[1:], task.encode(example).source.shape[1]) for example in examples]
    found = dict[int, AttentionPatterns]()
    for size in dict.fromkeys(sizes):
        alike = [i for i, each in enumerate(sizes) if each == size]
        together = np.concatenate([examples[i] for i in alike])
        for i, each in zip(alike, predict_equal_lengths(run.model, run.task, together), strict=True):
            found[i] = _patterns_of(run, each, each.weights, WEIGHTINGS[False])
    return tuple(found[i] for i in range(len(texts)))


def _patterns_of(run: Run, found: Prediction, weights: Mapping[HeadSite, Tensor], weighting: str) -> AttentionPatterns:
    moments = {site: (each.numpy(), None) for site, each in weights.items()}
    steps = tuple(f"{given} → {token}" for given, token in zip(found.decoder_input, found.output_tokens, strict=True))
    verdict = f"wrong, should be {found.right}" if found.explanation else "right"
    return AttentionPatterns(
        name=run.name,
        weights_sha256=run.weights_sha256,
        title=f"{shortened(found.example)} = {found.predicted} ({verdict}; probability {found.probability:.4f})",
        n=1,
        sites=_sites(run, moments, found.source, found.decoder_input, steps),
        example=found.example,
        predicted=found.predicted,
        right=found.right,
        probability=found.probability,
        correct=not found.explanation,
        explanation=found.explanation,
        weighting=weighting,
    )


def shortened(example: str) -> str:
    """An example that fits into a title."""
    return example if len(example) <= 60 else f"{example[:40]} … {example[-15:]}"


def average_patterns(model: TaskAttention, split: str, *, norm_weighted: bool = False) -> AttentionPatterns:
    """Every head on average over a held-out set: by column, or over the longest sequences, by place."""
    examples = model.task.split(split)
    alike = model.aligned_examples(examples)
    n, sums = len(alike.rows), dict[HeadSite, tuple[Array, Array]]()

    def add(chunk: AttentionChunk) -> None:
        """Sums of the weights and of their squares."""
        weights = chunk.weights.cpu().double()
        shape = weights.shape[1], *chunk.shape
        for whole, part in zip(
            sums.setdefault(chunk.site, (np.zeros(shape), np.zeros(shape))), (weights, weights * weights), strict=True
        ):
            whole[:, chunk.queries, chunk.keys] += part.sum(dim=0).numpy()

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
    """Means and deviations as results, with their tokens: what is fed, and `steps` from there to what is predicted."""
    found = []
    for site in model.sites:
        mean, deviation = moments[site]
        heads = tuple(
            HeadAttention(
                head=str(head),
                short=head.short,
                weights=matrix_of(mean[i]),
                deviation=None if deviation is None else matrix_of(deviation[i]),
            )
            for i, head in enumerate(model.heads_at(site))
        )
        queries = steps if site.stack == "decoder" else source
        keys = decoder_input if (site.stack, site.kind) == ("decoder", "self") else source
        found.append(SiteAttention(str(site), site.stack, site.layer, site.kind, queries, keys, heads))
    return tuple(found)


def patterns_on_inputs(
    name: str, digest: str, model: nn.Module, sites: Sites, rows: Sequence[TokenizedText], text: str | None = None
) -> AttentionPatterns:
    """Every head of any model on one row of inputs, or averaged over several that are equally long."""
    sizes = {tuple((stack, len(labels)) for stack, labels in row.tokens.items()) for row in rows}
    if len(sizes) != 1:
        raise InputError("inputs of several lengths have no average position by position", "give one length at a time")
    sums = dict[HeadSite, tuple[Array, Array]]()
    for row in rows:
        for site, weights in attention_of(model, sites, *row.inputs).items():
            own = only_row(weights).float().nan_to_num().cpu().double().numpy()
            first, second = sums.get(site, (np.zeros_like(own), np.zeros_like(own)))
            sums[site] = first + own, second + own * own
    n, found = len(rows), list[SiteAttention]()
    labels = {
        stack: tuple(each) if n == 1 else tuple(map(str, range(len(each)))) for stack, each in rows[0].tokens.items()
    }
    for site in sites:
        mean, square = (each / n for each in sums[site])
        deviation = np.sqrt(np.maximum(square - mean**2, 0))
        heads = tuple(
            HeadAttention(
                head=str(head),
                short=head.short,
                weights=matrix_of(mean[i]),
                deviation=None if n == 1 else matrix_of(deviation[i]),
            )
            for i, head in enumerate(sites[site].heads)
        )
        queries, keys = (labels[stack] for stack in stacks_of(site))
        found.append(SiteAttention(str(site), site.stack, site.layer, site.kind, queries, keys, heads))
    title = shortened(text or " ".join(next(iter(labels.values())))) if n == 1 else f"average over {n:,} inputs"
    weighting, example = WEIGHTINGS[False], text if n == 1 else None
    return AttentionPatterns(
        name=name, weights_sha256=digest, title=title, n=n, sites=tuple(found), example=example, weighting=weighting
    )


# --- any model: on a text that it is given ----------------------------------------------------------------------------


def attention_summary(
    name: str,
    digest: str,
    model: nn.Module,
    sites: Sites,
    inputs: Sequence[Tensor],
    tokens: Mapping[str, Sequence[str]],
    special: Mapping[str, Sequence[bool]] | None = None,
    *,
    separators: Collection[str] = (),
    text: str | None = None,
) -> AttentionSummary:
    """Every head on one text: `inputs` of one row, and the tokens of "layer", or of "encoder" and of "decoder".

    `special` says of every token whether it is; where nobody knows, it is left out. `separators` are tokens.
    """
    most = max(1, min(MOST_BINS, isqrt(MOST_CELLS // len(sites.heads))))
    sizes, axes = {stack: len(labels) for stack, labels in tokens.items()}, dict[str, Axis]()
    for stack, n in sizes.items():
        mask = (special or {}).get(stack)
        if mask is not None and len(mask) != n:
            raise InputError(f"a mask of {len(mask)} for the {n} tokens of {stack!r}", "give one truth value per token")
        marked = None if mask is None else tuple(i for i, is_special in enumerate(mask) if is_special)
        axes[stack] = Axis(stack, tuple(tokens[stack]), marked, _edges(n, most))
    found, sums = dict[HeadSite, SiteAttention](), dict[HeadSite, dict[str, RoleSums]]()
    marks = marks_of(tokens, special, separators)

    def show(site: HeadSite, weights: Weights) -> None:
        measured = site_measures(site, weights, marks)
        sums[site] = {role: in_clusters(each, 1) for role, each in measured.items()}
        queries, keys = (axes[stack] for stack in stacks_of(site))
        heads = []
        for i, (head, w) in enumerate(zip(sites[site].heads, only_row(weights), strict=True)):
            whole = w.float().nan_to_num().cpu().double().numpy()
            parts = (PARTS * _pooled(whole, queries, keys)).round().astype(int)
            means = {role: each.mean(i) for role, each in measured.items()}
            told: dict[str, Any] = {role: None if mean is None else rounded(mean, 4) for role, mean in means.items()}
            pooled = tuple(map(tuple, parts.tolist()))
            heads.append(HeadAttention(head=str(head), short=head.short, **told, pooled=pooled))
        n = {role: int(each.counted.sum()) for role, each in measured.items()}
        found[site] = SiteAttention(str(site), site.stack, site.layer, site.kind, *stacks_of(site), tuple(heads), n)

    read_attention(model, sites, inputs, show)
    named = {each.head: tuple(each.named) for each in name_heads(sites, {TEXTS: sums})}
    for site, shown in found.items():
        heads = tuple(replace(head, named=named[head.head]) for head in shown.heads)
        found[site] = replace(shown, heads=heads)
    words = [token for axis in axes.values() for token in axis.tokens] if text is None else text.split()
    return AttentionSummary(
        name=name,
        weights_sha256=digest,
        title=shortened(" ".join(words)),
        n_tokens=sum(sizes.values()),
        axes=tuple(axes.values()),
        sites=tuple(found[site] for site in sites),
    )


def head_pattern(model: nn.Module, sites: Sites, inputs: Sequence[Tensor], head: HeadId) -> NDArray[np.float32]:
    """One head's own weights [query, key] on one text."""
    (place,) = sites.head_slots((head,))[head.site]
    found: list[NDArray[np.float32]] = []

    def show(site: HeadSite, weights: Weights) -> None:
        if site == head.site:
            found.append(only_row(weights)[place].float().nan_to_num().cpu().numpy())

    read_attention(model, sites, inputs, show)
    return found[-1]


def _edges(n: int, most: int) -> tuple[int, ...]:
    """Where at most so many bins of n tokens begin and end."""
    return tuple(np.linspace(0, n, min(n, most) + 1).round().astype(int).tolist())


def _pooled(weights: Array, queries: Axis, keys: Axis) -> Array:
    by_key = np.add.reduceat(weights, keys.edges[:-1], axis=1)
    mean: Array = np.add.reduceat(by_key, queries.edges[:-1], axis=0) / np.diff(queries.edges)[:, None]
    return mean
