"""The figure of removed heads, from results that went through JSON."""

from dataclasses import replace

import numpy as np
import pytest

from headcount.analysis.pruning import Point, Pruning, PruningCurve, RandomBaseline
from headcount.figures.pruning import draw_pruning
from headcount.figures.style import png
from headcount.stats import PairedDifference

pytestmark = pytest.mark.slow  # seconds together

NAMES = ("alone", "together", "every way", "greedy", "gradient")


def made(n=6, **changes):
    """Every number differs."""
    heads = [f"layer.0.self.{i}" for i in range(n)]
    whole = Point(0, None, 0.95, 0.939, 0.961, PairedDifference(0.0, 0.0, 0.0, 1.0))
    curves = []
    for i, name in enumerate(NAMES):
        scores = [0.95 - (0.9 / n) * k - 0.01 * i for k in range(1, n + 1)]
        points = [Point(k + 1, heads[(k + i) % n], s, s - 0.02, s + 0.03) for k, s in enumerate(scores)]
        curves.append(PruningCurve(name, (whole, *points)))
    result = Pruning(
        name="runs/sort",
        weights_sha256="digest",
        metric="accuracy",
        unit="points",
        chosen_on="the first 1,000 of the validation set",
        measured_on="the test set",
        n=2000,
        n_heads=n,
        replacements=("zero", "mean", "resample"),
        loss=0.01,
        clean=0.95,
        harmless=tuple(heads[:2]),
        harmless_left=Point(
            min(2, n), heads[min(2, n) - 1], 0.9321, 0.91, 0.94, PairedDifference(0.0179, 0.012, 0.024, 0.001)
        ),
        harmless_means=Point(
            min(2, n), heads[min(2, n) - 1], 0.9432, 0.92, 0.95, PairedDifference(0.0068, 0.002, 0.011, 0.001)
        ),
        by_zero=tuple(heads[:3]),
        by_zero_left=Point(
            min(3, n), heads[min(3, n) - 1], 0.6123, 0.59, 0.64, PairedDifference(0.3377, 0.317, 0.358, 0.001)
        ),
        n_under_1_point=4,
        chosen=tuple(heads[:1]),
        kept=Point(1, heads[0], 0.9412, 0.93, 0.95, PairedDifference(0.0088, 0.004, 0.0141, 0.02)),
        n_tried=n,
        n_random=n,
        best_random=Point(1, heads[n - 1], 0.8765, 0.86, 0.89, PairedDifference(0.0735, 0.06, 0.09, 0.001)),
        curves=tuple(curves),
        chance=tuple(RandomBaseline(k, 0.1, 0.2 + 0.01 * k, 0.7) for k in range(1, n)),
        n_orders=20,
        n_chance=512,
    )
    return replace(result, **changes)


def test_every_curve_is_drawn_with_its_numbers():
    result = made()
    figure = draw_pruning(result)
    (axes,) = figure.axes
    by_label = {line.get_label(): line for line in axes.lines}
    assert len(by_label) == 6 + 3 + 1
    assert any("random orders (20)" in label and "n = 512" in label for label in by_label)
    for curve, line in zip(result.curves, axes.lines[1:6], strict=True):
        np.testing.assert_allclose(line.get_ydata(), [100 * point.score for point in curve.points])
        assert list(line.get_xdata()) == list(range(7))
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [100 * each.median for each in result.chance])
    assert len(axes.collections) == 2, "bands of chance and of greedy removal"
    low, high = axes.get_ylim()
    assert low < 0
    assert high > 100
    texts = " ".join(text.get_text() for text in figure.legends[0].get_texts())
    assert "2: all heads harmless alone under every ablation (93.21 % [91.00, 94.00] is left)" in texts
    assert "3: all heads harmless alone under zero ablation (61.23 % [59.00, 64.00] is left)" in texts
    assert "best of 6 random sets of 1 (greedy removal tried 6)" in texts
    assert "1: greedy removal, for a drop of at most 1 point (94.12 % [93.00, 95.00] is left)" in texts
    assert "runs/sort: 95.00 % [93.90, 96.10] with all heads" in figure.get_suptitle()
    assert "chosen on the first 1,000 of the validation set, measured on the test set" in figure.get_suptitle()
    assert png(figure).startswith(b"\x89PNG")


def test_where_nothing_is_harmless_nothing_is_pointed_out():
    whole = Point(0, None, 0.95, 0.95, 0.95)
    none = {"harmless": (), "harmless_left": whole, "harmless_means": whole, "by_zero": (), "by_zero_left": whole}
    result = made(chosen=(), kept=whole, n_tried=0, best_random=whole, **none)
    figure = draw_pruning(result)
    assert not any("is left" in text.get_text() for text in figure.legends[0].get_texts())
    assert png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("n", [1, 60])
def test_one_head_and_many(n):
    assert png(draw_pruning(made(n))).startswith(b"\x89PNG")


def test_the_interval_of_a_loss_is_in_order():
    whole = Point(0, None, -0.25, -0.3, -0.2, PairedDifference(0.0, 0.0, 0.0, 1.0))
    kept = Point(1, "layer.0.self.0", -0.5, -0.6, -0.45, PairedDifference(0.25, 0.2, 0.3, 0.01))
    curves = (PruningCurve("alone", (whole,)),)
    result = made(metric="loss", unit="nats", is_accuracy=False, clean=-0.25, kept=kept, curves=curves)
    assert any(
        "0.5000 [0.4500, 0.6000] is left" in text.get_text() for text in draw_pruning(result).legends[0].get_texts()
    )
    assert "0.2500 [0.2000, 0.3000] with all heads" in draw_pruning(result).get_suptitle()


def test_what_was_not_measured_is_named_in_the_figure():
    """Time was up after two removals, before random sets and other replacements were tried."""
    whole = made().curves[0].points[0]
    curves = (PruningCurve("greedy", (whole, *made().curves[3].points[1:3])),)
    skipped = {"budget": 90.0, "not_measured": ("greedy removal beyond 2 of 6 heads", "random orders")}
    luck = {"n_random": 0, "best_random": whole, "chance": (), "replacements": ("zero",)}
    result = made(curves=curves, **skipped, **luck)
    figure = draw_pruning(result)
    told = " ".join(text.get_text() for text in figure.legends[0].get_texts())
    assert "not measured within 90 s: greedy removal beyond 2 of 6 heads; random orders" in " ".join(told.split())
    assert png(figure).startswith(b"\x89PNG")
