"""Which heads matter? Ablate each head alone and compare the answers on the same examples.

By default, a head is measured on more and more examples until its band is decided and its interval is narrow
(sequential_ablation.py). This file has the types, and the ablation on a fixed number of examples: heads whose ablation
changes any answer are measured again on many new examples, and only the second measurement counts for these heads. A
head that is picked for a large effect on some examples has a smaller effect on others (regression to the mean). For
heads that change no answer, the first measurement decides, at 99.9 % confidence.

Gradient importance, a cheap proxy for the effect of ablation, is measured as well (gradient_importance.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headcount.analysis.ablation_stopping import StoppingRule
from headcount.analysis.contradictions import ablation_contradictions, effect_contradictions
from headcount.analysis.gradient_importance import Agreement, Importance, agreements, importances
from headcount.bands import FEW, band_of, can_lose, examples_needed, ranked_by
from headcount.errors import InputError
from headcount.experiments.decoding_check import DecodingCheck, FailureProfile, require_same_answers
from headcount.experiments.donors_and_means import PARTS, Means, donors_of, means_of
from headcount.experiments.drops import compare, interval_of
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import BatchOutcome, Outcome, Progress, run_on_cores
from headcount.heads import HeadId
from headcount.hooks import REPLACEMENTS
from headcount.hooks.intervention_proof import SiteProof, prove
from headcount.hooks.replay import Intervention
from headcount.limits import BATCH, DONORS, N_NOISE
from headcount.results import Contradiction, Count, HeadName, Positive, Result, Share, misnamed, outside
from headcount.stats import PairedDifference, holm

MOST_DONORS = 64
EARLY = 0.999
"""Confidence level at which the first measurement of a head is final."""

Ablated = tuple[HeadId, str]
"""A head and the name of the replacement for its output."""


@dataclass(frozen=True)
class Effect:
    """Effect of ablating one head with one replacement."""

    head: HeadName
    short: str
    replacement: str
    metric: str
    clean: float
    """Score with all heads."""
    ablated: float
    """Score with this head ablated."""
    drop: float
    """clean - ablated: a fraction of 1 for accuracy, otherwise in the metric's unit; negative if the score improves."""
    low: float
    """Lower end of the 95 % CI of the drop, not corrected for the number of heads."""
    high: float
    """Upper end of the 95 % CI of the drop, not corrected for the number of heads."""
    p: Share
    """p-value, Holm-corrected over heads: exact McNemar (accuracy), bootstrap-t (means) or permutation (otherwise)."""
    band: str | None
    """critical, important, redundant or undecided; None if the metric has no points or the score is near baseline."""
    examples_needed: int | None
    """Smallest number of examples that would decide an undecided head; None for other heads."""
    examples_needed_most: int | None
    """Largest number of examples that would decide an undecided head; None if the drop may lie on the threshold."""
    worse: Count
    """Number of examples that score lower without the head; with several donors, lower on average."""
    better: Count
    """Number of examples that score higher without the head; with several donors, higher on average."""
    n: Positive
    """Number of examples."""
    rank_low: Positive
    """Best rank that the CIs of all heads with this replacement allow; rank 1 has the largest drop."""
    rank_high: Positive
    """Worst rank that the CIs of all heads with this replacement allow."""
    carried: Share
    """Fraction of the total absolute difference that comes from the ten largest differences. Near 1, a few examples
    dominate."""
    length: Positive | None = None

    @property
    def rank(self) -> str:
        """Return the rank, or the range of ranks that the intervals leave open, such as `3-5`."""
        return "-".join(map(str, dict.fromkeys((self.rank_low, self.rank_high))))

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield inconsistencies between the head's names, scores, CI, counts and band."""
        yield from misnamed(self)
        yield from effect_contradictions(self)
        yield from outside(self, "drop")


