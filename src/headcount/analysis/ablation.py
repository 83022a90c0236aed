"""Which heads matter? Ablate each head alone and compare the answers with and without it on the same examples.

By default, a head is measured on more and more examples until its band (such as critical or redundant) is decided and
the CI of its drop is narrow (sequential_ablation.py). This file defines the types of results, and the ablation on a
fixed number of examples. There, heads whose ablation changes any answer are measured again on many new examples, and
only the second measurement counts for them: a head that is picked for a large effect on some examples has a smaller
effect on others (regression to the mean). For heads that change no answer, the first measurement decides, at 99.9 %
confidence.

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
from headcount.bands import FEW, band_of, examples_needed, is_above_baseline, ranked_by
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
"""Confidence level at which the first measurement of a head, on few examples, is final."""

Ablated = tuple[HeadId, str]
"""A head, and the name of what replaces its output: zero, mean or resample."""


@dataclass(frozen=True)
class Effect:
    """The effect of ablating one head with one replacement of its output (zero, mean or resample)."""

    head: HeadName
    short: str
    replacement: str
    metric: str
    clean: float
    """Score of the model with all heads."""
    ablated: float
    """Score of the model with this head ablated."""
    drop: float
    """clean - ablated: a fraction of 1 for accuracy, otherwise in the metric's unit; negative if the score improves."""
    low: float
    """Lower end of the 95 % CI of the drop, not corrected for the number of heads."""
    high: float
    """Upper end of the 95 % CI of the drop, not corrected for the number of heads."""
    p: Share
    """p-value of the drop, Holm-corrected over heads: exact McNemar (accuracy), bootstrap-t (means) or permutation."""
    band: str | None
    """How much the head matters: critical, important, redundant or undecided.

    None if the metric is not in points, or if the model's score is near the baseline.
    """
    examples_needed: int | None
    """Estimated smallest number of examples that would decide how much an undecided head matters; otherwise None."""
    examples_needed_most: int | None
    """Estimated largest number of examples that would decide an undecided head; None if the drop may lie on a limit."""
    worse: Count
    """Number of examples that score lower with the head ablated; with several donors, lower on average over them."""
    better: Count
    """Number of examples that score higher with the head ablated; with several donors, higher on average over them."""
    n: Positive
    """Number of examples on which the head was ablated."""
    rank_low: Positive
    """Best rank among all heads that the confidence intervals of the drops allow; rank 1 has the largest drop."""
    rank_high: Positive
    """Worst rank among all heads that the confidence intervals of the drops allow."""
    carried: Share
    """Fraction of the total absolute difference in score that comes from the ten examples with the largest differences.

    Near 1, a few examples dominate the drop.
    """
    length: Positive | None = None

    @property
    def rank(self) -> str:
        """Return the head's rank by its drop, such as `3`, or the range of ranks that the CIs allow, such as `3-5`."""
        return "-".join(map(str, dict.fromkeys((self.rank_low, self.rank_high))))

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the head's name, scores, CI, counts and band (such as redundant) disagree."""
        yield from misnamed(self)
        yield from effect_contradictions(self)
        yield from outside(self, "drop")


@dataclass(frozen=True)
class AblationCondition:
    """The examples on which all heads are ablated, and measurements of the whole model on them."""

    length: Positive | None
    data: str
    n: Positive
    """Number of examples; if each head was measured until decided, the largest number over all heads."""
    clean: float
    majority_baseline: float
    """Score of the best constant answer; for a loss, that of a uniform prediction: minus the logarithm of the number of
    classes.

    If the model scores within 10 points of this baseline, no head is classed as critical or redundant.
    """
    decoded: Count
    """Number of ablated answers that were also decoded free-running and agreed with the teacher-forced pass."""
    decoded_replacements: tuple[str, ...]
    """Kinds of ablation for which answers were also generated token by token, not only teacher-forced."""
    importances: tuple[Importance, ...]
    agreements: tuple[Agreement, ...]
    clean_interval: tuple[float, float]
    """95 % CI of the score of the model with all heads."""
    n_mean: Count
    """Number of inputs over which the mean outputs of heads are averaged; 0 without mean ablation."""
    donors: Count
    """Number of donors per example in resample ablation (examples whose head outputs are put in); 0 without it."""
    is_plain: bool = False
    """Whether each ablation ran a whole forward pass, without reuse of activations, as modules with a state require."""
    decided_on: str = ""
    """Description of the new examples on which heads were measured a second time; empty if there were none."""
    failures: tuple[FailureProfile, ...] = ()
    n_passes: Count = 0
    """Number of forward passes of single examples with a head ablated."""
    stopping: StoppingRule | None = None
    """The rule that ended the measurement of each head; None if the number of examples was fixed."""


