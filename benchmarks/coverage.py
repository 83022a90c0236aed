"""How often do 95 % intervals contain the truth, and how often are decisions about heads wrong?

    python -m benchmarks coverage                 # simulated, and on the packaged adder; half an hour of one core
    python -m benchmarks coverage simulated       # one part; or stopping, donors, hits, losses, resample, means

In simulations the truth is known. For a real model, the truth is the value over very many examples. headcount then
computes intervals from small samples. A 95 % interval should contain the truth in 93 to 98 of 100 samples. A head that
costs exactly 1 point should be called redundant in at most 3 of 100.

If fewer than four examples are expected to change, hits are so few whole numbers that no interval covers exactly 95 %.
Such rows, and ranges that are wide on purpose, promise "at least 93 %". Rows that promise nothing show the reason for a
choice, or a limitation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import nn

from benchmarks import Ratio
from headcount.analysis.ablation import measure as measure_heads
from headcount.analysis.ablation_stopping import FIRST_SCORES, Looks, StoppingRule
from headcount.analysis.matching_transplants import restored_interval
from headcount.bands import CRITICAL, IMPORTANT, band_of, examples_needed
from headcount.data.dataset import LOSS
from headcount.data.from_file import clusters_of
from headcount.experiments.donors_and_means import PARTS, donors_of, means_of
from headcount.experiments.drops import compare, interval_of
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.experiments.interventions import run_interventions
from headcount.hooks.replay import Intervention
from headcount.rendering.markdown import markdown_table
from headcount.runs.run import load
from headcount.seeds import stream
from headcount.stats import (
    PairedDifference,
    Proportion,
    correlation_interval,
    influences,
    paired_differences,
    paired_figures,
    paired_hits,
    rank_correlations,
)

LEAST, MOST, ERRING = 0.93, 0.98, 0.03
"""Smallest and largest coverage of a 95 % interval, and largest rate of wrong decisions."""
N_RESAMPLES = 4000
"""Number of samples for fast computations."""
N_MEANS, FEWER = 2000, 800
"""Number of samples for means, and for slow computations."""
N_TRUTH = 40_000
"""Number of examples over which the truth of a real model is computed."""
FEW = 4.0
"""Number of expected changes below which no interval of hits covers exactly 95 %."""
PRECISE, AT_LEAST, STOPPED, NONE = "93 to 98 %", "at least 93 %", "at least 95 %", "none"
"""What a row can promise about its coverage."""
OUT = Path("runs/coverage")


def measure(*parts: str) -> Iterator[Ratio]:
    """Yield the rows of these parts, or of all; also write them as tables for the docs."""
    torch.set_num_threads(1)
    studies = {
        "simulated": _simulated,
        "stopping": _stopping,
        "donors": _donors,
        "hits": _hits_by_zero,
        "losses": _losses_by_zero,
        "resample": _resample,
        "means": _mean,
    }
    for part in parts or studies:
        rows = []
        for row in studies[part]():
            rows.append([row.question, row.ours, row.other, row.promise])
            OUT.mkdir(parents=True, exist_ok=True)
            table = markdown_table(["what", "covered, or wrong", "missed", "promise"], rows)
            (OUT / f"{part}.md").write_text(table + "\n")
            yield row


def _row(question: str, below: int, above: int, n: int, *, promise: str = PRECISE, worst: float | None = None) -> Ratio:
    """Return the coverage of n intervals, of which some lie below and some above the truth.

    `worst` is the smallest coverage of a single head.
    """
    share = Proportion.of(n - below - above, n)
    covered = f"{share.rate:.1%} [{100 * share.low:.1f}, {100 * share.high:.1f}]"
    of_worst = "" if worst is None else f"; worst head {worst:.1%}"
    missed = f"{below / n:.1%} below, {above / n:.1%} above{of_worst}"
    return Ratio(question, covered, missed, share.rate, promise, _is_kept(promise, share.rate))


def _is_kept(promise: str, coverage: float) -> bool:
    least = 0.95 if promise == STOPPED else LEAST
    return promise == NONE or least <= coverage <= (MOST if promise == PRECISE else 1.0)


def _errors(question: str, n_wrong: int, n: int) -> Ratio:
    """Return the rate of wrong decisions among n."""
    share = Proportion.of(n_wrong, n)
    wrong = f"{share.rate:.1%} [{100 * share.low:.1f}, {100 * share.high:.1f}]"
    return Ratio(question, wrong, "", share.rate, "at most 3 %", share.rate <= ERRING)


def _promise(expected: float) -> str:
    """Return the promise of a row of hits if `expected` examples are expected to change."""
    return AT_LEAST if expected < FEW else PRECISE


def _missed(intervals: Sequence[PairedDifference], truth: float | Sequence[float]) -> tuple[int, int]:
    """Return the number of intervals that end below the truth, and that begin above it."""
    ends = np.array([(interval.low, interval.high) for interval in intervals])
    return int((ends[:, 1] < np.asarray(truth) - 1e-12).sum()), int((ends[:, 0] > np.asarray(truth) + 1e-12).sum())


def _per_head(question: str, missed_H2: NDArray[np.int64], n_each: int, promise: str = PRECISE) -> Ratio:
    """Return the coverage pooled over several heads, and that of the worst head."""
    worst = 1 - int(missed_H2.sum(axis=1).max()) / n_each
    below, above = missed_H2.sum(axis=0).tolist()
    return _row(question, below, above, n_each * len(missed_H2), promise=promise, worst=worst)


# --- simulated --------------------------------------------------------------------------------------------------------


def _simulated() -> Iterator[Ratio]:
    rng = np.random.default_rng(12)
    for n, worse, better in (
        (200, 0.003, 0.0),
        (400, 0.01, 0.0),
        (400, 0.02, 0.01),
        (2000, 0.003, 0.0),
        (2000, 0.01, 0.0),
        (2000, 0.012, 0.002),
        (2000, 0.16, 0.01),
        (40_000, 0.01, 0.0),
    ):
        drops = [
            _hits(n, *counts)
            for counts in rng.multinomial(n, [worse, better, 1 - worse - better], size=N_RESAMPLES)[:, :2]
        ]
        what = f"hits: {100 * worse:g} % get worse, {100 * better:g} % better, n = {n:,}"
        yield _row(what, *_missed(drops, worse - better), N_RESAMPLES, promise=_promise(n * (worse + better)))
    yield from _borders(rng)
    yield from _shares()
    yield from _means(rng)
    yield _windows(rng)
    yield from _correlations(rng)
    yield from _restored(rng)
    yield _ranks(rng)


@cache
def _hits(n: int, worse: int, better: int) -> PairedDifference:
    before, after = np.ones(n, dtype=bool), np.ones(n, dtype=bool)
    after[:worse] = False
    before[n - better :] = False
    return paired_hits(before, after)


def _borders(rng: np.random.Generator) -> Iterator[Ratio]:
    """Classify heads whose true drop lies exactly on the border of two bands, and count wrong decisions."""
    for n, better in ((300, 0.0), (400, 0.0), (400, 0.02), (2000, 0.0), (2000, 0.005), (40_000, 0.0)):
        counts = rng.multinomial(n, [IMPORTANT + better, better, 1 - IMPORTANT - 2 * better], size=N_RESAMPLES)[:, :2]
        wrong = sum(band_of(_hits(n, *changes)) == "redundant" for changes in counts)
        yield _errors(f"called redundant at 1.0 points, {100 * better:g} % get better, n = {n:,}", wrong, N_RESAMPLES)
    for n in (400, 2000):
        counts = rng.binomial(n, CRITICAL, size=N_RESAMPLES)
        wrong = sum(band_of(_hits(n, int(k), 0)) == "critical" for k in counts)
        yield _errors(f"called critical at 10.0 points, n = {n:,}", wrong, N_RESAMPLES)
    for rate in (0.001, IMPORTANT, CRITICAL):
        first, second = rng.binomial(2000, rate, size=N_RESAMPLES), rng.binomial(N_TRUTH, rate, size=N_RESAMPLES)
        pairs = zip(first.tolist(), second.tolist(), strict=True)
        drops = [_hits(N_TRUTH, again, 0) if k else _hits(2000, 0, 0) for k, again in pairs]
        if rate == IMPORTANT:
            wrong = sum(band_of(drop) == "redundant" for drop in drops)
            yield _errors("called redundant at 1.0 points, by two looks (2,000, then 40,000)", wrong, N_RESAMPLES)
        yield _row(f"hits after two looks, {100 * rate:g} % get worse", *_missed(drops, rate), N_RESAMPLES)
    drops = [_hits(1000, int(k), 0) for k in rng.binomial(1000, 0.016, size=N_RESAMPLES)]
    ranges = [examples_needed(drop, 1000) for drop in drops if band_of(drop) == "undecided"]
    for name, which in (("fewest", 0), ("most", 1)):
        sizes = [needed[which] for needed in ranges if needed is not None]
        known = [int(size) for size in sizes if size is not None]
        decided = sum(band_of(_hits(n, int(rng.binomial(n, 0.016)), 0)) != "undecided" for n in known)
        open_ended = f", where there is one ({len(known) / len(sizes):.0%})" if len(known) < len(sizes) else ""
        what = f"1.6 points, undecided at n = 1,000: decided with the {name} examples that are said to{open_ended}"
        yield replace(_errors(what, decided, len(known)), promise=NONE, kept=True)


# --- looks that stop when a head is decided ---------------------------------------------------------------------------


def _stopping() -> Iterator[Ratio]:
    """Simulate measurements that stop when a head's band is decided and its interval is narrow."""
    rng = np.random.default_rng(21)
    numbers = list[int]()
    for worse, better in (
        *((0.0, 0.0), (0.002, 0.0), (0.008, 0.0), (0.01, 0.0), (0.012, 0.0), (0.015, 0.005), (0.05, 0.0)),
        *((0.09, 0.0), (0.1, 0.0), (0.11, 0.01), (0.16, 0.0), (0.4, 0.05), (0.63, 0.0), (0.86, 0.0)),
    ):
        drops = []
        for _ in range(N_RESAMPLES // 2):
            n, drop = _until_decided(rng, worse, better)
            drops.append(drop)
            numbers.append(n)
        what = f"stopped when decided: {100 * worse:g} % get worse, {100 * better:g} % better"
        n_mean = np.mean(numbers[-len(drops) :])
        yield _row(
            f"{what}; n = {n_mean:,.0f} on average", *_missed(drops, worse - better), len(drops), promise=STOPPED
        )
        wrong = {0.01: "redundant", 0.1: "critical"}.get(round(worse - better, 9))
        if wrong:
            n_wrong = sum(band_of(drop) not in ("undecided", "important") for drop in drops)
            where = f"at {100 * (worse - better):.1f} points, {100 * better:g} % get better, stopped when decided"
            yield _stopped_errors(f"called {wrong} {where}", n_wrong, len(drops))
            n_wrong = sum(band_of(drop) != "undecided" for drop in drops)
            yield _stopped_errors(f"called anything but undecided {where}", n_wrong, len(drops))
    for name, draw, truth in (
        ("normal", lambda n: rng.normal(0.02, 0.1, size=n), 0.02),
        ("exponential", lambda n: rng.exponential(0.1, size=n), 0.1),
        ("4 % lose about 2, others nothing", lambda n: (rng.random(n) < 0.04) * rng.exponential(2.0, size=n), 0.08),
    ):
        drops = []
        for _ in range(FEWER):
            lost, looks = draw(20_000), Looks(StoppingRule(0.02, FIRST_SCORES, 20_000))
            while not looks.is_settled:
                part, broken = lost[: looks.next_n], 2.0 if "others nothing" in name else None
                (drop,) = paired_differences(part[None], rng, broken, confidence=1 - looks.level)
                whole = looks.look(len(part), drop, has_bands=False)
            drops.append(whole)
        yield _row(f"loss, stopped when ± 0.02: {name}", *_missed(drops, truth), len(drops), promise=STOPPED)


def _until_decided(rng: np.random.Generator, worse: float, better: float) -> tuple[int, PairedDifference]:
    """Simulate the looks at one head; return the number of examples and the drop."""
    looks, counts, n = Looks(StoppingRule()), np.zeros(3, dtype=np.int64), 0
    while not looks.is_settled:
        more, n = looks.next_n - n, looks.next_n
        counts += rng.multinomial(more, [worse, better, 1 - worse - better])
        before, after = np.ones(n, dtype=bool), np.ones(n, dtype=bool)
        after[: counts[0]], before[n - counts[1] :] = False, False
        whole = looks.look(n, paired_hits(before, after, 1 - looks.level))
    return n, whole


def _stopped_errors(question: str, n_wrong: int, n: int) -> Ratio:
    row = _errors(question, n_wrong, n)
    return replace(row, promise="at most 5 %", kept=row.ratio <= 0.05)


def _shares() -> Iterator[Ratio]:
    """Compute the exact coverage of accuracies, and of k of n seeds, by summing over all counts."""
    for n, rate in (
        (2000, 0.9999),
        (2000, 0.9991),
        (2000, 0.998),
        (2000, 0.95),
        (200, 0.9991),
        (200, 0.99),
        (200, 0.8),
    ):
        promise = _promise(n * (1 - rate))
        yield _exactly(f"an accuracy of {100 * rate:g} %, n = {n:,}", n, np.array([rate]), promise)
    for n in (5, 20):
        rates = np.linspace(0, 1, 2001)
        yield _exactly(f"k of {n} seeds, over all rates alike", n, rates, PRECISE)
        worst = rates[int(np.argmax([sum(_held(n, np.array([rate]))) for rate in rates]))]
        what = f"k of {n} seeds, at the rate that is worst ({max(worst, 1 - worst):.2f})"
        yield _exactly(what, n, np.array([worst]), NONE)


def _held(n: int, rates: NDArray[np.float64]) -> tuple[float, float]:
    """Return the probabilities that the interval of a share ends below the rate, and that it begins above it."""
    shares = [Proportion.of(k, n) for k in range(n + 1)]
    low, high = (np.array([getattr(share, end) for share in shares])[:, None] for end in ("low", "high"))
    chance = binom.pmf(np.arange(n + 1)[:, None], n, rates)
    is_below, is_above = high < rates - 1e-12, low > rates + 1e-12
    return float((chance * is_below).sum(axis=0).mean()), float((chance * is_above).sum(axis=0).mean())


def _exactly(question: str, n: int, rates: NDArray[np.float64], promise: str) -> Ratio:
    below, above = _held(n, rates)
    covered, missed = 1 - below - above, f"{below:.1%} below, {above:.1%} above"
    return Ratio(question, f"{covered:.1%}", missed, covered, promise, _is_kept(promise, covered))


def _means(rng: np.random.Generator) -> Iterator[Ratio]:
    distributions: dict[str, tuple[Callable[[tuple[int, int]], NDArray[np.float64]], float]] = {
        "normal": (lambda size: rng.normal(0.2, 1.0, size=size), 0.2),
        "exponential": (lambda size: rng.exponential(size=size), 1.0),
        "lognormal, sigma 1": (lambda size: rng.lognormal(size=size), float(np.exp(0.5))),
        "4 % lose about 2, others nothing": (
            lambda size: (rng.random(size) < 0.04) * rng.exponential(2.0, size=size),
            0.08,
        ),
    }
    for name, (draw, truth) in distributions.items():
        for n in (50, 200, 2000):
            lost, rare = draw((N_MEANS, n)), "others nothing" in name
            drops = []
            for part in np.split(lost, N_MEANS // 20):  # 20 comparisons share their resamples, like heads of a model
                drops += paired_differences(part, rng, float(part.max()) if rare else None)
            promise = _promise(n * 0.04) if rare else PRECISE
            yield _row(f"loss: {name}, n = {n:,}", *_missed(drops, truth), N_MEANS, promise=promise)


def _windows(rng: np.random.Generator) -> Ratio:
    """Simulate the windows of a text, with a correlation of 0.5 between neighbours."""
    n, drops = 800, []
    for _ in range(N_MEANS):
        drift = rng.normal(size=n + 50)
        for i in range(1, len(drift)):
            drift[i] += 0.5 * drift[i - 1]
        text = Experiment.of_batches(nn.Identity(), cast(Any, None), (), LOSS, "", clusters=clusters_of(n))
        drops += compare(text, drift[50:], [np.zeros(n)], "coverage")
    return _row("loss of 800 windows of a text, correlation of neighbours 0.5", *_missed(drops, 0.0), N_MEANS)


def _correlations(rng: np.random.Generator) -> Iterator[Ratio]:
    """Simulate two models' scores of the same sentences, and the ratings of people."""

    def draw(n: int) -> tuple[NDArray[np.float64], ...]:
        truth, shared = rng.normal(size=(2, n))
        scores = [truth + shared + noise * rng.normal(size=n) for noise in (0.6, 0.8)]
        return np.round(2 * truth) / 2, *scores

    people, one, other = draw(1_000_000)
    rho = float(rank_correlations(one, people))
    lost = rho - float(rank_correlations(other, people))
    for n in (40, 160):
        alone, drops = [], []
        for _ in range(N_MEANS):
            people, one, other = draw(n)
            total = _ranked(people)
            alone.append(PairedDifference(0.0, *correlation_interval(one, total), 1.0))
            drops.append(paired_figures(one, other, total, rng, draws=1))
        yield _row(f"a rank correlation, n = {n}", *_missed(alone, rho), N_MEANS)
        yield _row(f"a drop of rank correlation, n = {n}", *_missed(drops, lost), N_MEANS)
    for name, border in (("no drops tied", -9.0), ("about 70 % of drops tied at 0", 0.6)):
        x, noise = rng.normal(size=(2, 1_000_000))
        y = np.maximum(0.0, 0.8 * x + 0.6 * noise - border)
        rho = float(rank_correlations(x, y))
        intervals = []
        for rows in rng.integers(len(x), size=(N_MEANS, 24)):
            intervals.append(PairedDifference(0.0, *correlation_interval(x[rows], _ranked(y[rows])), 1.0))
        yield _row(f"rank agreement of 24 heads, {name}", *_missed(intervals, rho), N_MEANS)


def _ranked(other: NDArray[np.float64]) -> Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]]:
    return lambda scores, rows: rank_correlations(scores, other[rows])


