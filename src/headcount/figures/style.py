"""The style of all figures: readable in print, without colours and by colour-blind readers, with no text cut off."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter

from headcount.files import MARK

if TYPE_CHECKING:
    from matplotlib.backend_bases import RendererBase

BLUE, ORANGE, SKY, GREY = "#0072b2", "#d55e00", "#56b4e9", "#666666"
LIGHT_GREY, BLACK = "#b0b0b0", "#000000"
PALETTE = (BLUE, ORANGE, "#009e73", "#cc79a7", "#e69f00", SKY, "#000000", "#999933")
"""Okabe and Ito's palette for colour-blind readers, one colour per line; markers also distinguish lines in print."""
SEQUENTIAL = "Blues"
"""The colour map of attention weights, whose lightness falls evenly, so that it can be read without colours."""
DIVERGING = "PuOr_r"
"""The colour map of signed values: white at 0, purple below and orange above, which colour-blind readers can tell."""
HIDDEN = "#d9d9d9"
"""The colour of keys that a query cannot attend to."""
HALF_CI = "half of the 95 % CI"
"""The meaning of ± in figures and tables."""
LIGHT, DARK = "#fefefe", "#010101"
"""Near-white and near-black for heat maps; a page with a dark theme swaps pure white and black, but not these two."""
NARROWEST, MARGIN = 5.0, 0.15
"""In inches: the smallest width of a figure, and the margin at either side of its title."""
LINE = 1.3 / 72
"""The height of a line of text, in inches per point of the text size."""
HANDLE = 5.2 / 72
"""The width of the line or marker beside a label in a legend, in inches per point of the text size."""


class Page(Figure):
    """A figure in which no text is cut off, and no text is read as a formula.

    `width` and `height` are the size of the panels, in inches. A title above and a legend below make the figure higher.
    """

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(max(width, NARROWEST), height), layout="constrained")

    @property
    def room(self) -> float:
        """Return the largest width of a line of text in this figure, in inches."""
        return float(self.get_figwidth()) - 2 * MARGIN

    def headline(self, *lines: str, size: float = 11) -> None:
        """Write a title of one or several lines above all panels."""
        text = "\n".join(wrapped(line, self.room, size) for line in lines)
        self.suptitle(text, fontsize=size)
        self._grow(text.count("\n") + 1.5, size)

    def caption(self, text: str, size: float = 8.5) -> None:
        """Write a note below all panels."""
        text = wrapped(text, self.room, size)
        self.supxlabel(text, fontsize=size)
        self._grow(text.count("\n") + 1.5, size)

    def key(
        self, handles: Sequence[Artist], labels: Sequence[str], *, columns: int = 8, size: float = 9, title: str = ""
    ) -> None:
        """Draw one legend for all panels below them, with as many columns as there is room for."""
        if not labels:
            return
        widest = max(width_of(plain(label), size) for label in labels) + HANDLE * size
        n = max(1, min(columns, len(labels), int(self.room / widest)))
        texts = [wrapped(label, self.room / n - HANDLE * size, size) for label in labels]
        place: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "title": title or None}
        self.legend(handles, texts, ncols=n, fontsize=size, title_fontsize=size, **place)
        heights = [sum(1.3 + text.count("\n") for text in column) for column in np.array_split(texts, n)]
        self._grow(max(heights) + 1 + bool(title), size)

    def explained_key(self, handles: Sequence[Artist], labels: Sequence[str], words: str, size: float = 8.5) -> None:
        """Write an explanation below all panels, and a legend below the explanation."""
        text = wrapped(words, self.room, size)
        self.key(handles, labels, size=size, title=text)
        self._grow(text.count("\n") * 1.2, size)

    def draw(self, renderer: RendererBase) -> None:
        """Draw the figure; dollar signs in names are drawn as dollar signs and do not start a formula."""
        mathematics = {label for axes in self.axes for label in _powers(axes.xaxis) + _powers(axes.yaxis)}
        for text in self.findobj(Text):
            if isinstance(text, Text) and text not in mathematics:
                text.set_parse_math(False)
        super().draw(renderer)

    def _grow(self, lines: float, size: float) -> None:
        self.set_figheight(self.get_figheight() + lines * LINE * size)


def _powers(axis: Any) -> list[Text]:
    """Return the tick labels of a logarithmic axis, such as 10², which matplotlib must read as formulas."""
    formatters = axis.get_major_formatter(), axis.get_minor_formatter()
    return axis.get_ticklabels(which="both") if any(isinstance(each, LogFormatter) for each in formatters) else []


def plain(text: str, most: int | None = None) -> str:
    r"""Return text as one line of at most `most` letters; a box stands for a letter that the font lacks.

    >>> plain("tab\tand 中"), plain("runs/sortedness", most=8)
    ('tab\\tand □', 'runs/so…')
    """
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    text = text if most is None or len(text) <= most else f"{text[: most - 1]}…"
    return "".join(char if ord(char) in _drawable() else "□" for char in text)


def wrapped(text: str, inches: float, size: float) -> str:
    """Return text broken into lines of at most the given width in inches; words that are too long are broken, too."""
    lines, line = list[str](), ""
    for word in re.findall(r"\s*\S+", plain(text)):
        if line and width_of(line + word, size) > inches:
            lines.append(line)
            line = word.lstrip()
        else:
            line += word
        while len(line) > 1 and width_of(line, size) > inches:
            n = next((n for n in range(len(line) - 1, 1, -1) if width_of(line[:n], size) <= inches), 1)
            lines.append(line[:n])
            line = line[n:]
    return "\n".join([*lines, line])


def width_of(text: str, size: float) -> float:
    """Return the width in inches of a line of text at a font size in points, with a margin of 5 %."""
    return 1.05 * sum(map(_advance, text)) * size / 72


@cache
def _advance(char: str) -> float:
    """Return the width of a letter as a fraction of the font size."""
    font = get_font(findfont(FontProperties()))
    font.set_size(100, 72)
    return float(font.load_char(ord(char)).linearHoriAdvance) / 65536 / 100


@cache
def _drawable() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties())).get_charmap())


def plot_band(
    axes: Axes, x: Any, y: Any, low: Any, high: Any, line: str = "-", *, alpha: float = 0.15, **look: Any
) -> None:
    """Draw a line with a shaded band from `low` to `high`; `look` are matplotlib's properties of the line."""
    axes.fill_between(x, low, high, color=look["color"], alpha=alpha, linewidth=0)
    axes.plot(x, y, line, **look)


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file; equal figures give equal bytes."""
    data = io.BytesIO()
    with warnings.catch_warnings():
        for fault in ("Glyph .* missing from", "Matplotlib currently does not support"):  # a box is drawn instead
            warnings.filterwarnings("ignore", message=fault)
        figure.savefig(data, format="png", dpi=150, metadata={"Software": MARK})
    return data.getvalue()
