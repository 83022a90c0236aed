"""Every flag of every verb changes what it names; a flag without a case here fails."""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import headcount.api
import headcount.exercise.lab
import headcount.external.scaffold
from headcount.cli import _parser, main
from headcount.cli._command import given_settings
from headcount.config import NameIn
from headcount.errors import ConfigError, HeadcountError
from headcount.experiments.models import OpenModel
from headcount.runs.config import RunConfig
from headcount.runs.run import Run
from headcount.tasks import TASKS

# --- settings of train ------------------------------------------------------------------------------------------------

OTHERS: dict[str, tuple[str, ...]] = {
    "negatives": ("shuffle",),
    "kinds": ("uniform:1",),
    "position_ids": ("abacus",),
    "device": ("cpu",),
    "pruned": ("E0H1", "L0H1"),
}
"""Settings that are text, whose other values nothing tells."""
ALWAYS: dict[str, dict[str, Any]] = {"addition-long": {"zero_fill": True}}
"""Settings of a task without which others cannot have all of their values."""
NUMBERS = ("0.5", "0.25", "1", "2", "3", "5", "7", "16", "50", "64", "500", "4000")
PARSER = _parser()


def fields(task: str) -> Iterator[tuple[str, str, Any]]:
    """Every setting of a task: its section, name and pydantic's knowledge of it."""
    for section, cls in RunConfig.sections(task).items():
        for name, info in cls.__pydantic_fields__.items():  # type: ignore[attr-defined]
            yield section, name, info


EVERY = [(task, section, name) for task in TASKS.names() for section, name, _ in fields(task)]
BOOLEANS = [(task, name) for task in TASKS.names() for _, name, info in fields(task) if info.annotation is bool]


def values(info: Any, name: str) -> list[str]:
    """What could be written behind a flag."""
    choices = [choice for choice in get_args(info.annotation) if isinstance(choice, str)]
    choices += [part for mark in info.metadata if isinstance(mark, NameIn) for part in mark.registry.names()]
    return [*OTHERS.get(name, ()), *choices, *NUMBERS]


def built(task: str, *flags: str, base: RunConfig | None = None) -> RunConfig:
    """The configuration that a command line asks for."""
    args, unknown = PARSER.parse_known_args(["train", task, *flags])
    assert not unknown
    return RunConfig.build(task, base=base, seed=args.seed, **given_settings(args, RunConfig.sections(task)))


@pytest.mark.parametrize(("task", "section", "name"), EVERY)
def test_a_setting_changes_itself_and_nothing_else(task: str, section: str, name: str) -> None:
    info = RunConfig.sections(task)[section].__pydantic_fields__[name]  # type: ignore[attr-defined]
    flag, base = f"--{name.replace('_', '-')}", RunConfig.build(task, **ALWAYS.get(task, {}))
    default = built(task, base=base)
    if info.annotation is bool:
        on = getattr(getattr(default, section), name)
        tried = [[f"--{'no-' * on}{name.replace('_', '-')}"]]
    else:
        tried = [[flag, value] for value in values(info, name)]
    for flags in tried:
        try:
            changed = default.differences(built(task, *flags, base=base))
        except ConfigError:
            continue
        if changed:
            assert [each.partition(":")[0] for each in changed] == [f"{section}.{name}"]
            return
    pytest.fail(f"no value of {flag} changes anything")


@pytest.mark.parametrize(("task", "name"), BOOLEANS)
def test_switches_go_both_ways(task: str, name: str) -> None:
    """Over what a preset, another run or the default says."""
    (section,) = [section for section, each, _ in fields(task) if each == name]
    flag = name.replace("_", "-")
    for before in (True, False):
        base = RunConfig.build(task, **{**ALWAYS.get(task, {}), name: before})
        for asked, predicted in ((True, f"--{flag}"), (False, f"--no-{flag}")):
            assert getattr(getattr(built(task, predicted, base=base), section), name) is asked


def test_a_preset_that_switches_something_on_can_be_overruled(in_tmp: Path) -> None:
    config = RunConfig.build("sortedness", preset=("older",), distinct=False)
    assert RunConfig.build("sortedness", preset=("older",)).task.distinct
    assert not config.task.distinct


