"""Compute confidence intervals and p-values of proportions, paired differences and correlations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # imports its submodules lazily, so `headcount --help` and `predict` do not wait for them
from numpy.typing import NDArray

from headcount.formatting import number, percent
from headcount.results import ROUNDING, Contradiction, Count, Positive, Share, outside, unequal

Values = NDArray[np.float64]
Numbers = NDArray[np.int64]
"""An array of indices of examples."""
Hits = NDArray[np.bool_]

Z95 = 1.96
"""Half the width of a 95 % confidence interval of a normally distributed estimate, in standard errors."""
FEW_HITS = 3
"""`Proportion` uses a Poisson bound if at most this many trials hit, or at most this many miss; 2 if n <= 50."""


@dataclass(frozen=True)
class Proportion:
    """A proportion, `correct` of `n` trials, with a Wilson score interval (Wilson 1927) as its 95 % CI.

    If only one to three trials are correct, Wilson's lower bound is too high: the interval can cover the true
    proportion in only 84 % instead of 95 % of cases. The Poisson bound of Brown, Cai and DasGupta (2001) then replaces
    it. The same holds for the upper bound if only one to three trials are wrong.

    >>> Proportion.of(98, 100)
    Proportion(correct=98, n=100, rate=0.98, low=0.929..., high=0.996...)
    """

    correct: Count
    n: Positive
    rate: float
    low: float
    high: float

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction for each field (count, rate or end of the CI) that disagrees with the other fields."""
        if self.correct > self.n:
            yield "correct", f"at most {self.n}, the value of n"
            return
        right = Proportion.of(self.correct, self.n)
        yield from unequal(self, rate=right.rate, low=right.low, high=right.high)

    @classmethod
    def of(cls, correct: int, n: int, confidence: float = 0.95) -> Proportion:
        """Return the proportion `correct` / `n` with its confidence interval."""
        if not 0 <= correct <= n or n == 0:
            raise ValueError(
                f"the number correct must be from 0 to n, and n at least 1, got correct = {correct} and n = {n}"
            )
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must be above 0 and below 1, got {confidence}")
        z = float(scipy.special.ndtri(0.5 + confidence / 2))
        rate = correct / n
        centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
        low, high, few = centre - half, centre + half, FEW_HITS if n > 50 else FEW_HITS - 1
        if 1 <= correct <= few:
            low = min(low, float(scipy.special.gammaincinv(correct, 1 - confidence)) / n)
        if 1 <= n - correct <= few:
            high = max(high, 1 - float(scipy.special.gammaincinv(n - correct, 1 - confidence)) / n)
        # Rounding may leave 1 - 1e-17 where the formula gives exactly 0 or 1.
        return cls(int(correct), int(n), rate, 0.0 if correct == 0 else low, 1.0 if correct == n else high)

    @classmethod
    def count(cls, hits: Hits) -> Proportion:
        """Return the proportion of True entries in `hits`, which says which trials are correct, with its 95 % CI."""
        return cls.of(int(hits.sum()), len(hits))

    def __str__(self) -> str:
        return f"{percent(self.rate, 2)} [{number(100 * self.low, 2)}, {number(100 * self.high, 2)}], n = {self.n:,}"


