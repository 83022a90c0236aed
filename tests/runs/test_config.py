import json

import pytest

from headcount.config import field_names
from headcount.errors import ConfigError, InputError
from headcount.runs.config import RunConfig
from headcount.runs.presets import PRESETS
from headcount.tasks import TASKS


def test_all_faults_of_all_sections_are_told_at_once():
    with pytest.raises(ConfigError) as error:
        RunConfig.build("addition", n_heads=7, steps=0, digits=3, low=5000, n_head=3, seed=-1, encoding="sinusoid")
    where = [fault.where for fault in error.value.faults]
    assert where == ["n_head", "seed", "task.low", "model.n_heads", "model.encoding", "training.steps"]
    text = str(error.value)
    assert "6 faults" in text
    assert "must divide d_model (128): 1, 2, 4" in text
    assert "did you mean 'n_heads'?" in text
    assert "did you mean 'sinusoidal'?" in text


@pytest.mark.parametrize("task", TASKS.names())
def test_a_setting_has_one_name_across_sections(task):
    names = [name for part in RunConfig.sections(task).values() for name in field_names(part)]
    assert len(names) == len(set(names))
    assert not set(names) & {"out", "seed", "preset", "config", "resume", "quiet", "json"}


def test_round_trip():
    config = RunConfig.build("addition", seed=5, preset=["older", "reports-recipe"], n_heads=8, target=None)
    again = RunConfig.from_dict(json.loads(config.to_json()))
    assert again == config
    assert config.differences(again) == []
    other = RunConfig.build("addition", base=config, seed=6, n_heads=2)
    assert config.differences(other) == ["seed: 5 here, 6 asked for", "model.n_heads: 8 here, 2 asked for"]


def test_a_strange_file_is_refused():
    good = RunConfig.build("addition").to_dict()
    with pytest.raises(ConfigError, match="modell"):
        RunConfig.from_dict({**good, "modell": {}})
    with pytest.raises(ConfigError, match=r"model\.depth"):
        RunConfig.from_dict({**good, "model": {"depth": 3}})
    with pytest.raises(InputError, match="version 99"):
        RunConfig.from_dict({**good, "schema": 99})
    with pytest.raises(InputError, match="multiplication"):
        RunConfig.from_dict({**good, "task_name": "multiplication"})


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_possible(name):
    assert RunConfig.build("addition", preset=[name])
    with pytest.raises(InputError, match="no preset"):
        RunConfig.build("addition", preset=[name + "x"])


@pytest.mark.parametrize("section", [3, None, [1], "x"])
def test_a_section_that_is_no_mapping_is_a_fault(section: object) -> None:
    with pytest.raises(ConfigError):
        RunConfig.from_dict({"schema": 1, "task_name": "addition", "task": section})
