"""Statistics agree with scipy, published examples and simulations."""

from __future__ import annotations

import math
from dataclasses import astuple
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom, binomtest, rankdata, skew, spearmanr, ttest_1samp

from headcount.formatting import fixed
from headcount.stats import (
    Proportion,
    correlation_interval,
    holm,
    influences,
    mcnemar,
    paired_differences,
    paired_figures,
    paired_hits,
    rank_agreement,
    rank_correlations,
    skewed_quantile,
    skewness,
)

unhurried = settings(deadline=None)
trials = st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@unhurried
@given(trials, st.floats(0.01, 0.999))
def test_the_interval_is_scipys_but_for_few_hits(trial: tuple[int, int], confidence: float) -> None:
    share, (correct, n) = Proportion.of(*trial, confidence), trial
    theirs = binomtest(*trial).proportion_ci(confidence, method="wilson")
    assert share.rate == correct / n
    near = {"rel": 1e-9, "abs": 1e-12}
    if 1 <= correct <= 3:
        assert share.low <= theirs.low * (1 + 1e-9)
    else:
        assert share.low == pytest.approx(theirs.low, **near)
    if 1 <= n - correct <= 3:
        assert share.high >= theirs.high * (1 - 1e-9)
    else:
        assert share.high == pytest.approx(theirs.high, **near)


@pytest.mark.parametrize("n", [200, 2000])
def test_rates_near_the_ends_are_covered(n: int) -> None:
    """By Wilson's interval alone, a rate of 0.18 in n is covered in 84 % (Brown, Cai and DasGupta 2001)."""
    ends = np.array([(share.low, share.high) for share in (Proportion.of(k, n) for k in range(41))])
    for expected in np.linspace(0.02, 8, 400):
        chance = binom.pmf(np.arange(41), n, expected / n)
        covered = float(chance[(ends[:, 0] <= expected / n) & (expected / n <= ends[:, 1])].sum())
        assert covered > 0.925


@unhurried
@given(trials)
def test_the_interval_holds_the_rate_and_stays_a_share(trial: tuple[int, int]) -> None:
    share = Proportion.of(*trial)
    assert (share.correct, share.n) == trial
    assert 0 <= share.low <= share.rate <= share.high <= 1
    assert share.low < share.high


@unhurried
@given(trials)
def test_doubt_mirrors_when_right_and_wrong_trade_places(trial: tuple[int, int]) -> None:
    right, wrong = Proportion.of(*trial), Proportion.of(trial[1] - trial[0], trial[1])
    assert (right.low, right.high) == pytest.approx((1 - wrong.high, 1 - wrong.low), abs=1e-9)


def test_the_default_is_95_percent() -> None:
    assert Proportion.of(7, 9) == Proportion.of(7, 9, 0.95) != Proportion.of(7, 9, 0.9)


@pytest.mark.parametrize("n", [1, 7, 2_000, 810_000])
def test_the_ends_are_exact(n: int) -> None:
    assert Proportion.of(0, n).low == 0
    assert Proportion.of(n, n).high == 1
    assert Proportion.of(0, n).high > 0
    assert Proportion.of(n, n).low < 1


@pytest.mark.parametrize(("correct", "n"), [(0, 0), (1, 0), (3, 2), (-1, 2), (0, -1), (-2, -1)])
def test_what_is_no_share_is_refused(correct: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"got correct = {correct} and n = {n}"):
        Proportion.of(correct, n)


def test_a_share_reads_as_percent_with_its_doubt() -> None:
    assert str(Proportion.of(809_998, 810_000)) == "99.9998 % [99.999, 99.99996], n = 810,000"
    assert str(Proportion.of(98, 100)) == "98.00 % [93.00, 99.64], n = 100"
    assert [fixed(each) for each in (99.96, 99.94, 100, 0)] == ["99.96", "99.9", "100.0", "0.0"]


@pytest.mark.parametrize("confidence", [-0.5, 0.0, 1.0, 1.5, math.nan])
def test_a_confidence_that_is_none_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        Proportion.of(5, 10, confidence)