@dataclass(frozen=True)
class PairedDifference:
    """A drop in score: the mean over examples of (score before - score after), with its 95 % CI and p-value."""

    mean: float
    low: float
    high: float
    p: Share

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the mean lies outside its confidence interval."""
        return outside(self, "mean")

    def widened(self, se: float, df: int, confidence: float = 0.95) -> PairedDifference:
        """Return this difference with an interval widened by an independent source of noise.

        `se` is the standard error of that noise, and `df` are its degrees of freedom.

        >>> PairedDifference(0.2, 0.17, 0.23, 0.001).widened(0.02, 7)
        PairedDifference(mean=0.2, low=0.1439..., high=0.2560..., p=0.001)
        """
        more = float(scipy.special.stdtrit(df, 0.5 + confidence / 2)) * se
        low, high = math.hypot(self.mean - self.low, more), math.hypot(self.high - self.mean, more)
        return replace(self, low=self.mean - low, high=self.mean + high)


N_RESAMPLES = 1999
"""Smallest number of resamples that a bootstrap draws."""
LEAST_P = 40
"""Number of random draws per test in a family of tests: with fewer, Holm correction would make all p-values large."""
AT_ONCE = 2**22
"""Largest number of resampled values that are held in memory at once."""
GROUPS = 100
"""Number of groups of examples that the jackknife leaves out in turn; each example is a group if there are fewer."""
TAIL_DRAWS = 20
"""Smallest number of bootstrap resamples that must lie beyond each end of a confidence interval."""


def paired_hits(
    before: Hits, after: Hits | Values, confidence: float = 0.95, donors: Numbers | None = None
) -> PairedDifference:
    """Estimate the drop in accuracy between two measurements of the same examples, with its interval and p-value.

    `before` and `after` say which examples were answered correctly. `after` is [try, example] if each example was
    answered several times. In resample ablation, `donors` [try, example] holds the index of the donor of each try: the
    example whose head output was put in. The interval then includes the noise of the donors (see `influences`).

    The interval inverts the score test for paired proportions (Tango 1998). If all examples were correct before, it is
    the interval of Clopper and Pearson (1934) for the proportion that became wrong. Tries of one example are not
    independent, so an effective number of examples is used (Korn and Graubard 1998). The p-value is McNemar's exact
    test on the examples that changed on average over tries.

    >>> paired_hits(np.ones(500, dtype=bool), np.arange(500) >= 20)
    PairedDifference(mean=0.04, low=0.024..., high=0.061..., p=1.9...e-06)
    """
    n, lost_DN = len(before), np.asarray(before, dtype=float) - np.atleast_2d(after)
    worse, better = (float((sign * lost_DN).clip(min=0).mean(axis=0).sum()) for sign in (1, -1))
    mean, lost = (worse - better) / n, lost_DN.mean(axis=0)
    # One changed example is added, because rare changes do not show how similar the tries of one example are.
    independent, observed = (worse + better + 1) / n - mean**2, float((influences(lost_DN, donors) ** 2).mean()) + 1 / n
    size = n * float(np.clip(independent / observed, 0.25, len(lost_DN)))
    counts = worse * size / n, better * size / n
    low, high = _clopper_pearson(counts[0], size, confidence) if before.all() else _tango(*counts, size, confidence)
    return PairedDifference(mean, low, high, mcnemar(int((lost > 0).sum()), int((lost < 0).sum())))


def influences(lost_DN: Values, donors: Numbers | None) -> Values:
    """Return the influence of each example on the mean loss, given the losses `lost_DN` [try, example].

    The mean square of the influences, divided by n, is the squared standard error of the mean. In resample ablation,
    `donors` [try, example] says which example's head output was put in at each try. An example then influences the mean
    twice: by its own loss, and by the losses of the examples that it is donor of. The two influences may be correlated.
    Their sum counts the noise of single tries twice, so the sum is scaled down.
    """
    apart_DN = lost_DN - lost_DN.mean()
    by_example = apart_DN.mean(axis=0)
    if donors is None:
        return by_example
    n_tries, n = lost_DN.shape
    both = by_example + np.bincount(donors.ravel(), apart_DN.ravel(), n) / n_tries
    square, try_noise = float((both**2).mean()), float((apart_DN**2).mean()) / n_tries
    if not square:
        return by_example
    return both * math.sqrt(max(square - try_noise, float((by_example**2).mean()) / 2) / square)


def _clopper_pearson(hits: float, n: float, confidence: float) -> tuple[float, float]:
    """Return the exact confidence interval of the proportion hits / n (Clopper and Pearson 1934)."""
    tail = (1 - confidence) / 2
    low = float(scipy.special.betaincinv(hits, n - hits + 1, tail)) if hits > 0 else 0.0
    return low, float(scipy.special.betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0


def _tango(worse: float, better: float, n: float, confidence: float) -> tuple[float, float]:
    """Return the confidence interval of (worse - better) / n: all differences that Tango's score test does not reject.

    `worse` and `better` are the numbers of examples, out of n, that changed in either direction (Tango 1998).
    """
    z, mean, least = float(scipy.special.ndtri(0.5 + confidence / 2)), (worse - better) / n, 1e-12

    def score(difference: float) -> float:
        """Return the test statistic of a possible true difference.

        It is the number of standard errors by which the observed difference lies above the argument.
        """
        b, c = (2 * n - worse + better) * difference - worse - better, -better * difference * (1 - difference)
        rate = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)  # maximum likelihood share of better examples
        variance = n * (2 * rate + difference * (1 - difference))
        return (worse - better - n * difference) / math.sqrt(max(variance, least**2))

    low, high = -1.0, 1.0
    if score(least - 1) > z:
        low = float(scipy.optimize.brentq(lambda d: score(d) - z, least - 1, mean))
    if score(1 - least) < -z:
        high = float(scipy.optimize.brentq(lambda d: score(d) + z, mean, 1 - least))
    return low, high


def paired_differences(
    lost_KN: NDArray[np.floating],
    rng: np.random.Generator,
    broken: float | None = None,
    draws: int = 0,
    confidence: float = 0.95,
) -> list[PairedDifference]:
    """Estimate K mean losses on n examples by the bootstrap-t (Efron 1982); `lost_KN` is [comparison, example].

    The mean and the standard error of skewed differences are correlated, which the plain bootstrap ignores. Intervals
    and p-values therefore come from the quantiles of t = (mean* - mean) / se*, over at least `draws` resamples.

    A sample may contain none of the rare examples that lose much. If the loss of such an example is given as `broken`,
    the upper end of each interval is at least mean - log(tail) * broken / n, where `tail` is the probability beyond the
    upper end. For a 95 % CI, this allows for 3.7 broken examples per n that the sample has missed.

    >>> paired_differences(np.arange(40.0)[None] % 4, np.random.default_rng(0))
    [PairedDifference(mean=1.5, low=1.1..., high=1.8..., p=0.001)]
    """
    n, tail = lost_KN.shape[1], (1 - confidence) / 2
    means = lost_KN.mean(axis=1, dtype=float)
    apart_KN = lost_KN - means[:, None]
    errors = np.sqrt((apart_KN**2).sum(axis=1) / max(n - 1, 1) / n)
    errors[errors < 1e-12 * np.abs(lost_KN).max(axis=1)] = 0.0  # all losses are equal up to rounding
    t_DK = _studentised(apart_KN, errors, rng, max(N_RESAMPLES, draws, math.ceil(TAIL_DRAWS / tail)))
    drops = []
    for lost_N, mean, error, t_D in zip(lost_KN, means.tolist(), errors.tolist(), t_DK.T, strict=True):
        low, high, p = mean, mean, min(1.0, 2.0 ** (1 - n)) if mean else 1.0  # equal losses: the p-value of a sign test
        if error:
            ends = np.quantile(t_D, [1 - tail, tail], method="inverted_cdf")  # interpolation could give infinity
            low, high = (mean - float(end) * error for end in ends)
            low = max(low, -_upper_bound(-lost_N, confidence))
            high = min(high, _upper_bound(lost_N, confidence))
            n_beyond = min(int((t_D >= mean / error).sum()), int((t_D <= mean / error).sum()))
            p = min(1.0, 2 * (n_beyond + 1) / (len(t_D) + 1))
        if broken is not None:
            high = max(high, mean - math.log(tail) * broken / n)
        drops.append(PairedDifference(mean, min(mean, low), max(mean, high), p))
    return drops


def _upper_bound(lost: NDArray[np.floating], confidence: float) -> float:
    """Return an upper bound of the mean loss, at which the confidence interval of the bootstrap-t is cut off.

    The bound is the upper Clopper-Pearson bound, as if each example had either the smallest or the largest observed
    loss. The bootstrap-t needs a limit: if a few examples dominate the sum, resamples without them have too small a
    standard error, and t becomes arbitrarily large.
    """
    least, most = float(lost.min()), float(lost.max())
    hits = float((lost - least).sum()) / (most - least)
    return least + (most - least) * _clopper_pearson(hits, len(lost), confidence)[1]


def _studentised(apart_KN: NDArray[np.floating], errors: Values, rng: np.random.Generator, draws: int) -> Values:
    """Return bootstrap t statistics [draw, comparison], given the losses [comparison, example] minus their means.

    `errors` are the standard errors of the comparisons. All comparisons use the same resamples of the examples.
    """
    n = apart_KN.shape[1]
    scaled = np.divide(apart_KN, errors[:, None], out=np.zeros(apart_KN.shape), where=errors[:, None] > 0)
    both_N2K = np.concatenate([scaled, scaled**2]).T
    parts, at_once = [], max(1, AT_ONCE // n)
    for begin in range(0, draws, at_once):
        n_draws = min(at_once, draws - begin)
        rows = rng.integers(n, size=(n_draws, n)) + n * np.arange(n_draws)[:, None]
        counts = np.bincount(rows.ravel(), minlength=n_draws * n).reshape(n_draws, n)
        mean, square = np.split(counts.astype(float) @ both_N2K / n, 2, axis=1)
        spread = square - mean**2
        infinite = np.where(mean == 0, 0.0, np.copysign(np.inf, mean))  # t of a resample without any spread
        error = np.sqrt(spread.clip(min=0) / max(n - 1, 1))
        parts.append(np.divide(mean, error, out=infinite, where=spread > 1e-9 * square))
    return np.concatenate(parts)


Aggregator = Callable[[Values, Numbers], Values]
"""A function that computes a metric over n examples, such as a correlation.