def _restored(rng: np.random.Generator) -> Iterator[Ratio]:
    """Simulate the share of a head's cost that its partner in another model restores, on 800 examples."""
    clean = np.ones(800, dtype=bool)
    for cost, share in ((0.02, 0.6), (0.05, 0.5), (0.05, 0.9), (0.2, 0.8)):
        intervals = []
        for _ in range(FEWER):
            broken = rng.random(800) < cost
            ends = restored_interval(clean, ~broken, ~(broken & (rng.random(800) >= share)))
            intervals.append(PairedDifference(0.0, *ends, 1.0))
        what = f"restored {share:g} of a cost of {100 * cost:g} %, n = 800"
        yield _row(what, *_missed(intervals, share), FEWER, promise=AT_LEAST)
        if share == 0.5:
            wrong = sum(interval.low > 0.5 for interval in intervals)
            yield _errors("restored, its lower bound above one half where one half is", wrong, FEWER)


def _ranks(rng: np.random.Generator) -> Ratio:
    """Simulate the ranges of ranks of 24 heads, most of which cost little."""
    truth, below, above = np.sort(rng.exponential(0.01, size=24))[::-1], 0, 0
    for _ in range(FEWER):
        drops = [_hits(2000, int(k), 0) for k in rng.binomial(2000, truth)]
        low, high = (np.array([getattr(drop, end) for drop in drops]) for end in ("low", "high"))
        first = 1 + (low[None] > high[:, None]).sum(axis=1)
        last = len(truth) - (high[None] < low[:, None]).sum(axis=1)
        rank = np.arange(1, len(truth) + 1)
        below, above = below + int((last < rank).sum()), above + int((first > rank).sum())
    return _row("ranges of ranks of 24 heads, n = 2,000", below, above, FEWER * len(truth), promise=AT_LEAST)


