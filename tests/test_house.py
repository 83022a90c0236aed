"""The measuring tape of the house."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from tools import house

ONE = '''"""One."""

from __future__ import annotations

from two import (
    other,
)


def first() -> int:
    return _helper() + other()


def _helper() -> int:
    return 1


def _twice() -> int:
    return _twice() + _twice()
'''
TWO = "def other():\n    return sum(map(_part, [1, 2]))\n\n\ndef _part(number):\n    return number\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "one.py").write_text(ONE)
    (tmp_path / "two.py").write_text(TWO)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("one", "two"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_what_a_house_consists_of(package: Path) -> None:
    found = house.measure(package)
    assert (found.files, found.lines, found.median_lines, found.small_files) == (2, 25, 12, 2)
    assert found.import_share == pytest.approx(4 / 25)
    assert (found.helpers, found.called_once) == (3, 2)


def test_calls_between_files_are_counted_once_and_by_way_of_libraries(package: Path) -> None:
    first = importlib.import_module("one").first
    assert house.walk("two", lambda: [first(), first()], package) == house.Walk("two", 4, 2, 1)
    assert sys.getprofile() is None
    assert house.walk("nothing", lambda: None, package) == house.Walk("nothing", 0, 0, 0)


@pytest.mark.slow
def test_the_source_is_measured_as_it_stands() -> None:
    room = house.SOURCE / "analysis"
    assert house.measure(room).files == len(list(room.rglob("*.py"))) > 20
