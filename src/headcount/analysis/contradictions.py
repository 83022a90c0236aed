"""Check that the parts of a stored ablation or pruning result, such as heads and points of curves, agree.

A check of a single part of a result is in the method `contradictions` of the part's class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headcount.bands import BANDS, band_of, examples_needed
from headcount.hooks import REPLACEMENTS
from headcount.results import Contradiction, is_close, is_hits, unequal
from headcount.stats import PairedDifference, Proportion, rank_correlations

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation, AblationCondition, Effect
    from headcount.analysis.pruning import Point, Pruning, PruningCurve

NAMED_SETS = {
    "harmless_left": "harmless",
    "harmless_means": "harmless",
    "by_zero_left": "by_zero",
    "kept": "chosen",
    "best_random": "chosen",
}
"""Maps each named point of a `Pruning` to the field that lists the heads that are removed at this point."""
OPTIONAL_POINTS = ("harmless_means", "best_random")
"""Points of a `Pruning` that are not always measured; an unmeasured point has no removed heads."""


# --- ablation ---------------------------------------------------------------------------------------------------------


def effect_contradictions(effect: Effect) -> Iterator[Contradiction]:
    """Yield a contradiction if a head's drop disagrees with its scores, or its class (redundant) with its CI."""
    yield from unequal(effect, drop=effect.clean - effect.ablated)
    if effect.worse + effect.better > effect.n:
        yield "worse", f"at most {effect.n - effect.better:,}, which is n - better"
    if effect.rank_low > effect.rank_high:
        yield "rank_low", f"at most {effect.rank_high}, the value of rank_high"
    if effect.band is None:
        return
    drop = PairedDifference(effect.drop, effect.low, effect.high, effect.p)
    yield from unequal(effect, band=band_of(drop) if effect.band in BANDS else f"one of {', '.join(BANDS)}")
    fewest, most = (examples_needed(drop, effect.n) if effect.band == "undecided" else None) or (None, None)
    for name, needed in (("examples_needed", fewest), ("examples_needed_most", most)):
        given = getattr(effect, name)
        if (given is None) != (needed is None) or abs((given or 0) - (needed or 0)) > 1:  # rounded up
            yield name, f"{needed}, which follows from the confidence interval and n"


def ablation_contradictions(result: Ablation) -> Iterator[Contradiction]:
    """Yield a contradiction if the effects of heads disagree with each other or with the described examples."""
    by_case: dict[tuple[int | None, str], list[Effect]] = {}
    for effect in result.heads:
        by_case.setdefault((effect.length, effect.replacement), []).append(effect)
    lengths = [condition.length for condition in result.conditions]
    if not lengths or len(set(lengths)) != len(lengths):
        yield "conditions", "at least one condition, each with another length"
    cases = {(length, replacement) for length in lengths for replacement in result.replacements}
    if not cases or set(by_case) != cases or len(set(result.replacements)) != len(result.replacements):
        yield "replacements", "the kinds of ablation with which every head was ablated at every length"
        return
    names = [effect.head for effect in next(iter(by_case.values()))]
    if len(set(names)) != len(names) or any([effect.head for effect in case] != names for case in by_case.values()):
        yield "heads", "each head exactly once for every kind of ablation and every length"
    if {proof.site for proof in result.proof} != {name.rpartition(".")[0] for name in names}:
        yield "proof", "one entry for each attention block that has heads in this result"
    if any(effect.metric != result.metric for effect in result.heads):
        yield "metric", "the metric that every head names"
    for i, effect in enumerate(result.heads):
        wrong = _wrong_figure(effect, result)
        if wrong:
            yield "heads", f"{wrong} (heads[{i}], {effect.short})"
    for effects in by_case.values():
        yield from _rank_contradictions(effects)
    for condition in result.conditions:
        yield from _condition_contradictions(condition, result, names)


