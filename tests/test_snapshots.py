"""Snapshots of what every verb measures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tools import snapshots

OLD = {
    "n": 9968,
    "drop": 0.745,
    "heads": [{"name": "X0H1", "rank": 1}],
    "summary": "X0H1 costs 74.5 points (n = 9,968).",
    "seconds": 3.0,
    "files": {"data": ["one.json"]},
}


def compare(folder: Path, new: dict[str, Any], *words: str) -> int:
    for name, data in (("before", OLD), ("after", new)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "ablate.json").write_text(json.dumps(data))
    return snapshots.main(["compare", str(folder / "before"), str(folder / "after"), *words])


@pytest.mark.parametrize(
    ("changed", "code", "counts"),
    [
        ({}, 0, [0, 0, 0]),
        ({"drop": 0.745 * (1 + 1e-10), "seconds": 4.0, "files": {}}, 0, [0, 0, 0]),
        ({"summary": "Removing X0H1 costs 74.5 points, n = 9968."}, 0, [0, 0, 1]),
        ({"summary": "X0H1 costs 74.6 points (n = 9,968)."}, 1, [0, 1, 0]),
        ({"summary": "X0H2 costs 74.5 points (n = 9,968)."}, 1, [0, 1, 0]),
        ({"drop": 0.745001}, 1, [1, 0, 0]),
        ({"drop": -0.745, "heads": []}, 1, [2, 1, 0]),
        ({"drop": None}, 1, [1, 0, 0]),
        ({"p": 0.5}, 1, [1, 0, 0]),
    ],
)
def test_numbers_may_not_change_and_words_may(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], code: int, counts: list[int]
) -> None:
    assert compare(tmp_path, {**OLD, **changed}) == code
    assert [int(n) for n in re.findall(r": (\d+) differ", capsys.readouterr().out)] == counts


def test_a_key_that_was_renamed_is_compared_by_its_new_name(tmp_path: Path) -> None:
    (tmp_path / "renames.json").write_text('{"drop": "loss"}')
    new = {"loss" if key == "drop" else key: value for key, value in OLD.items()}
    assert compare(tmp_path, new) == 1
    assert compare(tmp_path, new, "--renames", str(tmp_path / "renames.json")) == 0


def test_a_command_that_is_gone_is_a_difference(tmp_path: Path) -> None:
    assert compare(tmp_path, OLD) == 0
    (tmp_path / "after" / "ablate.json").unlink()
    assert snapshots.main(["compare", str(tmp_path / "before"), str(tmp_path / "after")]) == 1


def test_commands_have_files_of_their_own() -> None:
    lines = snapshots.COMMANDS.strip().splitlines()
    assert len({snapshots.slug(line) for line in lines}) == len(lines)


def test_two_snapshots_of_one_source_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        assert snapshots.main(["write", name, "--only", "predict sample:addition", "predict ADDER"]) == 0
    assert snapshots.main(["compare", "one", "two"]) == 0
    first = json.loads((tmp_path / "one" / "predict-sample-addition-374-814.json").read_text())
    assert (first["exit_code"], first["printed"]["right"]) == (0, "1188")
    assert len(list((tmp_path / "two").iterdir())) == 3
