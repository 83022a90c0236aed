"""Numbers with their intervals and p-values, and how much a head matters in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its parts are imported when they are first used, which `headcount --help` and `predict` never do
from numpy.typing import NDArray

from headcount.results import ROUNDING, Contradiction, Count, Positive, Share, outside, unequal

Values = NDArray[np.float64]
Numbers = NDArray[np.int64]
"""Of examples."""
Hits = NDArray[np.bool_]
FEW_HITS = 3
"""Up to so many, the bound of a share is that of a Poisson variable; of 50 trials or fewer, one less."""


@dataclass(frozen=True)
class Proportion:
    """`correct` of `n`, with a Wilson score interval (Wilson 1927), which stays inside [0, 1] at 0 % and 100 %.

    Where one to three are right, or wrong, Wilson's bound on that side is too near (84 % instead of 95 % are covered
    where 0.18 are expected); there it is the Poisson bound of Brown, Cai and DasGupta (2001).

    >>> Proportion.of(98, 100)
    Proportion(correct=98, n=100, rate=0.98, low=0.929..., high=0.996...)
    """

    correct: Count
    n: Positive
    rate: float
    low: float
    high: float

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the rate and its interval with the counts."""
        if self.correct > self.n:
            yield "correct", f"at most n, {self.n}"
            return
        right = Proportion.of(self.correct, self.n)
        yield from unequal(self, rate=right.rate, low=right.low, high=right.high)

    @classmethod
    def of(cls, correct: int, n: int, confidence: float = 0.95) -> Proportion:
        """The share of `n` trials that were `correct`."""
        if not 0 <= correct <= n or n == 0:
            raise ValueError(f"{correct} of {n} is no share: there must be trials, and no more hits than trials")
        if not 0 < confidence < 1:
            raise ValueError(f"confidence should lie between 0 and 1, not at {confidence}")
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
        """The share of trials that hit."""
        return cls.of(int(hits.sum()), len(hits))

    def __str__(self) -> str:
        return f"{self.rate:.2%} [{self.low:.2%}, {self.high:.2%}], n={self.n:,}"


