"""A claim is one line; its verdict follows from intervals and thresholds, and from nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount import api
from headcount.claims import CLAIMS
from headcount.claims.base import (
    ClaimKind,
    ClaimResult,
    ClaimsResult,
    Evidence,
    Statement,
    heads_of,
    kinds,
    mean_interval,
    parse,
    verdict_of,
)
from headcount.errors import InputError, ResultError

# --- parsing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLAIMS.names())
def test_every_kind_says_what_it_needs(name: str) -> None:
    kind = CLAIMS.get(name)
    assert isinstance(kind, ClaimKind)
    assert kind.name.replace("{event}", "event") == name
    assert all([kind.phrase, kind.supported_if, kind.refuted_if, kind.controls])


def test_a_kind_about_an_event_is_named_for_the_events_of_all_tasks() -> None:
    assert "carries-the-carry" in kinds()
    assert "carries-the-event" not in kinds()
    assert len(kinds()) == len(CLAIMS.names())  # one task has an event


@pytest.mark.parametrize(
    ("text", "subject", "objects", "phrase"),
    [
        ("E0H2 carries-the-carry 10s", "E0H2", ("10s",), "carries the carry into the 10s"),
        ("  E0   carries-the-carry  1s>100s ", "E0", ("1s>100s",), "carries the carry from the 1s into the 100s"),
        ("E0H1+E0H3 prunable-together", "E0H1+E0H3", (), "can be removed together for at most 1 point"),
        ("encoder.0.self.1 redundant-with X1H2", "encoder.0.self.1", ("X1H2",), "is redundant with X1H2"),
        ("layer-1 more-important-than layer-0", "layer-1", ("layer-0",), "is more important than layer-0"),
        ("model extrapolates-to 64", "model", ("64",), "extrapolates to length 64"),
        ("cross aligns-columns", "cross", (), "aligns columns"),
    ],
)
def test_a_line_is_parsed(text: str, subject: str, objects: tuple[str, ...], phrase: str) -> None:
    claim = parse(text)
    assert (claim.subject, claim.objects, claim.phrase) == (subject, objects, phrase)
    assert parse(claim.text) == claim


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "write a subject and a kind of claim"),
        ("E0H2", "write a subject and a kind of claim"),
        ("E0H2 caries-the-carry 10s", "did you mean 'carries-the-carry'"),
        ("E0H2 carries-the-event 10s", "did you mean 'carries-the-carry'"),
        ("E0H2 carries-the-carry", "has 0 words"),
        ("E0H2 carries-the-carry 10s 100s", "has 2 words"),
        ("E0H2 induction now", "write SUBJECT induction"),
        ("encodr prunable-together", "did you mean 'encoder'"),
        ("E0H2+first prunable-together", "is not the name of a head"),
        ("E0.2 prunable-together", "did you mean"),
        ("E0 redundant-with E0H1", "is not the name of a head"),
        ("E0H0 redundant-with E1", "is not the name of a head"),
        ("model extrapolates-to far", "is not a length"),
        ("model extrapolates-to 0", "is not a length"),
        ("E0 extrapolates-to 64", "must be the word 'model'"),
    ],
)
def test_what_is_not_a_claim_is_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("subject", "shorts"),
    [
        ("E0H2", "E0H2"),
        ("e1", "E1H0 E1H1 E1H2 E1H3"),
        ("X1H3+D0H0+D0H0", "D0H0 X1H3"),
        ("D0H1+D0", "D0H0 D0H1 D0H2 D0H3"),
    ],
)
def test_a_subject_names_heads_in_the_order_of_the_model(subject: str, shorts: str) -> None:
    model = api.open_model("sample:addition")
    heads = heads_of(model, subject)
    assert sorted(head.short for head in heads) == sorted(shorts.split())
    assert list(heads) == [head for head in model.sites.heads if head in heads]


def test_groups_of_blocks_add_up_to_the_model() -> None:
    model = api.open_model("sample:addition")
    sizes = {name: len(heads_of(model, name)) for name in ("encoder", "decoder-self", "cross", "layer-0", "model")}
    assert sizes == {"encoder": 8, "decoder-self": 8, "cross": 8, "layer-0": 12, "model": 24}
    with pytest.raises(InputError, match="no attention block 'E7'"):
        heads_of(model, "E7")


# --- verdicts ---------------------------------------------------------------------------------------------------------


def evidence(low: float, high: float, n: int = 100) -> Evidence:
    return Evidence("it is {}", (low + high) / 2, low, high, n, "examples", "share")


@pytest.mark.parametrize(
    ("test", "low", "high", "outcome"),
    [
        ("at_least", 0.5, 0.6, "supports"),
        ("at_least", 0.4999, 0.6, "open"),
        ("at_least", 0.4, 0.5, "open"),
        ("at_least", 0.4, 0.4999, "refutes"),
        ("above", 0.5, 0.6, "open"),
        ("above", 0.5001, 0.6, "supports"),
        ("above", 0.4, 0.5, "open"),
        ("above", 0.4, 0.4999, "refutes"),
        ("at_most", 0.4, 0.5, "supports"),
        ("at_most", 0.4, 0.5001, "open"),
        ("at_most", 0.5, 0.6, "open"),
        ("at_most", 0.5001, 0.6, "refutes"),
        ("within", -0.4999, 0.4999, "supports"),
        ("within", -0.5, 0.1, "open"),
        ("within", 0.1, 0.5, "open"),
        ("within", 0.5001, 0.6, "refutes"),
        ("within", -0.7, -0.5001, "refutes"),
    ],
)
def test_an_interval_decides_only_as_a_whole(test: str, low: float, high: float, outcome: str) -> None:
    assert getattr(evidence(low, high), test)(0.5).outcome == outcome


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(-1, 1))
def test_no_interval_both_supports_and_refutes(low: float, width: float, limit: float) -> None:
    entry = evidence(low, low + width)
    least, most = entry.at_least(limit).outcome, entry.at_most(limit).outcome
    assert (least == "refutes") <= (most == "supports")
    assert (most == "refutes") <= (least == "supports")


def test_the_n_that_would_decide_grows_with_the_square_of_the_width() -> None:
    narrow, wide = (
        Evidence("it is {}", 0.6, 0.6 - half, 0.6 + half, 100, "examples", "share").at_least(0.5)
        for half in (0.11, 0.15)
    )
    assert narrow.n_needed is not None
    assert wide.n_needed is not None
    assert wide.n_needed / narrow.n_needed == pytest.approx((0.15 / 0.11) ** 2, rel=0.01)
    assert evidence(0.4, 0.61).at_least(0.5).n_needed is None, "the threshold is within a standard error"
    assert evidence(0.5, 0.6).at_least(0.5).n_needed is None, "decided"
    none_differs = Evidence("it is {}", 0.0, 0.0, 3.69 / 150, 150, "examples", "points").at_most(0.01)
    assert none_differs.n_needed == 377


YES, NO, OPEN = evidence(0.6, 0.7).at_least(0.5), evidence(0.1, 0.2).at_least(0.5), evidence(0.2, 0.52).at_least(0.5)
SHOWN = evidence(0, 1)


@pytest.mark.parametrize(
    ("parts", "controls", "verdict"),
    [
        ((YES,), (), "supported"),
        ((YES, SHOWN), (YES, SHOWN), "supported"),
        ((YES, NO), (YES,), "refuted"),
        ((NO,), (NO,), "refuted"),
        ((YES, OPEN), (), "undecided"),
        ((YES,), (OPEN,), "undecided"),
        ((YES,), (NO,), "undecided"),
        ((SHOWN,), (), "undecided"),
        ((), (), "undecided"),
    ],
)
def test_a_verdict_needs_all_evidence_and_all_controls(
    parts: tuple[Evidence, ...], controls: tuple[Evidence, ...], verdict: str
) -> None:
    assert verdict_of(parts, controls) == verdict


def claim_result(verdict: str, *parts: Evidence, **more: object) -> ClaimResult:
    reason = {"reason": "no such head"} if verdict == "not judged" else {}
    return ClaimResult(
        "runs/a",
        "digest",
        "D1 prunable-together",
        "D1 of runs/a",
        verdict,
        parts,
        **{**reason, **more},
    )


def test_the_n_of_a_claim_is_that_of_its_widest_part_unless_a_control_fails() -> None:
    result = claim_result("undecided", OPEN)
    assert result.n_needed == OPEN.n_needed is not None
    assert claim_result("undecided", OPEN, controls=(NO,)).n_needed is None
    assert claim_result("supported", YES).n_needed is None


def test_the_decisive_evidence_is_the_first_that_led_to_the_verdict() -> None:
    assert claim_result("refuted", YES, NO).decisive is NO
    assert claim_result("undecided", YES, OPEN).decisive is OPEN
    assert claim_result("undecided", YES, controls=(NO,)).decisive is YES
    assert claim_result("supported", YES).decisive is YES
    assert claim_result("not judged").decisive is None


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [claim_result("supported", YES), claim_result("not judged")])
def test_a_result_round_trips(result: ClaimResult) -> None:
    assert ClaimResult.from_json(result.to_json()) == result


@pytest.mark.parametrize(
    ("result", "field"),
    [
        (claim_result("supported", NO), "verdict"),
        (claim_result("refuted", OPEN), "verdict"),
        (claim_result("supported", YES, controls=(NO,)), "verdict"),
        (claim_result("not judged", reason=""), "reason"),
        (claim_result("not judged", YES), "reason"),
        (claim_result("supported", YES, reason="because"), "reason"),
        (claim_result("supported", replace(YES, value=0.9)), "value"),
        (claim_result("supported", replace(YES, words="it is large")), "words"),
    ],
)
def test_a_result_that_contradicts_itself_is_refused(result: ClaimResult, field: str) -> None:
    with pytest.raises(ResultError, match=field):
        ClaimResult.from_json(result.to_json())


STATEMENT = Statement("D1 prunable-together", "report 004")


def test_several_results_are_counted_and_round_trip() -> None:
    parts = (claim_result("supported", YES), claim_result("refuted", NO), claim_result("not judged"))
    several = ClaimsResult(("runs/a", "runs/b", "runs/c"), (STATEMENT,), parts)
    assert ClaimsResult.from_json(several.to_json()) == several
    assert several.count(STATEMENT) == (1, 2)
    assert several.verdicts == ["supported", "refuted", "not judged"]
    mean, low, high, n = several.mean_effect(STATEMENT) or (0, 0, 0, 0)
    assert mean == pytest.approx(0.4)
    assert n == 2
    assert low < 0.15 < 0.65 < high
    assert len(several.to_rows()) == 3


def test_several_results_that_do_not_fit_are_refused() -> None:
    parts = (claim_result("supported", YES),)
    for several, field in (
        (ClaimsResult(("runs/a", "runs/b"), (STATEMENT,), parts), "results"),
        (ClaimsResult(("runs/a",), (STATEMENT, STATEMENT), parts * 2), "statements"),
        (ClaimsResult(("runs/a",), (Statement("D0 prunable-together"),), parts), "results"),
    ):
        with pytest.raises(ResultError, match=field):
            ClaimsResult.from_json(several.to_json())


def test_a_mean_of_equal_values_has_no_width() -> None:
    assert mean_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)
