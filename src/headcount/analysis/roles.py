"""What does each head of a model attend to that the other heads do not, on texts and on repeated random tokens?

A head is named for what stands out against the other heads of its model, not for the largest of its numbers: where
most heads attend to the separator, one that does so too has no name for it. It gets the name of a role (as
`role_measures` defines them) if, by the lower 95 % bound of its mean weight there,

    - the weight above even attention, (weight - even) / (1 - even), is at least 0.25;
    - that is more than heads of controls show, models of the same shape that learned nothing;
    - it is at least 3.5 robust deviations above the middle head of its kind of site, (low - median) / (1.4826 MAD), a
      deviation being 0.01 at least (3.5: Iglewicz and Hoaglin 1993, "How to detect and handle outliers").

Beside a name stands its rank among the heads of that kind, and how far it could be another by the intervals of all.
Controls are `labels`' own, on the same inputs, of as many models as a chance of 5 % for any name takes:

    untrained   fresh weights, where the model can be made from its configuration
    shuffled    the model's own weights, the entries of each matrix in random order
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from scipy.special import stdtrit
from torch import nn

from headcount.analysis.head_measures import rounded
from headcount.analysis.labels import above_even, bars_of
from headcount.analysis.role_measures import (
    ROLES,
    Marks,
    RoleSums,
    SiteSums,
    Values,
    in_clusters,
    marks_of,
    separator_places,
    site_measures,
)
from headcount.data.dataset import TokenizedText
from headcount.errors import InputError
from headcount.heads import HeadSite
from headcount.hooks.attention import Weights, read_attention
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import BIASED, CUT, FOLDED, Wrapped, wrap
from headcount.results import ROUNDING, Contradiction, Count, HeadName, Positive, Result, misnamed, outside
from headcount.seeds import integer

TEXTS, REPEATED = "texts", "repeated tokens"
"""What heads are measured on."""
N_CONTROLS = 19
"""Of each kind; the bar is the largest of them, which a further one passes with a chance of 1 in 20."""
CONTROL_TEXTS = 4
"""The shortest texts of a kind, which controls are measured on."""
MANY = 2**22
"""Entries of a matrix from which on they are drawn anew instead of reordered: that takes a fourth of the time."""
MOST = 1e9
"""Where there is no bound, for JSON."""
Cell = tuple[str, str, str, str]
"""Stack, kind, role and what it was measured on."""
Bars = Mapping[Cell, float]
"""The weight above even attention that controls stay below."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Standing:
    """One measure of one head, and where it stands among the heads of its kind of site."""

    role: str
    on: str
    """Texts, or repeated tokens."""
    mean: float
    low: float
    high: float
    """The 95 % interval (Student's t, over runs of neighbouring queries)."""
    even: float
    """What even attention would give."""
    n: Positive
    """Queries."""
    n_top: Count | None
    """Of them, those whose largest weight is on what is meant."""
    rank: Positive
    """From the largest on."""
    rank_low: Positive
    rank_high: Positive
    """What the rank may be, by the intervals of all."""
    z: float
    """How many robust deviations the lower bound is above the middle head."""
    is_named: bool = False

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the interval with the mean, the rank with its range, and counts with each other."""
        yield from outside(self, "mean")
        yield from outside(self, "rank", "rank_low", "rank_high")
        if (self.n_top or 0) > self.n:
            yield "n_top", f"at most n, {self.n:,}"
        if self.role != "distance" and not -ROUNDING <= self.low <= self.high <= 1 + ROUNDING:
            yield "low", "between 0 and 1, as high is"


@dataclass(frozen=True)
class HeadRole:
    """One head, its name, if anything stands out, and all that was measured."""

    head: HeadName
    short: str
    stack: str
    layer: int
    kind: str
    standings: tuple[Standing, ...]

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the head's names, and the measures with each other."""
        yield from misnamed(self)
        keys = [(each.role, each.on) for each in self.standings]
        if len(set(keys)) != len(keys):
            yield "standings", "different measures"

    @property
    def named(self) -> list[Standing]:
        """What it is named for, most above even attention first."""
        found = [each for each in self.standings if each.is_named]
        return sorted(found, key=lambda each: above_even(each.mean, each.even), reverse=True)

    def find(self, role: str, on: str) -> Standing | None:
        """One measure."""
        return next((each for each in self.standings if (each.role, each.on) == (role, on)), None)


