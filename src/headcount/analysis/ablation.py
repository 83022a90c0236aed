"""Which heads count? Silence each alone, and compare answers on the same examples.

Heads whose silence changes any answer are looked at again, on many fresh examples, which alone count for them: what was
chosen for being large on some examples is less so on others. Of heads that change nothing, the first look decides, at
99.9 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headcount.analysis.bands import CRITICAL, band_of, needed
from headcount.analysis.breakage import Breakage
from headcount.analysis.importance import Agreement, Importance, agreements, importances
from headcount.analysis.redecoding import Redecoder
from headcount.analysis.subjects import Subject, mean_total
from headcount.analysis.trials import (
    PARTS,
    Donors,
    Means,
    Outcome,
    Progress,
    Trial,
    Tried,
    donors_of,
    means_of,
    run_trials,
)
from headcount.errors import InputError
from headcount.heads import HeadId
from headcount.instruments.kinds import KINDS, all_kinds
from headcount.instruments.proof import SiteProof, prove
from headcount.instruments.sweep import BATCH
from headcount.results import Result
from headcount.seeds import stream
from headcount.statistics import (
    LEAST_P,
    Paired,
    Share,
    correlation_interval,
    holm,
    influences,
    paired_differences,
    paired_figures,
    paired_hits,
)

DONORS = 4
"""Other examples that stand in for each, where another example does."""
MOST_DONORS = 64
EARLY = 0.999
"""Confidence at which a first look decides."""
N_NOISE = 512
"""Examples on which the noise of a mean is measured."""
FEW = 10
"""Examples that should not carry half of a sum."""


@dataclass(frozen=True)
class Effect:
    """One head silenced in one way."""

    head: str
    short: str
    kind: str
    metric: str
    clean: float
    """The score with all heads."""
    silenced: float
    """The score without this one."""
    drop: float
    """clean - silenced: a share of 1 for hits, else in the metric's own unit; negative if it got better."""
    low: float
    high: float
    """95 % interval of the drop."""
    p: float
    """Exact McNemar (hits), bootstrap-t (means) or swaps (else), corrected over the heads of this kind (Holm)."""
    band: str | None
    """critical, important, redundant or undecided; None for a metric without points, or with nothing to lose."""
    needed: int | None
    """Examples that would decide an undecided head: the fewest, ..."""
    needed_most: int | None
    """... and the most; None if it may lie on the border itself."""
    worse: int
    better: int
    """Examples that scored worse and better than before, with several donors on average."""
    n: int
    """Examples."""
    rank_low: int
    rank_high: int
    """Its rank among the heads of this kind, 1 being the costliest: between these, by the intervals of all."""
    carried: float
    """Share of all differences, by their size, that the ten largest carry: near 1, a few examples decide."""
    length: int | None = None


@dataclass(frozen=True)
class Condition:
    """One set of examples that all heads were tried on."""

    length: int | None
    data: str
    n: int
    clean: float
    floor: float
    """What the best constant answer scores, within 10 points of which no head gets a band; for a loss, what even odds
    over all tokens or classes score, which is minus the logarithm of their number."""
    decoded: int
    """Answers that were also decoded for real, with the same verdict on each, ..."""
    decoded_kinds: tuple[str, ...]
    """... and which kinds of ablation those were of."""
    importances: tuple[Importance, ...]
    agreements: tuple[Agreement, ...]
    clean_interval: tuple[float, float]
    """95 % interval of the clean score."""
    n_mean: int
    """Inputs that means were taken over; 0 if none were."""
    donors: int
    """Other examples that stood in for each; 0 if none did."""
    decided_on: str = ""
    """The examples that heads were looked at again on, if any."""
    breakages: tuple[Breakage, ...] = ()


@dataclass(frozen=True)
class Ablation(Result):
    """Every head of a model, silenced alone."""

    SCHEMA = 3  # 2 had intervals that were too narrow, one donor, and means over the measured examples
    run: str
    model: str
    """The digest of the weights."""
    metric: str
    unit: str
    is_share: bool
    kinds: tuple[str, ...]
    heads: tuple[Effect, ...]
    conditions: tuple[Condition, ...]
    proof: tuple[SiteProof, ...]
    """That the instrument acts, site by site."""

    def harmless(self, length: int | None = None) -> tuple[str, ...]:
        """Heads that are redundant in every way that was tried."""
        return redundant_in_all(effect for effect in self.heads if effect.length == length)


def redundant_in_all(effects: Iterable[Effect]) -> tuple[str, ...]:
    """Heads all of whose effects lie under the lowest border."""
    bands: dict[str, set[str | None]] = {}
    for effect in effects:
        bands.setdefault(effect.head, set()).add(effect.band)
    return tuple(head for head, found in bands.items() if found == {"redundant"})


