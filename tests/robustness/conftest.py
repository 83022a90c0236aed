"""What the attacks share: tiny models to attack, a process to run command lines in, and their counts at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parents[1]

import pytest  # noqa: E402
from stock import fill  # noqa: E402
from worker import Worker  # noqa: E402

from headcount.runs.run import Run  # noqa: E402

COUNTS: dict[str, Counter[str]] = {}


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory, tiny_run: Run, tiny_sorter: Run) -> Path:
    """A folder with one tiny model of every kind; to be copied, never written to."""
    return fill(tmp_path_factory.mktemp("robustness") / "stock", tiny_run, tiny_sorter)


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    with Worker() as made:
        yield made


@pytest.fixture
def long(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--long"))


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("--attack-seed"))


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """What a test counts is told at the end, if the form was the long one."""
    counter: Counter[str] = Counter()
    yield counter
    COUNTS[request.node.name] = counter


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--long"):
        for name, counter in COUNTS.items():
            told = ", ".join(f"{what} {n:,}" for what, n in sorted(counter.items()))
            terminalreporter.write_line(f"{name}: {told}")
