"""Both experiments, small."""

import html
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from exercise_files import EXERCISE

from headcount.analysis.ablation import Ablation
from headcount.analysis.pooling_comparison import PoolingComparison
from headcount.api import next_command
from headcount.api.reporting import gather
from headcount.cli import _parser, main
from headcount.describing.report import LAST, ORDER, Report
from headcount.errors import InputError
from headcount.exercise import lab
from headcount.exercise.files import write_exercise
from headcount.exercise.lab import EXAMPLE, SORTEDNESS, Lab, LabPlan, examples_of, pooling_settings
from headcount.rendering.page import html_page
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder
from headcount.runs.run import Run, build
from headcount.tasks.addition import Addition, AdditionConfig


def runs_of(lab: Lab) -> list[Run]:
    assert lab.addition is not None
    assert lab.sortedness is not None
    return [lab.addition.run, *lab.sortedness.runs.values()]


@pytest.mark.slow
def test_a_lab_trains_verifies_and_stretches(small_lab, lab_results):
    adder, sorter = lab_results.addition, lab_results.sortedness
    assert adder.certificate.total == 100
    assert adder.evaluation.exact.free_running.n == 10
    assert adder.pruning.weights_sha256 == adder.run.weights_sha256

    assert list(sorter.runs) == list(sorter.stretches) == list(SORTEDNESS)
    for name, found in sorter.stretches.items():
        assert tuple(dict.fromkeys(cell.length for cell in found.cells)) == small_lab.lengths
        assert {cell.n for cell in found.cells} == {20}
        assert found.weights_sha256 == sorter.runs[name].weights_sha256
    for encoding in ("sinusoidal", "learned", "none"):
        compared = sorter.runs[encoding].folder.read_result("poolings", PoolingComparison)
        assert [(each.encoding, each.pooling) for each in compared.models] == [
            (encoding, "max"),
            (encoding, "neighbour-difference"),
        ]
        assert compared.models[0].cells == sorter.stretches[encoding].cells, "the figures that stand elsewhere, too"
        assert [each.training.steps for each in compared.models] == [6, 6]
    assert sorter.stretches["far"].hard_codes
    assert not sorter.stretches["far-generic"].hard_codes


@pytest.mark.slow
def test_a_report_has_every_section_and_commands_that_can_be_given(lab_results):
    page = lab_results.report.read_text()
    assert lab_results.report.name == "report.html"
    for section in (*ORDER, "published", *LAST):
        assert f'<section id="{section}"' in page
    for name in SORTEDNESS:
        assert f"sortedness-{name}" in page
    shown = re.findall(r'aria-label="Copy (headcount [^"]*)"', page)
    commands = [shlex.split(html.unescape(line))[1:] for line in shown]
    assert {command[0] for command in commands} >= {"train", "evaluate", "verify", "heads", "ablate", "stretch"}
    for command in commands:
        assert not _parser().parse_known_args(command)[1], command


@pytest.mark.slow
def test_what_is_handed_in_is_written_from_a_lab(lab_results, tmp_path):
    handed_in = write_exercise(gather(*runs_of(lab_results), stored=True, n_examples=2, quiet=True), tmp_path)
    names = {path.relative_to(tmp_path).as_posix() for path in handed_in}
    patterns = {name for name in names if name.startswith("problem1/results/attention_patterns/")}
    assert {"average-encoder-self.png", "average-decoder-cross.png"} < {Path(name).name for name in patterns}
    assert names - patterns == EXERCISE | {"problem1/results/head_analysis/pruning_results.json"}
    found = lab_results.addition.run.folder.read_result("ablation-examples", Ablation)
    sizes = {each.head: each.n for each in found.heads if each.replacement == found.ranked_by}
    text = (tmp_path / "problem1/results/head_analysis/head_importance_ranking.txt").read_text()
    assert {
        head: int(n.replace(",", "")) for head, n in re.findall(r"^[\d-]+ +(\S+) .*?\] n = ([\d,]+)", text, re.M)
    } == sizes


@pytest.mark.slow
def test_a_lab_that_is_run_again_writes_the_same_report(small_lab, lab_results):
    """Compare all but the pictures, which take longest."""
    page = lab_results.report.read_text()
    try:
        again = small_lab.run(painted=False)
        assert again.addition.run.weights_sha256 == lab_results.addition.run.weights_sha256
        assert again.sortedness.stretches == lab_results.sortedness.stretches
        assert again.report.read_text() == re.sub(r"<svg.*?</svg>", "<svg></svg>", page, flags=re.DOTALL)
    finally:
        lab_results.report.write_text(page)


