"""A report as one HTML file: its style, its scripts and its data are inside, and its policy allows nothing else."""

from __future__ import annotations

import json
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
from headcount.describing.markup import escaped, inline, tag
from headcount.describing.story import Story
from headcount.rendering.svg import inline_svg

SCRIPTS = ("elements.js", "weights.js", "large-view.js", "patterns.js", "report.js")
"""One module: what a file declares, those after it may use."""
LONG_TEXT = 24
"""Letters in a table's cell, of which on takes several lines, and room for them."""
MANY_COLUMNS = 6
"""More stand closer to each other."""
VERDICTS = {"fail": "Fault", "warn": "Doubt", "pass": "Checked"}


def html_page(story: Story) -> str:
    """The whole file."""
    style, theme, script = _static("report.css"), _static("theme.js"), "\n".join(map(_static, SCRIPTS))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(theme)}' '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        tag("title", escaped(story.title)),
        f"<style>{style}</style>",
        f"<script>{theme}</script>",
    ]
    body = [
        '<a class="skip" href="#story">To the story</a>',
        tag("header", _buttons(), tag("h1", escaped(story.title)), _subtitle(story.subtitle)),
        tag("div", _contents(story.sections), _main(story.sections), class_="page"),
        tag("footer", tag("p", inline(story.made))) if story.made else "",
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


def _subtitle(text: str) -> str:
    return tag("p", inline(text), class_="subtitle") if text else ""


def _buttons() -> str:
    return tag("div", tag("button", "Dark theme", type="button", id="theme", aria_pressed="false"), class_="tools")


def _contents(sections: Sequence[Section]) -> str:
    links = [tag("li", tag("a", escaped(each.title), href=f"#{each.id}")) for each in sections]
    listed = tag("details", tag("summary", "Contents"), tag("ol", *links), open=True)
    return tag("nav", listed, aria_label="Contents")


def _main(sections: Sequence[Section]) -> str:
    return tag("main", *(_section(each) for each in sections), id="story")


def _section(section: Section) -> str:
    heading = tag("h2", escaped(section.title), id=f"{section.id}-title")
    return tag(
        "section", heading, *map(block_html, section.blocks), id=section.id, aria_labelledby=f"{section.id}-title"
    )


# --- blocks -----------------------------------------------------------------------------------------------------------


@singledispatch
def block_html(block: Block) -> str:
    """A block as markup; `_repr_html_` of results shows the same."""
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
    """Of what may be wider than the page: it is scrolled by keys, too."""
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
    """A number and its interval, which stays in one piece where a narrow column has room for one of them in a line."""
    number, bracket, rest = text.partition(" [")
    return inline(number) + (f" {tag('span', inline(f'[{rest}'), class_='range')}" if bracket else "")


def _note(text: str) -> str:
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
    caption = tag("figcaption", inline(block.caption))
    noscript = tag("noscript", tag("p", "Patterns are drawn by a script, which this reader does not run."))
    return tag(
        "figure",
        tag("div", class_="patterns"),
        data,
        packed,
        noscript,
        caption,
        _command(block.command),
        id=block.id,
        class_="patterns-figure",
    )


def tag_script(kind: str, text: str) -> str:
    """Data that no browser runs; nothing in it can end the element."""
    return f'<script type="{kind}">{text.replace("<", chr(92) + "u003c")}</script>'


@block_html.register
def _(block: Formula) -> str:
    math = f'<math display="block" xmlns="http://www.w3.org/1998/Math/MathML">{block.mathml}</math>'
    error = tag("p", inline(block.error), class_="note") if block.error else ""
    return tag("figure", tag("p", inline(block.words)), math, error, id=block.id, class_="formula")


@block_html.register
def _(block: Notice) -> str:
    check = f" ({block.check})" if block.check else ""
    words = tag("strong", f"{VERDICTS[block.verdict]}{escaped(check)}. ")
    return tag("div", tag("p", words, inline(block.text)), role="note", class_=f"notice {block.verdict}")


@block_html.register
def _(block: Commands) -> str:
    words = tag("p", inline(block.words)) if block.words else ""
    return words + "".join(map(_command, block.commands))
