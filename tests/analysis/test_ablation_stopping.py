"""When measurements of a head stop: simulated looks, and a second opinion by betting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.betting import betting_interval

from headcount.analysis.ablation_stopping import ALPHA, LEVELS, Looks, StoppingRule
from headcount.bands import band_of
from headcount.stats import PairedDifference, paired_hits


def look_until_settled(lost: np.ndarray, rule: StoppingRule) -> tuple[int, PairedDifference, Looks]:
    """Look at examples that are all right with all heads; `lost` says which become wrong."""
    looks = Looks(rule)
    while True:
        n = looks.next_n
        drop = paired_hits(np.ones(n, dtype=bool), ~lost[:n], 1 - looks.level)
        whole = looks.look(n, drop)
        if looks.is_settled:
            return n, whole, looks


def test_the_levels_of_all_looks_but_the_last_leave_something_for_the_last() -> None:
    assert 0 < sum(LEVELS) < ALPHA


def test_a_head_without_any_effect_is_redundant_at_the_first_look() -> None:
    rule = StoppingRule()
    n, drop, _ = look_until_settled(np.zeros(rule.most, dtype=bool), rule)
    assert n == rule.first
    assert band_of(drop) == "redundant"


@given(rate=st.sampled_from([0.0, 0.002, 0.008, 0.0125, 0.03, 0.09, 0.11, 0.3, 0.7]), seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_every_measurement_ends_decided_and_narrow_or_at_the_most_examples(rate: float, seed: int) -> None:
    rule = StoppingRule(most=20_000)
    lost = np.random.default_rng(seed).random(rule.most) < rate
    n, drop, looks = look_until_settled(lost, rule)
    assert looks.spent <= sum(LEVELS) < ALPHA
    assert drop.low <= lost[:n].mean() <= drop.high
    narrow = (drop.high - drop.low) / 2 <= rule.precision + 1e-9
    assert narrow or n == rule.most
    if band_of(drop) == "undecided":
        # It stopped because even the most examples would hardly decide it: the drop is close to a limit.
        assert n == rule.most or min(abs(drop.mean - limit) for limit in (0.01, 0.1)) < 3 * np.sqrt(rate / n)


@pytest.mark.parametrize("rate", [0.0105, 0.16])
def test_intervals_under_stopping_cover_and_bands_are_right(rate: float) -> None:
    """The rates of misses are below 5 %: with 400 sweeps, 5 % are more than 33 misses with a probability of 0.1 %."""
    rng, rule = np.random.default_rng(7), StoppingRule(most=4000)
    missed = wrong = 0
    for _ in range(400):
        _, drop, _ = look_until_settled(rng.random(rule.most) < rate, rule)
        missed += not drop.low <= rate <= drop.high
        wrong += band_of(drop) == "redundant"
    assert missed <= 33
    assert wrong <= 33


def test_ordinary_intervals_that_are_looked_at_as_often_miss_more() -> None:
    """The reason for all this: stopping when an ordinary interval looks good."""
    rng, n_missed, rate = np.random.default_rng(3), 0, 0.0105
    for _ in range(400):
        lost = rng.random(8000) < rate
        n = 200
        while n < 8000:
            drop = paired_hits(np.ones(n, dtype=bool), ~lost[:n])
            if band_of(drop) != "undecided":
                break
            n = int(1.1 * n)
        n_missed += not drop.low <= rate <= drop.high
    assert n_missed > 33, "more than 5 %"


def test_a_wider_interval_by_noise_does_not_ask_for_examples_without_end() -> None:
    looks = Looks(StoppingRule())
    drop, noisy = PairedDifference(0.012, 0.004, 0.02, 0.01), PairedDifference(0.012, -0.03, 0.06, 0.01)
    looks.look(540, drop, noisy)
    assert looks.is_settled, "no number of examples narrows the noise of the mean"


def test_betting_is_a_second_opinion() -> None:
    """Intervals that hold at every example (Waudby-Smith and Ramdas 2024) overlap ours, and are mostly wider."""
    rng, wider = np.random.default_rng(1), 0
    for rate in (0.004, 0.02, 0.05, 0.15, 0.3, 0.6):
        lost = rng.random(40_000) < rate
        n, drop, _ = look_until_settled(lost, StoppingRule())
        low, high = betting_interval(int(lost[:n].sum()), 0, n)
        assert max(low, drop.low) <= min(high, drop.high)
        assert low <= rate <= high
        wider += high - low > drop.high - drop.low
    assert wider >= 4