It takes the scores [..., n] and the indices of the examples [..., n], and returns the metric [...].
"""


def paired_figures(
    before: Values,
    after: Values,
    total: Aggregator,
    rng: np.random.Generator,
    draws: int = 999,
    donors: Numbers | None = None,
) -> PairedDifference:
    """Estimate the drop of a metric that is not a mean over examples, such as a correlation, with its CI and p-value.

    `before` and `after` are the scores of the examples, and `total` computes the metric from them. `after` is [try,
    example] if each example was scored several times; `donors` is described in `paired_hits`. The interval comes from
    the jackknife (Tukey 1958). The p-value comes from a permutation test with `draws` draws, which swaps the two scores
    of each example at random: under the null hypothesis, they are exchangeable.
    """
    n, tries = len(before), np.atleast_2d(after)

    def lost(one: Values, other: Values, rows: Numbers) -> Values:
        """Return the metric of the scores `one` minus the metric of the scores `other`, averaged over tries.

        Tries are the second-to-last axis of the scores.
        """
        rows = np.broadcast_to(rows, one.shape)
        return (total(one, rows) - total(other, rows)).mean(axis=-1)

    both = np.broadcast_to(before, tries.shape)

    def drop_on(rows: Numbers) -> Values:
        one, other = (scores[:, rows].swapaxes(0, 1) for scores in (both, tries))
        return lost(one, other, rows[:, None])

    se, df = jackknife(drop_on, n)
    if donors is not None:
        se = _donor_error(before, tries, total, donors, se)
    drop, n_beyond, at_once = float(lost(both, tries, np.arange(n))), 0, max(1, AT_ONCE // tries.size)
    for begin in range(0, draws, at_once):
        swapped = rng.integers(2, size=(min(at_once, draws - begin), 1, n)).astype(bool)
        one, other = np.where(swapped, tries, both), np.where(swapped, both, tries)
        n_beyond += int((np.abs(lost(one, other, np.arange(n))) >= abs(drop) * (1 - 1e-6)).sum())
    return PairedDifference(drop, drop, drop, (n_beyond + 1) / (draws + 1)).widened(se, df)


def _donor_error(before: Values, tries: Values, total: Aggregator, donors: Numbers, se: float) -> float:
    """Return the jackknife standard error of a drop, including the noise of the donors in resample ablation.

    A donor is the example whose head output is put in. Leaving out an example also leaves out the tries in which it was
    the donor of another example. `se` is the standard error without this noise.
    """
    n = len(before)

    def drop_without_donors(rows: Numbers) -> float:
        stays = np.zeros(n, dtype=bool)
        stays[rows] = True
        drops = []
        for scores, donor in zip(tries, donors, strict=True):
            kept = rows[stays[donor[rows]]]
            drops.append(total(before[kept], kept) - total(scores[kept], kept))
        return float(np.mean(drops))

    def variance_of(scores: Values) -> float:
        return jackknife(lambda rows: total(before[rows], rows) - total(scores[rows], rows), n)[0] ** 2

    try_noise = float(np.mean([variance_of(scores) for scores in tries])) / len(tries)
    both = jackknife(lambda parts: np.array([drop_without_donors(rows) for rows in parts]), n)[0]
    return math.sqrt(max(both**2 - try_noise, se**2 / 2))


def correlation_interval(scores: Values, total: Aggregator) -> tuple[float, float]:
    """Return the 95 % CI of a correlation; `total` computes the correlation from `scores` and the indices of examples.

    The standard error is the jackknife's, on Fisher's z scale, where correlations are nearly normal.

    >>> x, noise = np.random.default_rng(0).normal(size=(2, 200))
    >>> low, high = correlation_interval(x, lambda scores, rows: rank_correlations(scores, (x + noise)[rows]))
    >>> 0.5 < low < 0.7 < high < 0.8
    True
    """
    n = len(scores)
    estimate = rho = float(total(scores, np.arange(n)))
    edge = 1 - 1 / n**2
    se, df = jackknife(lambda rows: total(scores[rows], rows), n)
    if abs(rho) > edge:  # a perfect correlation has no jackknife error: use that of normal variables (Bonett 2000)
        rho, se = math.copysign(edge, rho), math.sqrt(1.5 / max(n - 3, 1)) * (1 - edge**2)
    more = float(scipy.special.stdtrit(df, 0.975)) * se / (1 - rho**2)
    return min(estimate, math.tanh(math.atanh(rho) - more)), max(estimate, math.tanh(math.atanh(rho) + more))


def jackknife(figure: Callable[[Numbers], Values], n: int) -> tuple[float, int]:
    """Return the jackknife standard error of a metric over n examples, and its degrees of freedom.

    `figure` computes the metric: it takes several sets of example indices, [set, example], and returns one value per
    set.
    """
    groups = np.array_split(np.random.default_rng(0).permutation(n), min(n, GROUPS))
    values = np.empty(len(groups))
    for size in {len(group) for group in groups}:  # groups have at most two sizes
        equal = [i for i, group in enumerate(groups) if len(group) == size]
        for begin in range(0, len(equal), at_once := max(1, AT_ONCE // n)):
            part = equal[begin : begin + at_once]
            values[part] = figure(np.stack([np.setdiff1d(np.arange(n), groups[i]) for i in part]))
    df = len(groups) - 1
    return math.sqrt(df / len(groups) * float(((values - values.mean()) ** 2).sum())), max(df, 1)


def skewness(values: Values) -> Values:
    """Return the skewness of the values along the last axis; 0 where all values are equal.

    >>> skewness(np.array([[0.0, 0.0, 3.0], [-1.0, 0.0, 1.0], [2.0, 2.0, 2.0]])).round(3).tolist()
    [0.385, 0.0, 0.0]
    """
    apart, spread = values - values.mean(axis=-1, keepdims=True), values.std(axis=-1, ddof=1)
    return (apart**3).mean(axis=-1) / np.where(spread > 0, spread, 1.0) ** 3


def skewed_quantile(quantile: float, skewness: Values, n: int) -> Values:
    """Correct a quantile of Student's t for the skewness of the n values whose mean is tested.

    The t statistic of skewed values is itself skewed. Hall (1992, J. R. Stat. Soc. B 54, 221-228) removes this skewness
    by a rising cubic function, x + g x^2 / 3 + g^2 x^3 / 27 + g / 6 with g = skewness / sqrt(n). This function returns
    the inverse of that cubic at `quantile`. Values with a long upper tail get a longer interval above their mean, and a
    shorter one below.

    >>> [round(float(skewed_quantile(x, np.array(1.0), 25)), 2) for x in (2.0, -2.0)]
    [1.75, -2.4]
    >>> float(skewed_quantile(2.0, np.array(0.0), 25))
    2.0
    """
    bend = skewness / n**0.5
    shifted = quantile - bend / 6
    root: Values = np.cbrt(1 + bend * shifted)
    return 3 * shifted / (root**2 + root + 1)


def mean_ranks(values: Values) -> Values:
    """Return the ranks of values along the last axis, from 1; equal values share their mean rank.

    The result is that of `scipy.stats.rankdata`, without the second that `scipy.stats` takes to load.

    >>> mean_ranks(np.array([[3.0, 1, 3], [5, 5, 5]])).tolist()
    [[2.5, 1.0, 2.5], [2.0, 2.0, 2.0]]
    """
    order, places = values.argsort(axis=-1), np.arange(values.shape[-1])
    ordered = np.take_along_axis(values, order, axis=-1)
    differs = ordered[..., 1:] != ordered[..., :-1]
    edge = np.ones_like(ordered[..., :1], dtype=bool)
    first = np.maximum.accumulate(np.where(np.concatenate([edge, differs], axis=-1), places, 0), axis=-1)
    ends = np.where(np.concatenate([differs, edge], axis=-1), places, places[-1:])
    last = np.minimum.accumulate(ends[..., ::-1], axis=-1)[..., ::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 + 1, axis=-1)
    return ranks


def rank_correlations(x: Values, y: Values) -> Values:
    """Return Spearman's rank correlation of `x` and `y` along the last axis; 0 where one of the two is constant.

    >>> rank_correlations(np.array([[1.0, 2, 3], [3, 2, 1]]), np.array([[1.0, 5, 9], [1, 5, 9]])).round(6).tolist()
    [1.0, -1.0]
    """
    a, b = (mean_ranks(values) for values in (x, y))
    a, b = (ranks - ranks.mean(axis=-1, keepdims=True) for ranks in (a, b))
    spread = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    return np.divide((a * b).sum(axis=-1), spread, out=np.zeros_like(spread), where=spread > 0)


def mcnemar(worse: int, better: int) -> float:
    """Return the exact two-sided p-value of McNemar's test, given how many examples became worse and better.

    >>> mcnemar(0, 0), mcnemar(5, 0), mcnemar(3, 3)
    (1.0, 0.0625, 1.0)
    """
    return min(1.0, 2 * float(scipy.special.bdtr(min(worse, better), worse + better, 0.5)))


def holm(p: Sequence[float]) -> list[float]:
    """Return the p-values of a family of tests after Holm's step-down correction (Holm 1979), in the given order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        corrected[i] = largest
    return corrected


