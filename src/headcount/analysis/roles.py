"""Name heads for what they attend to and other heads do not, on texts and on repeated random tokens.

A role is a kind of key, such as the previous token (see `role_measures`). A head is named for a role by which it stands
out from the other heads of its model, not for its largest measure: where most heads attend to the separator, no head is
named for that. A head is named for a role if the
lower 95 % bound of its mean weight meets three conditions:

    - it is at least 0.25 above uniform attention, (weight - uniform) / (1 - uniform);
    - it is above the heads of controls, which are models of the same shape that learned nothing;
    - it is at least 3.5 robust deviations above the median head of its kind of attention, (low - median) / (1.4826
      MAD), where a deviation is at least 0.01 (3.5: Iglewicz and Hoaglin 1993, "How to detect and handle outliers").

Each name comes with the head's rank among the heads of its kind, and the range of ranks that the CIs allow. Controls
are as in `head_labels`, on the same inputs. Their number limits the chance of any name in a control to 5 %:

    untrained   new random weights, if the model can be built from its configuration
    shuffled    the model's weights with the entries of each matrix permuted
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

from headcount.analysis.attention_measures import rounded
from headcount.analysis.head_labels import above_even, bars_of
from headcount.analysis.role_measures import (
    Marks,
    RoleSums,
    SiteSums,
    Values,
    in_clusters,
    marks_of,
    separator_places,
    site_measures,
)
from headcount.attention_roles import ROLES
from headcount.data.dataset import TokenizedText
from headcount.errors import InputError
from headcount.heads import HeadSite
from headcount.hooks.attention import Weights, read_attention
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import BIASED, CUT, FOLDED, Wrapped, wrap
from headcount.results import ROUNDING, Contradiction, Count, HeadName, Positive, Result, misnamed, outside
from headcount.seeds import integer

TEXTS, REPEATED = "texts", "repeated tokens"
"""Kinds of inputs on which heads are measured: texts, and random tokens that occur twice."""
N_CONTROLS = 19
"""Number of models of each kind that learned nothing; a head must exceed the largest value of any of them.

A new such model exceeds this threshold in 1 of 20 cases.
"""
CONTROL_TEXTS = 4
"""Number of texts on which models that learned nothing are measured: the shortest texts of each kind."""
MANY = 2**22
"""When weights are shuffled, matrices with at least this many entries are resampled, which is faster than permuting."""
MOST = 1e9
"""Number that stands for an infinite upper end of a confidence interval, because JSON has no infinity."""
RoleCell = tuple[str, str, str, str]
"""What one threshold applies to: stack and kind of an attention block, a role (kind of key), and a kind of inputs."""
Bars = Mapping[RoleCell, float]
"""Thresholds from models that learned nothing, as attention above uniform, for each kind of block, role and input."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RoleScore:
    """One attention measure of one head, such as attention to the previous token, and its rank among heads."""

    role: str
    on: str
    """Kind of inputs on which the head was measured: `texts` or `repeated tokens`."""
    mean: float
    low: float
    """Lower end of the 95 % CI of the mean (Student's t over clusters of neighbouring queries)."""
    high: float
    """Upper end of the 95 % CI of the mean."""
    even: float
    """Value of the measure that uniform attention would give."""
    n: Positive
    """Number of queries that the mean is taken over."""
    n_top: Count | None
    """Number of queries whose largest weight is on a key of the role; None if the measure is not a role."""
    rank: Positive
    """Rank of the head's mean among the heads of its kind of attention; 1 is the largest."""
    rank_low: Positive
    """Best rank of the head that the CIs of all heads of this kind allow."""
    rank_high: Positive
    """Worst rank of the head that the CIs of all heads of this kind allow."""
    z: float
    """Number of robust deviations (1.4826 MAD) from the median head up to the lower end of the CI."""
    is_named: bool = False
    """Whether the head is named for this role, because it exceeds untrained models and other heads."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the mean and its CI, the rank and its range, or the counts disagree."""
        yield from outside(self, "mean")
        yield from outside(self, "rank", "rank_low", "rank_high")
        if (self.n_top or 0) > self.n:
            yield "n_top", f"at most {self.n:,}, the value of n"
        if self.role != "distance" and not -ROUNDING <= self.low <= self.high <= 1 + ROUNDING:
            yield "low", "a number from 0 to high, with high at most 1"


