"""Models of others on the command line: one JSON object, exit codes, and errors that say what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_work")]  # models of others

HERE = Path(__file__).parents[1]

import dataset_models as texts  # noqa: E402
import hub_models as hub  # noqa: E402
import torch  # noqa: E402

from headcount.cli import main  # noqa: E402

ADDER = f"{HERE / 'foreign_adder' / 'adder_adapter.py'}:Adder"
MANY = [f"{a} and {b}" for a in texts.TEXTS for b in texts.TEXTS]


@pytest.fixture
def model(in_tmp: Path) -> str:
    made = texts.classifier(max_position_embeddings=64).float()
    made.save_pretrained("model")
    texts.tokenizer().save_pretrained("model")
    Path("data.tsv").write_text(texts.own_labels(made, MANY))
    return "model"


def files(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What was printed: one object, and nothing but."""
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    return json.loads(printed)


def test_what_heads_there_are(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    predicted = run_json(capsys, "heads", model)
    at = "bert.encoder.layer.1.attention.output.dense"
    assert predicted["heads"][5] == {"head": "layer.1.self.1", "short": "L1H1", "projection": at}
    assert len(predicted["heads"]) == 12
    assert main(["heads", model]) == 0
    printed = capsys.readouterr().out
    assert "BertForSequenceClassification, 12 heads" in printed
    assert all(part in printed for part in ("layer.2.self", "L2H0  L2H1  L2H2  L2H3", at))
    assert not Path("runs").exists()


@pytest.mark.usefixtures("painted")
def test_where_heads_attend(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(model)
    predicted = run_json(capsys, "heads", model, "--on", "the cat sat", "--head", "L1H2")
    assert predicted["axes"][0]["tokens"] == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    names = {Path(path).name for path in predicted["files"]["pictures"]}
    assert "layer.1.self.2.png" in names
    assert len(names) == 2
    for path in (*predicted["files"]["pictures"], *predicted["files"]["data"]):
        assert Path(path).stat().st_size > 100
        assert path.startswith("runs/model/")
    assert main(["heads", model, "--on", "the cat sat"]) == 0
    printed = capsys.readouterr().out
    assert "figure:  runs/model/figures/heads-the_cat_sat/layer-self.png" in printed.replace("\n", " ")
    assert files(model) == before


@pytest.mark.usefixtures("painted")
def test_one_head_over_several_texts(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    predicted = run_json(capsys, "heads", model, "--head", "L1H2", "--on", "the cat sat", "--on", "the mat")
    assert [each["title"] for each in predicted["examples"]] == ["the cat sat", "the mat"]
    (page,) = {Path(each["files"]["pictures"][-1]) for each in predicted["examples"]}
    assert re.fullmatch(r"head-L1H2-the_cat_sat_the_mat-[0-9a-f]{12}\.png", page.name)
    assert page.read_bytes().startswith(b"\x89PNG")


def test_an_adapters_answer_is_right_or_wrong(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predicted = run_json(capsys, "heads", ADDER, "--on", "37+81")
    assert (predicted["predicted"], predicted["right"], predicted["correct"]) == ("118", "118", True)
    assert predicted["note"] == "37+81 = 118 (right)"
    assert "correct" not in run_json(capsys, "heads", ADDER, "--on", "374+814"), "not a sum of its task"


def test_what_heads_are_worth(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(model)
    predicted = run_json(capsys, "ablate", model, "--data", "data.tsv", "--replacements", "zero", "--quiet")
    assert (predicted["type"], predicted["name"], predicted["metric"]) == ("Ablation", "model", "accuracy")
    assert (predicted["conditions"][0]["n"], predicted["conditions"][0]["clean"]) == (36, 1.0)
    assert len(predicted["heads"]) == 12
    assert max(each["drop"] for each in predicted["heads"]) > 0
    assert all(Path(path).exists() for path in predicted["files"]["pictures"])
    few = run_json(capsys, "ablate", model, "--data", "data.tsv", "--n", "20", "--metric", "loss", "--quiet")
    assert (few["conditions"][0]["n"], few["unit"], few["replacements"]) == (20, "nats", ["zero", "resample", "mean"])
    assert main(["ablate", model, "--data", "data.tsv", "--replacements", "zero"]) == 0
    printed = capsys.readouterr()
    assert "L2H3" in printed.out
    assert "36 texts of data.tsv" in printed.out
    assert "ablating heads of model" in printed.err
    assert files(model) == before


def test_heads_are_cut_out_and_what_is_left_is_a_model(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(model)
    ask = ("--data", "data.tsv", "--quiet")
    predicted = run_json(capsys, "prune", model, *ask, "-o", "small", "--heads", "L0H1,layer.2.self.0")
    assert predicted["pruning"] is None
    assert predicted["model"] == "small"
    assert predicted["cut"]["heads"] == ["layer.0.self.1", "layer.2.self.0"]
    left = [each["short"] for each in run_json(capsys, "heads", "small")["heads"]]
    assert len(left) == 10
    assert not {"L0H1", "L2H0"} & set(left)
    again = run_json(capsys, "ablate", "small", "--replacements", "zero", *ask)
    assert [each["short"] for each in again["heads"]] == left
    smaller = run_json(capsys, "prune", "small", *ask, "-o", "smaller", "--heads", "L1H1")
    assert smaller["cut"]["heads"] == ["layer.1.self.1"]
    assert len(run_json(capsys, "heads", "smaller")["heads"]) == 9
    assert files(model) == before


def test_a_search_for_people(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("--data", "data.tsv", "--metric", "loss", "--loss", "0.05", "--orders", "2", "--quiet")
    assert main(["prune", model, *ask, "-o", "small"]) == 0
    printed = capsys.readouterr().out
    assert "greedy" in printed
    (figure,) = Path("runs/model/figures").glob("pruning-*.png")
    assert f"figure:  {figure}" in printed
    assert Path("small/headcount.safetensors").exists()


WRONG: dict[str, tuple[list[str], str]] = {
    "nothing to ask": (["ablate", "model"], "add --data FILE"),
    "nothing to ask, prune": (["prune", "model"], "add --data FILE"),
    "no such file": (["ablate", "model", "--data", "no.tsv"], "could not read no.tsv"),
    "two things to ask": (["ablate", "model", "--data", "data.tsv", "--split", "test"], "leave one out"),
    "metric": (["ablate", "model", "--data", "data.tsv", "--metric", "acuracy"], "did you mean 'accuracy'"),
    "kind": (["ablate", "model", "--data", "data.tsv", "--replacements", "silence"], "zero, resample, mean"),
    "too few": (["ablate", "model", "--data", "data.tsv", "--n", "1"], "at least 2"),
    "none": (["ablate", "model", "--data", "data.tsv", "--n", "0"], "at least 2"),
    "less than none": (["ablate", "model", "--data", "data.tsv", "--n", "-4"], "at least 2"),
    "no halves": (["prune", "model", "--data", "data.tsv", "--n", "3"], "at least 4"),
    "no halves of none": (["prune", "model", "--data", "data.tsv", "--n", "0"], "at least 4"),
    "lengths": (["ablate", "model", "--data", "data.tsv", "--lengths", "4"], "leave the lengths out"),
    "what broke": (["ablate", "model", "--data", "data.tsv", "--examples"], "leave --examples out"),
    "batch": (["ablate", "model", "--data", "data.tsv", "--batch-size", "0"], "at least 1"),
    "fine-tune": (["prune", "model", "--data", "data.tsv", "-o", "x", "--fine-tune", "3"], "with its own code"),
    "no folder": (["prune", "model", "--data", "data.tsv", "--heads", "L0H0"], "add -o DIR"),
    "no such head": (
        ["prune", "model", "--data", "data.tsv", "--heads", "L5H0", "-o", "x"],
        "no head 'layer.5.self.0'",
    ),
    "folder taken": (["prune", "model", "--data", "data.tsv", "--heads", "L0H0", "-o", "model"], "not empty"),
    "no such head to look at": (["heads", "model", "--on", "a cat", "--head", "L0H7"], "no head"),
    "a head, but no text": (["heads", "model", "--head", "L0H1"], 'add --on "a text"'),
    "an empty text": (["heads", "model", "--on", " "], "empty text"),
    "measured": (["heads", "model", "--stats", "--match", "model"], "give texts: --on"),
    "norms": (
        ["heads", "model", "--on", "a cat", "--norm-weighted"],
        "--norm-weighted needs a model that headcount trained",
    ),
    "on average": (["heads", "model", "--all-test"], 'or look at a text: --on "a text"'),
    "positions": (["positions", "model"], "write an adapter"),
}


@pytest.mark.parametrize(("arguments", "what"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_told_and_nothing_is_written(
    model: str, arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(".")
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "error: " in printed.err
    assert what in printed.err
    assert "Traceback" not in printed.err
    assert files(".") == before


@pytest.mark.parametrize("verb", ["verify", "evaluate", "stretch"])
def test_what_needs_a_task_says_so(model: str, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, model]) == 2
    predicted = capsys.readouterr().err
    assert f"error: {model} has no task, so the right answers are not known" in predicted
    assert f"headcount ablate {model} --data FILE" in predicted


def test_an_adapter_predicts_and_a_model_without_a_task_says_why_not(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_json(capsys, "predict", ADDER, "37+81", "--without", "E0H0,E0H1,E0H2,E0H3")
    assert (found["predicted"], found["right"], found["correct"], found["probability"]) == ("118", "118", True, None)
    assert found["without"]["proven_sites"] == 6
    assert main(["predict", ADDER, "37+81"]) == 0
    assert "37+81 = 118  (right)" in capsys.readouterr().out
    assert main(["predict", model, "37+81"]) == 2
    assert "has no task" in capsys.readouterr().err


def test_other_kinds_of_model_and_data(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.build("gpt2", torch.float32).save_pretrained("decoder")
    hub.build("t5", torch.float32).save_pretrained("both")
    for name, frame in (("decoder", "$A"), ("both", "$A </s>")):
        texts.tokenizer(frame).save_pretrained(name)
    Path("text.txt").write_text(" ".join(texts.TEXTS * 4))
    Path("answers.tsv").write_text(texts.table(("source", "target"), *((a, a) for a in texts.TEXTS)))
    for name, data, n_heads in (("decoder", "text.txt", 12), ("both", "answers.tsv", 24)):
        predicted = run_json(capsys, "ablate", name, "--data", data, "--replacements", "zero", "--quiet")
        assert (predicted["metric"], len(predicted["heads"])) == ("loss", n_heads)
    shown = run_json(capsys, "heads", "both", "--on", "the cat sat", "--head", "X1H0")
    assert shown["axes"][0]["tokens"][:3] == ["the", "cat", "sat"]
    assert main(["ablate", "both", "--data", "text.txt"]) == 2
    assert "source and target" in capsys.readouterr().err


# --- a stranger's adder, by its adapter -------------------------------------------------------------------------------


def test_verbs_take_an_adapter_as_they_take_a_run(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heads = [each["short"] for each in run_json(capsys, "heads", ADDER)["heads"]]
    assert heads == [f"{site}H{i}" for site in ("E0", "E1", "D0", "D1", "X0", "X1") for i in range(4)]
    shown = run_json(capsys, "heads", ADDER, "--on", "37+81", "--head", "X1H2")
    assert shown["note"] == "37+81 = 118 (right)"
    assert [axis["tokens"] for axis in shown["axes"]] == [list("37+81"), ["<s>", *"118"]]
    ablated = run_json(capsys, "ablate", ADDER, "--n", "60", "--replacements", "zero,resample", "--quiet")
    assert [each["short"] for each in ablated["heads"]] == heads * 2
    assert main(["ablate", ADDER, "--lengths", "4"]) == 2
    assert "all examples of addition have the same length" in capsys.readouterr().err


@pytest.mark.usefixtures("painted")
def test_curves_of_an_adapter_without_a_cut(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predicted = run_json(capsys, "prune", ADDER, "--n", "60", "--orders", "2", "--quiet")
    assert (predicted["cut"], predicted["model"]) == (None, None)
    found = predicted["pruning"]
    assert {curve["name"] for curve in found["curves"]} == {"alone", "together", "every way", "greedy", "gradient"}
    assert all(len(curve["points"]) == 25 for curve in found["curves"])
    assert found["n"] == 60
    assert "validation set of addition" in found["chosen_on"]
    assert "test set of addition" in found["measured_on"]
    assert Path(predicted["files"]["data"][0]).exists()
    assert Path(predicted["files"]["pictures"][0]).read_bytes().startswith(b"\x89PNG")
