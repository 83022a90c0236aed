"""The blocks of a description, which every renderer turns into its own form: terminal, page, Markdown, LaTeX.

Text is plain text: each renderer escapes it. In sentences and notes, `code` stands between backticks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headcount.describing.live import LiveModel
    from headcount.describing.patterns import PatternBook


@dataclass(frozen=True)
class Sentence:
    """A conclusion drawn from a result, and the block that it rests on."""

    text: str
    rests_on: str = ""
    """The id of a figure or table."""
    is_decided: bool = True
    """Whether the data decide the question; otherwise the sentence says that it is undecided."""


@dataclass(frozen=True)
class Paragraph:
    """An explanation that does not depend on the result."""

    text: str


@dataclass(frozen=True)
class Conclusions:
    """Sentences that state what was found; a report shows them as a list."""

    sentences: tuple[Sentence, ...]


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its text, and the number that it is sorted by."""

    text: str
    value: float | None = None
    mark: Literal["", "strong", "weak"] = ""
    """Whether the cell stands out or is unimportant."""


Row: TypeAlias = tuple[Cell | str, ...]


@dataclass(frozen=True)
class DataTable:
    """A table that readers can sort."""

    id: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    command: str = ""
    """The command that reproduces these numbers."""
    is_folded: bool = False
    """Whether a page folds the table, because it is long and few people read it; the reader can open the table."""
    is_narrow: bool = False
    """Whether all columns must be visible at the same time, even on a phone or on paper."""
    n_keys: int = 1
    """Number of columns at the left that name a row; a terminal repeats these columns if it splits a wide table."""


@dataclass(frozen=True)
class Picture:
    """A figure with its caption and its description in words; it is drawn only when a renderer needs it."""

    id: str
    caption: str
    alt: str
    """A description with numbers, for readers who cannot see the figure."""
    draw: Callable[[], Figure] = field(repr=False)
    command: str = ""


@dataclass(frozen=True)
class HeadPatterns:
    """The attention of every head of a model on examples that readers choose."""

    id: str
    caption: str
    book: PatternBook = field(repr=False)
    worth: dict[str, str] = field(default_factory=dict)
    """The drop when a head is ablated, by the head's short name."""
    command: str = ""
    picture: Picture | None = None
    """The figure for forms of a report in which readers cannot choose an example, such as Markdown."""


@dataclass(frozen=True)
class Card:
    """One question of a report with its answer, for the first screen."""

    section: str
    """The id of the section that has the details."""
    question: str
    answer: Sentence
    note: str = ""
    """The interval and the number of examples, in small letters."""
    draw: Callable[[], Figure] | None = field(default=None, repr=False)
    """The function that draws the picture; None for a card without one."""
    alt: str = ""
    """The picture in words."""
    is_fault: bool = False
    """Whether the card warns of a fault, which changes how the others are read."""


@dataclass(frozen=True)
class Cards:
    """The first screen of a report. A page with cards folds its sections."""

    cards: tuple[Card, ...]


@dataclass(frozen=True)
class LiveEntry:
    """One live model with its results: what a reader sees beside its heads."""

    title: str
    model: LiveModel = field(repr=False)
    worth: dict[str, str] = field(default_factory=dict)
    """The drop when a head is ablated, by the head's short name."""
    harmless: tuple[str, ...] = ()
    """Heads whose ablation alone costs almost nothing."""
    routes: tuple[dict[str, Any], ...] = ()
    """For each way of the task's event: a title, and the heads that move the event with their shares."""
    named: tuple[str, ...] = ()
    """Examples that get a button, because the reader of the report named them."""
    wrong: tuple[str, ...] = ()
    """Examples that the model answers wrong, as `verify` found."""
    proof: str = ""
    """What `verify` proved, in a few words."""

    def header(self, shared: Sequence[Any]) -> dict[str, Any]:
        """Return everything but the weights, as data for JSON; examples only if they are not the `shared` ones."""
        own = self.model.task.examples
        return self.model.header() | {
            **({} if own == shared else {"examples": own}),
            "title": self.title,
            "worth": self.worth,
            "harmless": self.harmless,
            "routes": self.routes,
            "named": self.named,
            "wrong": self.wrong,
            "proof": self.proof,
        }


@dataclass(frozen=True)
class LiveModels:
    """Models of one task that the page runs: readers type an example and switch heads off."""

    id: str
    caption: str
    models: tuple[LiveEntry, ...]
    command: str = ""


# --- formulas ---------------------------------------------------------------------------------------------------------

Expression: TypeAlias = "str | tuple[Expression, ...] | Fraction | Script | Root | Brackets | Matrix | Words | Lines"
"""A formula as a tree, which a renderer writes as MathML, as LaTeX or as plain text.

A leaf is a string as one would type it, `PE(p, 2i) = sin(p ω_i)`: a word or a letter is a name, digits are a number,
`x_i` has an index, and everything else is a sign. A tuple holds parts that follow each other. The classes below are for
parts that cannot be written in one line of text, such as a fraction.
"""


@dataclass(frozen=True)
class Fraction:
    """A fraction in a formula: a numerator over a denominator."""

    above: Expression
    below: Expression


@dataclass(frozen=True)
class Script:
    """A base with a subscript, a superscript or both; below the sign `∑`, the subscript is the summation index."""

    base: Expression
    below: Expression = ""
    above: Expression = ""


@dataclass(frozen=True)
class Root:
    """A square root in a formula, over the term `inside`."""

    inside: Expression


@dataclass(frozen=True)
class Brackets:
    """Round brackets that are as tall as their content."""

    inside: Expression


@dataclass(frozen=True)
class Matrix:
    """A matrix in round brackets, given row by row."""

    rows: tuple[tuple[Expression, ...], ...]


@dataclass(frozen=True)
class Words:
    """English words behind a formula: the condition under which it holds."""

    text: str


@dataclass(frozen=True)
class Lines:
    """Several formulas that a report writes below each other."""

    lines: tuple[Expression, ...]


@dataclass(frozen=True)
class Formula:
    """An identity in words and as mathematics, with its numerical error."""

    id: str
    words: str
    expression: Expression
    error: str = ""


@dataclass(frozen=True)
class Notice:
    """A finding of the audit about this section."""

    verdict: Literal["fail", "warn", "pass"]
    text: str
    check: str = ""
    """The id of the check."""


@dataclass(frozen=True)
class Commands:
    """Lines that are shown verbatim: commands that readers may run, or the output of a program."""

    commands: tuple[str, ...]
    words: str = ""


Block = Cards | Conclusions | Paragraph | DataTable | Picture | HeadPatterns | LiveModels | Formula | Notice | Commands


@dataclass(frozen=True)
class Section:
    """One question of a report, and the blocks that answer it."""

    id: str
    title: str
    blocks: tuple[Block, ...]
    answer: Sentence | None = None
    """The sentence about this section in the summary of the report."""
