"""What each head is for, and which heads of other runs attend alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headcount.analysis.matching import Matching, match
from headcount.analysis.specialisation import Specialisation, specialise
from headcount.api._names import file_name
from headcount.api._run import AnyRun, loaded
from headcount.runs.run import Run
from headcount.views.matching import draw_matching
from headcount.views.progress import counting
from headcount.views.specialisation import draw_conditions, draw_stats
from headcount.views.style import png


@dataclass(frozen=True)
class HeadsMeasured:
    """What each head is for, and where that was written."""

    stats: Specialisation
    data: Path
    figures: list[Path]
    """A page of all heads, and one per kind of site with and without the condition."""


@dataclass(frozen=True)
class HeadsMatched:
    """The heads of a run beside those of each other run, and where that was written."""

    matches: list[Matching]
    data: list[Path]
    figures: list[Path]


def head_stats(
    run: AnyRun, length: int | None = None, *, norm_weighted: bool = False, quiet: bool = False
) -> HeadsMeasured:
    """Where every head looks over many examples, with standard errors and, where a threshold holds, a label."""
    run = loaded(run)
    run.output.require_writable()
    with counting(f"watching {run.name}", quiet=quiet) as progress:
        found = specialise(run, length, norm_weighted=norm_weighted, progress=progress)
    name = "head-stats" + ("" if length is None else f"-{length}") + ("-norm-weighted" if norm_weighted else "")
    data = run.output.write_result(name, found)
    figures = {f"{name}.png": draw_stats(found)}
    figures |= {f"{name}/{kind}.png": figure for kind, figure in draw_conditions(found).items()}
    return HeadsMeasured(found, data, [run.output.write_figure(path, png(each)) for path, each in figures.items()])


def match_heads(run: AnyRun, *others: AnyRun, length: int | None = None, quiet: bool = False) -> HeadsMatched:
    """Which heads attend alike, write alike and do the same job as those of each other run, beyond chance?"""
    run = loaded(run)
    run.output.require_writable()
    shown = HeadsMatched([], [], [])
    for other in map(loaded, others):
        with counting(f"matching with {other.name}", quiet=quiet) as progress:
            found = match(run, other, length, progress=progress)
        name = _name(other, length)
        shown.matches.append(found)
        shown.data.append(run.output.write_result(name, found))
        shown.figures.append(run.output.write_figure(f"{name}.png", png(draw_matching(found))))
    return shown


def _name(other: Run, length: int | None) -> str:
    """Two runs of one name in different folders have different weights."""
    return f"match-{file_name(other.folder.path.name)}-{other.digest[:8]}" + ("" if length is None else f"-{length}")
