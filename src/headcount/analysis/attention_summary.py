"""Where does every head of somebody's model look on one text? At a glance: small enough to be kept and drawn at once.

A head's weights are pooled to a few bins of neighbouring tokens: the mean over a bin's queries of the weight on a bin's
keys, so that rows sum to 1 (in a short text a bin is a token). Of the weights themselves a few measures are taken, as
means over queries that see what is meant and something else; what is in sight is read off the weights:

    first, previous, itself, next, special      weight on that token or those tokens
    entropy share                               entropy / log n, where n keys are in sight: 0 on one key, 1 even
    distance                                    mean |query - key|, in tokens
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.patterns import shortened
from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.attention import Weights, read_attention
from headcount.hooks.sites import Sites
from headcount.results import Result

MOST_BINS = 32
"""Bins on an axis."""
MOST_CELLS = 150_000
"""Of all heads together: more than 146 heads get wider bins, so that a result stays under 1 MB."""
PARTS = 10_000
"""Pooled weights are whole numbers of these parts of 1: half as long in JSON as decimals."""

Masks = Mapping[str, Tensor | Sequence[bool]]
"""By stack, one truth value per token: whether it is special, whether it is real (no padding)."""


@dataclass(frozen=True)
class Axis:
    """The tokens of a stack, which its queries and keys stand for."""

    stack: str
    tokens: tuple[str, ...]
    special: tuple[int, ...] | None
    """Where special tokens are; None if nobody said."""
    edges: tuple[int, ...]
    """Bin i holds the tokens from edges[i] to just before edges[i + 1]."""


@dataclass(frozen=True)
class HeadSummary:
    """One head. A measure is None where it has no meaning, or no query sees what it is about."""

    head: str
    short: str
    first: float | None
    previous: float | None
    itself: float | None
    next: float | None
    special: float | None
    entropy_share: float | None
    distance: float | None
    pooled: tuple[tuple[int, ...], ...]
    """[query bin][key bin], in ten-thousandths."""

    @property
    def weights(self) -> NDArray[np.float64]:
        """Pooled weights; each row sums to 1, but for rounding."""
        return np.array(self.pooled) / PARTS


@dataclass(frozen=True)
class SiteSummary:
    """The heads of one attention block, and the stacks whose tokens are its queries and keys."""

    site: str
    stack: str
    layer: int
    kind: str
    queries: str
    keys: str
    heads: tuple[HeadSummary, ...]


@dataclass(frozen=True)
class AttentionSummary(Result):
    """Every head of a model on one text."""

    SCHEMA: ClassVar[int] = 2
    FORMER: ClassVar[Mapping[str, str]] = {"run": "name", "model": "weights_sha256"}
    name: str
    weights_sha256: str
    title: str
    """The text, shortened."""
    n_tokens: int
    """Of all stacks."""
    axes: tuple[Axis, ...]
    sites: tuple[SiteSummary, ...]
    note: str = ""
    """What else there is to know of the text as the model takes it."""
    predicted: str | None = None
    right: str | None = None
    """The model's own answer and the right one, where they are known."""

    def to_json(self) -> str:
        """On one line: a line per number would take several times as much."""
        return json.dumps(self.to_dict(), separators=(",", ":")) + "\n"

    def axes_of(self, site: SiteSummary) -> tuple[Axis, Axis]:
        """What stands down and across: queries and keys."""
        found = {axis.stack: axis for axis in self.axes}
        return found[site.queries], found[site.keys]


