"""Look at heads and positions, and at how far a model reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headcount.analysis.extrapolation import LENGTHS, Stretch, require_possible
from headcount.analysis.extrapolation import stretch as stretch_run
from headcount.analysis.glance import Glance
from headcount.analysis.patterns import AttentionPatterns, average_patterns, patterns_on
from headcount.analysis.positions import PositionsShown, all_encodings, positions_of
from headcount.api._names import file_name, result_name
from headcount.api._run import AnyModel, AnyRun, loaded, ready
from headcount.errors import InputError
from headcount.guests.guest import Guest
from headcount.guests.reading import look, look_closer
from headcount.heads import HeadId
from headcount.runs.folder import RunFolder, digest
from headcount.views.attention import draw_heads, draw_over_examples, draw_pages
from headcount.views.glance import draw_closeup, draw_mosaics, draw_over_texts
from headcount.views.positions import draw_encodings, draw_positions
from headcount.views.progress import counting
from headcount.views.stretch import draw_dispersion, draw_stretch
from headcount.views.style import png


@dataclass(frozen=True)
class HeadsShown:
    """Where every head looks, and where that was written."""

    patterns: AttentionPatterns
    data: Path
    pages: list[Path]
    """One per kind of site."""
    pictures: list[Path]
    """One per head."""


@dataclass(frozen=True)
class HeadsGlanced:
    """Where every head of a model of others looks on one text, and where that was written."""

    glance: Glance
    note: str
    data: Path
    figures: list[Path]
    said: str | None = None
    right: str | None = None
    """The answer of an adapter's model and the right one, where they are known."""


@dataclass(frozen=True)
class HeadShown:
    """One head on some examples, in one picture, and where that was written."""

    head: HeadId
    patterns: list[AttentionPatterns]
    data: list[Path]
    figure: Path


def glance_over(model: AnyModel, on: Sequence[str], head: str | HeadId) -> tuple[list[HeadsGlanced], Path]:
    """One head of a model of others over several texts: each by itself, and one page of that head on all of them."""
    guest = ready(model)
    if not isinstance(guest, Guest) or not on:
        raise InputError("this is for some texts and a model of others", "look at runs of headcount's own by show_head")
    found = guest.find_head(head)
    shown, notes, weights = zip(*(_glance(guest, text, found) for text in on), strict=True)
    figure = draw_over_texts([each.glance for each in shown], notes, found, weights)
    return list(shown), guest.output.write_figure(f"head-{found.short}-{file_name(*on)}.png", png(figure))


def show_head(run: AnyRun, head: str | HeadId, on: Sequence[str], *, norm_weighted: bool = False) -> HeadShown:
    """One head on these examples, side by side on one page; on one example alone, large."""
    run = loaded(run)
    if not on:
        raise InputError("no example to look at", "give some, such as 374+814")
    found, patterns = run.find_head(head), [patterns_on(run, text, norm_weighted=norm_weighted) for text in on]
    suffix = _suffix(norm_weighted)
    names = [f"heads-{file_name(str(each.example))}{suffix}" for each in patterns]
    data = [run.output.write_result(name, each) for name, each in zip(names, patterns, strict=True)]
    name = (
        f"{names[0]}/{found}"
        if len(names) == 1
        else f"head-{found.short}-{file_name(*(str(each.example) for each in patterns))}{suffix}"
    )
    figure = run.output.write_figure(f"{name}.png", png(draw_over_examples(patterns, str(found))))
    return HeadShown(found, patterns, data, figure)


def glance_heads(
    model: AnyModel, on: str, head: str | HeadId | None = None, *, run_adapter: bool = False
) -> HeadsGlanced:
    """Every head of a model of others on one text, and if asked for one of them closer."""
    guest = ready(model, run_adapter=run_adapter)
    if not isinstance(guest, Guest):
        raise InputError(f"{guest.name} is a run of headcount's own", "look at it with show_heads")
    return _glance(guest, on, None if head is None else guest.find_head(head))[0]