@dataclass(frozen=True)
class Look:
    """One head silenced in one way, on one set of examples."""

    head: HeadId
    kind: str
    n: int
    clean: float
    silenced: float
    drop: Paired
    worse: int
    better: int
    carried: float
    band: str | None
    settled: bool
    """Whether no second look is called for."""
    noise: float
    """Standard error of the drop that comes of the mean that stood in."""


@dataclass(frozen=True)
class Ablated:
    """All heads on one set of examples."""

    looks: tuple[Look, ...]
    condition: Condition
    means: Means
    metric: str

    @property
    def unsettled(self) -> tuple[Look, ...]:
        """Those that are to be looked at again."""
        return tuple(look for look in self.looks if not look.settled)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """With their p corrected over the heads of each kind."""
        kinds = dict.fromkeys(look.kind for look in self.looks)
        return tuple(effect for kind in kinds for effect in self._of_kind(kind))

    def _of_kind(self, kind: str) -> list[Effect]:
        mine = [look for look in self.looks if look.kind == kind]
        low, high = (np.array([getattr(look.drop, end) for look in mine]) for end in ("low", "high"))
        effects = []
        for look, p in zip(mine, holm([look.drop.p for look in mine]), strict=True):
            more = (needed(look.drop, look.n) if look.band == "undecided" else None) or (None, None)
            effects.append(
                Effect(
                    head=str(look.head),
                    short=look.head.short,
                    kind=kind,
                    metric=self.metric,
                    clean=look.clean,
                    silenced=look.silenced,
                    drop=look.drop.mean,
                    low=look.drop.low,
                    high=look.drop.high,
                    p=p,
                    band=look.band,
                    needed=more[0],
                    needed_most=more[1],
                    worse=look.worse,
                    better=look.better,
                    n=look.n,
                    rank_low=1 + int((low > look.drop.high).sum()),
                    rank_high=len(mine) - int((high < look.drop.low).sum()),
                    carried=look.carried,
                    length=self.condition.length,
                )
            )
        return effects


