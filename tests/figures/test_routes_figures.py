"""The map of routes: columns of all ways are aligned, and labels of arrows do not cover cells."""

from __future__ import annotations

import pytest
from matplotlib.patches import Rectangle
from routes_by_hand import patch, routes, streams

from headcount.figures.routes import draw_routes

NEAR, FAR = "1s to 10s", "1s to 1000s"


def test_ways_of_a_model_have_the_same_columns() -> None:
    """A column for the operator is needed on one way only; on the other way, the places would be shifted."""
    at_operator = patch("E1.stream", FAR, 0.6, "+")
    figure = draw_routes([routes(streams=(*streams(NEAR), *streams(FAR), at_operator))])
    columns = [{text.get_text(): text.get_position()[0] for text in axes.texts} for axes in figure.axes]
    assert len(columns) == 2
    assert [[each[place] for place in ("+", "1000s", "1s")] for each in columns] == [[0, 1, 4]] * 2


@pytest.mark.parametrize("target", ["E0.stream", "E1.stream", "D0.stream", "D1.stream"])
def test_labels_of_arrows_are_between_the_rows(target: str) -> None:
    """The arrow into the decoder crosses the row of its input."""
    steps = (("E0.input", "1s", 1.0), (target, "10s", 0.9))
    layer = target.partition(".")[0]
    figure = draw_routes([routes(streams=tuple(streams(NEAR, *steps)), heads=(patch(f"{layer}H1", NEAR, 0.9),))])
    (axes,) = (each for each in figure.axes if each.patches)
    (label,) = (text for text in axes.texts if text.get_text() == f"{layer}H1 90 %")
    height, cells = label.get_position()[1], [each for each in axes.patches if isinstance(each, Rectangle)]
    assert cells
    assert not any(cell.get_y() <= height <= cell.get_y() + cell.get_height() for cell in cells)
