"""Print descriptions in a terminal: sentences as lines, and tables that fit its width without cutting a number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from textwrap import indent

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

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
    Sentence,
)
from headcount.rendering.formulas import plain_formula

MIN_TEXT_WIDTH = 25
"""Smallest width of a table column whose text wraps, in characters."""
GAP = 2
"""Number of spaces between two columns of a table."""


@singledispatch
def block_lines(block: Block | Sentence) -> Iterator[RenderableType]:
    """Yield what a terminal prints for one block; a figure prints nothing, because it is written to a file."""
    kind = type(block).__name__
    raise TypeError(f"a block of the type {kind} cannot be printed in a terminal: register it with block_lines")


@block_lines.register
def _(block: Sentence) -> Iterator[RenderableType]:
    yield Text(_plain(block.text))


@block_lines.register
def _(block: Paragraph) -> Iterator[RenderableType]:
    yield Text(_plain(block.text))


@block_lines.register
def _(block: Cards) -> Iterator[RenderableType]:
    for card in block.cards:
        yield Text(_plain(f"{card.question} {card.answer.text}"))


@block_lines.register
def _(block: Conclusions) -> Iterator[RenderableType]:
    for sentence in block.sentences:
        yield Text(_plain(sentence.text))


@block_lines.register
def _(block: DataTable) -> Iterator[RenderableType]:
    yield Text(_one_line(block.caption), style="italic")
    yield FittedTable(block)
    if block.note:
        yield Text(_plain(block.note))


@block_lines.register(Picture)
@block_lines.register(HeadPatterns)
@block_lines.register(LiveModels)
def _(block: Picture | HeadPatterns | LiveModels) -> Iterator[RenderableType]:
    yield from ()


@block_lines.register
def _(block: Formula) -> Iterator[RenderableType]:
    yield Text("\n".join(filter(None, (block.words, indent(plain_formula(block.expression), "    "), block.error))))


@block_lines.register
def _(block: Notice) -> Iterator[RenderableType]:
    yield Text(f"{block.verdict.upper()} {block.check}".strip() + f": {_plain(block.text)}")


@block_lines.register
def _(block: Commands) -> Iterator[RenderableType]:
    if block.words:
        yield Text(_plain(block.words))
    for command in block.commands:
        yield Text(f"  {command}")


@dataclass(frozen=True)
class FittedTable:
    """A table that is split into several tables if the terminal is too narrow for all columns.

    The first columns, which name the rows, are repeated. Text wraps in its column. A column of numbers that does not
    fit moves to the next table, so that no number is cut.
    """

    block: DataTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """Yield the tables that fit the width of the terminal."""
        yield from self.tables(options.max_width)

    def tables(self, width: int) -> list[Table]:
        """Return the table, split into as many tables as are needed for a terminal of `width` characters."""
        columns = [_Column.of(name, [row[i] for row in self.block.rows]) for i, name in enumerate(self.block.columns)]
        keys, others = columns[: self.block.n_keys], columns[self.block.n_keys :]
        whole = room = width - sum(column.width for column in keys)
        parts = [list[_Column]()]
        for column in others:
            if parts[-1] and column.width > room:
                parts.append([])
                room = whole
            parts[-1].append(column)
            room -= column.width
        return [_table(keys, part) for part in parts]


@dataclass(frozen=True)
class _Column:
    """One column of a table in the terminal: its name, and the text of each cell."""

    name: str
    cells: Sequence[str]
    is_text: bool

    @classmethod
    def of(cls, name: str, cells: Sequence[Cell | str]) -> _Column:
        texts = [_cell_text(cell) for cell in cells]
        numbers = [cell.text for cell in cells if isinstance(cell, Cell) and cell.value is not None]
        return cls(name, texts, not any(letter.isdigit() for text in numbers for letter in text))

    @property
    def width(self) -> int:
        """Return how many characters of a line the column takes, including the gap to the next column."""
        longest = max(map(len, self.cells), default=0)
        fixed = min(longest, MIN_TEXT_WIDTH) if self.is_text else longest
        return GAP + max(fixed, *(len(word) for word in self.name.split() or [""]))


def _table(keys: Sequence[_Column], columns: Sequence[_Column]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in (*keys, *columns):
        width = column.width - GAP
        if column.is_text:
            table.add_column(Text(column.name), min_width=width)
        else:  # a width that is set is kept when other columns are made narrower
            table.add_column(Text(column.name), justify="left" if column in keys else "right", width=width)
    for row in zip(*(column.cells for column in (*keys, *columns)), strict=True):
        table.add_row(*map(Text, row))
    return table


def _cell_text(cell: Cell | str) -> str:
    """Return the text of a cell, with a star if it stands out, because the output to files has no bold type."""
    if isinstance(cell, str):
        return cell
    return f"{cell.text} *" if cell.mark == "strong" and cell.text else cell.text


def _plain(text: str) -> str:
    return text.replace("`", "")


def _one_line(text: str) -> str:
    """Return a caption with control characters written as escape codes, because captions may quote users' texts."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