# --- pairs ----------------------------------------------------------------------------------------------------------

quick = settings(deadline=None, max_examples=30)
changed = st.tuples(st.integers(0, 300), st.integers(0, 300))


@quick
@given(changed)
def test_mcnemar_is_a_fair_coin(counts: tuple[int, int]) -> None:
    worse, better = counts
    expected = binomtest(worse, worse + better).pvalue if worse + better else 1.0
    assert mcnemar(worse, better) == pytest.approx(expected, rel=1e-9) == mcnemar(better, worse)


def hits(n: int, worse: int, better: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """`worse` examples are right before only, `better` ones after only, half of the rest both times."""
    before, after = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    before[:worse] = True
    after[worse : worse + better] = True
    both = worse + better + (n - worse - better) // 2
    before[worse + better : both] = after[worse + better : both] = True
    return before, after


@quick
@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(0, n))))
def test_a_paired_drop_has_doubt(counts: tuple[int, int, int]) -> None:
    n, worse, better = counts[0], counts[1], min(counts[2], counts[0] - counts[1])
    lost = paired_hits(*hits(n, worse, better))
    assert lost.mean == pytest.approx((worse - better) / n)
    assert -1 - 1e-9 <= lost.low <= lost.mean + 1e-9
    assert lost.mean - 1e-9 <= lost.high <= 1 + 1e-9
    assert lost.high - lost.low > 0.5 / n, "never a point"
    assert lost.p == pytest.approx(binomtest(worse, worse + better).pvalue if worse + better else 1.0)


@pytest.mark.parametrize("n", [10, 368, 2_000])
def test_nothing_changed_is_not_nothing_known(n: int) -> None:
    lost = paired_hits(*hits(n, 0, 0))
    assert (lost.mean, lost.p) == (0.0, 1.0)
    assert lost.low == pytest.approx(-lost.high)
    assert lost.high > 2.4 / n, "about three unseen changes in n are likely enough"
    sure = paired_hits(np.ones(n, dtype=bool), np.ones(n, dtype=bool))
    assert sure.low == 0.0, "what is all right cannot get better"
    assert sure.high == pytest.approx(1 - 0.025 ** (1 / n)), "Clopper and Pearson's"


FEW = [(0.01, 0.005), (0.005, 0.01), (0.02, 0.01)]
"""Chances to get worse and better, so small that often only one of them is seen."""


@pytest.mark.parametrize(
    ("n", "worse", "better"),
    [*[(100, *each) for each in FEW], (100, 0.1, 0.0), (300, 0.005, 0.0), (500, 0.01, 0.005), (500, 0.3, 0.1)],
)
@pytest.mark.slow
def test_the_interval_of_a_drop_covers_the_truth(n: int, worse: float, better: float) -> None:
    rng = np.random.default_rng(7)
    covered, widths = 0, []
    for _ in range(400):
        lost_, won, _ = rng.multinomial(n, [worse, better, 1 - worse - better])
        lost = paired_hits(*hits(n, lost_, won))
        covered += lost.low - 1e-12 <= worse - better <= lost.high + 1e-12
        widths.append(lost.high - lost.low)
    assert covered >= 0.92 * 400
    normal = 2 * 1.96 * np.sqrt((worse + better - (worse - better) ** 2) / n)
    assert np.mean(widths) <= 2 * normal, "any interval covers that is wide enough"


def test_a_drop_is_of_the_same_examples() -> None:
    """Which examples changed counts, not only how many are right."""
    before = np.arange(100) < 50
    same, swapped = (paired_hits(before, after) for after in (before, ~before))
    assert same.mean == swapped.mean == 0
    assert swapped.high > 4 * same.high


# --- differences ----------------------------------------------------------------------------------------------------


