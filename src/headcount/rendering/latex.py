r"""Tables for a paper: one `tabular` per file, to be \input; they need the package booktabs alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headcount.describing.blocks import Cell, DataTable
from headcount.describing.story import Story
from headcount.files import write_outputs

SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "±": r"$\pm$",
    "…": r"\ldots{}",
    "→": r"$\rightarrow$",
}


def write_latex(story: Story, folder: Path, *, force: bool = False) -> list[Path]:
    """Write every table of a story into the folder, each to a file named by the table's id."""
    tables = [block for section in story.sections for block in section.blocks if isinstance(block, DataTable)]
    outputs = {folder / f"{table.id}.tex": latex_table(table).encode(errors="replace") for table in tables}
    return write_outputs(outputs, force=force)


def latex_table(table: DataTable) -> str:
    """The caption as a comment: a paper has its own."""
    numeric = [
        any(isinstance(row[i], Cell) and _value(row[i]) is not None for row in table.rows)
        for i in range(len(table.columns))
    ]
    lines = [
        f"% {' '.join(table.caption.split())}",
        rf"\begin{{tabular}}{{{''.join('r' if n else 'l' for n in numeric)}}}",
        r"\toprule",
    ]
    lines += [_row(table.columns), r"\midrule", *(_row([_text(cell) for cell in row]) for row in table.rows)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escaped(text: str) -> str:
    """As LaTeX reads it literally; backticks of code are left out."""
    return "".join(SPECIAL.get(letter, letter) for letter in text.replace("`", ""))


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(escaped, cells)) + r" \\"


def _value(cell: Cell | str) -> float | None:
    return cell.value if isinstance(cell, Cell) else None


def _text(cell: Cell | str) -> str:
    return cell.text if isinstance(cell, Cell) else cell