def test_the_start_token_can_be_left_out_from_the_shell() -> None:
    """The central fault of three reports: `--no-start-token` once wrote that there is one."""
    assert built("addition").differences(built("addition", "--no-start-token"))


def test_every_setting_has_a_flag_of_the_positive_form() -> None:
    """argparse takes any flag that begins with --no- for a negation."""
    assert not [name for _, _, name in EVERY if name.startswith("no_")]


# --- the other flags --------------------------------------------------------------------------------------------------


class Called(HeadcountError):
    """Ends a verb where its work would begin."""


Call = dict[str, Any]
HOMES = {
    headcount.api: (
        "ablate_heads",
        "audit_all",
        "claim",
        "claim_all",
        "evaluate",
        "evaluate_all",
        "summarise_attention",
        "head_stats",
        "match_heads",
        "compare_runs",
        "patch_pair",
        "predict",
        "prune_heads",
        "report",
        "routes_all",
        "run_study",
        "show_heads",
        "show_positions",
        "stretch",
        "stretch_all",
        "train",
        "verify",
        "weights",
    ),
    headcount.exercise.lab: ("run_lab",),
    headcount.external.scaffold: ("write_scaffold",),
}


@pytest.fixture
def called(in_tmp: Path, tiny_run: Run, tiny_sorter: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Call]:
    """What a command line asks of the function that does the work, by the function's own names."""
    for name, run in (("run", tiny_run), ("sorter", tiny_sorter)):
        shutil.copytree(run.folder.path, in_tmp / name)
    calls: list[Call] = []

    def record(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        def stub(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = dict(bound.arguments)
            for more in [p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]:
                arguments |= arguments.pop(more)
            calls.append({"function": name, **arguments})
            raise Called("recorded")

        return stub

    for module, names in HOMES.items():
        for name in names:
            monkeypatch.setattr(module, name, record(name, getattr(module, name)))

    def call(line: str) -> Call:
        calls.clear()
        assert main(line.split()) == 2
        assert calls, f"{line}: nothing was called"
        return calls[0]

    return call


CLAIM = "D0 prunable-together"
PASSED: dict[tuple[str, str], tuple[str, str, str, Any]] = {
    ("ablate", "--data"): ("ablate run", "--data x.txt", "data", "x.txt"),
    ("ablate", "--replacements"): ("ablate run", "--replacements zero,mean", "replacements", ["zero", "mean"]),
    ("ablate", "--lines"): ("ablate run --data x.txt", "--lines", "lines", True),
    ("ablate", "--metric"): ("ablate run", "--metric loss", "metric", "loss"),
    ("ablate", "--split"): ("ablate run", "--split validation", "data", "validation"),
    ("ablate", "--n"): ("ablate run", "--n 7", "n", 7),
    ("ablate", "--precision"): ("ablate run", "--precision 0.5", "precision", 0.005),
    ("ablate", "--budget"): ("ablate run", "--budget 30s", "budget", "30s"),
    ("ablate", "--exhaust"): ("ablate run", "--exhaust", "exhaust", True),
    ("ablate", "--donors"): ("ablate run", "--donors 2", "donors", 2),
    ("ablate", "--lengths"): ("ablate sorter", "--lengths 4,8", "lengths", [4, 8]),
    ("ablate", "--examples"): ("ablate run", "--examples", "examples", True),
    ("ablate", "--batch-size"): ("ablate run", "--batch-size 9", "batch_size", 9),
    ("ablate", "--run-adapter"): ("ablate run", "--run-adapter", "run_adapter", True),
    ("predict", "--run-adapter"): ("predict run 3+4", "--run-adapter", "run_adapter", True),
    ("prune", "--run-adapter"): ("prune run", "--run-adapter", "run_adapter", True),
    ("positions", "--run-adapter"): ("positions run", "--run-adapter", "run_adapter", True),
    ("ablate", "--quiet"): ("ablate run", "--quiet", "quiet", True),
    ("study", "-o"): ("study heads", "-o there", "out", "there"),
    ("study", "--processes"): ("study heads", "--processes 3", "processes", 3),
    ("study", "--retries"): ("study heads", "--retries 5", "retries", 5),
    ("study", "--on"): ("study heads", "--on dask", "on", "dask"),
    ("study", "--patience"): ("study heads --on dask", "--patience 90s", "patience", 90.0),
    ("study", "--quiet"): ("study heads", "--quiet", "quiet", True),
    ("prune", "--data"): ("prune run", "--data x.txt", "data", "x.txt"),
    ("prune", "--lines"): ("prune run --data x.txt", "--lines", "lines", True),
    ("prune", "--metric"): ("prune run", "--metric loss", "metric", "loss"),
    ("prune", "--out"): ("prune run", "--out small", "out", "small"),
    ("prune", "-o"): ("prune run", "-o small", "out", "small"),
    ("prune", "--share"): ("prune run", "--share 0.5", "share", 0.5),
    ("prune", "--loss"): ("prune run", "--loss 0.5", "loss", 0.5),
    ("prune", "--heads"): ("prune run", "--heads E0H1,X1H0", "heads", ["E0H1", "X1H0"]),
    ("prune", "--fold-mean"): ("prune run", "--fold-mean", "fold_mean", True),
    ("prune", "--fine-tune"): ("prune run", "--fine-tune 3", "fine_tune", 3),
    ("prune", "--length"): ("prune sorter", "--length 4", "length", 4),
    ("prune", "--n"): ("prune run", "--n 7", "n", 7),
    ("prune", "--orders"): ("prune run", "--orders 3", "n_orders", 3),
    ("prune", "--budget"): ("prune run", "--budget 5m", "budget", "5m"),
    ("prune", "--batch-size"): ("prune run", "--batch-size 9", "batch_size", 9),
    ("prune", "--quiet"): ("prune run", "--quiet", "quiet", True),
    ("report", "--out"): ("report run", "--out x.html", "out", "x.html"),
    ("report", "-o"): ("report run", "-o x.html", "out", "x.html"),
    ("report", "--title"): ("report run", "--title Mine", "title", "Mine"),
    ("report", "--on"): ("report run", "--on one --on two", "on", ["one", "two"]),
    ("report", "--data"): ("report run", "--data x.tsv", "data", "x.tsv"),
    ("report", "--lines"): ("report run --data x.txt", "--lines", "lines", True),
    ("report", "--examples"): ("report run", "--examples 7", "n_examples", 7),
    ("report", "--stored"): ("report run", "--stored", "stored", True),
    ("report", "--thorough"): ("report run", "--thorough", "thorough", True),
    ("report", "--markdown"): ("report run", "--markdown", "markdown", True),
    ("report", "--latex"): ("report run", "--latex", "latex", True),
    ("report", "--force"): ("report run", "--force", "force", True),
    ("report", "--live-only"): ("report run", "--live-only", "live_only", True),
    ("report", "--exercise"): ("report run", "--exercise there", "exercise", "there"),
    ("report", "--run-adapter"): ("report run", "--run-adapter", "run_adapter", True),
    ("report", "--quiet"): ("report run", "--quiet", "quiet", True),
    ("stretch", "--lengths"): ("stretch sorter", "--lengths 4,8", "lengths", [4, 8]),
    ("stretch", "--negatives"): ("stretch sorter", "--negatives shuffle", "negatives", ["shuffle"]),
    ("stretch", "--n"): ("stretch sorter", "--n 7", "n", 7),
    ("stretch", "--draw"): ("stretch sorter", "--draw 3", "draw", 3),
    ("stretch", "--batch-size"): ("stretch sorter", "--batch-size 9", "batch_size", 9),
    ("stretch", "--out"): ("stretch sorter", "--out there", "out", "there"),
    ("stretch", "-o"): ("stretch sorter", "-o there", "out", "there"),
    ("stretch", "--run-adapter"): ("stretch sorter", "--run-adapter", "run_adapter", True),
    ("stretch", "--quiet"): ("stretch sorter", "--quiet", "quiet", True),
    ("positions", "--n"): ("positions sorter", "--n 7", "n_positions", 7),
    ("patch", "--heads"): ("patch run 3+4 8+4", "--heads E0H1", "heads", ["E0H1"]),
    ("patch", "--at"): ("patch run 3+4 8+4", "--at 1s", "at", ["1s"]),
    ("patch", "--answers"): ("patch run 3+4 8+4", "--answers a b", "answers", ("a", "b")),
    ("patch", "--run-adapter"): ("patch run 3+4 8+4", "--run-adapter", "run_adapter", True),
    ("routes", "--n"): ("routes run", "--n 30", "n", 30),
    ("routes", "--seed"): ("routes run", "--seed 4", "seed", 4),
    ("routes", "--out"): ("routes run", "--out there", "out", "there"),
    ("routes", "-o"): ("routes run", "-o there", "out", "there"),
    ("routes", "--quiet"): ("routes run", "--quiet", "quiet", True),
    ("routes", "--run-adapter"): ("routes run", "--run-adapter", "run_adapter", True),
    ("weights", "--heads"): ("weights run", "--heads E0H1,X1H0", "heads", ["E0H1", "X1H0"]),
    ("weights", "--probes"): ("weights run", "--probes", "probes", True),
    ("weights", "--n"): ("weights run", "--n 70", "n", 70),
    ("weights", "--seed"): ("weights run", "--seed 4", "seed", 4),
    ("weights", "--quiet"): ("weights run", "--quiet", "quiet", True),
    ("weights", "--run-adapter"): ("weights run", "--run-adapter", "run_adapter", True),
    ("stretch", "--timeout"): ("stretch sorter sorter2", "--timeout 2m", "timeout", 120.0),
    ("evaluate", "--timeout"): ("evaluate run sorter", "--timeout 2m", "timeout", 120.0),
    ("audit", "--timeout"): ("audit run sorter", "--timeout 90", "timeout", 90.0),
    ("evaluate", "--quiet"): ("evaluate run sorter", "--quiet", "quiet", True),
    ("evaluate", "--split"): ("evaluate run", "--split validation", "split", "validation"),
    ("verify", "--quiet"): ("verify run", "--quiet", "quiet", True),
    ("verify", "--seconds"): ("verify run", "--seconds 3", "seconds", 3.0),
    ("verify", "--seed"): ("verify run", "--seed 4", "seed", 4),
    ("claim", "--n"): (f"claim run {CLAIM}", "--n 30", "n", 30),
    ("claim", "--seed"): (f"claim run {CLAIM}", "--seed 4", "seed", 4),
    ("claim", "--data"): (f"claim run {CLAIM}", "--data x.txt", "data", "x.txt"),
    ("claim", "--anyway"): (f"claim run {CLAIM}", "--anyway", "anyway", True),
    ("claim", "--run-adapter"): (f"claim run {CLAIM}", "--run-adapter", "run_adapter", True),
    ("compare", "--by"): ("compare run run2", "--by encoding", "by", ["encoding"]),
    ("compare", "--measure"): ("compare run run2", "--measure drop", "measures", ["drop"]),
    ("compare", "--part"): ("compare run run2", "--part sorting", "part", "sorting"),
    ("compare", "--csv"): ("compare run run2", "--csv rows.csv", "csv", "rows.csv"),
    ("compare", "--out"): ("compare run run2", "--out there", "out", "there"),
    ("compare", "-o"): ("compare run run2", "-o there", "out", "there"),
    ("claims", "--file"): ("claims run --file adder", "--file reports", "statements", "reports"),
    ("claims", "--n"): ("claims run --file adder", "--n 30", "n", 30),
    ("claims", "--seed"): ("claims run --file adder", "--seed 4", "seed", 4),
    ("claims", "--data"): ("claims run --file adder", "--data x.txt", "data", "x.txt"),
    ("claims", "--anyway"): ("claims run --file adder", "--anyway", "anyway", True),
    ("claims", "--run-adapter"): ("claims run --file adder", "--run-adapter", "run_adapter", True),
    ("claims", "--quiet"): ("claims run --file adder", "--quiet", "quiet", True),
    ("lab", "--out"): ("lab", "--out there", "out", Path("there")),
    ("lab", "-o"): ("lab", "-o there", "out", Path("there")),
    ("lab", "--seed"): ("lab", "--seed 4", "seed", 4),
    ("lab", "--only"): ("lab", "--only addition", "experiments", ("addition",)),
    ("lab", "--quiet"): ("lab", "--quiet", "quiet", True),
    ("lab", "--processes"): ("lab", "--processes 7", "processes", 7),
    ("adapt", "--checkpoint"): ("adapt x.py:Net", "--checkpoint w.pth", "checkpoint", Path("w.pth")),
    ("adapt", "--out"): ("adapt x.py:Net", "--out y.py", "out", Path("y.py")),
    ("adapt", "-o"): ("adapt x.py:Net", "-o y.py", "out", Path("y.py")),
    ("heads", "--length"): ("heads sorter --stats", "--length 5", "length", 5),
    ("heads", "--norm-weighted"): ("heads run --on 3+4", "--norm-weighted", "norm_weighted", True),
    ("heads", "--match"): ("heads run --stats", "--match run sorter", "others", ("run", "sorter")),
    ("train", "--out"): ("train addition", "--out there", "out", "there"),
    ("train", "-o"): ("train addition", "-o there", "out", "there"),
    ("train", "--seed"): ("train addition", "--seed 4", "seed", 4),
    ("train", "--resume"): ("train addition", "--resume", "resume", True),
    ("train", "--tracker"): ("train addition", "--tracker mlflow", "tracker", ["mlflow"]),
    ("train", "--preset"): ("train addition", "--preset older", "preset", ["older"]),
    ("train", "--config"): ("train addition", "--config run", "config", "run"),
    ("train", "--quiet"): ("train addition", "--quiet", "quiet", True),
}
"""Verb and flag: a line, what is added to it, and which argument of the work then has which value."""


@pytest.mark.parametrize("case", PASSED, ids=" ".join)
def test_a_flag_reaches_the_work(called: Callable[[str], Call], case: tuple[str, str]) -> None:
    line, added, name, value = PASSED[case]
    before, after = called(line), called(f"{line} {added}")
    changed = {key for key in before.keys() | after.keys() if not _equal(before.get(key), after.get(key))}
    assert after[name] == value
    assert changed == {name}


def _equal(one: Any, other: Any) -> bool:
    """Models are opened, and announcers made, anew for each line."""
    if isinstance(one, Run | OpenModel) and isinstance(other, Run | OpenModel):
        return one.name == other.name
    return one == other or (callable(one) and callable(other))


DRAWN = {
    "--on": ("show_heads", "heads run --on 3+4"),
    "--all-test": ("show_heads", "heads run --all-test"),
    "--stats": ("match_heads", "heads run --stats"),
}


@pytest.mark.parametrize("flag", DRAWN)
def test_what_is_asked_of_heads(called: Callable[[str], Call], flag: str) -> None:
    function, line = DRAWN[flag]
    call = called(line)
    assert call["function"] == function
    assert flag != "--on" or "3+4" in str(call["on"])
    assert flag != "--all-test" or not call["on"]


@pytest.fixture
def quick(little_work: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure is drawn, and no lab takes its minutes."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
    monkeypatch.setattr(
        headcount.exercise.lab, "run_lab", lambda *_, **__: headcount.exercise.lab.Lab(Path("report.html"), None, None)
    )


TRAIN = "train addition --digits 1 --d-model 8 --n-heads 2 --d-ff 8 --n-validation 10 --n-test 10 --batch-size 4"
JSON = {
    "audit": "audit sorter --n 20 --quiet --only HC301",
    "ablate": "ablate run --n 4 --replacements zero --quiet",
    "adapt": "adapt own.py:Net -o {}.py",
    "claim": f"claim run {CLAIM} --n 30 --anyway",
    "claims": "claims run --file some.toml --n 30 --anyway --quiet",
    "compare": "compare run run2",
    "evaluate": "evaluate run",
    "heads": "heads run",
    "lab": "lab --quiet",
    "positions": "positions sorter --n 4",
    "predict": "predict run 3+4",
    "prune": "prune run --heads E0H1 -o {} --quiet",
    "report": "report sorter --stored --examples 2 -o {}.html --quiet",
    "patch": "patch run 3+4 8+4 --heads E0H1",
    "routes": "routes run --n 20 --quiet",
    "stretch": "stretch sorter --lengths 4 --n 4 --negatives shuffle --quiet",
    "study": "study",
    "train": f"{TRAIN} --n-encoder-layers 1 --n-decoder-layers 1 --steps 2 --device cpu --quiet -o {{}}",
    "verify": "verify run --quiet",
    "weights": "weights run --n 64 --quiet",
}
NET = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_heads, self.out = 2, nn.Linear(4, 4)
"""


@pytest.mark.parametrize("verb", JSON)
@pytest.mark.slow
def test_json_is_one_object_and_the_default_is_none(
    verb: str, in_tmp: Path, tiny_run: Run, tiny_sorter: Run, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, run in (("run", tiny_run), ("sorter", tiny_sorter), ("run2", tiny_run)):
        shutil.copytree(run.folder.path, in_tmp / name)
    config = in_tmp / "run2" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "seed": 7}))
    (in_tmp / "own.py").write_text(NET)
    (in_tmp / "some.toml").write_text(f'[[claim]]\ntext = "{CLAIM}"\n')
    codes = {main([*JSON[verb].format("one").split(), "--json"])}
    assert isinstance(json.loads(capsys.readouterr().out), dict)
    codes.add(main(JSON[verb].format("other").split()))
    with pytest.raises(ValueError, match=r"Expecting|Extra"):
        json.loads(capsys.readouterr().out)
    assert codes <= {0} if verb != "verify" else codes <= {1}


def test_quiet_heads_show_no_progress(
    in_tmp: Path, tiny_sorter: Run, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_sorter.folder.path, in_tmp / "sorter")
    assert main(["heads", "sorter", "--stats", "--length", "4"]) == 0
    assert "eta" in capsys.readouterr().err
    assert main(["heads", "sorter", "--stats", "--length", "4", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


ELSEWHERE = {
    ("heads", "--head"): "tests/cli/test_external_cli.py::test_where_heads_attend",
    ("heads", "--data"): "tests/cli/test_roles_cli.py::test_what_heads_stand_out_for",
    ("heads", "--separator"): "tests/cli/test_roles_cli.py::test_what_heads_stand_out_for",
    ("heads", "--quiet"): "test_quiet_heads_show_no_progress",
    **{
        ("study", flag): "tests/studies/test_running.py" for flag in ("--dry-run", "--print-commands", "--run", "--out")
    },
    ("lab", "--part"): "tests/exercise/test_lab.py",
    ("compare", "--published"): "tests/exercise/test_published_comparison.py",
    ("", "--version"): "tests/cli/test_cli.py",
    ("heads", "--run-adapter"): "tests/external/test_user_code.py",
    ("evaluate", "--run-adapter"): "tests/external/test_user_code.py",
    ("verify", "--run-adapter"): "tests/external/test_user_code.py",
    ("audit", "--run-adapter"): "tests/external/test_user_code.py",
    **{
        ("audit", flag): "tests/cli/test_audit_cli.py"
        for flag in ("--n", "--only", "--ignore", "--markdown", "--quiet", "--out", "-o")
    },
    ("ablate", "--format"): "tests/cli/test_ablate_cli.py",
    ("predict", "--without"): "tests/cli/test_cli.py",
}
"""Flags that have a test of their own, which names them."""


def flags() -> Iterator[tuple[str, str]]:
    """Every flag of every verb but for the settings of train."""
    settings = {name for _, _, name in EVERY}
    todo: list[tuple[str, argparse.ArgumentParser]] = [("", PARSER)]
    while todo:
        verb, parser = todo.pop()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                todo += [(verb or name, below) for name, below in action.choices.items()]
            elif not isinstance(action, argparse._HelpAction) and action.dest not in settings:
                yield from ((verb, flag) for flag in action.option_strings)


def test_every_flag_has_a_case() -> None:
    cases = {*PASSED, *ELSEWHERE, *((verb, "--json") for verb in JSON), *(("heads", flag) for flag in DRAWN)}
    assert set(flags()) - cases == set()


@pytest.mark.parametrize("case", ELSEWHERE, ids=" ".join)
def test_flags_that_are_tested_elsewhere_are(case: tuple[str, str]) -> None:
    assert case in set(flags())
    root = Path(__file__).parents[2]
    file, _, name = ELSEWHERE[case].rpartition("::") if "::" in ELSEWHERE[case] else (ELSEWHERE[case], "", "")
    text = (root / file).read_text() if file.endswith(".py") else Path(__file__).read_text()
    assert (name or case[1]) in text
    assert case[1] in text
