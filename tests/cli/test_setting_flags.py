"""Settings as flags: each with its help, and heads by their names."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from headcount.cli import VERBS, _parser, main
from headcount.cli._command import add_settings
from headcount.config import field_names
from headcount.runs.config import RunConfig
from headcount.runs.run import load
from headcount.tasks import TASKS
from headcount.tasks.base import SequenceTask


@pytest.mark.parametrize("task", TASKS.names())
def test_every_setting_has_its_help(task: str) -> None:
    parser = argparse.ArgumentParser()
    add_settings(parser, RunConfig.sections(task), RunConfig.defaults(task))
    flags = {action.dest: action.help or "" for action in parser._actions}
    assert [name for name, text in flags.items() if not text[:1].isalpha()] == []
    kinds = {action.dest: action.metavar for action in parser._actions if action.nargs != 0}
    assert "X" not in kinds.values()
    assert (kinds["d_model"], kinds["dropout"], kinds["window"], kinds["norm"], kinds["pruned"]) == (
        "INT",
        "FLOAT",
        "INT|none",
        "{pre,post}",
        "NAME,...",
    )
    what = "difference of position ids" if task == "addition-long" else "distance"
    assert flags["window"].startswith(f"Largest {what} between a query and the keys that it sees")
    assert flags["pruned"] == "Names of the heads that are cut out, such as E0H1,X1H2."


def test_a_model_is_trained_without_the_heads_that_a_flag_names(
    tiny: dict[str, Any], in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [part for name, value in tiny.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["train", "addition", *flags, "--quiet", "--pruned", "E0H1,x1h0, X1H1"]) == 0
    left = " ".join(head.short for head in load("runs/addition-0").model.heads)
    assert left == "E0H0 D0H0 D0H1 D1H0 D1H1 X0H0 X0H1"
    assert main(["train", "addition", *flags, "--quiet", "-o", "runs/other", "--pruned", "E1H0"]) == 2
    assert "model.pruned = ('encoder.1.self.0',): no head encoder.1.self.0" in capsys.readouterr().err


@pytest.mark.parametrize("task", TASKS.names())
def test_no_setting_is_taken_for_the_negation_of_another(task: str) -> None:
    names = [name for part in RunConfig.sections(task).values() for name in field_names(part)]
    assert [name for name in names if name.startswith("no_")] == []


def test_the_start_token_can_be_left_out_from_the_shell(tiny: dict[str, Any], in_tmp: Path) -> None:
    flags = [part for name, value in tiny.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["train", "addition", *flags, "--quiet", "--no-start-token"]) == 0
    assert cast(SequenceTask, load("runs/addition-0").task).decoding_start.given == (0,)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        for sub in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield from parsers(sub)


def test_help_tells_types_and_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = list(parsers(_parser()))
    assert len(found) > len(VERBS.names())
    for parser in found:
        assert max(map(len, parser.format_help().splitlines())) <= 80, parser.prog
        for action in parser._actions:
            assert action.metavar not in ("X", "N"), (parser.prog, action.dest)
