"""Where does each head attend? On one example, on average over a held-out set, or on a text that any model is given.

Of a run every weight is kept (`AttentionPatterns`). Other models have many heads, and texts are long, so theirs are
small enough to be kept and drawn at once (`AttentionSummary`): a head's weights are pooled to a few bins of
neighbouring tokens, the mean over a bin's queries of the weight on a bin's keys, so that rows sum to 1 (in a short text
a bin is a token). Of the weights themselves a few measures are taken, as means over queries that see what is meant and
something else; what is visible is read off the weights:

    first, previous, itself, next, special      weight on that token or those tokens
    entropy share                               entropy / log n, where n keys are visible: 0 on one key, 1 even
    distance                                    mean |query - key|, in tokens
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.head_measures import WEIGHTINGS, Matrix, ValueNorms, matrix_of, rounded
from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.attention import Weights, read_attention
from headcount.hooks.gates import eval_mode
from headcount.hooks.sites import Sites
from headcount.models.attention import AttentionCache
from headcount.models.transformer import Classifier
from headcount.results import Result
from headcount.runs.run import Run
from headcount.tasks.base import ClassTask, SequenceTask, Tokens
from headcount.training.evaluation import BLOCK, on_device

MOST_BINS = 32
"""Bins on an axis."""
MOST_CELLS = 150_000
"""Of all heads together: more than 146 heads get wider bins, so that a result stays under 1 MB."""
PARTS = 10_000
"""Pooled weights are whole numbers of these parts of 1: half as long in JSON as decimals."""
MEASURES = ("first", "previous", "itself", "next", "special", "entropy_share", "distance")
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


@dataclass(frozen=True, kw_only=True)
class HeadAttention:
    """One head. A measure is None where it has no meaning, or no query sees what it is about."""

    head: str
    short: str
    first: float | None = None
    previous: float | None = None
    itself: float | None = None
    next: float | None = None
    special: float | None = None
    entropy_share: float | None = None
    distance: float | None = None
    weights: Matrix = ()
    """[query][key], of a run."""
    deviation: Matrix | None = None
    """Standard deviation over examples; None for a single example."""
    pooled: tuple[tuple[int, ...], ...] = ()
    """[query bin][key bin], in ten-thousandths, of a text."""

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


@dataclass(frozen=True, kw_only=True)
class Attention(Result):
    """Every head of a model; what there is for one source alone is in the JSON of that source alone."""

    SCHEMA: ClassVar[int] = 2
    FORMER: ClassVar[Mapping[str, str]] = {
        "run": "name",
        "model": "weights_sha256",
        "said": "predicted",
        "why": "explanation",
    }
    ABSENT: ClassVar[tuple[str, ...]]
    """Fields of the other source."""
    name: str
    weights_sha256: str
    title: str
    """What was predicted, or averaged over; or the text, shortened."""
    n: int = 0
    """Examples averaged over."""
    n_tokens: int = 0
    """Of all stacks."""
    axes: tuple[Axis, ...] = ()
    sites: tuple[SiteAttention, ...]
    example: str | None = None
    note: str = ""
    """What else there is to know of the text as the model takes it."""
    predicted: str | None = None
    right: str | None = None
    """The model's own answer and the right one, where they are known."""
    probability: float | None = None
    """That the model gave to its whole answer."""
    correct: bool | None = None
    explanation: str | None = None
    """What is wrong with the answer; empty if it is right."""
    weighting: str = WEIGHTINGS[0]
    """Whether a key counts by its attention weight or by its share of norms."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        told = super().to_dict()
        for part in (told, *(head for site in told["sites"] for head in site["heads"])):
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

    ABSENT = ("n_tokens", "axes", "note", *MEASURES, "pooled")

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

    def to_json(self) -> str:
        """On one line: a line per number would take several times as much."""
        return json.dumps(self.to_dict(), separators=(",", ":")) + "\n"

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
    moments = {site: (norms.share(site, weights[None])[0].numpy(), None) for site, weights in found.weights.items()}
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
        weighting=WEIGHTINGS[norm_weighted],
    )


def shortened(example: str) -> str:
    """An example that fits into a title."""
    return example if len(example) <= 60 else f"{example[:40]} … {example[-15:]}"


def average_patterns(run: Run, split: str, *, norm_weighted: bool = False) -> AttentionPatterns:
    """Every head on average over a held-out set: by column, or over the longest sequences, by place."""
    examples, what, decoder_input, steps = run.task.split(split), f"the {split} set", Labels(), Labels()
    inputs: tuple[Tokens, ...]
    if isinstance(run.model, Classifier):  # sequences of one length, so that a place means the same in all of them
        classes = cast(ClassTask, run.task)
        lengths = classes.lengths(examples)
        inputs = (classes.encode(examples[lengths == lengths.max()]).source,)
        source = tuple(map(str, range(inputs[0].shape[1])))
        what = f"the sequences of {len(source)} in {what}"
    else:
        task = cast(SequenceTask, run.task)
        batch = task.encode(examples)
        inputs = batch.source, batch.decoder_input
        source = tuple(position.label for position in task.source_positions)
        decoder_input = tuple(position.label for position in task.decoder_input_positions)
        steps = tuple(f"→ {position.label}" for position in task.answer_positions[len(task.decoding_start.given) :])
    n, sums = len(inputs[0]), dict[HeadSite, tuple[Tensor, Tensor]]()
    with eval_mode(run.model, gradients=False) as device, ValueNorms(run.model, norm_weighted) as norms:
        for i in range(0, n, BLOCK):
            kept = AttentionCache()
            run.model(*on_device(device, *(tokens[i : i + BLOCK] for tokens in inputs)), weights=kept)
            for site, weights in kept.items():
                weights = norms.share(site, weights).cpu().double()
                first, second = sums.get(site, (torch.zeros(()), torch.zeros(())))
                sums[site] = first + weights.sum(dim=0), second + (weights * weights).sum(dim=0)
    moments = {
        site: ((first / n).numpy(), (second / n - (first / n) ** 2).clamp(min=0).sqrt().numpy())
        for site, (first, second) in sums.items()
    }
    return AttentionPatterns(
        name=run.name,
        weights_sha256=run.weights_sha256,
        title=f"average over {what} (n = {n:,})",
        n=n,
        sites=_sites(run, moments, source, decoder_input, steps),
        weighting=WEIGHTINGS[norm_weighted],
    )


def _sites(
    run: Run, moments: Moments, source: Labels, decoder_input: Labels, steps: Labels
) -> tuple[SiteAttention, ...]:
    """Means and deviations as results, with their tokens: what is fed, and `steps` from there to what is predicted."""
    found = []
    for site in run.model.sites:
        mean, deviation = moments[site]
        heads = tuple(
            HeadAttention(
                head=str(head),
                short=head.short,
                weights=matrix_of(mean[i]),
                deviation=None if deviation is None else matrix_of(deviation[i]),
            )
            for i, head in enumerate(run.model.heads_at(site))
        )
        queries = steps if site.stack == "decoder" else source
        keys = decoder_input if (site.stack, site.kind) == ("decoder", "self") else source
        found.append(SiteAttention(str(site), site.stack, site.layer, site.kind, queries, keys, heads))
    return tuple(found)


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
    text: str | None = None,
) -> AttentionSummary:
    """Every head on one text: `inputs` of one row, and the tokens of "layer", or of "encoder" and of "decoder".

    `special` says of every token whether it is; where nobody knows, it is left out.
    """
    most = max(1, min(MOST_BINS, isqrt(MOST_CELLS // len(sites.heads))))
    sizes, axes = {stack: len(labels) for stack, labels in tokens.items()}, dict[str, Axis]()
    for stack, n in sizes.items():
        mask = (special or {}).get(stack)
        if mask is not None and len(mask) != n:
            raise InputError(f"a mask of {len(mask)} for the {n} tokens of {stack!r}", "give one truth value per token")
        marked = None if mask is None else tuple(i for i, is_special in enumerate(mask) if is_special)
        axes[stack] = Axis(stack, tuple(tokens[stack]), marked, _edges(n, most))
    found: dict[HeadSite, SiteAttention] = {}

    def show(site: HeadSite, weights: Weights) -> None:
        if tuple(map(sizes.get, stacks_of(site))) != weights.shape[2:]:
            given = " queries and ".join(map(str, weights.shape[2:]))
            raise InputError(f"{site} has {given} keys", f"tokens were named for {sizes}")
        queries, keys = (axes[stack] for stack in stacks_of(site))
        weights_HQK = _only_row(weights)
        factors = _factors(_visible(weights_HQK, site.kind), keys.special, site.kind)
        heads = []
        for head, w in zip(sites[site].heads, (each.float().nan_to_num() for each in weights_HQK), strict=True):
            parts = (PARTS * _pooled(w.cpu().double().numpy(), queries, keys)).round().astype(int)
            pooled = tuple(map(tuple, parts.tolist()))
            heads.append(HeadAttention(head=str(head), short=head.short, **_measures(w, factors), pooled=pooled))
        found[site] = SiteAttention(str(site), site.stack, site.layer, site.kind, *stacks_of(site), tuple(heads))

    read_attention(model, sites, inputs, show)
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
            found.append(_only_row(weights)[place].float().nan_to_num().cpu().numpy())

    read_attention(model, sites, inputs, show)
    return found[-1]


def stacks_of(site: HeadSite) -> tuple[str, str]:
    """The stacks whose tokens are a site's queries and keys."""
    return site.stack, "encoder" if site.kind == "cross" else site.stack


