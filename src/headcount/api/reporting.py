"""One file that can be handed in: everything that is known of some models, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
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
from headcount.api.measurements import BRIEF_LENGTH, MOST_OF_IT, SEARCH_SECONDS, WANTED, Wanted, brief_names, measure
from headcount.api.opening import AnyModel, open_model
from headcount.api.patterns import is_example, patterns_of, text_book
from headcount.api.saving import asked_data, result_name
from headcount.data.dataset import tensor_dataset
from headcount.data.tables import TextLines, text_lines
from headcount.describing.exercise import claim_exercise, write_exercise
from headcount.describing.story import IN_MEMORY, Material, Subject, tell
from headcount.errors import HeadcountError, InputError, OutOfTime, ResultError, argument
from headcount.experiments.models import Data, ExperimentMetric, OpenModel, RunModel
from headcount.files import claim_output, write_outputs
from headcount.hooks import REPLACEMENTS
from headcount.hooks.sites import Sites
from headcount.rendering.latex import write_latex
from headcount.rendering.markdown import FIGURES, write_markdown
from headcount.rendering.page import html_page
from headcount.rendering.progress import TimeLimit, WorkingTime, announcer, limited, time_limit
from headcount.results import Result, require_heads
from headcount.runs.folder import RunFolder
from headcount.tasks.base import Task

N_EXAMPLES = 200
"""Examples whose patterns are kept."""
TIME_LIMIT = 40.0
"""Seconds that all measurements may take unless they are to be thorough: loading and writing need some of a minute."""
PATTERNS_SHARE = 0.25
"""Share of the time that may go into the attention on single examples."""
ON_DATA = ("ablation", "pruning")
"""What a model without a task is measured for, if there are data."""


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
    force: bool = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> tuple[Path, ...]:
    """Write one file about these models, offline and complete: figures, tables, and what they come to in words.

    Results that are stored in a model's folder are read; the others are measured and stored there, unless `stored`
    leaves them out. All measurements together take about a minute at most, the most important ones first, and the
    report names what was left out; with `thorough`, everything is measured, however long that takes.

    `on` are examples or texts to look at attention on first. On `data` (see `ablate_heads`) heads of models without a
    task are ablated and removed. Of any PyTorch module `data` are its tensors, on which its heads are looked at and, if
    `metric(output, rows)` gives one score per row, ablated and removed; `sites` says where its heads are.

    Beside the page there may be Markdown with pictures, LaTeX tables, and the files that the exercise asks for, into a
    folder. Returns all files, the page first.
    Files that headcount did not write are replaced only with `force`.

        headcount.report("sample:addition", out="adder.html")
    """
    path = Path(out)
    claim_forms(path, markdown=markdown, exercise=exercise, force=force)
    material = gather(
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
    return write_forms(material, path, markdown=markdown, latex=latex, exercise=exercise, force=force)


def claim_forms(
    path: Path, *, markdown: bool = False, exercise: str | Path | None = None, force: bool | None = False
) -> None:
    """Refuse the outputs of a report that would replace somebody's files, before the measuring begins."""
    claim_output(path, ".html", force=force)
    if markdown:
        claim_output(path.with_suffix(".md"), ".md", force=force)
        if RunFolder(path.parent).holds_a_run:
            what = f"{path.parent} holds a model, whose {FIGURES} the pictures of the Markdown would be mixed with"
            raise InputError(what, "choose a name outside of that folder with -o")
    if exercise is not None:
        claim_exercise(Path(exercise), force=bool(force))


