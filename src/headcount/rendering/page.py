"""Write a report as one HTML file with its style, scripts and data; its security policy forbids anything else."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, singledispatch
from hashlib import sha256
from importlib.resources import files

from headcount.describing.blocks import (
    Block,
    Card,
    Cards,
    Cell,
    Commands,
    Conclusions,
    DataTable,
    Formula,
    HeadPatterns,
    LiveModels,
    Notice,
    Paragraph,
    Picture,
    Section,
    Sentence,
)
from headcount.describing.cards import split_doubt
from headcount.describing.report import Report
from headcount.rendering.formulas import mathml
from headcount.rendering.svg import figure_colours, inline_svg

SCRIPTS = ("elements.js", "weights.js", "large-view.js", "patterns.js")
LIVE_SCRIPTS = ("engine.js", "live-board.js", "live.js", "live-sequence.js", "live-row.js")
"""Files of JavaScript that run models in the page.

The page joins `SCRIPTS`, these files, the scripts of tasks and `report.js` into one module, in this order. Each file
may use the declarations of earlier files.
"""
LONG_TEXT = 24
"""Number of characters from which on the text of a table cell may wrap."""
MANY_COLUMNS = 6
"""Number of columns from which on a table has smaller gaps between its columns."""
RELOAD = 20
"""Seconds after which the page of an unfinished report reloads itself."""
VERDICTS = {"fail": "Fault", "warn": "Warning", "pass": "Checked"}


def escaped(text: str) -> str:
    """Return text that is safe inside an HTML element or attribute; control characters become visible codes."""
    shown = "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)
    return html.escape(shown, quote=True)


def inline(text: str) -> str:
    """Return text that is safe inside an HTML element; `code` between backticks becomes a code element."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped(text))


def tag(name: str, *inside: str, **attributes: str | bool | None) -> str:
    """Return an HTML element as text.

    `inside` must be HTML already; the values of attributes, such as `class_` or `aria_label`, are escaped here.
    """
    texts = []
    for key, value in attributes.items():
        word = key.rstrip("_").replace("_", "-")
        if value is True:
            texts.append(f" {word}")
        elif value not in (None, False):
            texts.append(f' {word}="{escaped(str(value))}"')
    return f"<{name}{''.join(texts)}>{''.join(inside)}</{name}>"


def html_page(report: Report) -> str:
    """Return a report as the text of one HTML file, with its styles, scripts and figures inside."""
    style = _static("report.css") + figure_colours()
    theme, script = _static("theme.js"), _script(report)
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
    notice = ""
    if report.unfinished:
        head.append(f'<meta http-equiv="refresh" content="{RELOAD}">')
        words = f"Not finished yet: {report.unfinished}. This page reloads itself every {RELOAD} seconds."
        notice = tag("p", inline(words), class_="unfinished")
    is_folded = any(map(_cards_of, report.sections))
    tools = [tag("button", "Dark theme", type="button", id="theme", aria_pressed="false")]
    if is_folded:
        tools.insert(0, tag("button", "Open all", type="button", id="open-all"))
        tools.insert(1, tag("button", "Print as shown", type="button", id="print"))
    subtitle = tag("p", inline(report.subtitle), class_="subtitle") if report.subtitle else ""
    on_cards = {each.section for section in report.sections for each in _cards_of(section)}
    sections = (_section(each, is_folded=is_folded, is_told=each.id in on_cards) for each in report.sections)
    main = tag("main", *sections, id="report")
    body = [
        '<a class="skip" href="#report">To the report</a>',
        tag("header", tag("div", *tools, class_="tools"), tag("h1", escaped(report.title)), subtitle, notice),
        tag("div", _contents(report.sections), main, class_="page"),
        tag("footer", tag("p", inline(report.made))) if report.made else "",
        tag("div", class_="tip", id="tip", aria_hidden="true", hidden=True),
        tag("p", class_="unseen", id="status", role="status"),
        f'<script type="module">{script}</script>',
    ]
    parts = ["<!doctype html>", '<html lang="en">', tag("head", *head), tag("body", *body), "</html>"]
    return "\n".join(parts) + "\n"


def _script(report: Report) -> str:
    """Return all JavaScript of the page as one text, with the script of each task whose models the page runs."""
    live = [block for section in report.sections for block in section.blocks if isinstance(block, LiveModels)]
    tasks = dict.fromkeys(block.models[0].model.task.script for block in live)
    return "\n".join([*map(_static, (*SCRIPTS, *LIVE_SCRIPTS)), *tasks, _static("report.js")])


def _static(name: str) -> str:
    return files("headcount.rendering").joinpath("static", name).read_text(encoding="utf-8")


@cache
def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _contents(sections: Sequence[Section]) -> str:
    links = [tag("li", tag("a", escaped(each.title), href=f"#{each.id}")) for each in sections]
    listed = tag("details", tag("summary", "Contents"), tag("ol", *links), open=True)
    return tag("nav", listed, aria_label="Contents")


def _cards_of(section: Section) -> tuple[Card, ...]:
    return next((block.cards for block in section.blocks if isinstance(block, Cards)), ())


