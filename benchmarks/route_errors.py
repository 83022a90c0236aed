"""How often does `headcount routes` call a head a carrier, or no part of the way, that is not?

    python -m benchmarks route_errors             # a minute of one core

A scan judges 24 heads on 6 ways. A repetition counts as wrong if one of these 144 judgements is wrong, so the rates are
family-wise. The noise is real: the moves of each head of the packaged adder on each way, as they differ from the head's
share of the gap. Quartets are drawn from them with replacement, and a known share of the gap is added:

    share 0                   the placebo world: no head may be a carrier
    share just below 0.5      no head may be a carrier
    share 0.1                 every head is part of the way: none may be "none"

In a second kind of noise, a head moves all of the gap or nothing, at random. That is a head that acts on some examples
alone, such as one that moves the digits of one operand. At a share of 0.1, one quartet in ten decides. With Student's t
alone, without Hall's correction for skewness, "none" was wrong in 37 % of such scans of 200 quartets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from benchmarks import Ratio
from headcount.analysis.routes import (
    CONFIDENCE,
    N_RELIABLE,
    EventPatches,
    Share,
    require_event,
)
from headcount.bands import CARRIER, PART
from headcount.experiments.models import RunModel
from headcount.hooks.gates import eval_mode
from headcount.hooks.replay import sweep
from headcount.limits import N_SCAN, N_VERDICT
from headcount.runs.run import load
from headcount.seeds import stream
from headcount.stats import Proportion, skewed_quantile, skewness

N_POOL = 600
"""Number of quartets of each way whose moves are measured."""
REPETITIONS, FEWER = 4000, 400
"""Number of simulated scans with real noise, and of those with heads that move all or nothing, which take longer."""
MOST = 0.05
"""Largest rate of repetitions with a wrong judgement."""
JUST_BELOW = CARRIER - 1e-9
Values = NDArray[np.float64]


class Noise(NamedTuple):
    """Moves of the heads on one way."""

    residuals: Values
    """What each head moves beyond its share of the gap, [head, quartet]; sums to 0 over all quartets."""
    gap: Values
    """The gap of each quartet."""


class Bounds(NamedTuple):
    """Ends of the intervals of many shares, [head]."""

    low: Values
    high: Values


def measure() -> Iterator[Ratio]:
    """Yield the rate of repetitions in which a head is judged wrongly, for each world and number of quartets."""
    torch.set_num_threads(1)
    ways = [_noise(patches) for patches in _patches()]
    _require_same_intervals(ways)
    for n in (N_RELIABLE, N_SCAN, N_VERDICT):
        for world, n_wrong in _real(ways, n).items():
            yield _row(f"{world}; real noise, n = {n}", Proportion.of(n_wrong, REPETITIONS))
        for world, n_wrong in _all_or_nothing(ways, n).items():
            yield _row(f"{world}; all or nothing, n = {n}", Proportion.of(n_wrong, FEWER))


def _row(question: str, wrong: Proportion) -> Ratio:
    ours = f"{wrong.rate:.1%} [{100 * wrong.low:.1f}, {100 * wrong.high:.1f}]"
    promise = f"at most {100 * MOST:g} %"
    return Ratio(question, ours, f"of {wrong.n:,} scans", wrong.rate, promise, wrong.rate <= MOST)


# --- the real noise ---------------------------------------------------------------------------------------------------


def _patches() -> Iterator[EventPatches]:
    model = RunModel.of(load("sample:addition"))
    with eval_mode(model.module), torch.no_grad():
        for quartets in require_event(model).quartets(stream(0, "route errors"), N_POOL):
            yield EventPatches(model, quartets)


def _noise(patches: EventPatches) -> Noise:
    """Measure what each head moves on one way, beyond its share of the gap."""
    heads, gap = patches.model.sites.heads, patches.gap
    moves = np.empty((len(heads), patches.n))
    with torch.no_grad():
        for i, logits in sweep(
            patches.cached, [patches._patch(patches.cached, (head,), "event", None) for head in heads]
        ):
            moves[i] = np.mean(patches.moves(logits), axis=0)
    return Noise(moves - moves.sum(axis=1, keepdims=True) / gap.sum() * gap, gap)


# --- simulated scans --------------------------------------------------------------------------------------------------


def _bounds(both: Values, gap: Values, n_comparisons: int) -> Bounds:
    """Return the intervals of `Share.of` for many heads at once, which is a hundred times faster."""
    n, total = len(gap), gap.sum()
    share = both.sum(axis=1) / total
    residuals = (both - share[:, None] * gap) * n / total
    errors, skew = residuals.std(axis=1, ddof=1) / n**0.5, skewness(residuals)
    quantile = stats.t.ppf(1 - (1 - CONFIDENCE) / (2 * n_comparisons), n - 1)
    return Bounds(*(share - errors * skewed_quantile(end, skew, n) for end in (quantile, -quantile)))


def _require_same_intervals(ways: list[Noise]) -> None:
    """Check that simulated intervals are those of the package."""
    for noise in ways:
        both = noise.residuals + 0.3 * noise.gap
        shares = [Share.of(moves, moves, noise.gap, 144) for moves in both]
        ends = np.array([[each.low for each in shares], [each.high for each in shares]])
        assert np.allclose(_bounds(both, noise.gap, 144), ends)


def _real(ways: list[Noise], n: int) -> dict[str, int]:
    """Count the repetitions with a wrong judgement in each world; draws are the same in all worlds."""
    rng, counts = np.random.default_rng(n), dict.fromkeys(WORLDS, 0)
    n_comparisons = sum(len(noise.residuals) for noise in ways)
    for _ in range(REPETITIONS):
        wrong = dict.fromkeys(WORLDS, False)
        for noise in ways:
            rows = rng.integers(len(noise.gap), size=n)
            around = _bounds(noise.residuals[:, rows], noise.gap[rows], n_comparisons)
            for world, (share, _) in WORLDS.items():
                wrong[world] |= _is_wrong(world, Bounds(around.low + share, around.high + share))
        for world in WORLDS:
            counts[world] += wrong[world]
    return counts


def _all_or_nothing(ways: list[Noise], n: int) -> dict[str, int]:
    """Count the repetitions with a wrong judgement if each head moves the whole gap in some quartets alone."""
    rng, counts = np.random.default_rng(n), dict.fromkeys(WORLDS, 0)
    n_comparisons = sum(len(noise.residuals) for noise in ways)
    for world, (share, _) in WORLDS.items():
        for _ in range(FEWER if share else 0):  # a head with share 0 never acts
            is_wrong = False
            for noise in ways:
                gap = noise.gap[rng.integers(len(noise.gap), size=n)]
                acts = rng.random((len(noise.residuals), n)) < share
                is_wrong |= _is_wrong(world, _bounds(acts * gap, gap, n_comparisons))
            counts[world] += is_wrong
    return {world: count for world, count in counts.items() if WORLDS[world][0] > 0}


WORLDS = {
    "a carrier where every share is 0": (0.0, "carrier"),
    f"a carrier where every share is just below {CARRIER:g}": (JUST_BELOW, "carrier"),
    f'"none" where every share is {PART:g}': (PART, "none"),
}
"""The true share of all heads, and the role that is wrong, by the question."""


def _is_wrong(world: str, bounds: Bounds) -> bool:
    """Return whether any head has the role that is wrong in this world."""
    return bool((bounds.low >= CARRIER).any() if WORLDS[world][1] == "carrier" else (bounds.high < PART).any())
