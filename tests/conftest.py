"""Tiny tasks and tiny trained runs that the tests share."""

from __future__ import annotations

# Fixtures import what they need when they need it: the process that hands tests to workers needs none of it.
import functools
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from made_once import made_once

if TYPE_CHECKING:
    from headcount.results import Result
    from headcount.runs.run import Run

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


PROVABLE: dict[str, Any] = {
    **{"n_values": 6, "shortest": 3, "longest": 6, "n_validation": 100, "n_test": 100},
    **{"d_model": 16, "d_ff": 32, "n_heads": 2, "seed": 1},
    **{"steps": 400, "learning_rate": 5e-3, "eval_every": 50, "until_proved": True, "device": "cpu"},
}
"""Settings for the preset `far` with which six numbers are proved after 100 to 300 steps, in seconds."""


SHAPED = ("encodings", "models", "test_every_classifier")
"""Rooms and files in whose tests every call is checked for the shapes of its tensors."""
PAINTED = ("figures", "describing", "rendering")
"""Rooms in whose tests figures have content."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=2, help="how often the kill test kills")
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


def take_interrupts() -> None:
    """Let Ctrl-C interrupt this process, and the processes that it starts, as it does in a terminal.

    A shell starts its background jobs (`make test &` in a script) with SIGINT ignored, and every child inherits that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _terminal_signals() -> None:
    take_interrupts()


@pytest.fixture(scope="session", autouse=True)
def _written_later() -> Iterator[None]:
    """Let the system write files when it likes: waiting for the disk protects from power cuts, which no test makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _checked_shapes(request: pytest.FixtureRequest) -> None:
    """Elsewhere the same functions are called, and checking them takes as long as small models do."""
    import jaxtyping

    is_shaped = request.path.parent.name in SHAPED or request.path.stem in SHAPED
    jaxtyping.config.update("jaxtyping_disable", not is_shaped)


@pytest.fixture(scope="module", autouse=True)
def _unpainted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the code of every figure, but on blank axes: matplotlib takes longer than most of what is tested.

    Pictures are real in the rooms that are about them, in commands that run in a process of their own, and where a test
    asks for `painted`.
    """
    from blank_figures import leave_figures_blank

    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name not in PAINTED:
            leave_figures_blank(patch)
        yield


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are real ones."""
    from blank_figures import paint_figures

    paint_figures(monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def _readable_results() -> Iterator[None]:
    """Every result that any test writes can be read: no check of stored results refuses what was measured."""
    from headcount.runs.folder import RunFolder

    write = RunFolder.write_result

    @functools.wraps(write)
    def write_and_read(folder: RunFolder, name: str, result: Result) -> Path:
        file = write(folder, name, result)
        folder.read_result(name, type(result))
        return file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "write_result", write_and_read)
        yield


@pytest.fixture(scope="session", autouse=True)
def _fewer_inputs() -> Iterator[None]:
    """Means over half a million tokens, and second looks at 40,000 examples, are for models that learned something."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headcount.data.from_task.REFERENCE", 2**12)
        patch.setattr("headcount.experiments.models.N_DECIDING", 400)
        yield


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals, labels and matches rest on few draws: for tests that are not about their size."""
    from little_work import work_little

    work_little(monkeypatch)


def _trained(task: str, settings: dict[str, Any], folder: Path) -> Run:
    from headcount.runs.config import RunConfig
    from headcount.runs.train import train_run

    return train_run(RunConfig.build(task, **settings), folder)


@pytest.fixture
def tiny() -> dict[str, Any]:
    return dict(TINY)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run, hardly trained."""
    return _trained("addition", TINY, tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture
def tiny_sorting() -> dict[str, Any]:
    return dict(TINY_SORTING)


@pytest.fixture(scope="session")
def tiny_sorter(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished sortedness run, hardly trained."""
    return _trained("sortedness", TINY_SORTING, tmp_path_factory.mktemp("runs") / "sorter")


@pytest.fixture(scope="session")
def provable() -> dict[str, Any]:
    """Settings for the preset `far` with which a sorter of six numbers is proved in seconds."""
    return dict(PROVABLE)


@pytest.fixture(scope="session")
def proved_sorter(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run that is right on every sequence of every length."""
    from headcount.runs.config import RunConfig
    from headcount.runs.run import load
    from headcount.runs.train import train_run

    config = RunConfig.build("sortedness", preset="far", **PROVABLE)
    return load(made_once(tmp_path_factory, "proved", lambda folder: train_run(config, folder)))


@pytest.fixture(scope="session")
def good() -> dict[str, Any]:
    """Settings that learn one-digit sums well, though perhaps not all."""
    longer = {"steps": 600, "batch_size": 32, "d_model": 32, "d_ff": 64, "learning_rate": 5e-3, "target": None}
    return TINY | longer | {"eval_every": 300, "checkpoint_every": 600}


@pytest.fixture(scope="session")
def good_copy(good: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Return a new copy of a finished run with these settings; it is trained once for all processes."""
    return lambda: made_once(tmp_path_factory, "good", lambda folder: _trained("addition", good, folder))


@pytest.fixture(scope="session")
def good_run(good_copy: Callable[[], Path]) -> Run:
    """A finished run with these settings."""
    from headcount.runs.run import load

    return load(good_copy())


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