@dataclass(frozen=True)
class RankAgreement:
    """Spearman's rank correlation of two measures of the same items, such as heads; ties share their mean rank."""

    rho: float
    low: float
    high: float
    """The upper end of the 95 % CI (`low` is the lower end), which regards the items as a random sample."""
    p: Share
    """The two-sided p-value of a permutation test of no correlation."""
    tied: Count
    """The number of items that share their rank in the second measure with other items."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the correlation lies outside [-1, 1] or outside its confidence interval."""
        if abs(self.rho) > 1 + ROUNDING:
            yield "rho", "between -1 and 1"
        yield from outside(self, "rho")


def rank_agreement(x: Values, y: Values, rng: np.random.Generator, draws: int = 4999) -> RankAgreement | None:
    """Return Spearman's rank correlation of `x` and `y` with its 95 % CI and p-value; None if either is constant.

    >>> agreement = rank_agreement(np.arange(9.0), np.array([0, 0, 0, 1, 2, 3, 4, 5, 6.0]), np.random.default_rng(0))
    >>> round(agreement.rho, 3), round(agreement.low, 2), agreement.p < 0.001, agreement.tied
    (0.983, 0.61, True, 3)
    """
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    rho = float(rank_correlations(x, y))
    shuffled = rank_correlations(rng.permuted(np.broadcast_to(x, (draws, len(x))), axis=1), y)
    p = (int((np.abs(shuffled) >= abs(rho) - 1e-12).sum()) + 1) / (draws + 1)
    low, high = correlation_interval(x, lambda values, rows: rank_correlations(values, y[rows]))
    _, place, counts = np.unique(y, return_inverse=True, return_counts=True)
    return RankAgreement(rho, low, high, p, int((counts[place] > 1).sum()))


