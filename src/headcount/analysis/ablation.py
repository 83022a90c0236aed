"""Which heads count? Silence each alone, and compare answers on the same examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headcount.analysis.bands import CRITICAL, band_of, needed
from headcount.analysis.breakage import Breakage
from headcount.analysis.importance import Agreement, Importance, agreements, importances
from headcount.analysis.redecoding import Redecoder
from headcount.analysis.subjects import Subject, mean_total
from headcount.analysis.trials import Outcome, Progress, Trial, run_trials
from headcount.errors import InputError
from headcount.instruments.kinds import all_kinds
from headcount.instruments.proof import SiteProof, prove
from headcount.instruments.sweep import BATCH
from headcount.results import Result
from headcount.seeds import stream
from headcount.statistics import Paired, Share, figure_interval, holm, paired_differences, paired_figures, paired_hits


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
    """Exact McNemar (hits) or sign flips (else), corrected over heads (Holm)."""
    band: str | None
    """critical, important, redundant or undecided; None for a metric without points, or with nothing to lose."""
    needed: int | None
    """Examples that would decide an undecided head."""
    worse: int
    better: int
    """Examples that scored worse and better than before."""
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
    """Answers that were also decoded for real, with the same verdict on each."""
    importances: tuple[Importance, ...]
    agreements: tuple[Agreement, ...]
    clean_interval: tuple[float, float]
    """95 % interval of the clean score."""
    breakages: tuple[Breakage, ...] = ()


@dataclass(frozen=True)
class Ablation(Result):
    """Every head of a model, silenced alone."""

    SCHEMA = 2  # 1 had a floor of 0 for losses
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


@dataclass(frozen=True)
class Ablated:
    """All heads on one set of examples."""

    effects: tuple[Effect, ...]
    condition: Condition


def ablate(
    subject: Subject,
    kinds: Sequence[str] | None = None,
    *,
    length: int | None = None,
    examples: bool = False,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> Ablated:
    """Silence every head alone, in these ways or in all, as one job; with `examples`, say what broke."""
    kinds = all_kinds() if kinds is None else tuple(dict.fromkeys(kinds))
    if not kinds:
        raise InputError("no kind of ablation", f"there are: {', '.join(all_kinds())}")
    trials = [Trial((head,), kind) for kind in kinds for head in subject.sites.heads]
    redecoder = Redecoder(subject, trials, explain=examples)
    found = run_trials(subject, trials, batch_size=batch_size, progress=progress, look=redecoder)
    effects = [each for kind in kinds for each in _effects(subject, trials, kind, found, length)]
    gradients = importances(subject)
    return Ablated(
        tuple(effects),
        Condition(
            length=length,
            data=subject.data,
            n=subject.n,
            clean=float(subject.figure(found.clean)),
            floor=found.floor,
            decoded=redecoder.decoded,
            importances=gradients,
            agreements=agreements(gradients, effects, kinds),
            breakages=redecoder.breakages(),
            clean_interval=interval_of(subject, found.clean, "clean"),
        ),
    )


def proof_of(subject: Subject) -> tuple[SiteProof, ...]:
    """That the instrument acts on this model."""
    return prove(subject.model, subject.sites, subject.blocks[0].inputs)


def compare(subject: Subject, clean: NDArray[np.float64], silenced: NDArray[np.float64], name: str) -> Paired:
    """What was lost, example by example; `name` is that of the random stream."""
    rng = stream(0, f"compare {name}")
    if subject.total is not mean_total:
        return paired_figures(clean, silenced, subject.total, rng)
    if subject.metric.is_share:
        return paired_hits(clean > 0.5, silenced > 0.5, rng)
    return paired_differences(clean - silenced, rng)


def interval_of(subject: Subject, scores: NDArray[np.float64], name: str) -> tuple[float, float]:
    """95 % interval of what these scores come to by themselves: Wilson's for hits, else a bootstrap over examples."""
    if subject.metric.is_share and subject.total is mean_total:
        share = Share.count(scores > 0.5)
        return share.low, share.high
    return figure_interval(scores, subject.total, stream(0, f"interval {name}"))


def _effects(subject: Subject, trials: Sequence[Trial], kind: str, found: Outcome, length: int | None) -> list[Effect]:
    """One kind: a family of tests."""
    metric, clean = subject.metric, found.clean
    whole = float(subject.figure(clean))
    can_lose = metric.in_points and whole - subject.floor >= CRITICAL
    mine = [(trial.heads[0], scores) for trial, scores in zip(trials, found.scores, strict=True) if trial.kind == kind]
    drops = [compare(subject, clean, scores, f"{kind} {head}") for head, scores in mine]
    effects = []
    for (head, scores), drop, p in zip(mine, drops, holm([drop.p for drop in drops]), strict=True):
        band = band_of(drop) if can_lose else None
        effects.append(
            Effect(
                head=str(head),
                short=head.short,
                kind=kind,
                metric=metric.name,
                clean=whole,
                silenced=float(subject.figure(scores)),
                drop=drop.mean,
                low=drop.low,
                high=drop.high,
                p=p,
                band=band,
                needed=needed(drop, subject.n) if band == "undecided" else None,
                worse=int((scores < clean).sum()),
                better=int((scores > clean).sum()),
                length=length,
            )
        )
    return effects
