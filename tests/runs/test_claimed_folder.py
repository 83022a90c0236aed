"""Results of two models of one name never share a folder."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headcount.errors import RunError
from headcount.runs.folder import claimed_folder


def test_the_first_has_the_short_name_and_keeps_it(in_tmp: Path) -> None:
    first = claimed_folder("mine", "/a/mine.py:Model", "1234")
    assert first == Path("runs/mine")
    marker = {"schema": 1, "name": "/a/mine.py:Model", "weights": "1234"}
    assert json.loads((first / "model.json").read_text()) == marker
    others = [claimed_folder("mine", *who) for who in (("/b/mine.py:Model", "1234"), ("/a/mine.py:Model", "99"))]
    assert len({first, *others}) == 3
    assert all(path.parent == Path("runs") and path.name.startswith("mine-") for path in others)
    assert claimed_folder("mine", "/a/mine.py:Model", "1234") == first
    assert claimed_folder("mine", "/b/mine.py:Model", "1234") == others[0]
    assert [path.name for path in first.iterdir()] == ["model.json"], "no drafts are left"


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"schema": 1}', "[" * 100_000])
def test_a_damaged_marker_is_somebody_elses(in_tmp: Path, damage: str) -> None:
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/model.json").write_text(damage)
    assert claimed_folder("mine", "here", "1").name.startswith("mine-")
    assert Path("runs/mine/model.json").read_text() == damage


def test_a_marker_that_is_no_file(in_tmp: Path) -> None:
    Path("runs/mine").mkdir(parents=True)
    os.mkfifo("runs/mine/model.json")
    assert claimed_folder("mine", "here", "1").name.startswith("mine-")


@pytest.mark.parametrize("file", ["config.json", "manifest.json", "headcount.json"])
def test_a_folder_that_holds_a_run_or_a_model(in_tmp: Path, file: str) -> None:
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine", file).write_text("{}")
    found = claimed_folder("mine", "here", "1")
    assert found.name.startswith("mine-")
    assert not Path("runs/mine/model.json").exists()
    (found / "model.json").write_text("{")
    with pytest.raises(RunError, match="hold results of other models"):
        claimed_folder("mine", "here", "1")


def test_of_many_at_once_one_has_the_short_name(in_tmp: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: claimed_folder("mine", f"/{i}/mine.py:Model", "1"), range(16)))
    assert len(set(found)) == 16
    assert found.count(Path("runs/mine")) == 1


def test_a_file_system_without_links(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: object, target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert claimed_folder("mine", "here", "1") == claimed_folder("mine", "here", "1") == Path("runs/mine")
    assert claimed_folder("mine", "there", "1") != Path("runs/mine")


def test_a_folder_with_something_in_it_is_not_adopted(in_tmp: Path) -> None:
    """The origin of files without a marker is unknown."""
    Path("runs/mine/results").mkdir(parents=True)
    Path("runs/mine/results/ablation.json").write_text("{}")
    assert claimed_folder("mine", "here", "1").name.startswith("mine-")
    assert [path.name for path in Path("runs/mine").iterdir()] == ["results"]


def test_an_origin_may_be_no_text(in_tmp: Path) -> None:
    claimed_folder("mine", "here", "1")
    assert claimed_folder("mine", "d\udcff/mine.py:Model", "1").name.startswith("mine-")
