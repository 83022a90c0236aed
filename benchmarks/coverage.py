"""Do intervals cover what they say, and do decisions err no more often than they say?

    python -m benchmarks coverage                 # simulated, and on the packaged adder; half an hour of one core
    python -m benchmarks coverage simulated       # one part; or hits, losses, donors, means

Simulated, the truth is known; of a real model it is what very many examples give. Then intervals are made as headcount
makes them, from small draws. A 95 % interval should hold the truth in 93 to 98 of 100 draws; a head that costs exactly
1 point should be called redundant in 3 at most. Where fewer than four examples are expected to change, no interval can
come down to 95 %: hits come in whole numbers. Such rows promise no more than "at least 93 %", and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.analysis.ablation import compare, look_at
from headcount.analysis.bands import CRITICAL, IMPORTANT, band_of
from headcount.analysis.subjects import Subject, reference_for, subject_of
from headcount.analysis.trials import Trial, means_of, run_trials
from headcount.runs.run import load
from headcount.seeds import stream
from headcount.statistics import (
    Paired,
    Share,
    correlation_interval,
    paired_differences,
    paired_figures,
    paired_hits,
    rank_correlations,
)
from headcount.views.export import markdown_table

LEAST, MOST, ERRING = 0.93, 0.98, 0.03
DRAWS = 4000
"""Of what is cheap."""
N_MEANS, FEWER = 2000, 400
"""Of means, and of what is dear."""
N_TRUTH = 40_000
"""Examples that the truth of a real model is taken from."""
FEW = 4.0
"""Expected changes below which no interval of hits can come down to 95 %."""
OUT = Path("runs/coverage")


def measure(*parts: str) -> Iterator[dict[str, Any]]:
    """The rows of these parts, or of all; they also go to files, as tables for the docs."""
    torch.set_num_threads(1)
    made = {
        "simulated": _simulated,
        "hits": _hits_by_zero,
        "losses": _losses_by_zero,
        "donors": _resample,
        "means": _mean,
    }
    for part in parts or made:
        rows = []
        for row in made[part]():
            rows.append([row["question"], row["ours"], row["other"], row["promise"]])
            OUT.mkdir(parents=True, exist_ok=True)
            table = markdown_table(["what", "covered, or wrong", "missed", "promise"], rows)
            (OUT / f"{part}.md").write_text(table + "\n")
            yield row


def _row(question: str, below: int, above: int, n: int, *, at_least: bool = False) -> dict[str, Any]:
    """How many of n intervals lay below the truth, and above it."""
    share = Share.of(n - below - above, n)
    kept = share.rate >= LEAST and (at_least or share.rate <= MOST)
    return {
        "question": question,
        "ours": f"{share.rate:.1%} [{100 * share.low:.1f}, {100 * share.high:.1f}]",
        "other": f"{below / n:.1%} below, {above / n:.1%} above",
        "ratio": share.rate,
        "promise": "at least 93 %" if at_least else "93 to 98 %",
        "kept": kept,
    }


def _errors(question: str, n_wrong: int, n: int) -> dict[str, Any]:
    share = Share.of(n_wrong, n)
    return {
        "question": question,
        "ours": f"{share.rate:.1%} [{100 * share.low:.1f}, {100 * share.high:.1f}]",
        "other": "",
        "ratio": share.rate,
        "promise": "at most 3 %",
        "kept": share.rate <= ERRING,
    }


def _missed(intervals: Sequence[Paired], truth: float | Sequence[float]) -> tuple[int, int]:
    """Intervals that end below the truth, and that begin above it."""
    ends = np.array([(each.low, each.high) for each in intervals])
    return int((ends[:, 1] < np.asarray(truth) - 1e-12).sum()), int((ends[:, 0] > np.asarray(truth) + 1e-12).sum())


# --- simulated --------------------------------------------------------------------------------------------------------


def _simulated() -> Iterator[dict[str, Any]]:
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
            _hits(n, *counts) for counts in rng.multinomial(n, [worse, better, 1 - worse - better], size=DRAWS)[:, :2]
        ]
        what = f"hits: {100 * worse:g} % get worse, {100 * better:g} % better, n = {n:,}"
        yield _row(what, *_missed(drops, worse - better), DRAWS, at_least=n * (worse + better) < FEW)
    yield from _borders(rng)
    yield _several_tries(rng)
    yield from _means(rng)
    yield from _correlations(rng)
    for n in (5, 20):
        rates = rng.random(DRAWS)
        shares = [Share.of(int(k), n) for k in rng.binomial(n, rates)]
        missed = _missed([Paired(each.rate, each.low, each.high, 1.0) for each in shares], rates)
        yield _row(f"k of {n} seeds (Wilson), over all rates alike", *missed, DRAWS)


@cache
def _hits(n: int, worse: int, better: int) -> Paired:
    before, after = np.ones(n, dtype=bool), np.ones(n, dtype=bool)
    after[:worse] = False
    before[n - better :] = False
    return paired_hits(before, after)


@cache
def _early(n: int, worse: int) -> str:
    return band_of(paired_hits(np.ones(n, dtype=bool), np.arange(n) >= worse, 0.999))


def _borders(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Heads that lie on a border, where one decision is as wrong as the other."""
    for n, better in ((300, 0.0), (400, 0.0), (400, 0.02), (2000, 0.0), (2000, 0.005), (40_000, 0.0)):
        counts = rng.multinomial(n, [IMPORTANT + better, better, 1 - IMPORTANT - 2 * better], size=DRAWS)[:, :2]
        wrong = sum(band_of(_hits(n, *each)) == "redundant" for each in counts)
        yield _errors(f"called redundant at 1.0 points, {100 * better:g} % get better, n = {n:,}", wrong, DRAWS)
    for n in (400, 2000):
        counts = rng.binomial(n, CRITICAL, size=DRAWS)
        wrong = sum(band_of(_hits(n, int(k), 0)) == "critical" for k in counts)
        yield _errors(f"called critical at 10.0 points, n = {n:,}", wrong, DRAWS)
    first, second = rng.binomial(2000, IMPORTANT, size=DRAWS), rng.binomial(N_TRUTH, IMPORTANT, size=DRAWS)
    wrong = 0
    for k, again in zip(first.tolist(), second.tolist(), strict=True):
        early = _early(2000, k)
        wrong += (early if early != "undecided" else band_of(_hits(N_TRUTH, again, 0))) == "redundant"
    yield _errors("called redundant at 1.0 points, by two looks (2,000, then 40,000)", wrong, DRAWS)