def test_the_interval_of_paired_hits_is_tangos() -> None:
    """Against his own example (1998, table II: crossover trial, 43 right both times, 9 and 0 once, of 75)."""
    before = np.arange(44) < 43
    after = before.copy()
    after[:1] = False
    found = paired_hits(before, after)
    assert found.mean == pytest.approx(1 / 44)
    assert (found.low, found.high) == pytest.approx((-0.060, 0.118), abs=0.005)


def test_several_tries_at_an_example_tell_more_than_one_and_less_than_as_many_examples() -> None:
    rng = np.random.default_rng(0)
    chance = rng.beta(0.2, 1.5, size=600)  # examples differ in how easily they break
    tries = rng.random((4, 600)) >= chance
    right = np.ones(600, dtype=bool)
    one, four = paired_hits(right, tries[0]), paired_hits(right, tries)
    as_many = paired_hits(np.ones(2400, dtype=bool), tries.ravel())
    assert four.mean == pytest.approx(as_many.mean)
    widths = [each.high - each.low for each in (as_many, four, one)]
    assert widths == sorted(widths)
    assert paired_hits(right, tries[0].astype(float)) == one
    shared = paired_hits(right, np.tile(tries[0], (4, 1)))
    assert (shared.low, shared.high) == pytest.approx((one.low, one.high)), (
        "the same four times tells no more than once"
    )


def ring(n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a different example as donor for each example."""
    order, donors = rng.permutation(n), np.empty(n, dtype=np.int64)
    donors[order] = np.roll(order, 1)
    return donors


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["hits", "loss", "figure"])
def test_who_loses_much_may_also_cost_others_much(metric: str) -> None:
    """A head that tells one of two classes: every pair of different classes breaks, and each example is in it twice."""
    rng, n, rate = np.random.default_rng(0), 200, 0.3 if metric == "figure" else 0.15
    held, blind, n_draws = 0, 0, 60 if metric == "figure" else 300
    for _ in range(n_draws):
        odd, donors = rng.random(n) < rate, np.stack([ring(n, rng) for _ in range(4)])
        lost = (odd != odd[donors]).astype(float)
        for own in (donors, None):
            if metric == "hits":
                found = paired_hits(np.ones(n, dtype=bool), lost < 0.5, donors=own)
            elif metric == "loss":
                (found,) = paired_differences((lost.mean() + influences(lost, own))[None], rng)
            else:
                found = paired_figures(np.zeros(n), -lost, lambda x, rows: x.mean(axis=-1), rng, 1, own)
            holds = found.low <= 2 * rate * (1 - rate) <= found.high
            held, blind = held + (holds and own is not None), blind + (holds and own is None)
    assert 0.92 * n_draws < held
    assert blind < 0.88 * n_draws, "without donors it would not"


def test_what_donors_share_is_in_the_interval() -> None:
    """If the donor alone decides, four tries tell as much as one."""
    rng, n = np.random.default_rng(0), 500
    breaks, donors = rng.random(n) < 0.2, np.stack([np.roll(np.arange(n), i + 1) for i in range(4)])
    right, tries = np.ones(n, dtype=bool), ~breaks[donors]
    knowing, blind = paired_hits(right, tries, donors=donors), paired_hits(right, tries)
    one = paired_hits(right, ~breaks)
    assert knowing.high - knowing.low == pytest.approx(one.high - one.low, rel=0.1)
    assert blind.high - blind.low < 0.7 * (one.high - one.low)


@pytest.mark.slow
def test_the_border_is_hardly_ever_missed() -> None:
    """A head that costs 1.0 points is called redundant in at most 3 of 100 draws, at any n."""
    rng = np.random.default_rng(3)
    for n, worse, better in ((300, 0.01, 0.0), (400, 0.01, 0.0), (400, 0.03, 0.02), (2000, 0.012, 0.002)):
        counts = rng.multinomial(n, [worse, better, 1 - worse - better], size=4000)
        kinds, times = np.unique(counts[:, :2], axis=0, return_counts=True)
        called = 0
        for (lost, won), n_times in zip(kinds, times, strict=True):
            before, after = (np.ones(n, dtype=bool) for _ in range(2))
            after[:lost] = False
            before[n - won :] = False
            if better == 0 or won:
                called += n_times * (paired_hits(before, after).high < 0.01)
        assert called <= 0.03 * 4000 + 2 * (0.03 * 4000) ** 0.5, (n, worse, better)


# --- differences ----------------------------------------------------------------------------------------------------


def test_differences_against_student() -> None:
    """For normal data, the bootstrap-t agrees with Student's t."""
    lost = np.random.default_rng(5).normal(0.3, 1.0, size=80)
    (found,) = paired_differences(lost[None], np.random.default_rng(0))
    theirs = ttest_1samp(lost, 0)
    interval = theirs.confidence_interval()
    assert found.mean == pytest.approx(lost.mean())
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=0.03)
    assert found.p == pytest.approx(theirs.pvalue, abs=0.01)


