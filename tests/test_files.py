"""Files are written atomically, never through links, and only regular files are read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

import pytest

from headcount.errors import RunError
from headcount.files import read_bytes, read_json, require_writable, staged_folder, write_atomically
from headcount.runs.folder import RunFolder
from headcount.runs.train import Log


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    file = tmp_path / "precious"
    file.write_text("ten years of work")
    return file


def test_a_draft_has_a_name_that_nobody_could_have_planted(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setattr(secrets, "token_hex", lambda n: "known")
    (folder / ".result.json.known.draft").symlink_to(precious)
    with pytest.raises(RunError, match="could not write"):
        write_atomically(folder / "result.json", b"{}")
    assert precious.read_text() == "ten years of work"
    assert (folder / ".result.json.known.draft").is_symlink(), "it was not ours to remove"


@pytest.mark.parametrize("name", [".result.json.draft", "result.json"])
def test_links_under_the_names_of_before_lead_nowhere(tmp_path: Path, precious: Path, name: str) -> None:
    (tmp_path / name).symlink_to(precious)
    write_atomically(tmp_path / "result.json", b"{}")
    assert precious.read_text() == "ten years of work"
    assert (tmp_path / "result.json").read_bytes() == b"{}"
    assert not (tmp_path / "result.json").is_symlink()


def test_a_failed_write_leaves_no_draft_and_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "result.json", b"before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="could not write"):
        write_atomically(tmp_path / "result.json", b"after")
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]
    assert (tmp_path / "result.json").read_bytes() == b"before"


def test_files_are_as_open_to_others_as_the_user_has_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "result.json", b"{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "result.json").stat().st_mode) == 0o644


@pytest.mark.parametrize("name", [".lock", "log.jsonl"])
def test_neither_lock_nor_log_is_opened_through_a_link(tmp_path: Path, precious: Path, name: str) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    for each in {name, "log.jsonl"}:
        (folder.path / each).symlink_to(precious)
    opening = folder.locked() if name == ".lock" else Log(folder)
    with pytest.raises(RunError, match="the path is a link"), opening:
        pass
    with pytest.raises(RunError, match="the path is a link"):
        folder.cut_log(3)
    assert precious.read_text() == "ten years of work"


def test_a_lock_keeps_what_is_in_its_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / ".lock").write_text("a note of somebody")
    with folder.locked():
        pass
    assert (tmp_path / ".lock").read_text() == "a note of somebody"


def test_looking_whether_a_folder_can_be_written_to_removes_nothing(tmp_path: Path, precious: Path) -> None:
    (tmp_path / ".probe").symlink_to(precious)
    require_writable(tmp_path)
    assert precious.read_text() == "ten years of work"
    assert {file.name for file in tmp_path.iterdir()} == {".probe", "precious"}


@pytest.mark.parametrize("fails", [True, False])
def test_a_folder_that_looks_like_a_draft_is_left_alone(tmp_path: Path, fails: bool) -> None:
    mine = tmp_path / ".small.draft"
    mine.mkdir()
    (mine / "thesis").write_text("ten years of work")
    try:
        with staged_folder(tmp_path / "small") as draft:
            (draft / "model").write_text("weights")
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert [file.name for file in mine.iterdir()] == ["thesis"]
    assert {file.name for file in tmp_path.iterdir()} == {".small.draft"} | (set() if fails else {"small"})


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name, what in (("pipe", "a pipe"), ("folder", "a folder"), ("zeros", "a device")):
        with pytest.raises(RunError, match=f"is {what}, not a file"):
            read_bytes(tmp_path / name)


def test_reading_has_a_bound(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 11)
    with pytest.raises(RunError, match="too large: 11 bytes"):
        read_bytes(tmp_path / "large", most=10)
    (tmp_path / "deep.json").write_bytes(b"[" * 200_000)
    with pytest.raises(RunError, match="nested too deeply"):
        read_json(tmp_path / "deep.json")
