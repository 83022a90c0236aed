"""Where a model has nothing to lose, a drop of 0 must not look harmless."""

from __future__ import annotations

from dataclasses import replace

from headcount.analysis.ablation import Ablation, AblationCondition, Effect
from headcount.figures.ablation import draw_lengths

AT_16 = Effect(
    *("layer.0.self.0", "L0H0", "zero", "accuracy", 1.0, 0.8, 0.2, 0.15, 0.25, 0.001, "critical"),
    *(None, None, 80, 0, 400, 1, 1, 0.1, 16),
)
AT_64 = replace(AT_16, clean=0.5, ablated=0.5, drop=0.0, low=-0.01, high=0.01, p=1.0, band=None, worse=0, length=64)


def made(*effects: Effect) -> Ablation:
    rest = (0.5, 0, (), (), (), (0.0, 1.0), 0, 0)
    conditions = tuple(AblationCondition(each.length, "fresh", 400, each.clean, *rest) for each in effects)
    return Ablation("sorter", "digest", "accuracy", "points", True, ("zero",), effects, conditions, ())


def test_a_length_without_bands_is_named_and_not_drawn() -> None:
    (axes,) = draw_lengths(made(AT_16, AT_64)).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "64\n(nothing to lose)"]
    assert list(axes.lines[0].get_xdata()) == [16.0]


def test_there_may_be_nothing_to_lose_anywhere() -> None:
    (axes,) = draw_lengths(made(AT_64, replace(AT_64, length=128))).axes
    assert not axes.lines