def _edges(n: int, most: int) -> tuple[int, ...]:
    """Where at most so many bins of n tokens begin and end."""
    return tuple(np.linspace(0, n, min(n, most) + 1).round().astype(int).tolist())


def _only_row(weights: Weights) -> Tensor:
    if len(weights) != 1:
        raise InputError(f"attention is shown on one text, and these are {len(weights)} rows", "give one row")
    return weights[0]


def _lag(pairs: Tensor) -> Tensor:
    return torch.sub(*torch.meshgrid(*(torch.arange(n, device=pairs.device) for n in pairs.shape), indexing="ij"))


def _visible(weights_HQK: Tensor, kind: str) -> Tensor:
    """Keys that any head attends to; within one text, as far as any query does, for sharp heads' weights round to 0."""
    seen = torch.zeros(weights_HQK.shape[1:], dtype=torch.bool, device=weights_HQK.device)
    for weights_QK in weights_HQK:
        seen |= weights_QK > 0
    sees = seen.any(dim=0).expand_as(seen)
    if kind == "self" and seen.any():
        lag = _lag(seen)
        sees = sees & (lag >= lag[seen].min()) & (lag <= lag[seen].max())
    return sees


def _factors(sees: Tensor, special: Sequence[int] | None, kind: str) -> dict[str, tuple[Tensor, Tensor]]:
    """By measure, what weights are multiplied by, and the queries that count: they see what is meant and more."""
    lag, key, n_visible = _lag(sees), torch.arange(sees.shape[1], device=sees.device), sees.sum(dim=1)
    meant = {"first": key == 0, "special": torch.isin(key, key.new_tensor(special or ()))}
    if kind == "self":
        meant |= {"previous": lag == 1, "itself": lag == 0, "next": lag == -1}
    seen = {name: (keys & sees, sees & ~keys) for name, keys in meant.items()}
    found = {name: (keys.float(), keys.any(dim=1) & others.any(dim=1)) for name, (keys, others) in seen.items()}
    if kind == "self":
        found["distance"] = lag.abs().float(), n_visible > 1
    return found | {"entropy_share": (1 / n_visible.clamp(min=2).log()[:, None], n_visible > 1)}


def _measures(weights: Tensor, factors: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    found = {}
    for name, (factor, counted) in factors.items():
        values = -weights * weights.clamp(min=1e-30).log() if name == "entropy_share" else weights
        means = (values * factor).sum(dim=1)[counted]
        found[name] = rounded(means.mean().item(), 4) if len(means) else None
    return found


def _pooled(weights: Array, queries: Axis, keys: Axis) -> Array:
    by_key = np.add.reduceat(weights, keys.edges[:-1], axis=1)
    mean: Array = np.add.reduceat(by_key, queries.edges[:-1], axis=0) / np.diff(queries.edges)[:, None]
    return mean
