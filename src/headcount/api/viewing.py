"""See where heads attend, what each is for, what a model knows of positions, and how far it reaches.

Nothing is written unless `save` names a folder; with `save=True` that is the model's own.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from matplotlib.figure import Figure
from torch import nn

from headcount.analysis.attention import AttentionPatterns, average_patterns, patterns_on, patterns_on_inputs
from headcount.analysis.attention_summary import AttentionSummary, attention_summary, head_pattern
from headcount.analysis.length_generalisation import LENGTHS, Stretch, require_possible
from headcount.analysis.length_generalisation import stretch as stretch_model
from headcount.analysis.matching import Effort, Matching, ModelOnInputs, match, match_inputs
from headcount.analysis.positions import PositionsShown, all_encodings, positions_of
from headcount.analysis.roles import N_CONTROLS, REPEATED, TEXTS, HeadRoles
from headcount.analysis.roles import head_roles as roles_of
from headcount.analysis.specialisation import Specialisation, specialise
from headcount.api.courses import AT_ONCE, Submission, run_course
from headcount.api.inputs import are_tensors, tensor_rows
from headcount.api.intervening import Inputs
from headcount.api.opening import AnyModel, open_model, open_on_task, open_run
from headcount.api.saving import (
    Place,
    Saved,
    file_name,
    folder_for,
    join,
    result_name,
    save_in,
    unless,
    within,
    write_figures,
)
from headcount.auditing.audit import quick_audit
from headcount.data.dataset import TokenizedText
from headcount.errors import InputError
from headcount.experiments.models import OpenModel, RunModel
from headcount.figures.attention import draw_head_on_text, draw_heads, draw_over_examples, draw_over_texts, draw_pages
from headcount.figures.head_stats import draw_conditions, draw_matching, draw_stats
from headcount.figures.length_generalisation import draw_dispersion, draw_stretch
from headcount.figures.positions import draw_encodings, draw_positions
from headcount.figures.roles import draw_roles
from headcount.files import claim_output
from headcount.heads import HeadId
from headcount.hooks.sites import Sites
from headcount.limits import TIMEOUT
from headcount.rendering.progress import counting
from headcount.runs.folder import SAMPLE, RunFolder, digest


def show_heads(
    run: AnyModel,
    on: str | Inputs | None = None,
    *,
    inputs: Inputs | None = None,
    sites: Sites | None = None,
    split: str = "test",
    norm_weighted: bool = False,
    save: Place = False,
) -> Saved[AttentionPatterns]:
    """Heat maps of every head: on one example or text; averaged over a held-out set of a task, or over tensors.

    A run decodes its own answer to an example. Of any PyTorch module, `inputs` are its tensors, and `sites` says where
    its heads are unless it has them itself.

    >>> show_heads("sample:addition", "374+814").result.verdict
    '374+814 = 1188 (right; probability 1.0000)'
    """
    found, asked = open_model(run, sites=sites), inputs if inputs is not None else on
    if norm_weighted and not found.records_attention:
        what = f"norm_weighted needs a run: what each key adds is not known of {found.label}"
        raise InputError(what, "leave it out: attention weights can be read off any model")
    if asked is None:
        patterns = average_patterns(found.task_attention(), split, norm_weighted=norm_weighted)
    elif isinstance(asked, str) and isinstance(found, RunModel):
        patterns = patterns_on(found.run, asked, norm_weighted=norm_weighted)
    else:
        module, rows = (
            (found.module, [found.text_input(asked)]) if isinstance(asked, str) else tensor_rows(found, asked)
        )
        text = asked if isinstance(asked, str) else None
        patterns = patterns_on_inputs(found.label, found.weights_sha256, module, found.sites, rows, text)
    shown = patterns.example or (split if asked is None else "inputs")
    name = f"heads-{file_name(shown)}{_suffix(norm_weighted)}"
    folder = folder_for(found, save)
    saved = save_in(folder, name, patterns, lambda name, found: within(name, draw_pages(found)))
    return replace(saved, others=write_figures(folder, lambda: within(name, draw_heads(patterns))))


def show_head(
    run: AnyModel, head: str | HeadId, on: Sequence[str], *, norm_weighted: bool = False, save: Place = False
) -> Saved[tuple[AttentionPatterns, ...]]:
    """One head of a run on these examples, side by side on one page; on one example alone, large."""
    opened = open_run(run, "attention while it decodes")
    if not on:
        raise InputError("no example to look at", "give some, such as 374+814")
    found = opened.find_head(head)
    patterns = tuple(patterns_on(opened, text, norm_weighted=norm_weighted) for text in on)
    suffix = _suffix(norm_weighted)
    names = [f"heads-{file_name(str(each.example))}{suffix}" for each in patterns]
    folder = folder_for(opened, save)
    saved = [save_in(folder, name, each) for name, each in zip(names, patterns, strict=True)]
    name = f"head-{found.short}-{file_name(*(str(each.example) for each in patterns))}{suffix}"
    name = f"{names[0]}/{found}" if len(names) == 1 else name
    return join(saved, *write_figures(folder, lambda: {name: draw_over_examples(patterns, str(found))}))


def summarise_attention(
    model: AnyModel,
    on: str | Sequence[str] | Inputs = (),
    head: str | HeadId | None = None,
    *,
    inputs: Inputs | None = None,
    sites: Sites | None = None,
    save: Place = False,
    run_adapter: bool = False,
) -> Saved[tuple[AttentionSummary, ...]]:
    """Every head of any model on some texts, pooled to a small map each; one `head` also as it is.

    Of any PyTorch module, `inputs` are its tensors, each row of which takes the place of a text; see `show_heads`.
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    module, texts, rows = _rows(opened, on, inputs)
    if not texts:
        what = 'give one: --on "The cat sat on the mat."' if opened.has_output else "give its tensors: inputs=..."
        raise InputError("there is nothing to look at attention on", what)
    found = None if head is None else opened.find_head(head)
    parts, weights = list[Saved[AttentionSummary]](), list[Any]()
    for text, given in zip(texts, rows, strict=True):
        known = opened.label, opened.weights_sha256, module, opened.sites
        tokens = given.inputs, given.tokens, given.special or None
        summary = attention_summary(*known, *tokens, separators=given.separators, text=text)
        summary = replace(summary, note=given.note, predicted=given.predicted, right=given.right)
        if found is not None:
            weights.append(head_pattern(module, opened.sites, given.inputs, found))
        folder, draw = folder_for(opened, save), partial(_draw_text, head=found, weights=weights[-1:])
        parts.append(save_in(folder, f"heads-{file_name(text)}", summary, draw))
    saved = join(parts)
    if found is None or len(texts) == 1:
        return saved
    notes = [each.note if each.predicted else "" for each in saved.result]
    name = f"head-{found.short}-{file_name(*texts)}"
    page = write_figures(folder, lambda: {name: draw_over_texts(saved.result, notes, found, weights)})
    return replace(saved, others=page)


