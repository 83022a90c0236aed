"""`headcount prune`: curves, the cut, and errors that say what to do."""

import json
from pathlib import Path

import pytest

from headcount.analysis.pruning import Pruning
from headcount.cli import main
from headcount.describing.sections.pruning import greedy_sentence
from headcount.runs.run import load

pytestmark = pytest.mark.slow  # together they take over 5 s

FEW = ["--n", "20", "--orders", "1", "--batch-size", "96"]
SAMPLE = "sample:sortedness"


def run_json(capsys, *arguments):
    code = main([*map(str, arguments), "--json", "--quiet"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def adder(good_run):
    return str(good_run.folder.path)


@pytest.fixture(scope="module")
def sorter(tiny_sorter):
    return str(tiny_sorter.folder.path)


@pytest.fixture
def _never_searched(monkeypatch):
    monkeypatch.setattr("headcount.api.pruning.prune_curves", lambda *a, **k: pytest.fail("it was searched"))


@pytest.mark.usefixtures("painted")
def test_curves_only(in_tmp, capsys):
    code, predicted = run_json(capsys, "prune", SAMPLE, *FEW)
    assert (code, predicted["cut"], predicted["model"]) == (0, None, None)
    assert {"pruning", "cut", "files", "model"} <= predicted.keys()
    result = predicted["pruning"]
    assert (result["type"], result["n"], result["n_orders"], result["loss"]) == ("Pruning", 20, 1, 0.01)
    assert result["measured_on"] == "20 of the test set"
    assert [curve["name"] for curve in result["curves"]] == ["alone", "together", "every way", "greedy", "gradient"]
    written = Path(predicted["files"]["data"][0]).read_text()
    assert {name: value for name, value in json.loads(written).items() if name != "digests"} == result
    assert Pruning.from_json(written).clean == result["clean"]
    assert Path(predicted["files"]["pictures"][0]).read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in in_tmp.iterdir()] == ["runs"]


def test_a_share_of_the_heads_goes_whatever_that_costs(in_tmp, capsys):
    """0.3 of 4 heads are 2: the first two that a search takes, and what they cost is said."""
    code, predicted = run_json(capsys, "prune", SAMPLE, *FEW, "--share", "0.3", "-o", "small")
    result = predicted["pruning"]
    assert (code, predicted["model"], result["share"]) == (0, "small", 0.3)
    greedy = next(curve["points"] for curve in result["curves"] if curve["name"] == "greedy")
    assert result["chosen"] == [point["head"] for point in greedy[1:3]]
    assert (result["kept"]["n_removed"], result["kept"]["score"]) == (2, greedy[2]["score"])
    assert predicted["cut"]["heads"] == result["chosen"]
    assert len(load("small").model.heads) == 2
    assert Path(predicted["files"]["data"][0]).stem == "pruning-share0.3-n20-orders1-batch96"
    text = greedy_sentence("", Pruning.from_json(json.dumps(result))).text
    assert text.startswith("To remove 30 % of the heads, greedy removal takes 2 of 4 heads together. This leaves ")
    assert "the limit" not in text


@pytest.mark.slow
def test_search_and_cut(in_tmp, capsys):
    code, predicted = run_json(capsys, "prune", SAMPLE, *FEW, "--loss", "0.6", "-o", "small")
    assert (code, predicted["model"]) == (0, "small")
    chosen = predicted["pruning"]["chosen"]
    assert predicted["cut"]["heads"] == chosen != []
    kept = [str(head) for head in load(SAMPLE).model.heads if str(head) not in chosen]
    assert [str(head) for head in load("small").model.heads] == kept


def test_given_heads_are_cut_and_no_others(adder, in_tmp, capsys):
    code, predicted = run_json(capsys, "prune", adder, "--heads", "E0H0", "-o", "small")
    assert (code, predicted["pruning"], predicted["model"]) == (0, None, "small")
    assert predicted["files"] == {"data": [], "pictures": [], "tables": []}
    assert (predicted["cut"]["heads"], predicted["cut"]["n_heads"]) == (["encoder.0.self.0"], [10, 9])
    cut = load("small")
    assert [head.short for head in load(adder).model.heads if head not in cut.model.heads] == ["E0H0"]
    code, predicted = run_json(capsys, "prune", "small", "--heads", "e0h1, decoder.1.cross.0", "-o", "smaller")
    assert (code, predicted["cut"]["n_heads"], predicted["cut"]["lost_blocks"]) == (0, [9, 7], ["encoder.0.self"])


def test_fine_tuning_is_told_and_recorded(sorter, in_tmp, capsys):
    assert main(["prune", sorter, "--heads", "L0H1", "--fine-tune", "3", "-o", "small"]) == 0
    printed = capsys.readouterr()
    assert "then fine-tuned for 3 steps" in printed.out
    assert "step 3/3" in printed.err
    manifest = json.loads(Path("small/manifest.json").read_text())
    assert (manifest["fine_tuned"], manifest["steps"]) == (3, 12 + 3)
    assert manifest["fine_tuned_at"] > 0
    assert [head.short for head in load("small").model.heads] == ["L0H0"]


@pytest.mark.slow
def test_for_people(in_tmp, capsys):
    assert main(["prune", SAMPLE, *FEW, "--loss", "0.5", "--length", "5", "-o", "small"]) == 0
    printed = capsys.readouterr()
    assert "removing heads" in printed.err
    for text in (
        "removed",
        "Removing ",
        "gradient",
        "together",
        "random orders:",
        "new sequences of length 5",
        "figure:",
    ):
        assert text in printed.out
    for text in ("parameters", "bytes", "µs per example", "times as fast", "difference from ablation"):
        assert text in printed.out


def test_no_head_can_go(in_tmp, capsys):
    """Then nothing is written, and it says so."""
    assert main(["prune", SAMPLE, *FEW, "--loss", "0", "-o", "small", "--json"]) == 0
    printed = capsys.readouterr()
    assert "no smaller model was written" in printed.err
    predicted = json.loads(printed.out)
    assert (predicted["pruning"]["chosen"], predicted["cut"], predicted["model"]) == ([], None, None)
    assert predicted["pruning"]["kept"]["score"] == predicted["pruning"]["clean"]
    assert [path.name for path in in_tmp.iterdir()] == ["runs"]


@pytest.mark.usefixtures("_never_searched")
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--heads", "E0H0"], "add -o DIR"),
        (["--heads", ""], "head"),
        (["--heads", "", "-o", "small"], "head"),
        (["--heads", "E7H0", "-o", "small"], "headcount heads"),
        (["--heads", "E0H0,,", "-o", "small"], "is not the name of a head"),
        (["--fine-tune", "5"], "add -o DIR"),
        (["--fine-tune", "-5", "-o", "small"], "training steps"),
        (["--share", "3"], "--share must be in (0, 1), got 3"),
        (["--share", "0"], "--share must be in (0, 1), got 0"),
        (["--share", "nan"], "--share must be in (0, 1), got nan"),
        (["--share", "0.2", "--loss", "0.3"], "--share and --loss cannot be combined"),
        (["--share", "0.2", "--heads", "L0H0", "-o", "small"], "--share and --heads cannot be combined"),
        (["--loss", "1"], "0.01 is one point"),
        (["--loss", "-0.1"], "0.01 is one point"),
        (["--loss", "nan"], "0.01 is one point"),
        (["--orders", "0"], "from 1 to 10,000"),
        (["--n", "1"], "at least 2"),
        (["--n", "0"], "at least 2"),
        (["--batch-size", "0"], "at least 1"),
        (["--length", "5"], "have the same length"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_told_before_the_search(adder, in_tmp, arguments, what, capsys):
    assert main(["prune", adder, *arguments, "--quiet"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert what in printed.err
    assert not any(in_tmp.iterdir())


@pytest.mark.usefixtures("_never_searched")
@pytest.mark.parametrize(
    "arguments", [["--length", "5", "--n", "1"], ["--length", "5", "--n", "-3"], ["--length", "1"]]
)
def test_lengths_that_cannot_be(sorter, in_tmp, arguments, capsys):
    assert main(["prune", sorter, *arguments, "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.usefixtures("_never_searched")
def test_a_model_that_has_nothing_to_lose(sorter, in_tmp, capsys):
    assert main(["prune", sorter, "-o", "small", "--quiet"]) == 2
    assert "choose a more accurate model, or a sequence length" in capsys.readouterr().err
    assert not any(in_tmp.iterdir())


@pytest.mark.usefixtures("_never_searched")
def test_a_folder_in_use_is_told_before_the_search(adder, sorter, in_tmp, capsys):
    assert main(["prune", adder, "-o", sorter, "--quiet"]) == 2
    assert "already holds a finished run" in capsys.readouterr().err
    Path("full").mkdir()
    Path("full/.hidden").write_text("mine")
    assert main(["prune", adder, "-o", "full", "--quiet"]) == 2
    assert "choose a folder that does not exist yet" in capsys.readouterr().err
    assert [path.name for path in Path("full").iterdir()] == [".hidden"]


@pytest.mark.usefixtures("painted")
def test_a_budget_is_told_with_what_was_not_measured(in_tmp, capsys):
    assert main(["prune", SAMPLE, *FEW, "--budget", "0.001s"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Not measured, because the time budget of 0.001 s ended: " in printed
    code, predicted = run_json(capsys, "prune", SAMPLE, *FEW, "--budget", ".001")
    assert (code, predicted["pruning"]["budget"]) == (0, 0.001)
    assert any("random orders" in part for part in predicted["pruning"]["not_measured"])
    assert Path(predicted["files"]["pictures"][0]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("_never_searched")
@pytest.mark.parametrize("budget", ["soon", "-5m", "0", "5 min", "1e400", "nan", ""])
def test_a_budget_that_is_no_time_is_refused(in_tmp, capsys, budget):
    assert main(["prune", SAMPLE, *FEW, f"--budget={budget}"]) == 2
    told = capsys.readouterr().err
    assert f"--budget must be a time above 0, got {budget!r}" in told
    assert "90s, 5m or 1h" in told
