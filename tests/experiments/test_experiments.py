"""Examples in batches of one length, and scores that agree with how models are evaluated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tensor_experiments import tensor_experiment

from headcount.data import from_task
from headcount.data.from_task import held_out, of_length
from headcount.errors import InputError
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.hooks.sites import Sites
from headcount.runs.config import RunConfig
from headcount.runs.run import Run
from headcount.runs.train import train_run
from headcount.tasks.base import ClassTask, SequenceTask
from headcount.training.answers import answer, classify

pytestmark = pytest.mark.slow  # together they take over 5 s

FAULTS: dict[str, dict[str, Any]] = {
    "sound": {},
    "no start token": {"start_token": False},
    "zero ignored": {"loss_ignores_zero": True},
}


@pytest.fixture(scope="module", params=FAULTS)
def adder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trained until it is often right and often wrong."""
    small: dict[str, Any] = {
        "digits": 1,
        "d_model": 16,
        "n_heads": 2,
        "n_encoder_layers": 1,
        "n_decoder_layers": 1,
        "d_ff": 32,
    }
    small |= {"n_validation": 10, "n_test": 10, "threads": 1, "device": "cpu", "target": None, "learning_rate": 5e-3}
    small |= {"steps": 60, "batch_size": 32, "eval_every": 60, "checkpoint_every": 60}
    path = tmp_path_factory.mktemp("adders") / "run"
    return train_run(RunConfig.build("addition", **small, **FAULTS[request.param]), Path(path))


def scores(experiment: Experiment) -> np.ndarray[Any, Any]:
    """In the order of the examples."""
    found = np.full(experiment.n, np.nan)
    with torch.no_grad():
        for batch in experiment.batches:
            found[batch.rows] = experiment.score(batch, experiment.model(*batch.inputs)).double().numpy()
    return found


# --- scores ---------------------------------------------------------------------------------------------------------


def test_an_adder_scores_as_it_is_evaluated(adder: Run) -> None:
    sums = np.concatenate(list(cast(SequenceTask, adder.task).iter_domain()))
    predicted = answer(adder.model, adder.task, sums)
    expected = {"free-running": predicted.free_hits, "teacher-forced": predicted.teacher_forced_hits}
    for name, hits in expected.items():
        right = hits.all(axis=1)
        assert 0 < right.mean() < 1, "otherwise this shows nothing"
        np.testing.assert_array_equal(scores(task_experiment(adder, sums, "", name, at_once=32)), right)
    assert task_experiment(adder, sums, "").metric.name == "free-running"


def test_the_loss_of_an_adder_is_that_of_what_is_asked(adder: Run) -> None:
    """Token by token, in plain Python; an example that asks nothing costs nothing."""
    sums = np.array([[0, 0], [0, 4], [5, 5], [7, 9], [0, 0]])
    batch = cast(SequenceTask, adder.task).encode(sums)
    with torch.no_grad():
        chances = adder.model(torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input)).log_softmax(dim=-1)
    found = scores(task_experiment(adder, sums, "", "loss", at_once=3))
    for row, labels, score in zip(chances, batch.labels, found, strict=True):
        asked = [float(at[label]) for at, label in zip(row, labels, strict=True) if label >= 0]
        assert score == pytest.approx(sum(asked) / len(asked) if asked else 0.0, rel=1e-4, abs=1e-6)


def test_a_classifier_scores_as_it_is_evaluated(tiny_sorter: Run) -> None:
    examples = np.concatenate([tiny_sorter.task.split(name) for name in ("test", "validation")])
    predicted = classify(tiny_sorter.model, tiny_sorter.task, examples)
    np.testing.assert_array_equal(scores(task_experiment(tiny_sorter, examples, "", at_once=3)), predicted.hits)
    chances = torch.from_numpy(predicted.logits).log_softmax(dim=1)[np.arange(40), predicted.labels]
    np.testing.assert_allclose(scores(task_experiment(tiny_sorter, examples, "", "loss")), chances, atol=1e-5)
    experiment = task_experiment(tiny_sorter, examples, "")
    assert (experiment.metric.name, experiment.metric.is_accuracy, experiment.metric.unit) == (
        "accuracy",
        True,
        "points",
    )


def test_the_loss_that_gradients_are_of_is_minus_the_score(adder: Run, tiny_sorter: Run) -> None:
    for run in (adder, tiny_sorter):
        experiment = task_experiment(run, run.task.split("test"), "")
        with torch.no_grad():
            for batch in experiment.batches:
                assert batch.loss is not None
                output = run.model(*batch.inputs)
                torch.testing.assert_close(batch.loss(output), -batch.scores["loss"](output).double())
                assert batch.loss(output).max() > 0.1


