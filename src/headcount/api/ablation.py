"""Which heads count: ablate them one by one."""

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from headcount.analysis.ablation import Ablation, AblationRun, ablate, decide
from headcount.api.opening import AnyModel, open_model
from headcount.api.saving import Place, Saved, asked_data, folder_for, result_name, save_in, unless
from headcount.auditing.audit import quick_audit
from headcount.data.dataset import Metric
from headcount.data.tables import text_lines
from headcount.errors import InputError
from headcount.experiments.models import Data, ExperimentMetric, OpenModel
from headcount.figures.ablation import ablation_csv, ablation_markdown, draw_lengths, draw_map, draw_ranking
from headcount.files import write_atomically
from headcount.hooks import REPLACEMENTS
from headcount.hooks.sites import Sites
from headcount.limits import BATCH, DONORS
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
    """Ablate every head alone, with every replacement, and compare outputs on the same examples.

    Asked for no number of examples, a run is measured on its test set, and those of its heads that change any answer
    there on 40,000 fresh examples (by resample on a quarter as many, each with four donors).

    `model` is a run (then `data` is the name of a split or examples of its task, and `metric` a name or a function), a
    model of others by its folder or adapter (then `data` is a file or folder, a dataset of Hugging Face's library, or
    the split of the adapter's task; with `lines`, every line of a file is an example of its own), or any PyTorch
    module: then `data` are its input tensors, `metric(output, rows)` gives one score per row, and `sites` says where
    its heads are unless it has them itself. All replacements are used unless `replacements` names some. A folder
    that was pruned from an adapter's model names the adapter's file, which is run only with `run_adapter`.

    Nothing is written unless `save` names a folder; with `save=True` that is the model's own.

    >>> found = ablate_heads("sample:sortedness", n=20, replacements=["zero"], quiet=True)
    >>> [effect.short for effect in found.result.heads]
    ['L0H0', 'L0H1', 'L0H2', 'L0H3']
    """
    opened, at_once = open_model(model, sites=sites, run_adapter=run_adapter), batch_rows(batch_size)
    data = text_lines(data) if lines else data
    asked = tuple(dict.fromkeys(lengths)) or (None,)
    experiments = [opened.experiment(data, metric, n, length=length, at_once=at_once) for length in asked]
    if examples and experiments[0].examples is None:
        raise InputError(
            f"{opened.name} is not measured on a task's own tokens, which could say what failed", "leave --examples out"
        )
    for replacement in replacements or ():
        REPLACEMENTS.get(replacement)
    folder = folder_for(opened, save)
    done = []
    for length, experiment in zip(asked, experiments, strict=True):
        at = "" if length is None else f" at length {length}"
        with counting(f"ablating heads of {opened.name}{at}", quiet=quiet) as progress:
            found = ablate(
                experiment,
                replacements,
                donors=donors,
                length=length,
                examples=examples,
                batch_size=batch_size,
                progress=progress,
            )
        more = opened.second_look(data, metric, n, at_once) if found.unsettled and length is None else None
        if more:
            with counting(f"measuring {len(found.unsettled)} ablations again{at}", quiet=quiet) as progress:
                found = decide(found, more, donors=donors, batch_size=batch_size, progress=progress)
        done.append(found)
    result = replace(_joined(opened, experiments[0].metric, done), audit=quick_audit(opened))
    if folder is None:
        return Saved(result)
    every = replacements is None or set(replacements) == set(REPLACEMENTS.names())
    name = result_name(
        "ablation",
        data=asked_data(data),
        metric=metric,
        replacements=None if every else replacements,
        n=n,
        lengths=tuple(lengths) or None,
        examples=examples,
        donors=unless(DONORS, donors),
        batch=unless(BATCH, batch_size),
    )
    saved = save_in(folder, name, result, _draw)
    tables = {".md": ablation_markdown(result), ".csv": ablation_csv(result)}
    files = tuple(saved.data[0].with_suffix(suffix) for suffix in tables)
    for file, text in zip(files, tables.values(), strict=True):
        write_atomically(file, text.encode(errors="replace"))
    return replace(saved, others=files)


def _joined(opened: OpenModel, metric: Metric, done: Sequence[AblationRun]) -> Ablation:
    """One result of what was measured at each length."""
    effects = [effect for each in done for effect in each.effects]
    return Ablation(
        name=opened.label,
        weights_sha256=opened.weights_sha256,
        metric=metric.name,
        unit=metric.unit,
        is_accuracy=metric.is_accuracy,
        replacements=tuple(dict.fromkeys(effect.replacement for effect in effects)),
        heads=tuple(effects),
        conditions=tuple(each.condition for each in done),
        proof=done[0].proof,
    )


def batch_rows(batch_size: int) -> int:
    """Examples per batch, so that four ablations of them ride in one forward pass."""
    if batch_size < 1:
        raise InputError(f"--batch-size must be at least 1, got {batch_size}", "it is rows per forward pass")
    return max(1, batch_size // 4)


def _draw(name: str, result: Ablation) -> dict[str, Figure]:
    by_length = len(result.conditions) > 1
    figures = {f"{name}-by-length": draw_lengths(result)} if by_length else {}
    for condition in result.conditions:
        at = f"-at-{condition.length}" if by_length else ""
        figures |= {f"{name}{at}": draw_ranking(result, condition), f"{name}{at}-map": draw_map(result, condition)}
    return figures
