"""A label appears only if a stated threshold is met; standard errors are over examples, not queries."""

import math

import numpy as np
import pytest

from headcount.analysis.head_labels import THRESHOLDS, MeasureMean, Thresholds, label
from headcount.stats import estimate


def one(mean, se=0.001, *, measure="operator", column="all", condition="all", even=0.1, n=1000):
    return MeasureMean(measure, column, condition, mean, se, n, even)


@pytest.mark.parametrize(
    ("measures", "expected"),
    [
        ([one(0.56)], "mostly operator (0.51)"),
        ([one(0.54)], "partly operator (0.49)"),
        ([one(0.33)], "partly operator (0.26)"),
        ([one(0.32)], ""),
        ([one(0.33, se=0.01)], ""),
        ([one(0.33, se=0.004, n=3)], ""),
        ([one(0.33, even=0.2)], ""),
        ([one(0.5, measure="aligned column")], "partly aligned column (0.44)"),
        ([one(0.7, measure="aligned column")], "mostly aligned column (0.67)"),
        ([one(0.45, measure="carry column")], ""),
        ([one(0.5), one(0.8, measure="diagonal")], "mostly diagonal (0.78); partly operator (0.44)"),
        ([one(0.96, measure="entropy share", even=None)], "spreads evenly"),
        ([one(0.96, measure="entropy share", even=None), one(0.6)], "mostly operator (0.56)"),
        ([one(0.94, measure="entropy share", even=None)], ""),
        ([one(0.96, measure="sparsity", even=None)], ""),
        ([one(0.7), one(0.3, condition="difference")], "mostly operator (0.67), more when it rains"),
        ([one(0.7), one(-0.3, condition="difference")], "mostly operator (0.67), less when it rains"),
        ([one(0.7), one(0.21, se=0.01, condition="difference")], "mostly operator (0.67)"),
        (
            [one(0.7), one(0.3, column="10s", condition="difference")],
            "mostly operator (0.67), more when it rains (10s)",
        ),
        ([one(0.3), one(0.3, condition="difference")], ""),
        ([one(0.3), one(0.8, column="10s"), one(0.2, column="1s")], "mostly operator in 10s (0.78)"),
        ([one(0.3), one(0.8, column="10s"), one(0.6, column="1s")], "mostly operator in 10s, 1s (0.78, 0.56)"),
        ([one(0.3), one(0.5, column="100s")], ""),
        ([one(0.7), one(0.9, column="1s"), one(0.9, column="1s", measure="diagonal")], "mostly operator (0.67)"),
        ([one(0.7), one(0.9, column="1s", measure="diagonal")], "mostly operator (0.67); mostly diagonal in 1s (0.89)"),
    ],
)
def test_a_label_appears_only_where_its_threshold_holds(measures, expected):
    bars = {("carry column", "all"): 0.4, ("operator", "100s"): 0.5, ("operator", "all"): 0.1}
    assert label(measures, "it rains", bars) == expected


def test_what_is_as_even_as_controls_gets_no_label():
    spread = [one(0.97, measure="entropy share", even=None)]
    assert label(spread, "it rains", {("entropy share", "all"): 0.98}) == ""


def test_the_thresholds_are_told_and_can_be_others():
    assert "at least 0.25 and above that of control models; “mostly” means at least 0.5" in THRESHOLDS.words
    assert label([one(0.3)], "it rains", thresholds=Thresholds(partly=0.2)) == "partly operator (0.22)"


def test_strata_count_alike_and_shared_examples_count_once():
    rng = np.random.default_rng(0)
    n = 20_000
    column = rng.normal(size=(n, 2)) + rng.normal(size=(n, 1)) + np.array([0, 10])
    often = np.stack([rng.random(n) < 0.9, rng.random(n) < 0.1], axis=1)
    strata = [often & [True, False], often & [False, True]]
    pooled = estimate(column, np.ones((n, 2)), strata)
    assert pooled.mean == pytest.approx(5, abs=0.1), "not the 1 of a mean over all of them"
    expected = 0.5 * math.sqrt(2 / (0.9 * n) + 2 / (0.1 * n))
    assert pooled.se == pytest.approx(expected, rel=0.1)
    assert (pooled - pooled).se == 0
