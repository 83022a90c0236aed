"""Ablate the heads of a model one by one."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from headcount.analysis.ablation import Ablation, AblationRun, ablate, decide
from headcount.analysis.ablation_stopping import StoppingRule
from headcount.analysis.sequential_ablation import SweepState, ablate_until_decided, can_stop_early, first_look
from headcount.api.opening import AnyModel, open_model
from headcount.api.saving import Place, Saved, data_setting, folder_for, result_name, save_in, unless_default
from headcount.auditing.audit import quick_audit
from headcount.data.dataset import Metric
from headcount.data.tables import text_lines
from headcount.describing.blocks import DataTable
from headcount.describing.sections.ablation import describe, ranking_table
from headcount.errors import InputError
from headcount.experiments.experiment import Experiment
from headcount.experiments.models import Data, ExperimentMetric, OpenModel
from headcount.figures.ablation import draw_lengths, draw_map, draw_ranking
from headcount.files import write_atomically
from headcount.hooks import REPLACEMENTS
from headcount.hooks.sites import Sites
from headcount.limits import BATCH, DONORS, PRECISION, parse_seconds
from headcount.rendering.markdown import markdown_text
from headcount.rendering.progress import counting
from headcount.rendering.refining import refining

SHORT = 16
"""Examples of at most this many tokens are ablated in larger batches, with one ablation per forward pass."""


def ablate_heads(
    model: AnyModel,
    data: Data = None,
    metric: ExperimentMetric = None,
    *,
    lines: bool = False,
    replacements: Sequence[str] | None = None,
    sites: Sites | None = None,
    n: int | None = None,
    precision: float = PRECISION,
    budget: str | float | None = None,
    exhaust: bool = False,
    donors: int | None = None,
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
    * `precision`: each head is measured on more and more examples until its band (such as critical or redundant) is
      decided and its 95 % CI reaches at most this far to either side (0.01: 1 point, or 0.01 of another unit). The
      examples are those of the test set or the file, then, for a run, new ones of its task, up to 30,000.
    * `budget` ends the measurement after a time such as `"30s"`; heads that are not decided by then stay undecided.
    * `n` measures exactly this number of examples instead, and `exhaust` the whole test set; with `exhaust`, heads that
      change an answer there are measured again on 40,000 new examples.
    * `donors` is the number of other examples whose head outputs resample ablation takes in turn. The default is 4, or
      1 if there are new examples, because new examples add more information than further donors.
    * `lengths` are the lengths of sequences to measure on. `examples` also records which kinds of answers become wrong.
    * `save` names a folder for the result; `save=True` means the model's own folder.
    * `run_adapter` allows running the adapter (the user's Python file) that the folder of a pruned model names.

    The returned `result` is an `Ablation`, with one effect per head and replacement.

    >>> ablation = ablate_heads("sample:sortedness", n=20, replacements=["zero"], quiet=True).result
    >>> [effect.short for effect in ablation.heads]
    ['L0H0', 'L0H1', 'L0H2', 'L0H3']
    """
    opened = open_model(model, sites=sites, run_adapter=run_adapter)
    at_once = batch_rows(batch_size, opened)
    data = text_lines(data) if lines else data
    clock = _clock(n, precision, budget, exhaust=exhaust, lengths=lengths)
    measured_lengths = tuple(dict.fromkeys(lengths)) or (None,)
    experiments = [opened.experiment(data, metric, n, length=length, at_once=at_once) for length in measured_lengths]
    if examples and experiments[0].examples is None:
        raise InputError(
            f"--examples needs a model that is measured on a task of headcount, and {opened.name} is not",
            "leave --examples out",
        )
    for replacement in replacements or ():
        REPLACEMENTS.get(replacement)
    folder = folder_for(opened, save)
    more = None if lengths else opened.confirmation(data, metric, n, at_once)
    if n is None and not exhaust and not lengths and can_stop_early(experiments[0], more):
        rule = StoppingRule(precision, first_look(experiments[0]))
        with refining(f"ablating heads of {opened.name}", quiet=quiet) as show:
            run = ablate_until_decided(
                experiments[0],
                more,
                rule,
                replacements,
                donors=donors or (DONORS if more is None else 1),
                examples=examples,
                batch_size=batch_size,
                is_time_up=clock,
                on_block=lambda state: show(*_preview(opened, experiments[0].metric, state)),
            )
        runs = [run]
    else:
        runs = [
            _on_fixed_examples(
                opened,
                experiment,
                more,
                replacements,
                donors=donors or DONORS,
                length=length,
                examples=examples,
                batch_size=batch_size,
                quiet=quiet,
            )
            for length, experiment in zip(measured_lengths, experiments, strict=True)
        ]
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
        precision=unless_default(PRECISION, precision),
        budget=budget,
        exhaust=exhaust,
        lengths=tuple(lengths) or None,
        examples=examples,
        donors=donors,
        batch=unless_default(BATCH, batch_size),
    )
    saved = save_in(folder, name, result, _draw)
    tables = {".md": markdown_text(describe(result)), ".csv": result.to_csv()}
    files = tuple(saved.data[0].with_suffix(suffix) for suffix in tables)
    for file, text in zip(files, tables.values(), strict=True):
        write_atomically(file, text.encode(errors="replace"))
    return replace(saved, others=files)