@dataclass(frozen=True)
class PairedDifference:
    """The mean of differences on the same examples, with a 95 % interval and the chance of as much by luck."""

    mean: float
    low: float
    high: float
    p: Share

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the interval with the mean."""
        return outside(self, "mean")

    def widened(self, se: float, df: int, confidence: float = 0.95) -> PairedDifference:
        """With one more source of noise, whose standard error rests on `df` degrees of freedom, in the interval.

        >>> PairedDifference(0.2, 0.17, 0.23, 0.001).widened(0.02, 7)
        PairedDifference(mean=0.2, low=0.1439..., high=0.2560..., p=0.001)
        """
        more = float(scipy.special.stdtrit(df, 0.5 + confidence / 2)) * se
        low, high = math.hypot(self.mean - self.low, more), math.hypot(self.high - self.mean, more)
        return replace(self, low=self.mean - low, high=self.mean + high)


N_RESAMPLES = 1999
"""Resamples of a bootstrap."""
LEAST_P = 40
"""Resamples for each of a family of tests, so that the least p there can be, corrected over the family, is small."""
AT_ONCE = 2**22
"""Numbers of resamples that are held at once."""
GROUPS = 100
"""Of a jackknife: as many examples as this are left out one by one, of more a hundredth at a time."""
UNSEEN = 3.689
"""-log(0.025): what happens to fewer than so many of n examples is, in 2.5 % of all draws, not seen at all."""


def paired_hits(
    before: Hits, after: Hits | Values, confidence: float = 0.95, donors: Numbers | None = None
) -> PairedDifference:
    """How many points were lost from `before` to `after`, on the same examples.

    The interval inverts the score test for paired proportions (Tango 1998); where everything was right before, so that
    nothing can improve, it is that of Clopper and Pearson (1934) for the share that broke. `after` may be [try,
    example]: tries count for as many examples as their variance tells (Korn and Graubard 1998), and if each had a
    donor, whose number is in `donors`, what it does to others counts too (`influences`). The test is McNemar's, exact:
    of the examples that changed, on average over tries, did more get worse than chance would have it?

    >>> paired_hits(np.ones(500, dtype=bool), np.arange(500) >= 20)
    PairedDifference(mean=0.04, low=0.024..., high=0.061..., p=1.9...e-06)
    """
    n, lost_DN = len(before), np.asarray(before, dtype=float) - np.atleast_2d(after)
    worse, better = (float((sign * lost_DN).clip(min=0).mean(axis=0).sum()) for sign in (1, -1))
    mean, lost = (worse - better) / n, lost_DN.mean(axis=0)
    # As if one more example had broken whole: what is rare does not tell how alike the tries at an example are.
    alone, seen = (worse + better + 1) / n - mean**2, float((influences(lost_DN, donors) ** 2).mean()) + 1 / n
    size = n * float(np.clip(alone / seen, 0.25, len(lost_DN)))
    counts = worse * size / n, better * size / n
    low, high = _clopper_pearson(counts[0], size, confidence) if before.all() else _tango(*counts, size, confidence)
    return PairedDifference(mean, low, high, mcnemar(int((lost > 0).sum()), int((lost < 0).sum())))


def influences(lost_DN: Values, donors: Numbers | None) -> Values:
    """How far each example moves the mean over all tries; their mean square is n times the variance of that mean.

    An example that is also a donor moves it twice, by what it loses and by what others lose to it, and the two may go
    together. In the sum of both, the noise of single tries is counted twice; it is scaled down by that.
    """
    apart_DN = lost_DN - lost_DN.mean()
    by_example = apart_DN.mean(axis=0)
    if donors is None:
        return by_example
    n_tries, n = lost_DN.shape
    both = by_example + np.bincount(donors.ravel(), apart_DN.ravel(), n) / n_tries
    square, twice = float((both**2).mean()), float((apart_DN**2).mean()) / n_tries
    if not square:
        return by_example
    return both * math.sqrt(max(square - twice, float((by_example**2).mean()) / 2) / square)


def _clopper_pearson(hits: float, n: float, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low = float(scipy.special.betaincinv(hits, n - hits + 1, tail)) if hits > 0 else 0.0
    return low, float(scipy.special.betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0


def _tango(worse: float, better: float, n: float, confidence: float) -> tuple[float, float]:
    """Differences at which the score test of these counts is just not significant."""
    z, mean, least = float(scipy.special.ndtri(0.5 + confidence / 2)), (worse - better) / n, 1e-12

    def score(difference: float) -> float:
        """In standard errors, those that there would be if this were the truth."""
        b, c = (2 * n - worse + better) * difference - worse - better, -better * difference * (1 - difference)
        rate = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)  # of getting better, at its likeliest
        variance = n * (2 * rate + difference * (1 - difference))
        return (worse - better - n * difference) / math.sqrt(max(variance, least**2))

    low, high = -1.0, 1.0
    if score(least - 1) > z:
        low = float(scipy.optimize.brentq(lambda d: score(d) - z, least - 1, mean))
    if score(1 - least) < -z:
        high = float(scipy.optimize.brentq(lambda d: score(d) + z, mean, 1 - least))
    return low, high


def paired_differences(
    lost_KN: NDArray[np.floating], rng: np.random.Generator, broken: float | None = None, draws: int = 0
) -> list[PairedDifference]:
    """The same for scores that are no hits, K comparisons of n examples at once: bootstrap-t (Efron 1982).

    Means of skewed differences are off to the side where their standard error is small too, which the plain bootstrap
    overlooks: intervals come from the quantiles of t = (mean* - mean) / se*, and p, of a mean of zero, as well. Of rare
    examples that lose much no sample tells that has none of them. If an example can lose as much as `broken`, the
    interval reaches as far as it would if those that a sample may have missed (3.7 of n) lost so much. There are at
    least so many `draws`.

    >>> paired_differences(np.arange(40.0)[None] % 4, np.random.default_rng(0))
    [PairedDifference(mean=1.5, low=1.1..., high=1.8..., p=0.001)]
    """
    n = lost_KN.shape[1]
    means = lost_KN.mean(axis=1, dtype=float)
    apart_KN = lost_KN - means[:, None]
    errors = np.sqrt((apart_KN**2).sum(axis=1) / max(n - 1, 1) / n)
    errors[errors < 1e-12 * np.abs(lost_KN).max(axis=1)] = 0.0  # all alike, but for rounding
    t_DK = _studentised(apart_KN, errors, rng, max(N_RESAMPLES, draws))
    found = []
    for lost_N, mean, error, t_D in zip(lost_KN, means.tolist(), errors.tolist(), t_DK.T, strict=True):
        low, high, p = mean, mean, min(1.0, 2.0 ** (1 - n)) if mean else 1.0  # of equal losses, their signs can tell
        if error:
            ends = np.quantile(t_D, [0.975, 0.025], method="inverted_cdf")  # never between a number and infinity
            low, high = (mean - float(end) * error for end in ends)
            low, high = max(low, -_most(-lost_N)), min(high, _most(lost_N))
            as_far = min(int((t_D >= mean / error).sum()), int((t_D <= mean / error).sum()))
            p = min(1.0, 2 * (as_far + 1) / (len(t_D) + 1))
        if broken is not None:
            high = max(high, mean + UNSEEN * broken / n)
        found.append(PairedDifference(mean, min(mean, low), max(mean, high), p))
    return found


def _most(lost: NDArray[np.floating]) -> float:
    """Upper bound of the mean, as if each example lost either the least or the most that is seen: what is possible.

    Where a few examples carry the sum, resamples without them know nothing of their own error, and t has no bounds.
    """
    least, most = float(lost.min()), float(lost.max())
    hits = float((lost - least).sum()) / (most - least)
    return least + (most - least) * _clopper_pearson(hits, len(lost), 0.95)[1]


def _studentised(apart_KN: NDArray[np.floating], errors: Values, rng: np.random.Generator, draws: int) -> Values:
    """Of every resample and comparison; resamples are shared, so that many comparisons cost little more than one."""
    n = apart_KN.shape[1]
    scaled = np.divide(apart_KN, errors[:, None], out=np.zeros(apart_KN.shape), where=errors[:, None] > 0)
    both_N2K = np.concatenate([scaled, scaled**2]).T
    found, at_once = [], max(1, AT_ONCE // n)
    for begin in range(0, draws, at_once):
        n_draws = min(at_once, draws - begin)
        rows = rng.integers(n, size=(n_draws, n)) + n * np.arange(n_draws)[:, None]
        counts = np.bincount(rows.ravel(), minlength=n_draws * n).reshape(n_draws, n)
        mean, square = np.split(counts.astype(float) @ both_N2K / n, 2, axis=1)
        spread = square - mean**2
        infinite = np.where(mean == 0, 0.0, np.copysign(np.inf, mean))  # all alike: no idea of its own error
        error = np.sqrt(spread.clip(min=0) / max(n - 1, 1))
        found.append(np.divide(mean, error, out=infinite, where=spread > 1e-9 * square))
    return np.concatenate(found)


Aggregator = Callable[[Values, Numbers], Values]
"""From the scores [..., n] of the examples with these numbers [..., n] to one figure, [...]."""


def paired_figures(
    before: Values,
    after: Values,
    total: Aggregator,
    rng: np.random.Generator,
    draws: int = 999,
    donors: Numbers | None = None,
) -> PairedDifference:
    """The same for a figure that is no mean over examples, such as a correlation; `after` may be [try, example].

    The interval is the jackknife's (Tukey 1958); for the test, each example's two scores change places at random: its
    null is that they could as well have.
    """
    n, tries = len(before), np.atleast_2d(after)

    def lost(one: Values, other: Values, rows: Numbers) -> Values:
        """The mean over tries, which come last but one."""
        rows = np.broadcast_to(rows, one.shape)
        return (total(one, rows) - total(other, rows)).mean(axis=-1)

    both = np.broadcast_to(before, tries.shape)

    def without_some(rows: Numbers) -> Values:
        one, other = (scores[:, rows].swapaxes(0, 1) for scores in (both, tries))
        return lost(one, other, rows[:, None])

    se, df = jackknife(without_some, n)
    if donors is not None:
        se = _donors_too(before, tries, total, donors, se)
    found, as_much, at_once = float(lost(both, tries, np.arange(n))), 0, max(1, AT_ONCE // tries.size)
    for begin in range(0, draws, at_once):
        swapped = rng.integers(2, size=(min(at_once, draws - begin), 1, n)).astype(bool)
        one, other = np.where(swapped, tries, both), np.where(swapped, both, tries)
        as_much += int((np.abs(lost(one, other, np.arange(n))) >= abs(found) * (1 - 1e-6)).sum())
    return PairedDifference(found, found, found, (as_much + 1) / (draws + 1)).widened(se, df)


def _donors_too(before: Values, tries: Values, total: Aggregator, donors: Numbers, se: float) -> float:
    """Standard error where an example is left out of what it lost and of what others lost to it, as in `influences`."""
    n = len(before)

    def left(rows: Numbers) -> float:
        stays = np.zeros(n, dtype=bool)
        stays[rows] = True
        found = []
        for scores, donor in zip(tries, donors, strict=True):
            kept = rows[stays[donor[rows]]]
            found.append(total(before[kept], kept) - total(scores[kept], kept))
        return float(np.mean(found))

    def alone(scores: Values) -> float:
        return jackknife(lambda rows: total(before[rows], rows) - total(scores[rows], rows), n)[0] ** 2

    twice = float(np.mean([alone(scores) for scores in tries])) / len(tries)
    found = jackknife(lambda rows: np.array([left(each) for each in rows]), n)[0]
    return math.sqrt(max(found**2 - twice, se**2 / 2))


def correlation_interval(scores: Values, total: Aggregator) -> tuple[float, float]:
    """95 % interval of a correlation: the jackknife's, on Fisher's scale, where correlations are nearly normal.

    >>> x, noise = np.random.default_rng(0).normal(size=(2, 200))
    >>> low, high = correlation_interval(x, lambda scores, rows: rank_correlations(scores, (x + noise)[rows]))
    >>> 0.5 < low < 0.7 < high < 0.8
    True
    """
    n = len(scores)
    found = whole = float(total(scores, np.arange(n)))
    edge = 1 - 1 / n**2
    se, df = jackknife(lambda rows: total(scores[rows], rows), n)
    if abs(found) > edge:  # what ranks all alike would rank all parts alike: as for normal variables (Bonett 2000)
        found, se = math.copysign(edge, found), math.sqrt(1.5 / max(n - 3, 1)) * (1 - edge**2)
    more = float(scipy.special.stdtrit(df, 0.975)) * se / (1 - found**2)
    return min(whole, math.tanh(math.atanh(found) - more)), max(whole, math.tanh(math.atanh(found) + more))


def jackknife(figure: Callable[[Numbers], Values], n: int) -> tuple[float, int]:
    """Standard error of a figure of n examples, and its degrees of freedom.

    The figure is given the numbers of the examples that stay, [part, example], and returns one value for each part.
    """
    groups = np.array_split(np.random.default_rng(0).permutation(n), min(n, GROUPS))
    found = np.empty(len(groups))
    for size in {len(group) for group in groups}:  # there are two at most
        some = [i for i, group in enumerate(groups) if len(group) == size]
        for begin in range(0, len(some), at_once := max(1, AT_ONCE // n)):
            part = some[begin : begin + at_once]
            found[part] = figure(np.stack([np.setdiff1d(np.arange(n), groups[i]) for i in part]))
    df = len(groups) - 1
    return math.sqrt(df / len(groups) * float(((found - found.mean()) ** 2).sum())), max(df, 1)


def rank_correlations(x: Values, y: Values) -> Values:
    """Spearman's rank correlation of many samples at once, [..., n]; 0 where one does not vary.

    >>> rank_correlations(np.array([[1.0, 2, 3], [3, 2, 1]]), np.array([[1.0, 5, 9], [1, 5, 9]])).round(6).tolist()
    [1.0, -1.0]
    """
    a, b = (scipy.stats.rankdata(values, axis=-1) for values in (x, y))
    a, b = (ranks - ranks.mean(axis=-1, keepdims=True) for ranks in (a, b))
    spread = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    return np.divide((a * b).sum(axis=-1), spread, out=np.zeros_like(spread), where=spread > 0)


def mcnemar(worse: int, better: int) -> float:
    """Exact two-sided p: `worse` heads in `worse + better` tosses of a fair coin.

    >>> mcnemar(0, 0), mcnemar(5, 0), mcnemar(3, 3)
    (1.0, 0.0625, 1.0)
    """
    return min(1.0, 2 * float(scipy.special.bdtr(min(worse, better), worse + better, 0.5)))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction of a family of tests (Holm 1979).

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
    """Whether two figures rank some things alike (Spearman; ties share their mean rank)."""

    rho: float
    low: float
    high: float
    """95 % interval, these things being a sample of such."""
    p: Share
    """Over shuffles."""
    tied: Count
    """Things that share their rank with another by the second figure."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the interval with the correlation, which lies between -1 and 1."""
        if abs(self.rho) > 1 + ROUNDING:
            yield "rho", "between -1 and 1"
        yield from outside(self, "rho")


