"""Heads removed together, compared with copies whose projections were zeroed by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from second_routes import zero_heads
from torch import Tensor
from torch.nn import functional as F

from headcount.analysis import pruning_orders
from headcount.analysis.ablation import Ablation, AblationRun, Effect, ablate
from headcount.analysis.greedy_pruning import greedy_order
from headcount.analysis.pruning import Pruning, prune_curves
from headcount.data.dataset import ACCURACY, FORCED
from headcount.errors import InputError
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.heads import HeadId
from headcount.runs.config import RunConfig
from headcount.runs.run import Run
from headcount.runs.train import train_run
from headcount.seeds import stream
from headcount.stats import Proportion
from headcount.training.answers import answer

pytestmark = pytest.mark.slow  # searches over sets of heads

SUMS = np.array(list(product(range(10), repeat=2)))
CHOOSING, MEASURING, CHANCING = SUMS[::4], SUMS[1::4], SUMS[2::8]
D_HEAD = 16
LOSS = 0.1


@pytest.fixture(scope="module")
def run(good_run: Run) -> Run:
    """Return a run in double precision, so that rounding does not decide between two heads."""
    return replace(good_run, model=deepcopy(good_run.model).double())


@pytest.fixture(scope="module")
def pruning(run: Run) -> Pruning:
    return pruned(run, at_once=20, n_orders=3)


def pruned(run: Run, selection_set: Any = CHOOSING, loss: float = LOSS, at_once: int = 128, **how: Any) -> Pruning:
    """Return a pruning with three different sets of examples."""
    first = task_experiment(run, selection_set, "a quarter")
    second, third = (task_experiment(run, sums, "another", at_once=at_once) for sums in (MEASURING, CHANCING))
    return curves(first, second, third, loss, **how)


def curves(
    selection_set: Experiment, test_set: Experiment, null_set: Experiment, loss: float = 0.0, **how: Any
) -> Pruning:
    sets = {"selection_set": selection_set, "test_set": test_set, "null_set": null_set}
    return prune_curves(name="good", weights_sha256="digest", loss=loss, **sets, **{"n_orders": 1} | how)


@pytest.fixture(scope="module")
def by_hand(run: Run) -> Any:
    """Return hits and losses on a named set of examples without some heads, by one pass through a plain copy."""
    examples = {"selection_set": CHOOSING, "test_set": MEASURING, "null_set": CHANCING}

    @cache
    def score(name: str, heads: frozenset[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        copy: Any = deepcopy(run.model)
        with torch.no_grad():
            for head in map(HeadId.parse, heads):
                copy.projections[head.site].weight[:, head.index * D_HEAD : (head.index + 1) * D_HEAD] = 0.0
            batch = run.task.encode(examples[name])  # type: ignore[attr-defined]
            logits = copy(torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input))
            losses = F.cross_entropy(logits.transpose(1, 2), torch.from_numpy(batch.labels), reduction="none")
        return (logits.argmax(dim=2).numpy() == batch.answer).all(axis=1), losses.mean(dim=1).numpy()

    return score


def order(result: Pruning, name: str) -> list[str]:
    return [point.head for point in curve(result, name)[1:] if point.head]


def curve(result: Pruning, name: str) -> Sequence[Any]:
    return next(each.points for each in result.curves if each.name == name)


def test_greedy_takes_what_a_search_of_everything_takes(
    pruning: Pruning, run: Run, by_hand: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step the head without which most is right; of equals, the one that leaves the smallest loss.

    In its usual form the search looks at few heads after the first removal (test_greedy_pruning.py has what that
    costs); here it looks at all, and races decide nothing.
    """
    heads, full = [str(head) for head in run.model.heads], list[str]()
    while len(full) < len(heads):

        def value(head: str) -> float:
            hits, losses = by_hand("selection_set", frozenset([*full, head]))
            return float((hits - pruning_orders.TIE * losses / (1 + losses)).mean())

        full.append(max((head for head in heads if head not in full), key=value))
    assert order(pruning, "greedy")[0] == full[0]
    for name, everything in {"OLDEST": len(heads), "LOOKS": len(heads), "IN_FULL": len(heads), "DOUBT": 1e9}.items():
        monkeypatch.setattr(f"headcount.analysis.greedy_pruning.{name}", everything)
    searched = greedy_order(pruning_orders.with_ties_broken(task_experiment(run, CHOOSING, "a quarter", at_once=5)))
    assert list(map(str, searched.order)) == full


