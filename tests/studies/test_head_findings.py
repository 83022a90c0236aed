"""Statements about heads over seeds, from made-up rows whose answers are known."""

from __future__ import annotations

import pytest
from rows_by_hand import COSTLY, HARMLESS, OPEN, judged_rows, route_rows, row

from headcount.errors import ResultError
from headcount.stats import Proportion
from headcount.studies.head_findings import HeadFindings, VariantFindings, find_over_seeds
from headcount.studies.rows import Row


def only(rows: list[Row]) -> VariantFindings:
    findings = find_over_seeds(rows)
    assert findings is not None
    (variant,) = findings.variants
    return variant


def test_a_block_counts_in_a_run_if_any_of_its_heads_does() -> None:
    drops = {"E0H0": [COSTLY, HARMLESS, OPEN], "E0H1": [HARMLESS, COSTLY, HARMLESS], "D1H0": [HARMLESS] * 3}
    found = only(judged_rows(drops))
    first, second = found.at("site")
    assert (first.place, first.counts, first.idle) == ("E0", Proportion.of(2, 3), Proportion.of(0, 3))
    assert (second.place, second.counts, second.idle) == ("D1", Proportion.of(0, 3), Proportion.of(3, 3))
    assert (first.drops, first.seeds, first.median) == ((0.3, 0.3, 0.01), (0, 1, 2), 0.3)
    assert [(each.place, each.counts.correct) for each in found.at("layer")] == [("layer 0", 2), ("layer 1", 0)]
    assert (found.replacement, found.n_examples, found.n_runs) == ("zero", 1000, 3)


def test_a_head_whose_interval_crosses_ten_points_counts_all_the_same() -> None:
    (place,) = only(judged_rows({"E0H0": [(0.1, 0.05, 0.15)] * 2})).at("site")
    assert place.counts == Proportion.of(2, 2)


def test_zero_ablation_on_the_most_examples_is_used() -> None:
    small = judged_rows({"E0H0": [HARMLESS] * 2}, n=100, file="ablation-n100")
    large = judged_rows({"E0H0": [COSTLY] * 2}, n=5000)
    mean = judged_rows({"E0H0": [HARMLESS] * 2}, n=9000, replacement="mean")
    found = only([*small, *mean, *large])
    assert (found.n_examples, found.at("site")[0].counts.correct) == (5000, 2)


def test_heads_of_models_that_have_nothing_to_lose_are_left_out() -> None:
    rows = [{**each, "verdict": None} for each in judged_rows({"E0H0": [COSTLY]})]
    assert find_over_seeds(rows) is None
    assert find_over_seeds([{**each, "step": 100} for each in judged_rows({"E0H0": [COSTLY]})]) is None


def test_the_block_with_the_largest_share_is_counted_for_each_way() -> None:
    shares = {"E0": [(0.9, 0.8, 1.0), (0.2, 0.05, 0.3), (0.9, 0.8, 1.0)], "E1": [(0.5, 0.4, 0.6)] * 3}
    found = only(route_rows(shares))
    assert [(each.site, each.leads.correct, each.takes_part.correct) for each in found.routes] == [
        ("E0", 2, 2),
        ("E1", 1, 3),
    ]
    assert found.routes[0].event == "carry"
    assert found.routes[0].shares == (0.9, 0.2, 0.9)


def test_a_function_holds_although_the_index_of_the_head_differs() -> None:
    high, none = (0.9, 0.8, 1.0), (0.0, -0.05, 0.05)
    found = only(route_rows({"E0H0": [high, none, none], "E0H3": [none, high, none], "X1H0": [none] * 3}))
    (carries,) = (each for each in found.functions if each.kind == "carries")
    assert (carries.function, carries.site) == ("carries the carry from 1s to 10s", "E0")
    assert (carries.runs, carries.heads, carries.n_indices) == (Proportion.of(2, 3), ("E0H0", "E0H3"), 2)


def test_a_head_whose_placebo_moves_the_answer_carries_nothing() -> None:
    rows = [{**each, "verdict": "more than the carry"} for each in route_rows({"E0H0": [(0.9, 0.8, 1.0)]})]
    assert only([*rows, *route_rows({"E1": [(0.9, 0.8, 1.0)]})]).functions == ()


def test_labels_are_functions() -> None:
    columns = {"site": "E0", "layer": 0, "file": "head-stats", "verb": "heads"}
    rows = [
        row(seed, 0.7, measure, head=f"E0H{seed}", verdict=label, run=f"run{seed}", **columns)
        for seed, label in enumerate(("operator", "operator", None))
        for measure in ("attention: operator", "attention: entropy")
    ]
    (function,) = only(rows).functions
    assert (function.kind, function.runs, function.heads) == ("label", Proportion.of(2, 3), ("E0H0", "E0H1"))


def test_variants_are_apart_and_findings_survive_json() -> None:
    rows = [*judged_rows({"E0H0": [COSTLY] * 2}, size="small"), *judged_rows({"E0H0": [HARMLESS] * 2}, size="large")]
    findings = find_over_seeds(
        [*rows, *({**each, "size": "small"} for each in route_rows({"E0": [(0.9, 0.8, 1)] * 2}))], ["size"]
    )
    assert findings is not None
    assert [(each.variant, each.places[0].counts.correct) for each in findings.variants] == [("small", 2), ("large", 0)]
    assert HeadFindings.from_json(findings.to_json()) == findings
    edited = findings.to_json().replace('"correct": 2', '"correct": 1', 1)
    with pytest.raises(ResultError, match="damaged"):
        HeadFindings.from_json(edited)
