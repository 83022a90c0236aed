"""Which heads count? Silence each alone, and compare answers on the same examples.

Heads whose silence changes any answer are looked at again, on many fresh examples, which alone count for them: what was
chosen for being large on some examples is less so on others. Of heads that change nothing, the first look decides, at
99.9 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from headcount.analysis.importance import Agreement, Importance, agreements, importances
from headcount.errors import InputError
from headcount.experiments.decoding_check import DecodingCheck, FailureProfile
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import (
    PARTS,
    BatchOutcome,
    Means,
    Outcome,
    Progress,
    compare,
    donors_of,
    interval_of,
    means_of,
    run_interventions,
)
from headcount.heads import HeadId
from headcount.hooks import REPLACEMENTS
from headcount.hooks.proof import SiteProof, prove
from headcount.hooks.replay import Intervention
from headcount.limits import BATCH, DONORS
from headcount.results import Result
from headcount.stats import CRITICAL, FEW, PairedDifference, band_of, examples_needed, holm

MOST_DONORS = 64
EARLY = 0.999
"""Confidence at which a first look decides."""
N_NOISE = 512
"""Examples on which the noise of a mean is measured."""


@dataclass(frozen=True)
class Effect:
    """One head silenced in one way."""

    head: str
    short: str
    replacement: str
    metric: str
    clean: float
    """The score with all heads."""
    ablated: float
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
    examples_needed: int | None
    """Examples that would decide an undecided head: the fewest, ..."""
    examples_needed_most: int | None
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
    majority_baseline: float
    """What the best constant answer scores, within 10 points of which no head gets a band; for a loss, what even odds
    over all tokens or classes score, which is minus the logarithm of their number."""
    decoded: int
    """Answers that were also decoded for real, with the same verdict on each, ..."""
    decoded_replacements: tuple[str, ...]
    """... and which kinds of ablation those were of."""
    importances: tuple[Importance, ...]
    agreements: tuple[Agreement, ...]
    clean_interval: tuple[float, float]
    """95 % interval of the clean score."""
    n_mean: int
    """Inputs that means were taken over; 0 if none were."""
    donors: int
    """Other examples that stood in for each; 0 if none did."""
    is_plain: bool = False
    """Whether every ablation was a whole forward pass, for modules that keep state."""
    decided_on: str = ""
    """The examples that heads were looked at again on, if any."""
    failures: tuple[FailureProfile, ...] = ()


@dataclass(frozen=True)
class Ablation(Result):
    """Every head of a model, silenced alone."""

    SCHEMA: ClassVar[int] = 4
    FORMER: ClassVar[Mapping[str, str]] = {
        "run": "name",
        "model": "weights_sha256",
        "kind": "replacement",
        "kinds": "replacements",
        "decoded_kinds": "decoded_replacements",
        "silenced": "ablated",
        "floor": "majority_baseline",
        "breakages": "failures",
        "needed": "examples_needed",
        "needed_most": "examples_needed_most",
        "is_share": "is_accuracy",
        "moved": "output_change",
        "leaked": "cross_row_effect",
        "said": "predicted",
        "why": "explanation",
    }
    name: str
    weights_sha256: str
    metric: str
    unit: str
    is_accuracy: bool
    replacements: tuple[str, ...]
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
class Measurement:
    """One head silenced in one way, on one set of examples."""

    head: HeadId
    replacement: str
    n: int
    clean: float
    ablated: float
    drop: PairedDifference
    worse: int
    better: int
    carried: float
    band: str | None
    settled: bool
    """Whether no second look is called for."""
    noise: float
    """Standard error of the drop that comes of the mean that stood in."""


@dataclass(frozen=True)
class AblationRun:
    """All heads on one set of examples."""

    measurements: tuple[Measurement, ...]
    condition: Condition
    means: Means
    metric: str
    proof: tuple[SiteProof, ...]
    """That the hooks act on the model, site by site."""

    @property
    def unsettled(self) -> tuple[Measurement, ...]:
        """Those that are to be looked at again."""
        return tuple(measurement for measurement in self.measurements if not measurement.settled)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """With their p corrected over the heads of each kind."""
        replacements = dict.fromkeys(measurement.replacement for measurement in self.measurements)
        return tuple(effect for replacement in replacements for effect in self._of_kind(replacement))

    def _of_kind(self, replacement: str) -> list[Effect]:
        mine = [measurement for measurement in self.measurements if measurement.replacement == replacement]
        low, high = (np.array([getattr(measurement.drop, end) for measurement in mine]) for end in ("low", "high"))
        effects = []
        for measurement, p in zip(mine, holm([measurement.drop.p for measurement in mine]), strict=True):
            more = (examples_needed(measurement.drop, measurement.n) if measurement.band == "undecided" else None) or (
                None,
                None,
            )
            effects.append(
                Effect(
                    head=str(measurement.head),
                    short=measurement.head.short,
                    replacement=replacement,
                    metric=self.metric,
                    clean=measurement.clean,
                    ablated=measurement.ablated,
                    drop=measurement.drop.mean,
                    low=measurement.drop.low,
                    high=measurement.drop.high,
                    p=p,
                    band=measurement.band,
                    examples_needed=more[0],
                    examples_needed_most=more[1],
                    worse=measurement.worse,
                    better=measurement.better,
                    n=measurement.n,
                    rank_low=1 + int((low > measurement.drop.high).sum()),
                    rank_high=len(mine) - int((high < measurement.drop.low).sum()),
                    carried=measurement.carried,
                    length=self.condition.length,
                )
            )
        return effects


def ablate(
    experiment: Experiment,
    replacements: Sequence[str] | None = None,
    *,
    donors: int = DONORS,
    length: int | None = None,
    examples: bool = False,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> AblationRun:
    """Silence every head alone, in these ways or in all, as one job; with `examples`, say what broke."""
    replacements = REPLACEMENTS.names() if replacements is None else tuple(dict.fromkeys(replacements))
    if not replacements:
        raise InputError("no kind of ablation", f"there are: {', '.join(REPLACEMENTS.names())}")
    if not 1 <= donors <= MOST_DONORS:
        raise InputError(f"{donors} donors cannot stand in", f"from 1 to {MOST_DONORS}")
    asked = [(head, replacement) for replacement in replacements for head in experiment.sites.heads]
    interventions = _interventions(asked, donors)
    proof = prove(experiment.model, experiment.sites, experiment.batches[0].inputs)
    needs_mean = any(REPLACEMENTS.get(replacement).needs_mean for replacement in replacements)
    means: Means = means_of(experiment) if needs_mean else ()
    check = DecodingCheck(experiment, interventions, explain=examples)
    found, measurements = measure(
        experiment, asked, means, donors=donors, batch_size=batch_size, progress=progress, on_batch=check
    )
    gradients = importances(experiment)
    condition = Condition(
        length=length,
        data=experiment.data,
        n=experiment.n,
        clean=float(experiment.aggregate(found.clean)),
        majority_baseline=found.majority_baseline,
        decoded=check.decoded,
        decoded_replacements=check.decoded_replacements,
        importances=gradients,
        agreements=(),
        failures=check.failures(),
        is_plain=found.is_plain,
        clean_interval=interval_of(experiment, found.clean, "clean"),
        n_mean=experiment.n_reference if needs_mean else 0,
        donors=donors if any(REPLACEMENTS.get(replacement).needs_donors for replacement in replacements) else 0,
    )
    return _with_agreements(AblationRun(measurements, condition, means, experiment.metric.name, proof))


def measure(
    experiment: Experiment,
    asked: Sequence[tuple[HeadId, str]],
    means: Means,
    *,
    donors: int = DONORS,
    batch_size: int = BATCH,
    progress: Progress | None = None,
    on_batch: Callable[[BatchOutcome], None] | None = None,
) -> tuple[Outcome, tuple[Measurement, ...]]:
    """Heads silenced alone, each in one way, on a model on which the instrument was proven."""
    interventions, some = _interventions(asked, donors), experiment.some(N_NOISE)
    n_batches = (
        len(experiment.batches),
        len(some.batches) if any(REPLACEMENTS.get(replacement).needs_mean for _, replacement in asked) else 0,
    )
    first, then = (progress and partial(_later, progress, before, sum(n_batches)) for before in (0, n_batches[0]))
    found = run_interventions(
        experiment, interventions, batch_size=batch_size, proven=True, means=means, progress=first, on_batch=on_batch
    )
    noise = _noise(some, asked, interventions, found, means, batch_size, then)
    return found, _measurements(experiment, asked, interventions, found, noise)


def decide(
    run: AblationRun,
    more: Experiment,
    *,
    donors: int = DONORS,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> AblationRun:
    """Look again at heads that are not settled, on other examples, which alone count for them."""
    fewer = more if more.is_all else more.some(more.n // donors)  # each with several donors, and so at the same cost
    better, done = dict[tuple[HeadId, str], Measurement](), 0
    total = len(more.batches) + len(fewer.batches)
    for experiment, drawn in ((more, False), (fewer, True)):
        unsettled = [
            measurement
            for measurement in run.unsettled
            if REPLACEMENTS.get(measurement.replacement).needs_donors is drawn
        ]
        asked = [(measurement.head, measurement.replacement) for measurement in unsettled]
        interventions, report = _interventions(asked, donors), progress and partial(_later, progress, done, total)
        done += len(experiment.batches)
        if asked:
            found = run_interventions(
                experiment, interventions, batch_size=batch_size, proven=True, means=run.means, progress=report
            )
            again = _measurements(
                experiment, asked, interventions, found, [measurement.noise for measurement in unsettled]
            )
            better |= {(measurement.head, measurement.replacement): measurement for measurement in again}
    measurements = tuple(
        better.get((measurement.head, measurement.replacement), measurement) for measurement in run.measurements
    )
    told = f"{more.n:,} {more.data}" + (f" ({fewer.n:,} of them by resample)" if fewer.n < more.n else "")
    return _with_agreements(replace(run, measurements=measurements, condition=replace(run.condition, decided_on=told)))


def _later(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    """Progress of a part that begins when so much is done."""
    progress(before + done, total)


def _with_agreements(run: AblationRun) -> AblationRun:
    replacements = tuple(dict.fromkeys(measurement.replacement for measurement in run.measurements))
    found = agreements(run.condition.importances, run.effects, replacements)
    return replace(run, condition=replace(run.condition, agreements=found))


def _interventions(asked: Sequence[tuple[HeadId, str]], donors: int) -> list[Intervention]:
    """Several for each head where the stand-in is drawn."""
    return [
        Intervention((head,), replacement, draw)
        for head, replacement in asked
        for draw in range(donors if REPLACEMENTS.get(replacement).needs_donors else 1)
    ]


def _measurements(
    experiment: Experiment,
    asked: Sequence[tuple[HeadId, str]],
    interventions: Sequence[Intervention],
    found: Outcome,
    noise: Sequence[float],
) -> tuple[Measurement, ...]:
    whole = float(experiment.aggregate(found.clean))
    can_lose = experiment.metric.in_points and whole - experiment.majority_baseline >= CRITICAL
    scores = _by_head(asked, interventions, found)
    drawn = (
        donors_of(experiment, max(intervention.draw for intervention in interventions) + 1) if interventions else None
    )
    donors = [drawn if REPLACEMENTS.get(replacement).needs_donors else None for _, replacement in asked]
    early: list[str | None] = [None] * len(asked)
    if can_lose and experiment.metric.is_accuracy:
        early = [band_of(drop) for drop in compare(experiment, found.clean, scores, "heads", noise, EARLY, donors)]
    measurements = []
    family = len({head for head, _ in asked})
    drops = compare(experiment, found.clean, scores, "heads", noise, donors=donors, family=family)
    for (head, replacement), ablated_DN, drop, sure, se in zip(asked, scores, drops, early, noise, strict=True):
        lost = found.clean - ablated_DN.mean(axis=0)
        largest = np.sort(np.abs(lost))[::-1]
        measurements.append(
            Measurement(
                head=head,
                replacement=replacement,
                n=experiment.n,
                clean=whole,
                ablated=float(experiment.aggregate(ablated_DN).mean()),
                drop=drop,
                worse=int((lost > 0).sum()),
                better=int((lost < 0).sum()),
                carried=float(largest[:FEW].sum() / largest.sum()) if largest[0] > 0 else 0.0,
                band=band_of(drop) if can_lose else None,
                settled=sure is None or (sure != "undecided" and not lost.any()),
                noise=se,
            )
        )
    return tuple(measurements)


def _by_head(
    asked: Sequence[tuple[HeadId, str]], interventions: Sequence[Intervention], found: Outcome
) -> list[NDArray[np.float64]]:
    """Scores [donor, example] of each head and kind."""
    rows: dict[tuple[HeadId, str], list[int]] = {}
    for i, intervention in enumerate(interventions):
        rows.setdefault((intervention.heads[0], intervention.replacement), []).append(i)
    return [found.scores[rows[each]] for each in asked]


def _noise(
    some: Experiment,
    asked: Sequence[tuple[HeadId, str]],
    interventions: Sequence[Intervention],
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
        for each, scores in zip(asked, _by_head(asked, interventions, found), strict=True)
        if REPLACEMENTS.get(each[1]).needs_mean and (scores != found.clean).any()
    }
    parts = [
        Intervention((head,), replacement, draw)
        for head, replacement in asked
        if (head, replacement) in changed
        for draw in range(1, PARTS + 1)
    ]
    noise = dict.fromkeys(changed, 0.0)
    if parts:
        by_part = run_interventions(some, parts, batch_size=batch_size, proven=True, means=means, progress=progress)
        figures = some.aggregate(by_part.scores).reshape(-1, PARTS)
        each = [pair for pair in asked if pair in changed]
        noise = dict(zip(each, (figures.std(axis=1, ddof=1) / np.sqrt(PARTS)).tolist(), strict=True))
    return [noise.get(each, 0.0) for each in asked]
