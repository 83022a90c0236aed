"""Show what heads attend to, which roles they have, how a model represents position, and how far it extrapolates.

Nothing is written unless `save` names a folder; `save=True` means the model's own folder.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from matplotlib.figure import Figure

from headcount.analysis.answer_lengths import (
    ANSWER_LENGTHS,
    AnswerStretch,
    require_answer_lengths,
    stretch_answers,
    stretches_answers,
)
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
    join_with_figure,
    places_for,
    result_name,
    save_in,
    unless_default,
    within,
    write_figures,
)
from headcount.auditing.audit import quick_audit
from headcount.errors import InputError
from headcount.experiments.models import OpenModel, RunModel
from headcount.figures.answer_lengths import draw_answer_lengths
from headcount.figures.attention import draw_head_on_text, draw_heads, draw_over_examples, draw_over_texts, draw_pages
from headcount.figures.head_stats import draw_conditions, draw_matching, draw_stats
from headcount.figures.length_generalisation import draw_dispersion, draw_stretch
from headcount.figures.positions import draw_encodings, draw_positions
from headcount.figures.roles import draw_roles
from headcount.heads import HeadId
from headcount.hooks.sites import Sites
from headcount.limits import TIMEOUT
from headcount.rendering.progress import counting
from headcount.runs.folder import SAMPLE

ONE_KIND = "measure them with a command of their own"


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
    """Return the attention pattern of every head, on one example or averaged over many.

    * `on` is an example of the task or a text; a run decodes its own answer to it. Without `on`, patterns are averaged
      over a `split` of the task.
    * `inputs` are the tensors of a PyTorch module, and patterns are averaged over their rows. `sites` lists the heads
      of a module whose heads headcount cannot find.
    * `norm_weighted` weights attention by the norm of what each key adds; it needs a run.
    * `save` names a folder for the result and its heat maps; `save=True` means the model's own folder.

    The returned `result` is an `AttentionPatterns`.

    >>> show_heads("sample:addition", "374+814").result.verdict
    '374+814 = 1188 (right; probability 1.0000)'
    """
    opened, given = open_model(run, sites=sites), inputs if inputs is not None else on
    if norm_weighted and not opened.records_attention:
        what = f"norm_weighted needs a run: {opened.label} does not record what each key adds"
        raise InputError(what, "leave it out: attention weights can be read from any model")
    if given is None:
        patterns = average_patterns(opened.task_attention(), split, norm_weighted=norm_weighted)
    elif isinstance(given, str) and isinstance(opened, RunModel):
        patterns = patterns_on(opened.run, given, norm_weighted=norm_weighted)
    else:
        module, rows = (
            (opened.module, [opened.text_input(given)]) if isinstance(given, str) else tensor_rows(opened, given)
        )
        text = given if isinstance(given, str) else None
        patterns = patterns_on_inputs(opened.label, opened.weights_sha256, module, opened.sites, rows, text)
    shown = patterns.example or (split if given is None else "inputs")
    name = f"heads-{file_name(shown)}{_suffix(norm_weighted)}"
    folder = folder_for(opened, save)
    saved = save_in(folder, name, patterns, lambda name, patterns: within(name, draw_pages(patterns)))
    return replace(saved, others=write_figures(folder, lambda: within(name, draw_heads(patterns))))


def show_head(
    run: AnyModel, head: str | HeadId, on: Sequence[str], *, norm_weighted: bool = False, save: Place = False
) -> Saved[tuple[AttentionPatterns, ...]]:
    """Return the attention pattern of one head of a run on several examples, and draw them side by side.

    `norm_weighted` weights attention by the norm of what each key adds. `save` names a folder for the results and the
    figure; `save=True` means the model's own folder. The returned `result` has one `AttentionPatterns` per example.
    """
    opened = open_run(run, "attention during decoding")
    if not on:
        raise InputError("no example was given", "give one or more, such as 374+814")
    head = opened.find_head(head)
    patterns = tuple(patterns_on(opened, text, norm_weighted=norm_weighted) for text in on)
    suffix = _suffix(norm_weighted)
    names = [f"heads-{file_name(str(pattern.example))}{suffix}" for pattern in patterns]
    folder = folder_for(opened, save)
    saved = [save_in(folder, name, pattern) for name, pattern in zip(names, patterns, strict=True)]
    name = f"head-{head.short}-{file_name(*(str(pattern.example) for pattern in patterns))}{suffix}"
    name = f"{names[0]}/{head}" if len(names) == 1 else name
    return join(saved, *write_figures(folder, lambda: {name: draw_over_examples(patterns, str(head))}))


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
    """Return the attention of every head of any model on texts, each pooled to a small map.

    `on` are one or more texts. For a PyTorch module, `inputs` are its tensors, and each row takes the place of a text;
    `sites` lists the heads of a module whose heads headcount cannot find. `head` names one head to draw in full.
    `run_adapter` allows running the adapter's Python file that a pruned folder names. The returned `result` has one
    `AttentionSummary` per text.
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    tensors = _tensors(on, inputs)
    if tensors is not None:
        module, rows = tensor_rows(opened, tensors)
        texts = [f"input {i}" for i in range(len(rows))]
    else:
        module, texts = opened.module, _texts(on)
        rows = [opened.text_input(text) for text in texts]
    if not texts:
        advice = 'give one: --on "The cat sat on the mat."' if opened.has_output else "give its tensors: inputs=..."
        raise InputError("no text was given", advice)
    head = None if head is None else opened.find_head(head)
    parts, weights = list[Saved[AttentionSummary]](), list[Any]()
    for text, row in zip(texts, rows, strict=True):
        summary = attention_summary(opened.label, opened.weights_sha256, module, opened.sites, row, text)
        if head is not None:
            weights.append(head_pattern(module, opened.sites, row.inputs, head))
        folder, draw = folder_for(opened, save), partial(_draw_text, head=head, weights=weights[-1:])
        parts.append(save_in(folder, f"heads-{file_name(text)}", summary, draw))
    saved = join(parts)
    if head is None or len(texts) == 1:
        return saved
    notes = [summary.note if summary.predicted else "" for summary in saved.result]
    name = f"head-{head.short}-{file_name(*texts)}"
    page = write_figures(folder, lambda: {name: draw_over_texts(saved.result, notes, head, weights)})
    return replace(saved, others=page)


