"""See where heads attend, what each is for, what a model knows of positions, and how far it reaches."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headcount.analysis.attention import (
    AttentionPatterns,
    AttentionSummary,
    attention_summary,
    average_patterns,
    head_pattern,
    patterns_on,
)
from headcount.analysis.length_generalisation import LENGTHS, Stretch, require_possible
from headcount.analysis.length_generalisation import stretch as stretch_run
from headcount.analysis.matching import Matching, match
from headcount.analysis.positions import PositionsShown, all_encodings, positions_of
from headcount.analysis.specialisation import Specialisation, specialise
from headcount.api.opening import AnyModel, open_model, open_run
from headcount.api.saving import Saved, file_name, join, result_name, save, within, write_figures
from headcount.errors import InputError
from headcount.heads import HeadId
from headcount.runs.folder import RunFolder, digest
from headcount.views.attention import draw_head_on_text, draw_heads, draw_over_examples, draw_over_texts, draw_pages
from headcount.views.head_stats import draw_conditions, draw_matching, draw_stats
from headcount.views.length_generalisation import draw_dispersion, draw_stretch
from headcount.views.positions import draw_encodings, draw_positions
from headcount.views.progress import counting


def show_heads(
    run: AnyModel, on: str | None = None, *, split: str = "test", norm_weighted: bool = False
) -> Saved[AttentionPatterns]:
    """Heat maps of every head of a run: on one example, or (without one) averaged over a held-out set."""
    found = open_run(run, "an average over a split" if on is None else "attention while it decodes")
    if on is not None:
        patterns = patterns_on(found, on, norm_weighted=norm_weighted)
    else:
        patterns = average_patterns(found, split, norm_weighted=norm_weighted)
    name = f"heads-{file_name(patterns.example) if patterns.example else split}{_suffix(norm_weighted)}"
    saved = save(found.output, name, patterns, within(name, draw_pages(patterns)))
    return replace(saved, others=write_figures(found.output, within(name, draw_heads(patterns))))


def show_head(
    run: AnyModel, head: str | HeadId, on: Sequence[str], *, norm_weighted: bool = False
) -> Saved[tuple[AttentionPatterns, ...]]:
    """One head of a run on these examples, side by side on one page; on one example alone, large."""
    opened = open_run(run, "attention while it decodes")
    if not on:
        raise InputError("no example to look at", "give some, such as 374+814")
    found = opened.find_head(head)
    patterns = tuple(patterns_on(opened, text, norm_weighted=norm_weighted) for text in on)
    suffix = _suffix(norm_weighted)
    names = [f"heads-{file_name(str(each.example))}{suffix}" for each in patterns]
    saved = [save(opened.output, name, each, {}) for name, each in zip(names, patterns, strict=True)]
    name = f"head-{found.short}-{file_name(*(str(each.example) for each in patterns))}{suffix}"
    name = f"{names[0]}/{found}" if len(names) == 1 else name
    return join(saved, *write_figures(opened.output, {name: draw_over_examples(patterns, str(found))}))


def summarise_attention(
    model: AnyModel, on: str | Sequence[str], head: str | HeadId | None = None, *, run_adapter: bool = False
) -> Saved[tuple[AttentionSummary, ...]]:
    """Every head of any model on some texts, pooled to a small map each; one `head` also as it is."""
    opened, texts = open_model(model, run_adapter=run_adapter), [on] if isinstance(on, str) else list(on)
    if not texts:
        raise InputError("no text to look at", 'give one: --on "The cat sat on the mat."')
    found = None if head is None else opened.find_head(head)
    parts, weights = list[Saved[AttentionSummary]](), list[Any]()
    for text in texts:
        given = opened.text_input(text)
        known = opened.label, opened.weights_sha256, opened.module, opened.sites
        summary = attention_summary(*known, given.inputs, given.tokens, given.special or None, text=text)
        summary = replace(summary, note=given.note, predicted=given.predicted, right=given.right)
        figures = draw_pages(summary)
        if found is not None:
            weights.append(head_pattern(opened.module, opened.sites, given.inputs, found))
            figures[str(found)] = draw_head_on_text(summary, found, weights[-1])
        name = f"heads-{file_name(text)}"
        parts.append(save(opened.output, name, summary, within(name, figures)))
    saved = join(parts)
    if found is None or len(texts) == 1:
        return saved
    notes = [each.note if each.predicted else "" for each in saved.result]
    page = {f"head-{found.short}-{file_name(*texts)}": draw_over_texts(saved.result, notes, found, weights)}
    return replace(saved, others=write_figures(opened.output, page))


def _suffix(norm_weighted: bool) -> str:
    return "-norm-weighted" if norm_weighted else ""


def head_stats(
    run: AnyModel, length: int | None = None, *, norm_weighted: bool = False, quiet: bool = False
) -> Saved[Specialisation]:
    """Where every head attends over many examples, with standard errors and, where a threshold holds, a label."""
    opened = open_run(run, "what heads attend to")
    opened.output.require_writable()
    with counting(f"reading attention of {opened.name}", quiet=quiet) as progress:
        found = specialise(opened, length, norm_weighted=norm_weighted, progress=progress)
    name = "head-stats" + ("" if length is None else f"-{length}") + _suffix(norm_weighted)
    return save(opened.output, name, found, {name: draw_stats(found), **within(name, draw_conditions(found))})


def match_heads(
    run: AnyModel, *others: AnyModel, length: int | None = None, quiet: bool = False
) -> Saved[tuple[Matching, ...]]:
    """Which heads attend alike, write alike and do the same job as those of each other run, beyond chance?"""
    opened, saved = open_run(run, "matching heads"), list[Saved[Matching]]()
    opened.output.require_writable()
    for other in (open_run(each, "matching heads") for each in others):
        with counting(f"matching with {other.name}", quiet=quiet) as progress:
            found = match(opened, other, length, progress=progress)
        # Two runs of one name in different folders have different weights.
        name = f"match-{file_name(other.folder.path.name)}-{other.weights_sha256[:8]}"
        name += "" if length is None else f"-{length}"
        saved.append(save(opened.output, name, found, {name: draw_matching(found)}))
    return join(saved)


def stretch(
    *runs: AnyModel,
    lengths: Sequence[int] | None = None,
    negatives: Sequence[str] | None = None,
    n: int | None = None,
    batch_size: int | None = None,
    draw: int | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Saved[tuple[Stretch, ...]]:
    """Accuracy far beyond the trained lengths, by kind of negative; several runs share one more figure in `out`.

    `draw` chooses other fresh sequences: settle on a recipe with one draw, report it on another. Figures are curves
    and attention of each run, in turn; then, of several, all in one.
    """
    opened = [open_run(run, "stretch") for run in runs]
    asked = LENGTHS if lengths is None else lengths

    def named(what: str) -> str:
        return result_name(what, lengths=lengths, negatives=negatives, n=n, batch=batch_size, draw=draw)

    saved = list[Saved[Stretch]]()
    for run in opened:
        require_possible(run, asked, negatives, n, batch_size, draw or 0)
    for run in opened:
        run.output.require_writable()
        with counting(f"stretching {run.name}, %", quiet=quiet) as progress:
            found = stretch_run(run, asked, negatives, n, batch_size=batch_size, draw=draw or 0, progress=progress)
        figures = {named("stretch"): draw_stretch([found]), named("dispersion"): draw_dispersion(found)}
        saved.append(save(run.output, named("stretch"), found, figures))
    if len(saved) < 2:
        return join(saved)
    results = [each.result for each in saved]
    models = digest("".join(each.weights_sha256 for each in results).encode())
    name = f"{named('stretch')}-of-{len(results)}-runs-{models[:8]}"
    return join(saved, *write_figures(RunFolder(Path(out or "runs/stretch")), {name: draw_stretch(results)}))


def show_positions(run: AnyModel, n_positions: int | None = None) -> Saved[PositionsShown]:
    """What a model's encoding does at trained positions and past them, and every encoding side by side."""
    opened = open_run(run, "positions")
    shown = positions_of(opened, n_positions)
    opened.output.require_writable()
    shape = opened.config.model
    beside = all_encodings(opened, d_model=shape.d_model, n_heads=shape.n_heads, n_positions=shown.n_positions)
    first, second = result_name("positions", n=n_positions), result_name("encodings", n=n_positions)
    saved = save(opened.output, first, shown, {f"positions/{first}": draw_positions(shown)})
    others = save(opened.output, second, beside, {f"positions/{second}": draw_encodings(beside)})
    return replace(saved, data=saved.data + others.data, figures=saved.figures + others.figures)
