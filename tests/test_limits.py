"""Requests that do not fit into memory are refused with an estimate before anything is allocated."""

from __future__ import annotations

from pathlib import Path

import pytest

from headcount import limits
from headcount.cli import main
from headcount.errors import InputError
from headcount.limits import available_memory, format_bytes, require_room
from headcount.runs.config import RunConfig

BILLION = "1000000000"


def test_room_is_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    there = available_memory()
    assert there is not None
    assert there > 2**20
    require_room(there // 2, "half of it")
    monkeypatch.setattr(limits, "available_memory", lambda: 1000)
    require_room(1000, "all of it")
    with pytest.raises(InputError, match="a whale would need about 2 kB of memory; this machine has 1 kB"):
        require_room(2001, "a whale", "take a fish")
    monkeypatch.setattr(limits, "available_memory", lambda: None)
    require_room(10**30, "on a system that does not say")


def test_bytes_in_words() -> None:
    words = {0: "0 bytes", 999: "999 bytes", 10**9: "1 GB", 10**23: "100,000 EB", 2**20_000: "10^24 bytes or more"}
    assert {n: format_bytes(n) for n in words} == words


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "addition", "--d-model", BILLION],
        ["train", "addition", "--d-ff", "9" * 400],
        ["train", "addition", "--batch-size", BILLION],
        ["train", "addition", "--n-positions", BILLION],
        ["train", "sortedness", "--n-train", "10000000000"],
        ["train", "sortedness", "--longest", "100000"],
        ["ablate", "sample:addition", "--n", BILLION],
        ["ablate", "sample:sortedness", "--lengths", "16", "--n", BILLION],
        ["prune", "sample:addition", "--n", "100000000000"],
        ["stretch", "sample:sortedness", "--n", BILLION],
    ],
)
def test_what_cannot_fit_is_told_with_its_estimate(
    arguments: list[str], in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "would need about" in (told := capsys.readouterr().err)
    assert "this machine has" in told
    assert not any(in_tmp.iterdir()), "before a folder is made"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["train", "addition", "--d-model=18446744073709551617"],
            "must divide d_model (18446744073709551617) without remainder; allowed are 1",
        ),
        (["train", "addition", "--n-encoder-layers", "10000000"], "should be less than or equal to 1024"),
        (["train", "sortedness", "--n-layers", "10000000"], "should be less than or equal to 1024"),
        (["prune", "sample:addition", "--orders", BILLION], "from 1 to 10,000"),
        (["positions", "sample:addition", "--n", BILLION], "must be from 3 to"),
    ],
)
def test_sizes_beyond_sense_are_refused_at_once(
    arguments: list[str], told: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert told in capsys.readouterr().err
    assert not any(in_tmp.iterdir())


def test_what_fits_is_not_refused() -> None:
    """Long sequences cost no square of their length: attention is computed in pieces."""
    config = RunConfig.build("sortedness", longest=1024, batch_size=128)
    assert 128 * config.model.row_bytes(1024) < 2 * 10**9
