"""Do intervals cover what they say, and do decisions err no more often than they say?

    python -m benchmarks coverage                 # simulated, and on the packaged adder; half an hour of one core
    python -m benchmarks coverage simulated       # one part; or donors, hits, losses, resample, means

Simulated, the truth is known; of a real model it is what very many examples give. Then intervals are made as headcount
makes them, from small draws. A 95 % interval should hold the truth in 93 to 98 of 100 draws; a head that costs exactly
1 point should be called redundant in 3 at most. Where fewer than four examples are expected to change, no interval can
come down to 95 %: hits come in whole numbers. Such rows, and ranges that are wide on purpose, promise no more than "at
least 93 %", and say so. Rows that promise nothing show why intervals are as they are, or what to know of them.
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

from headcount.analysis.ablation import measure as measure_heads
from headcount.analysis.transplants import restored_interval
from headcount.bands import CRITICAL, IMPORTANT, band_of, examples_needed
from headcount.data.dataset import LOSS
from headcount.data.from_file import clusters_of
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.experiments.interventions import PARTS, compare, donors_of, interval_of, means_of, run_interventions
from headcount.figures.ablation import markdown_table
from headcount.hooks.replay import Intervention
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
N_RESAMPLES = 4000
"""Of what is cheap."""
N_MEANS, FEWER = 2000, 800
"""Of means, and of what is dear."""
N_TRUTH = 40_000
"""Examples that the truth of a real model is taken from."""
FEW = 4.0
"""Expected changes below which no interval of hits can come down to 95 %."""
AT_LEAST, NONE = "at least 93 %", "none"
OUT = Path("runs/coverage")


def measure(*parts: str) -> Iterator[dict[str, Any]]:
    """The rows of these parts, or of all; they also go to files, as tables for the docs."""
    torch.set_num_threads(1)
    made = {
        "simulated": _simulated,
        "donors": _donors,
        "hits": _hits_by_zero,
        "losses": _losses_by_zero,
        "resample": _resample,
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


def _row(
    question: str, below: int, above: int, n: int, *, promise: str = "93 to 98 %", worst: float | None = None
) -> dict[str, Any]:
    """How many of n intervals lay below the truth, and above it; and how many held it for the head of the fewest."""
    share = Proportion.of(n - below - above, n)
    most = MOST if promise == "93 to 98 %" else 1.0
    least = "" if worst is None else f"; worst head {worst:.1%}"
    return {
        "question": question,
        "ours": f"{share.rate:.1%} [{100 * share.low:.1f}, {100 * share.high:.1f}]",
        "other": f"{below / n:.1%} below, {above / n:.1%} above{least}",
        "ratio": share.rate,
        "promise": promise,
        "kept": promise == NONE or LEAST <= share.rate <= most,
    }


def _errors(question: str, n_wrong: int, n: int) -> dict[str, Any]:
    share = Proportion.of(n_wrong, n)
    return {
        "question": question,
        "ours": f"{share.rate:.1%} [{100 * share.low:.1f}, {100 * share.high:.1f}]",
        "other": "",
        "ratio": share.rate,
        "promise": "at most 3 %",
        "kept": share.rate <= ERRING,
    }


def _few(expected: float) -> str:
    """What a row of hits promises where so many examples are expected to change."""
    return AT_LEAST if expected < FEW else "93 to 98 %"


def _missed(intervals: Sequence[PairedDifference], truth: float | Sequence[float]) -> tuple[int, int]:
    """Intervals that end below the truth, and that begin above it."""
    ends = np.array([(each.low, each.high) for each in intervals])
    return int((ends[:, 1] < np.asarray(truth) - 1e-12).sum()), int((ends[:, 0] > np.asarray(truth) + 1e-12).sum())


def _per_head(question: str, missed_H2: NDArray[np.int64], n_each: int, promise: str = "93 to 98 %") -> dict[str, Any]:
    """Draws of several heads, pooled, and the worst of them."""
    worst = 1 - int(missed_H2.sum(axis=1).max()) / n_each
    below, above = missed_H2.sum(axis=0).tolist()
    return _row(question, below, above, n_each * len(missed_H2), promise=promise, worst=worst)


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
            _hits(n, *counts)
            for counts in rng.multinomial(n, [worse, better, 1 - worse - better], size=N_RESAMPLES)[:, :2]
        ]
        what = f"hits: {100 * worse:g} % get worse, {100 * better:g} % better, n = {n:,}"
        yield _row(what, *_missed(drops, worse - better), N_RESAMPLES, promise=_few(n * (worse + better)))
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


def _borders(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Heads that lie on a border, where one decision is as wrong as the other."""
    for n, better in ((300, 0.0), (400, 0.0), (400, 0.02), (2000, 0.0), (2000, 0.005), (40_000, 0.0)):
        counts = rng.multinomial(n, [IMPORTANT + better, better, 1 - IMPORTANT - 2 * better], size=N_RESAMPLES)[:, :2]
        wrong = sum(band_of(_hits(n, *each)) == "redundant" for each in counts)
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
    ranges = [(examples_needed(drop, 1000), drop) for drop in drops if band_of(drop) == "undecided"]
    for name, which in (("fewest", 0), ("most", 1)):
        sizes = [found[which] for found, _ in ranges if found is not None]
        known = [int(size) for size in sizes if size is not None]
        decided = sum(band_of(_hits(n, int(rng.binomial(n, 0.016)), 0)) != "undecided" for n in known)
        open_ended = f", where there is one ({len(known) / len(sizes):.0%})" if len(known) < len(sizes) else ""
        what = f"1.6 points, undecided at n = 1,000: decided with the {name} examples that are said to{open_ended}"
        yield _errors(what, decided, len(known)) | {"promise": NONE, "kept": True}