@dataclass(frozen=True)
class AblationCondition:
    """The examples on which all heads are ablated, and what is measured on them for the model as a whole."""

    length: Positive | None
    data: str
    n: Positive
    """Number of examples; if measurements stop when decided, the largest number over all heads."""
    clean: float
    majority_baseline: float
    """Score of the best constant answer. For a loss: score of a uniform prediction, minus the logarithm of the number
    of classes. Within 10 points of this baseline, no head gets a band."""
    decoded: Count
    """Number of answers that were also decoded free-running; each agreed with the forward pass."""
    decoded_replacements: tuple[str, ...]
    """Kinds of ablation for which answers were also generated token by token, not only teacher-forced."""
    importances: tuple[Importance, ...]
    agreements: tuple[Agreement, ...]
    clean_interval: tuple[float, float]
    """95 % CI of the clean score."""
    n_mean: Count
    """Number of inputs that head outputs are averaged over; 0 without mean ablation."""
    donors: Count
    """Number of donors per example; 0 without resample ablation."""
    is_plain: bool = False
    """Whether every ablation was a whole forward pass, without reusing activations, as modules with state require."""
    decided_on: str = ""
    """Description of the new examples for the second measurement; empty if there was none."""
    failures: tuple[FailureProfile, ...] = ()
    n_passes: Count = 0
    """Number of times that an example was passed through the model with a head ablated."""
    stopping: StoppingRule | None = None
    """When the measurement of a head ended; None if the number of examples was fixed."""