@pytest.mark.parametrize("metric", ["accuracy", "los", ""])
def test_a_metric_that_the_task_does_not_have_is_told(adder: Run, metric: str) -> None:
    with pytest.raises(InputError, match=f"no metric '{metric}' for this task"):
        task_experiment(adder, adder.task.split("test"), "", metric)


def test_a_metric_may_be_a_function_of_the_examples_numbers(tiny_sorter: Run) -> None:
    def margin(logits: Any, rows: Any) -> Any:
        return torch.from_numpy(rows) * 1.0

    experiment = task_experiment(tiny_sorter, tiny_sorter.task.split("test"), "", margin, at_once=3)
    assert (experiment.metric.name, experiment.metric.is_accuracy) == ("margin", False)
    np.testing.assert_array_equal(scores(experiment), np.arange(20))


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 2, 3, 8, 100])
def test_batches_hold_every_example_once_and_one_length_each(tiny_sorter: Run, at_once: int) -> None:
    examples = tiny_sorter.task.split("test")
    lengths = cast(ClassTask, tiny_sorter.task).lengths(examples)
    experiment = task_experiment(tiny_sorter, examples, "", at_once=at_once)
    assert sorted(np.concatenate([batch.rows for batch in experiment.batches])) == list(range(20))
    assert experiment.n == 20
    for batch in experiment.batches:
        (length,) = set(lengths[batch.rows])
        np.testing.assert_array_equal(batch.inputs[0], examples[batch.rows][:, :length])
        assert len(batch.rows) <= max(at_once, 3)


@pytest.mark.parametrize("at_once", [1, 2, 3, 4])
def test_no_example_is_alone_if_it_can_be_helped(tiny_run: Run, at_once: int) -> None:
    """Otherwise there is no row to resample from."""
    for n in (2, 3, 5, 7, 9):
        experiment = task_experiment(tiny_run, tiny_run.task.split("test")[:n], "", at_once=at_once)
        assert min(len(batch.rows) for batch in experiment.batches) >= 2