@dataclass(frozen=True)
class HeadRole:
    """All attention measures of one head, and the roles that it is named for, such as `previous` (token)."""

    head: HeadName
    short: str
    stack: str
    layer: int
    kind: str
    standings: tuple[RoleScore, ...]

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the head's name is wrong or a measure is repeated."""
        yield from misnamed(self)
        keys = [(score.role, score.on) for score in self.standings]
        if len(set(keys)) != len(keys):
            yield "standings", "measures that differ from each other"

    @property
    def named(self) -> list[RoleScore]:
        """Return the roles that the head is named for; the role furthest above uniform attention first."""
        named = [score for score in self.standings if score.is_named]
        return sorted(named, key=lambda score: above_even(score.mean, score.even), reverse=True)

    def find(self, role: str, on: str) -> RoleScore | None:
        """Return one attention measure of the head on one kind of inputs, such as `texts`; None if not measured."""
        return next((score for score in self.standings if (score.role, score.on) == (role, on)), None)


@dataclass(frozen=True)
class Naming:
    """Thresholds that a head must reach to be named for a role, such as "previous token"."""

    confidence: float = 0.95
    """Confidence level of the intervals whose lower ends are compared with the thresholds."""
    partly: float = 0.25
    """Smallest lower end of the CI of attention to the role's keys, rescaled from 0 (uniform) to 1 (all)."""
    deviations: float = 3.5
    """Smallest number of robust deviations by which the lower end of the CI must lie above the median head."""
    least_deviation: float = 0.01
    """Lower bound of the robust deviation, which prevents huge z-scores where all heads are nearly equal."""
    fewest_heads: int = 4
    """Smallest number of heads of one kind of attention among which a head can stand out."""

    def allows(self, score: RoleScore, bar: float, n_heads: int, slack: float = 0.0) -> bool:
        """Return whether a head is named for a role: it must exceed uniform attention, untrained models and other
        heads.

        `bar` is the threshold from models that learned nothing, `n_heads` the number of heads of its kind, and `slack`
        the accepted rounding error.
        """
        if score.role not in ROLES or n_heads < self.fewest_heads or score.even >= 1:
            return False
        above = above_even(score.low, score.even)
        return above >= max(self.partly, bar) - slack and score.z >= self.deviations - slack

    @property
    def words(self) -> str:
        """Return the thresholds for naming a head as a sentence, for the caption of a table."""
        return (
            f"a head is named for a role if the lower {100 * self.confidence:g} % bound of its weight is at least "
            f"{self.partly:g} above uniform attention, (weight - uniform) / (1 - uniform), and at least "
            f"{self.deviations:g} robust deviations (1.4826 MAD) above the median head of its kind"
        )


NAMING = Naming()


@dataclass(frozen=True)
class RoleInputs:
    """One kind of inputs on which heads were measured: texts, or repeated random tokens."""

    on: str
    n_texts: Positive
    n_tokens: Positive
    note: str


@dataclass(frozen=True)
class RoleBar:
    """The attention to the keys of one role that models without any learning reach, rescaled to 0 (uniform) to 1."""

    stack: str
    kind: str
    role: str
    on: str
    least: float