@dataclass(frozen=True)
class Ablation(Result):
    """Effects of ablating every head of a model alone."""

    ROWS: ClassVar[tuple[str, ...]] = ("heads",)
    SCHEMA: ClassVar[int] = 6
    name: str
    weights_sha256: str
    metric: str
    unit: str
    is_accuracy: bool
    replacements: tuple[str, ...]
    heads: tuple[Effect, ...]
    conditions: tuple[AblationCondition, ...]
    proof: tuple[SiteProof, ...]
    """Evidence that the hooks act, for each attention block."""
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""

    @property
    def ranked_by(self) -> str:
        """Return the kind of ablation (zero, if it was measured) whose drops the heads are ranked by."""
        return ranked_by(self.replacements)

    def effects(self, replacement: str, length: int | None = None) -> list[Effect]:
        """Return the effect of every head for one replacement at one length, in the order of the model."""
        return [effect for effect in self.heads if (effect.length, effect.replacement) == (length, replacement)]

    def ranking(self, length: int | None = None) -> dict[str, dict[str, Effect]]:
        """Return the effects of each head by replacement, starting with the head that has the largest drop.

        Heads with the same drop are ranked by the other replacements.
        """
        by_head: dict[str, dict[str, Effect]] = {}
        for effect in self.heads:
            if effect.length == length:
                by_head.setdefault(effect.head, {})[effect.replacement] = effect
        order = sorted(self.replacements, key=lambda name: name != self.ranked_by)
        return dict(sorted(by_head.items(), key=lambda item: [-item[1][name].drop for name in order]))

    def printed_rows(self) -> list[dict[str, Any]]:
        """Return one row per head, length and replacement: the ranking replacement first, by decreasing drop."""
        return sorted(self.to_rows(), key=lambda row: (row["replacement"] != self.ranked_by, -row["drop"]))

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield inconsistencies between the effects of all heads and the conditions they were measured in."""
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
    """Measurement of one head with one replacement on one set of examples."""

    head: HeadId
    replacement: str
    drop: PairedDifference
    effect: Effect
    """The effect, with a p-value that is not yet Holm-corrected, and not yet ranked among the heads."""
    settled: bool
    """Whether no second measurement is needed."""
    noise: float
    """Standard error of the drop that comes from estimating the mean output; 0 unless the replacement is a mean."""


@dataclass(frozen=True)
class AblationRun:
    """Measurements of all heads on one set of examples."""

    measurements: tuple[Measurement, ...]
    condition: AblationCondition
    means: Means
    proof: tuple[SiteProof, ...]
    """Evidence that the hooks act, for each attention block."""

    @property
    def unsettled(self) -> tuple[Measurement, ...]:
        """Return the measurements that need a second measurement."""
        return tuple(measurement for measurement in self.measurements if not measurement.settled)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """Return all effects, with Holm correction and ranks among the heads of each replacement."""
        effects = list[Effect]()
        for replacement in dict.fromkeys(measurement.replacement for measurement in self.measurements):
            group = [measurement for measurement in self.measurements if measurement.replacement == replacement]
            drops = [measurement.drop for measurement in group]
            low, high = np.array([drop.low for drop in drops]), np.array([drop.high for drop in drops])
            effects += [
                replace(
                    measurement.effect,
                    p=p,
                    rank_low=1 + int((low > measurement.drop.high).sum()),
                    rank_high=len(group) - int((high < measurement.drop.low).sum()),
                    length=self.condition.length,
                )
                for measurement, p in zip(group, holm([drop.p for drop in drops]), strict=True)
            ]
        return tuple(effects)


def ablate(
    experiment: Experiment,
    replacements: Sequence[str] | None = None,
    *,
    donors: int = DONORS,
    length: int | None = None,
    examples: bool = False,
    noise: Mapping[Ablated, float] | None = None,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> AblationRun:
    """Ablate every head alone with each of the replacements (by default all of them).

    With `examples`, also report which examples fail without each head. The noise of mean ablation is measured unless
    it is given.
    """
    sweep = prepare(experiment, replacements, donors)
    check = DecodingCheck(experiment, interventions_of(sweep.pairs, donors), explain=examples)
    outcome, measurements, n_passes = measure(
        experiment,
        sweep.pairs,
        sweep.means,
        noise=noise,
        donors=donors,
        batch_size=batch_size,
        progress=progress,
        on_batch=check,
    )
    condition = replace(
        condition_of(experiment, outcome, sweep, check, donors, importances(experiment)),
        length=length,
        n_mean=experiment.n_reference if sweep.means else 0,
        n_passes=n_passes,
        failures=check.failures(),
    )
    return with_agreements(AblationRun(measurements, condition, sweep.means, sweep.proof))


@dataclass(frozen=True)
class Sweep:
    """What every ablation of single heads needs before it starts."""

    pairs: tuple[Ablated, ...]
    """Each head with each replacement."""
    means: Means
    """Mean outputs of all heads; empty without mean ablation."""
    proof: tuple[SiteProof, ...]
    """Evidence that the hooks act, for each attention block."""

    def uses(self, needs: str) -> bool:
        """Return whether any replacement needs a mean (`needs_mean`) or donors (`needs_donors`)."""
        return any(getattr(REPLACEMENTS.get(name), needs) for _, name in self.pairs)


def prepare(experiment: Experiment, replacements: Sequence[str] | None, donors: int) -> Sweep:
    """Check the request, prove that hooks act on the model, and compute the mean output of every head if needed."""
    replacements = REPLACEMENTS.names() if replacements is None else tuple(dict.fromkeys(replacements))
    if not replacements:
        raise InputError("no replacement was given", f"choose at least one of {', '.join(REPLACEMENTS.names())}")
    if not 1 <= donors <= MOST_DONORS:
        raise InputError(f"the number of donors must be from 1 to {MOST_DONORS}, got {donors}")
    needs_mean = any(REPLACEMENTS.get(name).needs_mean for name in replacements)
    pairs = tuple((head, replacement) for replacement in replacements for head in experiment.sites.heads)
    require_same_answers(experiment)
    proof = prove(experiment.model, experiment.sites, experiment.batches[0].inputs)
    return Sweep(pairs, means_of(experiment) if needs_mean else (), proof)


def condition_of(
    experiment: Experiment,
    outcome: Outcome,
    sweep: Sweep,
    check: DecodingCheck,
    donors: int,
    gradients: Sequence[Importance],
) -> AblationCondition:
    """Describe the examples of an ablation, and what was measured on them with all heads."""
    return AblationCondition(
        length=None,
        data=experiment.data,
        n=len(outcome.clean),
        clean=float(experiment.aggregate(outcome.clean)),
        majority_baseline=outcome.majority_baseline,
        decoded=check.decoded,
        decoded_replacements=check.decoded_replacements,
        importances=tuple(gradients),
        agreements=(),
        is_plain=outcome.is_plain,
        clean_interval=interval_of(experiment, outcome.clean, "clean"),
        n_mean=0,
        donors=donors if sweep.uses("needs_donors") else 0,
    )


def decide(
    run: AblationRun,
    more: Experiment,
    *,
    donors: int = DONORS,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> AblationRun:
    """Measure heads whose first measurement is not final again on new examples, and replace their measurements."""
    fewer = more if more.is_all else more.some(more.n // donors)  # several donors per example: the same cost
    updates, done, n_passes = dict[Ablated, Measurement](), 0, run.condition.n_passes
    for experiment, needs_donors in ((more, False), (fewer, True)):
        noise = {
            (measurement.head, measurement.replacement): measurement.noise
            for measurement in run.unsettled
            if REPLACEMENTS.get(measurement.replacement).needs_donors is needs_donors
        }
        report = _after(done, len(more.batches) + len(fewer.batches), progress)
        done += len(experiment.batches)
        if noise:
            _, again, passes = measure(
                experiment, list(noise), run.means, noise=noise, donors=donors, batch_size=batch_size, progress=report
            )
            n_passes += passes
            updates |= zip(noise, again, strict=True)
    data = f"{more.n:,} {more.data}" + (f" ({fewer.n:,} of them by resample)" if noise and fewer.n < more.n else "")
    measurements = tuple(updates.get((first.head, first.replacement), first) for first in run.measurements)
    condition = replace(run.condition, decided_on=data, n_passes=n_passes)
    return with_agreements(replace(run, measurements=measurements, condition=condition))


def measure(
    experiment: Experiment,
    pairs: Sequence[Ablated],
    means: Means,
    *,
    noise: Mapping[Ablated, float] | None = None,
    donors: int = DONORS,
    batch_size: int = BATCH,
    progress: Progress | None = None,
    on_batch: Callable[[BatchOutcome], None] | None = None,
) -> tuple[Outcome, tuple[Measurement, ...], int]:
    """Ablate one head at a time, for each given pair of head and replacement, and compare with the clean scores.

    The hooks must have been proven to act. The noise of mean ablation (the uncertainty of the mean output) is measured
    on some of the examples, unless it is given. Also return the number of passes with a head ablated.
    """
    interventions, subset = interventions_of(pairs, donors), experiment.some(N_NOISE)
    by_mean = any(REPLACEMENTS.get(replacement).needs_mean for _, replacement in pairs)
    n_batches = len(experiment.batches)
    total = n_batches + (len(subset.batches) if by_mean and noise is None else 0)
    outcome = run_on_cores(
        experiment,
        interventions,
        batch_size=batch_size,
        means=means,
        progress=_after(0, total, progress),
        on_batch=on_batch,
    )
    n_passes = len(interventions) * experiment.n
    scores = by_pair(interventions, outcome.scores)
    if noise is None:
        changed = [pair for pair, each in zip(pairs, scores, strict=True) if (each != outcome.clean).any()]
        report = _after(n_batches, total, progress)
        noise, passes = noise_of_means(subset, changed, means, batch_size=batch_size, progress=report)
        n_passes += passes
    every_noise = [noise.get(pair, 0.0) for pair in pairs]
    return outcome, _measurements(experiment, pairs, outcome.clean, scores, every_noise), n_passes


def by_pair(interventions: Sequence[Intervention], scores: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Split scores [intervention, example] into one array [donor, example] for each pair of head and replacement."""
    return np.split(scores, [i for i, one in enumerate(interventions) if not one.draw][1:])