def _rows(
    opened: OpenModel, on: str | Sequence[str] | Inputs, inputs: Inputs | None
) -> tuple[nn.Module, list[str], list[TokenizedText]]:
    """Return what is called; and the names and the tensors of texts, or of rows of given tensors."""
    if inputs is not None or are_tensors(on):
        module, rows = tensor_rows(opened, cast(Inputs, on if inputs is None else inputs))
        return module, [f"input {i}" for i in range(len(rows))], rows
    texts = [on] if isinstance(on, str) else cast("list[str]", list(on))
    return opened.module, texts, [opened.text_input(text) for text in texts]


def _draw_text(name: str, summary: AttentionSummary, head: HeadId | None, weights: Sequence[Any]) -> dict[str, Figure]:
    """Every head on a text; then the one that is looked at."""
    figures = draw_pages(summary)
    if head is not None:
        figures[str(head)] = draw_head_on_text(summary, head, weights[0])
    return within(name, figures)


def _suffix(norm_weighted: bool) -> str:
    return "-norm-weighted" if norm_weighted else ""


def head_stats(
    run: AnyModel,
    length: int | None = None,
    *,
    norm_weighted: bool = False,
    save: Place = False,
    quiet: bool = False,
) -> Saved[Specialisation]:
    """Where every head attends over many examples, with standard errors and, where a threshold holds, a label.

    found = headcount.head_stats("sample:addition").result
    found.plot(), found.to_frame()
    """
    opened = open_model(run)
    model, folder = opened.task_attention(), folder_for(opened, save)
    with counting(f"reading attention of {opened.name}", quiet=quiet) as progress:
        found = specialise(model, length, norm_weighted=norm_weighted, progress=progress)
    name = "head-stats" + ("" if length is None else f"-{length}") + _suffix(norm_weighted)
    draw = lambda name, found: {name: draw_stats(found), **within(name, draw_conditions(found))}  # noqa: E731
    return save_in(folder, name, found, draw)