def _donors() -> Iterator[Ratio]:
    """Simulate resample ablation: examples differ in how easily they break, and in how often they break others."""
    rng, n, rate = np.random.default_rng(7), 384, 0.1
    for name in ("independent of each other", "one class against another"):
        hits, losses, figures = list[PairedDifference](), list[PairedDifference](), list[PairedDifference]()
        for i in range(N_MEANS):
            donors = np.stack([_ring(n, rng) for _ in range(4)])
            if name.startswith("one"):
                odd = rng.random(n) < rate
                chance = (odd != odd[donors]).astype(float)
            else:
                weak, fierce = rng.beta(0.4, 1.6, size=(2, n))
                chance = (weak + fierce[donors]) / 2
            lost = (rng.random((4, n)) < chance).astype(float)
            hits.append(paired_hits(np.ones(n, dtype=bool), lost < 0.5, donors=donors))
            numbers = lost * rng.exponential(size=lost.shape)
            losses += paired_differences((numbers.mean() + influences(numbers, donors))[None], rng)
            if i < FEWER:
                mean: Callable[..., Any] = lambda scores, rows: scores.mean(axis=-1)  # noqa: E731
                figures.append(paired_figures(np.zeros(n), -numbers, mean, rng, draws=1, donors=donors))
        truth = 2 * rate * (1 - rate) if name.startswith("one") else 0.2
        for what, drops in (("hits", hits), ("loss", losses), ("a figure by the jackknife", figures)):
            yield _row(f"{what} of four donors, {name}, n = {n}", *_missed(drops, truth), len(drops))