def test_what_is_chosen_is_a_prefix_within_the_loss(pruning: Pruning, by_hand: Any) -> None:
    n, greedy = len(pruning.chosen), order(pruning, "greedy")
    assert 0 < n < pruning.n_heads
    assert pruning.chosen == tuple(greedy[:n])
    right = [by_hand("selection_set", frozenset(greedy[:k]))[0].mean() for k in range(n + 2)]
    lost = [right[0] - each for each in right]
    assert max(lost[: n + 1]) <= LOSS + 1e-9 < lost[n + 1]
    assert (pruning.kept.n_removed, pruning.kept.head) == (n, greedy[n - 1])
    assert pruning.kept.score == curve(pruning, "greedy")[n].score


def test_the_share_for_another_loss_is_a_prefix_of_the_same_order(pruning: Pruning, by_hand: Any) -> None:
    greedy = order(pruning, "greedy")
    assert [share.loss for share in pruning.prunable] == [0.01, 0.05]
    for share in pruning.prunable:
        n = share.n_together
        right = [by_hand("selection_set", frozenset(greedy[:k]))[0].mean() for k in range(n + 2)]
        lost = [right[0] - each for each in right]
        assert max(lost[: n + 1]) <= share.loss + 1e-9 < lost[n + 1]
        assert (share.left.n_removed, share.left.score) == (n, curve(pruning, "greedy")[n].score)
    assert pruning.prunable[0].n_together <= pruning.prunable[1].n_together <= len(pruning.chosen)


def test_a_given_ablation_says_which_heads_are_harmless_alone(run: Run) -> None:
    """The ablation has more examples than the set for choosing, so that the two would disagree."""
    tried = ablate(task_experiment(run, CHOOSING, "a quarter"))
    names = dict.fromkeys(effect.head for effect in tried.effects)
    known = ablation_of(tried, dict(zip(names, (0.002, 0.03, 0.009), strict=False)))
    result = pruned(run, ablation=known)
    first, _, third, *_ = names
    assert result.by_zero == result.harmless == (first, third) == known.harmless()
    assert [share.n_alone for share in result.prunable] == [2, 3]
    assert result.alone_on == "a quarter"
    assert (result.by_zero_left.n_removed, result.harmless_left.n_removed) == (2, 2)


def ablation_of(tried: AblationRun, ends: Mapping[str, float]) -> Ablation:
    """Return an ablation whose intervals end at the given values, or at 1 for heads that are not named."""

    def changed(effect: Effect) -> Effect:
        high = ends.get(effect.head, 1.0)
        return replace(effect, high=high, band="redundant" if high < 0.01 else "undecided")

    effects, replacements = tuple(map(changed, tried.effects)), ("zero", "resample", "mean")
    return Ablation(
        "good", "digest", "free-running", "points", True, replacements, effects, (tried.condition,), tried.proof
    )


@pytest.mark.parametrize("name", ["together", "every way", "greedy", "gradient"])
def test_every_point_was_measured_on_the_other_examples(pruning: Pruning, run: Run, by_hand: Any, name: str) -> None:
    heads = order(pruning, name)
    assert sorted(heads) == sorted(map(str, run.model.heads))
    for k, point in enumerate(curve(pruning, name)):
        assert point.n_removed == k
        assert point.score == pytest.approx(by_hand("test_set", frozenset(heads[:k]))[0].mean())
        hits = by_hand("test_set", frozenset(heads[:k]))[0]
        own = Proportion.count(hits)
        assert (point.low, point.high) == (own.low, own.high), "of the share itself, not of the drop"
        lost = by_hand("test_set", frozenset())[0].mean() - hits.mean()
        assert point.drop.mean == pytest.approx(lost)
        assert point.drop.low <= lost <= point.drop.high


def test_all_orders_begin_with_all_heads_and_end_with_none(pruning: Pruning, run: Run) -> None:
    """Compare with free-running decoding."""
    clean, without_any = (
        answer(model, run.task, MEASURING).free_hits.all(axis=1).mean()
        for model in (run.model, zero_heads(run.model, run.model.heads))
    )
    assert [each.name for each in pruning.curves] == ["alone", "together", "every way", "greedy", "gradient"]
    assert pruning.clean == pytest.approx(clean)
    assert {each.points[0].score for each in pruning.curves} == {pruning.clean}
    assert [each.points[-1].score for each in pruning.curves[1:]] == pytest.approx([without_any] * 4)
    assert all(len(each.points) == pruning.n_heads + 1 for each in pruning.curves)