def _tensors(on: str | Sequence[str] | Inputs, inputs: Inputs | None) -> Inputs | None:
    """Return the tensors that were given as `inputs` or as `on`; None if `on` has texts."""
    return on if inputs is None and are_tensors(on) else inputs


def _texts(on: str | Sequence[str] | Inputs) -> list[str]:
    return [on] if isinstance(on, str) else cast("list[str]", list(on))


def _draw_text(name: str, summary: AttentionSummary, head: HeadId | None, weights: Sequence[Any]) -> dict[str, Figure]:
    """Return the figures of all heads on a text and, if `head` is given, one of that head."""
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
    """Measure what every head attends to over many examples of a task, and label heads that specialise.

    `length` measures sequences of this length. `norm_weighted` weights attention by the norm of what each key adds.
    `save` names a folder for the result and its figures; `save=True` means the model's own folder. The returned
    `result` is a `Specialisation`, with standard errors.

        stats = headcount.head_stats("sample:addition").result
        stats.plot(), stats.to_frame()
    """
    opened = open_model(run)
    model, folder = opened.task_attention(), folder_for(opened, save)
    with counting(f"reading attention of {opened.name}", quiet=quiet) as progress:
        stats = specialise(model, length, norm_weighted=norm_weighted, progress=progress)
    name = "head-stats" + ("" if length is None else f"-{length}") + _suffix(norm_weighted)
    draw = lambda name, stats: {name: draw_stats(stats), **within(name, draw_conditions(stats))}  # noqa: E731
    return save_in(folder, name, stats, draw)


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
    """Match the heads of a model with those of other models by attention, output and effect, beyond chance.

    Models of one task are matched on its examples. Other models are matched on texts that their tokenizers split
    alike: `on`, or the texts of the file `data`. PyTorch modules are matched on their tensors, `inputs`, of four rows
    or more; to list the heads of a module, open it first: `match_heads(api.open_model(module, sites=...), ...)`.

    `length` measures sequences of this length. `effort` sets how many examples and permutations are used. The returned
    `result` has one `Matching` per other model.
    """
    opened, saved = open_model(run), list[Saved[Matching]]()
    is_given = inputs is not None or data is not None or len(on) > 0
    if not is_given and opened.task is None:
        needed = 'texts: --on "a text", four or more, or --data FILE' if opened.has_output else "tensors: inputs=..."
        raise InputError(f"{opened.label} has no task, so there are no examples to match heads on", f"give {needed}")
    folder = folder_for(opened, save)
    for other in map(open_model, others):
        with counting(f"matching with {other.label or other.name}", quiet=quiet) as progress:
            if is_given:
                ours, theirs = (_on_inputs(model, on, data, _tensors(on, inputs)) for model in (opened, other))
                matching = match_inputs(ours, theirs, "given inputs", effort, progress)
            else:
                matching = match(opened.task_attention(), other.task_attention(), length, effort, progress)
        # Runs in different folders may have the same name, but their weights differ.
        name = f"match-{file_name(Path(other.name.removeprefix(SAMPLE)).name)}-{other.weights_sha256[:8]}"
        name += "" if length is None else f"-{length}"
        saved.append(save_in(folder, name, matching, lambda name, result: {name: draw_matching(result)}))
    return join(saved)