def _several_tries(rng: np.random.Generator) -> dict[str, Any]:
    """Examples differ in how easily they break, and donors in how easily they break others."""
    drops, n = [], 400
    for _ in range(N_MEANS):
        weak, fierce = rng.beta(0.4, 1.6, size=(2, n))  # as an example, and as a donor
        donors = np.stack([np.roll(np.arange(n), i + 1) for i in range(4)])
        tries = rng.random((4, n)) >= (weak + fierce[donors]) / 2
        drops.append(paired_hits(np.ones(n, dtype=bool), tries, donors=donors))
    return _row("hits of four donors, 20 % break, n = 400", *_missed(drops, 0.2), N_MEANS)


def _means(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    made: dict[str, tuple[Callable[[tuple[int, int]], NDArray[np.float64]], float]] = {
        "normal": (lambda size: rng.normal(0.2, 1.0, size=size), 0.2),
        "exponential": (lambda size: rng.exponential(size=size), 1.0),
        "lognormal, sigma 1": (lambda size: rng.lognormal(size=size), float(np.exp(0.5))),
        "4 % lose about 2, others nothing": (
            lambda size: (rng.random(size) < 0.04) * rng.exponential(2.0, size=size),
            0.08,
        ),
    }
    for name, (draw, truth) in made.items():
        for n in (50, 200, 2000):
            lost, rare = draw((N_MEANS, n)), "others nothing" in name
            drops = []
            for some in np.split(lost, N_MEANS // 20):  # as many as a model may have heads
                drops += paired_differences(some, rng, float(some.max()) if rare else None)
            missed = _missed(drops, truth)
            yield _row(f"loss: {name}, n = {n:,}", *missed, N_MEANS, at_least=rare and n * 0.04 < FEW)


def _correlations(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Two scores of the same sentences, and what people said."""

    def draw(n: int) -> tuple[NDArray[np.float64], ...]:
        truth, shared = rng.normal(size=(2, n))
        scores = [truth + shared + noise * rng.normal(size=n) for noise in (0.6, 0.8)]
        return np.round(2 * truth) / 2, *scores

    people, one, other = draw(1_000_000)
    rho = float(rank_correlations(one, people))
    lost = rho - float(rank_correlations(other, people))
    for n in (40, 160):
        alone, drops = [], []
        for _ in range(FEWER):
            people, one, other = draw(n)
            total = _ranked(people)
            alone.append(Paired(0.0, *correlation_interval(one, total), 1.0))
            drops.append(paired_figures(one, other, total, rng, draws=1))
        yield _row(f"a rank correlation, n = {n}", *_missed(alone, rho), FEWER)
        yield _row(f"a drop of rank correlation, n = {n}", *_missed(drops, lost), FEWER)
    for name, border in (("no drops tied", -9.0), ("about 70 % of drops tied at 0", 0.6)):
        x, noise = rng.normal(size=(2, 1_000_000))
        y = np.maximum(0.0, 0.8 * x + 0.6 * noise - border)
        rho = float(rank_correlations(x, y))
        found = []
        for rows in rng.integers(len(x), size=(FEWER, 24)):
            found.append(Paired(0.0, *correlation_interval(x[rows], _ranked(y[rows])), 1.0))
        yield _row(f"rank agreement of 24 heads, {name}", *_missed(found, rho), FEWER)


def _ranked(other: NDArray[np.float64]) -> Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]]:
    return lambda scores, rows: rank_correlations(scores, other[rows])


# --- a real model -----------------------------------------------------------------------------------------------------


def _hits_by_zero() -> Iterator[dict[str, Any]]:
    return _zero(*_truth("free-running"))


def _losses_by_zero() -> Iterator[dict[str, Any]]:
    """As they are printed, and without what a sample may have missed: the reason for printing more."""
    subject, clean, scores = _truth("loss")
    yield from _zero(subject, clean, scores)
    for row in _zero(replace(subject, broken=None), clean, scores):
        yield row | {"question": f"bootstrap-t alone: {row['question']}", "promise": "none", "kept": True}


def _truth(metric: str) -> tuple[Subject, NDArray[np.float64], NDArray[np.float64]]:
    run = load("sample:addition")
    subject = subject_of(run, run.task.draw(stream(0, "coverage"), N_TRUTH), "", metric)
    found = run_trials(subject, [Trial((head,)) for head in subject.sites.heads])
    return subject, found.clean, found.scores


def _zero(subject: Subject, clean: NDArray[np.float64], scores: NDArray[np.float64]) -> Iterator[dict[str, Any]]:
    """Draws of n examples; heads whose drop such a draw can tell from nothing, and the others."""
    rng, truth = np.random.default_rng(1), clean.mean() - scores.mean(axis=1)
    worst = float((clean - scores).max())
    for n in (200, 2000):
        seen = truth > FEW * (worst if subject.metric.is_loss else 1.0) / n
        missed, redundant, borderline = np.zeros((2, len(truth)), dtype=int), 0, 0
        for rows in rng.integers(len(clean), size=(FEWER, n)):
            drops = compare(subject, clean[rows], list(scores[:, rows]), f"coverage {n}")
            for i, drop in enumerate(drops):
                missed[:, i] += _missed([drop], truth[i])
            costly = [drop for drop, cost in zip(drops, truth, strict=True) if cost > IMPORTANT]
            redundant += sum(band_of(drop) == "redundant" for drop in costly)
            borderline += len(costly)
        what = "packaged adder by zero: " + ("loss" if subject.metric.is_loss else "hits")
        for some, name in ((seen, "drops"), (~seen, "drops below what n can show")):
            if some.any():
                question = f"{what}, n = {n:,}, {int(some.sum())} {name}"
                yield _row(
                    question, *missed[:, some].sum(axis=1).tolist(), FEWER * int(some.sum()), at_least=some is not seen
                )
        if not subject.metric.is_loss:
            yield _errors(f"{what}, n = {n:,}: called redundant at over 1 point", redundant, borderline)


def _resample() -> Iterator[dict[str, Any]]:
    """Samples of their own, in which examples stand in for each other as they do for the verbs."""
    run, n, n_draws = load("sample:addition"), 384, 150
    heads = [run.find_head(head) for head in ("E0H2", "E1H3", "E0H3", "X0H2", "X1H1", "X0H1")]
    examples = run.task.draw(stream(0, "coverage"), n * n_draws)
    trials = [Trial((head,), "resample", draw) for head in heads for draw in range(4)]
    drops = []
    for i in range(n_draws):
        subject = subject_of(run, examples[i * n : (i + 1) * n], "")
        found = run_trials(subject, trials, proven=True)
        drops.append(compare(subject, found.clean, list(found.scores.reshape(len(heads), 4, n)), "coverage"))
    means = np.array([[drop.mean for drop in each] for each in drops])
    # The truth is the mean of all samples; its own error is an eleventh part of one sample's.
    missed = np.sum([_missed(each, means.mean(axis=0).tolist()) for each in drops], axis=0)
    yield _row(f"packaged adder by resample, four donors, n = {n}, 6 heads", *missed.tolist(), means.size)


def _mean(n_draws: int = 60) -> Iterator[dict[str, Any]]:
    """Both the examples and the inputs that the mean is over are drawn anew each time."""
    run = load("sample:addition")
    heads, n = [run.find_head(head) for head in ("E0H2", "E1H3", "E0H3", "X0H2")], 1000
    inputs = run.task.draw(stream(1, "coverage"), 2**18)
    large = subject_of(run, run.task.draw(stream(2, "coverage"), N_TRUTH // 2), "", reference=inputs)
    trials = [Trial((head,), "mean") for head in heads]
    truth = 1 - run_trials(large, trials).scores.mean(axis=1)
    with_noise, without = [], []
    for i in range(n_draws):
        rng = stream(3 + i, "coverage")
        inputs = run.task.draw(rng, len(reference_for(run.task)))
        subject = subject_of(run, run.task.draw(rng, n), "", reference=inputs)
        found, looks = look_at(subject, [(head, "mean") for head in heads], means_of(subject))
        with_noise += [look.drop for look in looks]
        without += compare(subject, found.clean, list(found.scores), "coverage")
    truths = np.tile(truth, n_draws)
    of = f"{len(inputs):,} inputs, n = {n:,}, 4 heads"
    yield _row(f"packaged adder by mean over {of}", *_missed(with_noise, truths), len(truths))
    bare = _row(f"the same without the noise of the mean, over {of}", *_missed(without, truths), len(truths))
    yield bare | {"promise": "none: what intervals were", "kept": True}
