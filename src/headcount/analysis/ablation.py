"""Which heads count? Ablate each alone, and compare answers on the same examples.

Heads whose ablation changes any answer are measured again, on many fresh examples, which alone count for them: what was
chosen for being large on some examples is less so on others. Of heads that change nothing, the first measurement
decides, at 99.9 %.

Beside that stands gradient importance: how fast the loss would rise if a head's gate began to close.

    importance(h) = mean over examples of | dL / dg_h |  at g = 1        (Michel et al. 2019, arXiv 1905.10650)

Michel et al. also divide it by the norm of its layer's, sqrt(sum of squares); both are given. One backward pass for
all heads: cheap, and often taken for the effect of removing them. So its agreement with that effect is measured too.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.analysis.contradictions import ablation_contradictions, effect_contradictions
from headcount.bands import CRITICAL, FEW, band_of, examples_needed, ranked_by
from headcount.errors import InputError
from headcount.experiments.decoding_check import DecodingCheck, FailureProfile, require_same_answers
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
from headcount.heads import HeadId, HeadSite
from headcount.hooks import REPLACEMENTS
from headcount.hooks.gates import Gates, eval_mode
from headcount.hooks.proof import SiteProof, first_tensor, prove
from headcount.hooks.replay import Intervention
from headcount.limits import BATCH, DONORS
from headcount.results import Contradiction, Count, HeadName, Positive, Result, Share, Size, misnamed, outside
from headcount.seeds import stream
from headcount.stats import PairedDifference, RankAgreement, holm, rank_agreement

MOST_DONORS = 64
EARLY = 0.999
"""Confidence at which a first measurement decides."""
N_NOISE = 512
"""Examples on which the noise of a mean is measured."""


@dataclass(frozen=True)
class Effect:
    """One head, ablated with one replacement."""

    head: HeadName
    short: str
    replacement: str
    metric: str
    clean: float
    """The score with all heads."""
    ablated: float
    """The score without this one."""
    drop: float
    """clean - ablated: a share of 1 for hits, else in the metric's own unit; negative if it got better."""
    low: float
    high: float
    """95 % interval of the drop of this head by itself: it is not corrected for the number of heads, `p` is."""
    p: Share
    """Exact McNemar (hits), bootstrap-t (means) or swaps (else), corrected over heads (Holm)."""
    band: str | None
    """critical, important, redundant or undecided; None for a metric without points, or with nothing to lose."""
    examples_needed: int | None
    """Examples that would decide an undecided head: the fewest, ..."""
    examples_needed_most: int | None
    """... and the most; None if it may lie on the border itself."""
    worse: Count
    better: Count
    """Examples that scored worse and better than before, with several donors on average."""
    n: Positive
    """Examples."""
    rank_low: Positive
    rank_high: Positive
    """Its rank among the heads with this replacement, 1 being the costliest: between these, by the intervals of all."""
    carried: Share
    """Share of all differences, by their size, that the ten largest carry: near 1, a few examples decide."""
    length: Positive | None = None

    @property
    def rank(self) -> str:
        """Return the rank, or the range of ranks that the intervals leave open, such as `3-5`."""
        return "-".join(map(str, dict.fromkeys((self.rank_low, self.rank_high))))

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the head's names, its interval, its counts and its band."""
        yield from misnamed(self)
        yield from effect_contradictions(self)
        yield from outside(self, "drop")


@dataclass(frozen=True)
class Importance:
    """One head's gradient."""

    head: HeadName
    importance: Size
    se: Size | None
    """Standard error over examples; None for a single one."""
    normalised: Share
    """Divided by the norm of all heads of its site."""


@dataclass(frozen=True)
class Agreement:
    """Whether gradients rank the heads as ablating them does (Spearman)."""

    replacement: str
    normalised: bool
    """Whether gradients were divided by their site's norm."""
    n_heads: Count
    found: RankAgreement | None
    """None if all heads have the same drop."""


@dataclass(frozen=True)
class Condition:
    """One set of examples that all heads were ablated on."""

    length: Positive | None
    data: str
    n: Positive
    clean: float
    majority_baseline: float
    """What the best constant answer scores, within 10 points of which no head gets a band; for a loss, what even odds
    over all tokens or classes score, which is minus the logarithm of their number."""
    decoded: Count
    """Answers that were also decoded for real, with the same verdict on each, ..."""
    decoded_replacements: tuple[str, ...]
    """... and with which replacements."""
    importances: tuple[Importance, ...]
    agreements: tuple[Agreement, ...]
    clean_interval: tuple[float, float]
    """95 % interval of the clean score."""
    n_mean: Count
    """Inputs that means were taken over; 0 if none were."""
    donors: Count
    """Other examples that replaced each; 0 if none did."""
    is_plain: bool = False
    """Whether every ablation was a whole forward pass, for modules that keep state."""
    decided_on: str = ""
    """The examples that heads were measured again on, if any."""
    failures: tuple[FailureProfile, ...] = ()


