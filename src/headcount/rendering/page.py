"""Write a report as one HTML file: it contains its style, scripts and data, and its policy allows nothing else."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache, singledispatch
from hashlib import sha256
from importlib.resources import files

from headcount.describing.blocks import (
    Block,
    Cell,
    Commands,
    Conclusions,
    DataTable,
    Formula,
    HeadPatterns,
    Notice,
    Paragraph,
    Picture,
    Section,
    Sentence,
)
from headcount.describing.report import Report
from headcount.rendering.formulas import mathml
from headcount.rendering.svg import figure_colours, inline_svg

SCRIPTS = ("elements.js", "weights.js", "large-view.js", "patterns.js", "report.js")
"""Scripts that are joined into one module, in this order: each file may use the declarations of the files before."""
LONG_TEXT = 24
"""Number of characters above which the text of a table cell may wrap."""
MANY_COLUMNS = 6
"""Number of columns above which a table has smaller gaps between columns."""
VERDICTS = {"fail": "Fault", "warn": "Doubt", "pass": "Checked"}


def escaped(text: str) -> str:
    """Escape text for an element or an attribute; show control characters by their codes, so that they do nothing."""
    shown = "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)
    return html.escape(shown, quote=True)


def inline(text: str) -> str:
    """Escape text, and turn `code` between backticks into an element."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped(text))


def tag(name: str, *inside: str, **attributes: str | bool | None) -> str:
    """Write an element. `inside` must be markup already; attributes such as `class_` or `aria_label` are escaped."""
    texts = []
    for key, value in attributes.items():
        word = key.rstrip("_").replace("_", "-")
        if value is True:
            texts.append(f" {word}")
        elif value not in (None, False):
            texts.append(f' {word}="{escaped(str(value))}"')
    return f"<{name}{''.join(texts)}>{''.join(inside)}</{name}>"


def html_page(report: Report) -> str:
    """Return the report as one HTML file, with its styles, scripts and figures inside."""
    style = _static("report.css") + figure_colours()
    theme, script = _static("theme.js"), "\n".join(map(_static, SCRIPTS))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(theme)}' '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        tag("title", escaped(report.title)),
        f"<style>{style}</style>",
        f"<script>{theme}</script>",
    ]
    theme_button = tag("button", "Dark theme", type="button", id="theme", aria_pressed="false")
    subtitle = tag("p", inline(report.subtitle), class_="subtitle") if report.subtitle else ""
    main = tag("main", *map(_section, report.sections), id="report")
    body = [
        '<a class="skip" href="#report">To the report</a>',
        tag("header", tag("div", theme_button, class_="tools"), tag("h1", escaped(report.title)), subtitle),
        tag("div", _contents(report.sections), main, class_="page"),
        tag("footer", tag("p", inline(report.made))) if report.made else "",
        tag("div", class_="tip", id="tip", aria_hidden="true", hidden=True),
        tag("p", class_="unseen", id="status", role="status"),
        f'<script type="module">{script}</script>',
    ]
    parts = ["<!doctype html>", '<html lang="en">', tag("head", *head), tag("body", *body), "</html>"]
    return "\n".join(parts) + "\n"


def _static(name: str) -> str:
    return files("headcount.rendering").joinpath("static", name).read_text(encoding="utf-8")


@cache
def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _contents(sections: Sequence[Section]) -> str:
    links = [tag("li", tag("a", escaped(each.title), href=f"#{each.id}")) for each in sections]
    listed = tag("details", tag("summary", "Contents"), tag("ol", *links), open=True)
    return tag("nav", listed, aria_label="Contents")


def _section(section: Section) -> str:
    heading = tag("h2", escaped(section.title), id=f"{section.id}-title")
    return tag(
        "section", heading, *map(block_html, section.blocks), id=section.id, aria_labelledby=f"{section.id}-title"
    )


# --- blocks -----------------------------------------------------------------------------------------------------------


@singledispatch
def block_html(block: Block) -> str:
    """Return a block of the report (sentences, a table or a figure) as HTML."""
    raise TypeError(f"no HTML for {type(block).__name__}")


@block_html.register
def _(block: Paragraph) -> str:
    return tag("p", inline(block.text))


@block_html.register
def _(block: Conclusions) -> str:
    return tag("ul", *(tag("li", _sentence(each)) for each in block.sentences), class_="conclusions")


def _sentence(sentence: Sentence) -> str:
    link = f' <a class="rests-on" href="#{escaped(sentence.rests_on)}">see</a>' if sentence.rests_on else ""
    return tag("span", inline(sentence.text), class_="conclusion" if sentence.is_decided else "undecided") + link


