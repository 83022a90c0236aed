"""File formats of a report besides HTML: Markdown, LaTeX, and formats of other packages (`headcount.forms`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headcount.describing.report import Report, ReportResults
from headcount.errors import InputError
from headcount.files import claim_output
from headcount.registry import Registry
from headcount.rendering.latex import write_latex
from headcount.rendering.markdown import FIGURES, write_markdown

FORMS = Registry("headcount.rendering.forms")
CONFIG = "config.json"
"""Name of a file that every run folder contains, by which run folders are recognised."""


@dataclass(frozen=True)
class Form:
    """One file format of a report, such as Markdown, given by two functions.

    `claim` raises an error if writing would overwrite files that headcount did not write. `write` writes the report
    and returns the paths of its files.
    """

    claim: Callable[[Path, bool], None]
    write: Callable[[Report, ReportResults, Path, bool], list[Path]]


def _claim_markdown(path: Path, force: bool) -> None:
    claim_output(path, ".md", force=force)
    if (path.parent / CONFIG).exists():
        what = f"the Markdown report cannot be written into {path.parent}: that is the folder of a model, and figures "
        what += f"of the report would be mixed with the model's own in {FIGURES}/"
        raise InputError(what, "choose a file in another folder with -o")


PARTS: dict[str, Form] = {
    "markdown": Form(_claim_markdown, lambda report, _, path, force: write_markdown(report, path, force=force)),
    "latex": Form(lambda *_: None, lambda report, _, path, force: write_latex(report, path, force=force)),
}