def test_alone_is_the_sum_of_drops(pruning: Pruning, by_hand: Any) -> None:
    assert order(pruning, "alone") == order(pruning, "together")
    left = clean = by_hand("test_set", frozenset())[0].mean()
    for point in curve(pruning, "alone")[1:]:
        left = max(0.0, left - (clean - by_hand("test_set", frozenset([point.head]))[0].mean()))
        assert point.score == pytest.approx(left)
    alone = [by_hand("selection_set", frozenset([head]))[0].mean() for head in order(pruning, "alone")]
    assert alone == sorted(alone, reverse=True)


def test_gradients_are_in_order(pruning: Pruning, run: Run) -> None:
    experiment = task_experiment(run, CHOOSING, "")
    size = {each.head: each.importance for each in ablate(experiment, ("zero",)).condition.importances}
    assert order(pruning, "gradient") == sorted(size, key=size.__getitem__)


def test_harmless_heads_are_counted_by_interval_and_by_estimate(pruning: Pruning, run: Run, by_hand: Any) -> None:
    effects = ablate(task_experiment(run, CHOOSING, ""), ("zero",)).effects
    assert pruning.n_under_1_point == sum(effect.drop < 0.01 for effect in effects) > 0
    assert pruning.harmless == pruning.by_zero == (), "25 examples cannot show it"
    assert pruning.harmless_left == pruning.by_zero_left == curve(pruning, "together")[0]


@pytest.mark.slow
def test_harmless_heads_go_together(run: Run, by_hand: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning_orders, "band_of", lambda drop: "redundant" if drop.mean < 0.05 else "undecided")
    result = pruned(run)
    assert 1 < len(result.harmless) == result.harmless_left.n_removed < len(result.by_zero)
    assert set(result.harmless) < set(result.by_zero), "misleading others counts too"
    for heads, left in ((result.harmless, result.harmless_left), (result.by_zero, result.by_zero_left)):
        assert left.score == pytest.approx(by_hand("test_set", frozenset(heads))[0].mean())


def test_luck_is_the_best_of_as_many_sets_as_greedy_tried(pruning: Pruning, run: Run, by_hand: Any) -> None:
    n, k = pruning.n_heads, len(pruning.chosen)
    assert n <= pruning.n_tried <= sum(n - i for i in range(k))
    assert pruning.n_random == pruning.n_tried
    rng, heads = stream(0, "random sets"), [str(head) for head in run.model.heads]
    sets = [frozenset(heads[i] for i in rng.permutation(n)[:k]) for _ in range(pruning.n_tried)]

    def value(some: frozenset[str]) -> float:
        hits, losses = by_hand("selection_set", some)
        return float((hits - pruning_orders.TIE * losses / (1 + losses)).mean())

    best = max(sets, key=value)
    assert pruning.best_random.n_removed == k
    assert pruning.best_random.score == pytest.approx(by_hand("test_set", best)[0].mean())


def test_heads_go_by_the_worst_that_silencing_did(pruning: Pruning, run: Run) -> None:
    worst: dict[str, float] = {}
    for effect in ablate(task_experiment(run, CHOOSING, "")).effects:
        worst[effect.head] = max(worst.get(effect.head, -1.0), effect.drop)
    drops = [worst[head] for head in order(pruning, "every way")]
    assert drops == sorted(drops)


@pytest.mark.slow
def test_chance_depends_on_the_seed_alone(pruning: Pruning, run: Run) -> None:
    assert [each.n_removed for each in pruning.chance] == list(range(1, pruning.n_heads))
    assert all(0 <= each.low <= each.median <= each.high <= 1 for each in pruning.chance)
    assert (pruning.n_orders, pruning.n_chance) == (3, len(CHANCING))
    again = pruned(run, CHOOSING[:5], 0.5, at_once=9, n_orders=3, batch_size=40)
    assert again.chance == pruning.chance
    assert again.chosen != pruning.chosen


def test_chance_is_that_of_random_orders(pruning: Pruning, run: Run, by_hand: Any) -> None:
    rng, heads = stream(0, "random orders"), [str(head) for head in run.model.heads]
    orders = [[heads[i] for i in rng.permutation(len(heads))] for _ in range(3)]
    for each in pruning.chance:
        right = [by_hand("null_set", frozenset(order[: each.n_removed]))[0].mean() for order in orders]
        assert (each.low, each.median, each.high) == pytest.approx(tuple(np.quantile(right, [0.1, 0.5, 0.9])))