def rank_agreement(x: Values, y: Values, rng: np.random.Generator, draws: int = 4999) -> RankAgreement | None:
    """Spearman's rank correlation with its interval; None if one of the two does not vary.

    >>> found = rank_agreement(np.arange(9.0), np.array([0, 0, 0, 1, 2, 3, 4, 5, 6.0]), np.random.default_rng(0))
    >>> round(found.rho, 3), round(found.low, 2), found.p < 0.001, found.tied
    (0.983, 0.61, True, 3)
    """
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    rho = float(rank_correlations(x, y))
    shuffled = rank_correlations(rng.permuted(np.broadcast_to(x, (draws, len(x))), axis=1), y)
    p = (int((np.abs(shuffled) >= abs(rho) - 1e-12).sum()) + 1) / (draws + 1)
    low, high = correlation_interval(x, lambda some, rows: rank_correlations(some, y[rows]))
    _, place, counts = np.unique(y, return_inverse=True, return_counts=True)
    return RankAgreement(rho, low, high, p, int((counts[place] > 1).sum()))


# --- means over queries, errors over examples -------------------------------------------------------------------------
# Examples are drawn; the queries of one example come together. The standard error is therefore over examples: each
# example's pull on the mean is kept, and their sum of squares is the variance. With one query in each example that is
# the textbook's s / sqrt(n).