# --- means over queries, errors over examples -------------------------------------------------------------------------
# Examples are sampled independently; the queries of one example are not independent. Standard errors are therefore over
# examples: the variance is the sum of the squared influences of the examples on the mean. With one query per example,
# this is the usual s / sqrt(n).


Sums = Values
"""An array [example, column] of sums of an attention measure over queries.

Each entry is a sum over the queries of one example that belong to one column of the task, such as the tens of a sum.
"""
Stratum = NDArray[np.bool_]
"""A mask [example, column] of one group (stratum) of comparable entries, whose mean is taken together."""


@dataclass(frozen=True)
class Estimate:
    """A mean over examples, with the influence of each example, from which the standard error is computed."""

    mean: float
    influence: Values
    """By how much each example moves the mean, one value per example; 0 for examples that do not contribute."""
    takes_part: NDArray[np.bool_]
    """A mask of the examples that contribute to the mean."""

    @property
    def n(self) -> int:
        """The number of examples that contribute to the estimate."""
        return int(self.takes_part.sum())

    @property
    def se(self) -> float:
        """The standard error of the mean over examples; at least two examples must contribute."""
        return float(np.sqrt((self.influence**2).sum() * self.n / (self.n - 1)))

    def __sub__(self, other: Estimate) -> Estimate:
        """Return the difference of two means; an example that contributes to both is counted once."""
        return Estimate(self.mean - other.mean, self.influence - other.influence, self.takes_part | other.takes_part)


