import json

import pytest

from headcount.analysis.length_generalisation import Stretch
from headcount.config import field_names
from headcount.errors import ConfigError, InputError
from headcount.heads import HeadId, HeadSite
from headcount.runs.config import RunConfig
from headcount.runs.folder import digest
from headcount.runs.run import locate
from headcount.tasks import TASKS


def test_all_faults_of_all_sections_are_told_at_once():
    with pytest.raises(ConfigError) as error:
        RunConfig.build("addition", n_heads=7, steps=0, digits=3, low=5000, n_head=3, seed=-1, encoding="sinusoid")
    where = [fault.where for fault in error.value.faults]
    assert where == ["n_head", "seed", "task.low", "model.encoding", "model.n_heads", "training.steps"]
    text = str(error.value)
    assert "6 faults" in text
    assert "must divide d_model (128) without remainder; allowed are 1, 2, 4" in text
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
    assert config.differences(other) == ["seed: 5 here, 6 requested", "model.n_heads: 8 here, 2 requested"]


def test_a_strange_file_is_refused():
    good = RunConfig.build("addition").to_dict()
    with pytest.raises(ConfigError, match="modell"):
        RunConfig.from_dict({**good, "modell": {}})
    with pytest.raises(ConfigError, match=r"model\.depth"):
        RunConfig.from_dict({**good, "model": {"depth": 3}})
    with pytest.raises(InputError, match="version 99"):
        RunConfig.from_dict({**good, "schema": 99})
    for odd in ("multiplication", ["addition"], None, 3):
        with pytest.raises(ConfigError, match=r"task_name = .*must be one of: addition"):
            RunConfig.from_dict({**good, "task_name": odd})


@pytest.mark.parametrize(("task", "name"), [(task, name) for task in TASKS.names() for name in TASKS.get(task).presets])
def test_presets_are_possible(task, name):
    config, plain = RunConfig.build(task, preset=name), RunConfig.build(task)
    assert config.to_dict() != plain.to_dict()
    for section, values in TASKS.get(task).presets[name].settings.items():
        assert config.to_dict()[section] | dict(values) == config.to_dict()[section], "each value arrives as it is"
    with pytest.raises(InputError, match=f"no preset '{name}x' for {task}"):
        RunConfig.build(task, preset=[name + "x"])


def test_a_preset_belongs_to_its_task():
    with pytest.raises(InputError, match="no preset 'far' for addition"):
        RunConfig.build("addition", preset="far")


@pytest.mark.parametrize("task", TASKS.names())
def test_a_task_has_defaults_of_its_own(task):
    config = RunConfig.build(task).to_dict()
    for section, values in TASKS.get(task).defaults.items():
        assert config[section] | dict(values) == config[section]


def test_defaults_of_a_task_stand_behind_presets_and_settings():
    assert RunConfig.build("sortedness").model.encoding == "sinusoidal"
    assert RunConfig.build("addition").model.encoding == "learned"
    assert (RunConfig.build("sortedness").training.steps, RunConfig.build("addition").training.steps) == (3000, 2000)
    assert RunConfig.build("sortedness", preset="far").model.encoding == "relative"
    assert RunConfig.build("sortedness", preset="far", encoding="t5").model.encoding == "t5"


def test_settings_of_another_task_are_refused():
    with pytest.raises(InputError, match="are for the task addition, not for sortedness"):
        RunConfig.build("sortedness", base=RunConfig.build("addition"))
    base = RunConfig.build("sortedness", longest=12, n_heads=2)
    assert RunConfig.build("sortedness", base=base, n_layers=3).task.longest == 12
    with pytest.raises(ConfigError, match="digits"):
        RunConfig.build("sortedness", digits=3)


def faults_of(task, **settings):
    with pytest.raises(ConfigError) as error:
        RunConfig.build(task, **settings)
    return [(fault.where, fault.given) for fault in error.value.faults]


def test_positions_that_training_needs_must_be_there():
    learned = {"encoding": "learned", "longest": 20}
    assert faults_of("sortedness", **learned, n_positions=19) == [("model.n_positions", 19)]
    assert RunConfig.build("sortedness", **learned, n_positions=20)
    assert RunConfig.build("sortedness", encoding="none", longest=20, n_positions=1)
    assert faults_of("sortedness", **learned, n_positions=39, random_positions=40) == [("model.n_positions", 39)]
    assert RunConfig.build("sortedness", **learned, n_positions=40, random_positions=40)
    assert faults_of("addition", digits=3, n_positions=6) == [("model.n_positions", 6)]
    assert RunConfig.build("addition", digits=3, n_positions=7)


def test_a_length_that_is_not_known_yet_cannot_be_normalised_by():
    assert faults_of("addition", encoding="length-normalised") == [("model.encoding", "length-normalised")]
    assert RunConfig.build("sortedness", encoding="length-normalised")


def test_random_positions_are_at_least_as_many_as_there_are_tokens():
    assert faults_of("sortedness", random_positions=15) == [("model.random_positions", 15)]
    assert RunConfig.build("sortedness", random_positions=16)
    both = faults_of("sortedness", encoding="learned", longest=20, n_positions=18, random_positions=19)
    assert both == [("model.random_positions", 19), ("model.n_positions", 18)]
    with pytest.raises(ConfigError, match="training uses position ids up to 19: raise n_positions to 20"):
        RunConfig.build("sortedness", encoding="learned", longest=20)


