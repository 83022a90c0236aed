"""Tiny tasks and tiny trained runs that the tests share."""

from __future__ import annotations

import functools
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from blank_figures import leave_figures_blank
from made_once import made_once

from headcount.results import Result
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder
from headcount.runs.run import Run, load
from headcount.runs.train import train_run

# Some virtual machines say that they have AMX, and its first instruction kills the process: what is tested are products
# of 16 bits, not how they are computed. oneDNN reads this before its first product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

TINY: dict[str, Any] = {
    "digits": 1,
    "n_validation": 10,
    "n_test": 10,
    "d_model": 16,
    "n_heads": 2,
    "n_encoder_layers": 1,
    "n_decoder_layers": 2,
    "d_ff": 32,
    "encoding": "learned",
    "steps": 12,
    "batch_size": 8,
    "eval_every": 4,
    "checkpoint_every": 3,
    "threads": 1,
    "device": "cpu",
}
"""One-digit sums on a model of a few thousand weights: a step takes a millisecond or two."""
TINY_SORTING: dict[str, Any] = {
    "n_values": 20,
    "shortest": 3,
    "longest": 6,
    "n_validation": 20,
    "n_test": 20,
    "d_model": 8,
    "n_heads": 2,
    "n_layers": 1,
    "d_ff": 16,
    "steps": 12,
    "batch_size": 8,
    "eval_every": 4,
    "checkpoint_every": 3,
    "threads": 1,
    "device": "cpu",
}
"""Short sequences on a model of a thousand weights."""


SHAPED = ("encodings", "models", "training")
"""Rooms in whose tests every call is checked for the shapes of its tensors."""
PAINTED = ("figures", "describing", "rendering")
"""Rooms in whose tests figures have content."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=3, help="how often the kill test kills")
    parser.addoption(
        "--long", action="store_true", help="whole products of settings, and robustness in its long form: minutes"
    )
    parser.addoption("--attack-seed", type=int, default=0, help="what tests/robustness draws its attacks from")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For quick runs, a file that marks all its tests as slow need not be imported to leave them out."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return bool(re.search(r"^pytestmark = \[?pytest\.mark\.slow\b", collection_path.read_text("utf-8"), re.M)) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what waits for a training as slow, and leave the rest of each product of settings to `--long`."""
    for item in items:
        if "good_run" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session", autouse=True)
def _terminal_signals() -> None:
    """Let Ctrl-C interrupt the tests, and the processes that they start, as it does in a terminal.

    A shell starts its background jobs (`make test &` in a script) with SIGINT ignored, and every child inherits that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _checked_shapes(request: pytest.FixtureRequest) -> None:
    """Elsewhere the same functions are called, and checking them takes as long as small models do."""
    jaxtyping.config.update("jaxtyping_disable", request.path.parent.name not in SHAPED)


@pytest.fixture(autouse=True)
def _unpainted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the code of every figure, but on blank axes: matplotlib takes longer than most of what is tested.

    Pictures are real in the rooms that are about them, in commands that run in a process of their own, and where a test
    asks for `painted`.
    """
    if "painted" not in request.fixturenames and request.path.parent.name not in PAINTED:
        leave_figures_blank(monkeypatch)
        monkeypatch.setattr("headcount.api.saving.png", lambda figure: b"a picture written by headcount")
        monkeypatch.setattr("headcount.rendering.page.inline_svg", lambda *_: "<svg></svg>")
        monkeypatch.setattr("headcount.rendering.markdown.png", lambda figure: b"a picture written by headcount")
        monkeypatch.setattr("headcount.rendering.markdown.svg", lambda figure: "<svg></svg>")
        monkeypatch.setattr("headcount.describing.exercise.png", lambda figure: b"a picture written by headcount")


@pytest.fixture
def painted() -> None:
    """Pictures are real ones."""


@pytest.fixture(autouse=True)
def _readable_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every result that any test writes can be read: no check of stored results refuses what was measured."""
    write = RunFolder.write_result

    @functools.wraps(write)
    def write_and_read(folder: RunFolder, name: str, result: Result) -> Path:
        file = write(folder, name, result)
        folder.read_result(name, type(result))
        return file

    monkeypatch.setattr(RunFolder, "write_result", write_and_read)


@pytest.fixture(autouse=True)
def _fewer_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means over half a million tokens, and second looks at 40,000 examples, are for models that learned something."""
    monkeypatch.setattr("headcount.data.from_task.REFERENCE", 2**12)
    monkeypatch.setattr("headcount.experiments.models.N_DECIDING", 400)


@pytest.fixture
def tiny() -> dict[str, Any]:
    return dict(TINY)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run, hardly trained."""
    return train_run(RunConfig.build("addition", **TINY), tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture
def tiny_sorting() -> dict[str, Any]:
    return dict(TINY_SORTING)


@pytest.fixture(scope="session")
def tiny_sorter(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished sortedness run, hardly trained."""
    return train_run(RunConfig.build("sortedness", **TINY_SORTING), tmp_path_factory.mktemp("runs") / "sorter")


@pytest.fixture(scope="session")
def good() -> dict[str, Any]:
    """Settings that learn one-digit sums well, though perhaps not all."""
    longer = {"steps": 600, "batch_size": 32, "d_model": 32, "d_ff": 64, "learning_rate": 5e-3, "target": None}
    return TINY | longer | {"eval_every": 300, "checkpoint_every": 600}


@pytest.fixture(scope="session")
def good_copy(good: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Return a new copy of a finished run with these settings; it is trained once for all processes."""
    config = RunConfig.build("addition", **good)
    return lambda: made_once(tmp_path_factory, "good", lambda folder: train_run(config, folder))


@pytest.fixture(scope="session")
def good_run(good_copy: Callable[[], Path]) -> Run:
    """A finished run with these settings."""
    return load(good_copy())


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