@dataclass(frozen=True)
class Ablation(Result):
    """Every head of a model, ablated alone."""

    ROWS: ClassVar[tuple[str, ...]] = ("heads",)
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
    """That the hooks act, site by site."""
    audit: str = ""
    """What is at the bottom of what quick checks of the whole model found; empty if none fails."""

    @property
    def ranked_by(self) -> str:
        """The replacement that heads are ranked by."""
        return ranked_by(self.replacements)

    def effects(self, replacement: str, length: int | None = None) -> list[Effect]:
        """Return the effect of every head with one replacement at one length, in the order of the model."""
        return [each for each in self.heads if (each.length, each.replacement) == (length, replacement)]

    def ranking(self, length: int | None = None) -> dict[str, dict[str, Effect]]:
        """Return the effects of each head by replacement, the costliest head to remove first.

        Heads with the same drop are ranked by the other replacements.
        """
        by_head: dict[str, dict[str, Effect]] = {}
        for effect in self.heads:
            if effect.length == length:
                by_head.setdefault(effect.head, {})[effect.replacement] = effect
        order = sorted(self.replacements, key=lambda name: name != self.ranked_by)
        return dict(sorted(by_head.items(), key=lambda item: [-item[1][name].drop for name in order]))

    def printed_rows(self) -> list[dict[str, Any]]:
        """Return one row per head, length and replacement: the costliest to remove first, then other replacements."""
        return sorted(self.to_rows(), key=lambda row: (row["replacement"] != self.ranked_by, -row["drop"]))

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the effects of all heads with each other and with their conditions."""
        return ablation_contradictions(self)

    def harmless(self, length: int | None = None) -> tuple[str, ...]:
        """Return the heads that are redundant with every replacement."""
        bands: dict[str, set[str | None]] = {}
        for effect in self.heads:
            if effect.length == length:
                bands.setdefault(effect.head, set()).add(effect.band)
        return tuple(head for head, of_head in bands.items() if of_head == {"redundant"})


@dataclass(frozen=True)
class Measurement:
    """One head, ablated with one replacement, on one set of examples."""

    head: HeadId
    replacement: str
    drop: PairedDifference
    effect: Effect
    """By itself: its p is not corrected, and it has no rank among others."""
    settled: bool
    """Whether it need not be measured again."""
    noise: float
    """Standard error of the drop that comes of the mean that replaced the head's output."""


@dataclass(frozen=True)
class AblationRun:
    """All heads on one set of examples."""

    measurements: tuple[Measurement, ...]
    condition: Condition
    means: Means
    proof: tuple[SiteProof, ...]
    """That the hooks act on the model, site by site."""

    @property
    def unsettled(self) -> tuple[Measurement, ...]:
        """Those that are to be measured again."""
        return tuple(measurement for measurement in self.measurements if not measurement.settled)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """With their p corrected, and ranked, over the heads of each replacement."""
        effects = list[Effect]()
        for replacement in dict.fromkeys(measurement.replacement for measurement in self.measurements):
            mine = [measurement for measurement in self.measurements if measurement.replacement == replacement]
            low, high = (np.array([getattr(each.drop, end) for each in mine]) for end in ("low", "high"))
            effects += [
                replace(
                    each.effect,
                    p=p,
                    rank_low=1 + int((low > each.drop.high).sum()),
                    rank_high=len(mine) - int((high < each.drop.low).sum()),
                    length=self.condition.length,
                )
                for each, p in zip(mine, holm([each.drop.p for each in mine]), strict=True)
            ]
        return tuple(effects)


