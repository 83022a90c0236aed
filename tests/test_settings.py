"""Settings are frozen, and one error lists all faults."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from headcount.config import config, field_names, parse, type_adapter
from headcount.errors import ConfigError
from headcount.suggestions import suggestion


@config
class Oven:
    """Settings with defaults for all fields."""

    degrees: Annotated[int, Field(ge=0, le=300)] = 180
    """How hot."""
    mode: Literal["fan", "grill"] = "fan"
    """Which way."""


@config
class Dough:
    """Settings with a required field."""

    flour: float
    """Grams."""
    yeast: bool = True


CLASSES = {"oven": Oven, "dough": Dough}


def test_sections_are_made_from_what_is_given_and_the_defaults() -> None:
    made = parse(CLASSES, {"oven": {"mode": "grill"}, "dough": {"flour": 500}})
    assert made == {"oven": Oven(degrees=180, mode="grill"), "dough": Dough(flour=500.0, yeast=True)}


def test_a_missing_section_is_all_defaults() -> None:
    assert parse({"oven": Oven}, {}) == {"oven": Oven()}


def test_text_from_a_command_line_becomes_numbers() -> None:
    made = parse(CLASSES, {"oven": {"degrees": "200"}, "dough": {"flour": "1e3", "yeast": "false"}})
    assert made == {"oven": Oven(degrees=200), "dough": Dough(flour=1000.0, yeast=False)}


def test_all_faults_of_all_sections_are_told_at_once() -> None:
    wrong = {"oven": {"degrees": 301, "mode": "boil", "colour": "red"}, "dough": {"yeast": "maybe"}}
    with pytest.raises(ConfigError) as caught:
        parse(CLASSES, wrong)
    faults = {fault.where: fault for fault in caught.value.faults}
    assert set(faults) == {"oven.degrees", "oven.mode", "oven.colour", "dough.flour", "dough.yeast"}
    assert (faults["oven.degrees"].given, faults["dough.yeast"].given) == (301, "maybe")
    assert "less than or equal to 300" in faults["oven.degrees"].why
    assert "'fan' or 'grill'" in faults["oven.mode"].why
    assert caught.value.what == "5 faults in the configuration"
    assert all(str(fault) in str(caught.value) for fault in caught.value.faults)


@pytest.mark.parametrize(
    ("name", "advice"),
    [("degree", "did you mean 'degrees'?"), ("Mode", "did you mean 'mode'?"), ("xyz", "there are: degrees, mode")],
)
def test_an_unknown_setting_gets_a_suggestion(name: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"oven": Oven}, {"oven": {name: 5}})
    (fault,) = caught.value.faults
    assert (fault.where, fault.given, fault.why) == (f"oven.{name}", 5, f"no such setting; {advice}")
    assert suggestion(name, field_names(Oven)) == advice


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), "nan"])
def test_numbers_that_are_none_are_refused(number: object) -> None:
    with pytest.raises(ConfigError, match=r"dough\.flour"):
        parse({"dough": Dough}, {"dough": {"flour": number}})


def test_a_setting_cannot_be_changed_but_a_changed_copy_can_be_made() -> None:
    oven = Oven()
    with pytest.raises(dataclasses.FrozenInstanceError):
        oven.degrees = 200  # type: ignore[misc]
    assert dataclasses.replace(oven, degrees=200) == Oven(degrees=200)
    assert hash(Oven()) == hash(oven)
    assert oven.degrees == 180


def test_a_setting_is_checked_however_it_is_made() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 300"):
        Oven(degrees=301)
    with pytest.raises(ValidationError, match="less than or equal to 300"):
        dataclasses.replace(Oven(), degrees=301)
    with pytest.raises(ValidationError, match="positional"):
        Oven(200)  # type: ignore[call-arg]


def test_settings_keep_their_order_their_help_and_survive_plain_data() -> None:
    assert field_names(Oven) == ("degrees", "mode")
    assert Oven.__pydantic_fields__["degrees"].description == "How hot."  # type: ignore[attr-defined]
    oven = Oven(degrees=20, mode="grill")
    assert type_adapter(Oven).validate_python(type_adapter(Oven).dump_python(oven)) == oven