def _shares() -> Iterator[dict[str, Any]]:
    """Accuracies and k of n seeds: not simulated, but summed over all counts."""
    for n, rate in (
        (2000, 0.9999),
        (2000, 0.9991),
        (2000, 0.998),
        (2000, 0.95),
        (200, 0.9991),
        (200, 0.99),
        (200, 0.8),
    ):
        promise = _few(n * (1 - rate))
        yield _exactly(f"an accuracy of {100 * rate:g} %, n = {n:,}", n, np.array([rate]), promise)
    for n in (5, 20):
        rates = np.linspace(0, 1, 2001)
        yield _exactly(f"k of {n} seeds, over all rates alike", n, rates, "93 to 98 %")
        worst = rates[int(np.argmax([sum(_held(n, np.array([rate]))) for rate in rates]))]
        what = f"k of {n} seeds, at the rate that is worst ({max(worst, 1 - worst):.2f})"
        yield _exactly(what, n, np.array([worst]), NONE)


def _held(n: int, rates: NDArray[np.float64]) -> tuple[float, float]:
    """Chances that the interval of a share ends below the rate, and that it begins above it."""
    shares = [Proportion.of(k, n) for k in range(n + 1)]
    low, high = (np.array([getattr(share, end) for share in shares])[:, None] for end in ("low", "high"))
    chance = binom.pmf(np.arange(n + 1)[:, None], n, rates)
    return tuple(float((chance * out).sum(axis=0).mean()) for out in (high < rates - 1e-12, low > rates + 1e-12))  # type: ignore[return-value]


def _exactly(question: str, n: int, rates: NDArray[np.float64], promise: str) -> dict[str, Any]:
    below, above = _held(n, rates)
    covered = 1 - below - above
    row = _row(question, 0, 0, 1, promise=promise)
    told = {"ours": f"{covered:.1%}", "other": f"{below:.1%} below, {above:.1%} above", "ratio": covered}
    return row | told | {"kept": promise == NONE or LEAST <= covered <= (MOST if promise == "93 to 98 %" else 1.0)}


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
            promise = _few(n * 0.04) if rare else "93 to 98 %"
            yield _row(f"loss: {name}, n = {n:,}", *_missed(drops, truth), N_MEANS, promise=promise)


def _windows(rng: np.random.Generator) -> dict[str, Any]:
    """Windows of a text, each of which is half like the one before it."""
    n, drops = 800, []
    for _ in range(N_MEANS):
        drift = rng.normal(size=n + 50)
        for i in range(1, len(drift)):
            drift[i] += 0.5 * drift[i - 1]
        text = Experiment(nn.Identity(), cast(Any, None), (), LOSS, "", clusters=clusters_of(n))
        drops += compare(text, drift[50:], [np.zeros(n)], "coverage")
    return _row("loss of 800 windows of a text, correlation of neighbours 0.5", *_missed(drops, 0.0), N_MEANS)


