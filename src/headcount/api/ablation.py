"""Ablate the heads of a model one by one."""

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from headcount.analysis.ablation import Ablation, AblationRun, ablate, decide
from headcount.api.opening import AnyModel, open_model
from headcount.api.saving import Place, Saved, data_setting, folder_for, result_name, save_in, unless_default
from headcount.auditing.audit import quick_audit
from headcount.data.dataset import Metric
from headcount.data.tables import text_lines
from headcount.describing.sections.ablation import describe
from headcount.errors import InputError
from headcount.experiments.models import Data, ExperimentMetric, OpenModel
from headcount.figures.ablation import draw_lengths, draw_map, draw_ranking
from headcount.files import write_atomically
from headcount.hooks import REPLACEMENTS
from headcount.hooks.sites import Sites
from headcount.limits import BATCH, DONORS
from headcount.rendering.markdown import markdown_text
from headcount.rendering.progress import counting


def ablate_heads(
    model: AnyModel,
    data: Data = None,
    metric: ExperimentMetric = None,
    *,
    lines: bool = False,
    replacements: Sequence[str] | None = None,
    sites: Sites | None = None,
    n: int | None = None,
    donors: int = DONORS,
    lengths: Sequence[int] = (),
    examples: bool = False,
    batch_size: int = BATCH,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> Saved[Ablation]:
    """Ablate each head alone with every replacement, and measure the drop on the same examples.

    `model` and `data` are one of these:

    * a run: `data` is the name of a split, or examples of its task; `metric` is a name or a function.
    * the folder or adapter of another model: `data` is a file, a folder, a dataset of Hugging Face's library, or a
      split of the adapter's task. With `lines`, each line of a file is one example.
    * a PyTorch module: `data` are its input tensors, and `metric(output, rows)` returns one score per row. `sites`
      lists the heads of a module whose heads headcount cannot find.

    The other arguments:

    * `replacements` selects replacements, such as `["zero"]`; the default is all of them.
    * `n` is the number of examples. Without it, a run is measured on its test set. Heads that change an answer there
      are measured again on 40,000 new examples (resample ablation: a quarter as many, with four donors each).
    * `lengths` measures sequences of these lengths. `examples` also records which kinds of answer break.
    * `save` names a folder for the result; `save=True` means the model's own folder.
    * `run_adapter` allows running the adapter's Python file that a pruned folder names.

    The returned `result` is an `Ablation`, with one effect per head and replacement.

    >>> ablation = ablate_heads("sample:sortedness", n=20, replacements=["zero"], quiet=True).result
    >>> [effect.short for effect in ablation.heads]
    ['L0H0', 'L0H1', 'L0H2', 'L0H3']
    """
    opened, at_once = open_model(model, sites=sites, run_adapter=run_adapter), batch_rows(batch_size)
    data = text_lines(data) if lines else data
    measured_lengths = tuple(dict.fromkeys(lengths)) or (None,)
    experiments = [opened.experiment(data, metric, n, length=length, at_once=at_once) for length in measured_lengths]
    if examples and experiments[0].examples is None:
        raise InputError(
            f"--examples needs a model that is measured on the tokens of a task, and {opened.name} is not",
            "leave --examples out",
        )
    for replacement in replacements or ():
        REPLACEMENTS.get(replacement)
    folder = folder_for(opened, save)
    runs = []
    for length, experiment in zip(measured_lengths, experiments, strict=True):
        at = "" if length is None else f" at length {length}"
        with counting(f"ablating heads of {opened.name}{at}", quiet=quiet) as progress:
            run = ablate(
                experiment,
                replacements,
                donors=donors,
                length=length,
                examples=examples,
                batch_size=batch_size,
                progress=progress,
            )
        more = opened.confirmation(data, metric, n, at_once) if run.unsettled and length is None else None
        if more:
            with counting(f"measuring {len(run.unsettled)} ablations again{at}", quiet=quiet) as progress:
                run = decide(run, more, donors=donors, batch_size=batch_size, progress=progress)
        runs.append(run)
    result = replace(_join_runs(opened, experiments[0].metric, runs), audit=quick_audit(opened))
    if folder is None:
        return Saved(result)
    has_all = replacements is None or set(replacements) == set(REPLACEMENTS.names())
    name = result_name(
        "ablation",
        data=data_setting(data),
        metric=metric,
        replacements=None if has_all else replacements,
        n=n,
        lengths=tuple(lengths) or None,
        examples=examples,
        donors=unless_default(DONORS, donors),
        batch=unless_default(BATCH, batch_size),
    )
    saved = save_in(folder, name, result, _draw)
    tables = {".md": markdown_text(describe(result)), ".csv": result.to_csv()}
    files = tuple(saved.data[0].with_suffix(suffix) for suffix in tables)
    for file, text in zip(files, tables.values(), strict=True):
        write_atomically(file, text.encode(errors="replace"))
    return replace(saved, others=files)


def _join_runs(opened: OpenModel, metric: Metric, runs: Sequence[AblationRun]) -> Ablation:
    """Join the measurements at all lengths into one result."""
    effects = [effect for run in runs for effect in run.effects]
    return Ablation(
        name=opened.label,
        weights_sha256=opened.weights_sha256,
        metric=metric.name,
        unit=metric.unit,
        is_accuracy=metric.is_accuracy,
        replacements=tuple(dict.fromkeys(effect.replacement for effect in effects)),
        heads=tuple(effects),
        conditions=tuple(run.condition for run in runs),
        proof=runs[0].proof,
    )


def batch_rows(batch_size: int) -> int:
    """Return the number of examples per batch, such that four ablations fit into one forward pass."""
    if batch_size < 1:
        raise InputError(
            f"--batch-size must be at least 1, got {batch_size}", "it is the number of rows per forward pass"
        )
    return max(1, batch_size // 4)


def _draw(name: str, result: Ablation) -> dict[str, Figure]:
    """Return the figures of an ablation by file name: a ranking and a map per length."""
    by_length = len(result.conditions) > 1
    figures = {f"{name}-by-length": draw_lengths(result)} if by_length else {}
    for condition in result.conditions:
        at = f"-at-{condition.length}" if by_length else ""
        figures |= {f"{name}{at}": draw_ranking(result, condition), f"{name}{at}-map": draw_map(result, condition)}
    return figures
