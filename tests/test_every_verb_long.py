"""Every verb on a decoder-only run: addition of any length, hardly trained on one-digit and two-digit sums."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from little_work import work_little

from headcount.analysis.answer_lengths import AnswerStretch
from headcount.cli import main
from headcount.runs.config import RunConfig
from headcount.runs.run import load
from headcount.runs.train import train_run
from headcount.tasks.addition_long import lengths_of

TINY = {
    **{"digits": 2, "n_validation": 30, "n_test": 40, "steps": 30, "batch_size": 32, "eval_every": 30},
    **{"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 2, "threads": 1, "device": "cpu", "learning_rate": 2e-2},
}
VERBS: dict[str, tuple[str, ...]] = {
    "predict": ("predict", "runs/long", "12345678901234567890+9"),
    "predict --without": ("predict", "runs/long", "12+9", "--without", "L0H1"),
    "evaluate": ("evaluate", "runs/long"),
    "verify": ("verify", "runs/long", "--seconds", "1"),
    "stretch": ("stretch", "runs/long", "--lengths", "1,2,30", "--n", "4"),
    "heads": ("heads", "runs/long"),
    "heads --on": ("heads", "runs/long", "--on", "37+85"),
    "heads --all-test": ("heads", "runs/long", "--all-test"),
    "heads --stats": ("heads", "runs/long", "--stats"),
    "heads --match": ("heads", "runs/long", "--stats", "--match", "runs/long"),
    "weights": ("weights", "runs/long"),
    "ablate": ("ablate", "runs/long", "--n", "30"),
    "prune": ("prune", "runs/long", "--heads", "L1H0", "-o", "runs/cut"),
    "prune --fold-mean": ("prune", "runs/long", "--heads", "L1H0,L0H0", "--fold-mean", "-o", "runs/folded"),
    "patch": ("patch", "runs/long", "37+85", "32+85"),
    "routes": ("routes", "runs/long", "--n", "30"),
    "positions": ("positions", "runs/long"),
    "audit": ("audit", "runs/long"),
    "claim": ("claim", "runs/long", "L0", "prunable-together", "--n", "30", "--anyway"),
    "compare": ("compare", "runs/long", "runs/other"),
    "report": ("report", "runs/long", "-o", "long.html", "--markdown"),
}
MAY_FAIL = ("verify", "audit", "claim")
"""Verbs whose exit code is 1 if a model is wrong, which it is."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with two runs, from which commands are run."""
    path = tmp_path_factory.mktemp("long")
    with chdir(path), pytest.MonkeyPatch.context() as patch:
        work_little(patch)
        patch.setattr("headcount.runs.prune.N_MEANS", 256)
        for seed, name in enumerate(("long", "other")):
            train_run(RunConfig.build("addition-long", seed=seed, **TINY), path / "runs" / name)
        command("evaluate", "runs/other")
        yield path


def command(*arguments: str, code: tuple[int, ...] = (0,)) -> str:
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        ended = main(list(arguments))
    assert ended in code, output.getvalue()
    return output.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb(verb: str, folder: Path) -> None:
    output = command(*VERBS[verb], code=(0, 1) if verb in MAY_FAIL else (0,))
    assert output.strip()
    assert "failed unexpectedly" not in output


@pytest.mark.slow
def test_lengths_beyond_training_are_measured_by_kind(folder: Path) -> None:
    command(*VERBS["stretch"])
    (file,) = (folder / "runs/long/results").glob("stretch-*.json")
    result = AnswerStretch.from_json(file.read_text("utf-8"))
    assert {cell.length for cell in result.cells} == {1, 2, 30}
    assert {cell.kind for cell in result.cells} == set(load("runs/long").task.kinds)  # type: ignore[attr-defined]
    assert result.trained == (1, 2)
    assert result.unit == "digits"
    assert result.n_decoded == 2 * len(result.cells)
    assert sum(group.exact.n for group in result.groups) == sum(cell.exact.n for cell in result.cells)


@pytest.mark.slow
def test_a_pruned_run_keeps_its_ids_and_its_answers(folder: Path) -> None:
    if not (folder / "runs/cut").exists():
        command(*VERBS["prune"])
    cut, whole = load("runs/cut"), load("runs/long")
    assert [head.short for head in cut.model.heads] == ["L0H0", "L0H1", "L1H1"]
    assert cut.config.model.position_ids == "coupled"
    without = command("predict", "runs/long", "12+9", "--without", "L1H0")
    assert f"without L1H0: {cut.predict('12+9')}" in without
    assert lengths_of(whole.task.split("test")).max() == 2


@pytest.mark.slow
def test_an_interrupted_training_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    config = RunConfig.build("addition-long", **TINY | {"steps": 12, "random_start": 5, "checkpoint_every": 4})
    whole = train_run(config, tmp_path / "whole")

    class Stop:
        def on_steps(self, last_step: int, losses: object, rates: object) -> None:
            if last_step >= 10:
                raise KeyboardInterrupt

        def on_evaluation(self, step: int, scores: object) -> None:
            pass

    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "parts", listeners=[Stop()])
    resumed = train_run(config, tmp_path / "parts", resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256
