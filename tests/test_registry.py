"""A part is one file in its folder or one entry in a table, and is found by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headcount import registry
from headcount.errors import InputError
from headcount.registry import Registry
from headcount.runs.config import RunConfig
from headcount.runs.run import build


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A package with two parts and two modules that are none. Named after its folder: the registry remembers names."""
    package = tmp_path / f"zoo_{abs(hash(tmp_path))}"
    package.mkdir()
    files = {"__init__": "", "base": "", "_shared": "", "red_panda": "PART = 'panda'", "ant": "PART = 'ant'"}
    for name, code in files.items():
        (package / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return Registry(package.name)


def test_parts_are_the_public_modules_in_order(zoo: Registry) -> None:
    assert zoo.names() == ("ant", "red-panda")


def test_a_part_is_what_the_module_calls_part(zoo: Registry) -> None:
    assert [zoo.get(name) for name in zoo.names()] == ["ant", "panda"]


def test_naming_parts_imports_none_and_getting_one_imports_one(zoo: Registry) -> None:
    zoo.names()
    assert f"{zoo.home}.ant" not in sys.modules
    zoo.get("ant")
    assert f"{zoo.home}.ant" in sys.modules
    assert f"{zoo.home}.red_panda" not in sys.modules


@pytest.mark.parametrize("name", ["", "red_panda", "base", "_shared", "__init__", "Ant", "gnu"])
def test_an_unknown_name_is_told_what_there_is(zoo: Registry, name: str) -> None:
    with pytest.raises(InputError) as caught:
        zoo.get(name)
    assert caught.value.what == f"no {name!r} among the {zoo.home}"
    assert caught.value.advice == ("there are: ant, red-panda",)


def test_the_kind_is_the_last_word_of_the_package() -> None:
    with pytest.raises(InputError, match="no 'rotten' among the encodings"):
        Registry("headcount.encodings").get("rotten")


def test_a_table_in_a_module_is_a_registry_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"farm_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text("PARTS: dict[str, str] = {'ox': 'moo', 'hen': 'cluck'}\n")
    monkeypatch.syspath_prepend(tmp_path)
    farm = Registry(name)
    assert farm.names() == ("ox", "hen")  # in the order of the table
    assert name not in sys.modules
    assert [farm.get(each) for each in farm.names()] == ["moo", "cluck"]


@pytest.fixture
def foreign_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Installs a package that adds a part, by name, to the encodings."""

    def install(name: str, code: str) -> None:
        package = f"elsewhere_{abs(hash(tmp_path))}"
        (tmp_path / f"{package}.py").write_text(code)
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[headcount.encodings]\n{name} = {package}:Spiral\n")
        registry._loaders.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield install
    registry._loaders.cache_clear()


SPIRAL = """
from headcount.encodings.base import Encoding

class Spiral(Encoding):
    hard_codes = ""
"""


def test_another_package_adds_a_part_by_an_entry_point(foreign_part: Callable[[str, str], None]) -> None:
    foreign_part("spiral", SPIRAL)
    assert "spiral" in Registry("headcount.encodings").names()
    config = RunConfig.build("addition", encoding="spiral", d_model=16, n_heads=2, d_ff=16)
    _, model = build(config)
    assert type(model.source_positions).__name__ == "Spiral"


def test_a_part_of_a_name_that_is_taken_is_an_error(foreign_part: Callable[[str, str], None]) -> None:
    foreign_part("rotary", SPIRAL)
    with pytest.raises(InputError, match="two parts are called 'rotary'"):
        Registry("headcount.encodings").names()
