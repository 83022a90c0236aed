"""Each way has its sentence: a carrier, parts, undecided or not judged; opposite results give the opposite sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from heads_by_hand import model_results, report_results, require_sound, sentences, texts
from printing import printed
from routes_by_hand import patch, routes, way

from headcount.describing.blocks import DataTable, Notice, Picture
from headcount.describing.routes import conclusions, describe
from headcount.describing.sections.routes import section

OUTSIDE = replace(patch("E0H2", "1s to 10s", 0.5).moved, low=0.6)
"""A share below its interval."""


def first_of(**changes: Any) -> str:
    return conclusions(routes(**changes), "the adder")[0].text


def test_a_carrier_is_named_with_its_share_and_where_it_acts() -> None:
    assert first_of() == (
        "E0H2 of the adder carries the carry from the 1s into the 10s: patching its output alone moves 91 % of the "
        "logit gap between the two answers (95 % CI 89-93, n = 200 pairs of examples with and without the carry); "
        "patched at a single position, it moves 40 % at a 10s and 42 % at b 10s."
    )


def test_several_carriers_are_named() -> None:
    heads = tuple(patch(head, "1s to 10s", value) for head, value in (("E0H2", 0.9), ("E1H0", 0.8), ("X0H1", 0.7)))
    assert first_of(heads=heads).endswith("E1H0 (80 %) and X0H1 (70 %) carry it as well, each patched alone.")


def test_a_head_whose_placebo_moves_as_much_is_not_called_a_carrier() -> None:
    moved = patch("E0H2", "1s to 10s", 0.9)
    result = routes(heads=(replace(moved, placebo=moved.moved), patch("X0H1", "1s to 1000s", 0.3)))
    sentence = conclusions(result, "the adder")[0]
    assert (
        "It is undecided which head of the adder moves the carry from the 1s into the 10s: E0H2 moves most"
        in sentence.text
    )
    assert sentence.text.endswith("But a placebo patch, which changes a token and not the carry, also moves 90 %.")
    assert [[each.what for each in result.movers(way.name)] for way in result.ways] == [[], ["X0H1"]]


def test_parts_are_listed_and_no_head_is_called_a_carrier() -> None:
    (_, far, *_) = conclusions(routes(), "the adder")
    assert far.text == (
        "No single head of the adder carries the carry from the 1s into the 1000s, but E0H2 (30 %) and E0H0 (20 %) "
        "each move a part of the logit gap (n = 200 pairs of examples with and without the carry)."
    )
    assert far.is_decided


def test_an_interval_across_a_threshold_is_undecided() -> None:
    heads = (patch("E0H2", "1s to 10s", 0.5, half=0.2), patch("E0H0", "1s to 10s", 0.0))
    sentence = conclusions(routes(heads=heads), "the adder")[0]
    assert (
        "It is undecided which head of the adder moves the carry from the 1s into the 10s: E0H2 moves most, 50 %"
        in sentence.text
    )
    assert not sentence.is_decided


def test_tables_name_their_model() -> None:
    captions = [block.caption for block in describe(routes(), "the adder") if isinstance(block, DataTable)]
    assert captions == [
        "Share of the carry that each head of the adder moves (%), by route",
        "Where the adder holds the carry: share of the logit gap (%) that each residual stream moves at one position",
    ]


def test_negative_shares_are_shown_and_explained() -> None:
    def head_table(value: float) -> DataTable:
        away = (patch("E0H2", "1s to 10s", 0.9), patch("X0H1", "1s to 10s", value))
        blocks = (patch("D0", "1s to 10s", value), patch("D1", "1s to 10s", 0.0))
        result = routes(heads=away, blocks=blocks)
        idle = [sentence.text for sentence in conclusions(result, "it") if "block" in sentence.text]
        assert any("D0" in text for text in idle) == (value > -0.03), "a block that moves the answer away is not idle"
        return next(block for block in describe(result) if isinstance(block, DataTable))

    table = head_table(-0.3)
    assert "-30 [-32, -28]" in str(table.rows)
    assert "A head with a negative share moves the answer away from the carry, so it is not on the route." in table.note
    assert "negative" not in head_table(0.02).note


def test_a_note_warns_of_few_quartets() -> None:
    def note(n: int) -> str:
        blocks = describe(routes(ways=(way("1s", "10s", 1, n), way("1s", "1000s", 3))))
        return next(block.note for block in blocks if isinstance(block, DataTable))

    assert note(99).endswith("for 1s to 10s (n = 99): measure more of them with --n.")
    assert "too narrow" in note(99)
    assert "too narrow" not in note(100)


def test_a_model_with_too_few_right_answers_is_not_judged() -> None:
    empty = {"heads": (), "blocks": (), "queries": (), "streams": (), "donors": ()}
    result = routes(ways=(way("1s", "10s", 1, n=7),), **empty)
    (sentence,) = conclusions(result, "the adder", "a-table")
    assert (
        sentence.text
        == "It was not measured which heads of the adder move the carry from the 1s into the 10s. That needs sets of "
        "four similar examples that are all answered right, and only 7 of 200 sets are."
    )
    assert (sentence.is_decided, sentence.rests_on) == (False, "")
    assert not [block for block in describe(result) if isinstance(block, DataTable | Picture)]


def test_donors_idle_blocks_and_what_is_so_by_construction() -> None:
    text = " ".join(sentence.text for sentence in conclusions(routes(), "the adder"))
    assert (
        "the 10s of the answer follow the carry of that example in 188 of 188 cases. If both examples have the same "
        "carry, the 10s stay right in 210" in text
    )
    assert "All heads of D0, patched together, move at most 2 % of the logit gap on any route" in text
    assert "all cross-attention heads together move everything" in text
    assert "the decoder cannot read the carry from its own answer" in text
    least_first = routes(ways=(way("1s", "10s", 1, is_written_before=False), way("1s", "1000s", 3)))
    text = " ".join(sentence.text for sentence in conclusions(least_first, "the adder"))
    assert "cannot read the carry" not in text


def test_the_tables_leave_out_what_moves_nothing() -> None:
    heads, streams = (block for block in describe(routes()) if isinstance(block, DataTable))
    names = [str(row[0]) for row in heads.rows]
    assert names == ["E0H2", "X0H1", "E0H0", "E0, all heads", "X0, all heads"]
    assert "Not shown: 2 heads or blocks with less than 5 % on every route" in heads.note
    assert ("E0.stream", "10s") in [row[:2] for row in streams.rows]
    assert "91 [89, 93] *" in printed(*describe(routes()))


def test_the_section_has_one_map_of_all_models() -> None:
    one, two = (model_results(name, routes=routes(name)) for name in ("one", "two"))
    made = section(report_results(one, two))
    assert made is not None
    require_sound(made)
    assert made.title == "Where does the carry travel?"
    assert len([block for block in made.blocks if isinstance(block, Picture)]) == 1
    assert len([block for block in made.blocks if isinstance(block, DataTable)]) == 4
    assert made.answer == sentences(made)[0]
    assert "E0H2 of two carries the carry" in texts(made)
    assert section(report_results(model_results("one"))) is None


def test_what_the_audit_says_stands_there() -> None:
    made = section(report_results(model_results("one", routes=routes(audit="a fault"))))
    assert made is not None
    assert any(isinstance(block, Notice) for block in made.blocks)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"heads": (patch("E0H2", "2s to 3s", 0.5),)}, "heads"),
        ({"streams": (replace(patch("E0.mlp", "1s to 10s", 0.5), moved=OUTSIDE),)}, "streams"),
        ({"ways": (way("1s", "10s", 1, n=900), way("1s", "1000s", 3))}, "ways"),
    ],
)
def test_contradictions_are_named(changes: dict[str, Any], field: str) -> None:
    assert list(routes().contradictions()) == []
    assert field in [name for name, _ in routes(**changes).contradictions()]
