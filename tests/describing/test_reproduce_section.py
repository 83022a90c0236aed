"""Every command that a report names can be typed, and trains what was trained."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from told_results import (
    ablation,
    audit,
    cell,
    effect,
    evaluation,
    model_results,
    pruning,
    report_results,
    require_sound,
    stretch,
)

from headcount import api
from headcount.cli import VERBS, _parser
from headcount.cli._command import given_settings
from headcount.describing.blocks import Commands
from headcount.describing.sections.reproduce import commands_of, section, stretch_commands, train_command
from headcount.exercise.lab import SORTEDNESS
from headcount.runs.config import RunConfig
from headcount.tasks import TASKS


def flat(config):
    """As a report has settings."""
    data = config.to_dict()
    parts = (data[part] for part in ("task", "model", "training"))
    return {"task_name": config.task_name, "seed": config.seed} | {
        name: value for part in parts for name, value in part.items()
    }


def trained(task="sortedness", title="a", **settings):
    return model_results(title, task=task, settings=flat(RunConfig.build(task, **settings)))


def parsed(command):
    words = shlex.split(command)
    assert words[0] == "headcount"
    args, unknown = _parser(words[1]).parse_known_args(words[1:])
    assert not unknown
    return args


def commands(*models):
    made = section(report_results(*models))
    require_sound(made)
    return [each for block in made.blocks if isinstance(block, Commands) for each in block.commands]


RECIPES = [
    *(("addition", {"preset": name}) for name in TASKS.get("addition").presets),
    *(("sortedness", {"preset": name}) for name in TASKS.get("sortedness").presets),
    *(("sortedness", settings) for settings in SORTEDNESS.values()),
    ("addition", {"seed": 7, "start_token": False, "loss_ignores_zero": True, "target": None}),
    ("sortedness", {"window": 3, "learning_rate": 1e-05, "negatives": "shuffle:1,adjacent:2"}),
]


@pytest.mark.parametrize(("task", "settings"), RECIPES, ids=str)
def test_what_trains_a_run_trains_the_same_run(task, settings):
    config = RunConfig.build(task, **settings)
    args = parsed(train_command(trained(task, **settings)))
    assert args.out == "runs/a"
    again = RunConfig.build(task, seed=args.seed, **given_settings(args, RunConfig.sections(task)))
    assert again == config


def test_defaults_need_no_flags():
    assert train_command(trained("addition")) == "headcount train addition -o runs/a"
    assert (
        train_command(trained("addition", start_token=False)) == "headcount train addition --no-start-token -o runs/a"
    )


def test_what_was_not_trained_here_has_no_command_for_it():
    sample = replace(trained("addition"), name="sample:addition")
    cut = replace(trained("addition"), settings={**trained("addition").settings, "pruned": ("encoder.0.self.1",)})
    for each in (sample, cut, model_results("a"), model_results("a", task=None, settings={"steps": 3})):
        assert train_command(each) == ""


def test_every_result_has_its_command_and_every_command_can_be_typed():
    heads = effect("encoder.0.self.0", 0.1)
    some = {"evaluation": evaluation(), "ablation": ablation(heads), "pruning": pruning(), "audit": audit({})}
    found = commands(replace(trained("addition"), **some), trained("sortedness", "b; rm -rf"))
    assert [each.split()[1] for each in found] == ["train", "evaluate", "ablate", "prune", "audit", "train", "report"]
    assert found[4] == "headcount audit runs/a --n 500", "of 2,000"
    for each in found:
        parsed(each)
    assert parsed(found[-1]).models == ["runs/a", "runs/b; rm -rf"]


def test_lengths_are_measured_of_all_models_at_once_if_they_were():
    alike = [model_results(name, stretch=stretch(draw=1)) for name in "ab"]
    other = model_results("c", stretch=stretch(cells=(cell(8, "shuffle", 1.0), cell(64, "shuffle", 1.0, n=20))))
    first, second = stretch_commands([*alike, other])
    assert (
        first
        == "headcount stretch runs/a runs/b --lengths 8,16,32,64,256 --negatives shuffle,adjacent --n 200 --draw 1"
    )
    assert second == "headcount stretch runs/c --lengths 8,64 --negatives shuffle"
    assert parsed(first).lengths == [8, 16, 32, 64, 256]
    assert commands(*alike, other)[:2] == [first, second]


def test_flags_follow_what_a_result_says_of_itself():
    found = pruning(loss=0.02, budget=90.0, n=300)
    at = replace(ablation(effect("layer.0.self.0", 0.1)), replacements=("zero",), metric="teacher-forced")
    at = replace(at, conditions=tuple(replace(at.conditions[0], length=x, n=400) for x in (16, 256)))
    told = commands_of(model_results("a", task="addition", evaluation=evaluation(), pruning=found, ablation=at))
    assert told[1:] == [
        "headcount ablate runs/a --replacements zero --lengths 16,256 --metric teacher-forced",
        "headcount prune runs/a --loss 0.02 --n 300 --budget 90s",
    ]
    for each in told:
        parsed(each)


def test_patterns_and_positions_of_a_real_run(tiny_run):
    patterns = api.show_heads(tiny_run).result, api.show_heads(tiny_run, "3+4").result
    positions = [api.show_positions(tiny_run, n).result for n in (None, 5)]
    made = model_results("a", task="addition", patterns=patterns, positions=positions[0])
    assert commands_of(made) == [
        "headcount heads runs/a --all-test",
        "headcount heads runs/a --on 3+4",
        "headcount positions runs/a",
    ]
    assert commands_of(replace(made, positions=positions[1]))[-1] == "headcount positions runs/a --n 5"
    dashed = replace(patterns[1], example="-x y")
    assert parsed(commands_of(replace(made, patterns=(dashed,)))[0]).on == ["-x y"]


def test_report_is_a_verb():
    assert "report" in VERBS.names()
