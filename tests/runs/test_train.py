"""A run folder under fire: killed, interrupted, full disk, damaged files, wrong folders."""

import errno
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from crashing import Crash, CrashAt

from headcount.errors import CheckpointError, HeadcountError, Interrupted, RunError
from headcount.runs import train
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder
from headcount.runs.run import load
from headcount.runs.train import Timings, train_run
from headcount.training import loop
from headcount.training.loop import fit

pytestmark = pytest.mark.slow  # together they take over 5 s


def files(folder: Path):
    """What is kept; each try adds events for TensorBoard, which are a copy of the log, and takes its own time."""
    kept = (p for p in folder.rglob("*") if p.is_file() and p.parent.name != "tensorboard" and p.stem != "timings")
    return {p.relative_to(folder): p.read_bytes() for p in kept}


class Clock:
    """A listener by whose clock every step of training takes one second, and nothing else takes any time."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr("headcount.runs.train.time", SimpleNamespace(monotonic=lambda: self.now))

    def on_steps(self, last_step, losses, rates):
        self.now += len(losses)

    def on_evaluation(self, step, scores): ...


DRIVER = """
import json, sys
import torch
from pathlib import Path
from headcount.runs.config import RunConfig
from headcount.runs.train import train_run
print("ready", flush=True)
train_run(RunConfig.build("addition", **json.loads(sys.argv[2])), Path(sys.argv[1]), resume=True)
"""


def drive(out, settings, timeout=None, begun=lambda: True):
    """Train in a process of its own, or SIGKILL it `timeout` seconds after it has begun; returns (whole?, seconds)."""
    arguments = [sys.executable, "-c", DRIVER, str(out), json.dumps(settings)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        started = time.monotonic()
        while not begun() and process.poll() is None:
            time.sleep(0.001)
        try:
            assert process.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            process.kill()
        return process.wait() == 0, time.monotonic() - started


@pytest.mark.slow
def test_killed_again_and_again_it_ends_in_the_same_bytes(tiny, tmp_path, pytestconfig):
    """SIGKILL at random moments, resumed each time. `pytest --kills 20` for the long version.

    What nobody kills is trained in this process, for another one takes seconds to begin.
    """
    kills, rng = pytestconfig.getoption("--kills"), random.Random(0)
    settings = tiny | {"steps": 60 * kills, "eval_every": 40, "checkpoint_every": 10, "target": None}
    settings |= {"averaging": 0.9, "hard_share": 0.25, "dropout": 0.1, "n_decoder_layers": 1}
    config = RunConfig.build("addition", **settings)
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    started = time.monotonic()
    train_run(config, whole.path)
    seconds = time.monotonic() - started
    finished, _ = drive(killed.path, settings, timeout=0, begun=killed.checkpoints)
    assert not finished, "it was killed as soon as it had a checkpoint"
    for _ in range(kills - 1):
        drive(killed.path, settings, timeout=rng.uniform(0, 2 * seconds / kills))
    train_run(config, killed.path, resume=True)
    for file in ("model.safetensors", "log.jsonl", "config.json", "manifest.json"):
        assert (killed.path / file).read_bytes() == (whole.path / file).read_bytes(), file
    assert not killed.checkpoints()


def test_the_newest_two_checkpoints_are_kept(tmp_path):
    folder = RunFolder(tmp_path)
    for step, data in enumerate((b"first", b"second", b"third", b"fourth")):
        folder.write_checkpoint(step, data)
    assert [file.read_bytes() for file in folder.checkpoints()] == [b"third", b"fourth"]


def test_a_crash_in_the_middle_resumes_to_the_same_weights_and_log(tiny, tmp_path, monkeypatch):
    config, clock = RunConfig.build("addition", **tiny), Clock(monkeypatch)
    whole = train_run(config, tmp_path / "whole", listeners=[clock])
    with pytest.raises(Crash):
        train_run(config, tmp_path / "crashed", listeners=[clock, CrashAt(8)])
    assert RunFolder(tmp_path / "crashed").checkpoints()
    crashed = train_run(config, tmp_path / "crashed", resume=True, listeners=[clock])
    assert crashed.weights_sha256 == whole.weights_sha256
    assert crashed.folder.log_file.read_bytes() == whole.folder.log_file.read_bytes()
    evaluations = [line for line in whole.folder.read_log() if "n" in line]
    assert all({"validation_loss", "training_teacher_forced", "training_n"} <= line.keys() for line in evaluations)
    for run in (whole, crashed):
        timings = [(line["step"], line["seconds"]) for line in run.folder.read_timings()]
        assert timings == [(4, 4.0), (8, 8.0), (12, 12.0)], "what was lost in the crash does not count"
        assert "timings.jsonl" not in run.folder.read_manifest()["files"]


def test_seconds_are_summed_over_resumes(tmp_path, monkeypatch):
    folder, clock = RunFolder(tmp_path), Clock(monkeypatch)
    folder.timings_file.write_text('{"step": 4, "seconds": 9.5}\n{"step": 8, "seconds": 19.5}\n')
    going_on = Timings(folder, 6, 12.0)
    clock.now += 2.25
    going_on.on_evaluation(8, None)
    before, after = folder.read_timings()
    assert before == {"step": 4, "seconds": 9.5}
    assert after == {"step": 8, "seconds": 14.25}, "its first step 8 was lost in the crash"
    Timings(folder).on_evaluation(4, None)
    assert folder.read_timings() == [{"step": 4, "seconds": 0.0}], "a training that starts anew"
    for damage in ("", "{", '{"step": 1}', "[]", "null"):
        folder.timings_file.write_text(damage)
        assert folder.read_timings() == []


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"encoding": "learned", "random_positions": 30, "n_positions": 30, "dropout": 0.2, "n_layers": 2},
        {"n_train": 30, "hard_share": 0.5, "pooling": "attention", "softmax": "log-length"},
    ],
    ids=["plain", "random", "fixed"],
)
@pytest.mark.slow
def test_a_classifier_resumes_after_a_crash_to_the_same_bytes(tiny_sorting, tmp_path, monkeypatch, changes):
    monkeypatch.setattr(loop, "SEARCH_FROM", 0.0)
    config = RunConfig.build("sortedness", **tiny_sorting | changes)
    whole = train_run(config, tmp_path / "whole")
    with pytest.raises(Crash):
        train_run(config, tmp_path / "crashed", listeners=[CrashAt(8)])
    assert RunFolder(tmp_path / "crashed").checkpoints()
    crashed = train_run(config, tmp_path / "crashed", resume=True)
    assert files(crashed.folder.path) == files(whole.folder.path)
    assert [line["step"] for line in whole.folder.read_log() if "accuracy" in line] == [4, 8, 12]
    other = train_run(RunConfig.build("sortedness", base=config, seed=1), tmp_path / "other")
    assert other.weights_sha256 != whole.weights_sha256


def test_what_is_kept_is_the_average(tiny, tmp_path, monkeypatch):
    states = []

    def record(state, *args, **more):
        states.append(state)
        return fit(state, *args, **more)

    monkeypatch.setattr(train, "fit", record)
    run = train_run(RunConfig.build("addition", **tiny | {"averaging": 0.9}), tmp_path / "run")
    (state,) = states
    kept = safetensors.torch.load_file(run.folder.weights_file)
    assert all(torch.equal(kept[name], tensor) for name, tensor in state.average.items())
    assert any(not torch.equal(kept[name], tensor) for name, tensor in state.model.state_dict().items())


def test_a_kill_between_the_first_two_files(tiny, tmp_path):
    config = RunConfig.build("addition", **tiny)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(config.to_json())
    assert (
        train_run(config, tmp_path / "run", resume=True).weights_sha256
        == train_run(config, tmp_path / "whole").weights_sha256
    )


def test_a_kill_after_the_manifest_leaves_no_checkpoints(tiny_run, tmp_path):
    copy = RunFolder(Path(shutil.copytree(tiny_run.folder.path, tmp_path / "copy")))
    copy.write_checkpoint(9, b"left over")
    train_run(tiny_run.config, copy.path, resume=True)
    assert not copy.checkpoints()


def test_a_device_that_is_gone_is_told(tiny, tmp_path):
    config = RunConfig.build("addition", **tiny)
    with pytest.raises(Crash):
        train_run(config, tmp_path / "run", listeners=[CrashAt(8)])
    RunFolder(tmp_path / "run").write_json(tmp_path / "run" / "environment.json", {"device": "cuda:7"})
    with pytest.raises(RunError, match="no device 'cuda:7'"):
        train_run(config, tmp_path / "run", resume=True)


@pytest.mark.parametrize("name", ["config.json", "manifest.json"])
@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"3", b"\xff\xfe", b'{"schema": 1}'])
def test_damaged_descriptions_are_told(tiny_run, tmp_path, name, text):
    copy = Path(shutil.copytree(tiny_run.folder.path, tmp_path / "copy"))
    (copy / name).write_bytes(text)
    with pytest.raises(HeadcountError):
        load(copy)


def test_an_edited_config_is_noticed(tiny_run, tmp_path):
    copy = Path(shutil.copytree(tiny_run.folder.path, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    config["task"]["least_first"] = True
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="differs from the file that this run wrote"):
        load(copy)


def test_resume_before_anything_was_saved_starts_anew(tiny, tmp_path):
    config = RunConfig.build("addition", **tiny)
    whole = train_run(config, tmp_path / "whole", resume=True)
    with pytest.raises(Crash):
        train_run(config, tmp_path / "early", listeners=[CrashAt(1)])
    assert not RunFolder(tmp_path / "early").checkpoints()
    assert train_run(config, tmp_path / "early", resume=True).weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_how_to_go_on(tiny, tmp_path, number):
    config = RunConfig.build("addition", **tiny)

    class Interrupter(CrashAt):
        def on_steps(self, last_step, losses, rates):
            if last_step == self.step:
                os.kill(os.getpid(), number)

    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Interrupted, match=r"--resume") as stopped:
        train_run(config, tmp_path / "run", listeners=[Interrupter(3)])
    assert str(tmp_path / "run") in str(stopped.value)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    again = train_run(config, tmp_path / "run", resume=True)
    assert again.weights_sha256 == train_run(config, tmp_path / "whole").weights_sha256


BACKGROUND = """
import signal, sys
sys.path[:0] = sys.argv[1:]
import conftest
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
conftest.take_interrupts()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