def _glance(guest: Guest, on: str, head: HeadId | None) -> tuple[HeadsGlanced, str, Any]:
    """One text: what was drawn, the model's own answer to it if it gives one, and the weights of one head."""
    found, reading = look(guest, on)
    name = f"heads-{file_name(on)}"
    figures, weights = draw_mosaics(found), None
    if head is not None:
        weights = look_closer(guest, reading, head)
        figures[str(head)] = draw_closeup(found, head, weights)
    written = [guest.output.write_figure(f"{name}/{title}.png", png(figure)) for title, figure in figures.items()]
    data = guest.output.write_result(name, found)
    glanced = HeadsGlanced(found, reading.note, data, written, reading.said, reading.right)
    return glanced, reading.note if reading.said else "", weights


def show_heads(run: AnyRun, on: str | None = None, *, split: str = "test", norm_weighted: bool = False) -> HeadsShown:
    """Heat maps of every head: on one example, or (without one) averaged over a held-out set."""
    run = loaded(run)
    if on is not None:
        patterns = patterns_on(run, on, norm_weighted=norm_weighted)
    else:
        patterns = average_patterns(run, split, norm_weighted=norm_weighted)
    name = f"heads-{file_name(patterns.example) if patterns.example else split}{_suffix(norm_weighted)}"
    data = run.output.write_result(name, patterns)
    pages, heads = (
        [run.output.write_figure(f"{name}/{title}.png", png(figure)) for title, figure in figures.items()]
        for figures in (draw_pages(patterns), draw_heads(patterns))
    )
    return HeadsShown(patterns, data, pages, heads)


def _suffix(norm_weighted: bool) -> str:
    return "-norm-weighted" if norm_weighted else ""


@dataclass(frozen=True)
class Stretched:
    """How far each run reaches, and where that was drawn."""

    results: list[Stretch]
    figures: list[Path]
    """Curves and attention of each run, in turn; then, of several, all in one."""
    data: list[Path]


def stretch(
    *runs: AnyRun,
    lengths: Sequence[int] | None = None,
    negatives: Sequence[str] | None = None,
    n: int | None = None,
    batch_size: int | None = None,
    draw: int | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Stretched:
    """Accuracy far beyond the trained lengths, by kind of negative; several runs share one more figure in `out`.

    `draw` chooses other fresh sequences: settle on a recipe with one draw, report it on another.
    """
    ready = [loaded(run) for run in runs]
    asked = LENGTHS if lengths is None else lengths

    def named(what: str) -> str:
        return result_name(what, lengths=lengths, negatives=negatives, n=n, batch=batch_size, draw=draw)

    results, figures, data = [], [], []
    for run in ready:
        require_possible(run, asked, negatives, n, batch_size, draw or 0)
    for run in ready:
        run.output.require_writable()
        with counting(f"stretching {run.name}, %", quiet=quiet) as progress:
            found = stretch_run(run, asked, negatives, n, batch_size=batch_size, draw=draw or 0, progress=progress)
        data.append(run.output.write_result(named("stretch"), found))
        for name, figure in (("stretch", draw_stretch([found])), ("dispersion", draw_dispersion(found))):
            figures.append(run.output.write_figure(f"{named(name)}.png", png(figure)))
        results.append(found)
    if len(results) > 1:
        folder = RunFolder(Path(out or "runs/stretch"))
        models = digest("".join(each.model for each in results).encode())
        name = f"{named('stretch')}-of-{len(results)}-runs-{models[:8]}.png"
        figures.append(folder.write_figure(name, png(draw_stretch(results))))
    return Stretched(results, figures, data)


@dataclass(frozen=True)
class PositionsDrawn:
    """What a model knows of positions, and where that was written."""

    positions: PositionsShown
    data: list[Path]
    """This run, and every encoding side by side."""
    pages: list[Path]
    """The same two, drawn."""


def show_positions(run: AnyRun, n_positions: int | None = None) -> PositionsDrawn:
    """What a model's encoding does at trained positions and past them, and every encoding side by side."""
    run = loaded(run)
    shown = positions_of(run, n_positions)
    run.output.require_writable()
    shape = run.config.model
    beside = all_encodings(run, d_model=shape.d_model, n_heads=shape.n_heads, n_positions=shown.n_positions)
    drawn = {"positions": (shown, draw_positions(shown)), "encodings": (beside, draw_encodings(beside))}
    named = {result_name(name, n=n_positions): both for name, both in drawn.items()}
    data = [run.output.write_result(name, result) for name, (result, _) in named.items()]
    pages = [run.output.write_figure(f"positions/{name}.png", png(figure)) for name, (_, figure) in named.items()]
    return PositionsDrawn(shown, data, pages)
