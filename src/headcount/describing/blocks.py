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
    """A sentence that draws a conclusion from a result, with the figure or table that shows it."""

    text: str
    rests_on: str = ""
    """The id of the figure or table that shows what the sentence says; empty if there is none."""
    is_decided: bool = True
    """False if the sentence says that the data leave the question undecided."""


@dataclass(frozen=True)
class Paragraph:
    """An explanatory text, such as how a number is measured, which is the same for all results."""

    text: str


@dataclass(frozen=True)
class Conclusions:
    """Sentences that state what was found; a report shows them as a list."""

    sentences: tuple[Sentence, ...]


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its text, and the number that is used when a reader sorts the table by this column."""

    text: str
    value: float | None = None
    mark: Literal["", "strong", "weak"] = ""
    """How the text is printed: `strong` for a cell that stands out, `weak` for an unimportant one."""


Row: TypeAlias = tuple[Cell | str, ...]


@dataclass(frozen=True)
class DataTable:
    """A table that readers can sort by its columns."""

    id: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    command: str = ""
    """The command that reproduces these numbers."""
    is_folded: bool = False
    """Whether a page shows the table folded, so that readers have to open it: for long tables that few people read."""
    is_narrow: bool = False
    """Whether all columns must be visible at the same time, even on a phone or on paper."""
    n_keys: int = 1
    """Number of columns at the left that name a row. A terminal that splits a wide table repeats them."""


@dataclass(frozen=True)
class Picture:
    """A figure with a caption, and with a description in words. It is drawn only when a renderer needs it."""

    id: str
    caption: str
    alt: str
    """A description with numbers, for readers who cannot see the figure."""
    draw: Callable[[], Figure] = field(repr=False)
    command: str = ""


@dataclass(frozen=True)
class HeadPatterns:
    """The attention patterns of every head of a model, on several examples from which readers choose one."""

    id: str
    caption: str
    book: PatternBook = field(repr=False)
    worth: dict[str, str] = field(default_factory=dict)
    """Maps a head's short name, such as `E0H2`, to the drop in accuracy when this head is ablated, as text."""
    command: str = ""
    picture: Picture | None = None
    """The figure that is shown instead where readers cannot choose an example, such as in Markdown."""


@dataclass(frozen=True)
class Card:
    """One question of a report with its answer and a picture, for the first screen."""

    section: str
    """The id of the section that has the details."""
    question: str
    answer: Sentence
    note: str = ""
    """The confidence interval and the number of examples of the answer, shown in small letters."""
    draw: Callable[[], Figure] | None = field(default=None, repr=False)
    """A function that draws the picture; None for a card without a picture."""
    alt: str = ""
    """The picture in words, for readers who cannot see it."""
    is_fault: bool = False
    """Whether the card warns of a fault that puts the other answers in doubt."""


@dataclass(frozen=True)
class Cards:
    """The first screen of a report, as cards. In a page with cards, the sections below are folded."""

    cards: tuple[Card, ...]


@dataclass(frozen=True)
class LiveEntry:
    """One model that the report's HTML page runs in the browser, and the results that it shows beside the heads."""

    title: str
    model: LiveModel = field(repr=False)
    worth: dict[str, str] = field(default_factory=dict)
    """Maps a head's short name, such as `E0H2`, to the drop in accuracy when this head is ablated, as text."""
    harmless: tuple[str, ...] = ()
    """Short names of heads that cost almost nothing when each is ablated alone."""
    routes: tuple[dict[str, Any], ...] = ()
    """Routes of the task's event, such as the carry from 1s to 10s: each has a title, and heads with their shares.

    The share of a head is the part of the event that its output moves.
    """
    named: tuple[str, ...] = ()
    """Examples that get a button in the page, because the user named them when the report was made."""
    wrong: tuple[str, ...] = ()
    """Examples that the model answers wrong, as found by `headcount verify`."""
    proof: str = ""
    """What `headcount verify` proved about the model, in a few words; empty if it proved nothing."""

    def header(self, shared: Sequence[Any]) -> dict[str, Any]:
        """Return this entry as data for JSON, without the model's weights.

        `shared` are the examples that models of the page have in common; examples equal to these are left out.
        """
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
    """Models of one task that run in the HTML page itself: readers type an example and switch heads off."""

    id: str
    caption: str
    models: tuple[LiveEntry, ...]
    command: str = ""


# --- formulas ---------------------------------------------------------------------------------------------------------

Expression: TypeAlias = "str | tuple[Expression, ...] | Fraction | Script | Root | Brackets | Matrix | Words | Lines"
"""A formula as a tree, which a renderer writes as MathML, as LaTeX or as plain text.

A leaf is a string as one would type it, such as `PE(p, 2i) = sin(p ω_i)`. In a leaf, a word or a letter is a name,
digits are a number, `x_i` is a name with an index, and everything else is a sign. A tuple is a sequence of parts. The
classes that follow in this file are for parts that cannot be written in one line of text, such as a fraction.
"""


@dataclass(frozen=True)
class Fraction:
    """A fraction in a formula: a numerator over a denominator."""

    above: Expression
    below: Expression


@dataclass(frozen=True)
class Script:
    """A symbol with a subscript, a superscript or both; below the sign `∑`, the subscript is the summation index."""

    base: Expression
    below: Expression = ""
    above: Expression = ""


@dataclass(frozen=True)
class Root:
    """A square root in a formula; `inside` is the term under the root."""

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
    """English words to the right of a formula, such as the condition under which the formula holds."""

    text: str


@dataclass(frozen=True)
class Lines:
    """Several formulas that a report writes below each other."""

    lines: tuple[Expression, ...]


@dataclass(frozen=True)
class Formula:
    """A mathematical identity: in words, as a formula, and with its measured numerical error as a sentence."""

    id: str
    words: str
    expression: Expression
    error: str = ""


@dataclass(frozen=True)
class Notice:
    """A warning of the audit that concerns the section of the report in which it is printed."""

    verdict: Literal["fail", "warn", "pass"]
    text: str
    check: str = ""
    """The id of the audit's check that gives the warning, such as `HC101`."""


@dataclass(frozen=True)
class Commands:
    """Lines that are printed exactly as they are: commands that readers may run, or the output of a program."""

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
    """The sentence that answers the section's question in the summary of the report; None if there is no answer."""