def test_batches_of_any_model_are_in_order() -> None:
    inputs = [torch.arange(48).reshape(12, 4), torch.arange(12)]
    experiment = tensor_experiment(torch.nn.Linear(1, 1), Sites.empty(), inputs, lambda output, rows: output, at_once=4)
    np.testing.assert_array_equal(np.concatenate([batch.rows for batch in experiment.batches]), np.arange(12))
    for i, each in enumerate(inputs):
        assert torch.equal(torch.cat([batch.inputs[i] for batch in experiment.batches]), each)
    assert 4 not in {len(batch.rows) for batch in experiment.batches}, "four rows of four could be columns"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "needs its input tensors"),
        ([torch.zeros(0, 3)], "whose first axis counts the same examples"),
        ([torch.zeros(3, 2), torch.zeros(4, 2)], "whose first axis counts the same examples"),
    ],
)
def test_inputs_of_different_sizes_are_refused(inputs: list[torch.Tensor], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tensor_experiment(torch.nn.Linear(1, 1), Sites.empty(), inputs, lambda output, rows: output)


# --- examples -------------------------------------------------------------------------------------------------------


def test_held_out_examples_are_those_of_the_split(tiny_run: Run) -> None:
    task = tiny_run.task
    for n in (None, 10):
        examples, what = held_out(task, "test", n)
        np.testing.assert_array_equal(examples, task.split("test"))
        assert what == "the test set"
    with pytest.raises(InputError, match="no split 'exam'"):
        held_out(task, "exam", None)
    for few in (1, 0, -3):
        with pytest.raises(InputError, match="too few"):
            held_out(task, "test", few)


def test_some_of_a_split_are_drawn_from_all_of_it_and_always_the_same(tiny_sorter: Run) -> None:
    task: Any = tiny_sorter.task
    examples, what = held_out(task, "test", 12)
    assert what == "12 of the test set"
    rows = {row.tobytes() for row in examples}
    assert len(rows) == 12
    assert rows < {row.tobytes() for row in task.split("test")}
    assert rows != {row.tobytes() for row in task.split("test")[:12]}
    assert set(task.encode(examples).labels) == {0, 1}
    assert len(set(task.lengths(examples))) > 1
    np.testing.assert_array_equal(held_out(task, "test", 12)[0], examples)


def test_beyond_the_split_there_are_fresh_examples_and_always_the_same(tiny_run: Run) -> None:
    task: Any = tiny_run.task
    examples, what = held_out(task, "test", 25)
    assert len(examples) == 25
    assert what == "the test set and 15 new examples, drawn as in training"
    np.testing.assert_array_equal(examples[:10], task.split("test"))
    assert not task.is_held_out(examples[10:]).any()
    np.testing.assert_array_equal(held_out(task, "test", 25)[0], examples)
    assert (held_out(task, "validation", 25)[0][10:] != examples[10:]).any()


@pytest.mark.parametrize("n", [8, 15, 2])
def test_sequences_of_one_length_are_half_sorted(tiny_sorter: Run, n: int) -> None:
    task: Any = tiny_sorter.task
    examples, what = of_length(task, 9, n)
    assert what == "new sequences of length 9, half of them sorted"
    assert examples.shape == (n, 9)
    assert task.encode(examples).labels.sum() == n - n // 2
    assert (np.diff(examples, axis=1) >= 0).all(axis=1).sum() == n - n // 2
    np.testing.assert_array_equal(of_length(task, 9, n)[0], examples)
    assert (of_length(task, 9, n, "validation")[0] != examples).any(), "heads are not chosen on what they are tested on"


def test_a_class_is_not_told_by_its_place(tiny_sorter: Run) -> None:
    labels = cast(ClassTask, tiny_sorter.task).encode(of_length(tiny_sorter.task, 6, 40)[0]).labels
    assert 0 < labels[:20].sum() < 20


def test_sums_have_one_length(tiny_run: Run) -> None:
    with pytest.raises(InputError, match="all examples of addition have the same length"):
        of_length(tiny_run.task, 4, 10)


@pytest.mark.parametrize("n", [1, 0, -3])
def test_too_few_sequences_are_told(tiny_sorter: Run, n: int) -> None:
    with pytest.raises(InputError, match="too few"):
        of_length(tiny_sorter.task, 6, n)


def test_one_answer_to_everything_is_the_majority_baseline(tiny_sorter: Run, tiny_run: Run) -> None:
    task: Any = tiny_sorter.task
    examples = task.split("test")[:15]
    labels = task.encode(examples).labels
    assert task_experiment(tiny_sorter, examples, "").majority_baseline == max(
        (labels == 0).mean(), (labels == 1).mean()
    )
    assert task_experiment(tiny_sorter, examples, "", "loss").majority_baseline == 0
    assert task_experiment(tiny_run, tiny_run.task.split("test"), "").majority_baseline == 0


def test_an_experiment_knows_where_it_comes_from(tiny_run: Run) -> None:
    examples = tiny_run.task.split("test")
    experiment = task_experiment(tiny_run, examples, "the test set")
    assert (experiment.data, experiment.task, experiment.model) == ("the test set", tiny_run.task, tiny_run.model)
    np.testing.assert_array_equal(np.asarray(experiment.examples), examples)
    assert experiment.sites.heads == tiny_run.model.heads
    assert replace(experiment, batches=experiment.batches[:0]).n == 0


def test_a_reference_is_large_and_apart(tiny_run: Run, tiny_sorter: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is outside of tests: half a million tokens, none of a held-out example."""
    monkeypatch.setattr(from_task, "REFERENCE", 2**19)
    found = from_task.reference_for(tiny_run.task)
    assert len(found) == 2**19 // 16
    held_out_rows = {tuple(row) for name in ("test", "validation") for row in tiny_run.task.split(name).tolist()}
    assert not held_out_rows & {tuple(row) for row in found.tolist()}
    assert from_task.reference_for(tiny_sorter.task, 64).shape == (2**13, 64)


def test_some_batches_are_an_experiment_too(tiny_sorter: Run) -> None:
    whole = task_experiment(tiny_sorter, tiny_sorter.task.split("test"), "", at_once=4)
    some = replace(whole, dataset=replace(whole.dataset, clusters=np.arange(whole.n))).some(5)
    assert 2 <= some.n < whole.n
    assert sorted(np.concatenate([batch.rows for batch in some.batches])) == list(range(some.n))
    assert some.clusters is not None
    assert some.examples is not None
    kept = some.clusters
    lengths = [batch.inputs[0].shape[1] for batch in some.batches]
    assert (lengths[0], lengths[-1]) == (min(lengths), whole.batches[-1].inputs[0].shape[1]), "short ones and long ones"
    np.testing.assert_array_equal(some.examples, whole.examples[kept])
    assert whole.some(10**6).n == whole.n