@dataclass(frozen=True)
class Ablation(Result):
    """The effects of ablating every head of a model, one at a time."""

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
    """Evidence, for each attention block, that hooks really change the output of its heads."""
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""

    @property
    def ranked_by(self) -> str:
        """Return the kind of ablation by whose drops the heads are ranked: zero ablation if it was measured."""
        return ranked_by(self.replacements)

    def effects(self, replacement: str, length: int | None = None) -> list[Effect]:
        """Return the effect of every head for one kind of ablation at one length, in the order of the model's heads."""
        return [effect for effect in self.heads if (effect.length, effect.replacement) == (length, replacement)]

    def ranking(self, length: int | None = None) -> dict[str, dict[str, Effect]]:
        """Return the effects of each head by kind of ablation, the head with the largest drop first.

        Heads with the same drop under the first kind of ablation are ranked by the other kinds.
        """
        by_head: dict[str, dict[str, Effect]] = {}
        for effect in self.heads:
            if effect.length == length:
                by_head.setdefault(effect.head, {})[effect.replacement] = effect
        order = sorted(self.replacements, key=lambda name: name != self.ranked_by)
        return dict(sorted(by_head.items(), key=lambda item: [-item[1][name].drop for name in order]))

    def printed_rows(self) -> list[dict[str, Any]]:
        """Return one row per head, length and kind of ablation, the largest drop under the main kind first."""
        return sorted(self.to_rows(), key=lambda row: (row["replacement"] != self.ranked_by, -row["drop"]))

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the effects of heads disagree with each other or with the examples measured."""
        return ablation_contradictions(self)

    def harmless(self, length: int | None = None) -> tuple[str, ...]:
        """Return the names of the heads that are redundant under every kind of ablation that was measured."""
        bands: dict[str, set[str | None]] = {}
        for effect in self.heads:
            if effect.length == length:
                bands.setdefault(effect.head, set()).add(effect.band)
        return tuple(head for head, of_head in bands.items() if of_head == {"redundant"})


@dataclass(frozen=True)
class Measurement:
    """The effect of one kind of ablation of one head, measured on one set of examples."""

    head: HeadId
    replacement: str
    drop: PairedDifference
    effect: Effect
    """The effect as it will be reported, but before Holm correction of its p-value and ranking among all heads."""
    settled: bool
    """Whether the first measurement of the head is final, so that no second one is needed."""
    noise: float
    """Standard error of the drop due to averaging outputs over finitely many inputs; 0 except for mean ablation."""


@dataclass(frozen=True)
class AblationRun:
    """The measurements of all heads on one set of examples."""

    measurements: tuple[Measurement, ...]
    condition: AblationCondition
    means: Means
    proof: tuple[SiteProof, ...]
    """Evidence, for each attention block, that hooks really change the output of its heads."""

    @property
    def unsettled(self) -> tuple[Measurement, ...]:
        """Return the measurements of heads that must be measured again, because the first measurement is not final."""
        return tuple(measurement for measurement in self.measurements if not measurement.settled)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """Return the effects of all heads, with Holm-corrected p-values and ranks under each kind of ablation."""
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
    """Ablate every head alone with each of the replacements: zero, mean and resample by default.

    With `examples`, also report which examples fail without each head. The noise of mean ablation, which comes from
    averaging over finitely many inputs, is measured unless `noise` gives it.
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
    """The preparation for ablating single heads: heads and replacements, mean outputs, and proof that hooks act."""

    pairs: tuple[Ablated, ...]
    """Each head paired with each kind of ablation: zero, mean or resample."""
    means: Means
    """Mean outputs of all heads; empty if mean ablation was not requested."""
    proof: tuple[SiteProof, ...]
    """Evidence, for each attention block, that hooks really change the output of its heads."""

    def uses(self, needs: str) -> bool:
        """Return whether any replacement needs mean outputs (`needs_mean`) or donor examples (`needs_donors`)."""
        return any(getattr(REPLACEMENTS.get(name), needs) for _, name in self.pairs)


