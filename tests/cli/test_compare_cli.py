"""`headcount compare`: tables over seeds, files, and clear errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import headcount
from headcount.cli import main
from headcount.describing.comparison import describe
from headcount.errors import InputError, RunError
from headcount.studies.plan import RECEIPTS, result_files
from headcount.studies.rows import COLUMNS, Row
from headcount.studies.summary import SeedSummary, summarise


def write_run(path: Path, seed: int, rate: float, task: str = "addition", **model: Any) -> None:
    """Write the files of a finished run that `compare` reads."""
    (path / "results").mkdir(parents=True)
    config = {"task_name": task, "seed": seed, "task": {"low": None}, "model": model, "training": {"threads": seed}}
    (path / "config.json").write_text(json.dumps(config))
    (path / "manifest.json").write_text(json.dumps({"steps": 10, "files": {}}))
    share = {"correct": int(100 * rate), "n": 100, "rate": rate, "low": rate, "high": rate}
    exact = {"facet": "exact match", "group": "all", "teacher_forced": None, "free_running": share}
    result = {"type": "Evaluation", "schema": 2, "exact": exact, "digits": [], "groups": []}
    (path / "results" / "evaluation-test.json").write_text(json.dumps(result))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for encoding, rates in {"learned": (0.2, 0.4, 0.6), "rotary": (0.5, 0.7, 0.9)}.items():
        for seed, rate in enumerate(rates):
            write_run(tmp_path / "runs" / f"{encoding}-{seed}", seed, rate, encoding=encoding)
    return tmp_path / "runs"


def test_a_folder_of_runs_is_compared(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs), "--by", "encoding", "--measure", "exact match"]) == 0
    shown = capsys.readouterr().out
    assert "6 runs of the task addition are compared by encoding: learned and rotary." in shown
    assert "20.0, 40.0, 60.0" in shown
    assert "rotary - learned" in shown
    assert "30.0 points" in shown
    assert "With 3 pairs of runs, the smallest possible p-value is 0.25." in shown


def test_json_figures_and_a_table_of_all_rows(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = tmp_path / "rows.csv", tmp_path / "there"
    assert main(["compare", str(runs), "--csv", str(table), "-o", str(out), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["by"], data["names"]) == (["encoding"], ["learned", "rotary"])
    (file,) = (out / "results").glob("*.json")
    stored = SeedSummary.from_json(file.read_text())
    assert [each.mean for each in stored.of("exact match")] == pytest.approx([0.4, 0.7])
    assert len(list((out / "figures").glob("*.png"))) == 1
    with table.open() as lines:
        rows = list(csv.DictReader(lines))
    assert {row["encoding"] for row in rows} == {"learned", "rotary"}
    assert {row["measure"] for row in rows} == {"exact match", "steps"}


def test_runs_that_differ_in_seeds_only(runs: Path) -> None:
    summary = headcount.compare_runs(sorted(runs.glob("learned-*"))).result
    assert (summary.by, summary.names, summary.n_runs) == ((), ("all runs",), 3)


def test_one_run_per_variant_has_no_interval(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs / "learned-0"), str(runs / "rotary-0")]) == 0
    assert "Each variant has only one run, so there is no interval" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        (["learned-0", "sorter"], {}, "different tasks: addition, sortedness"),
        (
            ["learned-0", "learned-1"],
            {"by": "encoding"},
            "runs cannot be compared by encoding, which is learned in all of them",
        ),
        (["learned-0", "rotary-0"], {"by": "encodin"}, "did you mean 'encoding'"),
        (["learned-0", "rotary-0"], {"by": "seed"}, "cannot be compared by seed"),
        (["learned-0", "rotary-0"], {"measures": ["exact mtch"]}, "did you mean 'exact match'"),
        (["learned-0"], {}, "nothing to compare"),
        (["nowhere"], {}, "no run in"),
    ],
)
def test_what_cannot_be_compared(runs: Path, names: list[str], settings: dict[str, Any], message: str) -> None:
    write_run(runs / "sorter", 0, 0.5, task="sortedness")
    with pytest.raises((InputError, RunError), match=message):
        headcount.compare_runs([runs / name for name in names], **settings)


def test_rankings_are_told_in_words() -> None:
    def row(seed: int, head: str, value: float) -> Row:
        about = {"task": "addition", "seed": seed, "verb": "ablate", "file": "ablation", "measure": "drop"}
        place = {"head": head, "site": head[:2], "layer": int(head[1]), "value": value, "unit": "points"}
        return {**dict.fromkeys(COLUMNS), "run": str(seed), **about, **place}

    drops = {"E0H0": 0.1, "E0H1": 0.2, "E1H0": 0.6, "E1H1": 0.5}
    rows = [row(seed, head, value + 0.01 * seed) for seed in range(8) for head, value in drops.items()]
    texts = str(describe(summarise(rows), ["drop"]))
    assert "layer 1 ranks above layer 0 in 8 of 8" in texts
    assert "the ranking of layers agrees over seeds (Kendall's W = 1.00" in texts


# --- studies ----------------------------------------------------------------------------------------------------------


def write_study(root: Path, name: str, parts: dict[str, str], n_trained: int = 2) -> Path:
    """Write the plan of a study with two variants and three seeds for each part, and its first runs."""
    planned = []
    for part, task in parts.items():
        for encoding in ("learned", "rotary"):
            for seed in range(3):
                folder = root / "runs" / "models" / f"{task}-{part}{encoding}{seed}"
                labels = {"encoding": encoding}
                run = {"run": f"{part}{encoding}-{seed}", "folder": f"elsewhere/{folder.name}", "part": part}
                planned.append({**run, "seed": seed, "labels": labels, "commands": [], "receipts": ["train"]})
                if seed < n_trained:
                    write_run(
                        folder, seed, 0.2 * seed + 0.5 * (encoding == "rotary"), task, encoding=encoding, n_heads=seed
                    )
                    (folder / RECEIPTS).mkdir()
                    (folder / RECEIPTS / "train.json").write_text(json.dumps({"results": [*result_files(folder)]}))
    folder = root / "runs" / name
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"schema": 1, "study": name, "title": name, "runs": planned}))
    return folder


def test_a_study_is_compared_by_its_variants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(tmp_path, "mine", {"": "addition"}, n_trained=3)
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "mine", "--measure", "exact match"]) == 0
    shown = capsys.readouterr().out
    assert "6 runs of the task addition are compared by encoding: learned and rotary." in shown
    assert "planned" not in shown
    by_folder = headcount.compare_runs([tmp_path / "runs" / "mine"], measures=["exact match"]).result
    assert by_folder == headcount.compare_runs(["mine"], measures=["exact match"]).result
    assert [each.n for each in by_folder.of("exact match")] == [3, 3]
    assert (by_folder.n_planned, by_folder.labels) == (6, ({"encoding": "learned"}, {"encoding": "rotary"}))


def test_an_unfinished_study_says_how_much_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_study(tmp_path, "mine", {"": "addition"}, n_trained=2)
    assert main(["compare", str(folder)]) == 0
    assert "4 of 6 planned runs are finished and compared here." in capsys.readouterr().out


def test_settings_that_are_no_labels_can_be_named(tmp_path: Path) -> None:
    folder = write_study(tmp_path, "mine", {"": "addition"})
    summary = headcount.compare_runs([folder], by="n_heads", measures=["exact match"]).result
    assert (summary.by, summary.others, summary.names) == (("n_heads",), ("encoding",), ("0", "1"))


def test_several_studies_are_labelled_with_their_names(tmp_path: Path) -> None:
    one, other = (write_study(tmp_path / name, name, {"": "addition"}) for name in ("one", "other"))
    summary = headcount.compare_runs([one, other], by="study", measures=["exact match"]).result
    assert (summary.names, summary.n_planned) == (("one", "other"), 12)


def test_one_part_of_a_study_can_be_chosen(tmp_path: Path) -> None:
    folder = write_study(tmp_path, "mine", {"adding": "addition", "sorting": "sortedness"})
    with pytest.raises(InputError, match=r"different tasks(.|\n)*--part: adding, sorting"):
        headcount.compare_runs([folder])
    summary = headcount.compare_runs([folder], part="sorting").result
    assert (summary.task, summary.n_runs, summary.n_planned) == ("sortedness", 4, 6)
    with pytest.raises(InputError, match="did you mean 'sorting'"):
        headcount.compare_runs([folder], part="sortin")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "seed"}, "cannot be compared by seed"),
        ({"by": "encodin"}, "did you mean 'encoding'"),
        ({"part": "sorting"}, "only one part"),
    ],
)
def test_what_cannot_be_compared_in_a_study(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    folder = write_study(tmp_path, "mine", {"": "addition"})
    with pytest.raises(InputError, match=message):
        headcount.compare_runs([folder], **settings)


def test_studies_that_have_hardly_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Path) -> None:
    folder = write_study(tmp_path, "mine", {"": "addition"}, n_trained=0)
    with pytest.raises(InputError, match=r"the study mine has 0 of 6 runs trained(.|\n)*headcount study mine"):
        headcount.compare_runs([folder])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"has no trained models in the working directory(.|\n)*headcount study heads"):
        headcount.compare_runs(["heads"])
    with pytest.raises(InputError, match="chooses a part of a study"):
        headcount.compare_runs([runs], part="sorting")
    (folder / "plan.json").write_text('{"study": "mine", "runs": [{}]}')
    with pytest.raises(RunError, match=r"plan.json is damaged"):
        headcount.compare_runs([folder])
