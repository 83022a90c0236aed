"""The command line with a classifier: train, predict, evaluate, stretch, positions, heads, lab."""

import html
import json
import re
from functools import partial
from pathlib import Path

import pytest

from headcount.cli import main
from headcount.exercise import lab

pytestmark = pytest.mark.slow  # seconds together


def flags(settings):
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def run_json(capsys, *arguments):
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def run(tiny_sorter):
    return str(tiny_sorter.folder.path)


# --- train ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_train_a_classifier(tiny_sorting, in_tmp, capsys):
    arguments = ["train", "sortedness", "--seed", "4", *flags(tiny_sorting), "--quiet"]
    code, trained = run_json(capsys, *arguments)
    assert (code, trained["run"], trained["steps"]) == (0, "runs/sortedness-4", 12)
    assert {"type", "accuracy", "groups", "answer_shares", "constant", "wrong"} <= trained["evaluation"].keys()
    assert trained["evaluation"]["accuracy"]["right"]["n"] == 20
    assert Path("runs/sortedness-4/figures/curves.png").exists()
    assert main([*arguments, "--resume"]) == 0
    out = capsys.readouterr().out
    assert "accuracy: all" in out
    assert "It answers “" in out
    assert "next:    headcount stretch runs/sortedness-4" in out


def test_none_is_an_encoding_and_no_window(tiny_sorting, in_tmp, capsys):
    arguments = ["train", "sortedness", *flags(tiny_sorting), "--encoding", "none", "--window", "none", "--quiet"]
    assert main([*arguments, "--random-positions", "none", "-o", "a"]) == 0
    model = json.loads(Path("a/config.json").read_text())["model"]
    assert (model["encoding"], model["window"], model["random_positions"]) == ("none", None, None)
    assert main(["train", "sortedness", "--config", "a", "--window", "2", "--quiet", "-o", "b"]) == 0
    assert json.loads(Path("b/config.json").read_text())["model"]["window"] == 2
    capsys.readouterr()


