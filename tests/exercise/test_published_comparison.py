"""Every published figure beside ours: the rule decides, names of heads do not, and what cannot be compared says why."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from published_by_hand import write_adder
from told_results import require_sound

from headcount import registry
from headcount.cli import main
from headcount.cli.study import flag_fault
from headcount.errors import ConfigError, InputError, ResultError
from headcount.exercise import comparison, studies
from headcount.exercise.comparison import (
    ComparedFigure,
    KnownRun,
    PublishedComparison,
    compare,
    figures,
    prediction,
    rules,
)
from headcount.exercise.comparison_tables import PART, describe
from headcount.exercise.published import published_figures
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder
from headcount.studies import file as study_file
from headcount.studies.file import build_config, read_study, shipped
from headcount.studies.plan import make_plan
from headcount.studies.rows import COLUMNS, label_column

HEADS = [f"{site}H{i}" for site in ("E0", "E1", "D0", "D1", "X0", "X1") for i in range(4)]


def row(measure: str, value: float | None, **columns: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS), "file": "f", "measure": measure, "value": value, "unit": "share", **columns}


def drops(metric: str, by_head: Mapping[str, float]) -> list[dict[str, Any]]:
    """Rows of an ablation: the heads that are not named cost nothing."""
    return [
        row("drop", by_head.get(head, 0.0), head=head, site=head[:2], metric=metric, replacement="zero", n=2000)
        | {"unit": "points"}
        for head in HEADS
    ]


def adder(seed: int, free: float, top: str, *more: dict[str, Any]) -> KnownRun:
    rows = [
        row("exact match", free, n=2000),
        row("exact match, teacher-forced", 1.0, n=2000),
        *drops("free-running", {top: 0.2 + seed / 100, "E1H3": 0.1, "D1H0": 0.005}),
        *drops("teacher-forced", {top: 0.4, "E1H3": 0.3}),
    ]
    return KnownRun(seed, (*rows, *more))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch):
    """A function that compares runs which are given by model, without folders."""

    def run(**models: list[KnownRun]) -> dict[str, ComparedFigure]:
        named = {name.replace("_", "-"): runs for name, runs in models.items()}
        monkeypatch.setattr(comparison, "known_runs", lambda folders: named)
        result = compare([])
        assert result is not None
        assert PublishedComparison.from_json(result.to_json()) == result
        require_sound(describe(result))
        return {f"{each.report}.{each.key or each.what}": each for each in result.figures}

    return run


# --- the figures and the rules ----------------------------------------------------------------------------------------


def numbers(value: Any) -> Iterator[Any]:
    """Every number and text in nested tables, in another way than the module finds them."""
    if isinstance(value, dict):
        for each in value.values():
            yield from numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from numbers(each)
    else:
        yield value


def test_every_published_figure_has_a_row_and_every_rule_a_figure():
    found = list(figures())
    assert len(found) == len(list(numbers(published_figures()))) - 1  # an example with its answer is one figure
    assert all(rules().rule_for(figure) is not None for figure in found)
    for rule in rules().figure:
        assert any(rules().rule_for(figure) is rule for figure in found), f"{rule.at} matches nothing"
    models = {rule.model for rule in (*rules().figure, *rules().extra)}
    assert models <= set(rules().models)


def test_figures_are_typed_only_in_one_file():
    """The rules hold limits and numbers of examples, but no published accuracy or drop."""
    text = (Path(comparison.__file__).parent / "comparison.toml").read_text()
    told = {each for each in numbers(published_figures()) if isinstance(each, float)} - {0.0, 0.05, 1.0}  # no limits
    typed = {float(each) for each in re.findall(r"\d+\.\d+", text)}
    assert len(told) > 50
    assert 0.01 in typed
    assert not told & typed


def test_every_model_is_trained_by_the_study_and_by_one_variant_alone():
    study = read_study(studies.REPORTS, flag_fault)
    assert study.published
    for name, model in rules().models.items():
        fitting = {
            json.dumps(dict(variant.settings))
            for part in study.parts
            for variant in part.variants
            if model.fits(_settings(build_config(part.task, variant, 0)))
        }
        assert len(fitting) == 1, name
    assert all(len(part.seeds) >= 3 for part in study.parts if part.name != "every sum")


def _settings(config: RunConfig) -> dict[str, Any]:
    """Settings as `run_settings` reads them from a folder."""
    data = json.loads(config.to_json())
    parts = {label_column(key): value for part in ("task", "model", "training") for key, value in data[part].items()}
    return {"task": data["task_name"], **parts}


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_a_figure_agrees_within_the_prediction_interval(compared):
    runs = [adder(seed, 0.3895, "E0H2") for seed in range(3)]
    found = compared(no_start_token=runs, both_faults=[adder(seed, 0.3125, "E0H2") for seed in range(3)])
    ours = found["004.addition.baseline"]
    # Equal values have no spread over seeds; what is left is the sampling of two test sets of 2,000 sums.
    assert ours.verdict == "agrees"
    assert ours.expected_high - ours.expected_low == pytest.approx(2 * 1.96 * (0.2378 * 2 / 2000) ** 0.5, abs=1e-3)
    assert (found["002.addition.baseline"].verdict, ours.values) == ("differs", (0.3895,) * 3)
    assert found["003.addition.teacher_forced"].verdict == "agrees"


def test_a_large_spread_over_seeds_widens_the_interval():
    rule = comparison.Rule("x", "m", n=2000)
    narrow, wide = prediction([0.4, 0.4, 0.4], "share", 2000, rule), prediction([0.3, 0.4, 0.5], "share", 2000, rule)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert prediction([0.3, 0.5], "share", 2000, rule) is None


def test_few_runs_are_undecided_and_none_is_not_measured(compared):
    found = compared(no_start_token=[adder(0, 0.39, "E0H2"), adder(1, 0.39, "E0H2")])
    assert found["004.addition.baseline"].verdict == "undecided"
    assert "only 2 of our runs" in found["004.addition.baseline"].why
    assert found["002.addition.baseline"].verdict == "not measured"
    assert found["001.sortedness.32.0"].verdict == "not measured"


def test_drops_are_compared_by_rank_and_not_by_name(compared):
    runs = [adder(seed, 0.39, top) for seed, top in enumerate(("E0H2", "X1H1", "D0H3"))]
    found = compared(no_start_token=runs, both_faults=runs, sound_adder=[adder(0, 1.0, "X0H1")])
    first = found["004.addition.drops.D1H3"]
    assert first.what == "largest drop, free-running (D1H3)"
    assert first.values == pytest.approx((0.2, 0.21, 0.22))
    assert first.names == ("E0H2", "X1H1", "D0H3")
    assert (first.verdict, first.sound) == ("agrees", (0.2,))
    assert found["004.addition.drops.D1H2"].values == (0.1,) * 3
    assert found["001.addition.drops.E0H3"].what.startswith("smallest drop")
    assert found["002.addition.drops.E0H0"].verdict == "agrees"
    assert found["003.addition.drops.E1H1"].names[0] == "E0H2"


def test_prunable_heads_are_counted_by_the_limit_of_the_report(compared):
    runs = [adder(seed, 0.39, "E0H2") for seed in range(3)]
    found = compared(no_start_token=runs, both_faults=runs)
    ours = found["004.addition.prunable_share"]
    assert (ours.values[0], ours.names[0], ours.verdict) == (22 / 24, "22 of 24", "differs")
    assert found["003.addition.prunable_share.1"].values[0] == 22 / 24
    impossible = found["003.addition.prunable_share.2"]
    assert (impossible.verdict, impossible.why) == ("not comparable", "no whole number of 24 heads gives this share")
    assert round(24 * impossible.published_low) != pytest.approx(24 * impossible.published_low, abs=0.024 / 2)


def test_an_answer_agrees_if_every_run_gives_it(compared):
    def answering(*answers: str) -> list[KnownRun]:
        told = [row("answer", 0.0, group="374+814", verdict=each) for each in answers]
        return [adder(seed, 0.39, "E0H2", each) for seed, each in enumerate(told)]

    for answers, verdict in {
        ("0188", "0188", "0188"): "agrees",
        ("0188", "0188", "0189"): "undecided",
        ("1188", "1188", "1188"): "differs",
    }.items():
        ours = compared(no_start_token=answering(*answers))["003.addition.example"]
        assert (ours.verdict, ours.names, ours.published) == (verdict, answers, "374+814 = 0188")


def test_statements_in_words_are_never_confirmed(compared):
    runs = [adder(seed, 0.39, "E0H2") for seed in range(3)]
    carry = compared(no_start_token=runs)["004.addition.carry"]
    assert (carry.verdict, carry.values, carry.names[0]) == ("differs", (0.005,) * 3, "D1H0")
    costly = [adder(seed, 0.39, "D1H2") for seed in range(3)]
    assert compared(no_start_token=costly)["004.addition.carry"].verdict == "undecided"


def test_a_range_agrees_if_it_meets_the_interval(compared):
    def at_8(value: float) -> list[KnownRun]:
        cells = (row("accuracy by length", value, length=8, negatives="transpositions", n=200),)
        return [KnownRun(seed, cells) for seed in range(3)]

    ours = compared(none=at_8(0.5))["003.sortedness.8.2"]
    assert (ours.published, ours.published_low, ours.verdict) == ("48 to 54 %", 0.48, "agrees")
    assert compared(none=at_8(0.9))["003.sortedness.8.2"].verdict == "differs"


def test_indices_of_heads_are_compared_by_rank(compared):
    told = [row("attention: diagonal", i / 10, head=f"E{layer}H{i}") for layer in (0, 1) for i in range(4)]
    told += [row("attention: entropy", 1.0, head="E0H0") | {"unit": "nats"}]
    found = compared(no_start_token=[KnownRun(seed, tuple(told)) for seed in range(3)])
    first, second = found["003.addition.specialisation.2.0"], found["003.addition.specialisation.3.0"]
    assert (first.values[0], second.values[0]) == (0.3, 0.2)  # .766 is the largest published, .394 the next
    assert first.names[0] == "index 3"
    assert found["003.addition.specialisation.0.2"].verdict == "not comparable"
    assert "ln 7" in found["003.addition.specialisation.0.2"].why


def test_the_section_counts_verdicts_and_names_what_differs(compared):
    runs = [adder(seed, 0.3125, "E0H2") for seed in range(3)]
    compared(both_faults=runs, no_start_token=runs)
    result = compare([])
    assert result is not None
    made = describe(result)
    text = " ".join(sentence.text for sentence in made.blocks[0].sentences)
    assert "exact match, free-running (002)" in text
    (table,) = [block for block in made.blocks if getattr(block, "id", "") == "published-drops"]
    named = [figure.key.split(".")[1] for figure in result.figures if figure.key]
    assert len(table.rows) == named.count("drops") + named.count("critical")


def test_an_edited_verdict_is_refused(compared):
    found = compared(no_start_token=[adder(seed, 0.2, "E0H2") for seed in range(3)])
    result = PublishedComparison(3, (found["004.addition.baseline"],))
    data = json.loads(result.to_json())
    assert data["figures"][0]["verdict"] == "differs"
    data["figures"][0]["verdict"] = "agrees"
    del data["digests"]
    with pytest.raises(ResultError, match="prediction interval"):
        PublishedComparison.from_json(json.dumps(data))


# --- folders and commands ---------------------------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The entry points of pyproject.toml, as after an installation."""
    points = {"headcount.studies": {"reports": studies.REPORTS, "lab": studies.LAB}}
    points |= {"headcount.published": {"exercise": PART}}
    known = importlib.metadata.entry_points

    def entry_points(group: str) -> Any:
        if group not in points:
            return known(group=group)
        return [SimpleNamespace(name=n, value=n, load=lambda v=v: v) for n, v in points[group].items()]

    for module in (registry, study_file):
        monkeypatch.setattr(module, "entry_points", entry_points)
    registry._loaders.cache_clear()
    study_file._shipped.cache_clear()
    yield
    registry._loaders.cache_clear()
    study_file._shipped.cache_clear()