def _correlations(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Two scores of the same sentences, and what people rated."""

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
        found = []
        for rows in rng.integers(len(x), size=(N_MEANS, 24)):
            found.append(PairedDifference(0.0, *correlation_interval(x[rows], _ranked(y[rows])), 1.0))
        yield _row(f"rank agreement of 24 heads, {name}", *_missed(found, rho), N_MEANS)


def _ranked(other: NDArray[np.float64]) -> Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]]:
    return lambda scores, rows: rank_correlations(scores, other[rows])


def _restored(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """The share of a head's cost that its partner restores, of 800 examples."""
    clean = np.ones(800, dtype=bool)
    for cost, share in ((0.02, 0.6), (0.05, 0.5), (0.05, 0.9), (0.2, 0.8)):
        found = []
        for _ in range(FEWER):
            broken = rng.random(800) < cost
            ends = restored_interval(clean, ~broken, ~(broken & (rng.random(800) >= share)))
            found.append(PairedDifference(0.0, *ends, 1.0))
        what = f"restored {share:g} of a cost of {100 * cost:g} %, n = 800"
        yield _row(what, *_missed(found, share), FEWER, promise=AT_LEAST)
        if share == 0.5:
            wrong = sum(each.low > 0.5 for each in found)
            yield _errors("restored, its lower bound above one half where one half is", wrong, FEWER)


def _ranks(rng: np.random.Generator) -> dict[str, Any]:
    """Ranges of ranks of 24 heads, most of which cost little."""
    truth, below, above = np.sort(rng.exponential(0.01, size=24))[::-1], 0, 0
    for _ in range(FEWER):
        drops = [_hits(2000, int(k), 0) for k in rng.binomial(2000, truth)]
        low, high = (np.array([getattr(drop, end) for drop in drops]) for end in ("low", "high"))
        first = 1 + (low[None] > high[:, None]).sum(axis=1)
        last = len(truth) - (high[None] < low[:, None]).sum(axis=1)
        rank = np.arange(1, len(truth) + 1)
        below, above = below + int((last < rank).sum()), above + int((first > rank).sum())
    return _row("ranges of ranks of 24 heads, n = 2,000", below, above, FEWER * len(truth), promise=AT_LEAST)


def _donors() -> Iterator[dict[str, Any]]:
    """Others' outputs in place of each: who breaks easily, who breaks others, and who does both."""
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
        for what, found in (("hits", hits), ("loss", losses), ("a figure by the jackknife", figures)):
            yield _row(f"{what} of four donors, {name}, n = {n}", *_missed(found, truth), len(found))


def _ring(n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    order, donors = rng.permutation(n), np.empty(n, dtype=np.int64)
    donors[order] = np.roll(order, 1)
    return donors


# --- a real model -----------------------------------------------------------------------------------------------------


def _hits_by_zero() -> Iterator[dict[str, Any]]:
    return _zero(*_truth("free-running"))


def _losses_by_zero() -> Iterator[dict[str, Any]]:
    """As they are printed, and without what a sample may have missed: the reason for printing more."""
    experiment, clean, scores = _truth("loss")
    yield from _zero(experiment, clean, scores)
    for row in _zero(replace(experiment, largest_loss=None), clean, scores):
        yield row | {"question": f"bootstrap-t alone: {row['question']}", "promise": NONE, "kept": True}
    rng = np.random.default_rng(3)
    for n in (200, 2000):
        found = []
        for rows in rng.integers(len(clean), size=(FEWER, n)):
            found.append(PairedDifference(0.0, *interval_of(experiment, clean[rows], "coverage"), 1.0))
        what = f"packaged adder: its clean loss, n = {n:,}"
        yield _row(what, *_missed(found, float(clean.mean())), FEWER, promise=AT_LEAST)


def _truth(metric: str) -> tuple[Experiment, NDArray[np.float64], NDArray[np.float64]]:
    run = load("sample:addition")
    experiment = task_experiment(run, run.task.sample(stream(0, "coverage"), N_TRUTH), "", metric)
    found = run_interventions(experiment, [Intervention((head,)) for head in experiment.sites.heads])
    return experiment, found.clean, found.scores


def _zero(experiment: Experiment, clean: NDArray[np.float64], scores: NDArray[np.float64]) -> Iterator[dict[str, Any]]:
    """Draws of n examples; heads whose drop such a draw can tell from nothing, and the others."""
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
        for some, name in ((seen, "drops"), (~seen, "drops below what n can show")):
            if some.any():
                question = f"{what}, n = {n:,}, {int(some.sum())} {name}"
                yield _per_head(question, missed[some], n_draws, AT_LEAST if some is not seen else "93 to 98 %")
        if not experiment.metric.is_loss and near.any():
            costs = " and ".join(f"{100 * cost:.2f}" for cost in truth[near])
            yield _errors(
                f"{what}, n = {n:,}: called redundant at {costs} points", redundant, n_draws * int(near.sum())
            )


def _resample(n_draws: int = 200) -> Iterator[dict[str, Any]]:
    """Samples of their own, in which examples are each other's donors as they are for the verbs."""
    run, n = load("sample:addition"), 384
    heads = [run.find_head(head) for head in ("E0H2", "E1H3", "E0H3", "X0H2", "X1H1", "X0H1")]
    examples = run.task.sample(stream(0, "coverage"), n * n_draws)
    interventions = [Intervention((head,), "resample", draw) for head in heads for draw in range(4)]
    for metric in ("free-running", "loss"):
        drops = []
        for i in range(n_draws):
            experiment = task_experiment(run, examples[i * n : (i + 1) * n], "", metric)
            found, donors = run_interventions(experiment, interventions, proven=True), donors_of(experiment, 4)
            scores = list(found.scores.reshape(len(heads), 4, n))
            drops.append(compare(experiment, found.clean, scores, "coverage", donors=[donors] * len(heads)))
        # The truth is the mean of all samples; its own error is a fourteenth part of one sample's.
        truth = np.array([[drop.mean for drop in each] for each in drops]).mean(axis=0)
        missed = np.array([_missed([each[h] for each in drops], truth[h]) for h in range(len(heads))])
        what = f"packaged adder by resample: {'hits' if metric != 'loss' else metric}, four donors, n = {n}, 6 heads"
        yield _per_head(what, missed, n_draws)


def _mean(n_draws: int = 250, n_chunks: int = 128) -> Iterator[dict[str, Any]]:
    """Examples are drawn anew each time, and so are the inputs that the mean is over: eight chunks of very many."""
    run, n, size = load("sample:addition"), 500, 4096
    heads = [run.find_head(head) for head in ("E0H2", "E1H3", "E0H3", "X0H2")]
    rng, asked = stream(1, "coverage"), [(head, "mean") for head in heads]
    first = run.task.sample(rng, 2)
    chunks = [
        means_of(task_experiment(run, first, "", reference=run.task.sample(rng, size)))[0] for _ in range(n_chunks)
    ]

    def over(some: Sequence[int]) -> dict[Any, torch.Tensor]:
        return {site: torch.stack([chunks[i][site] for i in some]).mean(dim=0) for site in chunks[0]}

    large = task_experiment(run, run.task.sample(stream(2, "coverage"), N_TRUTH), "")
    interventions = [Intervention((head,), "mean") for head in heads]
    truth = 1 - run_interventions(large, interventions, means=[over(range(n_chunks))]).scores.mean(axis=1)
    with_noise, without = list[list[PairedDifference]](), list[list[PairedDifference]]()
    for i in range(n_draws):
        rng = stream(3 + i, "coverage")
        some = rng.permutation(n_chunks)[:PARTS].tolist()
        experiment = task_experiment(run, run.task.sample(rng, n), "")
        found, measurements = measure_heads(experiment, asked, [over(some), *(over([part]) for part in some)])
        with_noise.append([each.drop for each in measurements])
        without.append(compare(experiment, found.clean, list(found.scores), "coverage"))
    of = f"{PARTS * size:,} inputs, n = {n:,}, 4 heads"
    for what, drops, promise in (("", with_noise, "93 to 98 %"), (", its noise left out", without, NONE)):
        missed = np.array([_missed([each[h] for each in drops], truth[h]) for h in range(len(heads))])
        yield _per_head(f"packaged adder by mean over {of}{what}", missed, n_draws, promise)
