"""`headcount ablate`: one JSON object, tables, figures, and errors that say what to do."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from headcount.analysis.ablation import Ablation
from headcount.cli import main
from headcount.hooks import REPLACEMENTS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_work")]  # together they take over 5 s

KEYS = {"head", "replacement", "metric", "drop", "low", "high", "p", "band"}


def run_json(capsys, *arguments):
    code = main([*map(str, arguments), "--json", "--quiet"])
    return code, json.loads(capsys.readouterr().out)


def files(folder):
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")}


@pytest.fixture(scope="module")
def adder(good_run):
    return str(good_run.folder.path)


@pytest.fixture(scope="module")
def sorter(tiny_sorter):
    return str(tiny_sorter.folder.path)


def test_every_head_in_every_way(adder, good_run, capsys):
    code, predicted = run_json(capsys, "ablate", adder, "--n", "30")
    assert (code, predicted["type"], predicted["name"], predicted["metric"]) == (0, "Ablation", adder, "free-running")
    tried = {(effect["head"], effect["replacement"]) for effect in predicted["heads"]}
    assert tried == {(str(head), kind) for head in good_run.model.heads for kind in REPLACEMENTS.names()}
    assert len(predicted["heads"]) == len(tried)
    for effect in predicted["heads"]:
        assert effect.keys() >= KEYS
        assert effect["low"] <= effect["drop"] <= effect["high"]
        assert effect["drop"] == pytest.approx(effect["clean"] - effect["ablated"])
        assert 0 <= effect["p"] <= 1
        assert effect["band"] in ("critical", "important", "redundant", "undecided")
        assert (effect["examples_needed"] is not None) <= (effect["band"] == "undecided")
        assert (effect["metric"], effect["length"]) == ("free-running", None)
    assert max(effect["drop"] for effect in predicted["heads"]) > 0
    (condition,) = predicted["conditions"]
    assert (condition["n"], condition["decoded"]) == (30, 8 * 10 * (1 + 1 + 4))
    assert condition["data"] == "the test set and 20 new examples, drawn as in training"


@pytest.mark.usefixtures("painted")
def test_files_are_what_was_printed(sorter, capsys):
    code, predicted = run_json(capsys, "ablate", sorter)
    written = Ablation.from_json(Path(predicted["files"]["data"][0]).read_text())
    assert code == 0
    assert json.loads(json.dumps(written.to_dict())).items() <= predicted.items()
    assert [Path(path).name for path in predicted["files"]["pictures"][:2]] == ["ablation.png", "ablation-map.png"]
    for path in predicted["files"]["pictures"][:2]:
        assert Path(path).read_bytes().startswith(b"\x89PNG")
        assert Path(path).stat().st_size > 5_000


def test_what_was_asked_otherwise_is_kept_beside_and_not_over(tiny_sorter, tmp_path, capsys):
    others = shutil.ignore_patterns("results", "figures")  # of other tests
    folder = Path(shutil.copytree(tiny_sorter.folder.path, tmp_path / "sorter", ignore=others))
    _, first = run_json(capsys, "ablate", folder)
    before = {path: Path(path).read_bytes() for path in (*first["files"]["data"], *first["files"]["pictures"])}
    asked = [
        ["--n", "10", "--replacements", "zero"],
        ["--metric", "loss"],
        ["--split", "validation"],
        ["--batch-size", "8"],
    ]
    more = [run_json(capsys, "ablate", folder, *each)[1] for each in asked]
    assert {path: Path(path).read_bytes() for path in before} == before
    paths = [path for each in (first, *more) for path in (*each["files"]["data"], *each["files"]["pictures"])]
    assert len(set(paths)) == len(paths)
    again = run_json(capsys, "ablate", folder, "--replacements", "zero,mean,resample", "--split", "test")[1]
    assert again["files"]["data"] == first["files"]["data"], "given in full, the defaults are the defaults"
    assert main(["ablate", str(folder), "--n", "12", "--replacements", "zero", "--quiet"]) == 0
    assert "ablation-zero-n12.json  (the newest of 6 such files; the others: ablation" in capsys.readouterr().out


def test_the_table_as_markdown_and_as_csv(sorter, capsys):
    asked = ["ablate", sorter, "--lengths", "4,6", "--n", "20", "--quiet"]
    code, predicted = run_json(capsys, *asked[:-1])
    assert code == 0
    markdown, table = map(Path, predicted["files"]["tables"])
    assert (markdown, table) == tuple(Path(predicted["files"]["data"][0]).with_suffix(end) for end in (".md", ".csv"))
    rows = list(csv.DictReader(table.read_text().splitlines()))
    for row, effect in zip(rows, predicted["heads"], strict=True):
        assert {name: value or None for name, value in row.items()} == {
            name: None if value is None else str(value) for name, value in effect.items()
        }
    for form, file in (("markdown", markdown), ("csv", table)):
        assert main([*asked, "--format", form]) == 0
        assert capsys.readouterr().out == file.read_text()
    assert main([*asked, "--format", "table"]) == 0
    assert f"table:   {markdown}" in capsys.readouterr().out
    assert markdown.read_text().count("| head | rank (zero) | gradient | zero | resample | mean |") == 2
    assert main([*asked, "--format", "csv", "--json"]) == 2
    assert "leave one out" in capsys.readouterr().err


def test_some_replacements_on_another_split(sorter, capsys):
    code, predicted = run_json(
        capsys, "ablate", sorter, "--replacements", "resample, zero", "--split", "validation", "--n", "20"
    )
    assert (code, predicted["replacements"]) == (0, ["resample", "zero"])
    assert [effect["replacement"] for effect in predicted["heads"]] == ["resample"] * 2 + ["zero"] * 2
    assert predicted["conditions"][0]["data"] == "the validation set"


@pytest.mark.usefixtures("painted")
def test_lengths_are_told_apart(sorter, capsys):
    code, predicted = run_json(capsys, "ablate", sorter, "--lengths", "4,6", "--n", "20")
    assert code == 0
    assert [effect["length"] for effect in predicted["heads"]] == [4] * 6 + [6] * 6
    assert [(each["length"], each["n"]) for each in predicted["conditions"]] == [(4, 20), (6, 20)]
    names = [Path(path).name for path in predicted["files"]["pictures"] if path.endswith("png")]
    each = [f"ablation-n20-4-6-at-{length}{map_}.png" for length in (4, 6) for map_ in ("", "-map")]
    assert names == ["ablation-n20-4-6-by-length.png", *each]
    assert all(Path(path).stat().st_size > 5_000 for path in predicted["files"]["pictures"] if path.endswith("png"))
    assert {effect.length for effect in Ablation.from_json(Path(predicted["files"]["data"][0]).read_text()).heads} == {
        4,
        6,
    }


def test_a_loss_has_no_points(sorter, capsys):
    code, predicted = run_json(capsys, "ablate", sorter, "--metric", "loss", "--replacements", "zero")
    assert (code, predicted["unit"], predicted["is_accuracy"]) == (0, "nats", False)
    for effect in predicted["heads"]:
        assert (effect["band"], effect["examples_needed"], effect["metric"]) == (None, None, "loss")
        before, after = -effect["clean"], -effect["ablated"]
        assert min(before, after) > 0
        assert effect["drop"] == pytest.approx(after - before, abs=1e-9), "the loss rises by this much"


def test_a_loss_is_printed_as_a_loss(sorter, capsys):
    assert main(["ablate", sorter, "--metric", "loss", "--replacements", "zero", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "rise of the loss (nats)" in out
    assert "critical" not in out


@pytest.mark.slow
def test_what_broke_is_told(adder, good_run, capsys):
    arguments = ["ablate", adder, "--n", "60", "--replacements", "zero", "--examples", "--quiet"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    predicted = json.loads((good_run.folder.path / "results" / "ablation-zero-n60-examples.json").read_text())
    worse = {effect["head"]: effect["worse"] for effect in predicted["heads"]}
    some = [each for each in predicted["conditions"][0]["failures"] if each["n_broken"]]
    assert some
    for each in some:
        assert each["n_broken"] == worse[each["head"]]
        caption = f"Without {each['head']} (zero ablation): {each['n_broken']} of 60 answers become wrong"
        assert caption in printed
        assert [place["group"] for place in each["places"]] == ["10s", "1s"]
        assert sum(place["broken"] for place in each["places"]) >= each["n_broken"]
        assert all(place["n"] == each["n_broken"] for place in each["places"])
        assert sum(fault["broken"] for fault in each["faults"]) >= each["n_broken"]
        for facet in ("carries", "longest chain", "sum"):
            groups = [group for group in each["groups"] if group["facet"] == facet]
            assert (sum(g["broken"] for g in groups), sum(g["n"] for g in groups)) == (each["n_broken"], 60)
        wrong = each["examples"][0]
        assert wrong["predicted"] != wrong["right"] == f"{sum(map(int, wrong['example'].split('+'))):02}"
    assert ": predicted " in printed


@pytest.mark.slow
def test_for_people(sorter, tiny_sorter, capsys):
    assert main(["ablate", sorter, "--n", "20"]) == 0
    printed = capsys.readouterr()
    assert "ablating heads" in printed.err
    for text in (
        "L0H0",
        "L0H1",
        "mean",
        "resample",
        "zero",
        "gradient",
        "No head gets a band of importance",
        "n = 20 (the test set)",
    ):
        assert text in printed.out
    for name in ("ablation-n20.png", "ablation-n20-map.png"):
        assert str(tiny_sorter.folder.path / "figures" / name) in printed.out
    assert main(["ablate", sorter, "--n", "20", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--replacements", "silence"], "zero, resample, mean"),
        (["--replacements", "zero,,mean"], "zero, resample, mean"),
        (["--replacements", ""], "zero, resample, mean"),
        (["--metric", "los"], "did you mean 'loss'"),
        (["--metric", "free-running"], "accuracy"),
        (["--split", "exam"], "there are: validation, test"),
        (["--n", "1"], "at least 2"),
        (["--n", "0"], "at least 2"),
        (["--n", "-4"], "at least 2"),
        (["--lengths", "abc"], "write it as 16,64,256"),
        (["--lengths", "4,,6"], "write it as 16,64,256"),
        (["--lengths", ""], "write it as 16,64,256"),
        (["--lengths", "1"], "2"),
        (["--lengths", "-4"], "2"),
        (["--lengths", "4", "--n", "1"], "at least 2"),
        (["--lengths", "4", "--n", "0"], "at least 2"),
        (["--lengths", "4", "--n", "-4"], "at least 2"),
        (["--batch-size", "0"], "at least 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_told_and_nothing_is_written(sorter, arguments, what, capsys):
    before = files(sorter)
    assert main(["ablate", sorter, *arguments, "--quiet"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert what in printed.err
    assert {path: time for path, time in files(sorter).items() if path.is_file()} == {
        path: time for path, time in before.items() if path.is_file()
    }


def test_sums_have_no_lengths(adder, capsys):
    assert main(["ablate", adder, "--lengths", "4,6"]) == 2
    assert "leave the lengths out" in capsys.readouterr().err


def test_a_run_that_is_not_there(in_tmp, capsys):
    assert main(["ablate", "runs/none"]) == 2
    assert "there is no model in runs/none" in capsys.readouterr().err
    assert not any(in_tmp.iterdir())


def test_a_mistake_leaves_no_folder_for_a_sample(in_tmp, capsys):
    assert main(["ablate", "sample:addition", "--replacements", "silence", "--quiet"]) == 2
    capsys.readouterr()
    assert not any(in_tmp.iterdir())