@pytest.mark.usefixtures("installed")
def test_compare_shows_published_figures_of_runs_and_of_a_study(tmp_path, capsys):
    for seed in range(3):
        write_adder(tmp_path / "models" / f"addition-{seed}", seed, 0.395)
    folders = [str(tmp_path / "models" / f"addition-{seed}") for seed in range(4)]  # one has not been trained
    runs = [
        {"run": f"seed={i}", "folder": each, "part": "", "labels": {}, "receipts": []} for i, each in enumerate(folders)
    ]
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "plan.json").write_text(json.dumps({"schema": 1, "study": "adders", "runs": runs}))
    for place in (tmp_path / "models", tmp_path / "study"):
        assert main(["compare", str(place), "--published", "--json"]) == 0
        data = json.loads(capsys.readouterr().out)["published"]["exercise"]
        assert data["n_runs"] == 3
        (ours,) = [each for each in data["figures"] if (each["report"], each["key"]) == ("004", "addition.baseline")]
        assert (ours["values"], ours["verdict"]) == ([0.395] * 3, "agrees")
    assert main(["compare", str(tmp_path / "study"), "--published"]) == 0
    shown = capsys.readouterr().out
    assert "41.2 %" in shown
    assert "prediction interval" in shown
    (tmp_path / "study" / "plan.json").write_text('{"runs": [{}]}')
    assert main(["compare", str(tmp_path / "study"), "--published"]) == 2
    assert "plan.json is damaged" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "study"), "--published", "--by", "steps"]) == 2
    assert "cannot be combined with --by" in capsys.readouterr().err