@block_html.register
def _(block: DataTable) -> str:
    numeric = [
        any(isinstance(cell := row[i], Cell) and cell.value is not None for row in block.rows)
        for i in range(len(block.columns))
    ]
    heads = [
        tag("th", tag("button", escaped(name), type="button"), scope="col", class_="number" if is_number else None)
        for name, is_number in zip(block.columns, numeric, strict=True)
    ]
    rows = [tag("tr", *(_cell(cell, i, numeric[i]) for i, cell in enumerate(row))) for row in block.rows]
    table = tag(
        "table",
        tag("caption", tag("span", inline(block.caption))),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        class_=f"sortable{' narrow' if block.is_narrow else ' many' if len(block.columns) > MANY_COLUMNS else ''}",
    )
    shown = [tag("div", table, class_="scroll", **_box(block.caption)), _note(block.note), _command(block.command)]
    if block.is_folded:
        shown = [tag("details", tag("summary", inline(block.caption)), *shown)]
    return tag("figure", *shown, id=block.id, class_="table")


def _box(caption: str) -> dict[str, str]:
    """Return the HTML attributes of a box wider than the page, so that readers can scroll the box with the keyboard."""
    return {"tabindex": "0", "role": "group", "aria_label": caption.replace("`", "")}


def _cell(cell: Cell | str, column: int, is_number: bool) -> str:
    cell = cell if isinstance(cell, Cell) else Cell(cell)
    is_prose = not is_number and len(cell.text) > LONG_TEXT
    classes = " ".join(filter(None, ("number" if is_number else "", "prose" if is_prose else "", cell.mark)))
    value = None if cell.value is None else repr(float(cell.value))
    name = "th" if column == 0 else "td"
    text = _with_range(cell.text) if is_number else inline(cell.text)
    return tag(name, text, class_=classes or None, data_value=value, scope="row" if column == 0 else None)


def _with_range(text: str) -> str:
    """Return the markup of a number and its interval; in a narrow column, the whole interval moves to the next line."""
    number, bracket, rest = text.partition(" [")
    return inline(number) + (f" {tag('span', inline(f'[{rest}'), class_='range')}" if bracket else "")


def _note(text: str) -> str:
    """Return the paragraph of a note; nothing for an empty one."""
    return tag("p", inline(text), class_="note") if text else ""


def _command(command: str) -> str:
    if not command:
        return ""
    copy = tag("button", "Copy", type="button", class_="copy", aria_label=f"Copy {command}")
    words = " ".join(tag("span", escaped(word)) for word in command.split(" "))  # lines break between words only
    return tag("p", tag("code", words), copy, class_="command")


@block_html.register
def _(block: Picture) -> str:
    drawn = inline_svg(block.draw(), block.id, escaped(block.alt))
    box = tag("div", drawn, class_="scroll picture", **_box(block.caption))
    return tag("figure", box, tag("figcaption", inline(block.caption)), _command(block.command), id=block.id)


@block_html.register
def _(block: HeadPatterns) -> str:
    header = {**block.book.header(), "worth": block.worth}
    data = tag_script("application/json", json.dumps(header, separators=(",", ":")))
    packed = tag_script("application/octet-stream", block.book.packed())
    noscript = tag("noscript", tag("p", "A script draws the patterns, and this reader does not run scripts."))
    shown = tag("div", class_="patterns"), data, packed, noscript, tag("figcaption", inline(block.caption))
    return tag("figure", *shown, _command(block.command), id=block.id, class_="patterns-figure")


def tag_script(kind: str, text: str) -> str:
    """Return a script element that holds data and is not run; `<` is escaped, so the data cannot end the element."""
    return f'<script type="{kind}">{text.replace("<", chr(92) + "u003c")}</script>'


@block_html.register
def _(block: Formula) -> str:
    math = f'<math display="block" xmlns="http://www.w3.org/1998/Math/MathML">{mathml(block.expression)}</math>'
    return tag("figure", tag("p", inline(block.words)), math, _note(block.error), id=block.id, class_="formula")


@block_html.register
def _(block: Notice) -> str:
    check = f" ({block.check})" if block.check else ""
    words = tag("strong", f"{VERDICTS[block.verdict]}{escaped(check)}. ")
    return tag("div", tag("p", words, inline(block.text)), role="note", class_=f"notice {block.verdict}")


@block_html.register
def _(block: Commands) -> str:
    words = tag("p", inline(block.words)) if block.words else ""
    return words + "".join(map(_command, block.commands))
