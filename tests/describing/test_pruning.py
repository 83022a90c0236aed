"""What is said of a pruning and of the cost of a cut, as blocks: tables, sentences, and what was not measured."""

from dataclasses import replace

import pytest
from tests.figures.test_pruning_figures import made

from headcount.analysis.pruning import Point, PruningCurve
from headcount.analysis.pruning_cost import Cost
from headcount.describing.blocks import Conclusions, DataTable
from headcount.describing.sections.pruning import describe, describe_cost
from headcount.heads import HeadId
from headcount.stats import PairedDifference

ON = "on the first 1,000 of the validation set"


@pytest.fixture(scope="module")
def cost() -> Cost:
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


def table(result):
    return next(block for block in describe(result) if isinstance(block, DataTable))


def sentences(result):
    return [each.text for block in describe(result) if isinstance(block, Conclusions) for each in block.sentences]


def cost_rows(cost):
    (block,) = describe_cost(cost)
    assert isinstance(block, DataTable)
    return {str(row[0]): row[1:] for row in block.rows}


@pytest.mark.parametrize("n", [1, 60])
def test_the_table_has_a_row_for_every_number_of_heads(n) -> None:
    assert len(table(made(n)).rows) == n + 1


def test_the_table_has_the_numbers() -> None:
    result = made()
    block = table(result)
    assert block.columns[:5] == ("heads removed", "by own drop", "by largest drop", "greedy removal", "by gradient")
    assert "alone" not in block.columns, "a sum of drops is no measurement"
    for i, curve in enumerate(result.curves[1:], start=1):
        for point, row in zip(curve.points, block.rows, strict=True):
            text = f"{100 * point.score:.1f} [{100 * point.low:.1f}, {100 * point.high:.1f}]"
            assert row[i].text == text + (f", -{HeadId.parse(point.head).short}" if point.head else "")
    for each in result.chance:
        assert block.rows[each.n_removed][-1].text == f"{100 * each.median:.1f} [10.0, 70.0]"
    assert [cell.text for cell in block.rows[0][1:]] == ["95.0 [93.9, 96.1]"] * 4 + [""]


def test_the_sentences_have_the_answers() -> None:
    result = made(loss=0.025, chosen=("layer.0.self.1", "layer.0.self.4"))
    greedy, by_zero, harmless, *others = (
        each for each in sentences(result) if "first 2 heads in the order" not in each[:60]
    )
    assert greedy.startswith(
        "Removing 2 of 6 heads together keeps 94.1 % accuracy (95 % CI 93.0-95.0, n = 2,000 held-out"
    )
    assert greedy.endswith("The drop is 0.9 points (95 % CI 0.4-1.4), at most the limit of 2.5 points.")
    assert table(result).note.endswith(f"Greedy removal chose these heads {ON}, in order: L0H1 and L0H4.")
    assert "By own drop: heads are removed in the order of their own drops under zero ablation." in table(result).note
    assert by_zero.startswith(
        f"Removing all 3 heads that cost under 1 point when removed alone, {ON}, leaves 61.2 % accuracy"
    )
    assert "L0H0, L0H1 and L0H2. The drop is 33.8 points (95 % CI 31.7-35.8)" in by_zero
    assert by_zero.endswith("By the point estimate alone, without its interval, 4 heads would count as harmless.")
    assert "Removing all 2 heads that cost under 1 point under every ablation (zero, mean and resample)" in harmless
    assert (
        "leaves 93.2 % accuracy (95 % CI 91.0-94.0): L0H0 and L0H1. The drop is 1.8 points (95 % CI 1.2-2.4)"
        in harmless
    )
    assert (
        "If their outputs are replaced by their means instead, 94.3 % accuracy (95 % CI 92.0-95.0) is left." in harmless
    )
    (together,) = (curve for curve in result.curves if curve.name == "together")
    as_many = f"leave {100 * together.points[2].score:.1f} % accuracy"
    assert f"The first 2 heads in the order of their own drops under zero ablation {as_many}" in harmless
    assert any(each.startswith("The best of 6 random sets of 1 head leaves 87.6 % accuracy") for each in others)
    assert others[-1].startswith("Without any head, ")


def test_a_drop_beyond_the_limit_is_reported() -> None:
    (greedy, *_) = sentences(made(loss=0.003))
    assert "The drop is 0.9 points (95 % CI 0.4-1.4), more than the limit of 0.3 points" in greedy