def test_ties_are_broken_by_losses_however_small(good_run: Run) -> None:
    """Ties are broken by losses of a millionth, as of a model that is always right, in single precision too."""
    experiment = task_experiment(good_run, CHOOSING, "")

    def always_right(block: Any) -> Any:
        return replace(
            block,
            scores={FORCED.name: lambda logits: torch.ones(len(logits), dtype=torch.bool)},
            loss=lambda logits: 1e-6 * block.loss(logits),
        )

    blocks = tuple(map(always_right, experiment.batches))
    right = replace(experiment, batches=blocks, metric=FORCED)  # which is not decoded again
    result = curves(right, right, right)
    effects = ablate(task_experiment(good_run, CHOOSING, "", "loss"), ("zero",)).effects
    by_loss = [effect.head for effect in sorted(effects, key=lambda effect: effect.drop)]
    assert order(result, "together") == by_loss
    assert order(result, "greedy")[0] == by_loss[0]


def test_every_score_is_a_share(tiny_sorter: Run) -> None:
    """Predicted scores are at most 1, even if every head does harm."""
    experiment = task_experiment(tiny_sorter, tiny_sorter.task.split("test"), "")
    with torch.no_grad():
        clean = {id(block): tiny_sorter.model(*block.inputs) for block in experiment.batches}

    def better_without(block: Any) -> Any:
        def score(logits: Tensor) -> Tensor:
            return ((logits - clean[id(block)]).abs() > 1e-4).any(dim=1)

        return replace(block, scores={ACCURACY.name: score})

    experiment = replace(experiment, batches=tuple(map(better_without, experiment.batches)))
    result = curves(experiment, experiment, experiment)
    assert (result.clean, curve(result, "together")[1].score) == (0, 1)
    assert all(0 <= point.score <= 1 for each in result.curves for point in each.points)


def test_one_head_is_enough(tiny_sorting: dict[str, Any], tmp_path: Path) -> None:
    run = train_run(RunConfig.build("sortedness", **tiny_sorting | {"n_heads": 1}), tmp_path / "run")
    alone = task_experiment(run, run.task.split("test"), "")
    result = curves(alone, alone, alone, n_orders=2)
    assert (result.n_heads, result.chance, result.n_chance) == (1, (), 20)
    assert all(len(each.points) == 2 for each in result.curves)


def test_progress_counts_to_a_hundred(tiny_sorter: Run) -> None:
    told: list[tuple[int, int]] = []
    experiment = task_experiment(tiny_sorter, tiny_sorter.task.split("test"), "")
    curves(experiment, experiment, experiment, progress=lambda *done: told.append(done))
    assert told == sorted(told)
    assert told[-1] == (100, 100)


def test_a_result_can_be_read_back(pruning: Pruning) -> None:
    assert Pruning.from_json(pruning.to_json()) == pruning


def test_results_of_a_search_that_measured_everything_are_refused(pruning: Pruning) -> None:
    with pytest.raises(InputError, match="not hold a Pruning of format version 5, but Pruning of version 4"):
        Pruning.from_json(pruning.to_json().replace('"schema": 5', '"schema": 4'))


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_a_score_has_its_own_interval_without_removals_too(tiny_sorter: Run, metric: str) -> None:
    """Without removals the drop is 0 with certainty, but the score still has a CI."""
    experiment = task_experiment(tiny_sorter, tiny_sorter.task.split("test"), "", metric)
    with torch.no_grad():
        scores = np.empty(experiment.n)
        for block in experiment.batches:
            scores[block.rows] = experiment.score(block, tiny_sorter.model(*block.inputs)).double().numpy()
    whole = curve(curves(experiment, experiment, experiment), "greedy")[0]
    assert (whole.drop.mean, whole.drop.low, whole.drop.high) == (0, 0, 0)
    if metric == "accuracy":
        own = Proportion.count(scores > 0.5)
        assert (whole.low, whole.high) == (own.low, own.high)
        return
    error = 1.96 * scores.std() / len(scores) ** 0.5
    assert (whole.low, whole.high) == pytest.approx((scores.mean() - error, scores.mean() + error), abs=0.4 * error)
    condition = ablate(experiment, ("zero",)).condition
    assert condition.clean_interval == pytest.approx((whole.low, whole.high), abs=0.25 * error)