@dataclass(frozen=True)
class Naming:
    """When a head gets a name."""

    confidence: float = 0.95
    partly: float = 0.25
    """Weight above even attention, at least."""
    deviations: float = 3.5
    """Above the middle head, at least."""
    least_deviation: float = 0.01
    fewest_heads: int = 4
    """Of a kind: among fewer, none stands out."""

    @property
    def words(self) -> str:
        """The same, for people."""
        return (
            f"a head is named where its weight, by the lower {100 * self.confidence:g} % bound, is at least "
            f"{self.partly:g} above even attention, (weight - even) / (1 - even), and {self.deviations:g} robust "
            "deviations (1.4826 MAD) above the middle head of its kind"
        )


NAMING = Naming()


@dataclass(frozen=True)
class RoleInputs:
    """What was read."""

    on: str
    n_texts: Positive
    n_tokens: Positive
    note: str


@dataclass(frozen=True)
class RoleBar:
    """What heads of models that learned nothing stay below: weight above even attention."""

    stack: str
    kind: str
    role: str
    on: str
    least: float


@dataclass(frozen=True)
class HeadRoles(Result):
    """Every head of a model."""

    ROWS: ClassVar[tuple[str, ...]] = ("heads.standings",)
    name: str
    weights_sha256: str
    inputs: tuple[RoleInputs, ...]
    separators: tuple[str, ...]
    naming: Naming
    controls: tuple[str, ...]
    """Kinds of models that learned nothing."""
    n_controls: Count
    """Of each kind."""
    bars: tuple[RoleBar, ...]
    heads: tuple[HeadRole, ...]
    SCHEMA: ClassVar[int] = 1
    INDENT: ClassVar[int | None] = None  # a line per number would take several times as much

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare every head's ranks and name with the other heads of its kind and with the rule for names."""
        groups: dict[Cell, list[tuple[HeadRole, Standing]]] = {}
        for head in self.heads:
            for each in head.standings:
                groups.setdefault((head.stack, head.kind, each.role, each.on), []).append((head, each))
        if len({head.head for head in self.heads}) != len(self.heads):
            yield "heads", "different heads"
        if {on for *_, on in groups} - {each.on for each in self.inputs}:
            yield "inputs", "everything that heads were measured on"
        bars = {(bar.stack, bar.kind, bar.role, bar.on): bar.least for bar in self.bars}
        for cell, members in groups.items():
            means = [each.mean for _, each in members]
            for head, each in members:
                if each.is_named and not self._may_be_named(each, bars.get(cell, 0.0), len(members)):
                    yield "heads", f"{head.short} not named for {each.role}, as its interval says"
                if not 1 + sum(mean > each.mean for mean in means) <= each.rank <= sum(m >= each.mean for m in means):
                    yield "heads", f"{head.short} ranked by its mean for {each.role}"
                if each.rank_high > len(members):
                    yield "heads", f"ranks of at most {len(members)} for {each.role}"

    def _may_be_named(self, standing: Standing, bar: float, n_heads: int) -> bool:
        """Whether the rule allows a name, but for rounding."""
        if standing.role not in ROLES or n_heads < self.naming.fewest_heads or standing.even >= 1:
            return False
        above = above_even(standing.low, standing.even)
        return above >= max(self.naming.partly, bar) - 1e-3 and standing.z >= self.naming.deviations - 1e-3

    @property
    def words(self) -> str:
        """When a head gets a name, for people."""
        if not self.controls:
            return f"{self.naming.words}; there were no controls"
        kinds = " and ".join(self.controls)
        return (
            f"{self.naming.words}, and above what heads of {self.n_controls} {kinds} models each show, of this shape, "
            f"which learned nothing: on average at most {100 / (self.n_controls + 1):.2g} % of such models get any name"
        )


