"""A part is one file in a package or one entry in a table, and the registry finds it."""

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
from headcount.suggestions import OTHER_NAMES


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


@pytest.mark.parametrize("name", ["", "base", "_shared", "__init__", "gnu"])
def test_an_unknown_name_is_told_what_there_is(zoo: Registry, name: str) -> None:
    with pytest.raises(InputError) as caught:
        zoo.get(name)
    assert caught.value.what == f"no {name!r} among the {zoo.home}"
    assert caught.value.advice == ("there are: ant, red-panda",)


@pytest.mark.parametrize(("name", "meant"), [("red_panda", "red-panda"), ("Ant", "ant")])
def test_a_name_that_is_near_another_is_told_that_one(zoo: Registry, name: str, meant: str) -> None:
    with pytest.raises(InputError) as caught:
        zoo.get(name)
    assert caught.value.advice == (f"did you mean {meant!r}?",)


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
    with pytest.raises(InputError, match=r"the name 'rotary' is taken already"):
        Registry("headcount.encodings").names()


@pytest.mark.parametrize(
    ("home", "mistyped", "meant"),
    [
        ("headcount.encodings", "rope", "rotary"),
        ("headcount.encodings", "RoPE", "rotary"),
        ("headcount.encodings", "nope", "none"),
        ("headcount.encodings", "sin/cos", "sinusoidal"),
        ("headcount.encodings", "absolute", "learned"),
        ("headcount.encodings", "rotery", "rotary"),
        ("headcount.tasks", "addtion", "addition"),
        ("headcount.tasks", "sorting", "sortedness"),
        ("headcount.models.poolings", "average", "mean"),
        ("headcount.hooks.replacements", "zeros", "zero"),
        ("headcount.hooks.replacements", "average", "mean"),
        ("headcount.auditing.checks", "floors", "floor"),
        ("headcount.cli", "predit", "predict"),
        ("headcount.cli", "eval", "evaluate"),
    ],
)
def test_a_mistyped_name_gets_the_one_that_was_meant(home: str, mistyped: str, meant: str) -> None:
    with pytest.raises(InputError) as caught:
        Registry(home).get(mistyped)
    assert caught.value.advice == (f"did you mean {meant!r}?",)


def test_every_other_name_leads_to_a_part_and_is_none_itself() -> None:
    """A table that speaks of parts that are gone, or hides one that came, is wrong."""
    homes = ("encodings", "tasks", "models.poolings", "hooks.replacements", "cli")
    names = {name for home in homes for name in Registry(f"headcount.{home}").names()} | {
        "teacher-forced",
        "free-running",
    }
    assert set(OTHER_NAMES) <= names
    for name, others in OTHER_NAMES.items():
        here = [home for home in homes if name in Registry(f"headcount.{home}").names()]
        assert not any(other in Registry(f"headcount.{home}").names() for home in here for other in others)
