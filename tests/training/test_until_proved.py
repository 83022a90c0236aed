"""Training until a proof: only training lengths, nothing held out, resumed to the same bytes, proved at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crashing import Crash, CrashAt

from headcount.analysis.context_proof import prove
from headcount.errors import InputError
from headcount.experiments.models import RunModel
from headcount.runs.config import RunConfig
from headcount.runs.run import Run
from headcount.runs.train import train_run
from headcount.tasks.base import EMPTY, Examples
from headcount.training import loop

pytestmark = pytest.mark.slow  # seconds together


def config_of(provable: dict[str, Any], **changes: Any) -> RunConfig:
    return RunConfig.build("sortedness", preset="far", **provable | changes)


@pytest.fixture(scope="module")
def searched_often(
    provable: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunConfig, Run, list[Examples], list[int]]:
    """A run in which contexts are searched every 10 steps, its batches, and the size of the pool at each of them."""
    config = config_of(provable, eval_every=10, checkpoint_every=5)
    batches: list[Examples] = []
    pools: list[int] = []
    draw = loop._draw_batch

    def watched(state: Any, *given: Any) -> Examples:
        batches.append(draw(state, *given))
        pools.append(len(state.hard))
        return batches[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "_draw_batch", watched)
        run = train_run(config, tmp_path_factory.mktemp("searched") / "run")
    return config, run, batches, pools


def test_training_stops_at_the_first_proof(searched_often: tuple[RunConfig, Run, Any, Any]) -> None:
    _, run, _, _ = searched_often
    evaluations = [line for line in run.folder.read_log() if "wrong_contexts" in line]
    assert len(evaluations) > 1
    assert [line["wrong_contexts"] > 0 for line in evaluations] == [True] * (len(evaluations) - 1) + [False]
    assert run.folder.read_manifest()["steps"] == evaluations[-1]["step"]
    certificate = prove(RunModel.of(run))
    assert certificate.verdict == "proved"
    assert certificate.least_margin > loop.PROVED - certificate.single_error


def test_every_batch_has_training_lengths_and_nothing_held_out(
    searched_often: tuple[RunConfig, Run, list[Examples], list[int]],
) -> None:
    _, run, batches, pools = searched_often
    rows = np.concatenate(batches)
    assert set((rows != EMPTY).sum(axis=1).tolist()) == set(range(3, 7))
    held_out = {row.tobytes() for name in ("validation", "test") for row in run.task.split(name)}
    assert held_out
    assert not held_out & {row.tobytes() for row in rows}
    assert pools[0] == 0 < pools[-1], "wrong contexts join once the model is mostly right"


def test_a_crash_resumes_to_the_same_bytes(
    searched_often: tuple[RunConfig, Run, Any, list[int]], tmp_path: Path
) -> None:
    """The pool of wrong contexts is part of a checkpoint."""
    config, run, _, pools = searched_often
    n_steps = run.folder.read_manifest()["steps"]
    assert pools[n_steps - 8], "the pool is in use before the crash"
    with pytest.raises(Crash):
        train_run(config, tmp_path / "crashed", listeners=[CrashAt(n_steps - 2)])
    crashed = train_run(config, tmp_path / "crashed", resume=True)
    assert crashed.weights_sha256 == run.weights_sha256
    assert crashed.folder.log_file.read_bytes() == run.folder.log_file.read_bytes()


def test_training_that_is_not_proved_in_time_ends_without_a_proof(provable: dict[str, Any], tmp_path: Path) -> None:
    run = train_run(config_of(provable, steps=5, eval_every=5), tmp_path / "run")
    assert run.folder.read_manifest()["steps"] == 5 * 3
    assert prove(RunModel.of(run)).verdict == "refuted"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"window": None}, "no attention window"),
        ({"pooling": "max"}, "no exact decision is known for the model's pooling"),
        ({"pooling": "mean"}, "does not compute a score for each position"),
        ({"encoding": "rotary", "window": 1}, "not a bias of the distance"),
        ({"n_layers": 3, "n_values": 50}, "contexts"),
    ],
)
def test_settings_that_cannot_be_proved_are_refused_before_training(
    provable: dict[str, Any], tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason) as error:
        train_run(config_of(provable, **changes), tmp_path / "run")
    assert "use the preset far" in str(error.value)
    assert not (tmp_path / "run").exists()


def test_an_adder_cannot_be_trained_until_it_is_proved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--until-proved trains until .* this model cannot be proved"):
        train_run(RunConfig.build("addition", until_proved=True), tmp_path / "run")