def attention_summary(
    name: str,
    digest: str,
    model: nn.Module,
    sites: Sites,
    inputs: Sequence[Tensor],
    tokens: Mapping[str, Sequence[str]],
    special: Masks | None = None,
    token_mask: Masks | None = None,
    *,
    text: str | None = None,
) -> AttentionSummary:
    """Every head on one text: `inputs` of one row, and the tokens of "layer", or of "encoder" and of "decoder"."""
    most = max(1, min(MOST_BINS, isqrt(MOST_CELLS // len(sites.heads))))
    axes = {stack: _axis(stack, labels, special, token_mask, most) for stack, labels in tokens.items()}
    found: dict[HeadSite, SiteSummary] = {}

    def show(site: HeadSite, weights: Weights) -> None:
        _require_fit(site, weights, tokens)
        queries, keys = (axes[stack] for stack in stacks_of(site))
        heads = _summaries(sites[site].heads, _only_real(site, weights, token_mask), queries, keys, site.kind)
        found[site] = SiteSummary(str(site), site.stack, site.layer, site.kind, queries.stack, keys.stack, heads)

    read_attention(model, sites, inputs, show)
    words = [token for axis in axes.values() for token in axis.tokens] if text is None else text.split()
    n, title = sum(len(axis.tokens) for axis in axes.values()), shortened(" ".join(words))
    return AttentionSummary(name, digest, title, n, tuple(axes.values()), tuple(found[site] for site in sites))


def head_pattern(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], head: HeadId, token_mask: Masks | None = None
) -> NDArray[np.float32]:
    """One head's own weights [query, key] on one text, without padding."""
    (place,) = sites.head_slots((head,))[head.site]
    found: list[NDArray[np.float32]] = []

    def show(site: HeadSite, weights: Weights) -> None:
        if site == head.site:
            found.append(_only_real(site, weights[:, [place]].float(), token_mask)[0].nan_to_num().cpu().numpy())

    read_attention(model, sites, inputs, show)
    return found[-1]


def stacks_of(site: HeadSite) -> tuple[str, str]:
    """The stacks whose tokens are a site's queries and keys."""
    return site.stack, "encoder" if site.kind == "cross" else site.stack


def _axis(stack: str, labels: Sequence[str], special: Masks | None, token_mask: Masks | None, most: int) -> Axis:
    kept, is_special = _mask(stack, len(labels), token_mask), _mask(stack, len(labels), special)
    marked = tuple(is_special[kept].nonzero()[:, 0].tolist()) if special and stack in special else None
    shown = tuple(label for label, is_real in zip(labels, kept.tolist(), strict=True) if is_real)
    edges = np.linspace(0, len(shown), min(len(shown), most) + 1).round().astype(int)
    return Axis(stack, shown, marked, tuple(edges.tolist()))


def _mask(stack: str, n: int, masks: Masks | None) -> Tensor:
    if masks is None or stack not in masks:
        return torch.ones(n, dtype=torch.bool)
    mask = torch.as_tensor(masks[stack]).reshape(-1).cpu().bool()
    if len(mask) != n:
        raise InputError(f"a mask of {len(mask)} for the {n} tokens of {stack!r}", "give one truth value per token")
    return mask


def _require_fit(site: HeadSite, weights: Weights, tokens: Mapping[str, Sequence[str]]) -> None:
    given = {stack: len(labels) for stack, labels in tokens.items()}
    if tuple(map(given.get, stacks_of(site))) != weights.shape[2:]:
        sizes = " queries and ".join(map(str, weights.shape[2:]))
        raise InputError(f"{site} has {sizes} keys", f"tokens were named for {given}")


def _only_real(site: HeadSite, weights: Weights, token_mask: Masks | None) -> Tensor:
    if len(weights) != 1:
        raise InputError(f"attention is shown on one text, and these are {len(weights)} rows", "give one row")
    (weights_HQK,) = weights
    for dim, stack in enumerate(stacks_of(site), start=1):
        mask = _mask(stack, weights_HQK.shape[dim], token_mask)
        if not mask.all():  # else a copy would only take memory
            weights_HQK = weights_HQK.index_select(dim, mask.nonzero()[:, 0].to(weights.device))
    return weights_HQK


def _summaries(
    heads: Sequence[HeadId], weights: Tensor, queries: Axis, keys: Axis, kind: str
) -> tuple[HeadSummary, ...]:
    factors = _factors(_sight(weights, kind), keys.special, kind)
    return tuple(
        HeadSummary(str(head), head.short, **_measures(w, factors), pooled=_pooled(w, queries, keys))
        for head, w in zip(heads, (each.float().nan_to_num() for each in weights), strict=True)
    )


def _lag(pairs: Tensor) -> Tensor:
    return torch.sub(*torch.meshgrid(*(torch.arange(n, device=pairs.device) for n in pairs.shape), indexing="ij"))


def _sight(weights_HQK: Tensor, kind: str) -> Tensor:
    """Keys that any head looks at; within one text, as far as any query looks, for sharp heads' weights round to 0."""
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


def _measures(weights: Tensor, factors: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, float | None]:
    found: dict[str, float | None] = dict.fromkeys(("previous", "itself", "next", "distance"))
    for name, (factor, counted) in factors.items():
        values = -weights * weights.clamp(min=1e-30).log() if name == "entropy_share" else weights
        found[name] = _mean((values * factor).sum(dim=1), counted)
    return found


def _mean(values: Tensor, counted: Tensor) -> float | None:
    return float(f"{values[counted].mean().item():.4g}") if counted.any() else None


def _pooled(weights: Tensor, queries: Axis, keys: Axis) -> tuple[tuple[int, ...], ...]:
    by_key = np.add.reduceat(weights.cpu().double().numpy(), keys.edges[:-1], axis=1)
    mean = np.add.reduceat(by_key, queries.edges[:-1], axis=0) / np.diff(queries.edges)[:, None]
    return tuple(map(tuple, (PARTS * mean).round().astype(int).tolist()))