def head_roles(
    name: str,
    digest: str,
    module: nn.Module,
    sites: Sites,
    texts: Mapping[str, Sequence[TokenizedText]],
    separators: Collection[str] = (),
    *,
    n_controls: int = N_CONTROLS,
    progress: Progress | None = None,
) -> HeadRoles:
    """Every head on texts of each kind; `separators` stand for those that the texts' tokenizer has.

    `progress(done, total)` counts controls.
    """
    texts = {on: each for on, each in texts.items() if each}
    if not texts:
        raise InputError(
            "there is nothing to measure heads on",
            'give a text: --on "The cat sat on the mat."; or name a task in the adapter: task = "addition"',
        )
    labels = [tokens for each in texts.get(TEXTS, ()) for tokens in each.tokens.values()]
    for separator in separators:
        if not any(any(separator_places(tokens, [separator])) for tokens in labels):
            some = " ".join(labels[0][:12]) if labels else "none were given"
            raise InputError(f"no text has the separator {separator!r}", f"the tokens of the first text are: {some}")
    parted = separators or frozenset().union(*(each.separators for some in texts.values() for each in some))
    measured = {on: measure_texts(module, sites, each, separators) for on, each in texts.items()}
    makers = control_makers(module, sites) if n_controls else {}
    bars = control_bars(makers, n_controls, texts, separators, progress)
    inputs = (RoleInputs(on, len(each), sum(map(_n_tokens, each)), _notes(each)) for on, each in texts.items())
    return HeadRoles(
        name=name,
        weights_sha256=digest,
        inputs=tuple(inputs),
        separators=tuple(sorted(parted)),
        naming=NAMING,
        controls=tuple(makers),
        n_controls=n_controls,
        bars=tuple(RoleBar(*cell, rounded(least)) for cell, least in bars.items()),
        heads=name_heads(sites, measured, bars),
    )


def _n_tokens(text: TokenizedText) -> int:
    return sum(map(len, text.tokens.values()))


def _notes(texts: Sequence[TokenizedText]) -> str:
    return "; ".join(dict.fromkeys(each.note for each in texts if each.note))


def measure_texts(
    module: nn.Module, sites: Sites, texts: Sequence[TokenizedText], separators: Collection[str] = ()
) -> SiteSums:
    """Every measure of every site, summed up in clusters."""
    found: dict[HeadSite, dict[str, RoleSums]] = {}
    for text in texts:
        marks = marks_of(text.tokens, text.special, separators or text.separators)

        def add(site: HeadSite, weights: Weights, marks: Mapping[str, Marks] = marks) -> None:
            here = found.setdefault(site, {})
            for role, measured in site_measures(site, weights, marks).items():
                sums = in_clusters(measured, len(texts))
                here[role] = here[role] + sums if role in here else sums

        read_attention(module, sites, text.inputs, add)
    return {site: found[site] for site in sites}


# --- names ------------------------------------------------------------------------------------------------------------


def name_heads(
    sites: Sites, measured: Mapping[str, SiteSums], bars: Bars | None = None, naming: Naming = NAMING
) -> tuple[HeadRole, ...]:
    """Where every head stands in every measure, and what it is named for."""
    found: dict[str, list[Standing]] = {str(head): [] for head in sites.heads}
    for stack, kind in dict.fromkeys((site.stack, site.kind) for site in sites):
        here = [site for site in sites if (site.stack, site.kind) == (stack, kind)]
        heads = [str(head) for site in here for head in sites[site].heads]
        for on, by_site in measured.items():
            for role in by_site[here[0]]:
                sums = [by_site[site][role] for site in here if role in by_site[site]]
                if len(sums) < len(here) or not all(each.counts.any() for each in sums):
                    continue  # what heads of some layers cannot do, as those of a window, ranks none of them
                bar = (bars or {}).get((stack, kind, role, on), -np.inf)
                for head, each in zip(heads, _standings(role, on, sums, naming), strict=True):
                    can_be = role in ROLES and len(heads) >= naming.fewest_heads
                    found[head].append(replace(each, is_named=can_be and _stands_out(each, bar, naming)))
    return tuple(
        HeadRole(str(head), head.short, head.site.stack, head.site.layer, head.site.kind, tuple(found[str(head)]))
        for head in sites.heads
    )


def _stands_out(standing: Standing, bar: float, naming: Naming) -> bool:
    """By the lower bound, above even attention, above controls and above the other heads."""
    return above_even(standing.low, standing.even) >= max(naming.partly, bar) and standing.z >= naming.deviations


def _standings(role: str, on: str, sums: Sequence[RoleSums], naming: Naming) -> Iterator[Standing]:
    """One measure of all heads of a kind; a share stays between 0 and 1."""
    means, halves = zip(*(_estimate(each, naming.confidence) for each in sums), strict=True)
    mean, half = np.concatenate(means), np.concatenate(halves)
    low, high = np.maximum(mean - half, 0.0), mean + half if role == "distance" else np.minimum(mean + half, 1.0)
    middle = float(np.median(mean))
    deviation = max(1.4826 * float(np.median(np.abs(mean - middle))), naming.least_deviation)
    places = ((each, place) for each in sums for place in range(each.sums.shape[1]))
    for i, (each, place) in enumerate(places):
        yield Standing(
            role=role,
            on=on,
            mean=rounded(float(mean[i])),
            low=rounded(float(low[i])),
            high=rounded(min(float(high[i]), MOST)),
            even=rounded(float(each.even.sum() / each.counts.sum())),
            n=int(each.counts.sum()),
            n_top=None if each.tops is None else round(float(each.tops[:, place].sum())),
            rank=1 + int((mean > mean[i]).sum()),
            rank_low=1 + int((low > high[i]).sum()),
            rank_high=int((high >= low[i]).sum()),
            z=rounded((float(low[i]) - middle) / deviation),
        )