@dataclass(frozen=True)
class HeadRoles(Result):
    """Measures of every head of a model, and the roles that heads are named for."""

    ROWS: ClassVar[tuple[str, ...]] = ("heads.standings",)
    name: str
    weights_sha256: str
    inputs: tuple[RoleInputs, ...]
    separators: tuple[str, ...]
    naming: Naming
    controls: tuple[str, ...]
    """Kinds of models that learned nothing and set the thresholds: `untrained`, `shuffled`; empty without any."""
    n_controls: Count
    """Number of models that learned nothing, of each kind, that set the thresholds."""
    bars: tuple[RoleBar, ...]
    heads: tuple[HeadRole, ...]
    SCHEMA: ClassVar[int] = 1
    INDENT: ClassVar[int | None] = None  # one line per number would make the file several times as large

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if ranks or names disagree with other heads of their kind or with the thresholds."""
        groups: dict[RoleCell, list[tuple[HeadRole, RoleScore]]] = {}
        for head in self.heads:
            for score in head.standings:
                groups.setdefault((head.stack, head.kind, score.role, score.on), []).append((head, score))
        if len({head.head for head in self.heads}) != len(self.heads):
            yield "heads", "heads that differ from each other"
        if {on for *_, on in groups} - {inputs.on for inputs in self.inputs}:
            yield "inputs", "every kind of inputs on which heads were measured"
        bars = {(bar.stack, bar.kind, bar.role, bar.on): bar.least for bar in self.bars}
        for cell, members in groups.items():
            means = [score.mean for _, score in members]
            for head, score in members:
                # The stored numbers are rounded.
                if score.is_named and not self.naming.allows(score, bars.get(cell, 0.0), len(members), slack=1e-3):
                    yield "heads", f"{head.short} without the name {score.role}, which its interval does not allow"
                n_above, n_at_least = sum(m > score.mean for m in means), sum(m >= score.mean for m in means)
                if not 1 + n_above <= score.rank <= n_at_least:
                    yield "heads", f"a rank of {head.short} for {score.role} that follows from its mean"
                if score.rank_high > len(members):
                    yield "heads", f"ranks of at most {len(members)} for {score.role}"

    @property
    def words(self) -> str:
        """Return the conditions under which a head is named for a role as a sentence, for the caption of a table."""
        if not self.controls:
            return f"{self.naming.words}; there were no control models"
        kinds = " and ".join(self.controls)
        return (
            f"{self.naming.words}, and above the heads of {self.n_controls} {kinds} models each, of this shape, "
            f"which learned nothing: on average, a head gets a name in at most {100 / (self.n_controls + 1):.2g} % of "
            f"such models"
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
    """Measure the attention of every head on texts, and name the heads that stand out for a role (kind of key).

    `texts` are the texts of each kind. `separators` replace those of the texts' tokenizer. `progress(done, total)`
    counts control models.
    """
    texts = {on: rows for on, rows in texts.items() if rows}
    if not texts:
        raise InputError(
            "there are no texts to measure heads on",
            'give a text: --on "The cat sat on the mat."; or name a task in the adapter class: task = "addition"',
        )
    labels = [tokens for text in texts.get(TEXTS, ()) for tokens in text.tokens.values()]
    for separator in separators:
        if not any(any(separator_places(tokens, [separator])) for tokens in labels):
            shown = " ".join(labels[0][:12]) if labels else "no texts were given"
            raise InputError(
                f"no text contains the separator token {separator!r}", f"the first text has the tokens: {shown}"
            )
    in_use = separators or frozenset().union(*(text.separators for rows in texts.values() for text in rows))
    sums = {on: measure_texts(module, sites, rows, separators) for on, rows in texts.items()}
    makers = control_makers(module, sites) if n_controls else {}
    bars = control_bars(makers, n_controls, texts, separators, progress)
    inputs = (RoleInputs(on, len(rows), sum(map(_n_tokens, rows)), _notes(rows)) for on, rows in texts.items())
    return HeadRoles(
        name=name,
        weights_sha256=digest,
        inputs=tuple(inputs),
        separators=tuple(sorted(in_use)),
        naming=NAMING,
        controls=tuple(makers),
        n_controls=n_controls,
        bars=tuple(RoleBar(*cell, rounded(least)) for cell, least in bars.items()),
        heads=name_heads(sites, sums, bars),
    )


def _n_tokens(text: TokenizedText) -> int:
    return sum(map(len, text.tokens.values()))


def _notes(texts: Sequence[TokenizedText]) -> str:
    return "; ".join(dict.fromkeys(text.note for text in texts if text.note))


def measure_texts(
    module: nn.Module, sites: Sites, texts: Sequence[TokenizedText], separators: Collection[str] = ()
) -> SiteSums:
    """Return the attention measures of every block, summed over clusters of neighbouring queries of all texts."""
    by_site: dict[HeadSite, dict[str, RoleSums]] = {}
    for text in texts:
        marks = marks_of(text.tokens, text.special, separators or text.separators)

        def add(site: HeadSite, weights: Weights, marks: Mapping[str, Marks] = marks) -> None:
            totals = by_site.setdefault(site, {})
            for role, measure in site_measures(site, weights, marks).items():
                sums = in_clusters(measure, len(texts))
                totals[role] = totals[role] + sums if role in totals else sums

        read_attention(module, sites, text.inputs, add)
    return {site: by_site[site] for site in sites}


# --- names ------------------------------------------------------------------------------------------------------------


def name_heads(
    sites: Sites, sums: Mapping[str, SiteSums], bars: Bars | None = None, naming: Naming = NAMING
) -> tuple[HeadRole, ...]:
    """Rank every head in every attention measure, and name the heads that stand out for a role.

    `sums` has the measures for each kind of inputs, such as `texts`; `bars` are the thresholds from models that learned
    nothing.
    """
    scores: dict[str, list[RoleScore]] = {str(head): [] for head in sites.heads}
    for stack, kind in dict.fromkeys((site.stack, site.kind) for site in sites):
        here = [site for site in sites if (site.stack, site.kind) == (stack, kind)]
        heads = [str(head) for site in here for head in sites[site].heads]
        for on, by_site in sums.items():
            for role in by_site[here[0]]:
                blocks = [by_site[site][role] for site in here if role in by_site[site]]
                if len(blocks) < len(here) or not all(block.counts.any() for block in blocks):
                    continue  # heads are ranked only if the measure exists in all layers, which a window may prevent
                bar = (bars or {}).get((stack, kind, role, on), -np.inf)
                for head, score in zip(heads, _scores(role, on, blocks, naming), strict=True):
                    scores[head].append(replace(score, is_named=naming.allows(score, bar, len(heads))))
    return tuple(
        HeadRole(str(head), head.short, head.site.stack, head.site.layer, head.site.kind, tuple(scores[str(head)]))
        for head in sites.heads
    )


def _scores(role: str, on: str, blocks: Sequence[RoleSums], naming: Naming) -> Iterator[RoleScore]:
    """Yield the value and rank, in one attention measure, of every head of one kind of attention.

    `blocks` are the sums for each attention block of this kind. CIs of fractions are clipped to [0, 1].
    """
    means, halves = zip(*(_estimate(block, naming.confidence) for block in blocks), strict=True)
    mean, half = np.concatenate(means), np.concatenate(halves)
    low, high = np.maximum(mean - half, 0.0), mean + half if role == "distance" else np.minimum(mean + half, 1.0)
    median = float(np.median(mean))
    deviation = max(1.4826 * float(np.median(np.abs(mean - median))), naming.least_deviation)
    heads = ((block, slot) for block in blocks for slot in range(block.sums.shape[1]))
    for i, (block, slot) in enumerate(heads):
        yield RoleScore(
            role=role,
            on=on,
            mean=rounded(float(mean[i])),
            low=rounded(float(low[i])),
            high=rounded(min(float(high[i]), MOST)),
            even=rounded(float(block.even.sum() / block.counts.sum())),
            n=int(block.counts.sum()),
            n_top=None if block.tops is None else round(float(block.tops[:, slot].sum())),
            rank=1 + int((mean > mean[i]).sum()),
            rank_low=1 + int((low > high[i]).sum()),
            rank_high=int((high >= low[i]).sum()),
            z=rounded((float(low[i]) - median) / deviation),
        )


def _estimate(sums: RoleSums, confidence: float) -> tuple[Values, Values]:
    """Return the mean of every head and half the width of its CI; the CI is infinite if there is only one cluster."""
    total, n = sums.counts.sum(), int((sums.counts > 0).sum())
    mean = sums.sums.sum(axis=0) / total
    if n < 2:
        return mean, np.full_like(mean, np.inf)
    residuals = sums.sums - mean * sums.counts[:, None]
    se = np.sqrt((residuals**2).sum(axis=0) * n / (n - 1)) / total
    return mean, float(stdtrit(n - 1, 0.5 + confidence / 2)) * se


# --- controls: models of this shape that learned nothing --------------------------------------------------------------


Control = tuple[nn.Module, Sites]


def control_bars(
    makers: Mapping[str, Callable[[int], Control]],
    n_controls: int,
    texts: Mapping[str, Sequence[TokenizedText]],
    separators: Collection[str],
    progress: Progress | None = None,
) -> dict[RoleCell, float]:
    """Measure control models, which learned nothing, and return the threshold that each role's attention must exceed.

    The threshold is the higher one of the two kinds of controls. Controls are measured on a few short texts, as their
    measures vary more between heads than between texts.
    """
    bars: dict[RoleCell, float] = {}
    shortest = {on: sorted(rows, key=_n_tokens)[:CONTROL_TEXTS] for on, rows in texts.items()}
    for done, make in enumerate(makers.values()):
        controls = []
        for i in range(n_controls):
            module, sites = make(i)
            sums = {on: measure_texts(module, sites, rows, separators) for on, rows in shortest.items()}
            controls.append(values_of(sums))
            if progress:
                progress(done * n_controls + i + 1, n_controls * len(makers))
        for cell, least in bars_of(controls, rank=1).items():
            bars[cell] = max(least, bars.get(cell, -np.inf))
    return bars


def values_of(sums: Mapping[str, SiteSums]) -> dict[RoleCell, Values]:
    """Return the rescaled attention of every head (0 is uniform, 1 is all), for each role, block and kind of inputs."""
    values: dict[RoleCell, list[Values]] = {}
    for on, by_site in sums.items():
        for site, roles in by_site.items():
            for role in (role for role in roles if role in ROLES and roles[role].counts.any()):
                block, n = roles[role], roles[role].counts.sum()
                above = above_even(block.sums.sum(axis=0) / n, float(block.even.sum() / n))
                values.setdefault((site.stack, site.kind, role, on), []).append(above)
    return {cell: np.concatenate(blocks) for cell, blocks in values.items()}


def control_makers(module: nn.Module, sites: Sites) -> dict[str, Callable[[int], Control]]:
    """Return, for each kind of control model, a function that makes the i-th control, given i.

    Controls learned nothing. Untrained controls exist for Hugging Face models only.
    """
    spare = copy.deepcopy((module, sites))
    makers: dict[str, Callable[[int], Control]] = {}
    if isinstance(module, Wrapped) and module.family is not None:
        makers["untrained"] = lambda i: untrained(module, i)
    return makers | {"shuffled": lambda i: shuffled(module, spare, i)}


def untrained(module: Wrapped, i: int) -> Control:
    """Return the i-th untrained control: a new model of the same configuration, with random weights and all heads."""
    settings = copy.deepcopy(module.model.config)
    for name in (CUT, FOLDED, BIASED):
        if hasattr(settings, name):
            delattr(settings, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(0, "untrained control", i))
        fresh = wrap(type(module.model)(settings))
    return fresh.to(next(module.parameters())), fresh.head_sites


def shuffled(module: nn.Module, spare: Control, i: int) -> Control:
    """Turn `spare`, a copy of the model, into the i-th shuffled control, and return it.

    The entries of each weight matrix are permuted; vectors, such as biases, are not.
    """
    rng = torch.Generator().manual_seed(integer(0, "shuffled control", i))
    with torch.no_grad():
        for own, matrix in zip(module.parameters(), spare[0].parameters(), strict=True):
            if own.ndim > 1:
                n = own.numel()
                indices = torch.randperm(n, generator=rng) if n < MANY else torch.randint(n, (n,), generator=rng)
                matrix.copy_(own.flatten()[indices.to(own.device)].reshape(own.shape))
    return spare