def test_ctrl_c_reaches_tests_in_a_background_job(request: pytest.FixtureRequest) -> None:
    """A shell starts background jobs with SIGINT ignored; tests/conftest.py undoes this before the first test."""
    assert "_terminal_signals" in request.fixturenames
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", BACKGROUND, str(tests), str(tests / "support")]
    ignore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    job = subprocess.run(command, capture_output=True, text=True, preexec_fn=ignore, check=False)
    assert job.returncode == 0, job.stderr


def test_a_finished_run_is_never_overwritten(tiny_run, tiny):
    before = files(tiny_run.folder.path)
    with pytest.raises(RunError, match="already holds a finished run"):
        train_run(RunConfig.build("addition", **tiny), tiny_run.folder.path)
    assert train_run(tiny_run.config, tiny_run.folder.path, resume=True).weights_sha256 == tiny_run.weights_sha256
    assert files(tiny_run.folder.path) == before


def test_an_unfinished_run_and_a_strange_folder_are_not_overwritten(tiny, tmp_path):
    config = RunConfig.build("addition", **tiny)
    with pytest.raises(Crash):
        train_run(config, tmp_path / "run", listeners=[CrashAt(8)])
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "thesis.txt").write_text("ten years of work")
    before = files(tmp_path)
    with pytest.raises(RunError, match=r"unfinished(.|\n)*--resume"):
        train_run(config, tmp_path / "run")
    with pytest.raises(RunError, match=r"not empty(.|\n)*-o"):
        train_run(config, tmp_path / "strange")
    with pytest.raises(HeadcountError, match=r"other settings(.|\n)*training.steps: 12 here, 13 requested"):
        train_run(RunConfig.build("addition", **tiny | {"steps": 13}), tmp_path / "run", resume=True)
    assert files(tmp_path) == before


