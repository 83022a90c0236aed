"""Write a report as a Markdown file, with figures in a folder beside it: PNG for a repository, SVG for a paper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import singledispatchmethod
from pathlib import Path

from headcount.describing.blocks import (
    Block,
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
from headcount.describing.report import Report
from headcount.figures.style import png
from headcount.files import write_outputs
from headcount.rendering.formulas import latex
from headcount.rendering.svg import svg

FIGURES = "figures"
"""Name of the folder beside the Markdown file in which its figures are."""


def write_markdown(report: Report, path: Path, *, force: bool = False) -> list[Path]:
    """Write a report as a Markdown file, with its figures in a folder beside it; return all paths, the text first."""
    writer = Markdown(path)
    return write_outputs({path: writer.page(report).encode(errors="replace"), **writer.pictures}, force=force)


def report_text(report: Report) -> str:
    """Return a report as Markdown text, without its figures."""
    return Markdown(Path()).page(report)


def markdown_text(blocks: Iterable[Block]) -> str:
    """Return the description of one result as Markdown text, without its figures."""
    writer = Markdown(Path())
    return "\n\n".join(writer.block(block) for block in blocks if not isinstance(block, Picture)) + "\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Cell | str]]) -> str:
    r"""Return a table as Markdown. Markup in the cells is escaped, and cells that stand out are bold.

    >>> print(markdown_table(["head", "drop"], [["E0H1", Cell("3.1", mark="strong")], ["a|b", "0"]]))
    | head | drop |
    |---|---|
    | E0H1 | **3.1** |
    | a\|b | 0 |
    """
    lines = [list(map(plain, columns)), *(list(map(_cell, row)) for row in rows)]
    texts = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([texts[0], "|---" * len(columns) + "|", *texts[1:]])


def plain(text: str) -> str:
    """Return text for Markdown: characters of markup are escaped, except in `code` between backticks."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_\[\]<>|#$~`])", r"\\\1", part) for part in parts)


class Markdown:
    """Converts the blocks of a report to Markdown; `pictures` collects the files of the figures that the text shows."""

    def __init__(self, path: Path) -> None:
        self._folder, self.pictures = path.parent, dict[Path, bytes]()

    def page(self, report: Report) -> str:
        """Return the report as one Markdown text, from the title to the last section."""
        sections = map(self.section, report.sections)
        parts = [f"# {plain(report.title)}", plain(report.subtitle), *sections, plain(report.made)]
        return "\n\n".join(part for part in parts if part) + "\n"

    def section(self, section: Section) -> str:
        """Return a section as Markdown: an anchor, its title and its blocks."""
        return "\n\n".join(
            [f'<a id="{section.id}"></a>\n\n## {plain(section.title)}', *map(self.block, section.blocks)]
        )

    @singledispatchmethod
    def block(self, block: Block) -> str:
        """Return a block of the report (sentences, a table or a figure) as Markdown."""
        kind = type(block).__name__
        raise TypeError(f"a block of the type {kind} cannot be written as Markdown: register a method for this type")

    @block.register
    def _(self, block: Paragraph) -> str:
        return plain(block.text)

    @block.register
    def _(self, block: Cards) -> str:
        lines = [f"- **{plain(each.question)}** {_sentence(each.answer)}{_doubt(each.note)}" for each in block.cards]
        return "\n".join(lines)

    @block.register
    def _(self, block: Conclusions) -> str:
        return "\n".join(f"- {_sentence(each)}" for each in block.sentences)

    @block.register
    def _(self, block: DataTable) -> str:
        lines = [f'<a id="{block.id}"></a>\n\n**{plain(block.caption)}**\n']
        lines.append(markdown_table(block.columns, block.rows))
        return "\n".join([*lines, *([f"\n{plain(block.note)}"] if block.note else []), *_command(block.command)])

    @block.register
    def _(self, block: Picture) -> str:
        file, figure = self._folder / FIGURES / f"{block.id}.png", block.draw()
        self.pictures |= {file: png(figure), file.with_suffix(".svg"): svg(figure).encode()}
        caption = f"*{plain(block.caption)}*"
        image = f"![{plain(block.alt)}]({FIGURES}/{file.name})"
        return "\n".join([f'<a id="{block.id}"></a>\n\n{image}\n\n{caption}', *_command(block.command)])

    @block.register
    def _(self, block: HeadPatterns) -> str:
        return "" if block.picture is None else self.block(block.picture)

    @block.register
    def _(self, block: LiveModels) -> str:
        return "\n".join(["Only the HTML form of this report can run the models.", *_command(block.command)])

    @block.register
    def _(self, block: Formula) -> str:
        error = f"\n\n{plain(block.error)}" if block.error else ""
        return f'<a id="{block.id}"></a>\n\n{plain(block.words)}\n\n$$\n{latex(block.expression)}\n$${error}'

    @block.register
    def _(self, block: Notice) -> str:
        check = f" ({block.check})" if block.check else ""
        return f"> **{block.verdict.upper()}{check}.** {plain(block.text)}"

    @block.register
    def _(self, block: Commands) -> str:
        words = [plain(block.words)] if block.words else []
        return "\n\n".join([*words, "\n".join(f"    {each}" for each in block.commands)])


def _doubt(note: str) -> str:
    return f" ({plain(note)})" if note else ""


def _sentence(sentence: Sentence) -> str:
    link = f" ([see](#{sentence.rests_on}))" if sentence.rests_on else ""
    return f"{plain(sentence.text)}{link}"


def _cell(cell: Cell | str) -> str:
    text = plain(cell.text if isinstance(cell, Cell) else cell)
    text = re.sub(r"(?<!\\)\|", r"\\|", text)  # a bar ends a cell even in `code`
    return f"**{text}**" if isinstance(cell, Cell) and cell.mark == "strong" and text else text


def _command(command: str) -> list[str]:
    return [f"\n    {command}"] if command else []
