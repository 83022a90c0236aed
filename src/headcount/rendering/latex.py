r"""Write the tables of a report for a paper: each file has one `tabular` for \input, and needs the package booktabs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headcount.describing.blocks import Cell, DataTable
from headcount.describing.report import Report
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


def write_latex(report: Report, folder: Path, *, force: bool = False) -> list[Path]:
    """Write every table of a report into a folder, one file per table, and return the paths of the files."""
    tables = [block for section in report.sections for block in section.blocks if isinstance(block, DataTable)]
    outputs = {folder / f"{table.id}.tex": latex_table(table).encode(errors="replace") for table in tables}
    return write_outputs(outputs, force=force)


def latex_table(table: DataTable) -> str:
    """Return a table as a LaTeX `tabular`; its caption becomes a comment, because a paper has captions of its own."""
    columns = [[row[i] for row in table.rows] for i in range(len(table.columns))]
    numeric = [any(isinstance(cell, Cell) and cell.value is not None for cell in column) for column in columns]
    lines = [
        f"% {' '.join(table.caption.split())}",
        rf"\begin{{tabular}}{{{''.join('r' if n else 'l' for n in numeric)}}}",
        r"\toprule",
    ]
    lines += [_row(table.columns), r"\midrule", *(_row([_text(cell) for cell in row]) for row in table.rows)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escaped(text: str) -> str:
    """Return text for LaTeX: special characters are escaped, and backticks around code are removed."""
    return "".join(SPECIAL.get(letter, letter) for letter in text.replace("`", ""))


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(escaped, cells)) + r" \\"


def _text(cell: Cell | str) -> str:
    return cell.text if isinstance(cell, Cell) else cell
