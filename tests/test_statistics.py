"""Our Wilson interval and scipy's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from headcount.statistics import Share

unhurried = settings(deadline=None)
trials = st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@unhurried
@given(trials, st.floats(0.01, 0.999))
def test_the_interval_is_scipys(trial: tuple[int, int], confidence: float) -> None:
    share = Share.of(*trial, confidence)
    theirs = binomtest(*trial).proportion_ci(confidence, method="wilson")
    assert share.rate == trial[0] / trial[1]
    assert (share.low, share.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9, abs=1e-12)


@unhurried
@given(trials)
def test_the_interval_holds_the_rate_and_stays_a_share(trial: tuple[int, int]) -> None:
    share = Share.of(*trial)
    assert (share.correct, share.n) == trial
    assert 0 <= share.low <= share.rate <= share.high <= 1
    assert share.low < share.high


@unhurried
@given(trials)
def test_doubt_mirrors_when_right_and_wrong_trade_places(trial: tuple[int, int]) -> None:
    right, wrong = Share.of(*trial), Share.of(trial[1] - trial[0], trial[1])
    assert (right.low, right.high) == pytest.approx((1 - wrong.high, 1 - wrong.low), abs=1e-9)


def test_the_default_is_95_percent() -> None:
    assert Share.of(7, 9) == Share.of(7, 9, 0.95) != Share.of(7, 9, 0.9)


@pytest.mark.parametrize("n", [1, 7, 2_000, 810_000])
def test_the_ends_are_exact(n: int) -> None:
    assert Share.of(0, n).low == 0
    assert Share.of(n, n).high == 1
    assert Share.of(0, n).high > 0
    assert Share.of(n, n).low < 1


@pytest.mark.parametrize(("correct", "n"), [(0, 0), (1, 0), (3, 2), (-1, 2), (0, -1), (-2, -1)])
def test_what_is_no_share_is_refused(correct: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"{correct} of {n} is no share"):
        Share.of(correct, n)


def test_a_share_reads_as_percent_with_its_doubt() -> None:
    assert str(Share.of(809_998, 810_000)) == "100.00% [100.00%, 100.00%], n=810,000"
    assert str(Share.of(98, 100)) == "98.00% [93.00%, 99.45%], n=100"


@pytest.mark.parametrize("confidence", [-0.5, 0.0, 1.0, 1.5, math.nan])
def test_a_confidence_that_is_none_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        Share.of(5, 10, confidence)