def write_forms(
    material: Material,
    path: Path,
    *,
    markdown: bool = False,
    latex: bool = False,
    exercise: str | Path | None = None,
    force: bool = False,
) -> tuple[Path, ...]:
    """Write a report in every form that is asked for; return the files, the page first."""
    story, files = tell(material), list[Path]()
    if markdown:
        files += write_markdown(story, path.with_suffix(".md"), force=force)
    if latex:
        files += write_latex(story, path.parent / "tables", force=force)
    if exercise is not None:
        files += write_exercise(material, Path(exercise), force=force)
    page = write_outputs({path: html_page(story).encode(errors="replace")}, force=force)
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
    thorough: bool = False,
    quiet: bool = False,
    run_adapter: bool = False,
    clock: Callable[[], float] | None = None,
) -> Material:
    """Return everything that a report is written from, measured within the time limit unless it is to be thorough."""
    if not models:
        raise InputError("no model to report on", "name some: headcount report runs/addition-0")
    if stored and thorough:
        raise InputError("--stored measures nothing that takes long, --thorough everything", "leave one of them out")
    opened = [open_model(model, sites=sites, run_adapter=run_adapter) for model in models]
    if are_tensors(data):
        tensors = [data] if isinstance(data, Tensor) else list(data)
        opened = [ModuleWithInputs.of_opened(each, tensors) if not each.has_output else each for each in opened]
        data = tensor_dataset(tensors, metric) if callable(metric) else None
    elif metric is not None:
        raise InputError("a metric is for a PyTorch module with its tensors", "give them: data=tensors")
    elif bare := [each.label for each in opened if type(each) is OpenModel]:
        raise InputError(f"{bare[0]} is a bare module: there is nothing to look at its heads on", "give data=tensors")
    if data is not None:
        _require_fitting(data, [model for model in opened if model.task is None])
    _require_examples(on, [model.task for model in opened])
    titles = _titles([model.label or model.name for model in opened])
    clock = clock or WorkingTime()
    limit = None if stored or thorough else TimeLimit(clock() + TIME_LIMIT, clock)
    subjects = list[Subject]()
    for model, each in zip(opened, titles, strict=True):
        with limited(limit and limit.share(1 / (len(opened) - len(subjects)))):
            subjects.append(_subject(model, each, on, data, n_examples, stored, thorough, quiet))
    names = titles[0] if len(titles) == 1 else f"{titles[0]} and {titles[1]}" if len(titles) == 2 else ""
    weights = ", ".join(f"{each.title} `{each.weights_sha256[:16] or 'in memory'}`" for each in subjects)
    made = f"Made by headcount {__version__} from results of these weights: {weights}."
    return Material(title or f"The heads of {names or f'{len(titles)} models'}", tuple(subjects), made)


def _require_fitting(data: Data, models: Sequence[OpenModel]) -> None:
    """That these can be measured on them, before hours of work and not after."""
    if not models:
        raise InputError("every model here has a task of its own to be measured on", "leave --data out")
    for model in models:
        model.examples(data, None, None, None)


def _require_examples(texts: Sequence[str], tasks: Sequence[Task | None]) -> None:
    """That each is one of some model's; any text is, for a model without a task."""
    known = [task for task in tasks if task is not None]
    for text in texts if len(known) == len(tasks) else ():
        if not any(is_example(task, text) for task in known):
            known[0].parse(text)  # says what is wrong with it


def _titles(names: Sequence[str]) -> list[str]:
    """The last part of each name, unless two have the same."""
    short = [name.rstrip("/").rpartition("/")[2] or name for name in names]
    return [one if short.count(one) == 1 else name for one, name in zip(short, names, strict=True)]


def _subject(
    model: OpenModel,
    title: str,
    on: Sequence[str],
    data: Data,
    n_examples: int,
    stored: bool,
    thorough: bool,
    quiet: bool,
) -> Subject:
    data, limit = None if model.task is not None else data, time_limit()
    left_out = list[str]()
    patterns = tuple(patterns_of(model, on, n_examples, quiet, limit and limit.share(PATTERNS_SHARE), left_out))
    found = _results(model, title, data, stored, thorough, quiet, left_out)
    if left_out:
        announcer(quiet)(f"{title}: not measured: {'; '.join(left_out)}")
    settings, log = _recipe(model)
    return Subject(
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
        not_measured=tuple(left_out),
        **found,
    )


def _results(
    model: OpenModel, title: str, data: Data, stored: bool, thorough: bool, quiet: bool, left_out: list[str]
) -> dict[str, Any]:
    """Return every result by its field, read or measured; add to `left_out` what there was no time for."""
    say, limit = announcer(quiet), time_limit()
    read = partial(_read, model, data=data, thorough=thorough, say=say if stored else None)
    known: dict[str, Any] = {each.field: read(wanted=each) for each in WANTED if each.make}
    missing = [
        each
        for each in WANTED
        if each.make and known[each.field] is None and _applies(model, each, data) and (each.is_quick or not stored)
    ]
    for i, wanted in enumerate(missing, start=1):
        say(f"{title}: measuring {wanted.words} ({i} of {len(missing)})")
        try:
            with limited(limit and limit.share(MOST_OF_IT)):
                known[wanted.field] = measure(wanted, model, data, quiet)
        except OutOfTime:
            left_out.append(wanted.words)
        except HeadcountError as error:  # what this model cannot be asked is left out
            say(f"no {wanted.words}: {error.what}")
    left_out += _shortened(known["ablation"], known["stretch"], known["pruning"]) if limit else []
    return known | {each.field: read(wanted=each) for each in WANTED if not each.make}