def _section(section: Section, *, is_folded: bool, is_told: bool) -> str:
    """Return a section as HTML; in a report with cards, it is folded below its title and its answer.

    With `is_told`, a card shows the answer already, and the section leaves it out.
    """
    blocks, heading = section.blocks, tag("h2", escaped(section.title), id=f"{section.id}-title")
    if _cards_of(section):
        shown = [block for block in blocks if isinstance(block, Cards | Commands)]
        rest = [block for block in blocks if block not in shown]
        heading = tag("h2", escaped(section.title), id=f"{section.id}-title", class_="unseen")
        inside = [heading, *map(block_html, shown), _details("About the models and the names of heads", rest)]
    elif not is_folded or any(isinstance(block, LiveModels) for block in blocks):
        inside = [heading, *map(block_html, blocks)]
    else:
        opening = tag("summary", heading, "" if is_told else _front(section))
        inside = [tag("details", opening, *_level_by_level(blocks), class_="folded")]
    return tag("section", *inside, id=section.id, aria_labelledby=f"{section.id}-title")


def _front(section: Section) -> str:
    """Return the first sentence of a section's answer as HTML for the folded section; empty if it is long."""
    if section.answer is None:
        return ""
    first, stop, _ = split_doubt(section.answer.text)[0].partition(". ")
    return tag("p", inline(f"{first}{stop.strip()}")) if len(first.split()) <= MOST_WORDS else ""


def _details(title: str, blocks: Sequence[Block]) -> str:
    return tag("details", tag("summary", escaped(title)), *map(block_html, blocks)) if blocks else ""


MOST_WORDS = 20
"""Largest number of words of a sentence that is shown below the title of a folded section."""
FIRST_SENTENCES = 3
"""Number of sentences of a section that are visible when a reader opens it."""


def _level_by_level(blocks: Sequence[Block]) -> list[str]:
    """Return the blocks of a section as HTML: notices, first sentences and first figure; all others are folded."""
    notices = [block for block in blocks if isinstance(block, Notice)]
    sentences = [each for block in blocks if isinstance(block, Conclusions) for each in block.sentences]
    front = next((block for block in blocks if isinstance(block, Picture | HeadPatterns)), None)
    told = [block for block in blocks if isinstance(block, Paragraph)]
    others = [
        block for block in blocks if not isinstance(block, Notice | Conclusions | Paragraph) and block is not front
    ]
    first, more = sentences[:FIRST_SENTENCES], sentences[FIRST_SENTENCES:]
    return [
        *map(block_html, notices),
        block_html(Conclusions(tuple(first))) if first else "",
        block_html(front) if front else "",
        _details(f"{len(more)} more finding{'s' if len(more) > 1 else ''}", [Conclusions(tuple(more))] if more else []),
        *(_folded(block) for block in others),
        _details("How this was measured", told),
    ]


def _folded(block: Block) -> str:
    """Return a table or figure as HTML, folded below its caption; return any other block unfolded."""
    if isinstance(block, DataTable) and not block.is_folded:
        return block_html(replace(block, is_folded=True))
    if isinstance(block, Picture | HeadPatterns):
        return tag("details", tag("summary", inline(block.caption)), block_html(block))
    return block_html(block)


def _card(card: Card) -> str:
    question = tag("h3", escaped(card.question))
    answer = tag("p", inline(card.answer.text), class_="card-answer" if card.answer.is_decided else "undecided")
    picture = ""
    if card.draw is not None:
        drawn = inline_svg(card.draw(), f"card-{card.section}", escaped(card.alt))
        picture = tag("div", drawn, class_="card-picture")
    note = tag("p", inline(card.note), class_="note") if card.note else ""
    link = tag("a", "Details", href=f"#{card.section}", aria_label=f"Details: {card.question}")
    return tag("li", question, answer, picture, note, link, class_="card fault" if card.is_fault else "card")


# --- blocks -----------------------------------------------------------------------------------------------------------


@singledispatch
def block_html(block: Block) -> str:
    """Return a block of the report (sentences, a table or a figure) as HTML."""
    kind = type(block).__name__
    raise TypeError(f"a block of the type {kind} cannot be written as HTML: register a function with block_html")


@block_html.register
def _(block: Paragraph) -> str:
    return tag("p", inline(block.text))


@block_html.register
def _(block: Cards) -> str:
    return tag("ul", *map(_card, block.cards), class_="cards")


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
    """Return the HTML attributes by which readers can scroll a box with the keyboard if it is wider than the page."""
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
    """Return a number with its interval as HTML, so that a line breaks before the interval and not inside of it."""
    number, bracket, rest = text.partition(" [")
    return inline(number) + (f" {tag('span', inline(f'[{rest}'), class_='range')}" if bracket else "")


def _note(text: str) -> str:
    """Return the note below a table or formula as an HTML paragraph; return "" for an empty note."""
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
    noscript = tag("noscript", tag("p", "To see the attention patterns, allow JavaScript: a script draws them."))
    shown = tag("div", class_="patterns"), data, packed, noscript, tag("figcaption", inline(block.caption))
    return tag("figure", *shown, _command(block.command), id=block.id, class_="patterns-figure")


@block_html.register
def _(block: LiveModels) -> str:
    task = block.models[0].model.task
    header = task.header() | {"models": [each.header(task.examples) for each in block.models]}
    data = tag_script("application/json", json.dumps(header, separators=(",", ":")))
    packed = (tag_script("application/octet-stream", each.model.packed()) for each in block.models)
    noscript = tag("noscript", tag("p", "To try the model, allow JavaScript: a script runs it in this page."))
    shown = tag("div", class_="live"), data, *packed, noscript, tag("figcaption", inline(block.caption))
    return tag("figure", *shown, _command(block.command), id=block.id, class_="live-figure", data_kind=task.kind)


def tag_script(kind: str, text: str) -> str:
    """Return an HTML script element that holds data, which a browser does not run.

    `<` is escaped, so that the data cannot end the element.
    """
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