def _on_inputs(
    opened: OpenModel, on: str | Sequence[str] | Inputs, data: str | Path | None, tensors: Inputs | None
) -> ModelOnInputs:
    """Return a model with the inputs on which its heads are matched: tensors or, without any, texts."""
    module, rows = (opened.module, opened.texts(_texts(on), data)) if tensors is None else tensor_rows(opened, tensors)
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
) -> Saved[tuple[Stretch | AnswerStretch, ...]]:
    """Measure the accuracy of models on examples far longer than those of training.

    * `lengths` are the lengths to test, and `negatives` the kinds of examples; the default is all kinds.
    * `n` is the number of examples per length and kind, and `batch_size` the number per forward pass.
    * `draw` numbers the random draw of sequences. Choose settings on one draw, and report another.
    * `save` names a folder for the results and their figures; `save=True` means each model's own folder.
    * `out` is the folder for a figure of several models.
    * `run_adapter` allows running the adapter's Python file that a pruned folder names.

    The returned `result` has one `Stretch` per classifier, with a cell per length and kind, or one `AnswerStretch` per
    model that answers token by token, such as a model of `addition-long`.

    >>> [cell.accuracy for cell in stretch("sample:sortedness", lengths=[64], n=8, quiet=True).result[0].cells]
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    opened = [open_on_task(model, run_adapter=run_adapter) for model in models]
    settings: dict[str, Any] = {"lengths": lengths, "negatives": negatives, "n": n}
    settings |= {"batch_size": batch_size, "draw": draw}
    for model in opened:
        _require_stretch(model, lengths, negatives, n, batch_size, draw)
    if len({stretches_answers(model) for model in opened}) > 1:
        raise InputError("classifiers and models that answer token by token do not fit into one figure", ONE_KIND)
    places, shared = places_for(opened, save, out, "runs/stretch")
    pairs = zip(opened, places, strict=True)
    saved = [stretch_one(model, **settings, save=place, quiet=quiet) for model, place in pairs]
    return join_stretches(saved, shared, **settings)


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
) -> Saved[Stretch | AnswerStretch]:
    """Measure one model beyond its training lengths; draw its accuracy and, of a classifier, its attention."""
    opened, tried = open_on_task(model), LENGTHS if lengths is None else lengths
    _require_stretch(opened, lengths, negatives, n, batch_size, draw)
    name = partial(_stretch_name, lengths=lengths, negatives=negatives, n=n, batch_size=batch_size, draw=draw)
    folder = folder_for(opened, save)
    if stretches_answers(opened):
        with counting(f"stretching {opened.name}, %", quiet=quiet) as progress:
            reach = stretch_answers(
                opened, ANSWER_LENGTHS if lengths is None else lengths, negatives, n, draw=draw or 0, progress=progress
            )
        reach = replace(reach, audit=quick_audit(opened))
        drawn: Any = lambda stem, result: {stem: draw_answer_lengths([result])}  # noqa: E731
        return cast(Any, save_in(folder, name("stretch"), reach, drawn))
    with counting(f"stretching {opened.name}, %", quiet=quiet) as progress:
        result = stretch_model(opened, tried, negatives, n, batch_size=batch_size, draw=draw or 0, progress=progress)
    result = replace(result, audit=quick_audit(opened))
    figures = lambda stem, result: {stem: draw_stretch([result]), name("dispersion"): draw_dispersion(result)}  # noqa: E731
    return cast(Any, save_in(folder, name("stretch"), result, figures))


def _require_stretch(
    model: OpenModel,
    lengths: Sequence[int] | None,
    negatives: Sequence[str] | None,
    n: int | None,
    batch_size: int | None,
    draw: int | None,
) -> None:
    """Raise an error if a model cannot be measured at these lengths."""
    if stretches_answers(model):
        require_answer_lengths(model, ANSWER_LENGTHS if lengths is None else lengths, negatives, n, draw or 0)
    else:
        require_possible(model, LENGTHS if lengths is None else lengths, negatives, n, batch_size, draw or 0)


def stretch_all(
    models: Sequence[str],
    *,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
    timeout: float = TIMEOUT,
    at_once: int = AT_ONCE,
    **settings: Any,
) -> dict[str, Submission[Stretch | AnswerStretch]]:
    """Measure several models beyond their training lengths, each in a process of its own.

    The returned mapping has one `Submission` per model, by the model's name. `settings` are those of `stretch_one`,
    and `at_once` processes run at the same time. A submission that fails, takes more than `timeout` seconds or ends
    its process has an `error` instead of a result.
    """
    settings |= {"save": save if isinstance(save, bool) else str(save), "quiet": True}
    limits: dict[str, Any] = {"timeout": timeout, "at_once": at_once, "is_quiet": quiet}
    return run_course(
        models,
        stretch_one,
        [Stretch, AnswerStretch],
        title="stretching models",
        run_adapter=run_adapter,
        **limits,
        **settings,
    )


def join_stretches(saved: Sequence[Saved[Any]], folder: str | Path | None, **settings: Any) -> Saved[tuple[Any, ...]]:
    """Join the results of several models, with one figure of all models in the folder.

    `settings` are those of `stretch_one` with which the models were measured.
    """
    draws_answers = any(isinstance(part.result, AnswerStretch) for part in saved)
    draw: Any = draw_answer_lengths if draws_answers else draw_stretch
    return join_with_figure(saved, folder, _stretch_name("stretch", **settings), draw)


def _stretch_name(stem: str, *, lengths: Any, negatives: Any, n: Any, batch_size: Any, draw: Any) -> str:
    return result_name(stem, lengths=lengths, negatives=negatives, n=n, batch=batch_size, draw=draw)


def show_positions(
    run: AnyModel, n_positions: int | None = None, *, save: Place = False, run_adapter: bool = False
) -> Saved[PositionsShown]:
    """Return what a model's position encoding does at trained positions and beyond.

    `n_positions` is the number of positions. `save` names a folder for the result, for all encodings at the same
    positions, and for figures of both; `save=True` means the model's own folder. `run_adapter` allows running the
    adapter's Python file that a pruned folder names. The returned `result` is a `PositionsShown`.
    """
    opened = open_model(run, run_adapter=run_adapter)
    in_use = opened.encoding_in_use()
    shown = positions_of(opened.label, opened.weights_sha256, in_use, n_positions)
    folder = folder_for(opened, save)
    encodings = all_encodings(shown, d_model=in_use.encoding.d_model, n_heads=in_use.n_heads)
    first, second = result_name("positions", n=n_positions), result_name("encodings", n=n_positions)
    saved = save_in(folder, first, shown, lambda name, result: {f"positions/{name}": draw_positions(result)})
    others = save_in(folder, second, encodings, lambda name, result: {f"positions/{name}": draw_encodings(result)})
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
    """Find heads with a role: attention to neighbouring tokens, to copies, or to what follows copies (induction).

    * `on` are texts, and `data` is a file of texts. Heads are also measured on repeated random tokens.
    * `separators` are tokens between sentences; attention to copies across them is a role, too.
    * `inputs` are the tensors of a PyTorch module, and each row takes the place of a text. `sites` lists the heads of
      a module whose heads headcount cannot find.
    * `n_controls` is the number of control models of each kind, which have not learned anything. A head has a role if
      it stands out from the model's other heads and from the controls.
    * `save` names a folder for the result and its figures; `save=True` means the model's own folder.
    * `run_adapter` allows running the adapter's Python file that a pruned folder names.

    The returned `result` is a `HeadRoles`.
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    tensors = _tensors(on, inputs)
    if tensors is not None:
        module, rows = tensor_rows(opened, tensors)
        texts, given = {TEXTS: rows}, ["inputs"]
    else:
        module, given = opened.module, _texts(on)
        texts = {TEXTS: opened.texts(given, data), REPEATED: opened.repeated_tokens()}
    if not any(texts.values()) and not opened.has_output:
        raise InputError("no inputs were given", "give the module's tensors: inputs=...")
    folder = folder_for(opened, save)
    model_fields = opened.label, opened.weights_sha256, module, opened.sites
    with counting(f"measuring controls of {opened.label}", quiet=quiet) as progress:
        roles = roles_of(*model_fields, texts, separators, n_controls=n_controls, progress=progress)
    stem = result_name(
        "head-roles",
        data=None if data is None else Path(data),
        separators=separators or None,
        controls=unless_default(N_CONTROLS, n_controls),
    )
    name = f"{stem}-{file_name(*given)}" if given else stem
    return save_in(folder, name, roles, lambda name, roles: within(name, draw_roles(roles)))