def test_comparisons_made_at_once_are_those_made_alone() -> None:
    lost = np.random.default_rng(5).exponential(size=(3, 50))
    together = paired_differences(lost, np.random.default_rng(0))
    alone = [paired_differences(each[None], np.random.default_rng(0))[0] for each in lost]
    for one, other in zip(together, alone, strict=True):
        assert astuple(one) == pytest.approx(astuple(other))


def test_nothing_lost_and_the_same_lost_by_all() -> None:
    nothing, same = paired_differences(np.array([np.zeros(4), np.full(4, 0.7)]), np.random.default_rng(0))
    assert (nothing.low, nothing.high, nothing.p) == (0, 0, 1)
    assert (same.low, same.high, same.p) == pytest.approx((0.7, 0.7, 2 / 16)), "as their signs tell"
    (one,) = paired_differences(np.array([[0.7]]), np.random.default_rng(0))
    assert one.p == 1, "one example shows nothing"


@pytest.mark.parametrize("n", [3, 50, 200])
def test_ties_and_rare_losses_give_no_wild_bounds(n: int) -> None:
    """Resamples with (nearly) equal values must not give narrow intervals."""
    rng = np.random.default_rng(0)
    ties, noise = np.zeros(n), 1e-8 * rng.normal(size=n)
    ties[:1], noise[:1] = 1.0, 5.0
    for lost in (ties, 1 - ties, noise, 0.1 + ties, -noise):
        (found,) = paired_differences(lost[None], rng)
        assert lost.min() - 1e-12 <= found.low <= found.mean <= found.high <= lost.max() + 1e-12


