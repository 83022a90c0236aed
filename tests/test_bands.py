"""Bands of importance, and the number of examples that would decide them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headcount.bands import BANDS, CRITICAL, IMPORTANT, band_of, examples_needed
from headcount.stats import PairedDifference, paired_hits


def drop(low: float, mean: float, high: float) -> PairedDifference:
    return PairedDifference(mean, low, high, 0.5)


@pytest.mark.parametrize(
    ("low", "high", "band"),
    [
        (0.11, 0.3, "critical"),
        (0.1001, 1.0, "critical"),
        (0.10, 0.3, "undecided"),
        (0.09, 0.3, "undecided"),
        (0.005, 0.3, "undecided"),
        (0.02, 0.09, "important"),
        (0.0101, 0.10, "important"),
        (0.01, 0.09, "undecided"),
        (0.009, 0.02, "undecided"),
        (0.0, 0.0099, "redundant"),
        (0.0, 0.01, "undecided"),
        (-0.2, 0.009, "redundant"),
        (-0.2, -0.1, "redundant"),
        (-1.0, 1.0, "undecided"),
    ],
)
def test_the_whole_interval_must_lie_in_a_band(low: float, high: float, band: str) -> None:
    assert band_of(drop(low, (low + high) / 2, high)) == band


intervals = st.tuples(st.floats(-1, 1), st.floats(0, 0.5), st.floats(0, 0.5)).map(
    lambda each: drop(each[0] - each[1], each[0], each[0] + each[2])
)


@given(intervals)
def test_the_mean_of_a_decided_head_lies_in_its_band(each: PairedDifference) -> None:
    band = band_of(each)
    assert band in BANDS
    where = "critical" if each.mean > CRITICAL else "important" if each.mean > IMPORTANT else "redundant"
    assert band in (where, "undecided")


@given(intervals)
def test_a_narrower_interval_never_contradicts(each: PairedDifference) -> None:
    narrower = drop((each.low + each.mean) / 2, each.mean, (each.high + each.mean) / 2)
    assert band_of(each) in ("undecided", band_of(narrower))


# --- how many would decide --------------------------------------------------------------------------------------------


@given(intervals, st.integers(2, 10**5))
@example(drop(0.01, 0.01, 0.01), 2)
def test_more_are_needed_if_undecided(each: PairedDifference, n: int) -> None:
    """An interval without width cannot narrow: on a border, no number of examples decides."""
    found = examples_needed(each, n)
    is_across = any(each.low <= border <= each.high for border in (IMPORTANT, CRITICAL))
    assert (found is None) == (not is_across or each.low == each.high)
    if found is not None:
        assert n <= found[0]
        assert found[1] is None or found[0] <= found[1]


def test_on_the_border_there_is_no_most() -> None:
    for each in (drop(0.005, 0.01, 0.02), drop(0.05, 0.10, 0.2)):
        found = examples_needed(each, 100)
        assert found is not None
        assert found[1] is None


crossing = st.builds(
    lambda border, away, over, beyond: drop(border + away - over * away, border + away, border + away + beyond),
    st.sampled_from([IMPORTANT, CRITICAL]),
    st.floats(1e-3, 0.03),
    st.floats(1.05, 1.9),
    st.floats(0.0, 0.03),
)
"""A border inside, but further from the mean than one standard error, so that there is a most."""


@given(crossing, st.integers(10, 10**4))
@example(drop(0.005, 0.05, 0.13), 100)
def test_an_interval_that_shrinks_as_expected_is_decided_by_the_most(each: PairedDifference, n: int) -> None:
    """If the drop stays what it is and both ends come nearer by the root of n, no border is left inside."""
    found = examples_needed(each, n)
    assert found is not None
    assert found[1] is not None
    root = np.sqrt(n / found[1])
    shrunk = drop(each.mean - (each.mean - each.low) * root, each.mean, each.mean + (each.high - each.mean) * root)
    inside = [border for border in (IMPORTANT, CRITICAL) if shrunk.low + 1e-9 < border < shrunk.high - 1e-9]
    assert not inside


def simulated(rng: np.random.Generator, n: int, worse: float, better: float) -> PairedDifference:
    kind = rng.choice(3, size=n, p=[worse, better, 1 - worse - better])
    return paired_hits(kind == 0, kind == 1)


@pytest.mark.parametrize(("worse", "better", "n"), [(0.03, 0.0, 150), (0.19, 0.01, 60), (0.06, 0.01, 100)])
def test_that_many_examples_would_probably_decide(worse: float, better: float, n: int) -> None:
    """The interval that is expected at n, then as many examples as it says; most draws are decided."""
    rng = np.random.default_rng(0)
    before, after = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    before[: round(n * worse)] = True
    after[n - round(n * better) :] = True
    expected = paired_hits(before, after)
    assert band_of(expected) == "undecided"
    more = examples_needed(expected, n)
    assert more is not None
    assert more[1] is not None
    true = expected.mean + better
    decided = [band_of(simulated(rng, more[1], true, better)) != "undecided" for _ in range(40)]
    assert np.mean(decided) > 0.6
