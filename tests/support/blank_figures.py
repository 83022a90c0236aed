"""Figures without content, for tests that need a figure's name and not its picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from headcount.api import saving
from headcount.exercise import files
from headcount.rendering import markdown, page


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


PICTURES: dict[tuple[Any, str], Any] = {
    (Figure, "subplots"): _subplots,
    **{(Figure, name): _nothing for name in ("add_axes", "delaxes", "colorbar", "legend")},
    **{(module, "png"): lambda figure: b"a picture written by headcount" for module in (files, markdown, saving)},
    (markdown, "svg"): lambda figure: "<svg></svg>",
    (page, "inline_svg"): lambda *_: "<svg></svg>",
}
"""What makes pictures, by its home and name, and what leaves them blank."""
REAL = {(home, name): getattr(home, name) for home, name in PICTURES}


def leave_figures_blank(patch: pytest.MonkeyPatch) -> None:
    """Let every figure run its view's code on blank axes: matplotlib takes longer than most of what is tested."""
    for (home, name), blank in PICTURES.items():
        patch.setattr(home, name, blank)


def paint_figures(patch: pytest.MonkeyPatch) -> None:
    """Undo `leave_figures_blank`."""
    for (home, name), real in REAL.items():
        patch.setattr(home, name, real)