def estimate(sums: Sums, counts: Sums, strata: Sequence[Stratum]) -> Estimate:
    """Return the unweighted mean of the means of several strata (groups of comparable entries).

    `sums` and `counts` [example, column] hold the sum of a measure over queries, and the number of these queries. A
    column is, for example, the tens of a sum. Each stratum is a mask [example, column]. All strata have equal weight,
    so that two sets of examples can be compared even if a column is more common in one of them.

    >>> one = estimate(np.array([[1.0], [2.0], [6.0]]), np.ones((3, 1)), [np.ones((3, 1), dtype=bool)])
    >>> one.mean, round(one.se, 6), float(round(np.std([1, 2, 6], ddof=1) / np.sqrt(3), 6))
    (3.0, 1.527525, 1.527525)
    """
    means, influence, takes_part = [], np.zeros(len(sums)), np.zeros(len(sums), dtype=bool)
    for stratum in strata:
        total = max(counts[stratum].sum(), 1.0)  # an empty stratum has mean 0 and n = 0
        means.append(sums[stratum].sum() / total)
        influence += ((sums - means[-1] * counts) * stratum).sum(axis=1) / (total * len(strata))
        takes_part |= (counts * stratum).any(axis=1)
    return Estimate(float(np.mean(means)), influence, takes_part)