def match_heads(
    run: AnyModel,
    *others: AnyModel,
    on: str | Sequence[str] | Inputs = (),
    data: str | Path | None = None,
    inputs: Inputs | None = None,
    length: int | None = None,
    effort: Effort | None = None,
    save: Place = False,
    quiet: bool = False,
) -> Saved[tuple[Matching, ...]]:
    """Which heads attend alike, write alike and do the same job as those of each other model, beyond chance?

    Models of one task are matched on its examples. Others are matched on texts (`on`, or those of a file, `data`) that
    their tokenizers split alike; PyTorch modules on their tensors, `inputs`, four rows or more. Where the heads of a
    module are, is said before: `match_heads(api.open_model(module, sites=...), ...)`.
    """
    opened, saved = open_model(run), list[Saved[Matching]]()
    is_given = inputs is not None or data is not None or len(on) > 0
    if not is_given and opened.task is None:
        given = 'texts: --on "a text", four or more, or --data FILE' if opened.has_output else "tensors: inputs=..."
        raise InputError(f"{opened.label} names no task whose examples its heads could be matched on", f"give {given}")
    folder = folder_for(opened, save)
    for other in map(open_model, others):
        with counting(f"matching with {other.label or other.name}", quiet=quiet) as progress:
            if is_given:
                ours, theirs = (_on_inputs(each, on, data, inputs) for each in (opened, other))
                found = match_inputs(ours, theirs, "given inputs", effort, progress)
            else:
                found = match(opened.task_attention(), other.task_attention(), length, effort, progress)
        # Two runs of one name in different folders have different weights.
        name = f"match-{file_name(Path(other.name.removeprefix(SAMPLE)).name)}-{other.weights_sha256[:8]}"
        name += "" if length is None else f"-{length}"
        saved.append(save_in(folder, name, found, lambda name, found: {name: draw_matching(found)}))
    return join(saved)


def _on_inputs(
    opened: OpenModel, on: str | Sequence[str] | Inputs, data: str | Path | None, inputs: Inputs | None
) -> ModelOnInputs:
    """Return a model with the rows that its heads are matched on."""
    if inputs is not None or are_tensors(on):
        module, _, rows = _rows(opened, on, inputs)
    else:
        module, rows = opened.module, opened.texts([on] if isinstance(on, str) else cast("list[str]", list(on)), data)
    return ModelOnInputs(opened.label, opened.weights_sha256, module, opened.sites, rows)


