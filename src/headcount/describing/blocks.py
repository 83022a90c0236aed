"""What a section of a report is made of, whatever form it is written in: an HTML page, Markdown or LaTeX.

Text is plain text: every form escapes it by itself. In sentences and notes `code` stands between backticks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headcount.describing.patterns import PatternBook


@dataclass(frozen=True)
class Sentence:
    """A conclusion that results wrote, and the block that it rests on."""

    text: str
    rests_on: str = ""
    """The id of a picture or table."""
    is_decided: bool = True
    """Whether the data say so; else the sentence says that they leave it open."""


@dataclass(frozen=True)
class Paragraph:
    """What explains, and would be the same whatever was found."""

    text: str


@dataclass(frozen=True)
class Conclusions:
    """Sentences in a row."""

    sentences: tuple[Sentence, ...]


@dataclass(frozen=True)
class Cell:
    """One entry of a table: as it is read, and the number that it is sorted by."""

    text: str
    value: float | None = None
    mark: Literal["", "strong", "weak"] = ""
    """Whether it stands out, or is to be passed over."""


@dataclass(frozen=True)
class DataTable:
    """Numbers side by side; readers can sort it."""

    id: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell | str, ...], ...]
    note: str = ""
    command: str = ""
    """What makes these numbers again."""
    is_folded: bool = False
    """Whether it is long and few will read it: a page shows it when asked."""
    is_narrow: bool = False
    """Whether every column must be visible at once, on a phone and on paper too."""


@dataclass(frozen=True)
class Picture:
    """A figure, drawn when a form asks for it."""

    id: str
    caption: str
    alt: str
    """What is to be seen, for those who do not see it: with its numbers."""
    draw: Callable[[], Figure] = field(repr=False)
    command: str = ""


@dataclass(frozen=True)
class HeadPatterns:
    """Every head of a model on examples that readers choose."""

    id: str
    caption: str
    book: PatternBook = field(repr=False)
    worth: dict[str, str] = field(default_factory=dict)
    """What stands beside a head, by its short name: what its ablation costs."""
    command: str = ""
    picture: Picture | None = None
    """What stands in its place where nothing can be chosen."""


@dataclass(frozen=True)
class Formula:
    """An identity, in words and as mathematics, with the error that was computed for it."""

    id: str
    words: str
    mathml: str
    """The inside of <math>, of our own making."""
    latex: str
    error: str = ""


@dataclass(frozen=True)
class Notice:
    """What the audit says of what stands here."""

    verdict: Literal["fail", "warn", "pass"]
    text: str
    check: str = ""
    """Its id."""


@dataclass(frozen=True)
class Commands:
    """What readers may run next."""

    commands: tuple[str, ...]
    words: str = ""


Block = Conclusions | Paragraph | DataTable | Picture | HeadPatterns | Formula | Notice | Commands


@dataclass(frozen=True)
class Section:
    """One question of the story, and what answers it."""

    id: str
    title: str
    blocks: tuple[Block, ...]
    answer: Sentence | None = None
    """What the beginning of the report says of it."""