# --- p-values against draws of a null ---------------------------------------------------------------------------------


def step_down(observed: Values, null: Values) -> Values:
    """Return one p-value per statistic, corrected for the number of statistics (max-T, Westfall and Young 1993).

    `observed` [statistic] holds the measured values, and `null` [draw, statistic] values under the null hypothesis.
    Each statistic is standardised by its mean and standard deviation over the null draws and the observed value
    together. Under the null hypothesis, the observed value is one draw among the others, so the p-value of the largest
    statistic is exact.

    >>> null = np.random.default_rng(0).normal(size=(99, 2))
    >>> step_down(np.array([9.0, 0.0]), null).round(2).tolist()
    [0.01, 0.54]
    """
    both = np.vstack([observed, null])
    spread = both.std(axis=0)
    scaled = np.divide(both - both.mean(axis=0), spread, out=np.zeros_like(both), where=spread > 1e-12)
    order = np.argsort(-scaled[0], kind="stable")
    # The largest statistic is compared with the maximum of each draw, the next one with the maximum of the rest.
    largest = np.maximum.accumulate(scaled[1:, order[::-1]], axis=1)[:, ::-1]
    p = np.empty(len(observed))
    p[order] = np.maximum.accumulate(share_above(scaled[0, order], largest))
    return p


def share_above(observed: Values, null: Values) -> Values:
    """Return one uncorrected p-value per statistic: (1 + number of null draws >= the observed value) / (draws + 1).

    `observed` [statistic] holds the measured values, and `null` [draw, statistic] values under the null hypothesis.
    """
    return np.asarray((1 + (null >= observed - 1e-9).sum(axis=0)) / (len(null) + 1))
