"""Both names of a head can be parsed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite

unhurried = settings(deadline=None)
SITES = [("encoder", "self", "E"), ("decoder", "self", "D"), ("decoder", "cross", "X"), ("layer", "self", "L")]
counts = st.integers(0, 10**6 - 1)
sites = st.builds(lambda site, layer: HeadSite(site[0], layer, site[1]), st.sampled_from(SITES), counts)
heads = st.builds(HeadId, sites, counts)


@unhurried
@given(heads)
def test_both_names_lead_back_to_the_head(head: HeadId) -> None:
    assert HeadId.parse(str(head)) == head
    assert HeadId.parse(head.short) == head
    assert HeadId.parse(f"  {head.short.lower()}\n") == head
    assert eval(repr(head).replace("HeadId(", "HeadId.parse(")) == head


@unhurried
@given(heads, heads)
def test_names_differ_where_heads_differ(one: HeadId, other: HeadId) -> None:
    assert (one == other) == (str(one) == str(other)) == (one.short == other.short)
    assert (one == other) <= (hash(one) == hash(other))


@unhurried
@given(st.sampled_from(SITES), counts, counts)
def test_the_names_are_spelled_out_from_the_parts(site: tuple[str, str, str], layer: int, index: int) -> None:
    stack, kind, letter = site
    head = HeadSite(stack, layer, kind).head(index)
    assert str(head) == f"{stack}.{layer}.{kind}.{index}"
    assert head.short == f"{letter}{layer}H{index}"
    assert head.short.startswith(head.site.short + "H")


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "E1", "H2", "1H2", "E1H", "EH2", "E-1H2", "E1H-2", "E1.H2", "Q1H2", "E1H2 E1H3", "E1H2x", "EE1H2",
        "encoder.1.self", "encoder.1.self.", "encoder.1.2", "encoder.1.self.2.3", "encoder.-1.self.2",
        "encoder.one.self.2", "Encoder.1.self.2", "coder.1.self.2", "encoder.1.both.2", "encoder 1 self 2",
    ],
)  # fmt: skip
def test_a_bad_name_is_told_how_to_write_one(name: str) -> None:
    with pytest.raises(InputError) as caught:
        HeadId.parse(name)
    assert caught.value.what == f"{name!r} is not the name of a head"
    assert "encoder.1.self.2 or E1H2" in caught.value.advice[-1]


@unhurried
@given(st.text(max_size=12))
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(InputError):
        HeadId.parse(text)


@unhurried
@given(
    st.from_regex(
        r"([EDXL][0-9]{1,2}H[0-9]{1,2}|(encoder|decoder|layer)\.[0-9]{1,2}\.self\.[0-9]{1,2})", fullmatch=True
    )
)
def test_a_name_is_read_back_in_both_forms(text: str) -> None:
    head = HeadId.parse(text)
    assert HeadId.parse(str(head)) == HeadId.parse(head.short) == head


@pytest.mark.parametrize("name", ["encoder.0.cross.1", "layer.0.cross.1"])
def test_a_well_formed_name_of_no_site_is_told_the_sites(name: str) -> None:
    with pytest.raises(InputError) as caught:
        HeadId.parse(name)
    assert caught.value.what == f"there is no attention block with the name '{name.rpartition('.')[0]}'"
    for known in ("encoder.N.self", "decoder.N.self", "decoder.N.cross", "layer.N.self"):
        assert known in caught.value.advice[0]


def test_heads_are_frozen_and_sort_by_site_then_number() -> None:
    names = ["decoder.0.cross.0", "decoder.0.self.0", "decoder.0.self.10", "decoder.10.self.1", "encoder.2.self.0"]
    assert [str(head) for head in sorted(map(HeadId.parse, reversed(names)))] == [
        "decoder.0.cross.0", "decoder.0.self.0", "decoder.0.self.10", "decoder.10.self.1", "encoder.2.self.0",
    ]  # fmt: skip
    with pytest.raises(AttributeError):
        HeadId.parse("E1H2").index = 3  # type: ignore[misc]


def test_a_number_longer_than_python_reads_is_an_input_error() -> None:
    with pytest.raises(InputError):
        HeadId.parse("E" + "9" * 5000 + "H1")


@pytest.mark.parametrize(
    ("almost", "meant"),
    [
        ("encoder.0.2", "encoder.0.self.2 (E0H2)"),
        ("enc.1.self.3", "encoder.1.self.3 (E1H3)"),
        ("layer 4 head 11", "layer.4.self.11 (L4H11)"),
        ("0.2", "layer.0.self.2 (L0H2)"),
        ("L0.2", "layer.0.self.2 (L0H2)"),
        ("X1-H2", "decoder.1.cross.2 (X1H2)"),
        ("decoder.1.2", "decoder.1.self.2 (D1H2) or decoder.1.cross.2 (X1H2)"),
    ],
)
def test_a_head_that_is_almost_named_is_suggested(almost: str, meant: str) -> None:
    with pytest.raises(InputError) as caught:
        HeadId.parse(almost)
    assert caught.value.advice[0] == f"did you mean {meant}?"


@pytest.mark.parametrize("name", ["encoder.0.cross.2", "E1", "first", "", "H"])
def test_no_head_is_suggested_where_none_can_be_meant(name: str) -> None:
    with pytest.raises(InputError) as caught:
        HeadId.parse(name)
    assert "did you mean" not in str(caught.value)
