"""Stored results become rows: every number of a real run is found again, and pandas reads the files."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from told_results import pruning as made_pruning

import headcount
from headcount.analysis.ablation import Ablation
from headcount.analysis.answer_lengths import AnswerStretch
from headcount.analysis.attention import AttentionPatterns
from headcount.analysis.context_proof import ContextCertificate
from headcount.analysis.counterexamples import CounterexampleSearch
from headcount.analysis.exhaustive_check import Certificate
from headcount.analysis.length_generalisation import Stretch
from headcount.analysis.pruning import Point, Pruning, PruningCurve
from headcount.analysis.routes import PatchShare, Routes, Share, Way
from headcount.analysis.specialisation import Specialisation
from headcount.analysis.worst_margins import WorstMargins
from headcount.auditing.audit import Audit
from headcount.claims.base import ClaimResult, ClaimsResult
from headcount.errors import InputError, RunError
from headcount.results import Result, plain_json
from headcount.runs.folder import RunFolder
from headcount.studies import rows as study_rows
from headcount.studies.rows import COLUMNS, READERS, Row, run_settings, tidy_rows, write_rows
from headcount.training.evaluation import Classification, Evaluation

SMALL: dict[str, Any] = {
    **{"d_model": 8, "n_heads": 2, "d_ff": 16, "steps": 12, "batch_size": 8, "eval_every": 4, "threads": 1},
    **{"n_validation": 50, "n_test": 50, "device": "cpu", "quiet": True},
}
ADDER: dict[str, Any] = {**SMALL, "digits": 2, "n_encoder_layers": 1, "n_decoder_layers": 2}
SORTER: dict[str, Any] = {**SMALL, "n_values": 20, "shortest": 3, "longest": 6, "n_layers": 1}
RESULTS: tuple[type[Result], ...] = (
    *(Evaluation, Classification, Certificate, ContextCertificate, WorstMargins, CounterexampleSearch, Ablation),
    *(Pruning, AttentionPatterns, Specialisation, Routes, Stretch, AnswerStretch, Audit, ClaimResult, ClaimsResult),
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny adder with most of its results."""
    path = tmp_path_factory.mktemp("runs") / "adder"
    headcount.train("addition", out=path, **ADDER)
    headcount.evaluate(str(path), save=True)
    headcount.verify(str(path), save=True, quiet=True)
    headcount.ablate_heads(str(path), save=True, quiet=True, n=40)
    headcount.head_stats(str(path), save=True, quiet=True)
    headcount.audit(str(path), save=True, quiet=True)
    return path