def _ring(n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a random donor for each example; every example is the donor of one other example."""
    order, donors = rng.permutation(n), np.empty(n, dtype=np.int64)
    donors[order] = np.roll(order, 1)
    return donors


# --- a real model -----------------------------------------------------------------------------------------------------


def _hits_by_zero() -> Iterator[Ratio]:
    return _zero(*_truth("free-running"))


def _losses_by_zero() -> Iterator[Ratio]:
    """Measure the printed intervals, and intervals that ignore the rare examples a sample may have missed."""
    experiment, clean, scores = _truth("loss")
    yield from _zero(experiment, clean, scores)
    without_bound = replace(experiment.dataset, metrics=(experiment.metric,), largest_loss=None)
    for row in _zero(replace(experiment, dataset=without_bound), clean, scores):
        yield replace(row, question=f"bootstrap-t alone: {row.question}", promise=NONE, kept=True)
    rng = np.random.default_rng(3)
    for n in (200, 2000):
        intervals = []
        for rows in rng.integers(len(clean), size=(FEWER, n)):
            intervals.append(PairedDifference(0.0, *interval_of(experiment, clean[rows], "coverage"), 1.0))
        what = f"packaged adder: its clean loss, n = {n:,}"
        yield _row(what, *_missed(intervals, float(clean.mean())), FEWER, promise=AT_LEAST)


def _truth(metric: str) -> tuple[Experiment, NDArray[np.float64], NDArray[np.float64]]:
    """Score the packaged adder on many examples: with all heads, and without each head (zero ablation)."""
    run = load("sample:addition")
    experiment = task_experiment(run, run.task.sample(stream(0, "coverage"), N_TRUTH), "", metric)
    outcome = run_interventions(experiment, [Intervention((head,)) for head in experiment.sites.heads])
    return experiment, outcome.clean, outcome.scores


def _zero(experiment: Experiment, clean: NDArray[np.float64], scores: NDArray[np.float64]) -> Iterator[Ratio]:
    """Draw n examples many times; report heads whose drop n examples can show, and the other heads."""
    rng, truth = np.random.default_rng(1), clean.mean() - scores.mean(axis=1)
    worst = float((clean - scores).max())
    near = (truth > IMPORTANT) & (truth < 2 * IMPORTANT)
    n_draws = FEWER if experiment.metric.is_loss else N_MEANS
    for n in (200, 2000):
        seen = truth > FEW * (worst if experiment.metric.is_loss else 1.0) / n
        missed, redundant = np.zeros((len(truth), 2), dtype=int), 0
        for rows in rng.integers(len(clean), size=(n_draws, n)):
            drops = compare(experiment, clean[rows], list(scores[:, rows]), f"coverage {n}")
            for i, drop in enumerate(drops):
                missed[i] += _missed([drop], truth[i])
            redundant += sum(band_of(drop) == "redundant" for drop, is_near in zip(drops, near, strict=True) if is_near)
        what = "packaged adder by zero: " + ("loss" if experiment.metric.is_loss else "hits")
        for heads, name, promise in ((seen, "drops", PRECISE), (~seen, "drops below what n can show", AT_LEAST)):
            if heads.any():
                yield _per_head(f"{what}, n = {n:,}, {int(heads.sum())} {name}", missed[heads], n_draws, promise)
        if not experiment.metric.is_loss and near.any():
            costs = " and ".join(f"{100 * cost:.2f}" for cost in truth[near])
            yield _errors(
                f"{what}, n = {n:,}: called redundant at {costs} points", redundant, n_draws * int(near.sum())
            )


def _resample(n_draws: int = 200) -> Iterator[Ratio]:
    """Measure resample ablation on new samples; as in `ablate`, examples of one sample are each other's donors."""
    run, n = load("sample:addition"), 384
    heads = [run.find_head(head) for head in ("E0H2", "E1H3", "E0H3", "X0H2", "X1H1", "X0H1")]
    examples = run.task.sample(stream(0, "coverage"), n * n_draws)
    interventions = [Intervention((head,), "resample", draw) for head in heads for draw in range(4)]
    for metric in ("free-running", "loss"):
        drops = []
        for i in range(n_draws):
            experiment = task_experiment(run, examples[i * n : (i + 1) * n], "", metric)
            outcome, donors = run_interventions(experiment, interventions, proven=True), donors_of(experiment, 4)
            scores = list(outcome.scores.reshape(len(heads), 4, n))
            drops.append(compare(experiment, outcome.clean, scores, "coverage", donors=[donors] * len(heads)))
        # The truth is the mean over all samples; its standard error is a fourteenth of one sample's.
        truth = np.array([[drop.mean for drop in sample] for sample in drops]).mean(axis=0)
        missed = np.array([_missed([sample[h] for sample in drops], truth[h]) for h in range(len(heads))])
        what = f"packaged adder by resample: {'hits' if metric != 'loss' else metric}, four donors, n = {n}, 6 heads"
        yield _per_head(what, missed, n_draws)


def _mean(n_draws: int = 250, n_chunks: int = 128) -> Iterator[Ratio]:
    """Measure mean ablation; every sample has new examples, and new inputs that the mean is taken over."""
    run, n, size = load("sample:addition"), 500, 4096
    heads = [run.find_head(head) for head in ("E0H2", "E1H3", "E0H3", "X0H2")]
    rng, ablations = stream(1, "coverage"), [(head, "mean") for head in heads]
    first = run.task.sample(rng, 2)
    chunks = [
        means_of(task_experiment(run, first, "", reference=run.task.sample(rng, size)))[0] for _ in range(n_chunks)
    ]

    def mean_over(indices: Sequence[int]) -> dict[Any, torch.Tensor]:
        """Return the heads' mean outputs over these chunks of inputs, by site."""
        return {site: torch.stack([chunks[i][site] for i in indices]).mean(dim=0) for site in chunks[0]}

    large = task_experiment(run, run.task.sample(stream(2, "coverage"), N_TRUTH), "")
    interventions = [Intervention((head,), "mean") for head in heads]
    truth = 1 - run_interventions(large, interventions, means=[mean_over(range(n_chunks))]).scores.mean(axis=1)
    with_noise, without = list[list[PairedDifference]](), list[list[PairedDifference]]()
    for i in range(n_draws):
        rng = stream(3 + i, "coverage")
        parts = rng.permutation(n_chunks)[:PARTS].tolist()
        experiment = task_experiment(run, run.task.sample(rng, n), "")
        means = [mean_over(parts), *(mean_over([part]) for part in parts)]
        outcome, measurements, _ = measure_heads(experiment, ablations, means)
        with_noise.append([measurement.drop for measurement in measurements])
        without.append(compare(experiment, outcome.clean, list(outcome.scores), "coverage"))
    of = f"{PARTS * size:,} inputs, n = {n:,}, 4 heads"
    for what, drops, promise in (("", with_noise, PRECISE), (", its noise left out", without, NONE)):
        missed = np.array([_missed([sample[h] for sample in drops], truth[h]) for h in range(len(heads))])
        yield _per_head(f"packaged adder by mean over {of}{what}", missed, n_draws, promise)
