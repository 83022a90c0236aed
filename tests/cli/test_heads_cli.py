"""`headcount heads --stats`: a table, one JSON object, files, and errors that say what to do."""

import json
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest

from headcount.analysis.head_labels import N_CONTROLS, RANK, THRESHOLDS
from headcount.analysis.specialisation import Specialisation, specialise
from headcount.cli import main

pytestmark = pytest.mark.slow  # together they take over 5 s


def run_json(capsys, *arguments):
    code = main([*map(str, arguments), "--json", "--quiet"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("little_work")
def test_statistics_of_a_run_and_of_its_twin(tiny_sorter, capsys):
    path = tiny_sorter.folder.path
    code, predicted = run_json(capsys, "heads", path, "--stats", "--match", path)
    assert (code, predicted["type"], predicted["n"], predicted["name"]) == (0, "Specialisation", 1000, str(path))
    assert [head["head"] for head in predicted["heads"]] == [str(head) for head in tiny_sorter.model.heads]
    keys = {"measure", "column", "condition", "mean", "se", "n", "even"}
    assert all(set(measure) == keys for head in predicted["heads"] for measure in head["measures"])
    (match,) = predicted["matches"]
    assert match["type"] == "Matching"
    assert [pair["partner"] for pair in match["kinds"][0]["pairs"]] == ["layer.0.self.0", "layer.0.self.1"]
    assert len(predicted["files"]["data"]) == 1 + 1
    assert len(predicted["files"]["pictures"]) == 2 + 1
    assert all(Path(file).exists() for files in predicted["files"].values() for file in files)


@pytest.mark.slow
def test_statistics_of_the_sample(in_tmp, capsys, monkeypatch):
    monkeypatch.setattr("headcount.api.heads.specialise", partial(specialise, controls=(19, 1)))
    code, predicted = run_json(capsys, "heads", "sample:addition", "--stats")
    assert code == 0
    labels = {head["short"]: head["label"] for head in predicted["heads"]}
    assert labels["E0H2"].startswith("mostly carry column")
    assert labels["E1H3"].startswith("mostly aligned column (0.9")
    assert labels["D0H0"].startswith("mostly previous output")
    assert all(label.startswith("mostly aligned column") for short, label in labels.items() if short.startswith("X"))
    assert labels["E0H0"] == ""
    moved = {head["short"]: head["shifts"][0] for head in predicted["heads"]}
    assert moved["E0H2"]["measure"] == "attention moved"
    assert moved["E0H2"]["mean"] > 10 * moved["E0H2"]["se"], "it reads the carry"
    assert abs(moved["E0H3"]["mean"]) < 0.01, "it reads digits"
    assert moved["D0H0"]["across"] == 0, "it sees nothing of the lower column"
    assert len(predicted["files"]["pictures"]) == 4


def test_statistics_for_people(tiny_sorter, capsys):
    assert main(["heads", str(tiny_sorter.folder.path), "--stats", "--length", "9", "--quiet"]) == 0
    predicted = capsys.readouterr().out
    assert "1,000 examples (new sequences of 9 tokens, half of them sorted)" in predicted
    assert THRESHOLDS.words[1:] in predicted
    assert "on average, at most 5.0 % of models that learned nothing get any label" in predicted
    assert "left" in predicted
    assert "sparsity" in predicted
    stats = tiny_sorter.folder.read_result("head-stats-9", Specialisation)
    sparsity = stats.heads[0].find("sparsity")
    assert f"{100 * sparsity.mean:.1f} ± {100 * sparsity.half():.1f}" in predicted, "half of the 95 % CI"
    assert "L0H1" in predicted
    assert (tiny_sorter.folder.path / "figures" / "head-stats-9.png").exists()
    assert (tiny_sorter.folder.path / "results" / "head-stats-9.json").exists()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--length", "9"], "add --stats"),
        (["--match", "sample:addition"], "add --stats"),
        (["--norm-weighted"], "add --on, --all-test or --stats"),
        (["--stats", "--norm-weighted", "--match", "sample:sortedness"], "leave --norm-weighted out, or --match"),
        (["--stats", "--length", "1"], "from 2 to 8,192"),
        (["--stats", "--match", "sample:addition"], "choose two models of one task"),
        (["--stats", "--match", "sample:sortedness"], "n_values: 20"),
        (["--stats", "--match", "runs/none"], "there is no model in runs/none"),
    ],
)
def test_what_cannot_be_is_told(tiny_sorter, in_tmp, capsys, arguments, what):
    assert main(["heads", str(tiny_sorter.folder.path), *arguments]) == 2
    assert what in capsys.readouterr().err