def ablate(
    subject: Subject,
    kinds: Sequence[str] | None = None,
    *,
    donors: int = DONORS,
    length: int | None = None,
    examples: bool = False,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> Ablated:
    """Silence every head alone, in these ways or in all, as one job; with `examples`, say what broke."""
    kinds = all_kinds() if kinds is None else tuple(dict.fromkeys(kinds))
    if not kinds:
        raise InputError("no kind of ablation", f"there are: {', '.join(all_kinds())}")
    if not 1 <= donors <= MOST_DONORS:
        raise InputError(f"{donors} donors cannot stand in", f"from 1 to {MOST_DONORS}")
    asked = [(head, kind) for kind in kinds for head in subject.sites.heads]
    trials = _trials(asked, donors)
    proof_of(subject)
    needs_mean = any(KINDS.get(kind).needs_mean for kind in kinds)
    means: Means = means_of(subject) if needs_mean else ()
    redecoder = Redecoder(subject, trials, explain=examples)
    found, looks = look_at(
        subject, asked, means, donors=donors, batch_size=batch_size, progress=progress, look=redecoder
    )
    gradients = importances(subject)
    condition = Condition(
        length=length,
        data=subject.data,
        n=subject.n,
        clean=float(subject.figure(found.clean)),
        floor=found.floor,
        decoded=redecoder.decoded,
        decoded_kinds=redecoder.decoded_kinds,
        importances=gradients,
        agreements=(),
        breakages=redecoder.breakages(),
        clean_interval=interval_of(subject, found.clean, "clean"),
        n_mean=subject.n_reference if needs_mean else 0,
        donors=donors if any(KINDS.get(kind).needs_others for kind in kinds) else 0,
    )
    return _with_agreements(Ablated(looks, condition, means, subject.metric.name))


def look_at(
    subject: Subject,
    asked: Sequence[tuple[HeadId, str]],
    means: Means,
    *,
    donors: int = DONORS,
    batch_size: int = BATCH,
    progress: Progress | None = None,
    look: Callable[[Tried], None] | None = None,
) -> tuple[Outcome, tuple[Look, ...]]:
    """Heads silenced alone, each in one way, on a model on which the instrument was proven."""
    trials, some = _trials(asked, donors), subject.some(N_NOISE)
    n_blocks = len(subject.blocks), len(some.blocks) if any(KINDS.get(kind).needs_mean for _, kind in asked) else 0
    first, then = (progress and partial(_later, progress, before, sum(n_blocks)) for before in (0, n_blocks[0]))
    found = run_trials(subject, trials, batch_size=batch_size, proven=True, means=means, progress=first, look=look)
    noise = _noise(some, asked, trials, found, means, batch_size, then)
    return found, _looks(subject, asked, trials, found, noise)


def decide(
    ablated: Ablated, more: Subject, *, donors: int = DONORS, batch_size: int = BATCH, progress: Progress | None = None
) -> Ablated:
    """Look again at heads that are not settled, on other examples, which alone count for them."""
    fewer = more if more.is_all else more.some(more.n // donors)  # each with several donors, and so at the same cost
    better, done = dict[tuple[HeadId, str], Look](), 0
    total = len(more.blocks) + len(fewer.blocks)
    for subject, drawn in ((more, False), (fewer, True)):
        unsettled = [look for look in ablated.unsettled if KINDS.get(look.kind).needs_others is drawn]
        asked = [(look.head, look.kind) for look in unsettled]
        trials, report = _trials(asked, donors), progress and partial(_later, progress, done, total)
        done += len(subject.blocks)
        if asked:
            found = run_trials(
                subject, trials, batch_size=batch_size, proven=True, means=ablated.means, progress=report
            )
            again = _looks(subject, asked, trials, found, [look.noise for look in unsettled])
            better |= {(look.head, look.kind): look for look in again}
    looks = tuple(better.get((look.head, look.kind), look) for look in ablated.looks)
    told = f"{more.n:,} {more.data}" + (f" ({fewer.n:,} of them by resample)" if fewer.n < more.n else "")
    return _with_agreements(replace(ablated, looks=looks, condition=replace(ablated.condition, decided_on=told)))


def _later(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    """Progress of a part that begins when so much is done."""
    progress(before + done, total)


def _with_agreements(ablated: Ablated) -> Ablated:
    kinds = tuple(dict.fromkeys(look.kind for look in ablated.looks))
    found = agreements(ablated.condition.importances, ablated.effects, kinds)
    return replace(ablated, condition=replace(ablated.condition, agreements=found))


def _trials(asked: Sequence[tuple[HeadId, str]], donors: int) -> list[Trial]:
    """Several for each head where the stand-in is drawn."""
    return [
        Trial((head,), kind, draw)
        for head, kind in asked
        for draw in range(donors if KINDS.get(kind).needs_others else 1)
    ]


def _looks(
    subject: Subject,
    asked: Sequence[tuple[HeadId, str]],
    trials: Sequence[Trial],
    found: Outcome,
    noise: Sequence[float],
) -> tuple[Look, ...]:
    whole = float(subject.figure(found.clean))
    can_lose = subject.metric.in_points and whole - subject.floor >= CRITICAL
    scores = _by_head(asked, trials, found)
    drawn = donors_of(subject, max(trial.draw for trial in trials) + 1) if trials else None
    donors = [drawn if KINDS.get(kind).needs_others else None for _, kind in asked]
    early: list[str | None] = [None] * len(asked)
    if can_lose and subject.metric.is_share:
        early = [band_of(drop) for drop in compare(subject, found.clean, scores, "heads", noise, EARLY, donors)]
    looks = []
    family = len({head for head, _ in asked})
    drops = compare(subject, found.clean, scores, "heads", noise, donors=donors, family=family)
    for (head, kind), silenced_DN, drop, sure, se in zip(asked, scores, drops, early, noise, strict=True):
        lost = found.clean - silenced_DN.mean(axis=0)
        largest = np.sort(np.abs(lost))[::-1]
        looks.append(
            Look(
                head=head,
                kind=kind,
                n=subject.n,
                clean=whole,
                silenced=float(subject.figure(silenced_DN).mean()),
                drop=drop,
                worse=int((lost > 0).sum()),
                better=int((lost < 0).sum()),
                carried=float(largest[:FEW].sum() / largest.sum()) if largest[0] > 0 else 0.0,
                band=band_of(drop) if can_lose else None,
                settled=sure is None or (sure != "undecided" and not lost.any()),
                noise=se,
            )
        )
    return tuple(looks)


def _by_head(asked: Sequence[tuple[HeadId, str]], trials: Sequence[Trial], found: Outcome) -> list[NDArray[np.float64]]:
    """Scores [donor, example] of each head and kind."""
    rows: dict[tuple[HeadId, str], list[int]] = {}
    for i, trial in enumerate(trials):
        rows.setdefault((trial.heads[0], trial.kind), []).append(i)
    return [found.scores[rows[each]] for each in asked]


def _noise(
    some: Subject,
    asked: Sequence[tuple[HeadId, str]],
    trials: Sequence[Trial],
    found: Outcome,
    means: Means,
    batch_size: int,
    progress: Progress | None,
) -> list[float]:
    """Standard error of each drop that comes of a mean being over so many inputs and no more, on some examples.

    Each part of the inputs has a mean of its own: what drops differ in between them, less by the root of their number.
    """
    changed = {
        each
        for each, scores in zip(asked, _by_head(asked, trials, found), strict=True)
        if KINDS.get(each[1]).needs_mean and (scores != found.clean).any()
    }
    parts = [
        Trial((head,), kind, draw) for head, kind in asked if (head, kind) in changed for draw in range(1, PARTS + 1)
    ]
    noise = dict.fromkeys(changed, 0.0)
    if parts:
        by_part = run_trials(some, parts, batch_size=batch_size, proven=True, means=means, progress=progress)
        figures = some.figure(by_part.scores).reshape(-1, PARTS)
        each = [pair for pair in asked if pair in changed]
        noise = dict(zip(each, (figures.std(axis=1, ddof=1) / np.sqrt(PARTS)).tolist(), strict=True))
    return [noise.get(each, 0.0) for each in asked]


def proof_of(subject: Subject) -> tuple[SiteProof, ...]:
    """That the instrument acts on this model."""
    return prove(subject.model, subject.sites, subject.blocks[0].inputs)


def compare(
    subject: Subject,
    clean: NDArray[np.float64],
    silenced: Sequence[NDArray[np.float64]],
    name: str,
    noise: Sequence[float] = (),
    confidence: float = 0.95,
    donors: Sequence[Donors | None] = (),
    family: int = 1,
) -> list[Paired]:
    """What was lost by each, example by example; scores are [example] or [donor, example].

    `name` is that of the random stream; `noise` is the standard error of whatever stood in; `donors` are those of each
    comparison, if others' outputs did; `family` is over how many tests p is corrected, so that it can become small
    enough. Only hits can be compared at another `confidence` than 95 %.
    """
    rng, tries = stream(0, f"compare {name}"), [np.atleast_2d(scores) for scores in silenced]
    pairs = list(zip(tries, donors or [None] * len(tries), strict=True))
    if subject.total is not mean_total:
        draws = max(999, LEAST_P * family)
        drops = [paired_figures(clean, each, subject.total, rng, draws, own) for each, own in pairs]
    elif subject.metric.is_share:
        drops = [paired_hits(clean > 0.5, each, confidence, own) for each, own in pairs]
    else:
        most = max((float((clean - each.mean(axis=0)).max()) for each in tries), default=0.0)
        lost = np.array([(clean - each).mean() + influences(clean - each, own) for each, own in pairs])
        broken = None if subject.broken is None else max(subject.broken, most)
        values = _clustered(subject, lost.reshape(len(tries), len(clean)))
        drops = paired_differences(values, rng, broken, LEAST_P * family)
    if subject.is_all:  # but for donors, which are drawn all the same
        known = [replace(drop, low=drop.mean, high=drop.mean) for drop in drops]
        drops = [exact if own is None else drop for drop, exact, (_, own) in zip(drops, known, pairs, strict=True)]
    if not any(noise):
        return drops
    wider = [drop.widened(se, PARTS - 1, confidence) if se else drop for drop, se in zip(drops, noise, strict=True)]
    if not subject.metric.is_share:
        return wider
    least = 0.0 if (clean > 0.5).all() else -1.0  # what is all right cannot get better
    return [replace(drop, low=max(drop.low, least), high=min(drop.high, 1.0)) for drop in wider]


def _clustered(subject: Subject, values_KN: NDArray[np.float64]) -> NDArray[np.float64]:
    """Examples that belong together count as one; the mean stays what it is."""
    if subject.clusters is None:
        return values_KN
    _, place = np.unique(subject.clusters, return_inverse=True)
    n_clusters = int(place.max()) + 1
    means, sizes = values_KN.mean(axis=1, keepdims=True), np.bincount(place)
    sums = np.array([np.bincount(place, values, n_clusters) for values in values_KN - means])
    return means + sums / sizes.mean()


def interval_of(subject: Subject, scores: NDArray[np.float64], name: str) -> tuple[float, float]:
    """95 % interval of what these scores come to by themselves: Wilson's for hits, bootstrap-t for other means."""
    if subject.total is not mean_total:
        return correlation_interval(scores, subject.total)
    if subject.metric.is_share:
        share = Share.count(scores > 0.5)
        return share.low, share.high
    losses = _clustered(subject, -scores[None])
    broken = None if subject.broken is None else max(subject.broken, float(np.ptp(scores)))
    (found,) = paired_differences(losses, stream(0, f"interval {name}"), broken)
    return -found.high, -found.low