Sums = Values
Stratum = NDArray[np.bool_]
"""[example, column]: what is pooled into one mean."""


@dataclass(frozen=True)
class Estimate:
    """A mean, and each example's pull on it; 0 for an example that has no part in it."""

    mean: float
    influence: Values
    takes_part: NDArray[np.bool_]

    @property
    def n(self) -> int:
        """How many examples it rests on."""
        return int(self.takes_part.sum())

    @property
    def se(self) -> float:
        """The standard error over examples; there must be two of them."""
        return float(np.sqrt((self.influence**2).sum() * self.n / (self.n - 1)))

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference; an example that pulls on both counts once, so that what they share is not counted twice."""
        return Estimate(self.mean - other.mean, self.influence - other.influence, self.takes_part | other.takes_part)


def estimate(sums: Sums, counts: Sums, strata: Sequence[Stratum]) -> Estimate:
    """The mean of the strata's means, from each example's sums and counts by column, [example, column].

    Strata count alike, so that two groups of examples which differ in how often they meet a column can be compared.

    >>> one = estimate(np.array([[1.0], [2.0], [6.0]]), np.ones((3, 1)), [np.ones((3, 1), dtype=bool)])
    >>> one.mean, round(one.se, 6), float(round(np.std([1, 2, 6], ddof=1) / np.sqrt(3), 6))
    (3.0, 1.527525, 1.527525)
    """
    means, influence, takes_part = [], np.zeros(len(sums)), np.zeros(len(sums), dtype=bool)
    for stratum in strata:
        total = max(counts[stratum].sum(), 1.0)  # of nothing, the mean is 0 and n is 0
        means.append(sums[stratum].sum() / total)
        influence += ((sums - means[-1] * counts) * stratum).sum(axis=1) / (total * len(strata))
        takes_part |= (counts * stratum).any(axis=1)
    return Estimate(float(np.mean(means)), influence, takes_part)


# --- p-values against draws of a null ---------------------------------------------------------------------------------


def step_down(observed: Values, null: Values) -> Values:
    """A p for each of several statistics, corrected over all (max-T, Westfall and Young 1993).

    `null` is [draw, statistic]. Each statistic is measured by its own mean and spread, over the draws and what was
    observed alike, so that under the null what was observed is one draw among the others, and the p of the largest
    statistic is exact.

    >>> null = np.random.default_rng(0).normal(size=(99, 2))
    >>> step_down(np.array([9.0, 0.0]), null).round(2).tolist()
    [0.01, 0.54]
    """
    both = np.vstack([observed, null])
    spread = both.std(axis=0)
    scaled = np.divide(both - both.mean(axis=0), spread, out=np.zeros_like(both), where=spread > 1e-12)
    order = np.argsort(-scaled[0], kind="stable")
    # The largest statistic is compared with the largest of all in each draw, the next with the largest of the others.
    largest = np.maximum.accumulate(scaled[1:, order[::-1]], axis=1)[:, ::-1]
    p = np.empty(len(observed))
    p[order] = np.maximum.accumulate(share_above(scaled[0, order], largest))
    return p


def share_above(observed: Values, null: Values) -> Values:
    """A p for each statistic by itself: how many of the draws and itself are at least as large."""
    return np.asarray((1 + (null >= observed - 1e-9).sum(axis=0)) / (len(null) + 1))