def test_an_answer_that_is_wrong_is_told(tiny_run, capsys):
    path = str(tiny_run.folder.path)
    prediction = tiny_run.predict_one("3+4")
    assert prediction.explanation, "hardly trained"
    assert main(["heads", path, "--on", "3+4"]) == 0
    assert f"3+4 = {prediction.predicted} (wrong: {prediction.explanation}; probability" in capsys.readouterr().out
    code, predicted = run_json(capsys, "heads", path, "--on", "3+4")
    assert (code, predicted["predicted"], predicted["right"]) == (0, prediction.predicted, "07")
    assert (predicted["correct"], predicted["explanation"]) == (False, prediction.explanation)


def test_one_head_over_several_examples_is_one_page(tiny_run, capsys):
    path = str(tiny_run.folder.path)
    asked = ["heads", path, "--head", "X1H1", "--on", "3+4", "--on", "9+9", "--on", "3+4"]
    code, predicted = run_json(capsys, *asked)
    assert (code, predicted["head"]) == (0, "decoder.1.cross.1")
    assert [(each["example"], each["right"]) for each in predicted["examples"]] == [("3+4", "07"), ("9+9", "18")]
    (picture,) = predicted["files"]["pictures"]
    assert Path(picture).name == "head-X1H1-3+4_9+9.png"
    assert all(Path(file).exists() for file in (picture, *predicted["files"]["data"]))
    assert main([*asked, "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("figure: ") == 1
    assert printed.count("wrong: ") == sum(not each["correct"] for each in predicted["examples"])


def test_one_head_on_one_example_is_alone(tiny_run, capsys):
    code, predicted = run_json(capsys, "heads", tiny_run.folder.path, "--head", "E0H1", "--on", "3+4")
    assert code == 0
    assert [Path(file).name for file in predicted["files"]["pictures"]] == ["encoder.0.self.1.png"]


def test_several_examples_are_drawn_one_after_the_other(tiny_run, capsys):
    path = tiny_run.folder.path
    code, predicted = run_json(capsys, "heads", path, "--on", "3+4", "--on", "9+9")
    assert code == 0
    assert [each["example"] for each in predicted["examples"]] == ["3+4", "9+9"]
    assert all(Path(file).exists() for each in predicted["examples"] for file in each["files"]["pictures"])
    assert main(["heads", str(path), "--on", "3+4", "--on", "12+1"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, "is out of range" in printed.err) == ("", True)
    assert main(["heads", str(path), "--on", "3+4", "--head", "E7H1"]) == 2
    assert "no head 'encoder.7.self.1'" in capsys.readouterr().err


def test_only_one_thing_is_asked_at_once(capsys):
    with pytest.raises(SystemExit):
        main(["heads", "sample:addition", "--on", "1+1", "--all-test"])
    assert "not allowed with" in capsys.readouterr().err
    assert main(["heads", "sample:addition", "--stats", "--all-test"]) == 2
    assert "it cannot be combined with --all-test or --head" in capsys.readouterr().err


def test_help_states_the_thresholds(capsys):
    with pytest.raises(SystemExit):
        main(["heads", "--help"])
    predicted = " ".join(capsys.readouterr().out.split())
    t = THRESHOLDS
    assert len(fields(t)) == 5, "a new threshold belongs into the help"
    assert f"attention on the target is at least {t.partly:g} above uniform attention" in predicted
    assert f"lower {100 * t.confidence:g} % confidence bound" in predicted
    assert f"(“mostly”: {t.mostly:g})" in predicted
    assert f"entropy is at least {100 * t.entropy_share:g} % of the maximum" in predicted
    assert f"at most {100 * RANK / (N_CONTROLS + 1):g} % of such models get any label" in predicted
    assert f"“More when” needs a difference of at least {t.difference:g}" in predicted