def _wrong_figure(effect: Effect, result: Ablation) -> str:
    """Return what an impossible number of an effect should be, as text; empty if all its numbers are possible."""
    if result.unit == "points" and max(map(abs, (effect.clean, effect.ablated))) > 1 + 1e-6:
        return "scores of at most 1, as they are fractions of 1"
    if result.unit == "points" and max(map(abs, (effect.drop, effect.low, effect.high))) > 2 + 1e-6:
        return "drops between -200 and 200 points"
    if not result.is_accuracy:
        return ""
    if not is_hits(effect.clean, effect.n):
        return f"a clean score that is a multiple of 1 / n, with n = {effect.n:,} examples"
    lost = effect.drop * effect.n
    has_donors = effect.replacement not in REPLACEMENTS.names() or REPLACEMENTS.get(effect.replacement).needs_donors
    if not has_donors and not is_close(lost, effect.worse - effect.better):
        return f"a drop of (worse - better) / n = {(effect.worse - effect.better) / effect.n}"
    return (
        "" if -effect.better - 1e-3 <= lost <= effect.worse + 1e-3 else "a drop that the counts worse and better allow"
    )


def _rank_contradictions(effects: Sequence[Effect]) -> Iterator[Contradiction]:
    low, high = np.array([effect.low for effect in effects]), np.array([effect.high for effect in effects])
    for effect in effects:
        rank_low, rank_high = 1 + int((low > effect.high).sum()), len(effects) - int((high < effect.low).sum())
        if (effect.rank_low, effect.rank_high) != (rank_low, rank_high):
            yield (
                "heads",
                f"ranks {rank_low} to {rank_high} of {effect.short}, which follow from the confidence intervals",
            )


def _condition_contradictions(
    condition: AblationCondition, result: Ablation, names: list[str]
) -> Iterator[Contradiction]:
    low, high = condition.clean_interval
    if not low - 1e-6 <= condition.clean <= high + 1e-6:
        yield "conditions", f"a clean score inside of its confidence interval, {low} to {high}"
    if result.is_accuracy and is_hits(condition.clean, condition.n):
        right = Proportion.of(round(condition.clean * condition.n), condition.n)
        if not (is_close(low, right.low) and is_close(high, right.high)):
            yield "conditions", f"the clean_interval {right.low} to {right.high}, which follows from clean and n"
    elif result.is_accuracy:
        yield "conditions", f"a clean score that is a multiple of 1 / n, with n = {condition.n:,} examples"
    if condition.importances and [importance.head for importance in condition.importances] != names:
        yield "conditions", "the gradient importance of each head exactly once"
    for agreement in condition.agreements:
        drops = {each.head: each.drop for each in result.effects(agreement.replacement, condition.length)}
        sizes = [each.normalised if agreement.normalised else each.importance for each in condition.importances]
        both = np.array(sizes), np.array([drops.get(name, np.nan) for name in names])
        if agreement.n_heads != len(sizes) or len(sizes) != len(names) or np.isnan(both[1]).any():
            yield "conditions", "rank correlations (agreements) over all heads"
        elif agreement.found and not is_close(agreement.found.rho, float(rank_correlations(*both))):
            yield (
                "conditions",
                f"the rank correlation of gradient importance and drops under {agreement.replacement} ablation",
            )
    for profile in condition.failures:
        facets: dict[str, list[tuple[int, int]]] = {}
        for group in profile.groups:
            facets.setdefault(group.facet, []).append((group.broken, group.n))
        sums = {tuple(map(sum, zip(*counts, strict=True))) for counts in facets.values()}
        if profile.head not in names or sums - {(profile.n_broken, profile.n)}:
            yield (
                "conditions",
                f"{profile.n_broken:,} failures in {profile.n:,} examples without {profile.head}, in every grouping",
            )
        measured = {
            each.n for each in result.effects(profile.replacement, condition.length) if each.head == profile.head
        }
        if profile.n not in {condition.n, *measured}:
            yield "conditions", f"failures among as many examples as {profile.head} was measured on"


# --- pruning ----------------------------------------------------------------------------------------------------------