def test_a_sortedness_config_round_trips():
    config = RunConfig.build("sortedness", preset=["newer", "far"], window=None, encoding="none", seed=2)
    again = RunConfig.from_dict(json.loads(config.to_json()))
    assert again == config
    assert (again.model.window, again.model.encoding) == (None, "none")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"shortest": 9, "longest": 8}, "is below shortest"),
        ({"balance": "coin", "paired": True}, "--paired always makes exactly half of the sequences sorted"),
        ({"negatives": "reversed"}, "no kind of unsorted sequence 'reversed'"),
        ({"pooling": "no such pooling"}, "no such pooling"),
        ({"n_heads": 3}, r"must divide d_model \(64\)"),
        ({"window": 0}, "window"),
    ],
)
def test_impossible_sortedness_settings_are_told(settings, why):
    with pytest.raises(ConfigError, match=why):
        RunConfig.build("sortedness", **settings)


@pytest.mark.parametrize("section", [3, None, [1], "x"])
def test_a_section_that_is_no_mapping_is_a_fault(section: object) -> None:
    with pytest.raises(ConfigError):
        RunConfig.from_dict({"schema": 1, "task_name": "addition", "task": section})


# --- heads that are cut out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pruned",
    [
        "X1H2,E0H1",
        " e0h1 , decoder.1.cross.2,E0H1,",
        ["E0H1", "X1H2", "E0H1"],
        ("encoder.0.self.1", HeadId.parse("X1H2")),
    ],
)
def test_pruned_heads_are_named_in_either_form(pruned):
    config = RunConfig.build("addition", pruned=pruned)
    assert config.model.pruned == ("decoder.1.cross.2", "encoder.0.self.1")
    assert RunConfig.from_dict(json.loads(config.to_json())) == config
    assert config.model.kept(HeadSite("encoder", 0)) == (0, 2, 3)
    assert config.model.kept(HeadSite("encoder", 1)) == (0, 1, 2, 3)


@pytest.mark.parametrize("nothing", ["", "none", [], ()])
def test_nothing_pruned_is_written_as_before_there_was_pruning(nothing):
    plain, pruned = RunConfig.build("addition"), RunConfig.build("addition", pruned="E0H1")
    assert RunConfig.build("addition", base=pruned, pruned=nothing) == plain
    assert "pruned" not in plain.to_json()
    assert RunConfig.from_dict(json.loads(plain.to_json())).model.pruned == ()
    assert pruned.differences(plain) == ["model.pruned: ('encoder.0.self.1',) here, () requested"]
    assert plain.differences(pruned) == ["model.pruned: () here, ('encoder.0.self.1',) requested"]
    assert RunConfig.build("addition", base=pruned, steps=3).model.pruned == ("encoder.0.self.1",)


def test_the_settings_of_a_sample_keep_their_bytes_and_its_recipe_its_digest():
    folder = locate("sample:sortedness")
    written = folder.read_config().to_json().encode()
    assert written == folder.config_file.read_bytes()
    assert digest(written) == folder.read_result("stretch-draw1", Stretch).recipe


@pytest.mark.parametrize(
    ("task", "settings", "why"),
    [
        ("addition", {"pruned": "E2H0"}, r"no head encoder.2.self.0; the heads are: E0H0 to E0H3, .*X1H0 to X1H3"),
        ("addition", {"pruned": "E0H4,X0H1"}, r"no head encoder.0.self.4; the heads are"),
        ("addition", {"pruned": "L0H0,D0H0,D9H9"}, r"no head decoder.9.self.9, layer.0.self.0; the heads are"),
        (
            "addition",
            {"pruned": "D2H0", "n_heads": 1, "n_decoder_layers": 1},
            r"the heads are: E0H0, E1H0, D0H0, X0H0\n",
        ),
        ("sortedness", {"pruned": ["E0H0"]}, r"no head encoder.0.self.0; the heads are: L0H0 to L0H3, L1H0 to L1H3"),
        ("sortedness", {"pruned": "first"}, r"'first' is not the name of a head; write it as encoder.1.self.2 or E1H2"),
        ("sortedness", {"pruned": 3}, r"should be a valid tuple"),
        ("sortedness", {"pruned": [3]}, r"pruned.0 = 3: should be a valid string"),
    ],
)
def test_heads_that_no_such_model_has_are_told(task, settings, why):
    with pytest.raises(ConfigError, match=why) as error:
        RunConfig.build(task, **settings, steps=0)
    assert [fault.where.removesuffix(".0") for fault in error.value.faults] == ["model.pruned", "training.steps"]


@pytest.mark.parametrize(("task", "name"), [("sortedness", "narrow"), ("addition", "no_start_token")])
def test_a_setting_of_another_version_is_an_error_that_names_it(task: str, name: str) -> None:
    data = RunConfig.build(task).to_dict()
    with pytest.raises(ConfigError, match=rf"task\.{name} = 1: no such setting"):
        RunConfig.from_dict({**data, "task": {**data["task"], name: 1}})
