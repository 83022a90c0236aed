"""p-values have the promised error rate, and two formulas of similarity agree."""

import numpy as np
import pytest
import torch

from headcount.analysis.matching_pairs import cka, hsic
from headcount.analysis.matching_transplants import mapped
from headcount.stats import share_above, step_down


def test_the_family_wise_error_is_exact_whatever_the_statistics_are():
    """Correlated, skewed and of different scales: any of six is called at 5 % in 5 % of the families."""
    rng = np.random.default_rng(0)
    common, own = rng.normal(size=(3000, 20, 1)), rng.exponential(size=(3000, 20, 6))
    families = (common + own) * np.array([1, 10, 0.1, 1, 1, 5]) + np.arange(6)
    wrong = np.mean([step_down(family[0], family[1:]).min() <= 0.05 for family in families])
    assert 0.038 < wrong < 0.062


def test_a_true_effect_is_found_beside_others_and_leaves_them_alone():
    rng = np.random.default_rng(1)
    families = rng.normal(size=(300, 100, 8))
    families[:, 0, :3] += 8
    p = np.array([step_down(family[0], family[1:]) for family in families])
    assert (p[:, :3] == 0.01).mean() > 0.98
    assert (p[:, 3:].min(axis=1) <= 0.05).mean() < 0.09


def test_ties_count_against_a_finding():
    assert share_above(np.array([1.0, 2.0]), np.array([[1.0, 1.0], [0.0, 1.0]])).tolist() == [2 / 3, 1 / 3]
    assert step_down(np.ones(3), np.ones((19, 3))).tolist() == [1, 1, 1]


def test_dependence_from_sums_is_that_from_all_pairs_of_rows():
    """Song et al. 2012, equation 5, written out with n by n matrices."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)) + 1, rng.normal(size=(30, 7))
    y[:, :4] += x
    k, m = x @ x.T, y @ y.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    n, one = 30, np.ones(30)
    expected = (
        np.trace(k @ m) + (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * one @ k @ m @ one
    )
    assert hsic(x, y) == pytest.approx(expected / (n * (n - 3)))
    assert cka(x, y) == pytest.approx(cka(y, 5 * x))


def test_unrelated_sets_are_not_similar_on_average():
    rng = np.random.default_rng(0)
    found = [cka(rng.normal(size=(40, 30)), rng.normal(size=(40, 30))) for _ in range(200)]
    assert abs(np.mean(found)) < 3 * np.std(found) / np.sqrt(200)
    assert cka(np.ones((9, 2)), rng.normal(size=(9, 2))) == 0


def test_a_map_finds_what_is_linear_about_the_means_and_no_more():
    torch.manual_seed(0)
    source, matrix = torch.randn(200, 3, 5), torch.randn(5, 4)
    offset = torch.randn(3, 4)
    target, new = source @ matrix + offset, torch.randn(50, 3, 5)
    torch.testing.assert_close(mapped(source, target, new), new @ matrix + offset, atol=5e-3, rtol=0)
    noise = torch.randn(200, 3, 4) + offset
    assert (mapped(source, noise, new) - noise.mean(dim=0)).abs().mean() < 0.2