@pytest.fixture(scope="module")
def sorter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sorter with its accuracy at two lengths."""
    path = tmp_path_factory.mktemp("runs") / "sorter"
    headcount.train("sortedness", out=path, **SORTER)
    headcount.evaluate(str(path), save=True)
    headcount.stretch(str(path), lengths=(8, 16), n=20, save=True, quiet=True)
    return path


def chosen(rows: list[Row], **columns: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in columns.items())]


def test_every_reader_has_the_version_of_its_result() -> None:
    assert {cls.__name__: cls.SCHEMA for cls in RESULTS} == {name: READERS[name][0] for name in READERS}


def test_rows_have_the_numbers_of_the_results(measured: Path) -> None:
    rows = tidy_rows(RunFolder(measured), variant="small")
    folder = RunFolder(measured)
    assert {tuple(row) for row in rows} == {(*COLUMNS[:4], "variant", *COLUMNS[4:])}
    assert {(row["run"], row["task"], row["seed"], row["step"]) for row in rows} == {
        (str(measured), "addition", 0, None)
    }

    (exact,) = chosen(rows, measure="exact match")
    free = folder.read_result("evaluation-test", Evaluation).exact.free_running
    assert free is not None
    assert (exact["value"], exact["low"], exact["high"], exact["n"]) == (free.rate, free.low, free.high, free.n)

    ablation = folder.read_result("ablation-n40", Ablation)
    drops = chosen(rows, measure="drop")
    assert len(drops) == len(ablation.heads)
    for effect in ablation.heads:
        (row,) = chosen(drops, head=effect.short, replacement=effect.replacement)
        assert (row["value"], row["low"], row["verdict"]) == (effect.drop, effect.low, effect.band)
        assert effect.head.startswith({"E": "encoder", "D": "decoder", "X": "decoder"}[row["site"][0]])
        assert row["layer"] == int(effect.head.split(".")[1])

    certificate = folder.read_result("certificate", Certificate)
    (wrong,) = chosen(rows, measure="wrong answers")
    assert (wrong["value"], wrong["n"]) == (certificate.errors, certificate.total)
    assert [row["verdict"] for row in chosen(rows, measure="proved")] == ["refuted"]

    stats = folder.read_result("head-stats", Specialisation)
    mean = stats.heads[0].measures[0]
    (row,) = chosen(rows, measure=f"attention: {mean.measure}", head=stats.heads[0].short)
    assert (row["value"], row["high"]) == (mean.mean, pytest.approx(mean.mean + mean.half()))

    audit = folder.read_result("audit", Audit)
    (failed,) = chosen(rows, measure="failed checks")
    assert failed["value"] == len(audit.of("fail"))


def test_the_log_gives_losses_steps_and_seconds(measured: Path) -> None:
    rows, record = tidy_rows(RunFolder(measured)), RunFolder(measured).read_training()
    values = {row["measure"]: row["value"] for row in chosen(rows, verb="train")}
    assert values == {
        "steps": record.steps,
        "training loss": pytest.approx(record.training_loss),
        "validation loss": record.validation_loss,
        "seconds of training": record.seconds,
    }


def test_lengths_and_negatives_are_columns(sorter: Path) -> None:
    rows = tidy_rows(RunFolder(sorter))
    (file,) = (sorter / "results").glob("stretch*.json")
    for cell in RunFolder(sorter).read_result(file.stem, Stretch).cells:
        (row,) = chosen(rows, measure="accuracy by length", length=cell.length, negatives=cell.negative)
        assert (row["value"], row["n"]) == (cell.accuracy, cell.n)


def test_shares_of_the_carry_have_their_role(tmp_path: Path, measured: Path) -> None:
    folder = _copy_of_the_run(measured, tmp_path / "run")
    way = Way("1s", "10s", 1, 150, 200, 3.0, ("1+1 = 2", "5+5 = 10"), is_written_before=True)
    nothing = Share(0.0, -0.01, 0.01, 0.0, 0.0)
    moved = Share(0.8, 0.6, 0.9, 0.8, 0.8)
    heads, blocks = (PatchShare("X0H1", way.name, moved, nothing),), (PatchShare("E0", way.name, nothing, nothing),)
    folder.write_result("routes", Routes("run", "0", "carry", ("10s", "1s"), (way,), heads, blocks, (), (), ()))
    rows = chosen(tidy_rows(folder), verb="routes")
    assert [(row["measure"], row["site"], row["head"], row["value"], row["verdict"], row["n"]) for row in rows] == [
        ("share of the carry", "X0", "X0H1", 0.8, "carrier", 150),
        ("share of the carry, all heads of a block", "E0", None, 0.0, "none", 150),
    ]


def test_removable_heads_are_counted_and_named() -> None:
    heads = ("encoder.0.self.0", "encoder.0.self.1", "decoder.1.cross.0")
    kept = Point(2, heads[1], 0.995, 0.99, 0.998)
    points = (Point(0, None, 1.0, 1.0, 1.0), *(Point(i, head, 0.9, 0.8, 0.95) for i, head in enumerate(heads, 1)))
    curves = (PruningCurve("greedy", points),)
    pruning = made_pruning(chosen=heads[:2], kept=kept, curves=curves, n_chance=1, loss=0.01)
    rows = list(READERS["Pruning"][2](plain_json(pruning.to_dict())))
    (removable,) = (row for row in rows if row["measure"] == "removable heads")
    assert (removable["value"], removable["n"], removable["group"]) == (2, 24, "at most 1 point")
    removed = {row["head"]: row["value"] for row in rows if row["measure"] == "removed"}
    assert removed == {"E0H0": 1.0, "E0H1": 1.0, "X1H0": 0.0}
    (score,) = (row for row in rows if row["measure"] == "score without the removable heads")
    assert (score["value"], score["low"], score["high"]) == (0.995, 0.99, 0.998)
    by_measure = {row["measure"]: row["value"] for row in rows}
    assert by_measure["heads that are harmless under zero ablation"] == len(pruning.by_zero)
    left = by_measure["score without all heads that are harmless under zero ablation"]
    assert left == pruning.by_zero_left.score


def test_the_answer_to_an_example_is_a_row_and_an_average_has_none(measured: Path) -> None:
    shown = headcount.show_heads(str(measured), "12+13").result
    (answer,) = READERS["AttentionPatterns"][2](plain_json(shown.to_dict()))
    assert (answer["group"], answer["verdict"], answer["value"]) == ("12+13", shown.predicted, float(shown.correct))
    average = headcount.show_heads(str(measured)).result
    assert list(READERS["AttentionPatterns"][2](plain_json(average.to_dict()))) == []


def test_claims_are_rows(tmp_path: Path, measured: Path) -> None:
    folder = _copy_of_the_run(measured, tmp_path / "run")
    claim = ClaimResult("run", "0", "E0H1 matters", "E0H1 matters", "not judged", reason="the model fails its audit")
    folder.write_result("claim", claim)
    rows = chosen(tidy_rows(folder), verb="claim")
    assert [(row["group"], row["value"], row["verdict"]) for row in rows] == [("E0H1 matters", None, "not judged")]


def test_results_of_snapshots_have_their_step(tmp_path: Path, measured: Path) -> None:
    folder = _copy_of_the_run(measured, tmp_path / "run")
    for step in (10, 5):
        results = folder.path / "snapshots" / str(step) / "results"
        results.mkdir(parents=True)
        (results / "evaluation-test.json").write_bytes((measured / "results" / "evaluation-test.json").read_bytes())
    assert [row["step"] for row in chosen(tidy_rows(folder), measure="exact match")] == [5, 10]


def test_unknown_files_are_left_out_and_old_ones_are_refused(tmp_path: Path, measured: Path) -> None:
    @dataclass(frozen=True)
    class Novelty(Result):
        number: int

    folder = _copy_of_the_run(measured, tmp_path / "run")
    rows = tidy_rows(folder)
    folder.write_result("novelty", Novelty(3))
    folder.result_file("notes").write_text("no result at all")
    assert tidy_rows(folder) == rows
    folder.result_file("routes").write_text(json.dumps({"type": "Routes", "schema": 99}))
    with pytest.raises(InputError, match="version 99 of Routes"):
        tidy_rows(folder)
    folder.result_file("routes").write_text(json.dumps({"type": "Routes", "schema": 1}))
    with pytest.raises(RunError, match=r"routes\.json is damaged"):
        tidy_rows(folder)


def test_a_folder_without_a_finished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run in"):
        tidy_rows(RunFolder(tmp_path))


def test_labels_with_the_name_of_a_column_are_renamed(measured: Path) -> None:
    row = tidy_rows(RunFolder(measured), low=3, seed=7, lengths=(8, 16))[0]
    assert (row["setting.low"], row["seed"], row["lengths"]) == (3, 7, "8, 16")
    settings = run_settings(RunFolder(measured))
    assert (settings["task"], settings["n_heads"], "setting.low" in settings) == ("addition", 2, True)


def test_pandas_reads_both_files(tmp_path: Path, measured: Path) -> None:
    pd = pytest.importorskip("pandas", reason="pandas is no requirement: the files are read where it is installed")
    rows = [*tidy_rows(RunFolder(measured), encoding="learned"), *tidy_rows(RunFolder(measured), width=3)]
    write_rows(rows, tmp_path / "rows.csv")
    write_rows(rows, tmp_path / "rows.jsonl")
    for frame in (pd.read_csv(tmp_path / "rows.csv"), pd.read_json(tmp_path / "rows.jsonl", lines=True)):
        assert list(frame) == [*COLUMNS[:4], "encoding", "width", *COLUMNS[4:]]
        assert len(frame) == len(rows)
        values = [row["value"] for row in rows if row["measure"] == "drop"]
        assert frame[frame.measure == "drop"].value.tolist() == pytest.approx(values, rel=1e-12)
    with pytest.raises(InputError, match=r"only to a .csv or .jsonl file"):
        write_rows(rows, tmp_path / "rows.xls")


def test_reading_rows_needs_no_torch() -> None:
    code = "import sys, headcount.studies.rows; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert study_rows.__doc__


def _copy_of_the_run(source: Path, path: Path) -> RunFolder:
    """Copy the files of a run without its results."""
    (path / "results").mkdir(parents=True)
    for name in ("config.json", "manifest.json", "log.jsonl", "timings.jsonl"):
        (path / name).write_bytes((source / name).read_bytes())
    return RunFolder(path)