def noise_of_means(
    experiment: Experiment,
    pairs: Sequence[Ablated],
    means: Means,
    *,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> tuple[dict[Ablated, float], int]:
    """Return the standard error of each drop under mean ablation that comes from averaging over finitely many inputs.

    The inputs are split into parts, each with its own mean output. The standard deviation of the drop between parts,
    divided by the root of their number, is the standard error. Pairs without mean ablation are left out. Also return
    the number of passes with a head ablated.
    """
    pairs = [pair for pair in pairs if REPLACEMENTS.get(pair[1]).needs_mean]
    parts = [Intervention((head,), name, part) for head, name in pairs for part in range(1, PARTS + 1)]
    if not parts:
        return {}, 0
    by_part = run_on_cores(experiment, parts, batch_size=batch_size, means=means, progress=progress).scores
    errors = experiment.aggregate(by_part).reshape(-1, PARTS).std(axis=1, ddof=1) / np.sqrt(PARTS)
    return dict(zip(pairs, errors.tolist(), strict=True)), len(parts) * experiment.n


def _after(before: int, total: int, progress: Progress | None) -> Progress | None:
    """Return a callback that reports a part's progress as progress of the whole, with `before` steps already done."""
    return progress and (lambda done, _: progress(before + done, total))


def with_agreements(run: AblationRun) -> AblationRun:
    """Return the run with the rank correlations between its drops and gradient importance."""
    replacements = tuple(dict.fromkeys(measurement.replacement for measurement in run.measurements))
    condition = replace(run.condition, agreements=agreements(run.condition.importances, run.effects, replacements))
    return replace(run, condition=condition)


def interventions_of(pairs: Sequence[Ablated], donors: int) -> list[Intervention]:
    """Return one intervention per pair, or one per donor where the replacement needs donors."""
    return [
        Intervention((head,), replacement, draw)
        for head, replacement in pairs
        for draw in range(donors if REPLACEMENTS.get(replacement).needs_donors else 1)
    ]


def _measurements(
    experiment: Experiment,
    pairs: Sequence[Ablated],
    clean: NDArray[np.float64],
    scores: Sequence[NDArray[np.float64]],
    noise: Sequence[float],
) -> tuple[Measurement, ...]:
    """Compare the ablated scores [donor, example] of each pair of head and replacement with the clean scores."""
    can_lose = has_bands(experiment, clean)
    all_donors = donors_of(experiment, max(map(len, scores)))
    donors = [all_donors if REPLACEMENTS.get(replacement).needs_donors else None for _, replacement in pairs]
    early: list[str | None] = [None] * len(pairs)
    if can_lose and experiment.metric.is_accuracy:
        early = [band_of(drop) for drop in compare(experiment, clean, scores, "heads", noise, EARLY, donors)]
    family = len({head for head, _ in pairs})
    drops = compare(experiment, clean, scores, "heads", noise, donors=donors, family=family)
    measurements = []
    for pair, ablated_DN, drop, early_band, se in zip(pairs, scores, drops, early, noise, strict=True):
        effect = effect_of(experiment, pair, clean, ablated_DN, drop, has_band=can_lose)
        settled = early_band is None or (early_band != "undecided" and not effect.worse + effect.better)
        measurements.append(Measurement(*pair, drop, effect, settled, se))
    return tuple(measurements)


def has_bands(experiment: Experiment, clean: NDArray[np.float64]) -> bool:
    """Return whether heads can be rated: the metric has points, and the model scores well above its baseline."""
    return experiment.metric.in_points and can_lose(float(experiment.aggregate(clean)), experiment.majority_baseline)


def effect_of(
    experiment: Experiment,
    pair: Ablated,
    clean: NDArray[np.float64],
    ablated_DN: NDArray[np.float64],
    drop: PairedDifference,
    *,
    has_band: bool,
) -> Effect:
    """Describe the effect of one ablation on the examples that it was measured on; it is not ranked yet."""
    (head, replacement), n = pair, len(clean)
    lost = clean - ablated_DN.mean(axis=0)
    largest = np.sort(np.abs(lost))[::-1]
    band = band_of(drop) if has_band else None
    needed, needed_most = (examples_needed(drop, n) if band == "undecided" else None) or (None, None)
    return Effect(
        head=str(head),
        short=head.short,
        replacement=replacement,
        metric=experiment.metric.name,
        clean=float(experiment.aggregate(clean)),
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
        n=n,
        rank_low=1,
        rank_high=1,
        carried=float(largest[:FEW].sum() / largest.sum()) if largest[0] > 0 else 0.0,
    )