def prepare(experiment: Experiment, replacements: Sequence[str] | None, donors: int) -> Sweep:
    """Check the arguments, prove that hooks change the model's output, and compute mean outputs of heads if needed.

    A donor is an example whose head outputs are put in by resample ablation.
    """
    replacements = REPLACEMENTS.names() if replacements is None else tuple(dict.fromkeys(replacements))
    if not replacements:
        raise InputError("no kind of ablation was given", f"choose at least one of {', '.join(REPLACEMENTS.names())}")
    if not 1 <= donors <= MOST_DONORS:
        raise InputError(
            f"the number of donors per example must be from 1 to {MOST_DONORS}, got {donors}",
            "donors are the other examples from which resample ablation takes a head's output",
        )
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
    """Describe the examples of an ablation, and the measurements of the model with all heads on them."""
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
    """Measure heads whose first measurement is not final a second time, on new examples.

    Return the measurements of all heads, in which the second measurement replaces the first.
    """
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
    """Ablate one head at a time, for each given pair of head and replacement, and compare with the intact model.

    Return the outcome, the measurements, and the number of forward passes with a head ablated. Hooks must have been
    proven to act. The noise of mean ablation (the uncertainty of the mean output) is measured on some of the examples
    unless it is given.
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
    """Split scores [intervention, example] into one array [donor, example] for each pair of head and replacement.

    Only resample ablation has several donors (examples whose head outputs are put in); the others have one row.
    """
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
    divided by the root of their number, is the standard error. Pairs of head and replacement without mean ablation are
    left out. Also return the number of forward passes with a head ablated.
    """
    pairs = [pair for pair in pairs if REPLACEMENTS.get(pair[1]).needs_mean]
    parts = [Intervention((head,), name, part) for head, name in pairs for part in range(1, PARTS + 1)]
    if not parts:
        return {}, 0
    by_part = run_on_cores(experiment, parts, batch_size=batch_size, means=means, progress=progress).scores
    errors = experiment.aggregate(by_part).reshape(-1, PARTS).std(axis=1, ddof=1) / np.sqrt(PARTS)
    return dict(zip(pairs, errors.tolist(), strict=True)), len(parts) * experiment.n


def _after(before: int, total: int, progress: Progress | None) -> Progress | None:
    """Return a progress callback for one of several steps of work, which reports progress as part of the whole.

    `before` is the number of units of work done before this step, and `total` the number of all units.
    """
    return progress and (lambda done, _: progress(before + done, total))


def with_agreements(run: AblationRun) -> AblationRun:
    """Return the measurements with rank correlations between the drops and the gradient importance of heads added."""
    replacements = tuple(dict.fromkeys(measurement.replacement for measurement in run.measurements))
    condition = replace(run.condition, agreements=agreements(run.condition.importances, run.effects, replacements))
    return replace(run, condition=condition)


def interventions_of(pairs: Sequence[Ablated], donors: int) -> list[Intervention]:
    """Return one intervention per pair of head and replacement, or one per donor example for resample ablation."""
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
    """Compare the scores [donor, example] under each ablation with `clean`, the scores with all heads."""
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
    """Return whether heads can be classed as critical or redundant.

    The metric must be in points, and the model must score at least 10 points above a constant answer.
    """
    score, baseline = float(experiment.aggregate(clean)), experiment.majority_baseline
    return experiment.metric.in_points and is_above_baseline(score, baseline)


def effect_of(
    experiment: Experiment,
    pair: Ablated,
    clean: NDArray[np.float64],
    ablated_DN: NDArray[np.float64],
    drop: PairedDifference,
    *,
    has_band: bool,
) -> Effect:
    """Describe the effect of one ablation on the examples on which it was measured; the rank is set later."""
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
