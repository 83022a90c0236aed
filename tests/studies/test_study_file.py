"""A study is read whole, and every fault is in one error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headcount.cli.study import flag_fault
from headcount.errors import ConfigError, InputError
from headcount.runs.config import RunConfig
from headcount.runs.folder import digest
from headcount.studies.file import read_study, shipped, study_path
from headcount.studies.plan import flag_words, make_plan, settings_digest

WHOLE = """
title = "Two encodings"
task = "sortedness"
seeds = [3, 5]
snapshots = []
[settings]
steps = 20
[grid]
encoding = ["none", "rotary"]
pooling = ["max", "mean"]
[measure]
ablate = { n = 20, replacements = ["zero"] }
stretch = [{ lengths = [16] }, { lengths = [32], n = 5 }]
"""


def write(folder: Path, text: str, name: str = "mine") -> Path:
    file = folder / f"{name}.toml"
    file.write_text(text)
    return file


def test_a_grid_is_every_combination_with_every_seed(tmp_path: Path) -> None:
    plan = make_plan(read_study(write(tmp_path, WHOLE), flag_fault), tmp_path / "runs" / "mine")
    assert len(plan.runs) == 8
    assert [run.seed for run in plan.runs] == [3] * 4 + [5] * 4  # every variant with the first seed comes first
    assert plan.runs[0].name == "encoding=none,pooling=max,seed=3"
    run = plan.find("encoding=rotary,pooling=mean,seed=5")
    assert run.folder.parent == tmp_path / "runs" / "models"
    train, ablate, *stretches = (run.command(step) for step in run.steps)
    assert train[:2] == ["train", "sortedness"]
    assert {"--resume", "--encoding", "rotary", "--pooling", "mean", "--steps", "20"} <= set(train)
    assert ablate == ["ablate", str(run.folder), "--n", "20", "--replacements", "zero"]
    assert [command[2:] for command in stretches] == [["--lengths", "16"], ["--lengths", "32", "--n", "5"]]


def test_equal_settings_share_a_folder_and_others_do_not(tmp_path: Path) -> None:
    one = make_plan(read_study(write(tmp_path, WHOLE)), tmp_path / "one")
    other_text = WHOLE.replace("seeds = [3, 5]", "seeds = [5, 6]").replace('"rotary"', '"learned"')
    other = make_plan(read_study(write(tmp_path, other_text, "other")), tmp_path / "other")
    shared = {run.folder for run in one.runs} & {run.folder for run in other.runs}
    assert {run.name for run in one.runs if run.folder in shared} == {
        "encoding=none,pooling=max,seed=5",
        "encoding=none,pooling=mean,seed=5",
    }
    config = RunConfig.build("sortedness", steps=20, encoding="none", pooling="max")
    folder = one.find("encoding=none,pooling=max,seed=5").folder
    assert folder.name == f"sortedness-{settings_digest(config, 5)}"
    assert settings_digest(config, 5) == digest(replace(config, seed=5).to_json().encode())[:12]


def test_variants_and_parts_have_names(tmp_path: Path) -> None:
    text = """
    title = "Both"
    [[part]]
    name = "sums"
    task = "addition"
    [part.variants.plain]
    [part.variants.older]
    preset = "older"
    [[part]]
    name = "rows"
    task = "sortedness"
    """
    plan = make_plan(read_study(write(tmp_path, text)), tmp_path / "runs" / "both")
    assert [run.name for run in plan.runs] == [
        "part=sums,variant=plain,seed=0",
        "part=sums,variant=older,seed=0",
        "part=rows,seed=0",
    ]
    assert "older" in plan.runs[1].command(plan.runs[1].steps[0])


def test_all_faults_are_in_one_error(tmp_path: Path) -> None:
    text = """
    title = 3
    task = "sortedness"
    seds = 4
    seeds = 0
    [settings]
    encodin = "none"
    [grid]
    pooling = ["max", "max"]
    d_model = 64
    [measure]
    ablte = true
    ablate = { nn = 3 }
    stretch = { lengths = "long" }
    """
    with pytest.raises(ConfigError) as caught:
        read_study(write(tmp_path, text), flag_fault)
    message = str(caught.value)
    for part in (
        "title = 3: must be a text in quotes",
        "seds = 4: no such key; did you mean 'seeds'?",
        "seeds = 0: give a number of at least 1",
        "encodin = 'none': no such setting; did you mean 'encoding'?",
        "grid.pooling = ['max', 'max']: a value is listed twice",
        "grid.d_model = 64: give a list of values",
        "measure.ablte = True: no such measure; did you mean 'ablate'?",
        "has no option '--nn'",
        "'long' is not a list of lengths",
        "mine.toml",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = [", "is not TOML"),
        ("task = 'additon'", "did you mean 'addition'"),
        ("part = 3", r"begins with \[\[part\]\]"),
        ("task = 'addition'\n[[part]]\ntask = 'addition'", r"must be inside a \[\[part\]\]"),
        ("[[part]]\ntask = 'addition'\n[[part]]\ntask = 'sortedness'", "each part needs a name"),
        (
            "[[part]]\nname='a'\ntask = 'addition'\n[[part]]\nname='a'\ntask = 'sortedness'",
            "two parts of the study have this name",
        ),
        ("task = 'addition'\nseeds = [1, 1]", "a number is listed twice"),
        ("task = 'addition'\nseeds = [-1]", "a list of integers"),
        ("task = 'addition'\n[settings]\npreset = 'oldr'", "did you mean 'older'"),
        ("task = 'addition'\n[measure]\nablate = 3", "give the flags of this command"),
        ("task = 'addition'\nseeds = 100000\n[grid]\nsteps = [1, 2]", "too many training runs"),
        ("task = 'addition'\nvariants = 3", "must be a table"),
    ],
)
def test_a_fault_says_what_to_do(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises((ConfigError, InputError), match=message):
        read_study(write(tmp_path, text), flag_fault)


def test_an_unknown_study_is_not_found() -> None:
    with pytest.raises(InputError, match="there is no study"):
        study_path("no-such-study")


@pytest.mark.parametrize("name", [name for name in shipped() if name != "lab"])  # the lab has a plan of its own
def test_studies_that_come_with_headcount_are_sound(name: str, tmp_path: Path) -> None:
    plan = make_plan(read_study(name, flag_fault), tmp_path / name)
    assert len({run.name for run in plan.runs}) == len(plan.runs) > 1
    assert plan.study.title
    assert plan.study.question


def test_a_plan_of_ten_thousand_runs(tmp_path: Path) -> None:
    text = "title = 'many'\ntask = 'sortedness'\nseeds = 2500\n[grid]\nencoding = ['none', 'rotary', 't5', 'alibi']\n"
    plan = make_plan(read_study(write(tmp_path, text)), tmp_path / "many")
    assert len({run.folder for run in plan.runs}) == len(plan.runs) == 10_000


def test_flags_are_written_as_on_the_command_line() -> None:
    flags = {"until_proved": False, "pooling": "max", "window": "none", "lengths": (1, 2), "learning_rate": 1e-3}
    words = [
        "--no-until-proved",
        "--pooling",
        "max",
        "--window",
        "none",
        "--lengths",
        "1,2",
        "--learning-rate",
        "0.001",
    ]
    assert list(flag_words(flags)) == words
