"""The figure of removed heads and its tables, from results that went through JSON."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from headcount.analysis.cost import Cost
from headcount.analysis.pruning import Point, Pruning, PruningCurve, RandomBaseline
from headcount.figures.pruning import cost_table, draw_pruning, pruning_notes, pruning_table
from headcount.figures.style import png
from headcount.heads import HeadId
from headcount.stats import PairedDifference

pytestmark = pytest.mark.slow  # seconds together

NAMES = ("alone", "together", "every way", "greedy", "gradient")
ALONE = "cost under 1 point each alone on the first 1,000 of the validation set"


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


@pytest.fixture(scope="module")
def cost():
    return Cost(
        parent="runs/sort",
        name="small",
        heads=("layer.0.self.0", "layer.0.self.1"),
        n_heads=(6, 4),
        lost_blocks=("layer.0.self",),
        parameters=(10_000, 7_500),
        n_bytes=(41_000, 31_000),
        microseconds=(100.0, 80.5),
        faster=1.25,
        difference=3.2e-7,
        score=(0.95, 0.9412),
        score_intervals=((0.9396, 0.9588), (0.93, 0.9506)),
        drop=PairedDifference(0.0088, 0.001, 0.0166, 0.02),
        data="the test set",
        fine_tuned=0,
    )


def printed(table):
    console = Console(width=220)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


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
    assert "2: all that are harmless in every way (93.21 % [91.00, 94.00] is left)" in texts
    assert "3: all that are harmless by zero, one at a time (61.23 % [59.00, 64.00] is left)" in texts
    assert "best of 6 random sets of 1, as many as greedy tried" in texts
    assert "1: greedy, for at most 1 point (94.12 % [93.00, 95.00] is left)" in texts
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
    notes = pruning_notes(result)
    assert f"0 of 6 heads {ALONE}, by zero, mean and resample alike" in notes[0]
    assert notes[1].strip() == "none"
    assert "takes 0 heads" in notes[3]
    assert notes[4].strip() == "none"
    assert not any(note.startswith("luck:") for note in notes)


@pytest.mark.parametrize("n", [1, 60])
def test_one_head_and_many(n):
    result = made(n)
    assert png(draw_pruning(result)).startswith(b"\x89PNG")
    assert len(printed(pruning_table(result)).splitlines()) == n + 1 + 5


def test_the_table_has_the_numbers():
    result = made()
    text = printed(pruning_table(result))
    for curve in result.curves[1:]:
        for point in curve.points:
            assert f"{100 * point.score:.1f} [{100 * point.low:.1f}, {100 * point.high:.1f}]" in text
            assert point.head is None or f"-{HeadId.parse(point.head).short}" in text
    for each in result.chance:
        assert f"{100 * each.median:.1f} [10.0, 70.0]" in text
    assert text.count("95.0 [93.9, 96.1]") == 4, "without removals too a share has its interval"
    assert "alone" not in text, "a promise is no measurement"


def test_notes_have_the_answers():
    notes = pruning_notes(made(loss=0.025, chosen=("layer.0.self.1", "layer.0.self.4")))
    assert f"2 of 6 heads {ALONE}, by zero, mean and resample alike" in notes[0]
    assert "93.21 % [91.00, 94.00] is left, a drop of 1.79 points [1.20, 2.40]" in notes[0]
    assert notes[0].endswith("(94.32 % [92.00, 95.00] with their means in place)")
    assert notes[1].strip() == "L0H0, L0H1"
    (together,) = (curve for curve in made().curves if curve.name == "together")
    as_many = f"{100 * together.points[2].score:.2f} % ["
    assert notes[2].strip().startswith(f"as many heads in the order of their own drops by zero: {as_many}")
    assert f"3 of 6 heads {ALONE}, by zero alone" in notes[3]
    assert "61.23 % [59.00, 64.00] is left, a drop of 33.77 points [31.70, 35.80]" in notes[3]
    assert notes[3].endswith("(4 by the point estimate)")
    assert "takes 2 heads for at most 2.5 points on the first 1,000 of the validation set" in notes[4]
    assert notes[4].endswith("94.12 % [93.00, 95.00] is left on the test set, a drop of 0.88 points [0.40, 1.41]")
    assert notes[5].strip() == "L0H1, L0H4"
    assert "best of 6 random sets of 1, as many as greedy tried, leaves 87.65 % [86.00, 89.00]" in notes[6]
    assert notes[7].startswith("no heads:  ")


def test_what_was_lost_beyond_the_question_is_told():
    notes = pruning_notes(made(loss=0.005))
    assert notes[4].endswith("a drop of 0.88 points [0.40, 1.41], more than asked for, as other examples tell")


def test_a_loss_rises_and_its_interval_is_in_order():
    whole = Point(0, None, -0.25, -0.3, -0.2, PairedDifference(0.0, 0.0, 0.0, 1.0))
    kept = Point(1, "layer.0.self.0", -0.5, -0.6, -0.45, PairedDifference(0.25, 0.2, 0.3, 0.01))
    curves = (PruningCurve("alone", (whole,)),)
    result = made(metric="loss", unit="nats", is_accuracy=False, clean=-0.25, kept=kept, curves=curves)
    left = "0.5000 [0.4500, 0.6000] is left on the test set, a rise of 0.25 nats [0.2000, 0.3000]"
    assert left in pruning_notes(result)[3]
    assert "0.2500 [0.2000, 0.3000] with all heads" in draw_pruning(result).get_suptitle()


def test_the_cost_is_told(cost):
    text = printed(cost_table(cost))
    for part in (
        "small: runs/sort without L0H0, L0H1",
        "lost as a whole: layer.0.self",
        "10,000",
        "7,500",
        "25.0% less",
    ):
        assert part in text
    for part in ("41,000", "31,000", "100.0", "80.5", "1.25 times as fast", "3.2e-07"):
        assert part in text
    assert "95.00% [93.96, 95.88]" in text
    assert "94.12% [93.00, 95.06]" in text
    assert "drop 0.88 points [0.10, 1.66], the test set" in text
    rho = printed(cost_table(replace(cost, metric="spearman", is_accuracy=False)))
    assert "0.9412 [0.9300, 0.9506]" in rho
    scores = {"score": (-0.25, -0.5), "score_intervals": ((-0.3, -0.2), (-0.6, -0.45))}
    loss = replace(cost, metric="loss", unit="nats", is_accuracy=False, **scores)
    assert "0.5000 [0.4500, 0.6000]" in printed(cost_table(loss))
    assert "fine-tuned" not in text
    tuned = printed(cost_table(replace(cost, fine_tuned=1500, lost_blocks=())))
    assert "then fine-tuned for 1,500 steps" in tuned
    assert "no block" in tuned
    folded = printed(cost_table(replace(cost, folded_over=16_384)))
    assert "against ablation" in text
    assert "against their means" in folded
    assert "folded over 16,384 unlabelled examples" in folded


def test_what_was_not_measured_is_told_in_the_table_and_in_the_figure():
    """Time was up after two removals, before random sets and other replacements were tried."""
    whole = made().curves[0].points[0]
    curves = (PruningCurve("greedy", (whole, *made().curves[3].points[1:3])),)
    skipped = {"budget": 90.0, "not_measured": ("greedy removal beyond 2 of 6 heads", "random orders")}
    luck = {"n_random": 0, "best_random": whole, "chance": (), "replacements": ("zero",)}
    result = made(curves=curves, **skipped, **luck)
    notes = pruning_notes(result)
    assert notes[0] == "no time:   greedy removal beyond 2 of 6 heads (not measured within 90 s)"
    assert not any(note.startswith(("harmless:", "luck:", "no heads:")) for note in notes)
    figure = draw_pruning(result)
    told = " ".join(text.get_text() for text in figure.legends[0].get_texts())
    assert "not measured within 90 s: greedy removal beyond 2 of 6 heads; random orders" in " ".join(told.split())
    assert png(figure).startswith(b"\x89PNG")
    assert printed(pruning_table(result)).count("-L0H") == 2, "the table ends where time was up"
    fewer = pruning_notes(made(n_random=4))
    assert any("best of 4 random sets of 1, greedy tried 6, leaves" in note for note in fewer)