def test_other_poolings_share_a_recipe_and_train_less_only_where_training_cannot_help():
    settings = [pooling_settings(encoding, pooling) for encoding in ("sinusoidal", "none") for pooling in lab.POOLINGS]
    steps = {(each["encoding"], each["pooling"]): each["steps"] for each in settings}
    assert steps.pop(("none", "mean")) == steps.pop(("none", "score-max")) == lab.STEPS_AT_CHANCE
    assert set(steps.values()) == {lab.POOLING_STEPS}
    assert {name for _, name in steps} == {"mean", "score-max", "neighbour-difference"}
    others = [{name: each[name] for name in each if name not in ("encoding", "pooling", "steps")} for each in settings]
    assert all(each == others[0] for each in others)


def test_the_plan_starts_with_the_adder_and_measures_what_is_trained(tmp_path):
    plan = LabPlan(tmp_path)
    names = [part.name for part in plan.jobs]
    assert names[0] == "adder"
    assert len(set(names)) == len(names) == 6 + len(SORTEDNESS) + 9
    for part in plan.jobs:
        assert set(part.needs) <= set(names[: names.index(part.name)])
        assert part.needs or part.n_steps, "what needs nothing is a training"
        assert not part.is_done
        assert plan.arguments(part)[-2:] == ["--part", part.name]
    assert [part.name for part in LabPlan(tmp_path, experiments=("addition",)).jobs] == names[:6]
    with pytest.raises(InputError, match="did you mean 'adder-routes'"):
        plan.find("adder-route")


def test_a_part_can_be_done_alone(tmp_path, monkeypatch, capsys):
    assert main(["lab", "-o", str(tmp_path), "--part", "adder-route"]) == 2
    assert "did you mean 'adder-routes'?" in capsys.readouterr().err
    done = []
    monkeypatch.setattr(LabPlan, "_train", lambda self, *asked: done.append(asked[0]))
    monkeypatch.setattr(LabPlan, "_first_bands", lambda self, training, ablate: training.work())
    monkeypatch.setattr(LabPlan, "write_report", lambda self, unfinished: done.append(unfinished))
    for _ in range(2):
        assert main(["lab", "-o", str(tmp_path), "--part", "adder"]) == 0
    assert done[:1] == ["addition"]
    assert done[1].startswith("20 of 21 parts: ablating each head alone"), "the first part writes the first report"
    assert main(["lab", "-o", str(tmp_path), "--part", "report"]) == 0


def test_a_part_is_done_with_its_settings_and_weights(tmp_path):
    done = []
    part = replace(LabPlan(tmp_path).find("adder-sums"), work=lambda: done.append(1))
    assert not part.is_done
    part.run()
    assert part.is_done
    assert not replace(part, settings="others").is_done
    folder = RunFolder(part.folder)
    part.folder.mkdir()
    folder.write_json(folder.manifest_file, {"schema": 1, "steps": 1, "files": {"model.safetensors": "new"}})
    assert not part.is_done, "the adder was trained again"
    part.receipt.write_text("{")
    assert not part.is_done


def test_settings_of_ones_own_and_parts_side_by_side_exclude_each_other(tmp_path):
    with pytest.raises(InputError, match="choose processes=1"):
        lab.run_lab(tmp_path, processes=2, n=3)


def test_an_unfinished_report_reloads_itself_and_a_finished_one_does_not():
    page = html_page(Report("Lab", "", (), "", unfinished="1 of 3 parts: <b>training</b>"))
    assert '<meta http-equiv="refresh" content="20">' in page
    assert "Not finished yet: 1 of 3 parts: &lt;b&gt;training&lt;/b&gt;." in page
    assert "refresh" not in html_page(Report("Lab", "", (), "")).partition("<style>")[0]


@pytest.mark.parametrize("settings", [{}, {"digits": 1}, {"digits": 5}, {"low": 900}, {"least_first": True}], ids=str)
def test_examples_to_go_on_with_are_sums_of_the_task(settings):
    task = Addition(AdditionConfig(n_validation=5, n_test=20, **settings))
    for text in examples_of(task):
        assert task.show(task.parse(text)[0]) == text
    test, (_, hard) = task.split("test"), examples_of(task)
    assert task.carries(task.parse(hard)).longest[0] == task.carries(test).longest.max()


@pytest.mark.parametrize(
    ("task", "settings", "verb"),
    [
        ("addition", {}, ["verify"]),
        ("addition", {"digits": 5}, ["evaluate"]),
        ("sortedness", {}, ["stretch"]),
        ("sortedness", {"shortest": 3, "longest": 6, "encoding": "learned"}, ["stretch", "--lengths", "3,6"]),
    ],
    ids=str,
)
def test_what_train_says_to_do_next_can_be_done(task, settings, verb, tmp_path):
    config = RunConfig.build(task, **settings)
    run = Run(str(tmp_path / "a run"), None, config, *build(config), "")
    command = shlex.split(next_command(run))
    assert (command[:3], command[3:]) == (["headcount", verb[0], str(tmp_path / "a run")], verb[1:])
    assert not _parser().parse_known_args(command[1:])[1]


def test_the_example_is_a_sum_of_the_default_task():
    assert Addition().show(Addition().parse(EXAMPLE)[0]) == EXAMPLE