def pruning_contradictions(result: Pruning) -> Iterator[Contradiction]:
    """Yield a contradiction if the points of the curves, the lists of heads, the counts or the clean score disagree."""
    for name, heads in NAMED_SETS.items():
        point, n = getattr(result, name), len(getattr(result, heads))
        if point.n_removed != n and (point.n_removed or name not in OPTIONAL_POINTS):
            yield name, f"a point with n_removed = {n}, the number of heads in {heads}"
        elif wrong := _wrong_point(point, result):
            yield name, wrong
    for name in ("harmless", "by_zero", "chosen"):
        heads = getattr(result, name)
        if len(set(heads)) != len(heads) or len(heads) > result.n_heads:
            yield name, f"at most {result.n_heads} heads, each listed once"
    if not set(result.harmless) <= set(result.by_zero):
        yield "harmless", "only heads of by_zero, as zero ablation is one of the kinds of ablation"
    if not len(result.by_zero) <= result.n_under_1_point <= result.n_heads:
        yield "n_under_1_point", f"a number from {len(result.by_zero)} (heads in by_zero) to {result.n_heads} (n_heads)"
    if result.n_random > result.n_tried:
        yield "n_random", f"at most {result.n_tried}, the value of n_tried"
    if (result.n_tried > 0) != bool(result.chosen):
        yield "n_tried", "a number above 0 if chosen lists heads, and 0 otherwise"
    for i, curve in enumerate(result.curves):
        if wrong := _wrong_curve(curve, result):
            yield "curves", f"{wrong} (curves[{i}], {curve.name!r})"
    sizes = [baseline.n_removed for baseline in result.chance]
    if sizes != sorted(set(sizes)) or any(not 0 < size < result.n_heads for size in sizes):
        yield "chance", f"increasing values of n_removed, from 1 to at most {result.n_heads - 1}"
    if any(not baseline.low <= baseline.median <= baseline.high for baseline in result.chance):
        yield "chance", "medians between the percentiles low and high"


def _wrong_curve(curve: PruningCurve, result: Pruning) -> str:
    from headcount.analysis.pruning import NAMES

    points, heads = curve.points, tuple(point.head for point in curve.points[1:])
    sizes = [point.n_removed for point in points]
    if curve.name not in NAMES:
        return f"a curve with one of the names {', '.join(NAMES)}"
    if not points or sizes != sorted(set(sizes)) or sizes[0] != 0 or sizes[-1] > result.n_heads:
        return "a curve whose points have increasing n_removed, from 0 to at most n_heads"
    if None in heads or len(set(heads)) != len(heads):
        return "a curve that removes another head at each point"
    if curve.name == "greedy" and len(heads) > 1 and heads[: len(result.chosen)] != result.chosen:
        return "a curve that begins with the heads in chosen"
    if not is_close(points[0].score, result.clean):
        return f"a curve that begins at the clean score, {result.clean}"
    return next(filter(None, (_wrong_point(point, result) for point in points)), "")


def _wrong_point(point: Point, result: Pruning) -> str:
    """Return what an impossible number of a point on a pruning curve should be, as text; empty if all are possible.

    A point without a drop was predicted from the drops of single heads, not measured.
    """
    if result.is_accuracy and not -1e-6 <= point.score <= 1 + 1e-6:
        return "a point with a score from 0 to 1"
    if point.drop is None:
        return (
            ""
            if point.low == point.score == point.high
            else "a point with low and high equal to its score, as it has no measured drop"
        )
    if not is_close(point.drop.mean, result.clean - point.score):
        return f"a point with a drop of clean - score = {result.clean - point.score}"
    if not result.is_accuracy:
        return "" if point.low - 1e-6 <= point.score <= point.high + 1e-6 else "a point with a score from low to high"
    if not is_hits(point.score, result.n):
        return f"a point with a score that is a multiple of 1 / n, with n = {result.n:,} examples"
    right = Proportion.of(round(point.score * result.n), result.n)
    is_right = is_close(point.low, right.low) and is_close(point.high, right.high)
    return "" if is_right else f"a point from low = {right.low} to high = {right.high}, which follows from score and n"
