"""Write a report about models: gather stored results, measure what is missing, and write one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from headcount import __version__
from headcount.analysis.ablation import Ablation
from headcount.analysis.length_generalisation import REPORTED, Stretch
from headcount.analysis.pruning import Pruning
from headcount.api.inputs import ModuleWithInputs, are_tensors
from headcount.api.live import live_model
from headcount.api.opening import AnyModel, open_model
from headcount.api.report_measurements import (
    BRIEF_LENGTH,
    LARGEST_TIME_SHARE,
    MEASUREMENTS,
    SEARCH_SECONDS,
    Measurement,
    brief_names,
    measure,
)
from headcount.api.report_patterns import is_example, patterns_of, text_book
from headcount.api.saving import data_setting, result_name
from headcount.data.dataset import tensor_dataset
from headcount.data.tables import TextLines, text_lines
from headcount.describing import SECTIONS
from headcount.describing.live import LiveModel
from headcount.describing.report import IN_MEMORY, ModelResults, Report, ReportResults, build_report
from headcount.errors import HeadcountError, InputError, OutOfTime, ResultError, argument
from headcount.experiments.models import Data, ExperimentMetric, OpenModel, RunModel
from headcount.files import claim_output, write_outputs
from headcount.hooks import REPLACEMENTS
from headcount.hooks.sites import Sites
from headcount.rendering.forms import FORMS
from headcount.rendering.notebook import Frame
from headcount.rendering.page import html_page
from headcount.rendering.progress import TimeLimit, WorkingTime, announcer, limited, time_limit
from headcount.results import Result, require_heads
from headcount.runs.folder import RunFolder, Snapshot
from headcount.runs.run import Run
from headcount.tasks.base import Task

N_EXAMPLES = 200
"""Default number of examples whose attention patterns a report contains."""
TIME_LIMIT = 40.0
"""Seconds for all measurements; with loading and writing, a report takes about a minute."""
PATTERNS_SHARE = 0.25
"""Fraction of the time limit that reading attention on single examples may take."""
BESIDE_LIVE = ("ablation", "routes", "certificate")
"""Names of the results that a report shows beside a live model (a model that runs inside the page)."""
ON_DATA = ("ablation", "pruning")
"""Names of measurements that need data if the model has no task."""


def report(
    *models: AnyModel,
    out: str | Path = "report.html",
    title: str = "",
    on: Sequence[str] = (),
    data: Data = None,
    metric: ExperimentMetric = None,
    sites: Sites | None = None,
    lines: bool = False,
    n_examples: int = N_EXAMPLES,
    stored: bool = False,
    thorough: bool = False,
    markdown: bool = False,
    latex: bool = False,
    exercise: str | Path | None = None,
    live_only: bool = False,
    force: bool = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> tuple[Path, ...]:
    """Write a report about models: one HTML file with sentences, figures and tables that opens offline.

    Results that are stored in a model's folder are read. The others are measured, the most important ones first, and
    stored there. All measurements together take about a minute; the report lists those that were left out.

    * `out` is the file to write. `force` allows replacing files that headcount did not write.
    * `thorough` measures everything, however long it takes. `stored` measures only what takes seconds.
    * `on` are examples or texts whose attention is shown first. `n_examples` is the number of examples in all.
    * `data` is a file for models without a task, on which their heads are ablated and removed (see `ablate_heads`).
      For a PyTorch module, `data` are its input tensors, and `sites` lists heads that headcount cannot find. Heads of
      a module are ablated and removed only if `metric(output, rows)` returns one score per row.
    * `markdown` also writes Markdown with figures, `latex` also writes tables as LaTeX, and `exercise` names a folder
      for the files that the exercise asks for.

    * `live_only` writes only the part of the page that runs the models: readers type an example and switch heads off.
      Nothing is measured; stored results are shown.

    Return the paths of all files, the HTML file first.

        headcount.report("sample:addition", out="adder.html")
    """
    path = Path(out)
    if live_only:
        if markdown or latex or exercise is not None or thorough:
            raise InputError(
                "--live-only writes one HTML page and no other form of the report",
                "leave --markdown, --latex, --exercise and --thorough out",
            )
        claim_forms(path, force=force)
        page = live_report(*models, title=title, on=on)
        return tuple(write_outputs({path: html_page(page).encode(errors="replace")}, force=force))
    forms = {"markdown": path.with_suffix(".md")} if markdown else {}
    forms |= {"latex": path.parent / "tables"} if latex else {}
    forms |= {"exercise": Path(exercise)} if exercise is not None else {}
    claim_forms(path, forms, force=force)
    report_results = gather(
        *models,
        title=title,
        on=on,
        data=text_lines(data) if lines else data,
        metric=metric,
        sites=sites,
        n_examples=n_examples,
        stored=stored,
        thorough=thorough,
        quiet=quiet,
        run_adapter=run_adapter,
    )
    return write_forms(report_results, path, forms, force=force)


def live_report(*models: AnyModel, title: str = "", on: Sequence[str] = ()) -> Report:
    """Return a report that contains only live models (models that run inside the page) and their stored results."""
    if not models:
        raise InputError("no model was given", "name one or more: headcount report sample:addition --live-only")
    opened = [open_model(model) for model in models]
    live = [live_model(model) for model in opened]
    _require_examples(on, [model.task for model in opened])
    titles = _titles([model.label or model.name for model in opened])
    parts = tuple(_live_results(*each, on) for each in zip(opened, titles, live, strict=True))
    title = title or f"Try {titles[0] if len(titles) == 1 else f'{len(titles)} models'}"
    section = SECTIONS.get("live")(ReportResults(title, parts, ""))
    return Report(title, ", ".join(titles), (section,), f"Made by headcount {__version__}.")


def _live_results(model: OpenModel, title: str, live: LiveModel, on: Sequence[str]) -> ModelResults:
    """Return a live model (one that runs inside the page) with the stored results that the page shows beside it."""
    results: dict[str, Any] = {
        each.field: _read(model, each, None) for each in MEASUREMENTS if each.field in BESIDE_LIVE
    }
    texts = tuple(text for text in on if model.task is not None and is_example(model.task, text))
    return ModelResults(model.name, title, model.weights_sha256, live.task.name, live=live, texts=texts, **results)


def live_frame(run: Run) -> Frame:
    """Return an HTML frame for a notebook, in which a run answers examples that the reader types."""
    return Frame(live_report(run))


def claim_forms(path: Path, forms: Mapping[str, Path] | None = None, *, force: bool | None = False) -> None:
    """Raise an error if a report would replace files that headcount did not write; call this before measuring."""
    claim_output(path, ".html", force=force)
    for name, place in (forms or {}).items():
        FORMS.get(name).claim(place, bool(force))


def write_forms(
    report_results: ReportResults,
    path: Path,
    forms: Mapping[str, Path] | None = None,
    *,
    force: bool = False,
    unfinished: str = "",
) -> tuple[Path, ...]:
    """Write a report as HTML and in other `forms`, such as Markdown; return the files' paths, the HTML file first.

    `unfinished` says what is still being measured; an open page then reloads itself.
    """
    whole_report = replace(build_report(report_results), unfinished=unfinished)
    files = list[Path]()
    for name, place in (forms or {}).items():
        files += FORMS.get(name).write(whole_report, report_results, place, force)
    page = write_outputs({path: html_page(whole_report).encode(errors="replace")}, force=force)
    return (*page, *files)


def gather(
    *models: AnyModel,
    title: str = "",
    on: Sequence[str] = (),
    data: Data = None,
    metric: ExperimentMetric = None,
    sites: Sites | None = None,
    n_examples: int = N_EXAMPLES,
    stored: bool = False,
    quick: bool = True,
    thorough: bool = False,
    quiet: bool = False,
    run_adapter: bool = False,
    clock: Callable[[], float] | None = None,
) -> ReportResults:
    """Return the results that a report is written from, measured within the time limit unless `thorough`.

    With `stored`, only missing results that take seconds are measured; without `quick`, not even these.
    """
    if not models:
        raise InputError("no model was given", "name one or more: headcount report runs/addition-0")
    if stored and thorough:
        raise InputError("--stored and --thorough cannot be combined", "leave one of them out")
    opened = [open_model(model, sites=sites, run_adapter=run_adapter) for model in models]
    if are_tensors(data):
        tensors = [data] if isinstance(data, Tensor) else list(data)
        opened = [model if model.has_output else ModuleWithInputs.of_opened(model, tensors) for model in opened]
        data = tensor_dataset(tensors, metric) if callable(metric) else None
    elif metric is not None:
        raise InputError(
            "`metric` is only for a PyTorch module whose input tensors are given as `data`",
            "give the tensors: data=tensors",
        )
    elif bare := [model.label for model in opened if type(model) is OpenModel]:
        raise InputError(f"{bare[0]} is a PyTorch module, which needs input tensors", "give them: data=tensors")
    if data is not None:
        _require_data(data, [model for model in opened if model.task is None])
    _require_examples(on, [model.task for model in opened])
    titles = _titles([model.label or model.name for model in opened])
    clock = clock or WorkingTime()
    limit = None if stored or thorough else TimeLimit(clock() + TIME_LIMIT, clock)
    all_models = list[ModelResults]()
    for model, name in zip(opened, titles, strict=True):
        with limited(limit and limit.share(1 / (len(opened) - len(all_models)))):
            all_models.append(_model_results(model, name, on, data, n_examples, stored, quick, thorough, quiet))
    names = titles[0] if len(titles) == 1 else f"{titles[0]} and {titles[1]}" if len(titles) == 2 else ""
    weights = ", ".join(f"{part.title} `{part.weights_sha256[:16] or 'in memory'}`" for part in all_models)
    source = f"Made by headcount {__version__} from results of these weights: {weights}."
    return ReportResults(title or f"The heads of {names or f'{len(titles)} models'}", tuple(all_models), source)


def _require_data(data: Data, models: Sequence[OpenModel]) -> None:
    """Raise an error for data on which these models cannot be measured, before any long measurement begins."""
    if not models:
        raise InputError(
            "--data is only for models without a task of headcount, and every model given has one",
            "leave --data out: these models are measured on examples of their tasks",
        )
    for model in models:
        model.examples(data, None, None, None)


def _require_examples(texts: Sequence[str], tasks: Sequence[Task | None]) -> None:
    """Raise an error for a text that is an example of none of the tasks; a model without a task accepts any text."""
    known = [task for task in tasks if task is not None]
    for text in texts if len(known) == len(tasks) else ():
        if not any(is_example(task, text) for task in known):
            known[0].parse(text)  # raises an error that says what is wrong


def _titles(names: Sequence[str]) -> list[str]:
    """Return a title for each model: the last part of its name, or the whole name if two models share the last part."""
    short = [name.rstrip("/").rpartition("/")[2] or name for name in names]
    return [one if short.count(one) == 1 else name for one, name in zip(short, names, strict=True)]


def _model_results(
    model: OpenModel,
    title: str,
    on: Sequence[str],
    data: Data,
    n_examples: int,
    stored: bool,
    quick: bool,
    thorough: bool,
    quiet: bool,
) -> ModelResults:
    data, limit = None if model.task is not None else data, time_limit()
    left_out = list[str]()
    patterns = tuple(patterns_of(model, on, n_examples, quiet, limit and limit.share(PATTERNS_SHARE), left_out))
    results = _results(model, title, data, stored, quick, thorough, quiet, left_out)
    if left_out:
        announcer(quiet)(f"{title}: not measured: {'; '.join(left_out)}")
    settings, log = _recipe(model)
    live, why_not_live = _live(model)
    return ModelResults(
        name=model.name if model.has_output else IN_MEMORY,
        title=title,
        weights_sha256=model.weights_sha256,
        task=None if model.task is None else model.task.name,
        data_flags=_data_flags(data),
        texts=tuple(text for text in on if model.task is None or is_example(model.task, text)),
        settings=settings,
        log=log,
        training=model.run.folder.read_training() if isinstance(model, RunModel) else None,
        patterns=patterns,
        book=text_book(model, on, patterns) if model.task is None and on else None,
        live=live,
        why_not_live=why_not_live,
        not_measured=tuple(left_out),
        **results,
    )


def _live(model: OpenModel) -> tuple[LiveModel | None, str]:
    """Return the model in the form that the page runs, or None with the reason why the page cannot run it."""
    if not isinstance(model, RunModel):
        return None, "the engine of the page knows only the models that headcount trains"
    try:
        return live_model(model), ""
    except InputError as error:
        return None, error.what


def _results(
    model: OpenModel,
    title: str,
    data: Data,
    stored: bool,
    quick: bool,
    thorough: bool,
    quiet: bool,
    left_out: list[str],
) -> dict[str, Any]:
    """Return every result of a model by field name: read from its folder, or measured.

    Measurements that ran out of time are added to `left_out`, in words.
    """
    say, limit = announcer(quiet), time_limit()
    read = partial(_read, model, data=data, thorough=thorough, say=say if stored else None)
    known: dict[str, Any] = {each.field: read(measurement=each) for each in MEASUREMENTS if each.make}
    missing = [
        each
        for each in MEASUREMENTS
        if each.make
        and known[each.field] is None
        and _applies(model, each, data)
        and ((each.is_quick and quick) or not stored)
    ]
    for i, measurement in enumerate(missing, start=1):
        say(f"{title}: measuring {measurement.words} ({i} of {len(missing)})")
        try:
            with limited(limit and limit.share(LARGEST_TIME_SHARE)):
                known[measurement.field] = measure(measurement, model, data, quiet)
        except OutOfTime:
            left_out.append(measurement.words)
        except HeadcountError as error:  # this model does not support the measurement
            say(f"{title}: {measurement.words} could not be measured: {error.what}")
    left_out += _shortened(known["ablation"], known["stretch"], known["pruning"]) if limit else []
    return known | {each.field: read(measurement=each) for each in MEASUREMENTS if not each.make}


def _shortened(ablation: Ablation | None, reach: Stretch | None, pruning: Pruning | None) -> list[str]:
    """Return in words the measurements that were left out of these results to save time; a thorough report has them."""
    used = set(REPLACEMENTS.names()) if ablation is None else set(ablation.replacements)
    others = [name for name in REPLACEMENTS.names() if name not in used]
    longest = 0 if reach is None else max((cell.length for cell in reach.cells), default=0)
    return [
        *([f"{' and '.join(others)} ablation of each head"] if others else []),
        *([f"accuracy on sequences of more than {BRIEF_LENGTH} numbers"] if longest == BRIEF_LENGTH else []),
        *(pruning.not_measured if pruning is not None else ()),
    ]


def _data_flags(data: Data) -> str:
    """Return the data of a model as flags of a command; "" if the data are not a file."""
    if isinstance(data, TextLines):
        return f"--data {argument(data.file)} --lines"
    return f"--data {argument(data)}" if isinstance(data, str | Path) else ""


# --- results ----------------------------------------------------------------------------------------------------------


def _applies(model: OpenModel, measurement: Measurement, data: Data) -> bool:
    """Return whether a measurement makes sense for this kind of model. The measurement may still fail."""
    kind = None if model.task is None else model.task.output_type
    if kind is None:
        return measurement.field in ("roles", "positions") or (data is not None and measurement.field in ON_DATA)
    return measurement.field != "roles" and (measurement.field != "stretch" or kind == "class")


def _read(
    model: OpenModel,
    measurement: Measurement,
    data: Data,
    *,
    thorough: bool = False,
    say: Callable[[str], None] | None = None,
) -> Result | None:
    """Return the stored result of a measurement of this model that has the settings of a report; None without one.

    A thorough report accepts only results with the default settings of the verb. With `say`, the newest result with
    other settings, such as `--n 200`, is accepted if there is no other; `say` is then called with a message that
    names its file.
    """
    if not model.has_output:
        return None
    stem = measurement.stem
    named = [
        f"{stem}-examples",
        result_name(stem, draw=REPORTED),
        stem,
    ]  # the names that report_measurements.py saves under
    if data is not None and measurement.field in ON_DATA:
        stem = result_name(measurement.stem, data=data_setting(data))
        named = [stem, result_name(measurement.stem, data=data_setting(data), budget=f"{SEARCH_SECONDS}s")]
    named += [] if thorough else brief_names(measurement, model, data)
    for folder, file in _stored_files(model, named, stem if say else None):
        for kind in measurement.types:
            try:
                result = folder.read_result(file.stem, kind)
            except ResultError:
                raise  # measuring again would replace the file, and hide that it was changed
            except HeadcountError:  # another type or version
                continue
            if getattr(result, "weights_sha256", model.weights_sha256) == model.weights_sha256:
                require_heads(result, [str(head) for head in model.sites.heads], file)
                if say and file.stem not in named:
                    say(f"{model.label}: {measurement.words} is read from {file.name}, made with other settings")
                return result
    return None


def _stored_files(model: OpenModel, names: Sequence[str], stem: str | None) -> Iterator[tuple[RunFolder, Path]]:
    """Yield the result files with these names, then those whose names begin with the stem, the newest first.

    Each file comes with its folder. The results of a packaged run may also be in the package.
    """
    folders = [model.output, *([model.run.folder] if isinstance(model, RunModel) else [])]
    for folder in {folder.path.resolve(): folder for folder in folders}.values():
        results = folder.result_file("x").parent
        for name in names:
            if (file := results / f"{name}.json").exists():
                yield folder, file
        others = results.glob(f"{escape(stem)}*.json") if stem else ()
        for file in sorted(others, key=lambda file: -file.stat().st_mtime):
            if not file.stem.startswith((f"{stem}-lines", f"{stem}-share")):
                yield folder, file


def _recipe(model: OpenModel) -> tuple[dict[str, Any], Sequence[dict[str, Any]]]:
    """Return the settings and the training log of a run; both are empty for other models."""
    if not isinstance(model, RunModel):
        return {}, ()
    run = model.run
    parts = (run.config, *(getattr(run.config, each.name) for each in fields(run.config)))
    flat = {
        each.name: getattr(part, each.name)
        for part in parts
        if hasattr(part, "__dataclass_fields__")
        for each in fields(part)
    }
    plain = {name: value for name, value in flat.items() if isinstance(value, str | int | float | bool | None)}
    snapshot = {"snapshot": run.folder.step} if isinstance(run.folder, Snapshot) else {}
    return plain | snapshot, run.folder.read_log()
