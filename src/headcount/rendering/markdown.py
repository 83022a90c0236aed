"""A report as Markdown, with its pictures beside it: PNG for a repository, SVG for a paper."""

from __future__ import annotations

import re
from functools import singledispatchmethod
from pathlib import Path

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
from headcount.describing.story import Story
from headcount.figures.style import png
from headcount.files import write_outputs
from headcount.rendering.svg import svg

FIGURES = "figures"
"""The folder beside the report."""


def write_markdown(story: Story, path: Path, *, force: bool = False) -> list[Path]:
    """Write the text, and every picture into a folder beside it; return all files, the text first."""
    writer = Markdown(path)
    parts = [f"# {plain(story.title)}", plain(story.subtitle), *map(writer.section, story.sections), plain(story.made)]
    text = "\n\n".join(part for part in parts if part) + "\n"
    return write_outputs({path: text.encode(errors="replace"), **writer.pictures}, force=force)


def plain(text: str) -> str:
    """Nothing in it is markup but `code`: neither HTML nor emphasis, and no cell ends a table's."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_\[\]<>|#$~])", r"\\\1", part) for part in parts)


class Markdown:
    """Blocks as text; `pictures` collects the files that the text shows."""

    def __init__(self, path: Path) -> None:
        self._folder, self.pictures = path.parent, dict[Path, bytes]()

    def section(self, section: Section) -> str:
        """Under its title."""
        return "\n\n".join(
            [f'<a id="{section.id}"></a>\n\n## {plain(section.title)}', *map(self.block, section.blocks)]
        )

    @singledispatchmethod
    def block(self, block: Block) -> str:
        """As text."""
        raise TypeError(f"no Markdown for {type(block).__name__}")

    @block.register
    def _(self, block: Paragraph) -> str:
        return plain(block.text)

    @block.register
    def _(self, block: Conclusions) -> str:
        return "\n".join(f"- {_sentence(each)}" for each in block.sentences)

    @block.register
    def _(self, block: DataTable) -> str:
        lines = [f'<a id="{block.id}"></a>\n\n**{plain(block.caption)}**\n']
        lines += [f"| {' | '.join(map(plain, block.columns))} |", "|---" * len(block.columns) + "|"]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in block.rows]
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
    def _(self, block: Formula) -> str:
        error = f"\n\n{plain(block.error)}" if block.error else ""
        return f'<a id="{block.id}"></a>\n\n{plain(block.words)}\n\n$$\n{block.latex}\n$${error}'

    @block.register
    def _(self, block: Notice) -> str:
        check = f" ({block.check})" if block.check else ""
        return f"> **{block.verdict.upper()}{check}.** {plain(block.text)}"

    @block.register
    def _(self, block: Commands) -> str:
        words = [plain(block.words)] if block.words else []
        return "\n\n".join([*words, "\n".join(f"    {each}" for each in block.commands)])


def _sentence(sentence: Sentence) -> str:
    link = f" ([see](#{sentence.rests_on}))" if sentence.rests_on else ""
    return f"{plain(sentence.text)}{link}"


def _cell(cell: Cell | str) -> str:
    text = plain(cell.text if isinstance(cell, Cell) else cell)
    return f"**{text}**" if isinstance(cell, Cell) and cell.mark == "strong" and text else text


def _command(command: str) -> list[str]:
    return [f"\n    {command}"] if command else []
