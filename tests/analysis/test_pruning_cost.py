"""The savings of cutting out heads, counted by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file
from torch import nn

from headcount.analysis.pruning_cost import ROUNDS, TIMED, Cost, compare_cost
from headcount.experiments.experiment import task_experiment
from headcount.experiments.models import RunModel
from headcount.runs.run import Run
from headcount.surgery.cutting import Cut
from headcount.training.answers import answer, classify

D_MODEL, D_HEAD = 32, 16
HEADS = ("E0H1", "D1H0", "D1H1", "X0H0")


@pytest.fixture(scope="module")
def cut(good_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Cut[Any]:
    return RunModel.of(good_run).cut(HEADS, tmp_path_factory.mktemp("cost") / "cut", None)


@pytest.fixture(scope="module")
def cost(good_run: Run, cut: Cut[Any]) -> Cost:
    return cost_of(good_run, cut)


def cost_of(run: Run, cut: Cut[Any], fine_tuned: int = 0) -> Cost:
    parent = RunModel.of(run)
    return compare_cost(parent, cut, parent.cost_experiment(None), fine_tuned)


def numbers_in(run: Run) -> int:
    return sum(tensor.size for tensor in load_file(run.folder.weights_file).values())


def test_parameters_are_those_in_the_files(good_run: Run, cut: Cut[Any], cost: Cost) -> None:
    assert cost.parameters == (numbers_in(good_run), numbers_in(cut.model.run))
    per_head = 3 * (D_MODEL * D_HEAD + D_HEAD) + D_HEAD * D_MODEL
    norm = 2 * D_MODEL  # of the block that is gone as a whole: nothing reads it any more
    assert cost.parameters[0] - cost.parameters[1] == len(HEADS) * per_head + norm


def test_bytes_are_those_of_the_files(good_run: Run, cut: Cut[Any], cost: Cost) -> None:
    sizes = [Path(run.folder.path / "model.safetensors").stat().st_size for run in (good_run, cut.model.run)]
    assert cost.n_bytes == tuple(sizes)
    assert sizes[0] > sizes[1] > 4 * cost.parameters[1]


def test_heads_and_lost_blocks_are_named(good_run: Run, cut: Cut[Any], cost: Cost) -> None:
    assert cost.heads == ("encoder.0.self.1", "decoder.1.self.0", "decoder.1.self.1", "decoder.0.cross.0")
    assert cost.n_heads == (10, 6) == (len(good_run.model.heads), len(cut.model.run.model.heads))
    assert cost.lost_blocks == ("decoder.1.self",)
    assert (cost.parent, cost.name) == (good_run.name, cut.model.run.name)


def test_scores_are_those_of_real_decoding(good_run: Run, cut: Cut[Any], cost: Cost) -> None:
    test = good_run.task.split("test")
    right = [answer(run.model, run.task, test).free_hits.all(axis=1) for run in (good_run, cut.model.run)]
    assert cost.score == tuple(each.mean() for each in right)
    assert cost.drop.mean == pytest.approx(right[0].mean() - right[1].mean())
    assert cost.drop.low <= cost.drop.mean <= cost.drop.high
    assert (cost.data, cost.fine_tuned) == ("the test set", 0)
    assert 0 <= cost.difference < 1e-4


def test_times_are_medians_over_rounds_after_the_first(
    tiny_sorter: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a clock that only the two models advance, by different amounts per round; the first round is a warm-up."""
    rounds = [700, 700], [9, 1], [4, 3], [12, 4], [5, 6], [8, 2], [6, 6], [40, 5], [3, 7], [10, 8]  # ms
    assert len(rounds) == ROUNDS + 1
    parent = RunModel.of(tiny_sorter)
    cut = parent.cut(["L0H0"], tmp_path / "cut", None)
    experiment = task_experiment(tiny_sorter, tiny_sorter.task.split("test"), "", at_once=3)
    assert len(experiment.batches) > TIMED, "some are not timed"
    clock = 0.0

    def moves(module: nn.Module, which: int) -> Any:
        calls = -len(experiment.batches)  # to score them takes no time

        def pass_time(module: nn.Module, args: object) -> None:
            nonlocal calls, clock
            if calls >= 0:
                clock += rounds[calls // TIMED][which] / 1000 / TIMED
            calls += 1

        return module.register_forward_pre_hook(pass_time)

    hooks = [moves(module, which) for which, module in enumerate((experiment.model, cut.model.module))]
    monkeypatch.setattr("headcount.analysis.pruning_cost.time", SimpleNamespace(perf_counter=lambda: clock))
    cost = compare_cost(parent, cut, experiment)
    for hook in hooks:
        hook.remove()
    n = sum(len(batch.rows) for batch in experiment.batches[:TIMED])
    assert n < experiment.n
    assert cost.microseconds == pytest.approx((8000 / n, 5000 / n)), "the fifth of nine, in order"
    assert cost.faster == pytest.approx(4 / 3), "of 9, 8, 4, 3, 4/3, 5/4, 1, 5/6, 3/7; not 8/5"


def test_it_can_be_read_back(cost: Cost) -> None:
    assert Cost.from_json(cost.to_json()) == cost


def test_a_classifier_that_was_tuned(tiny_sorter: Run, tmp_path: Path) -> None:
    cut = RunModel.of(tiny_sorter).cut(["L0H0"], tmp_path / "cut", None, fine_tune=3)
    cost = cost_of(tiny_sorter, cut, 3)
    assert (cost.fine_tuned, cost.lost_blocks, cost.n_heads) == (3, (), (2, 1))
    test = tiny_sorter.task.split("test")
    left = cast(RunModel, cut.model).run
    right = [classify(run.model, run.task, test).hits.mean() for run in (tiny_sorter, left)]
    np.testing.assert_allclose(cost.score, right)
    assert cost.difference < 1e-4, "before the tuning"


def test_nothing_is_left(tiny_sorter: Run, tmp_path: Path) -> None:
    cost = cost_of(tiny_sorter, RunModel.of(tiny_sorter).cut(["L0H0", "L0H1"], tmp_path / "cut", None))
    assert (cost.n_heads, cost.lost_blocks) == ((2, 0), ("layer.0.self",))
