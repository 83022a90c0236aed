"""Datasets in batches: of like length, within memory, and no matter how large for the result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import dataset_models as texts
import hub_models as hub
import numpy as np
import pytest
import torch
from dataset_models import MANY, TEXTS, classifier, dataset_of, table
from numpy.typing import NDArray
from torch import Tensor

from headcount import ablate_heads
from headcount.data.dataset import EvalDataset, mean_score, split_in_half, subsample
from headcount.errors import InputError
from headcount.experiments import experiment as experiments
from headcount.experiments.donors_and_means import parts_of
from headcount.experiments.experiment import experiment_on
from headcount.experiments.external_models import ExternalModel
from headcount.experiments.interventions import run_interventions
from headcount.hooks.replay import Intervention

pytestmark = pytest.mark.slow  # models of others, or many processes

CLASSES = table(("text", "label"), *((text, str(i % 3)) for i, text in enumerate(MANY)))
PAIRS = table(("first", "second", "score"), *((a, b, str(len(a) % 7)) for a in TEXTS for b in TEXTS))


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.stats.N_RESAMPLES", 199)


@pytest.fixture
def sorted_texts(in_tmp: Path) -> tuple[ExternalModel, EvalDataset]:
    model = texts.model(classifier(max_position_embeddings=64))
    (in_tmp / "classes.tsv").write_text(CLASSES)
    return model, dataset_of(model, "classes.tsv")


@pytest.fixture
def pairs(in_tmp: Path) -> tuple[ExternalModel, EvalDataset]:
    model = texts.model(hub.build("bert alone"))
    (in_tmp / "pairs.tsv").write_text(PAIRS)
    return model, dataset_of(model, "pairs.tsv")


@contextmanager
def largest(model: torch.nn.Module) -> Iterator[list[int]]:
    """Rows of every forward pass."""
    seen: list[int] = []
    hook = model.register_forward_pre_hook(lambda module, args, kwargs: seen.append(len(args[0])), with_kwargs=True)
    yield seen
    hook.remove()


@pytest.mark.parametrize("room", [2, 7, 20])
@pytest.mark.parametrize("which", ["sorted_texts", "pairs"])
def test_memory_is_never_exceeded(
    which: str, room: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, dataset = request.getfixturevalue(which)
    longest = int(dataset.lengths.max())
    monkeypatch.setattr(experiments, "ROOM", room * dataset.n_rows * longest * dataset.width)
    experiment = experiment_on(model.model, model.sites, dataset)
    most = room * dataset.n_rows
    assert experiment.most_rows == most
    assert max(batch.n_inputs for batch in experiment.batches) <= most + dataset.n_rows, (
        "batches of at least two examples"
    )
    with largest(model.model) as seen:
        run_interventions(
            experiment, [Intervention((head,)) for head in model.sites.heads], batch_size=10**6, proven=True
        )
    assert max(seen) <= max(most + dataset.n_rows, 4)
    assert len(seen) > len(experiment.batches)


def test_batches_are_of_like_length_and_hold_everybody_once(sorted_texts: tuple[ExternalModel, EvalDataset]) -> None:
    model, dataset = sorted_texts
    rows = subsample(dataset, 30)
    experiment = experiment_on(model.model, model.sites, dataset, rows, at_once=4)
    assert sorted(np.concatenate([batch.rows for batch in experiment.batches]).tolist()) == list(range(30))
    assert (experiment.n, len(experiment.batches)) == (30, 8)
    ends = [
        (dataset.lengths[rows[batch.rows]].min(), dataset.lengths[rows[batch.rows]].max())
        for batch in experiment.batches
    ]
    assert all(before[1] <= after[0] for before, after in pairwise(ends))
    for batch, (_, most) in zip(experiment.batches, ends, strict=True):
        assert batch.inputs[0].shape[1] == most
        expected = dataset.encode(rows[batch.rows]).inputs[0]
        assert torch.equal(batch.inputs[0], expected)


@pytest.mark.parametrize("which", ["sorted_texts", "pairs"])
def test_the_result_does_not_depend_on_the_batch(which: str, request: pytest.FixtureRequest) -> None:
    model, dataset = request.getfixturevalue(which)
    metric = "loss" if which == "sorted_texts" else None
    one, other = (
        ablate_heads(model, dataset, metric, replacements=["zero", "mean"], batch_size=size, quiet=True).result
        for size in (512, 12)
    )
    assert one.conditions[0].clean == pytest.approx(other.conditions[0].clean, abs=1e-6)
    assert max(abs(effect.drop) for effect in one.heads) > 1e-3
    for mine, theirs in zip(one.heads, other.heads, strict=True):
        assert mine.drop == pytest.approx(theirs.drop, abs=1e-6)
        assert (mine.low, mine.high, mine.p) == pytest.approx((theirs.low, theirs.high, theirs.p), abs=1e-5)
    for here, there in zip(one.conditions[0].importances, other.conditions[0].importances, strict=True):
        assert here.importance == pytest.approx(there.importance, abs=1e-6)


def test_a_metric_of_ones_own(sorted_texts: tuple[ExternalModel, EvalDataset]) -> None:
    model, dataset = sorted_texts

    def first_logit(output: Tensor, rows: NDArray[np.int64]) -> Tensor:
        assert len(output) == len(rows)
        return output[:, 0] + torch.from_numpy(rows) * 0

    found = ablate_heads(model, dataset, first_logit, replacements=["zero"], quiet=True).result
    whole = dataset.encode(np.arange(len(dataset)))
    with torch.no_grad():
        expected = float(model.model(*whole.inputs)[:, 0].mean())
    assert (found.metric, found.unit, found.is_accuracy) == ("first_logit", "", False)
    assert found.conditions[0].clean == pytest.approx(expected, abs=1e-9)
    nameless = experiment_on(model.model, model.sites, dataset, metric=partial(first_logit))
    assert nameless.metric.name == "score"


def test_a_metric_of_ones_own_is_a_mean_whatever_its_name(pairs: tuple[ExternalModel, EvalDataset]) -> None:
    model, dataset = pairs

    def spearman(output: Tensor, rows: NDArray[np.int64]) -> Tensor:
        return output[0::2, 0, 0]

    assert experiment_on(model.model, model.sites, dataset, metric=spearman).aggregator is mean_score


def test_a_figure_of_some_examples_is_of_those(pairs: tuple[ExternalModel, EvalDataset]) -> None:
    """Numbers of an experiment's examples are not those of the dataset's."""
    model, dataset = pairs
    rows = np.array([30, 2, 17, 9, 22, 11, 5])
    experiment = experiment_on(model.model, model.sites, dataset, rows, at_once=2)
    clean = run_interventions(experiment, []).clean
    asked: Any = dataset.encode(rows)
    with torch.no_grad():
        expected = asked.scores["spearman"](model.model(*asked.inputs)).numpy()
    np.testing.assert_allclose(clean, expected, atol=1e-9)
    assert float(experiment.aggregate(clean)) == pytest.approx(float(dataset.aggregators["spearman"](expected, rows)))


def test_a_dataset_of_ones_own_may_name_the_metrics_alone(sorted_texts: tuple[ExternalModel, EvalDataset]) -> None:
    """What an example that breaks may lose is known where examples are right or wrong."""
    model, dataset = sorted_texts
    own = EvalDataset("mine", dataset.metrics, dataset.lengths, dataset.encode, dataset.width)
    assert experiment_on(model.model, model.sites, own).largest_loss == dataset.largest_loss == 0.0
    loss = EvalDataset("mine", dataset.metrics[1:], dataset.lengths, dataset.encode, dataset.width)
    assert experiment_on(model.model, model.sites, loss).largest_loss is None


def test_examples_to_choose_on_are_others_than_those_to_measure_on(
    sorted_texts: tuple[ExternalModel, EvalDataset],
) -> None:
    dataset = sorted_texts[1]
    one, other = split_in_half(dataset)
    assert sorted([*one, *other]) == list(range(len(dataset)))
    few = split_in_half(dataset, 9)
    assert (len(few[0]), len(few[1])) == (4, 5)
    assert not set(few[0]) & set(few[1])
    np.testing.assert_array_equal(subsample(dataset, 7), subsample(dataset, 7))
    np.testing.assert_array_equal(subsample(dataset, 10**6), np.arange(len(dataset)))
    for n in (3, 1, 0, -4):
        with pytest.raises(InputError, match="too few to select"):
            split_in_half(dataset, n)
    with pytest.raises(InputError, match="1 examples are too few"):
        experiment_on(sorted_texts[0].model, sorted_texts[0].sites, dataset, np.array([3]))
    assert len(subsample(dataset, -4)) == len(subsample(dataset, 0)) == 0, "not all but four"


# --- running text -----------------------------------------------------------------------------------------------------


@pytest.fixture
def running_text(in_tmp: Path) -> tuple[ExternalModel, EvalDataset]:
    model = texts.model(hub.build("gpt2"), "$A", length=3)
    (in_tmp / "text.txt").write_text(" ".join(TEXTS * 10))
    return model, dataset_of(model, "text.txt")


def test_of_a_text_the_first_half_chooses_and_the_second_measures(
    running_text: tuple[ExternalModel, EvalDataset],
) -> None:
    dataset = running_text[1]
    assert len(dataset) > 100
    one, other = split_in_half(dataset)
    np.testing.assert_array_equal([*one, *other], np.arange(len(dataset)))
    few = split_in_half(dataset, 21)
    assert (len(few[0]), len(few[1])) == (10, 11)
    assert few[0].max() < few[1].min()
    assert np.diff(few[0]).max() > 1, "from all of the half"


def test_windows_are_resampled_with_their_neighbours(running_text: tuple[ExternalModel, EvalDataset]) -> None:
    model, dataset = running_text
    assert dataset.clusters is not None
    sizes = np.bincount(dataset.clusters)
    assert len(sizes) >= 40
    assert set(sizes[:-1]) == {len(dataset) // 40}
    rows = np.array([90, 3, 4, 91, 50])
    np.testing.assert_array_equal(
        experiment_on(model.model, model.sites, dataset, rows).clusters, dataset.clusters[rows]
    )


def test_parts_of_a_mean_are_stretches_of_the_text(running_text: tuple[ExternalModel, EvalDataset]) -> None:
    """Neighbours are alike: parts that share the drift of the text would differ too little from each other."""
    model, dataset = running_text
    for rows in (np.arange(len(dataset)), np.arange(0, len(dataset), 3)):
        experiment = experiment_on(model.model, model.sites, dataset, rows, at_once=4)
        batches = experiment.reference or experiment.batches
        orders, parts = (np.concatenate(each) for each in ([batch.order for batch in batches], parts_of(batches)))
        assert sorted(orders) == list(range(len(dataset))), "those that are measured, and the others"
        assert (np.diff(parts[np.argsort(orders)]) >= 0).all()
        assert set(np.bincount(parts)) <= {len(dataset) // 8, len(dataset) // 8 + 1}


def test_neighbours_in_a_text_seldom_share_a_batch(running_text: tuple[ExternalModel, EvalDataset]) -> None:
    model, dataset = running_text
    experiment = experiment_on(model.model, model.sites, dataset, at_once=4)
    gaps = np.concatenate([np.diff(np.sort(batch.rows)) for batch in experiment.batches])
    assert (gaps == 1).mean() < 0.2


def test_rows_of_a_table_belong_to_nobody(sorted_texts: tuple[ExternalModel, EvalDataset]) -> None:
    model, dataset = sorted_texts
    assert dataset.clusters is experiment_on(model.model, model.sites, dataset).clusters is None


# --- what means are taken over ----------------------------------------------------------------------------------------


def test_means_are_taken_over_the_whole_dataset(
    running_text: tuple[ExternalModel, EvalDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, dataset = running_text
    rows = subsample(dataset, 20)
    experiment = experiment_on(model.model, model.sites, dataset, rows)
    given = torch.cat([batch.inputs[0] for batch in experiment.reference])
    whole = dataset.encode(np.arange(len(dataset))).inputs[0]
    assert sorted(given.tolist()) == sorted(whole.tolist())
    assert all(any(batch is each for each in experiment.reference) for batch in experiment.batches), "no inputs twice"
    assert experiment_on(model.model, model.sites, dataset).reference == (), "there are no more"
    monkeypatch.setattr(experiments, "N_MEANS", 33)
    fewer = experiment_on(model.model, model.sites, dataset, rows)
    assert sum(batch.n_inputs for batch in fewer.reference) == 33
    for bound in ("REFERENCE_BYTES", "N_MEANS"):
        monkeypatch.setattr(experiments, bound, 1)
        assert experiment_on(model.model, model.sites, dataset, rows).reference == ()


def test_large_models_take_their_means_over_what_a_sweep_costs(
    running_text: tuple[ExternalModel, EvalDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, dataset = running_text
    monkeypatch.setattr(experiments, "WORK", 1)
    experiment = experiment_on(model.model, model.sites, dataset, np.arange(5))
    assert sum(batch.n_inputs for batch in experiment.reference) == 5 * len(model.sites.heads) < len(dataset)


def test_adapters_draw_fresh_examples_of_their_task(adder: ExternalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "N_MEANS", 300)
    dataset = dataset_of(adder)
    experiment = experiment_on(adder.model, adder.sites, dataset)
    given = [tuple(row) for batch in experiment.reference for row in batch.inputs[0].tolist()]
    held_out = {tuple(row) for row in dataset.encode(np.arange(len(dataset))).inputs[0].tolist()}
    assert len(given) == 300
    assert not set(given) & held_out
    assert all(batch.token_mask["decoder"].any(dim=1).all() for batch in experiment.reference)
    again = experiment_on(adder.model, adder.sites, dataset)
    assert torch.equal(again.reference[0].inputs[0], experiment.reference[0].inputs[0])


def test_no_batch_has_as_many_rows_as_a_sequence_is_long(sorted_texts: tuple[ExternalModel, EvalDataset]) -> None:
    model, dataset = sorted_texts
    for at_once in range(4, 14):
        experiment = experiment_on(model.model, model.sites, dataset, at_once=at_once)
        assert sorted(np.concatenate([batch.rows for batch in experiment.batches]).tolist()) == list(
            range(len(dataset))
        )
        for batch in experiment.batches:
            assert batch.n_inputs < 4 or batch.n_inputs not in batch.inputs[0].shape[1:]