def _estimate(sums: RoleSums, confidence: float) -> tuple[Values, Values]:
    """Mean and half of its interval, head by head; from one cluster alone there is no interval."""
    total, n = sums.counts.sum(), int((sums.counts > 0).sum())
    mean = sums.sums.sum(axis=0) / total
    if n < 2:
        return mean, np.full_like(mean, np.inf)
    apart = sums.sums - mean * sums.counts[:, None]
    se = np.sqrt((apart**2).sum(axis=0) * n / (n - 1)) / total
    return mean, float(stdtrit(n - 1, 0.5 + confidence / 2)) * se


# --- controls: models of this shape that learned nothing --------------------------------------------------------------


Control = tuple[nn.Module, Sites]


def control_bars(
    makers: Mapping[str, Callable[[int], Control]],
    n_controls: int,
    texts: Mapping[str, Sequence[TokenizedText]],
    separators: Collection[str],
    progress: Progress | None = None,
) -> dict[Cell, float]:
    """The higher one of both kinds, on some of the texts: what controls show differs more between heads than texts."""
    bars: dict[Cell, float] = {}
    few = {on: sorted(each, key=_n_tokens)[:CONTROL_TEXTS] for on, each in texts.items()}
    for done, make in enumerate(makers.values()):
        found = []
        for i in range(n_controls):
            module, sites = make(i)
            measured = {on: measure_texts(module, sites, each, separators) for on, each in few.items()}
            found.append(values_of(measured))
            if progress:
                progress(done * n_controls + i + 1, n_controls * len(makers))
        for cell, least in bars_of(found, rank=1).items():
            bars[cell] = max(least, bars.get(cell, -np.inf))
    return bars


def values_of(measured: Mapping[str, SiteSums]) -> dict[Cell, Values]:
    """What can become a name, by cell: of each head, its weight above even attention."""
    found: dict[Cell, list[Values]] = {}
    for on, by_site in measured.items():
        for site, roles in by_site.items():
            for role in (role for role in roles if role in ROLES and roles[role].counts.any()):
                sums, n = roles[role], roles[role].counts.sum()
                above = above_even(sums.sums.sum(axis=0) / n, float(sums.even.sum() / n))
                found.setdefault((site.stack, site.kind, role, on), []).append(above)
    return {cell: np.concatenate(values) for cell, values in found.items()}


def control_makers(module: nn.Module, sites: Sites) -> dict[str, Callable[[int], Control]]:
    """How the i-th control of each kind is made; only a model of Hugging Face's can be made anew."""
    spare = copy.deepcopy((module, sites))
    found: dict[str, Callable[[int], Control]] = {}
    if isinstance(module, Wrapped) and module.family is not None:
        found["untrained"] = lambda i: untrained(module, i)
    return found | {"shuffled": lambda i: shuffled(module, spare, i)}


def untrained(module: Wrapped, i: int) -> Control:
    """The i-th fresh model of this configuration, whole, where heads were cut out of this one."""
    settings = copy.deepcopy(module.model.config)
    for name in (CUT, FOLDED, BIASED):
        if hasattr(settings, name):
            delattr(settings, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(0, "untrained control", i))
        fresh = wrap(type(module.model)(settings))
    return fresh.to(next(module.parameters())), fresh.head_sites


def shuffled(module: nn.Module, spare: Control, i: int) -> Control:
    """The i-th order of a model's own weights, put into a spare copy; biases and scales, which are vectors, stay."""
    order = torch.Generator().manual_seed(integer(0, "shuffled control", i))
    with torch.no_grad():
        for own, matrix in zip(module.parameters(), spare[0].parameters(), strict=True):
            if own.ndim > 1:
                n = own.numel()
                places = torch.randperm(n, generator=order) if n < MANY else torch.randint(n, (n,), generator=order)
                matrix.copy_(own.flatten()[places.to(own.device)].reshape(own.shape))
    return spare
