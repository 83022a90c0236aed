"""List heads, show what they attend to, measure it, find their roles, and match them with the heads of other models.

Nothing is written unless `save` names a folder; `save=True` means the model's own folder.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from matplotlib.figure import Figure

from headcount.analysis.attention import AttentionPatterns, average_patterns, patterns_on, patterns_on_inputs
from headcount.analysis.attention_summary import AttentionSummary, attention_summary, head_pattern
from headcount.analysis.matching import Effort, Matching, ModelOnInputs, match, match_inputs
from headcount.analysis.roles import N_CONTROLS, REPEATED, TEXTS, HeadRoles
from headcount.analysis.roles import head_roles as roles_of
from headcount.analysis.specialisation import Specialisation, specialise
from headcount.api.inputs import are_tensors, tensor_rows
from headcount.api.intervening import Inputs
from headcount.api.opening import AnyModel, open_model, open_run
from headcount.api.saving import (
    Place,
    Saved,
    file_name,
    folder_for,
    join,
    result_name,
    save_in,
    unless_default,
    within,
    write_figures,
)
from headcount.errors import InputError
from headcount.experiments.models import OpenModel, RunModel
from headcount.figures.attention import draw_head_on_text, draw_heads, draw_over_examples, draw_over_texts, draw_pages
from headcount.figures.matching import draw_matching
from headcount.figures.roles import draw_roles
from headcount.figures.specialisation import draw_conditions, draw_stats
from headcount.heads import HeadId
from headcount.hooks.sites import Sites
from headcount.rendering.progress import counting
from headcount.runs.folder import SAMPLE


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
    * `norm_weighted` weights attention by the norm of the vector that each key adds to the output; it needs a run.
    * `save` names a folder for the result and its heat maps; `save=True` means the model's own folder.

    The returned `result` is an `AttentionPatterns`.

    >>> show_heads("sample:addition", "374+814").result.verdict
    '374+814 = 1188 (right; probability 1.0000)'
    """
    opened, given = open_model(run, sites=sites), inputs if inputs is not None else on
    if norm_weighted and not opened.records_attention:
        what = f"norm_weighted needs a model that headcount trained: {opened.label} does not record its value vectors"
        raise InputError(what, "leave norm_weighted out: attention weights alone can be read from any model")
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

    `norm_weighted` weights attention by the norm of the vector that each key adds. `save` names a folder for the
    results and the figure; `save=True` means the model's own folder. The returned `result` has one `AttentionPatterns`
    per example.
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
    """Return the attention of every head of a model on one or more texts, pooled to a small map for each head.

    `on` are one or more texts. For a PyTorch module, `inputs` are its tensors, and each row takes the place of a text;
    `sites` lists the heads of a module whose heads headcount cannot find. `head` names one head to draw in full.
    `run_adapter` allows running the adapter (the user's Python file) that the folder of a pruned model names. The
    returned `result` has one `AttentionSummary` per text.
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

    `length` measures sequences of this length. `norm_weighted` weights attention by the norm of the vector that each
    key adds. `save` names a folder for the result and its figures; `save=True` means the model's own folder. The
    returned `result` is a `Specialisation`, with standard errors.

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
    """Match a model's heads with those of other models by attention, output and effect; compare matches with chance.

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
    """Find heads with a role: attention to neighbours, earlier copies of a token, or tokens after copies (induction).

    * `on` are texts, and `data` is a file of texts. Heads are also measured on repeated random tokens.
    * `separators` are tokens between sentences; attention to copies across them is a role, too.
    * `inputs` are the tensors of a PyTorch module, and each row takes the place of a text. `sites` lists the heads of
      a module whose heads headcount cannot find.
    * `n_controls` is the number of control models of each kind, which have not learned anything. A head has a role if
      it stands out from the model's other heads and from the controls.
    * `save` names a folder for the result and its figures; `save=True` means the model's own folder.
    * `run_adapter` allows running the adapter (the user's Python file) that the folder of a pruned model names.

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
