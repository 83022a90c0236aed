"""A result round-trips through JSON, and other texts are refused with a reason."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.errors import InputError
from headcount.heads import HeadId
from headcount.results import Result
from headcount.stats import Proportion

unhurried = settings(deadline=None)


@dataclass(frozen=True)
class Weather(Result):
    """A result with nested values, like real results."""

    SCHEMA: ClassVar[int] = 3

    place: str
    degrees: tuple[float, ...]
    sunny: Proportion | None = None
    by_hour: dict[str, Proportion] = field(default_factory=dict)
    heads: tuple[HeadId, ...] = ()


@dataclass(frozen=True)
class Tide(Result):
    """A result of another type, with the default version."""

    metres: float


shares = st.integers(1, 1000).flatmap(lambda n: st.builds(Proportion.of, st.integers(0, n), st.just(n)))
heads = st.builds(lambda layer, index: HeadId.parse(f"X{layer}H{index}"), st.integers(0, 9), st.integers(0, 9))
weathers = st.builds(
    Weather,
    place=st.text(),
    degrees=st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple),
    sunny=st.none() | shares,
    by_hour=st.dictionaries(st.text(), shares, max_size=3),
    heads=st.lists(heads, max_size=3).map(tuple),
)


@unhurried
@given(weathers)
def test_a_result_round_trips(weather: Weather) -> None:
    text = weather.to_json()
    assert Weather.from_json(text) == weather
    assert Weather.from_json(text).to_json() == text


@unhurried
@given(weathers)
def test_the_json_is_plain_and_names_kind_and_version(weather: Weather) -> None:
    data = json.loads(weather.to_json())
    digests = data.pop("digests")
    assert digests.keys() == data.keys()
    assert data == json.loads(json.dumps(weather.to_dict()))
    assert (data.pop("type"), data.pop("schema")) == ("Weather", 3)
    assert set(data) == {"place", "degrees", "sunny", "by_hour", "heads"}


def tampered(**changes: object) -> str:
    data = Weather("Oslo", (3.5,)).to_dict() | changes
    return json.dumps({name: value for name, value in data.items() if value is not ...})


def test_the_untampered_text_is_read() -> None:
    assert Weather.from_json(tampered()) == Weather("Oslo", (3.5,))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (Tide(1.5).to_json(), "Tide of version 1"),
        (tampered(type="Tide"), "Tide of version 3"),
        (tampered(schema=2), "Weather of version 2"),
        (tampered(schema=4), "Weather of version 4"),
        (tampered(type=...), "None of version 3"),
        (tampered(schema=...), "Weather of version None"),
        ("{}", "None of version None"),
    ],
)
def test_another_kind_or_version_is_refused(text: str, found: str) -> None:
    with pytest.raises(InputError) as caught:
        Weather.from_json(text)
    assert caught.value.what == f"this text does not hold a Weather of format version 3, but {found}"
    assert caught.value.advice == ("measure it again with this version of headcount",)


@pytest.mark.parametrize(
    "changes",
    [{"place": ...}, {"degrees": "warm"}, {"degrees": [1, "warm"]}, {"sunny": {"correct": 1}}, {"by_hour": []}],
)
def test_a_damaged_result_says_where(changes: dict[str, object]) -> None:
    with pytest.raises(InputError, match="this Weather is damaged") as caught:
        Weather.from_json(tampered(**changes))
    assert next(iter(changes)) in caught.value.what


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null"])
def test_text_that_is_no_object_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError):
        Result.from_json(text)