def _shortened(ablation: Ablation | None, reach: Stretch | None, pruning: Pruning | None) -> list[str]:
    """Name what these results leave out that a thorough report has."""
    used = set(REPLACEMENTS.names()) if ablation is None else set(ablation.replacements)
    others = [name for name in REPLACEMENTS.names() if name not in used]
    longest = 0 if reach is None else max((cell.length for cell in reach.cells), default=0)
    return [
        *([f"{' and '.join(others)} ablation of each head"] if others else []),
        *([f"accuracy on sequences of more than {BRIEF_LENGTH} numbers"] if longest == BRIEF_LENGTH else []),
        *(pruning.not_measured if pruning is not None else ()),
    ]


def _data_flags(data: Data) -> str:
    """As commands are given them; nothing for what is no file."""
    if isinstance(data, TextLines):
        return f"--data {argument(data.file)} --lines"
    return f"--data {argument(data)}" if isinstance(data, str | Path) else ""


# --- results ----------------------------------------------------------------------------------------------------------


def _applies(model: OpenModel, wanted: Wanted, data: Data) -> bool:
    """Whether it makes sense to ask; whether it can be answered is for the answer to say."""
    kind = None if model.task is None else model.task.output_type
    if kind is None:
        return wanted.field in ("roles", "positions") or (data is not None and wanted.field in ON_DATA)
    if wanted.field in ("certificate", "stretch"):
        return kind == ("sequence" if wanted.field == "certificate" else "class")
    return wanted.field != "roles"


def _read(
    model: OpenModel, wanted: Wanted, data: Data, *, thorough: bool = False, say: Callable[[str], None] | None = None
) -> Result | None:
    """Return the stored result of these weights that was asked as the report would ask, on the data if there are any.

    A thorough report takes only what was measured in full: what the verb of that result writes by default. With `say`,
    a result that was asked in another way, such as `--n 200`, is taken where there is no other: the newest, and what it
    is called is said.
    """
    if not model.has_output:
        return None
    stem = wanted.stem
    named = [f"{stem}-examples", result_name(stem, draw=REPORTED), stem]  # as _ablated, _stretched and the others ask
    if data is not None and wanted.field in ON_DATA:
        stem = result_name(wanted.stem, data=asked_data(data))
        named = [stem, result_name(wanted.stem, data=asked_data(data), budget=f"{SEARCH_SECONDS}s")]
    named += [] if thorough else brief_names(wanted, model, data)
    for folder, file in _stored_files(model, named, stem if say else None):
        for kind in wanted.types:
            try:
                result = folder.read_result(file.stem, kind)
            except ResultError:
                raise  # to measure it again would replace the file unasked, and hide that somebody changed it
            except HeadcountError:  # of another kind or version
                continue
            if getattr(result, "weights_sha256", model.weights_sha256) == model.weights_sha256:
                require_heads(result, [str(head) for head in model.sites.heads], file)
                if say and file.stem not in named:
                    say(f"{model.label}: {wanted.words} is read from {file.name}, not measured with the defaults")
                return result
    return None


def _stored_files(model: OpenModel, names: Sequence[str], stem: str | None) -> Iterator[tuple[RunFolder, Path]]:
    """Yield the files of these names, then all that begin with the stem, the newest first; each with its folder.

    What comes with the package is the result of a packaged run, too.
    """
    folders = [model.output, *([model.run.folder] if isinstance(model, RunModel) else [])]
    for folder in {each.path.resolve(): each for each in folders}.values():
        results = folder.result_file("x").parent
        for name in names:
            if (file := results / f"{name}.json").exists():
                yield folder, file
        others = results.glob(f"{escape(stem)}*.json") if stem else ()
        for file in sorted(others, key=lambda file: -file.stat().st_mtime):
            if not file.stem.startswith((f"{stem}-lines", f"{stem}-share")):
                yield folder, file


def _recipe(model: OpenModel) -> tuple[dict[str, Any], Sequence[dict[str, Any]]]:
    """What a run was trained with and how that went; nothing for models of others."""
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
    return {
        name: value for name, value in flat.items() if isinstance(value, str | int | float | bool | None)
    }, run.folder.read_log()
