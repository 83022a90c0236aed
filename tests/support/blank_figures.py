"""Figures without content, for tests that need a figure's name and not its picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure


class Blank:
    """Accept every call that a view makes on axes, and draw nothing."""

    def __getattr__(self, name: str) -> Blank:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **settings: Any) -> Blank:
        return self

    def __getitem__(self, key: Any) -> Blank:
        return self

    def __iter__(self) -> Iterator[Blank]:
        return iter(())

    def get_legend_handles_labels(self) -> tuple[list[Any], list[str]]:
        return [], []


BLANK = Blank()


def _subplots(figure: Figure, nrows: int = 1, ncols: int = 1, *, squeeze: bool = True, **settings: Any) -> Any:
    grid = np.full((nrows, ncols), BLANK, dtype=object)
    if not squeeze:
        return grid
    return BLANK if grid.size == 1 else grid.squeeze()


def _nothing(figure: Figure, *args: Any, **settings: Any) -> Blank:
    return BLANK


def leave_figures_blank(patch: pytest.MonkeyPatch) -> None:
    """Let every figure run its view's code on blank axes: matplotlib takes longer than most of what is tested."""
    patch.setattr(Figure, "subplots", _subplots)
    for name in ("add_axes", "delaxes", "colorbar", "legend"):
        patch.setattr(Figure, name, _nothing)