def ablate(
    experiment: Experiment,
    replacements: Sequence[str] | None = None,
    *,
    donors: int = DONORS,
    length: int | None = None,
    examples: bool = False,
    noise: Mapping[tuple[HeadId, str], float] | None = None,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> AblationRun:
    """Ablate every head alone, with these replacements or all, as one job; with `examples`, find out what broke.

    The noise of means is measured unless it is given.
    """
    replacements = REPLACEMENTS.names() if replacements is None else tuple(dict.fromkeys(replacements))
    if not replacements:
        raise InputError("no kind of ablation", f"there are: {', '.join(REPLACEMENTS.names())}")
    if not 1 <= donors <= MOST_DONORS:
        raise InputError(f"{donors} donors cannot replace an output", f"from 1 to {MOST_DONORS}")
    parts = list(map(REPLACEMENTS.get, replacements))
    asked = [(head, replacement) for replacement in replacements for head in experiment.sites.heads]
    require_same_answers(experiment)
    proof = prove(experiment.model, experiment.sites, experiment.batches[0].inputs)
    means = means_of(experiment) if any(part.needs_mean for part in parts) else ()
    check = DecodingCheck(experiment, _interventions(asked, donors), explain=examples)
    found, measurements = measure(
        experiment,
        asked,
        means,
        noise=noise,
        donors=donors,
        batch_size=batch_size,
        progress=progress,
        on_batch=check,
    )
    condition = Condition(
        length=length,
        data=experiment.data,
        n=experiment.n,
        clean=float(experiment.aggregate(found.clean)),
        majority_baseline=found.majority_baseline,
        decoded=check.decoded,
        decoded_replacements=check.decoded_replacements,
        importances=importances(experiment),
        agreements=(),
        failures=check.failures(),
        is_plain=found.is_plain,
        clean_interval=interval_of(experiment, found.clean, "clean"),
        n_mean=experiment.n_reference if means else 0,
        donors=donors if any(part.needs_donors for part in parts) else 0,
    )
    return _with_agreements(AblationRun(measurements, condition, means, proof))


def decide(
    run: AblationRun,
    more: Experiment,
    *,
    donors: int = DONORS,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> AblationRun:
    """Measure heads that are not settled again, on other examples, which alone count for them."""
    fewer = more if more.is_all else more.some(more.n // donors)  # each with several donors, and so at the same cost
    again, done = dict[tuple[HeadId, str], Measurement](), 0
    for experiment, drawn in ((more, False), (fewer, True)):
        noise = {
            (each.head, each.replacement): each.noise
            for each in run.unsettled
            if REPLACEMENTS.get(each.replacement).needs_donors is drawn
        }
        report = _after(done, len(more.batches) + len(fewer.batches), progress)
        done += len(experiment.batches)
        if noise:
            _, found = measure(
                experiment, list(noise), run.means, noise=noise, donors=donors, batch_size=batch_size, progress=report
            )
            again |= zip(noise, found, strict=True)
    told = f"{more.n:,} {more.data}" + (f" ({fewer.n:,} of them by resample)" if noise and fewer.n < more.n else "")
    measurements = tuple(again.get((each.head, each.replacement), each) for each in run.measurements)
    return _with_agreements(replace(run, measurements=measurements, condition=replace(run.condition, decided_on=told)))


def measure(
    experiment: Experiment,
    asked: Sequence[tuple[HeadId, str]],
    means: Means,
    *,
    noise: Mapping[tuple[HeadId, str], float] | None = None,
    donors: int = DONORS,
    batch_size: int = BATCH,
    progress: Progress | None = None,
    on_batch: Callable[[BatchOutcome], None] | None = None,
) -> tuple[Outcome, tuple[Measurement, ...]]:
    """Heads ablated alone, each with one replacement, on a model on which the hooks were proven.

    The noise of means is measured, on some of the examples, unless it is given.
    """
    run = partial(run_interventions, batch_size=batch_size, proven=True, means=means)
    interventions, some = _interventions(asked, donors), experiment.some(N_NOISE)
    by_mean = {replacement for _, replacement in asked if REPLACEMENTS.get(replacement).needs_mean}
    n_batches = len(experiment.batches)
    total = n_batches + (len(some.batches) if by_mean and noise is None else 0)
    found = run(experiment, interventions, progress=_after(0, total, progress), on_batch=on_batch)
    scores = np.split(found.scores, [i for i, each in enumerate(interventions) if not each.draw][1:])
    if noise is None:
        # Each part of the inputs has a mean of its own: what drops differ in between them, less by the root of their
        # number, is what comes of a mean being over so many inputs and no more.
        pairs = zip(asked, scores, strict=True)
        changed = [each for each, scores_DN in pairs if each[1] in by_mean and (scores_DN != found.clean).any()]
        parts = [Intervention((head,), name, part) for head, name in changed for part in range(1, PARTS + 1)]
        noise = {}
        if parts:
            by_part = run(some, parts, progress=_after(n_batches, total, progress)).scores
            errors = some.aggregate(by_part).reshape(-1, PARTS).std(axis=1, ddof=1) / np.sqrt(PARTS)
            noise = dict(zip(changed, errors.tolist(), strict=True))
    return found, _measurements(experiment, asked, found.clean, scores, [noise.get(each, 0.0) for each in asked])


def _after(before: int, total: int, progress: Progress | None) -> Progress | None:
    """Progress of a part that begins when so much is done."""
    return progress and (lambda done, _: progress(before + done, total))


def _with_agreements(run: AblationRun) -> AblationRun:
    replacements = tuple(dict.fromkeys(measurement.replacement for measurement in run.measurements))
    found = agreements(run.condition.importances, run.effects, replacements)
    return replace(run, condition=replace(run.condition, agreements=found))


def _interventions(asked: Sequence[tuple[HeadId, str]], donors: int) -> list[Intervention]:
    """One for each head, or several where the replacement is drawn."""
    return [
        Intervention((head,), replacement, draw)
        for head, replacement in asked
        for draw in range(donors if REPLACEMENTS.get(replacement).needs_donors else 1)
    ]


def _measurements(
    experiment: Experiment,
    asked: Sequence[tuple[HeadId, str]],
    clean: NDArray[np.float64],
    scores: Sequence[NDArray[np.float64]],
    noise: Sequence[float],
) -> tuple[Measurement, ...]:
    """What was lost by each of them; scores are [donor, example]."""
    whole = float(experiment.aggregate(clean))
    can_lose = experiment.metric.in_points and whole - experiment.majority_baseline >= CRITICAL
    drawn = donors_of(experiment, max(map(len, scores)))
    donors = [drawn if REPLACEMENTS.get(replacement).needs_donors else None for _, replacement in asked]
    early: list[str | None] = [None] * len(asked)
    if can_lose and experiment.metric.is_accuracy:
        early = [band_of(drop) for drop in compare(experiment, clean, scores, "heads", noise, EARLY, donors)]
    family = len({head for head, _ in asked})
    drops = compare(experiment, clean, scores, "heads", noise, donors=donors, family=family)
    measurements = []
    for (head, replacement), ablated_DN, drop, sure, se in zip(asked, scores, drops, early, noise, strict=True):
        lost = clean - ablated_DN.mean(axis=0)
        largest = np.sort(np.abs(lost))[::-1]
        band = band_of(drop) if can_lose else None
        needed, needed_most = (examples_needed(drop, experiment.n) if band == "undecided" else None) or (None, None)
        effect = Effect(
            head=str(head),
            short=head.short,
            replacement=replacement,
            metric=experiment.metric.name,
            clean=whole,
            ablated=float(experiment.aggregate(ablated_DN).mean()),
            drop=drop.mean,
            low=drop.low,
            high=drop.high,
            p=drop.p,
            band=band,
            examples_needed=needed,
            examples_needed_most=needed_most,
            worse=int((lost > 0).sum()),
            better=int((lost < 0).sum()),
            n=experiment.n,
            rank_low=1,
            rank_high=len(asked),
            carried=float(largest[:FEW].sum() / largest.sum()) if largest[0] > 0 else 0.0,
        )
        settled = sure is None or (sure != "undecided" and not lost.any())
        measurements.append(Measurement(head, replacement, drop, effect, settled, se))
    return tuple(measurements)


def importances(experiment: Experiment) -> tuple[Importance, ...]:
    """Every head's gradient; nothing for a metric that no gradient can be taken of."""
    sites, by_site = experiment.sites, dict[HeadSite, list[NDArray[np.float64]]]()
    with eval_mode(experiment.model), torch.enable_grad():
        for batch in experiment.batches:
            if batch.loss is None:
                return ()
            n = batch.n_inputs
            gates = {site: torch.ones(n, len(sites[site].heads), requires_grad=True) for site in sites}
            with Gates(sites, gates):
                loss = batch.loss(first_tensor(experiment.model(*batch.inputs)))
            if not loss.requires_grad:
                return ()
            for site, gradient in zip(gates, torch.autograd.grad(loss.sum(), list(gates.values())), strict=True):
                # The rows of one example close together.
                by_example = gradient.unflatten(0, (len(batch.rows), -1)).sum(dim=1).cpu().double().numpy()
                by_site.setdefault(site, []).append(by_example)
    found = []
    for site, gradients in by_site.items():
        size_NH = np.abs(np.concatenate(gradients))
        means = size_NH.mean(axis=0)
        norm = max(float(np.linalg.norm(means)), np.finfo(float).tiny)
        for i, head in enumerate(sites[site].heads):
            error = float(size_NH[:, i].std(ddof=1)) / math.sqrt(len(size_NH)) if len(size_NH) > 1 else None
            found.append(Importance(str(head), float(means[i]), error, float(means[i]) / norm))
    return tuple(found)


def agreements(
    importances: Sequence[Importance], effects: Sequence[Any], replacements: Sequence[str]
) -> tuple[Agreement, ...]:
    """Rank agreement with the effects of each replacement, of gradients as they are and normalised."""
    found = []
    for replacement in replacements if importances else ():
        drop = {effect.head: effect.drop for effect in effects if effect.replacement == replacement}
        drops = np.array([drop[each.head] for each in importances])
        for normalised in (False, True):
            sizes = np.array([each.normalised if normalised else each.importance for each in importances])
            agreement = rank_agreement(sizes, drops, stream(0, f"agreement {replacement}"))
            found.append(Agreement(replacement, normalised, len(drops), agreement))
    return tuple(found)
