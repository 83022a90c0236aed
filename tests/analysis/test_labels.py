"""A label appears only where a stated threshold holds; an error is over examples, not over queries."""

import math

import numpy as np
import pytest

from headcount.analysis.clusters import estimate
from headcount.analysis.labels import THRESHOLDS, Measure, Thresholds, label


def one(mean, se=0.001, *, measure="operator", column="all", condition="all", even=0.1, n=1000):
    return Measure(measure, column, condition, mean, se, n, even)


@pytest.mark.parametrize(
    ("measures", "expected"),
    [
        ([one(0.51)], "operator"),
        ([one(0.499)], ""),
        ([one(0.51, se=0.01)], ""),
        ([one(0.51, se=0.004, n=3)], ""),
        ([one(0.6, even=0.31)], ""),
        ([one(0.63, even=0.31)], "operator"),
        ([one(0.7), one(0.8, measure="diagonal")], "diagonal; operator"),
        ([one(0.96, measure="entropy share", even=None)], "spreads evenly"),
        ([one(0.96, measure="entropy share", even=None), one(0.6)], "operator"),
        ([one(0.94, measure="entropy share", even=None)], ""),
        ([one(0.96, measure="sparsity", even=None)], ""),
        ([one(0.7), one(0.3, condition="difference")], "operator, more when it rains"),
        ([one(0.7), one(-0.3, condition="difference")], "operator, less when it rains"),
        ([one(0.7), one(0.21, se=0.01, condition="difference")], "operator"),
        ([one(0.7), one(0.3, column="10s", condition="difference")], "operator, more when it rains (10s)"),
        ([one(0.3), one(0.3, condition="difference")], ""),
        ([one(0.3), one(0.8, column="10s"), one(0.2, column="1s")], "operator (10s)"),
        ([one(0.7), one(0.9, column="1s"), one(0.9, column="1s", measure="diagonal")], "operator"),
        ([one(0.7), one(0.9, column="1s", measure="diagonal")], "operator; diagonal (1s)"),
    ],
)
def test_a_label_appears_only_where_its_threshold_holds(measures, expected):
    assert label(measures, "it rains") == expected


def test_the_thresholds_are_told_and_can_be_others():
    assert "at least 0.5 and 2 times" in THRESHOLDS.words
    assert label([one(0.4)], "it rains", Thresholds(mass=0.3)) == "operator"


def test_strata_count_alike_and_shared_examples_count_once():
    rng = np.random.default_rng(0)
    n = 20_000
    column = rng.normal(size=(n, 2)) + rng.normal(size=(n, 1)) + np.array([0, 10])
    often = np.stack([rng.random(n) < 0.9, rng.random(n) < 0.1], axis=1)
    strata = [often & [True, False], often & [False, True]]
    found = estimate(column, np.ones((n, 2)), strata)
    assert found.mean == pytest.approx(5, abs=0.1), "not the 1 of a mean over all of them"
    expected = 0.5 * math.sqrt(2 / (0.9 * n) + 2 / (0.1 * n))
    assert found.se == pytest.approx(expected, rel=0.1)
    assert (found - found).se == 0
