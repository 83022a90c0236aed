"""Write formulas as MathML (which browsers typeset without scripts), as LaTeX and as plain text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape

from headcount.describing.blocks import Brackets, Expression, Fraction, Lines, Matrix, Root, Script, Words

TOKEN = re.compile(r"(?P<name>[A-Za-z]+|[α-ω])(?:_(?P<index>\w))?|(?P<number>\d+)|(?P<space>\s+)|(?P<sign>.)")
COMMANDS = {"ω": "omega", "π": "pi", "⊤": "top", "∑": "sum", "∂": "partial", "·": "cdot", "…": "dots"}
COMMANDS |= {name: name for name in ("sin", "cos")}
"""Maps a name or a sign in a formula to its LaTeX command, without the backslash."""
SUM, PRIME = "∑", "′"


def mathml(expression: Expression) -> str:
    """Return a formula as the content of an HTML `math` element.

    >>> mathml("x_i = 1")
    '<mrow><msub><mi>x</mi><mi>i</mi></msub><mo>=</mo><mn>1</mn></mrow>'
    """
    match expression:
        case str(text):
            tokens = [_mathml_token(token) for token in TOKEN.finditer(text) if not token["space"]]
            return tokens[0] if len(tokens) == 1 else f"<mrow>{''.join(tokens)}</mrow>"
        case tuple(parts):
            return f"<mrow>{''.join(map(mathml, parts))}</mrow>"
        case Fraction(above, below):
            return f"<mfrac>{mathml(above)}{mathml(below)}</mfrac>"
        case Script(base, below, above):
            name = "munder" if base == SUM else f"m{'sub' if below else ''}{'sup' if above else ''}"
            return f"<{name}>{''.join(mathml(part) for part in (base, below, above) if part)}</{name}>"
        case Root(inside):
            return f"<msqrt>{mathml(inside)}</msqrt>"
        case Brackets(inside):
            return f"<mrow><mo>(</mo>{mathml(inside)}<mo>)</mo></mrow>"
        case Matrix(rows):
            lines = ("".join(f"<mtd>{mathml(cell)}</mtd>" for cell in cells) for cells in rows)
            table = f"<mtable>{''.join(f'<mtr>{line}</mtr>' for line in lines)}</mtable>"
            return f"<mrow><mo>(</mo>{table}<mo>)</mo></mrow>"
        case Words(text):
            return f'<mspace width="1em"></mspace><mtext>{escape(text)}</mtext>'
        case Lines(lines):
            body = "".join(f"<mtr><mtd>{mathml(line)}</mtd></mtr>" for line in lines)
            return f'<mtable displaystyle="true">{body}</mtable>'


def _mathml_token(token: re.Match[str]) -> str:
    if token["index"]:
        return f"<msub>{mathml(token['name'])}{mathml(token['index'])}</msub>"
    if token["sign"]:
        stretch = ' stretchy="false"' if token["sign"] in "()" else ""
        return f"<mo{stretch}>{escape(token['sign'])}</mo>"
    return f"<mi>{escape(token['name'])}</mi>" if token["name"] else f"<mn>{token['number']}</mn>"


def latex(expression: Expression) -> str:
    r"""Return a formula as text for LaTeX's mathematics mode.

    >>> latex("PE(p, 2i) = sin(p ω_i)"), latex(Script("K", above="⊤"))
    ('\\mathrm{PE}(p, 2i) = \\sin(p \\omega_{i})', 'K^{\\top}')
    """
    match expression:
        case str(text):
            return re.sub(r" (?=[^A-Za-z]|$)", "", "".join(map(_latex_token, TOKEN.finditer(text)))).replace("\t", " ")
        case tuple(parts):
            return _joined(parts, latex)
        case Fraction(above, below):
            return rf"\frac{{{latex(above)}}}{{{latex(below)}}}"
        case Script(base, below, above):
            power = "'" if above == PRIME else f"^{{{latex(above)}}}" if above else ""
            return f"{latex(base)}{power}{f'_{{{latex(below)}}}' if below else ''}"
        case Root(inside):
            return rf"\sqrt{{{latex(inside)}}}"
        case Brackets(inside):
            return rf"\left({latex(inside)}\right)"
        case Matrix(rows):
            body = r" \\ ".join(" & ".join(map(latex, cells)) for cells in rows)
            return rf"\begin{{pmatrix}} {body} \end{{pmatrix}}"
        case Words(text):
            return rf"\quad \text{{{text}}}"
        case Lines(lines):
            return r", \qquad ".join(map(latex, lines))


def _latex_token(token: re.Match[str]) -> str:
    """Return one token of a formula in LaTeX; a command ends with a space, and a space of the formula becomes a tab."""
    if token["index"]:
        return f"{latex(token['name'])}_{{{token['index']}}}"
    if token["space"]:
        return "\t"
    text = token.group()
    if text in COMMANDS:
        return rf"\{COMMANDS[text]} "
    return rf"\mathrm{{{text}}}" if len(text) > 1 and token["name"] else text.replace("−", "-")


def plain_formula(expression: Expression) -> str:
    """Return a formula as plain text, with one line for each of its lines.

    >>> plain_formula(Fraction("Q K", Root("d"))), plain_formula(Script("10000", above="−2i/d"))
    ('(Q K)/√d', '10000^(−2i/d)')
    """
    match expression:
        case str(text):
            return text
        case tuple(parts):
            return _joined(parts, plain_formula)
        case Fraction(above, below):
            return f"{_grouped(above)}/{_grouped(below)}"
        case Script(base, below, above):
            power = above if above == PRIME else f"^{_grouped(above)}" if above else ""
            return f"{plain_formula(base)}{power}{f'_{_grouped(below)}' if below else ''}"
        case Root(inside):
            return f"√{_grouped(inside)}"
        case Brackets(inside):
            return f"({plain_formula(inside)})"
        case Matrix(rows):
            return f"[{'; '.join(', '.join(map(plain_formula, cells)) for cells in rows)}]"
        case Words(text):
            return text
        case Lines(lines):
            return "\n".join(map(plain_formula, lines))


def _joined(parts: Sequence[Expression], render: Callable[[Expression], str]) -> str:
    """Return the parts of a formula as text, joined with spaces except beside brackets and before commas."""
    texts = (f"{'' if i == 0 or isinstance(part, Brackets) else ' '}{render(part)}" for i, part in enumerate(parts))
    return re.sub(r" (?=[,)])|(?<=[(]) ", "", "".join(texts))


def _grouped(expression: Expression) -> str:
    """Return a part of a formula as text, in brackets if it is more than one name, number or sign."""
    text = plain_formula(expression)
    return text if TOKEN.fullmatch(text.lstrip("√∂")) else f"({text})"
