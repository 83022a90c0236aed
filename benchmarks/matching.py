"""How often does matching call heads alike where none can be? And what does it find in trained runs?

    python -m benchmarks matching                         # the packaged adder and untrained ones
    python -m benchmarks matching runs/a runs/b runs/c    # all pairs of these runs, and these and untrained ones

If either of two models is untrained nothing was learned alike, so every head that is called alike is an error. The
stated rate is family-wise: at most 5 % of comparisons may call any head alike. Each comparison draws untrained models
of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from headcount.analysis.likeness import ERROR_RATE, SAME_JOB, WRITES_ALIKE, Pair
from headcount.analysis.matching import Effort, Matching, match
from headcount.runs.run import Run, build, load
from headcount.stats import Proportion

COMPARISONS = 20
BEYOND = 3
"""At a rate of 5 %, more than this many of 20 comparisons would err once in 60."""


def measure(*runs: str) -> Iterator[dict[str, Any]]:
    """Untrained against untrained, and trained against untrained in both orders."""
    torch.set_num_threads(1)
    trained = [load(name) for name in runs or ("sample:addition",)]
    if len(trained) > 1:
        compare(trained)
    fresh = [untrained(trained[0], 1000 + i) for i in range(2 * COMPARISONS)]
    yield _errors("untrained against untrained", list(zip(fresh[::2], fresh[1::2], strict=True)))
    beside = [(trained[i % len(trained)], fresh[i]) for i in range(COMPARISONS)]
    yield _errors("trained against untrained", [pair[:: (1, -1)[i % 2]] for i, pair in enumerate(beside)])


def untrained(run: Run, seed: int) -> Run:
    """The same settings and another seed, before any training."""
    config = replace(run.config, seed=seed)
    task, model = build(config)
    return replace(run, name=f"untrained {seed}", config=config, task=task, model=model.eval())


def _errors(question: str, pairs: Sequence[Sequence[Run]]) -> dict[str, Any]:
    found = []
    for i, (one, other) in enumerate(pairs):
        found.append(match(one, other, effort=Effort(transplants=0, seed=i + 1)))
        print(f"  {one.name} and {other.name}: {found[-1].overall.alike} alike", file=sys.stderr, flush=True)
    wrong = [each.overall.alike for each in found]
    n, any_wrong = sum(each.overall.of for each in found), sum(each > 0 for each in wrong)
    share = Proportion.of(any_wrong, len(found))
    interval = f"{100 * share.low:.0f} to {100 * share.high:.0f} %"
    alone = ", ".join(f"{name} {sum(_any_by(each, name) for each in found)}" for name in ("untrained", "relabelled"))
    return {
        "question": f"matching, {question}: comparisons that call any head alike",
        "ours": f"{any_wrong} of {len(found)} ({interval}); {sum(wrong)} of {n} heads; by one null alone: {alone}",
        "other": f"{100 * ERROR_RATE:.0f} %",
        "ratio": share.rate / ERROR_RATE,
        "promise": f"at most {BEYOND} of {COMPARISONS}",
        "kept": any_wrong <= BEYOND,
    }


def _any_by(found: Matching, null: str) -> bool:
    """Whether one of the two nulls alone would call any head alike."""
    pairs = [pair.attention for kind in found.kinds for pair in kind.pairs if pair.attention is not None]
    return min(getattr(each, f"p_{null}") for each in pairs) <= ERROR_RATE


def compare(runs: Sequence[Run]) -> None:
    """All pairs of trained runs, as a Markdown table."""
    print("| pair | attend alike | by kind | of them write alike | same job, of heads that cost | overlap | CKA |")
    print("|---|---|---|---|---|---|---|")
    for one, other in combinations(runs, 2):
        print(_row(match(one, other)), flush=True)


def _row(found: Matching) -> str:
    """Overlap and CKA: the mean over pairs that attend alike, and over the others."""
    pairs = [pair for kind in found.kinds for pair in kind.pairs if pair.partner is not None]
    counts = {(kind.stack, kind.kind): sum(pair.is_alike for pair in kind.pairs) for kind in found.kinds}
    alike, rest = ([pair for pair in pairs if pair.is_alike is wanted] for wanted in (True, False))
    writes = sum(pair.verdict in (WRITES_ALIKE, SAME_JOB) for pair in pairs)
    costly = sum(pair.transplant is not None and pair.transplant.restored is not None for pair in pairs)
    cells = [
        " and ".join(Path(name).name for name in (found.name, found.other)),
        f"{len(alike)} of {len(pairs)}",
        ", ".join(f"{n} {stack} {kind}" for (stack, kind), n in counts.items()),
        str(writes),
        f"{found.overall.same_job} of {costly}",
        f"{_mean(alike, 'attention')}, others {_mean(rest, 'attention')}",
        f"{_mean(alike, 'outputs')}, others {_mean(rest, 'outputs')}",
    ]
    return f"| {' | '.join(cells)} |"


def _mean(pairs: Sequence[Pair], name: str) -> str:
    values = [getattr(pair, name).value for pair in pairs]
    return f"{sum(values) / len(values):.2f}" if values else "-"