def test_help_shows_the_defaults_of_the_task(capsys):
    shown = {}
    for task in ("sortedness", "addition"):
        with pytest.raises(SystemExit):
            main(["train", task, "--help"])
        shown[task] = " ".join(capsys.readouterr().out.split())
    assert "[sinusoidal]" in shown["sortedness"]
    assert "[3000]" in shown["sortedness"]
    assert "--pooling" in shown["sortedness"]
    assert "--pooling" not in shown["addition"]
    assert "[sinusoidal]" not in shown["addition"]
    assert "far-generic " in shown["sortedness"]
    assert "far-generic " not in shown["addition"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--config", "sample:addition"], "are for the task addition, not for sortedness"),
        (["--preset", "farther"], "no preset 'farther' for sortedness"),
        (["--longest", "20", "--encoding", "learned"], "raise n_positions to 20"),
        (["--random-positions", "3"], "raise random_positions"),
        (["--negatives", "shuffle:x"], "such as shuffle:2"),
        (["--digits", "3"], "no option '--digits'"),
        (["--n-values", "2", "--longest", "9", "--quiet"], "too few sequences"),
    ],
)
def test_impossible_trainings_are_exit_code_2(arguments, what, in_tmp, capsys):
    assert main(["train", "sortedness", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert what in error


# --- one answer -------------------------------------------------------------------------------------------------


def test_predict(run, capsys):
    assert main(["predict", run, "3 5 5 9"]) == 0
    assert "3 5 5 9 → " in capsys.readouterr().out
    code, predicted = run_json(capsys, "predict", run, "3, 5, 4, 9")
    assert code == 0
    assert (predicted["example"], predicted["right"]) == ("3 5 4 9", "unsorted")
    assert predicted["correct"] == (predicted["predicted"] == "unsorted")
    assert 0.5 <= predicted["probability"] <= 1


@pytest.mark.parametrize("text", ["", "3 five", "3 20", "3 -1", "3+4"])
def test_predict_says_what_is_allowed(run, text, capsys):
    assert main(["predict", run, "--", text]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "write numbers from 0 to 19" in printed.err


@pytest.mark.slow
def test_evaluate_and_heads(run, capsys):
    code, found = run_json(capsys, "evaluate", run, "--split", "validation")
    assert (code, found["split"], found["accuracy"]["right"]["n"]) == (0, "validation", 20)
    code, comma_list = run_json(capsys, "heads", run)
    assert (code, [(each["head"], each["short"]) for each in comma_list["heads"]]) == (
        0,
        [(f"layer.0.self.{i}", f"L0H{i}") for i in (0, 1)],
    )
    code, shown = run_json(capsys, "heads", run, "--on", "3 5 4")
    (site,) = shown["sites"]
    assert (code, site["queries"], site["keys"]) == (0, ["3", "5", "4"], ["3", "5", "4"])
    assert all(Path(path).exists() for path in [*shown["files"]["data"], *shown["files"]["pictures"]])
    code, averaged = run_json(capsys, "heads", run, "--all-test")
    assert (code, len(averaged["sites"][0]["keys"])) == (0, 6)
    assert 0 < averaged["n"] < 20, "only the longest sequences share their places"


# --- stretch and positions --------------------------------------------------------------------------------------


def test_stretch_prints_cells(run, capsys):
    code, found = run_json(capsys, "stretch", run, "--lengths", "4,9", "--n", "6", "--quiet")
    assert code == 0
    assert [(cell["length"], cell["negative"]) for cell in found["cells"]] == [
        (length, kind)
        for length in (4, 9)
        for kind in ("shuffle", "transpositions", "moved_one", "adjacent", "patterns")
    ]
    for cell in found["cells"]:
        assert {"name", "length", "negative", "accuracy", "low", "high", "n", "constant"} <= cell.keys()
        assert isinstance(cell["constant"], bool)
        assert (cell["name"], cell["n"]) == (run, 6)
        assert cell["low"] <= cell["accuracy"] <= cell["high"]
    assert [Path(path).name for path in found["files"]["pictures"]] == ["stretch-4-9-n6.png", "dispersion-4-9-n6.png"]
    assert all(Path(path).exists() for path in found["files"]["pictures"])
    assert (Path(run) / "results" / "stretch-4-9-n6.json").exists()


@pytest.mark.slow
def test_stretch_prints_tables_and_compares_runs(run, tiny_sorting, in_tmp, capsys):
    settings = flags(tiny_sorting | {"encoding": "learned", "past_table": "error", "n_positions": 8})
    assert main(["train", "sortedness", *settings, "--quiet", "-o", "learned"]) == 0
    capsys.readouterr()
    arguments = ["--lengths", "4,9", "--n", "4", "--negatives", "adjacent", "-o", "both", "--quiet"]
    assert main(["stretch", run, "learned", *arguments]) == 0
    out = capsys.readouterr().out
    assert "Accuracy (%) by kind of unsorted sequence" in out
    assert "learned does not accept these lengths: 9." in out
    assert "moved_one" not in out
    (together,) = Path("both/figures").iterdir()
    assert re.fullmatch(r"stretch-4-9-adjacent-n4-of-2-runs-[0-9a-f]{8}\.png", together.name)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--lengths", "abc"],
        ["--lengths", "8,,16"],
        ["--lengths", "1"],
        ["--lengths", "-4"],
        ["--lengths", ""],
        ["--negatives", "sideways"],
        ["--negatives", ""],
        ["--n", "1"],
        ["--n", "0"],
        ["--batch-size", "0"],
        ["--draw", "-1"],
    ],
    ids=" ".join,
)
def test_stretches_that_cannot_be_are_exit_code_2(run, arguments, capsys):
    assert main(["stretch", run, *arguments, "--quiet"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")


def test_an_adder_cannot_be_stretched(in_tmp, capsys):
    assert main(["stretch", "sample:addition", "--quiet"]) == 2
    assert "only a classifier can be measured at several sequence lengths" in capsys.readouterr().err


@pytest.mark.slow
def test_positions(run, capsys):
    code, shown = run_json(capsys, "positions", run, "--n", "8")
    assert (code, shown["n_positions"], shown["encoding"]["name"]) == (0, 8, "sinusoidal")
    files = shown["files"]["data"] + shown["files"]["pictures"]
    assert len(files) == 4
    assert all(Path(path).exists() for path in files)
    assert main(["positions", run, "--n", "1"]) == 2
    assert "number of positions must be from 3 to" in capsys.readouterr().err


# --- lab --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _small_lab(tiny, tiny_sorting, little_work, monkeypatch):
    settings = {"addition": tiny | {"steps": 2}, "sortedness": tiny_sorting | {"steps": 2}}
    monkeypatch.setattr(lab, "EXAMPLE", "3+4")
    monkeypatch.setattr(lab, "LENGTHS", (6, 9))
    monkeypatch.setattr(lab, "POOLINGS", ("neighbour-difference",))
    monkeypatch.setattr(lab, "run_lab", partial(lab.run_lab, settings=settings, n=2, n_examples=2))


@pytest.mark.slow
@pytest.mark.usefixtures("_small_lab")
def test_a_lab_of_addition_only(in_tmp, capsys):
    code, found = run_json(capsys, "lab", "--only", "addition", "-o", "adding", "--quiet", "--processes", "1")
    assert (code, set(found), found["report"]) == (0, {"report", "addition"}, "adding/report-addition.html")
    assert found["addition"]["certificate"]["total"] == 100
    page = Path("adding/report-addition.html").read_text()
    assert '<section id="reach"' not in page
    assert '<section id="pruning"' not in page, "hardly trained, it has nothing to lose"
    assert html.escape(found["addition"]["evaluation"]["audit"]) in page, "no better than a constant answer"


@pytest.mark.slow
@pytest.mark.usefixtures("_small_lab")
def test_a_lab_of_sortedness_only(in_tmp, capsys):
    assert main(["lab", "--only", "sortedness", "-o", "sorting", "--quiet", "--processes", "1"]) == 0
    out = capsys.readouterr().out
    assert "Accuracy (%) by length; unsorted sequences: single adjacent swaps" in out
    assert "n = 2 sequences per cell (random draw 1)" in out
    assert "sums checked" not in out
    text = Path("sorting/report-sortedness.html").read_text()
    assert '<section id="reach"' in text
    assert "Refuted: sortedness-sinusoidal calls " in text


def test_a_lab_knows_two_experiments(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["lab", "--only", "chess"])
    assert stopped.value.code == 2
    assert "addition" in capsys.readouterr().err