def test_two_trainings_cannot_share_a_folder(tiny, tmp_path):
    with RunFolder(tmp_path / "run").locked(), pytest.raises(RunError, match="another process is training"):
        train_run(RunConfig.build("addition", **tiny), tmp_path / "run")


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:-9] + b"\xff" + data[-8:]])
def test_a_damaged_checkpoint_is_told_and_nothing_lost(tiny, tmp_path, damage):
    config = RunConfig.build("addition", **tiny)
    with pytest.raises(Crash):
        train_run(config, tmp_path / "run", listeners=[CrashAt(10)])
    older, newest = RunFolder(tmp_path / "run").checkpoints()
    newest.write_bytes(damage(newest.read_bytes()))
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match=f"damaged or cut short(.|\\n)*delete(.|\\n)*{older.name}"):
        train_run(config, tmp_path / "run", resume=True)
    assert files(tmp_path) == before
    newest.unlink()
    assert (
        train_run(config, tmp_path / "run", resume=True).weights_sha256
        == train_run(config, tmp_path / "whole").weights_sha256
    )


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "permission denied")],
)
def test_a_full_or_closed_disk_is_told_and_nothing_lost(tiny, tmp_path, monkeypatch, number, advice):
    config = RunConfig.build("addition", **tiny)
    with pytest.raises(Crash):
        train_run(config, tmp_path / "run", listeners=[CrashAt(8)])
    before = files(tmp_path)

    def refuse(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunError, match=advice):
        train_run(config, tmp_path / "run", resume=True)
    monkeypatch.undo()
    kept = {path: data for path, data in files(tmp_path).items() if path.suffix != ".jsonl"}
    assert kept == {path: data for path, data in before.items() if path.suffix != ".jsonl"}
    assert (
        train_run(config, tmp_path / "run", resume=True).weights_sha256
        == train_run(config, tmp_path / "whole").weights_sha256
    )


