"""Formulas as data: small trees that a renderer writes as MathML, as LaTeX or as plain text.

A leaf is a string as one would type it, `PE(p, 2i) = sin(p ω_i)`: a word or a letter is a name, digits are a number,
`x_i` has an index, and everything else is a sign. Only what a line of text cannot hold has a class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Expression: TypeAlias = "str | Row | Fraction | Script | Root | Brackets | Matrix | Words | Lines"


@dataclass(frozen=True)
class Row:
    """Parts that follow each other on one line."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Fraction:
    """A numerator over a denominator."""

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
    """A square root."""

    inside: Expression


@dataclass(frozen=True)
class Brackets:
    """Round brackets that are as tall as their content."""

    inside: Expression


@dataclass(frozen=True)
class Matrix:
    """A matrix in round brackets."""

    rows: tuple[tuple[Expression, ...], ...]


@dataclass(frozen=True)
class Words:
    """English words behind a formula: the condition under which it holds."""

    text: str


@dataclass(frozen=True)
class Lines:
    """Formulas below each other."""

    lines: tuple[Expression, ...]


def row(*parts: Expression) -> Row:
    """Return the parts as one line."""
    return Row(parts)
