"""Heads cut out of a run: the written model equals the ablated one, and a failure leaves no files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from second_routes import held_at_means, zero_heads

from headcount.errors import CheckFailed, ConfigError, InputError, Interrupted, RunError
from headcount.heads import HeadId
from headcount.hooks.gates import eval_mode
from headcount.hooks.sites import Sites
from headcount.runs import prune
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder, staged
from headcount.runs.prune import prune_run
from headcount.runs.run import Run, load
from headcount.runs.train import train_run, weights_of
from headcount.surgery import cut_proof, cutting
from headcount.surgery.cutting import cut_heads, fold_in_place, mean_outputs
from headcount.tasks.base import Batch, ClassTask, SequenceTask
from headcount.training.loop import StepScores

pytestmark = pytest.mark.slow  # together they take over 5 s

GONE = ["E0H1", "D1H0", "D1H1", "X0H0"]


def logits(run: Run) -> torch.Tensor:
    batch = cast(SequenceTask | ClassTask, run.task).encode(run.task.split("test"))
    with eval_mode(run.model, gradients=False):
        tokens = (batch.source, batch.decoder_input) if isinstance(batch, Batch) else (batch.source,)
        return run.model(*map(torch.from_numpy, tokens))


class Steps:
    """A listener that keeps the steps, and may do something, once, at a step."""

    def __init__(self, at: int = 0, act: Any = None) -> None:
        self.at, self.act, self.told = at, act, list[int]()

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        self.told.append(last_step)
        if last_step >= self.at and self.act:
            act, self.act = self.act, None
            act()

    def on_evaluation(self, step: int, scores: StepScores) -> None: ...


# --- what is written ------------------------------------------------------------------------------------------------


def test_a_cut_run_is_a_run(tiny_run: Run, tmp_path: Path) -> None:
    cut = prune_run(tiny_run, GONE, tmp_path / "cut")
    assert [head.short for head in cut.heads] == GONE
    assert [head.short for head in cut.model.model.heads] == ["E0H0", "D0H0", "D0H1", "X0H1", "X1H0", "X1H1"]
    assert cut.model.config == replace(tiny_run.config, model=replace(tiny_run.config.model, pruned=GONE))
    assert cut.difference < 1e-5
    assert (cut.before.parameters, cut.after.parameters) == tuple(
        sum(weight.numel() for weight in run.model.parameters()) for run in (tiny_run, cut.model)
    )
    assert cut.after.n_bytes == cut.model.folder.weights_file.stat().st_size < cut.before.n_bytes
    masked = replace(tiny_run, model=zero_heads(tiny_run.model, GONE))
    torch.testing.assert_close(logits(cut.model), logits(masked), atol=1e-5, rtol=0)
    assert (logits(cut.model) - logits(tiny_run)).abs().max() > 1e-3


def test_its_folder_says_where_it_comes_from(tiny_run: Run, tmp_path: Path) -> None:
    folder = prune_run(tiny_run, GONE, tmp_path / "cut").model.folder
    manifest = folder.read_manifest()
    assert {name: manifest[name] for name in ("steps", "pruned_from", "fine_tuned")} == {
        "steps": 12,
        "pruned_from": tiny_run.weights_sha256,
        "fine_tuned": 0,
    }
    names = {"config.json", "environment.json", "log.jsonl", "model.safetensors"}
    assert set(manifest["files"]) == names
    assert {file.name for file in folder.path.iterdir()} == {*names, "manifest.json"}
    assert folder.log_file.read_bytes() == tiny_run.folder.log_file.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["cut"]


ELSEWHERE = """
import hashlib, sys, torch
from headcount.runs.run import load
torch.set_num_threads(1)
run = load(sys.argv[1])
batch = run.task.encode(run.task.split("test"))
with torch.inference_mode():
    output = run.model(torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input))
