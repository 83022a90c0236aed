"""How often does matching call heads alike by mistake, and how many heads of trained runs does it call alike?

    python -m benchmarks matching                         # the packaged adder against untrained models
    python -m benchmarks matching runs/a runs/b runs/c    # all pairs of these runs, and these against untrained models

If one of two models is untrained, the two have learned nothing alike, so every head that is called alike is an error.
The stated error rate is family-wise: at most 5 % of comparisons may call any head alike. Each comparison draws its own
untrained models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import torch

from benchmarks import Ratio
from headcount.analysis.matching import Effort, Matching, match
from headcount.analysis.matching_verdicts import SAME_JOB, WRITES_ALIKE, Pair
from headcount.limits import SIGNIFICANT
from headcount.runs.run import Run, build, load
from headcount.stats import Proportion

COMPARISONS = 20
MOST_WRONG = 3
"""Largest number of the 20 comparisons that may err; at a rate of 5 %, more of them err once in 60 studies."""


def measure(*runs: str) -> Iterator[Ratio]:
    """Compare untrained models with each other, and trained with untrained models in both orders."""
    torch.set_num_threads(1)
    trained = [load(name) for name in runs or ("sample:addition",)]
    if len(trained) > 1:
        compare(trained)
    fresh = [untrained(trained[0], 1000 + i) for i in range(2 * COMPARISONS)]
    yield _errors("untrained against untrained", list(zip(fresh[::2], fresh[1::2], strict=True)))
    beside = [(trained[i % len(trained)], fresh[i]) for i in range(COMPARISONS)]
    yield _errors("trained against untrained", [pair[:: (1, -1)[i % 2]] for i, pair in enumerate(beside)])


def untrained(run: Run, seed: int) -> Run:
    """Return an untrained run with the same settings and another seed."""
    config = replace(run.config, seed=seed)
    task, model = build(config)
    return replace(run, name=f"untrained {seed}", config=config, task=task, model=model.eval())


def _errors(question: str, pairs: Sequence[Sequence[Run]]) -> Ratio:
    """Match the heads of these pairs of models, and count the comparisons that call any head alike."""
    results = []
    for i, (one, other) in enumerate(pairs):
        results.append(match(one, other, effort=Effort(transplants=0, seed=i + 1)))
        print(f"  {one.name} and {other.name}: {results[-1].overall.alike} alike", file=sys.stderr, flush=True)
    n_alike = [result.overall.alike for result in results]
    n_heads, n_wrong = sum(result.overall.of for result in results), sum(n > 0 for n in n_alike)
    share = Proportion.of(n_wrong, len(results))
    interval = f"{100 * share.low:.0f} to {100 * share.high:.0f} %"
    n_by_null = {null: sum(_any_by(result, null) for result in results) for null in ("untrained", "relabelled")}
    alone = ", ".join(f"{null} {n}" for null, n in n_by_null.items())
    return Ratio(
        question=f"matching, {question}: comparisons that call any head alike",
        ours=f"{n_wrong} of {len(results)} ({interval}); {sum(n_alike)} of {n_heads} heads; by one null alone: {alone}",
        other=f"{100 * SIGNIFICANT:.0f} %",
        ratio=share.rate / SIGNIFICANT,
        promise=f"at most {MOST_WRONG} of {COMPARISONS}",
        kept=n_wrong <= MOST_WRONG,
    )


def _any_by(result: Matching, null: str) -> bool:
    """Return whether one of the two null distributions alone would call any head alike."""
    likenesses = [pair.attention for kind in result.kinds for pair in kind.pairs if pair.attention is not None]
    return min(getattr(likeness, f"p_{null}") for likeness in likenesses) <= SIGNIFICANT


def compare(runs: Sequence[Run]) -> None:
    """Match all pairs of trained runs, and print a Markdown table."""
    print("| pair | attend alike | by kind | of them write alike | same job, of heads that cost | overlap | CKA |")
    print("|---|---|---|---|---|---|---|")
    for one, other in combinations(runs, 2):
        print(_row(match(one, other)), flush=True)


def _row(result: Matching) -> str:
    """Return the row of one pair of runs; overlap and CKA are means over pairs of heads: alike, and others."""
    pairs = [pair for kind in result.kinds for pair in kind.pairs if pair.partner is not None]
    counts = {(kind.stack, kind.kind): sum(pair.is_alike for pair in kind.pairs) for kind in result.kinds}
    alike, rest = ([pair for pair in pairs if pair.is_alike is is_alike] for is_alike in (True, False))
    writes = sum(pair.verdict in (WRITES_ALIKE, SAME_JOB) for pair in pairs)
    costly = sum(pair.transplant is not None and pair.transplant.restored is not None for pair in pairs)
    cells = [
        " and ".join(Path(name).name for name in (result.name, result.other)),
        f"{len(alike)} of {len(pairs)}",
        ", ".join(f"{n} {stack} {kind}" for (stack, kind), n in counts.items()),
        str(writes),
        f"{result.overall.same_job} of {costly}",
        f"{_mean(alike, 'attention')}, others {_mean(rest, 'attention')}",
        f"{_mean(alike, 'outputs')}, others {_mean(rest, 'outputs')}",
    ]
    return f"| {' | '.join(cells)} |"


def _mean(pairs: Sequence[Pair], name: str) -> str:
    values = [getattr(pair, name).value for pair in pairs]
    return f"{sum(values) / len(values):.2f}" if values else "-"
