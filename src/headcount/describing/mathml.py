"""Formulas as MathML, which browsers typeset by themselves: a few elements, written by hand."""

from __future__ import annotations

from headcount.describing.markup import escaped


def name(text: str) -> str:
    """A variable or a function; one of several letters is set upright."""
    return f"<mi>{escaped(text)}</mi>"


def number(value: object) -> str:
    """Digits."""
    return f"<mn>{escaped(str(value))}</mn>"


def sign(text: str) -> str:
    """An operator, a relation or a bracket."""
    return f"<mo>{escaped(text)}</mo>"


def text(words: str) -> str:
    """Words inside a formula."""
    return f"<mtext>{escaped(words)}</mtext>"


def row(*parts: str) -> str:
    """One after another.

    >>> row(name("a"), sign("="), number(1))
    '<mrow><mi>a</mi><mo>=</mo><mn>1</mn></mrow>'
    """
    return f"<mrow>{''.join(parts)}</mrow>"


def gap(width: float = 1) -> str:
    """Room between parts, in widths of a letter."""
    return f'<mspace width="{width:g}em"></mspace>'


def applied(function: str, *parts: str) -> str:
    """`cos kω`: a function, and what it is applied to without brackets."""
    return row(name(function), gap(0.17), *parts)


def bracketed(*parts: str, tall: bool = False) -> str:
    """In brackets, as `tall` as what they hold if that is more than a line."""
    if tall:
        return row(sign("("), *parts, sign(")"))
    return row('<mo stretchy="false">(</mo>', *parts, '<mo stretchy="false">)</mo>')


def frac(above: str, below: str) -> str:
    """A fraction."""
    return f"<mfrac>{above}{below}</mfrac>"


def sub(base: str, index: str) -> str:
    """With an index."""
    return f"<msub>{base}{index}</msub>"


def sup(base: str, power: str) -> str:
    """With an exponent."""
    return f"<msup>{base}{power}</msup>"


def both(base: str, index: str, power: str) -> str:
    """With an index and an exponent above each other."""
    return f"<msubsup>{base}{index}{power}</msubsup>"


def root(inside: str) -> str:
    """Its square root."""
    return f"<msqrt>{inside}</msqrt>"


def total(index: str) -> str:
    """A sum over this index."""
    return f"<munder>{sign('∑')}{index}</munder>"


def matrix(*rows: tuple[str, ...]) -> str:
    """In brackets."""
    lines = ("".join(f"<mtd>{cell}</mtd>" for cell in each) for each in rows)
    return bracketed(f"<mtable>{''.join(f'<mtr>{line}</mtr>' for line in lines)}</mtable>", tall=True)


def lines(*each: str) -> str:
    """Below each other."""
    return f'<mtable displaystyle="true">{"".join(f"<mtr><mtd>{line}</mtd></mtr>" for line in each)}</mtable>'