def test_a_folder_that_cannot_be_made(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="choose another"):
        train_run(RunConfig.build("addition", **tiny), tmp_path / "file" / "run")


def test_load_refuses_what_is_not_whole(tiny, tiny_run, tmp_path):
    with pytest.raises(RunError, match="no run in"):
        load(tmp_path / "nothing")
    with pytest.raises(Crash):
        train_run(RunConfig.build("addition", **tiny), tmp_path / "half", listeners=[CrashAt(8)])
    with pytest.raises(RunError, match=r"not finished(.|\n)*--resume"):
        load(tmp_path / "half")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, data in files(tiny_run.folder.path).items():
        if name.parent == Path():
            (copy / name).write_bytes(data)
    assert load(copy).weights_sha256 == tiny_run.weights_sha256
    (copy / "model.safetensors").write_bytes((copy / "model.safetensors").read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(RunError, match="differs from the file that this run wrote"):
        load(copy)


def test_the_folder_says_all_that_is_needed(tiny_run, tiny):
    folder = tiny_run.folder
    assert RunConfig.from_dict(json.loads(folder.config_file.read_text())) == RunConfig.build("addition", **tiny)
    assert folder.read_environment()["device"] == "cpu"
    log = folder.read_log()
    assert [line["step"] for line in log if "loss" in line] == list(range(1, 13))
    assert [line["step"] for line in log if "free_running" in line] == [4, 8, 12]
    assert set(safetensors.torch.load_file(folder.weights_file)) == set(tiny_run.model.state_dict())
    assert list((folder.path / "tensorboard").glob("events.*"))
