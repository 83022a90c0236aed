"""A part is one file in its folder, and is found by itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headcount.errors import InputError
from headcount.registry import Registry


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
    assert f"{zoo.package}.ant" not in sys.modules
    zoo.get("ant")
    assert f"{zoo.package}.ant" in sys.modules
    assert f"{zoo.package}.red_panda" not in sys.modules


@pytest.mark.parametrize("name", ["", "red_panda", "base", "_shared", "__init__", "Ant", "gnu"])
def test_an_unknown_name_is_told_what_there_is(zoo: Registry, name: str) -> None:
    with pytest.raises(InputError) as caught:
        zoo.get(name)
    assert caught.value.what == f"no {name!r} among the {zoo.package}"
    assert caught.value.advice == ("there are: ant, red-panda",)


def test_the_kind_is_the_last_word_of_the_package() -> None:
    with pytest.raises(InputError, match="no 'rotten' among the encodings"):
        Registry("headcount.encodings").get("rotten")