def test_a_star_and_an_interval_never_contradict() -> None:
    rng = np.random.default_rng(1)
    for found in paired_differences(rng.lognormal(sigma=1.5, size=(60, 30)) - 1.2, rng):
        if abs(found.p - 0.05) > 0.005:
            assert (found.p < 0.05) == (found.low > 0 or found.high < 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_one_example_that_loses_may_be_one_of_several(sign: int) -> None:
    """Most resamples do not have it: the interval is that of one hit in so many."""
    lost = np.zeros((1, 200))
    lost[0, 7] = sign * 3.0
    (found,) = paired_differences(lost, np.random.default_rng(0))
    far, near = (found.high, found.low) if sign > 0 else (-found.low, -found.high)
    assert far == pytest.approx(3.0 * paired_hits(np.ones(200, dtype=bool), np.arange(200) > 0).high)
    assert near <= 3.0 / 200


def test_what_a_sample_may_have_missed_is_in_the_interval() -> None:
    lost = np.random.default_rng(0).normal(1e-6, 1e-7, size=(1, 100))
    (bare,), (found,) = (paired_differences(lost, np.random.default_rng(0), broken) for broken in (None, 5.0))
    assert (found.mean, found.low, found.p) == (bare.mean, bare.low, bare.p)
    assert bare.high < 2e-6
    assert found.high == pytest.approx(5.0 * 3.689 / 100, rel=1e-3)


@pytest.mark.slow
def test_the_interval_of_skewed_differences_covers() -> None:
    """Lognormal, where the percentile bootstrap covers 85 %."""
    rng = np.random.default_rng(0)
    found = paired_differences(rng.lognormal(sigma=1.2, size=(400, 100)), rng)
    covered = sum(each.low <= np.exp(0.72) <= each.high for each in found)
    assert 0.90 * 400 <= covered <= 0.98 * 400


# --- figures that are no means ----------------------------------------------------------------------------------------


def means(scores: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    return scores.mean(axis=-1)


def correlated(n: int, noise: float, seed: int) -> tuple[NDArray[np.float64], ...]:
    """What is to be ranked, a figure that ranks it well, and one that ranks it less well."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=n)
    return truth, truth + 0.3 * rng.normal(size=n), truth + noise * rng.normal(size=n)


def by_ranks(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the correlation of scipy's ranks, row by row."""
    one, other = (rankdata(each, axis=-1) for each in (x, y))
    one, other = (each - each.mean(axis=-1, keepdims=True) for each in (one, other))
    return (one * other).sum(axis=-1) / np.sqrt((one**2).sum(axis=-1) * (other**2).sum(axis=-1))


@pytest.mark.slow
def test_figures_by_brute_force() -> None:
    """The test by all draws, ranked by scipy; the interval against a bootstrap."""
    truth, before, after = correlated(40, 1.0, 3)
    found = paired_figures(before, after, lambda x, rows: rank_correlations(x, truth[rows]), np.random.default_rng(0))
    whole = [float(spearmanr(each, truth).statistic) for each in (before, after)]
    rng = np.random.default_rng(1)
    rows, swap = rng.integers(40, size=(2000, 40)), rng.random((2000, 40)) < 0.5
    lost = by_ranks(before[rows], truth[rows]) - by_ranks(after[rows], truth[rows])
    one, other = np.where(swap, after, before), np.where(swap, before, after)
    swapped = by_ranks(one, truth) - by_ranks(other, truth)
    assert by_ranks(one[0], truth) == pytest.approx(float(spearmanr(one[0], truth).statistic))
    assert found.mean == pytest.approx(whole[0] - whole[1])
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(lost, [0.025, 0.975])), abs=0.1)
    assert found.p == pytest.approx(np.mean(np.abs(swapped) >= abs(found.mean)), abs=0.02)
    assert found.low <= found.mean <= found.high


def test_a_mean_is_a_figure_too() -> None:
    rng = np.random.default_rng(5)
    before, after = rng.normal(size=60), rng.normal(0.3, 1.0, size=60)
    one = paired_figures(before, after, means, np.random.default_rng(0), draws=4999)
    (other,) = paired_differences((before - after)[None], np.random.default_rng(0))
    assert (one.mean, one.low, one.high) == pytest.approx((other.mean, other.low, other.high), abs=0.05)
    assert one.p == pytest.approx(other.p, abs=0.02)


def test_equal_scores_have_no_difference() -> None:
    truth, before, _ = correlated(20, 1.0, 0)
    for total in (means, lambda x, rows: rank_correlations(x, truth[rows])):
        same = paired_figures(before, before.copy(), total, np.random.default_rng(0))
        assert (same.mean, same.low, same.high, same.p) == (0, 0, 0, 1)


@pytest.mark.slow
def test_the_interval_of_a_figure_covers_the_truth() -> None:
    """The true value is estimated from very many examples."""
    truth, before, after = correlated(200_000, 0.8, 1)
    expected = float(rank_correlations(before, truth) - rank_correlations(after, truth))
    covered = 0
    for part in np.random.default_rng(2).integers(len(truth), size=(100, 60)):
        of_part = truth[part]
        found = paired_figures(
            before[part],
            after[part],
            lambda x, rows, given=of_part: rank_correlations(x, given[rows]),  # type: ignore[misc]
            np.random.default_rng(0),
            draws=9,
        )
        covered += found.low <= expected <= found.high
    assert covered >= 88, "of 100, at 95 %"


