"""Ablation of single heads, compared with plain counting."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn
from torch.nn import functional as F

from headcount.analysis.ablation import Ablation, AblationRun, ablate, decide
from headcount.bands import BANDS
from headcount.data.dataset import ACCURACY, LOSS
from headcount.errors import InputError, InstrumentError
from headcount.experiments.drops import compare, interval_of
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.experiments.interventions import run_interventions
from headcount.hooks import REPLACEMENTS
from headcount.hooks.replay import Intervention
from headcount.runs.run import Run
from headcount.stats import holm
from headcount.tasks.base import ClassTask


@pytest.fixture(scope="module")
def experiment(tiny_sorter: Run) -> Experiment:
    """Return an experiment on a model with one dead head: its columns of the output projection are 0."""
    model: Any = deepcopy(tiny_sorter.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.5)
        model.projections[model.sites[0]].weight[:, 4:] = 0.0
        examples = np.concatenate([tiny_sorter.task.split("test"), tiny_sorter.task.split("validation")])
        logits = model(torch.from_numpy(cast(ClassTask, tiny_sorter.task).encode(examples).source))
        model.to_logits.bias[1] -= (logits[:, 1] - logits[:, 0]).median() - 1e-3  # both classes are predicted
    made = replace(tiny_sorter, model=model)
    # It knows nothing; a floor of 0 lets its heads have bands all the same.
    return replace(task_experiment(made, examples, "40 examples"), majority_baseline=0.0)


def test_where_there_is_nothing_to_lose_no_head_gets_a_band(experiment: Experiment) -> None:
    """Ablating heads of a model with constant answers costs nothing, and shows nothing."""
    hopeless = ablate(replace(experiment, majority_baseline=0.5), ["zero"])
    assert hopeless.condition.clean - hopeless.condition.majority_baseline < 0.1
    assert {effect.band for effect in hopeless.effects} == {None}


@pytest.fixture(scope="module")
def ablation_run(experiment: Experiment) -> AblationRun:
    return ablate(experiment, examples=True)


def right_without(experiment: Experiment, columns: slice) -> np.ndarray[Any, Any]:
    """Return which examples are right, one at a time, in a copy with these columns set to zero."""
    copy: Any = deepcopy(experiment.model)
    with torch.no_grad():
        copy.projections[copy.sites[0]].weight[:, columns] = 0.0
        batch = cast(ClassTask, experiment.task).encode(experiment.examples)
        predicted = [copy(torch.from_numpy(row[None])).argmax().item() for row in batch.source]
    return np.array(predicted) == batch.labels


def test_effects_are_counts(experiment: Experiment, ablation_run: AblationRun) -> None:
    clean = right_without(experiment, slice(0, 0))
    assert ablation_run.condition.clean == clean.mean()
    effects = [effect for effect in ablation_run.effects if effect.replacement == "zero"]
    assert [effect.short for effect in effects] == ["L0H0", "L0H1"]
    chances = []
    for effect, columns in zip(effects, (slice(0, 4), slice(4, 8)), strict=True):
        after = right_without(experiment, columns)
        worse, better = int((clean & ~after).sum()), int((~clean & after).sum())
        assert (effect.worse, effect.better) == (worse, better)
        assert effect.clean == clean.mean()
        assert effect.ablated == after.mean()
        assert effect.drop == pytest.approx(clean.mean() - after.mean())
        assert effect.low < effect.drop < effect.high
        chances.append(binomtest(worse, worse + better).pvalue if worse + better else 1.0)
    assert effects[0].worse + effects[0].better > 0, "a head that matters"
    assert [effect.p for effect in effects] == pytest.approx(holm(chances))


@pytest.mark.parametrize("replacement", REPLACEMENTS.names())
def test_a_deaf_head_costs_nothing_but_not_for_certain(ablation_run: AblationRun, replacement: str) -> None:
    (deaf,) = (effect for effect in ablation_run.effects if (effect.short, effect.replacement) == ("L0H1", replacement))
    assert (deaf.drop, deaf.worse, deaf.better, deaf.p) == (0.0, 0, 0, 1.0)
    assert deaf.low < 0 < deaf.high
    assert deaf.band == "undecided", "40 examples cannot show that a head costs less than a point"
    assert deaf.examples_needed is not None
    assert deaf.examples_needed > 40
    gradients = {each.head: each.importance for each in ablation_run.condition.importances}
    assert gradients[deaf.head] == 0 < gradients["layer.0.self.0"]


def test_every_head_is_tried_in_every_way(experiment: Experiment, ablation_run: AblationRun) -> None:
    tried = [(effect.head, effect.replacement) for effect in ablation_run.effects]
    assert tried == [
        (str(head), replacement) for replacement in ("zero", "resample", "mean") for head in experiment.sites.heads
    ]
    agreements = [(each.replacement, each.normalised) for each in ablation_run.condition.agreements]
    assert agreements == [
        (replacement, divided) for replacement in ("zero", "resample", "mean") for divided in (False, True)
    ]
    assert {effect.band for effect in ablation_run.effects} <= set(BANDS)
    assert [(b.head, b.replacement) for b in ablation_run.condition.failures] == tried
    for broken, effect in zip(ablation_run.condition.failures, ablation_run.effects, strict=True):
        if effect.replacement == "resample":  # what the first donor broke, of four
            assert broken.n_broken <= effect.worse
        else:
            assert broken.n_broken == effect.worse


def test_a_replacement_that_is_named_twice_is_tried_once(experiment: Experiment) -> None:
    once, twice = ablate(experiment, ("zero",)), ablate(experiment, ("zero", "zero"))
    assert [effect.head for effect in twice.effects] == [effect.head for effect in once.effects]
    assert twice.condition.agreements == once.condition.agreements


def test_the_same_every_time_and_in_any_batches(experiment: Experiment, ablation_run: AblationRun) -> None:
    assert ablate(experiment, examples=True, batch_size=7).effects == ablation_run.effects


def test_a_loss_has_no_bands(tiny_sorter: Run) -> None:
    experiment = task_experiment(tiny_sorter, tiny_sorter.task.split("test"), "", "loss")
    batch = cast(ClassTask, tiny_sorter.task).encode(tiny_sorter.task.split("test"))
    with torch.no_grad():
        loss = F.cross_entropy(tiny_sorter.model(torch.from_numpy(batch.source)), torch.from_numpy(batch.labels))
    ablation_run = ablate(experiment, ("zero",))
    assert ablation_run.condition.clean == pytest.approx(-float(loss), rel=1e-5)
    for effect in ablation_run.effects:
        assert effect.band is None
        assert effect.examples_needed is None
        assert effect.drop == pytest.approx(effect.clean - effect.ablated, abs=1e-9)
        assert effect.low <= effect.drop <= effect.high


def test_scores_are_compared_as_what_they_are() -> None:
    clean, after = np.array([1.0, 1.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.0, 0.0])
    hits, numbers = (
        Experiment.of_batches(nn.Identity(), cast(Any, None), (), metric, "") for metric in (ACCURACY, LOSS)
    )
    ((as_hits,), (as_numbers,)) = (compare(each, clean, [after], "x") for each in (hits, numbers))
    assert as_hits.mean == as_numbers.mean == 0.5
    assert as_hits.p == 0.5
    assert compare(numbers, clean, [after], "x") == [as_numbers], "the same every time"
    clusters = np.array([7, 7, 2, 2])
    together = Experiment.of_batches(nn.Identity(), cast(Any, None), (), LOSS, "", clusters)
    (clustered,) = compare(together, clean, [after], "x")
    assert clustered.mean == 0.5
    assert clustered.low == clustered.high == 0.5, "both clusters lost the same"
    (noisy,) = compare(hits, clean, [after], "x", [0.1])
    assert noisy.low < as_hits.low < as_hits.high < noisy.high <= 1
    (known,) = compare(replace(hits, dataset=replace(hits.dataset, is_all=True)), clean, [after], "x")
    assert known.low == known.high == 0.5


def result_of(experiment: Experiment, ablation_run: AblationRun) -> Ablation:
    return Ablation(
        name="r",
        weights_sha256="m",
        metric=experiment.metric.name,
        unit=experiment.metric.unit,
        is_accuracy=True,
        replacements=("zero", "mean", "resample"),
        heads=ablation_run.effects,
        conditions=(ablation_run.condition,),
        proof=ablation_run.proof,
    )


def test_a_result_can_be_read_back(experiment: Experiment, ablation_run: AblationRun) -> None:
    result = result_of(experiment, ablation_run)
    assert Ablation.from_json(result.to_json()) == result
    assert [proof.site for proof in result.proof] == ["layer.0.self"]


def test_what_cannot_be_ablated_is_an_error(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no 'silence' among the replacements"):
        ablate(experiment, ("silence",))
    copy: Any = deepcopy(experiment.model)
    attention = copy.layers[0].self_attention.attention
    bypass = type("Bypass", (type(attention),), {"forward": lambda self, x, *rest, **how: x.tanh()})
    attention.__class__ = bypass
    with pytest.raises(InstrumentError, match="called 0 times inside the `with` block"):
        ablate(replace(experiment, model=copy, sites=type(experiment.sites).of(copy)), ("zero",))


# --- replacements that are drawn, and second runs -------------------------------------------------------------------


def test_a_mean_has_noise_and_nothing_else_has(experiment: Experiment, tiny_sorter: Run) -> None:
    """The noise of a mean grows as it is taken over fewer inputs."""
    examples = np.concatenate([tiny_sorter.task.sample(np.random.default_rng(i), 200) for i in range(2)])
    made = replace(tiny_sorter, model=cast(Any, experiment.model))
    noise = []
    for inputs in (examples[:16], examples):
        reference = task_experiment(made, inputs, "").batches
        measurements = ablate(replace(experiment, reference=reference), ["zero", "mean"]).measurements
        assert all(measurement.noise == 0 for measurement in measurements if measurement.replacement == "zero")
        noise.append(sum(measurement.noise for measurement in measurements if measurement.replacement == "mean"))
    assert 0 < noise[1] < noise[0]


def test_several_donors_are_the_mean_of_each(experiment: Experiment) -> None:
    """Compare with the scores of one ablation per donor."""
    head = experiment.sites.heads[0]
    each = run_interventions(experiment, [Intervention((head,), "resample", draw) for draw in range(3)]).scores
    (effect,) = (e for e in ablate(experiment, ["resample"], donors=3).effects if e.head == str(head))
    assert effect.ablated == pytest.approx(each.mean())
    assert len({tuple(scores) for scores in each}) > 1, "donors differ"
    with pytest.raises(InputError, match="the number of donors per example must be from 1 to 64, got 0"):
        ablate(experiment, ["resample"], donors=0)


def test_a_second_look_is_at_the_unsettled_alone_and_counts_alone(experiment: Experiment) -> None:
    first = ablate(experiment, ["zero"])
    assert first.unsettled, "40 examples settle little"
    more = replace(experiment, data="of the same", dataset=replace(experiment.dataset, is_all=True))
    again = decide(first, more)
    assert again.condition.decided_on == "40 of the same"
    for before, after in zip(first.measurements, again.measurements, strict=True):
        if before.settled:
            assert after == before
        else:
            assert after.drop.low == after.drop.high == after.drop.mean == before.drop.mean, "all there are"
    assert not any(effect.band == "undecided" for effect in again.effects)
    assert more.some(10).n < more.n
    assert decide(first, replace(more, dataset=experiment.dataset)).condition.decided_on == "40 of the same", (
        "no donors were asked for"
    )


@pytest.mark.slow
def test_what_changes_any_answer_is_looked_at_again(experiment: Experiment) -> None:
    blocks = tuple(replace(block, rows=block.rows + 40 * i) for i in range(50) for block in experiment.batches)
    many = Experiment.of_batches(experiment.model, experiment.sites, blocks, experiment.metric, "fresh")
    first = ablate(many, donors=2)
    assert {effect.n for effect in first.effects} == {2000}
    assert all(each.settled == (not each.effect.worse + each.effect.better) for each in first.measurements)
    seen = list[tuple[int, int]]()
    again = decide(first, many, donors=2, progress=lambda *done: seen.append(done))
    drawn = {effect.n for effect in again.effects if effect.replacement == "resample" and effect.worse}
    assert drawn == {1000}, "each with two donors"
    assert {effect.n for effect in again.effects if effect.replacement != "resample"} == {2000}
    assert again.condition.decided_on == "2,000 fresh (1,000 of them by resample)"
    n_blocks = len(blocks) + len(many.some(1000).batches)
    assert seen == [(i + 1, n_blocks) for i in range(n_blocks)]


def test_ranks_are_as_sure_as_intervals(experiment: Experiment, ablation_run: AblationRun) -> None:
    assert len(ablation_run.effects) == len(experiment.sites.heads) * len(REPLACEMENTS.names())
    for effect in ablation_run.effects:
        mine = [each for each in ablation_run.effects if each.replacement == effect.replacement]
        costlier = sum(each.low > effect.high for each in mine)
        cheaper = sum(each.high < effect.low for each in mine)
        assert (effect.rank_low, effect.rank_high) == (1 + costlier, len(mine) - cheaper)


def test_harmless_is_redundant_in_every_way(experiment: Experiment, ablation_run: AblationRun) -> None:
    effects = [replace(effect, band="redundant") for effect in ablation_run.effects]
    result = replace(result_of(experiment, ablation_run), heads=tuple(effects))
    assert result.harmless() == tuple(dict.fromkeys(effect.head for effect in effects))
    assert result.harmless(length=7) == ()
    effects[-1] = replace(effects[-1], band="undecided")
    assert effects[-1].head not in replace(result, heads=tuple(effects)).harmless()


def test_clusters_of_unequal_size_keep_the_mean_and_its_error() -> None:
    """Sizes carry no information about scores: with twenty equal clusters the error is 0."""
    sizes = np.arange(1, 21)
    clusters, scores = np.repeat(np.arange(20), sizes), np.full(sizes.sum(), -3.0)
    scores += 1e-3 * np.random.default_rng(0).normal(size=20)[clusters]
    numbers = Experiment.of_batches(nn.Identity(), cast(Any, None), (), LOSS, "", clusters=clusters)
    low, high = interval_of(numbers, scores, "x")
    assert low < scores.mean() < high
    assert high - low < 0.01


def test_an_interval_of_scores_lies_where_scores_lie() -> None:
    """Of hits that a metric of one's own gives, too."""
    numbers = Experiment.of_batches(nn.Identity(), cast(Any, None), (), LOSS, "")
    scores = np.ones(200)
    scores[0] = 0.0
    low, high = interval_of(numbers, scores, "x")
    assert 0.95 < low < 0.995 <= high <= 1
