"""Write figures as SVG: unchanged for a paper; for an HTML page, adapted to its security policy and its dark theme.

matplotlib writes style attributes, which a strict content-security policy ignores, and it draws black on white. In a
page, each style property becomes an attribute, black becomes the text colour, and white becomes the background colour.
Numbers on a heat map keep their colours, because the cells of a heat map do.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex

from headcount.figures.style import BLUE, DARK, GREY, LIGHT, SKY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TAG = re.compile(r"<[^>]+>")
_STYLE = re.compile(r' style="([^"]*)"')
_PAINT = re.compile(r' (fill|stroke)="([^"]*)"')
_LONG_NUMBER = re.compile(r"(?<![\w.])\d+\.\d{3,}(?![\w.])")
_FONT = re.compile(r"(?:(?P<weight>bold|\d{3}) )?(?P<size>[\d.]+)px (?P<family>.+)")
_DROPPED = re.compile(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", re.DOTALL)
INK, PAPER = "currentColor", "var(--paper)"
FIGURE_COLOURS = {"blue": (BLUE, "#3f93e6"), "sky": (SKY, "#b3e0ff"), "grey": (GREY, "#98a2ad")}
"""Maps the name of a colour in the page's style sheet to two colours: for a light, and for a dark background."""
_COLOURS = {
    "#000000": INK,
    "#262626": INK,
    "black": INK,
    "#ffffff": PAPER,
    "white": PAPER,
    "#b0b0b0": "var(--edge)",
    **{colour: f"var(--{name})" for name, (colour, _) in FIGURE_COLOURS.items()},
}
"""Maps a colour that matplotlib writes to the colour of the page's theme that replaces it."""
_FIXED = {"#000000": DARK, "#ffffff": LIGHT}
"""Maps black and white to near-black and near-white, for text whose colour a page's theme must not change."""


def svg(figure: Figure, salt: str = "headcount", paper: str = "auto") -> str:
    """Return a figure as the text of an SVG file; letters are stored as text, and equal figures give equal files."""
    data = io.StringIO()
    before = figure.get_facecolor()
    figure.set_facecolor(before if paper == "auto" else paper)
    try:
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
            # Figure.savefig draws everything twice, the first time for canvases that need to know their size before.
            canvas: Any = FigureCanvasSVG(figure)  # matplotlib does not annotate it
            canvas.print_svg(data, metadata={"Date": None, "Creator": None})
    finally:
        figure.set_facecolor(before)
    return data.getvalue()


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """Return a figure as an SVG element for an HTML page.

    Its ids begin with `name`. `label` describes the figure in words and must be escaped for HTML.
    """
    with _fixed_numbers(figure):
        text = svg(figure, name, "none")
    opening = re.search(r"<svg[^>]*>", text)
    assert opening is not None, "matplotlib writes an svg element"
    inside = _DROPPED.sub("", text[opening.end() :])
    inside = _TAG.sub(lambda match: _for_page(match.group(0), name), inside)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', inside))
    inside = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", inside)
    size = {key: float(value) for key, value in re.findall(r' (width|height)="([\d.]+)pt"', opening.group(0))}
    sides = "".join(f' {key}="{points * 4 / 3:.0f}"' for key, points in size.items())
    box = f'viewBox="0 0 {size["width"]:g} {size["height"]:g}"{sides}'
    head = f'<svg {box} role="img" aria-label="{label}" fill="{INK}" stroke-linejoin="round">'
    return head + re.sub(r"\s*\n\s*", "\n", inside).strip()


def figure_colours() -> str:
    """Return the style sheet with the colours of figures, for the light and for the dark theme of a page."""
    colours = (f"--{name}: light-dark({light}, {dark});" for name, (light, dark) in FIGURE_COLOURS.items())
    return f":root {{ {' '.join(colours)} }}\n"


def _for_page(tag: str, name: str) -> str:
    """Return an SVG tag adapted to a page: style as attributes, colours of the theme, ids that begin with `name`."""
    tag = _PAINT.sub(lambda match: f' {match[1]}="{_COLOURS.get(match[2], match[2])}"', tag)  # for hatches
    tag = _STYLE.sub(lambda match: "".join(f' {key}="{value}"' for key, value in _properties(match.group(1))), tag)
    tag = _LONG_NUMBER.sub(lambda match: _rounded(match[0]), tag)
    return re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", tag)


def _rounded(number: str) -> str:
    """Return a coordinate rounded to a precision that nobody can see; a number below 1 keeps four digits.

    >>> _rounded("231.402163"), _rounded("0.00123456")
    ('231.4', '0.001235')
    """
    value = float(number)
    digits = 1 if value >= 100 else 2
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if value >= 1 else f"{value:.4g}"


def _properties(style: str) -> list[tuple[str, str]]:
    """Return the (name, value) pairs of a CSS style such as `fill: none; stroke: black`.

    `font` becomes the font size and weight. If a name occurs twice, the last value is used.
    """
    properties = {}
    for part in style.split(";"):
        name, _, value = (each.strip() for each in part.partition(":"))
        if name == "font" and (font := _FONT.fullmatch(value.replace("&quot;", "'"))):
            properties["font-size"] = font["size"]
            properties |= {"font-weight": font["weight"]} if font["weight"] else {}
        elif name:
            properties[name] = _COLOURS.get(value, value)
    properties.pop("font-family", None)  # the page's style has it
    return list(properties.items())


@contextmanager
def _fixed_numbers(figure: Figure) -> Iterator[None]:
    """In a `with` block, make black and white texts on images near-black and near-white, which no theme changes."""
    texts = [text for axes in figure.axes if axes.images for text in axes.texts]
    before = [text.get_color() for text in texts]
    for text in texts:
        text.set_color(_FIXED.get(to_hex(text.get_color()), text.get_color()))
    try:
        yield
    finally:
        for text, colour in zip(texts, before, strict=True):
            text.set_color(colour)