def test_the_mean_over_several_tries_is_compared() -> None:
    truth, before, after = correlated(40, 1.0, 3)
    total = lambda x, rows: rank_correlations(x, truth[rows])  # noqa: E731
    tries = np.stack([after, after[::-1]])
    one, other = (paired_figures(before, each, total, np.random.default_rng(0), draws=9) for each in tries)
    both = paired_figures(before, tries, total, np.random.default_rng(0), draws=9)
    assert both.mean == pytest.approx((one.mean + other.mean) / 2)


def test_what_ranks_all_alike_has_doubt_too() -> None:
    x = np.arange(9.0)
    low, high = correlation_interval(x, lambda some, rows: rank_correlations(some, x[rows]))
    assert 0.8 < low < high <= 1


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=3, max_size=20))
@quick
def test_rank_correlations_are_spearmans(rows: list[tuple[int, ...]]) -> None:
    """Two samples of small numbers, so that there are ties."""
    x, y, z = np.array(rows, dtype=float).T
    found = rank_correlations(np.stack([x, y]), np.stack([z, z]))
    for each, mine in zip((x, y), found, strict=True):
        varied = len(set(each)) > 1 and len(set(z)) > 1
        assert mine == pytest.approx(spearmanr(each, z).statistic if varied else 0.0, abs=1e-9)


# --- families and ranks -----------------------------------------------------------------------------------------------


@given(st.floats(1.5, 50), st.integers(2, 1000), st.floats(-1, 1))  # the skewness of n values is at most sqrt(n)
def test_the_quantile_of_skewed_values_inverts_halls_function(quantile: float, n: int, bend: float) -> None:
    ends = [float(skewed_quantile(end, np.array(bend * n**0.5), n)) for end in (-quantile, quantile)]
    assert [x + bend * x**2 / 3 + bend**2 * x**3 / 27 + bend / 6 for x in ends] == pytest.approx([-quantile, quantile])
    assert ends[0] < 0 < ends[1], "the mean lies inside of its interval"


@given(st.lists(st.integers(-5, 5), min_size=3, max_size=9))
def test_skewness_is_scipys_with_the_sample_variance(values: list[int]) -> None:
    n, floats = len(values), np.array(values, dtype=float)
    expected = 0.0 if len(set(values)) == 1 else float(skew(floats)) * ((n - 1) / n) ** 1.5
    assert float(skewness(floats)) == pytest.approx(expected, abs=1e-12)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.02, 0.03, 0.2]) == pytest.approx([0.04, 0.06, 0.06, 0.2])
    assert holm([0.2, 0.01]) == pytest.approx([0.2, 0.02])
    assert holm([0.5, 0.9, 0.6]) == [1.0, 1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_corrects_upwards_and_keeps_the_order(p: list[float]) -> None:
    corrected = holm(p)
    assert all(each >= raw for each, raw in zip(corrected, p, strict=True))
    assert max(corrected) <= 1
    assert all(corrected[i] <= corrected[j] for i, j in product(range(len(p)), repeat=2) if p[i] <= p[j])
    assert min(corrected) == pytest.approx(min(1.0, len(p) * min(p)))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=3, max_size=25))
@settings(deadline=None, max_examples=15)
def test_rank_agreement_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    """Samples of small numbers, so that there are ties."""
    x, y = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    found = rank_agreement(x, y, np.random.default_rng(0), draws=9)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert found is None
        return
    assert found is not None
    assert found.rho == pytest.approx(spearmanr(x, y).statistic, abs=1e-9)
    assert -1 <= found.low <= found.rho + 1e-9
    assert found.rho - 1e-9 <= found.high <= 1
    assert found.tied == sum(list(y).count(each) > 1 for each in y)


def test_the_chance_of_an_agreement() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=30)
    y = x + rng.normal(size=30) * 2
    found, perfect = rank_agreement(x, y, rng), rank_agreement(np.arange(3.0), np.arange(3.0), rng)
    assert found is not None
    assert perfect is not None
    assert found.p == pytest.approx(spearmanr(x, y).pvalue, abs=0.01)
    assert perfect.p == pytest.approx(2 / 6, abs=0.03)
