"""Figures as SVG: for a paper as they are, for a page without anything that its policy or its dark theme forbids.

matplotlib writes style attributes, which a strict content-security policy ignores, and black on white. In a page each
property becomes an attribute, black becomes the colour of the text, and white that of the paper; numbers on the cells
of a heat map stay as they are, for so do the cells.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.colors import to_hex

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TAG = re.compile(r"<[^>]+>")
_STYLE = re.compile(r' style="([^"]*)"')
_PAINT = re.compile(r' (fill|stroke)="([^"]*)"')
_FONT = re.compile(r"(?:(?P<weight>bold|\d{3}) )?(?P<size>[\d.]+)px (?P<family>.+)")
_DROPPED = re.compile(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", re.DOTALL)
INK, PAPER = "currentColor", "var(--paper)"
_COLOURS = {
    "#000000": INK,
    "#262626": INK,
    "black": INK,
    "#ffffff": PAPER,
    "white": PAPER,
    "#0072b2": "var(--blue)",
    "#56b4e9": "var(--sky)",
    "#666666": "var(--grey)",
    "#b0b0b0": "var(--edge)",
}
"""What a dark page needs lighter, by the names that its style has for it."""
_FIXED = {"#000000": "#010101", "#ffffff": "#fefefe"}
"""What stands for black and white where they are to stay."""


def svg(figure: Figure, salt: str = "headcount", paper: str = "auto") -> str:
    """As a file; its text is text, and the same data give the same bytes."""
    data = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(data, format="svg", facecolor=paper, metadata={"Date": None, "Creator": None})
    return data.getvalue()


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """For a page: `name` keeps its ids apart from those of other figures, `label` (escaped) says what is to be seen."""
    with _fixed_numbers(figure):
        text = svg(figure, name, "none")
    opening = re.search(r"<svg[^>]*>", text)
    assert opening is not None, "matplotlib writes an svg element"
    inside = _DROPPED.sub("", text[opening.end() :])
    inside = _TAG.sub(lambda found: _for_page(found.group(0), name), inside)
    size = {key: float(value) for key, value in re.findall(r' (width|height)="([\d.]+)pt"', opening.group(0))}
    sides = "".join(f' {key}="{points * 4 / 3:.0f}"' for key, points in size.items())
    box = f'viewBox="0 0 {size["width"]:g} {size["height"]:g}"{sides}'
    head = f'<svg {box} role="img" aria-label="{label}" fill="{INK}" stroke-linejoin="round">'
    return head + re.sub(r"\s*\n\s*", "\n", inside).strip()


def _for_page(tag: str, name: str) -> str:
    tag = _PAINT.sub(lambda found: f' {found[1]}="{_COLOURS.get(found[2], found[2])}"', tag)  # of hatches
    tag = _STYLE.sub(lambda found: "".join(f' {key}="{value}"' for key, value in _properties(found.group(1))), tag)
    return re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", tag)


def _properties(style: str) -> list[tuple[str, str]]:
    """`fill: none` as a pair; the shorthand of fonts in its parts; of those given twice the last."""
    found = {}
    for part in style.split(";"):
        name, _, value = (each.strip() for each in part.partition(":"))
        if name == "font" and (font := _FONT.fullmatch(value.replace("&quot;", "'"))):
            found["font-size"] = font["size"]
            found |= {"font-weight": font["weight"]} if font["weight"] else {}
        elif name:
            found[name] = _COLOURS.get(value, value)
    return list(found.items())


@contextmanager
def _fixed_numbers(figure: Figure) -> Iterator[None]:
    """Meanwhile no text over an image is black or white, as matplotlib leaves out what is black."""
    texts = [text for axes in figure.axes if axes.images for text in axes.texts]
    before = [text.get_color() for text in texts]
    for text in texts:
        text.set_color(_FIXED.get(to_hex(text.get_color()), text.get_color()))
    try:
        yield
    finally:
        for text, colour in zip(texts, before, strict=True):
            text.set_color(colour)