@pytest.mark.usefixtures("installed")
def test_other_runs_have_no_published_figures(tmp_path, capsys):
    write_adder(tmp_path / "a", 0, 0.5)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    config["task"]["least_first"] = True
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    assert compare([RunFolder(tmp_path / "a")]) is None
    assert main(["compare", str(tmp_path / "a"), "--published"]) == 2
    assert "headcount has no published results to compare with these models" in capsys.readouterr().err


@pytest.mark.usefixtures("installed")
def test_the_studies_of_the_exercise_are_listed_and_planned(tmp_path, capsys):
    assert {"reports", "lab", "heads"} <= set(shipped())
    plan = make_plan(read_study("reports", flag_fault), tmp_path / "reports")
    assert {run.part for run in plan.runs} == {"addition", "sortedness", "heads", "every sum"}
    assert main(["study"]) == 0
    assert "Five reports of one exercise" in capsys.readouterr().out


@pytest.mark.usefixtures("installed")
def test_a_study_ends_with_the_published_figures(tmp_path, monkeypatch, capsys):
    from headcount.api import studying

    plan = make_plan(read_study("reports"), tmp_path / "runs" / "reports")
    chosen = [run for run in plan.runs if run.part == "addition" and run.labels["variant"] == "no-start-token"]
    for run in chosen:
        write_adder(run.folder, run.seed, 0.41)
        for step in run.steps:
            run.write_receipt(step, 0)
    small = study_file.Study(
        *(plan.study.name, plan.study.title, "", (plan.study.parts[0],), "reports"), published=True
    )
    outcome = studying.run_study(type(plan)(small, plan.folder, tuple(chosen)), quiet=True)
    (published,) = outcome.published
    stored = plan.folder / "results" / "published-exercise.json"
    assert PublishedComparison.from_json(stored.read_text()) == published.result
    page = (plan.folder / "report.html").read_text()
    assert "Published figures and ours" in page
    assert "41.2" in page
    from headcount.cli.study import _finished

    output = _finished(outcome)
    assert output.data["published"]["exercise"]["n_runs"] == 3
    assert any(getattr(line, "id", "") == "published-accuracy" for line in output.lines)