digest = hashlib.sha256(output.numpy().tobytes()).hexdigest()
print(run.weights_sha256, digest, *[head.short for head in run.model.heads])
"""


def test_another_process_loads_it_and_has_the_same_output(tiny_run: Run, tmp_path: Path) -> None:
    run = prune_run(tiny_run, GONE, tmp_path / "cut").model
    arguments = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "cut")]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True)
    predicted = hashlib.sha256(logits(run).numpy().tobytes()).hexdigest()
    assert ran.stdout.split() == [run.weights_sha256, predicted, *(head.short for head in run.model.heads)]


def test_a_cut_run_can_be_cut_again(tiny_run: Run, tmp_path: Path) -> None:
    first = prune_run(tiny_run, GONE[:2], tmp_path / "first").model
    second = prune_run(first, GONE[2:], tmp_path / "second").model
    assert second.weights_sha256 == prune_run(tiny_run, GONE, tmp_path / "at once").model.weights_sha256
    assert second.config.model.pruned == tuple(str(HeadId.parse(name)) for name in ("X0H0", "D1H0", "D1H1", "E0H1"))
    assert second.folder.read_manifest()["pruned_from"] == first.weights_sha256
    with pytest.raises(InputError, match=r"no head 'encoder.0.self.1' in .*first(.|\n)*cut out: D1H0, E0H1"):
        prune_run(first, ["E0H1"], tmp_path / "third")


def test_everything_can_go(tiny_run: Run, tiny_sorter: Run, tmp_path: Path) -> None:
    for run in (tiny_run, tiny_sorter):
        cut = prune_run(run, run.model.heads, tmp_path / run.task.name)
        assert (cut.model.model.heads, cut.model.model.sites) == ((), ())
        with pytest.raises(InputError, match="heads at each of no attention block, except those that were cut out"):
            cut.model.find_head("E0H0")
        with pytest.raises(InputError, match="no heads to cut out"):
            prune_run(cut.model, cut.model.model.heads, tmp_path / "more")


def test_attention_is_found_by_name_and_not_by_place(tiny_run: Run, tmp_path: Path) -> None:
    run = prune_run(tiny_run, ["E0H0", "D0H0"], tmp_path / "cut").model
    for name in ("E0H1", "D0H1"):
        shown = run.attention("3+4", name)
        torch.testing.assert_close(shown, run.predict_one("3+4").weights[run.find_head(name).site][0])
    torch.testing.assert_close(run.attention("3+4", "E0H1"), tiny_run.attention("3+4", "E0H1"))


# --- what the heads output on average -------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["tiny_run", "tiny_sorter"])
def test_means_are_folded_and_the_folder_says_over_how_many(
    which: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "N_MEANS", 300)
    run = request.getfixturevalue(which)
    gone = [head.short for head in run.model.heads if head.index == 0 or head.site.short == "D1"]
    plain, cut = (prune_run(run, gone, tmp_path / name, fold_mean=name == "folded") for name in ("plain", "folded"))
    assert (cut.folded_over, plain.folded_over) == (300, 0)
    assert cut.model.folder.read_manifest()["folded_over"] == 300
    assert "folded_over" not in plain.model.folder.read_manifest()
    assert cut.model.config == plain.model.config
    means = mean_outputs(run.model, Sites.of(run.model), prune._training_inputs(run))
    held = replace(run, model=held_at_means(run.model, gone, means))
    torch.testing.assert_close(logits(cut.model), logits(held), atol=1e-5, rtol=0)
    assert (logits(cut.model) - logits(plain.model)).abs().max() > 1e-3
    tuned = prune_run(run, gone, tmp_path / "tuned", fold_mean=True, fine_tune=2)
    assert tuned.difference == cut.difference


@pytest.mark.parametrize("wrong", [1e-6, 0.1])
def test_means_that_are_folded_wrongly_are_not_written(
    tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    def askew(sites: Any, heads: Any, means: Any) -> None:
        fold_in_place(sites, heads, {site: (1 + wrong) * mean for site, mean in means.items()})

    monkeypatch.setattr(prune, "N_MEANS", 300)
    for module in (cutting, cut_proof):
        monkeypatch.setattr(module, "fold_in_place", askew)
    with pytest.raises(CheckFailed, match=r"replaced by their mean outputs.* differ by .*nothing was written"):
        prune_run(tiny_run, GONE, tmp_path / "cut", fold_mean=True)
    assert not any(tmp_path.iterdir())


# --- fine-tuning ----------------------------------------------------------------------------------------------------


def test_fine_tuning_goes_on_where_the_parent_stopped(tiny_run: Run, tmp_path: Path) -> None:
    listener, plain = Steps(), prune_run(tiny_run, GONE, tmp_path / "plain")
    cut = prune_run(tiny_run, GONE, tmp_path / "cut", fine_tune=7, listeners=[listener])
    past, lines = tiny_run.folder.read_log(), cut.model.folder.read_log()
    assert lines[: len(past)] == past
    assert [line["step"] for line in lines[len(past) :] if "loss" in line] == [13, 14, 15, 16, 17, 18, 19]
    assert [line["step"] for line in lines[len(past) :] if "n" in line] == [16, 19]
    rates = [line["learning_rate"] for line in lines[len(past) :] if "loss" in line]
    assert 0 < max(rates) <= 0.1 * tiny_run.config.training.learning_rate
    assert listener.told[-1] == 7
    manifest = cut.model.folder.read_manifest()
    assert (manifest["steps"], manifest["fine_tuned"], manifest["pruned_from"]) == (19, 7, tiny_run.weights_sha256)
    assert manifest["fine_tuned_at"] == pytest.approx(0.1 * tiny_run.config.training.learning_rate)
    assert cut.model.config == plain.model.config, "the settings are the parent's, and what was cut"
    assert cut.model.weights_sha256 != plain.model.weights_sha256
    assert cut.difference == plain.difference


def test_fine_tuning_is_the_same_each_time(tiny_run: Run, tmp_path: Path) -> None:
    before = logits(tiny_run)
    torch.manual_seed(1)
    again = [prune_run(tiny_run, GONE, tmp_path / name, fine_tune=6, learning_rate=1e-3).model for name in "ab"]
    assert again[0].weights_sha256 == again[1].weights_sha256
    assert again[0].folder.log_file.read_bytes() == again[1].folder.log_file.read_bytes()
    assert again[0].folder.read_manifest()["fine_tuned_at"] == 1e-3
    assert torch.equal(logits(tiny_run), before), "the parent is as it was"
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1)), "the random stream is the caller's"


def test_a_classifier_is_fine_tuned_too(tiny_sorter: Run, tmp_path: Path) -> None:
    cut = prune_run(tiny_sorter, ["L0H1"], tmp_path / "cut", fine_tune=5)
    assert [head.short for head in cut.model.model.heads] == ["L0H0"]
    plain = replace(tiny_sorter, model=cut_heads(tiny_sorter.model, ["L0H1"]))
    assert not torch.equal(logits(cut.model), logits(plain))


@pytest.mark.parametrize(
    ("settings", "explanation"),
    [
        ({"fine_tune": -1}, r"fine-tuning.steps = -1"),
        ({"fine_tune": 3, "learning_rate": -1.0}, r"fine-tuning.learning_rate = -1.0"),
        ({"learning_rate": 1e-3}, "a learning rate of 0.001 does nothing without fine-tuning"),
    ],
)
def test_impossible_fine_tuning_is_told(
    tiny_run: Run, tmp_path: Path, settings: dict[str, Any], explanation: str
) -> None:
    with pytest.raises((ConfigError, InputError), match=explanation):
        prune_run(tiny_run, GONE, tmp_path / "cut", **settings)
    assert not any(tmp_path.iterdir())


# --- failures leave nothing -----------------------------------------------------------------------------------------


def test_a_wrong_cut_is_not_written(tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "cut_heads", lambda model, heads: cut_heads(model, ["E0H0", *GONE[1:]]))
    with pytest.raises(CheckFailed, match=r"the model without these heads .* differ by .*: nothing was written"):
        prune_run(tiny_run, GONE, tmp_path / "cut")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("fine_tune", [0, 3])
def test_weights_that_read_otherwise_are_not_kept(
    tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fine_tune: int
) -> None:
    def damaged(model: Any, step: int) -> bytes:
        with torch.no_grad():
            other = deepcopy(model)
            other.to_logits.bias[0] += 1e-4
            return weights_of(other, step)

    monkeypatch.setattr(prune, "weights_of", damaged)
    with pytest.raises(CheckFailed, match="written and read again, but then its output differs"):
        prune_run(tiny_run, GONE, tmp_path / "cut", fine_tune=fine_tune)
    assert not any(tmp_path.iterdir())


def test_ctrl_c_while_fine_tuning_leaves_nothing(tiny_run: Run, tmp_path: Path) -> None:
    stop = Steps(4, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted, match=r"of the fine-tuning; nothing was written"):
        prune_run(tiny_run, GONE, tmp_path / "cut", fine_tune=100, listeners=[stop])
    assert not any(tmp_path.iterdir())
    assert prune_run(tiny_run, GONE, tmp_path / "cut", fine_tune=4).model.folder.is_finished


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_crash_leaves_nothing(tiny_run: Run, tmp_path: Path, error: type[BaseException]) -> None:
    def crash() -> None:
        raise error

    with pytest.raises(error):
        prune_run(tiny_run, GONE, tmp_path / "cut", fine_tune=5, listeners=[Steps(1, crash)])
    assert not any(tmp_path.iterdir())


def test_what_a_killed_process_left_is_no_run_and_in_nobodys_way(tiny_run: Run, tmp_path: Path) -> None:
    """A draft that was left once became a part of the next run of that name: two models mixed in one folder."""
    whole = prune_run(tiny_run, GONE, tmp_path / "whole", fine_tune=4).model
    left = Path(shutil.copytree(whole.folder.path, tmp_path / ".cut.draft"))
    (left / "manifest.json").unlink()
    (left / "tokenizer.json").write_text("of another model")
    before = {file.name: file.read_bytes() for file in left.iterdir()}
    assert not RunFolder(tmp_path / "cut").holds_a_run
    again = prune_run(tiny_run, GONE, tmp_path / "cut", fine_tune=4).model
    assert {file.name for file in tmp_path.iterdir()} == {"whole", "cut", ".cut.draft"}
    assert {file.name: file.read_bytes() for file in left.iterdir()} == before
    assert {file.name for file in again.folder.path.iterdir()} == {file.name for file in whole.folder.path.iterdir()}
    for file in ("config.json", "log.jsonl", "model.safetensors", "manifest.json"):
        assert (again.folder.path / file).read_bytes() == (whole.folder.path / file).read_bytes()


def test_of_two_who_cut_into_one_folder_one_wins(tiny_run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has written into this folder meanwhile"), staged(tmp_path / "cut"):
        first = prune_run(tiny_run, GONE, tmp_path / "cut").model
    assert load(tmp_path / "cut").weights_sha256 == first.weights_sha256
    assert [file.name for file in tmp_path.iterdir()] == ["cut"]


def test_a_folder_that_is_taken_stays_as_it_is(tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="already holds a finished run"):
        prune_run(tiny_run, GONE, tiny_run.folder.path)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".thesis").write_text("ten years of work")
    (tmp_path / "file").write_text("one more")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for path in (tmp_path / "hidden", tmp_path / "file", Path()):
        with pytest.raises(RunError):
            prune_run(tiny_run, GONE, path)
    assert (tmp_path / "hidden" / ".thesis").read_text() == "ten years of work"
    assert {file.name for file in tmp_path.iterdir()} == {"hidden", "file", "here"}
    prune_run(tiny_run, GONE, Path("empty/below"))
    Path("void").mkdir()
    assert prune_run(tiny_run, GONE, Path("void")).model.name == "void"
    assert load(tmp_path / "here" / "void").weights_sha256 == load("empty/below").weights_sha256


@pytest.mark.parametrize(
    ("heads", "explanation"),
    [
        ([], "no heads to cut out"),
        (["E7H0"], "no head 'encoder.7.self.0'"),
        (["L0H0"], "no head 'layer.0.self.0'"),
        (["E0"], "is not the name of a head"),
    ],
)
def test_heads_that_cannot_be_cut_are_told(tiny_run: Run, tmp_path: Path, heads: list[str], explanation: str) -> None:
    with pytest.raises(InputError, match=explanation):
        prune_run(tiny_run, heads, tmp_path / "cut")
    assert not any(tmp_path.iterdir())


# --- trained without them -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pruned", ["E0H1,X1H0,X1H1", "all"])
def test_a_model_is_trained_without_heads_from_the_start(tiny: dict[str, Any], tmp_path: Path, pruned: str) -> None:
    if pruned == "all":
        pruned = ",".join(f"{site}H{i}" for site in ("E0", "D0", "D1", "X0", "X1") for i in range(2))
    config = RunConfig.build("addition", **tiny, pruned=pruned)
    whole = train_run(config, tmp_path / "whole")
    assert len(whole.model.heads) == 10 - len(pruned.split(","))
    assert json.loads(whole.folder.config_file.read_text())["model"]["pruned"] == [*config.model.pruned]

    def crash() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train_run(config, tmp_path / "crashed", listeners=[Steps(8, crash)])
    assert RunFolder(tmp_path / "crashed").checkpoints()
    with pytest.raises(RunError, match=r"model.pruned: \(.* requested"):
        train_run(RunConfig.build("addition", **tiny), tmp_path / "crashed", resume=True)
    assert train_run(config, tmp_path / "crashed", resume=True).weights_sha256 == whole.weights_sha256
