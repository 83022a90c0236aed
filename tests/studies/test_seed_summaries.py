"""Summaries over seeds of made-up rows, whose answers are known by hand or by scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rows_by_hand import head_rows, row, rows_of
from scipy import stats

from headcount.errors import InputError, ResultError
from headcount.stats import Proportion, holm
from headcount.studies.rows import Row
from headcount.studies.summary import (
    SeedSummary,
    concordance_test,
    kendall_w,
    mean_interval,
    sign_flip_tests,
    summarise,
)

TWO = {"learned": (0.1, 0.5, 0.3, 0.2), "rotary": (0.4, 0.6, 0.8, 0.3)}


def test_means_medians_and_intervals_are_those_of_scipy() -> None:
    summary = summarise(rows_of(TWO))
    assert (summary.by, summary.names, summary.n_runs) == (("encoding",), ("learned", "rotary"), 8)
    for each in summary.of("accuracy"):
        values = TWO[each.variant]
        low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
        assert [each.median, each.mean] == pytest.approx([np.median(values), np.mean(values)])
        assert [each.low, each.high] == pytest.approx([max(low, 0), min(high, 1)])
        assert (each.values, each.seeds, each.method) == (values, (0, 1, 2, 3), "t")


def test_there_is_no_interval_below_three_runs_or_without_spread() -> None:
    assert mean_interval([0.2, 0.4])[1:] == (None, None, "fewer than 3 runs")
    assert mean_interval([0.4] * 5)[1:] == (None, None, "all values are equal")


def test_differences_are_paired_by_seed() -> None:
    (pair,) = summarise(rows_of(TWO)).pairs
    differences = np.subtract(TWO["rotary"], TWO["learned"])
    test = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert (pair.first, pair.second, pair.n, pair.is_exact) == ("learned", "rotary", 4, True)
    assert pair.difference == pytest.approx(differences.mean())
    assert pair.p == pytest.approx(test.pvalue) == pytest.approx(0.125) == pytest.approx(pair.least_p)
    assert (pair.higher, pair.lower) == (4, 0)


def test_only_shared_seeds_are_paired() -> None:
    rows = [row(seed, 0.1 * seed, encoding="learned") for seed in (0, 1, 2)]
    rows += [row(seed, 0.5, encoding="rotary") for seed in (2, 3)]
    (pair,) = summarise(rows).pairs
    assert [pair.n, pair.difference] == pytest.approx([1, 0.3])


def test_runs_are_paired_by_other_settings_too() -> None:
    rows = [row(0, value, encoding=name, n_heads=n) for name, n, value in
            (("learned", 2, 0.1), ("learned", 4, 0.5), ("rotary", 2, 0.2), ("rotary", 4, 0.7))]  # fmt: skip
    summary = summarise(rows, by="encoding")
    assert (summary.by, summary.others) == (("encoding",), ("n_heads",))
    assert [number for pair in summary.pairs for number in (pair.n, pair.difference)] == pytest.approx([2, 0.15])
    assert summarise(rows).names[0] == "encoding learned, n_heads 2"


def test_comparisons_of_a_measure_are_holm_corrected() -> None:
    values = {"a": (0.0,) * 6, "b": (0.1, 0.2, 0.3, 0.1, 0.2, 0.3), "c": (0.1, -0.1, 0.2, -0.2, 0.1, 0.2)}
    pairs = summarise(rows_of(values)).pairs
    assert [pair.p_holm for pair in pairs] == holm([pair.p for pair in pairs])
    assert len(pairs) == 3


def test_many_variants_are_compared_with_the_first_one() -> None:
    summary = summarise(rows_of({f"v{i}": (0.1 * i, 0.2) for i in range(8)}))
    assert not summary.are_all_pairs
    assert {pair.first for pair in summary.pairs} == {"v0"}
    assert len(summary.pairs) == 7


def test_random_sign_flips_agree_with_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = np.random.default_rng(1).normal(0.4, 1, size=10)
    (exact,) = sign_flip_tests([sample.tolist()], np.random.default_rng(0))
    monkeypatch.setattr("headcount.studies.summary.MOST_EXACT", 2)
    (drawn,) = sign_flip_tests([sample.tolist()], np.random.default_rng(0))
    assert drawn == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 1999) ** 0.5)


def test_verdicts_are_counted_over_runs() -> None:
    rows = [row(seed, float(seed < 3), "proved", verdict="proved" if seed < 3 else "refuted") for seed in range(5)]
    (each,) = summarise(rows).of("proved")
    assert [(count.verdict, count.runs) for count in each.verdicts] == [
        ("proved", Proportion.of(3, 5)),
        ("refuted", Proportion.of(2, 5)),
    ]


def test_undecided_verdicts_have_no_value_but_count() -> None:
    rows = [row(0, None, "claim supported", verdict="undecided"), row(1, 1.0, "claim supported", verdict="supported")]
    (each,) = summarise(rows).of("claim supported")
    assert (each.n, [count.runs.n for count in each.verdicts]) == (1, [2, 2])


# --- rankings ---------------------------------------------------------------------------------------------------------


def test_kendalls_w_follows_from_friedmans_statistic_with_ties() -> None:
    values = np.random.default_rng(0).integers(0, 4, size=(6, 5)).astype(float)
    ranks = stats.rankdata(values, axis=1)
    friedman = stats.friedmanchisquare(*values.T).statistic
    assert float(kendall_w(ranks)) == pytest.approx(friedman / (6 * 4))


def test_the_p_value_of_w_is_that_of_a_permutation_test() -> None:
    values = np.array([[1.0, 2, 3], [1, 2, 3], [1, 2, 3]])
    w, p = concordance_test([values], np.random.default_rng(0))
    assert w == pytest.approx(1)
    assert p == pytest.approx(1 / 36, abs=0.015)  # the first ranking is free, the other two have 6 orders each


def test_layers_hold_over_seeds_and_indices_do_not() -> None:
    low, high = (0.1, 0.2, 0.1, 0.2, 0.1, 0.2), (0.8, 0.9, 0.8, 0.9, 0.8, 0.9)
    drops = {"E0H0": low, "E0H1": low[::-1], "E1H0": high, "E1H1": high[::-1]}
    (ranking,) = summarise(head_rows(drops)).rankings
    layers, index, heads = ranking.at("layer"), ranking.at("index"), ranking.at("head")
    assert layers is not None
    assert index is not None
    assert heads is not None
    assert [layers.w, index.w] == pytest.approx([1, 0])
    assert layers.p == pytest.approx(2 / 64, abs=0.02)
    assert index.p > 0.5
    assert 0 < heads.w < 1
    assert [(each.verdict, each.runs.correct, each.runs.n) for each in layers.leaders] == [("layer 1", 6, 6)]
    (order,) = (each for each in ranking.orders if each.level == "layer")
    assert (order.first, order.second, order.runs) == ("layer 1", "layer 0", Proportion.of(6, 6))
    assert order.p == order.p_holm == pytest.approx(stats.binomtest(6, 6).pvalue)


def test_heads_that_a_run_lacks_are_not_ranked() -> None:
    rows = head_rows({"E0H0": (0.1, 0.2), "E0H1": (0.3, 0.4), "E1H0": (0.5,)})
    (ranking,) = summarise(rows).rankings
    assert [(each.level, each.n_items) for each in ranking.concordances] == [("head", 2), ("index", 2)]


# --- the result and its errors ----------------------------------------------------------------------------------------


def test_a_summary_survives_json_and_reveals_edits() -> None:
    summary = summarise([*rows_of(TWO), *head_rows({"E0H0": (0.1, 0.2, 0.1), "E0H1": (0.3, 0.1, 0.2)})], by="encoding")
    assert SeedSummary.from_json(summary.to_json()) == summary
    edited = summary.to_json().replace('"median": 0.25', '"median": 0.26')
    with pytest.raises(ResultError, match=r"variants\[0\]\.median"):
        SeedSummary.from_json(edited)


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([], {}, "no stored measurements of these runs"),
        (rows_of(TWO), {"by": "encodin"}, "did you mean 'encoding'"),
        (rows_of(TWO), {"by": "seed"}, "cannot be compared by seed"),
        (rows_of(TWO), {"measures": ["acuracy"]}, "did you mean 'accuracy'"),
        ([*rows_of(TWO), row(0, 1.0, task="sortedness")], {}, "different tasks: addition, sortedness"),
        ([row(0, 1.0), row(0, 1.0)], {}, "the same settings and the same seed"),
    ],
)
def test_what_cannot_be_summarised(rows: list[Row], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        summarise(rows, **settings)


def test_ten_thousand_runs_are_summarised() -> None:
    values = np.random.default_rng(0).random((10_000, 10)).tolist()
    rows = [row(i // 10, value, f"m{m}", v=i % 10) for i, some in enumerate(values) for m, value in enumerate(some)]
    summary = summarise(rows)
    assert (summary.n_runs, len(summary.variants), len(summary.pairs)) == (10_000, 100, 90)