def test_where_nothing_is_harmless_no_head_is_named() -> None:
    whole = Point(0, None, 0.95, 0.95, 0.95)
    none = {"harmless": (), "harmless_left": whole, "harmless_means": whole, "by_zero": (), "by_zero_left": whole}
    result = made(chosen=(), kept=whole, n_tried=0, best_random=whole, **none)
    first, by_zero, harmless, *others = sentences(result)
    assert first == f"No head can be removed for a drop of at most 1 point (greedy removal, {ON})."
    assert f"no head costs under 1 point when removed alone, {ON}." in by_zero
    assert f"no head costs under 1 point under every ablation (zero, mean and resample), {ON}." in harmless
    assert not any("random" in each for each in others)
    assert "in order: none." in table(result).note


def test_a_loss_rises_and_its_interval_is_in_order() -> None:
    whole = Point(0, None, -0.25, -0.3, -0.2, PairedDifference(0.0, 0.0, 0.0, 1.0))
    kept = Point(1, "layer.0.self.0", -0.5, -0.6, -0.45, PairedDifference(0.25, 0.2, 0.3, 0.01))
    result = made(
        metric="loss", unit="nats", is_accuracy=False, clean=-0.25, kept=kept, curves=(PruningCurve("alone", (whole,)),)
    )
    assert sentences(result)[0].startswith("Removing 1 of 6 heads leaves a loss of 0.5 nats (95 % CI 0.4500-0.6000")
    assert "The rise of the loss is 0.25 nats (95 % CI 0.2000-0.3000), more than the limit" in sentences(result)[0]


def test_what_was_not_measured_is_reported() -> None:
    """The budget ended after two removals, before random sets and other replacements were tried."""
    whole = made().curves[0].points[0]
    curves = (PruningCurve("greedy", (whole, *made().curves[3].points[1:3])),)
    skipped = {"budget": 90.0, "not_measured": ("greedy removal beyond 2 of 6 heads", "random orders")}
    random = {"n_random": 0, "best_random": whole, "chance": (), "replacements": ("zero",)}
    result = made(curves=curves, **skipped, **random)
    assert sentences(result)[-1] == (
        "Not measured, because the time budget of 90 s ended: greedy removal beyond 2 of 6 heads; random orders."
    )
    assert not any(words in " ".join(sentences(result)) for words in ("every ablation", "random sets", "any head,"))
    assert sum("-L0H" in cell.text for row in table(result).rows for cell in row) == 2, (
        "the table ends where time was up"
    )
    fewer = sentences(made(n_random=4))
    assert any(each.startswith("The best of 4 random sets of 1 head") and "tried 6 sets" in each for each in fewer)


def test_the_cost_of_a_cut(cost) -> None:
    (block,) = describe_cost(cost)
    assert isinstance(block, DataTable)
    assert block.caption == "small: runs/sort without L0H0, L0H1"
    rows = cost_rows(cost)
    assert rows["heads"] == ("6", "4", "blocks that lost all heads: layer.0.self")
    assert rows["parameters"] == ("10,000", "7,500", "25.0 % less")
    assert rows["bytes"][:2] == ("41,000", "31,000")
    assert rows["µs per example"] == ("100.0", "80.5", "1.25 times as fast")
    assert rows["accuracy"] == (
        "95.00 % [93.96, 95.88]",
        "94.12 % [93.00, 95.06]",
        "drop 0.88 [0.10, 1.66] points, the test set",
    )
    assert rows["difference from ablation"] == ("", "3.2e-07", "relative to the largest logit")


def test_the_cost_in_other_metrics(cost) -> None:
    rho = cost_rows(replace(cost, metric="spearman", is_accuracy=False))
    assert rho["spearman"][1] == "0.9412 [0.9300, 0.9506]"
    scores = {"score": (-0.25, -0.5), "score_intervals": ((-0.3, -0.2), (-0.6, -0.45))}
    loss = cost_rows(replace(cost, metric="loss", unit="nats", is_accuracy=False, **scores))
    assert loss["loss"][1] == "0.5000 [0.4500, 0.6000]"
    assert loss["loss"][2].startswith("rise ")


def test_the_cost_after_fine_tuning_or_folding(cost) -> None:
    tuned = cost_rows(replace(cost, fine_tuned=1500, lost_blocks=()))
    assert tuned["difference from ablation"][2].endswith("; then fine-tuned for 1,500 steps")
    assert tuned["heads"][2] == "blocks that lost all heads: none"
    folded = cost_rows(replace(cost, folded_over=16_384))
    assert folded["difference from mean ablation"][2].endswith(
        "; means over 16,384 unlabelled examples were added to the biases"
    )