def stretch(
    *models: AnyModel,
    lengths: Sequence[int] | None = None,
    negatives: Sequence[str] | None = None,
    n: int | None = None,
    batch_size: int | None = None,
    draw: int | None = None,
    out: str | Path | None = None,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> Saved[tuple[Stretch, ...]]:
    """Measure accuracy far beyond the training lengths, by kind of negative.

    `draw` chooses other new sequences: choose settings on one draw, and report on another. Each model has a figure of
    its accuracy and one of its attention; several models also share a figure in `out`.

    >>> [cell.accuracy for cell in stretch("sample:sortedness", lengths=[64], n=8, quiet=True).result[0].cells]
    [1.0, 1.0, 1.0, 1.0]
    """
    opened = [open_on_task(model, run_adapter=run_adapter) for model in models]
    asked: dict[str, Any] = {"lengths": lengths, "negatives": negatives, "n": n, "batch_size": batch_size, "draw": draw}
    for model in opened:
        require_possible(model, LENGTHS if lengths is None else lengths, negatives, n, batch_size, draw or 0)
    together = out or ("runs/stretch" if save is True else save or None)
    if together and len(opened) > 1:
        RunFolder(Path(together)).require_writable()
    saved = list[Saved[Stretch]]()
    for model in opened:
        own = f"{file_name(Path(model.label).name)}-{model.weights_sha256[:8]}"  # in one folder, none over another
        place = save if isinstance(save, bool) or len(opened) == 1 else Path(save) / own
        saved.append(stretch_one(model, **asked, save=place, quiet=quiet))
    return join_stretches(saved, together, **asked)


def stretch_one(
    model: AnyModel,
    *,
    lengths: Sequence[int] | None,
    negatives: Sequence[str] | None,
    n: int | None,
    batch_size: int | None,
    draw: int | None,
    save: Place = False,
    quiet: bool = False,
) -> Saved[Stretch]:
    """Measure one model far beyond its training lengths, with a figure of accuracy and one of attention."""
    opened, tried = open_on_task(model), LENGTHS if lengths is None else lengths
    require_possible(opened, tried, negatives, n, batch_size, draw or 0)
    name = partial(result_name, lengths=lengths, negatives=negatives, n=n, batch=batch_size, draw=draw)
    folder = folder_for(opened, save)
    with counting(f"stretching {opened.name}, %", quiet=quiet) as progress:
        result = stretch_model(opened, tried, negatives, n, batch_size=batch_size, draw=draw or 0, progress=progress)
    result = replace(result, audit=quick_audit(opened))
    figures = lambda stem, result: {stem: draw_stretch([result]), name("dispersion"): draw_dispersion(result)}  # noqa: E731
    return save_in(folder, name("stretch"), result, figures)


def stretch_all(
    models: Sequence[str],
    *,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
    timeout: float = TIMEOUT,
    at_once: int = AT_ONCE,
    **asked: Any,
) -> dict[str, Submission[Stretch]]:
    """Stretch several models, each in its own process, and return them by name; `asked` as in `stretch_one`.

    A submission that fails, takes more than `timeout` seconds or ends its process has an `error` instead of a result.
    """
    how: dict[str, Any] = {"save": save if isinstance(save, bool) else str(save), "quiet": True, **asked}
    clock: dict[str, Any] = {"timeout": timeout, "at_once": at_once, "is_quiet": quiet}
    return run_course(
        models, stretch_one, [Stretch], title="stretching models", run_adapter=run_adapter, **clock, **how
    )


def join_stretches(
    saved: Sequence[Saved[Stretch]],
    folder: str | Path | None,
    *,
    lengths: Sequence[int] | None,
    negatives: Sequence[str] | None,
    n: int | None,
    batch_size: int | None,
    draw: int | None,
) -> Saved[tuple[Stretch, ...]]:
    """Join the results of several models, and draw one figure of all of them in the folder."""
    if len(saved) < 2:
        return join(saved)
    results = [each.result for each in saved]
    weights = digest("".join(each.weights_sha256 for each in results).encode())
    stem = result_name("stretch", lengths=lengths, negatives=negatives, n=n, batch=batch_size, draw=draw)
    name = f"{stem}-of-{len(results)}-runs-{weights[:8]}"
    shared = RunFolder(Path(folder)) if folder else None
    if shared:
        claim_output(shared.figure_file(f"{name}.png"), ".png", force=None)
    return join(saved, *write_figures(shared, lambda: {name: draw_stretch(results)}))


def show_positions(
    run: AnyModel, n_positions: int | None = None, *, save: Place = False, run_adapter: bool = False
) -> Saved[PositionsShown]:
    """Show what a model's encoding does at trained positions and beyond, and all encodings side by side."""
    opened = open_model(run, run_adapter=run_adapter)
    model = opened.positions()
    shown, found = positions_of(model, n_positions), model.encoding_in_use()
    folder = folder_for(opened, save)
    shape = {"d_model": found.encoding.d_model, "n_heads": found.n_heads}
    beside = all_encodings(model, n_positions=shown.n_positions, **shape)
    first, second = result_name("positions", n=n_positions), result_name("encodings", n=n_positions)
    saved = save_in(folder, first, shown, lambda name, found: {f"positions/{name}": draw_positions(found)})
    others = save_in(folder, second, beside, lambda name, found: {f"positions/{name}": draw_encodings(found)})
    return replace(saved, data=saved.data + others.data, figures=saved.figures + others.figures)


def head_roles(
    model: AnyModel,
    on: str | Sequence[str] | Inputs = (),
    data: str | Path | None = None,
    separators: Sequence[str] = (),
    *,
    inputs: Inputs | None = None,
    sites: Sites | None = None,
    n_controls: int = N_CONTROLS,
    save: Place = False,
    run_adapter: bool = False,
    quiet: bool = False,
) -> Saved[HeadRoles]:
    """What each head stands out for: on these texts, on those of a file, and on repeated random tokens.

    Neighbouring tokens, copies, what follows copies (induction), and copies across a separator; heads are named against
    the other heads of the model and against as many controls of each kind, which learned nothing. Of any PyTorch
    module, `inputs` are its tensors, each row of which takes the place of a text; see `show_heads`.
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    if inputs is not None or are_tensors(on):
        module, given, rows = _rows(opened, on, inputs)
        texts, given = {TEXTS: rows}, ["inputs"]
    else:
        module, given = opened.module, [on] if isinstance(on, str) else cast("list[str]", list(on))
        texts = {TEXTS: opened.texts(given, data), REPEATED: opened.repeated_tokens()}
    if not any(texts.values()) and not opened.has_output:
        raise InputError("there is nothing to measure heads on", "give the module's tensors: inputs=...")
    folder = folder_for(opened, save)
    known = opened.label, opened.weights_sha256, module, opened.sites
    with counting(f"reading controls of {opened.label}", quiet=quiet) as progress:
        found = roles_of(*known, texts, separators, n_controls=n_controls, progress=progress)
    asked = result_name(
        "head-roles",
        data=None if data is None else Path(data),
        separators=separators or None,
        controls=unless(N_CONTROLS, n_controls),
    )
    name = f"{asked}-{file_name(*given)}" if given else asked
    return save_in(folder, name, found, lambda name, found: within(name, draw_roles(found)))