def test_published_is_true_or_false(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('task = "addition"\npublished = "yes"\n')
    with pytest.raises(ConfigError, match=r"published.*must be true or false"):
        read_study(file)


@pytest.mark.usefixtures("installed")
def test_the_lab_is_a_study_with_its_own_verb(tmp_path, capsys, monkeypatch):
    from headcount import api
    from headcount.exercise import lab

    out = str(tmp_path / "lab")
    assert main(["study", "lab", "-o", out, "--print-commands"]) == 0
    commands = capsys.readouterr().out.splitlines()
    jobs = lab.LabPlan(Path(out)).jobs
    assert commands == [f"headcount lab --out {out} --seed 0 --part {job.name}" for job in jobs] + [
        f"headcount lab --out {out}"
    ]
    monkeypatch.setattr("headcount.api.studying.seconds_per_step", lambda task: 0.5)
    assert main(["study", "lab", "-o", out, "--dry-run", "--processes", "2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [job["job"] for job in data["jobs"]] == [job.name for job in jobs]
    assert data["seconds"] == pytest.approx(0.25 * sum(job.weight for job in jobs))
    assert not Path(out).exists()
    given: dict[str, Any] = {}

    def run_lab(out: Path, **settings: Any) -> lab.Lab:
        given.update(out=out, **settings)
        return lab.Lab(out, None, None)

    monkeypatch.setattr(lab, "run_lab", run_lab)
    assert main(["study", "lab", "-o", out, "--processes", "2", "--quiet"]) == 0
    assert (given["out"], given["processes"], given["quiet"]) == (Path(out), 2, True)
    assert main(["study", "lab", "--run", "adder"]) == 2
    assert "--run cannot be used with the study lab" in capsys.readouterr().err
    with pytest.raises(InputError, match="headcount lab"):
        api.plan_study("lab")


def test_the_files_come_with_the_package_and_the_entry_points_are_right():
    import tomllib
    from importlib import import_module

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["headcount"]
    for name in ("comparison.toml", "reports.toml"):
        assert any(fnmatch(f"exercise/{name}", pattern) for pattern in patterns)
    points = project["project"]["entry-points"]
    assert set(points["headcount.studies"]) == {"reports", "lab"}
    for value in (*points["headcount.studies"].values(), *points["headcount.published"].values()):
        module, name = value.split(":")
        assert getattr(import_module(module), name) is not None