def _clock(
    n: int | None, precision: float, budget: str | float | None, *, exhaust: bool, lengths: Sequence[int]
) -> Callable[[], bool]:
    """Check the flags that end the measurement; return a function that returns whether the time budget is used up."""
    if not 0 < precision < 1:
        raise InputError(
            f"--precision must be in (0, 1), got {precision:g}", "a precision of 0.01 means 1 percentage point"
        )
    fixed = [flag for flag, is_given in (("--n", n), ("--exhaust", exhaust), ("--lengths", lengths)) if is_given]
    if len(fixed) > 1 and exhaust:
        raise InputError(
            f"{' and '.join(fixed)} cannot be combined", "each of them fixes the number of examples: give one"
        )
    if fixed and budget is not None:
        raise InputError(
            f"--budget and {fixed[0]} cannot be combined", f"{fixed[0]} fixes the number of examples: leave one out"
        )
    if budget is None:
        return lambda: False
    end = time.monotonic() + parse_seconds(budget)
    return lambda: time.monotonic() >= end


def _preview(opened: OpenModel, metric: Metric, state: SweepState) -> tuple[DataTable, str]:
    """Return a table of the drops measured so far, and a line that says how many ablations are precise enough."""
    result = _join_runs(opened, metric, [state.run])
    n_all = len(state.run.measurements)
    settled = f"{state.n:,} examples: {state.n_settled} of {n_all} ablations are precise enough"
    return ranking_table(result, result.conditions[0], "preview"), settled


def _on_fixed_examples(
    opened: OpenModel,
    experiment: Experiment,
    more: Experiment | None,
    replacements: Sequence[str] | None,
    *,
    donors: int,
    length: int | None,
    examples: bool,
    batch_size: int,
    quiet: bool,
) -> AblationRun:
    """Ablate each head on all examples; measure heads that change an answer again on new examples (`more`)."""
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
    if more is None or not run.unsettled:
        return run
    with counting(f"measuring {len(run.unsettled)} ablations again{at}", quiet=quiet) as progress:
        return decide(run, more, donors=donors, batch_size=batch_size, progress=progress)


def _join_runs(opened: OpenModel, metric: Metric, runs: Sequence[AblationRun]) -> Ablation:
    """Join the ablations at several sequence lengths into one result."""
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


def batch_rows(batch_size: int, model: OpenModel | None = None) -> int:
    """Return the number of examples per batch, so that one forward pass has room for four ablations of a batch.

    If the examples of the model's task are short, a batch has room for one ablation per pass only: the forward pass
    without ablations, which is needed once per batch, then costs more than the ablations.
    """
    if batch_size < 1:
        raise InputError(
            f"--batch-size must be at least 1, got {batch_size}", "it is the number of input rows per forward pass"
        )
    longest = None if model is None or model.task is None else getattr(model.task, "longest", None)
    return batch_size if longest is not None and longest <= SHORT else max(1, batch_size // 4)


def _draw(name: str, result: Ablation) -> dict[str, Figure]:
    """Return the figures of an ablation by file name: a ranking and a map of heads for each sequence length."""
    by_length = len(result.conditions) > 1
    figures = {f"{name}-by-length": draw_lengths(result)} if by_length else {}
    for condition in result.conditions:
        at = f"-at-{condition.length}" if by_length else ""
        figures |= {f"{name}{at}": draw_ranking(result, condition), f"{name}{at}-map": draw_map(result, condition)}
    return figures
