"""One file that can be handed in: everything that is known of some models, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from glob import escape
from pathlib import Path
from typing import Any, cast

import numpy as np

from headcount import __version__
from headcount.analysis.ablation import Ablation
from headcount.analysis.attention import Attention, average_patterns, patterns_on_each
from headcount.analysis.exhaustive import Certificate
from headcount.analysis.length_generalisation import REPORTED, Stretch
from headcount.analysis.positions import EncodingsShown, PositionsShown
from headcount.analysis.pruning import Pruning
from headcount.analysis.roles import HeadRoles
from headcount.analysis.specialisation import Specialisation
from headcount.api.ablation import ablate_heads
from headcount.api.auditing import audit
from headcount.api.opening import AnyModel, open_model
from headcount.api.pruning import prune_heads
from headcount.api.saving import Saved, asked_data, result_name
from headcount.api.training import evaluate, verify
from headcount.api.viewing import head_roles, head_stats, show_positions, stretch, summarise_attention
from headcount.auditing.audit import Audit
from headcount.data.tables import TextLines, text_lines
from headcount.errors import HeadcountError, InputError, argument
from headcount.experiments.models import Data, OpenModel, RunModel
from headcount.files import require_writable, write_atomically
from headcount.hooks.attention import attention_of
from headcount.reporting.exercise import write_exercise
from headcount.reporting.latex import write_latex
from headcount.reporting.markdown import write_markdown
from headcount.reporting.page import html_page
from headcount.reporting.patterns import PatternBook, PatternPage, n_cells, page_of, sites_of, whole_page
from headcount.reporting.story import Material, Subject, tell
from headcount.results import Result
from headcount.runs.folder import RunFolder
from headcount.tasks.base import SequenceTask, Task
from headcount.training.device import n_threads
from headcount.training.evaluation import Classification, Evaluation
from headcount.views.progress import announcer, counting

N_EXAMPLES = 200
"""Examples whose patterns are kept."""
MOST_CELLS = 12_000_000
"""Weights of texts that are kept one by one, a byte each: 12 x 12 heads on one text of 256 tokens have 9.4 million."""
LARGEST_WALK = 1_000_000
"""Examples that are checked unasked; a larger domain is `headcount verify`'s."""
SEARCH_SECONDS = 300
"""What the search for heads that can go together may take in a model of others; `headcount prune` takes its time."""
ON_DATA = ("ablation", "pruning")
"""What a model without a task is measured for, if there are data."""
Make = Callable[[OpenModel, Data, bool], Any]


@dataclass(frozen=True)
class Wanted:
    """One kind of result: read if it is there, made if it is not."""

    field: str
    """Of a subject."""
    stem: str
    """How its file's name begins."""
    types: tuple[type[Result], ...]
    make: Make
    """From a model, the data that it is measured on if it has no task, and whether to be quiet."""
    is_quick: bool = False
    """Whether it takes seconds."""


WANTED = (
    Wanted(
        "evaluation",
        "evaluation-test",
        (Evaluation, Classification),
        lambda m, *_: evaluate(m, save=_place(m)),
        True,
    ),
    Wanted("certificate", "certificate", (Certificate,), lambda m, _, quiet: _walked(m, quiet)),
    Wanted("stats", "head-stats", (Specialisation,), lambda m, _, quiet: _result(head_stats, m, quiet)),
    Wanted("ablation", "ablation", (Ablation,), lambda *asked: _ablated(*asked)),
    Wanted("pruning", "pruning", (Pruning,), lambda *asked: _pruned(*asked)),
    Wanted("stretch", "stretch", (Stretch,), lambda m, _, quiet: _stretched(m, quiet)),
    Wanted("positions", "positions", (PositionsShown,), lambda m, *_: show_positions(m, save=_place(m)).result, True),
    Wanted("encodings", "encodings", (EncodingsShown,), lambda *_: None, True),  # written beside positions
    Wanted("audit", "audit", (Audit,), lambda m, _, quiet: _result(audit, m, quiet), True),
    Wanted("roles", "head-roles", (HeadRoles,), lambda m, _, quiet: _result(head_roles, m, quiet)),
)


def report(
    *models: AnyModel,
    out: str | Path = "report.html",
    title: str = "",
    on: Sequence[str] = (),
    data: Data = None,
    lines: bool = False,
    n_examples: int = N_EXAMPLES,
    stored: bool = False,
    markdown: bool = False,
    latex: bool = False,
    exercise: str | Path | None = None,
    quiet: bool = False,
    run_adapter: bool = False,
) -> tuple[Path, ...]:
    """Write one file about these models, offline and complete: figures, tables, and what they come to in words.

    What was found out before is read from each model's folder; what was not is found out now, and kept there, unless
    `stored` says to leave it out. `on` are examples or texts to look at attention on first. On `data` (see
    `ablate_heads`) heads of models without a task are ablated and removed. Beside the page there may be Markdown with
    pictures, LaTeX tables, and the files that the exercise asks for, into a folder. Returns all files, the page first.

        headcount.report("sample:addition", out="adder.html")
    """
    path = Path(out)
    if path.is_dir() or not path.suffix:
        raise InputError(f"{path} is no name for a page", f"say {path}/report.html")
    require_writable(path.parent)
    material = gather(
        *models,
        title=title,
        on=on,
        data=text_lines(data) if lines else data,
        n_examples=n_examples,
        stored=stored,
        quiet=quiet,
        run_adapter=run_adapter,
    )
    return write_forms(material, path, markdown=markdown, latex=latex, exercise=exercise)


def write_forms(
    material: Material,
    path: Path,
    *,
    markdown: bool = False,
    latex: bool = False,
    exercise: str | Path | None = None,
) -> tuple[Path, ...]:
    """A story in every form that is asked for, the page first."""
    story, files = tell(material), [path]
    write_atomically(path, html_page(story).encode(errors="replace"))
    if markdown:
        files += write_markdown(story, path.with_suffix(".md"))
    if latex:
        files += write_latex(story, path.parent / "tables")
    if exercise is not None:
        files += write_exercise(material, Path(exercise))
    return tuple(files)


def gather(
    *models: AnyModel,
    title: str = "",
    on: Sequence[str] = (),
    data: Data = None,
    n_examples: int = N_EXAMPLES,
    stored: bool = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> Material:
    """Everything that a report is written from."""
    if not models:
        raise InputError("no model to report on", "name some: headcount report runs/addition-0")
    opened = [open_model(model, run_adapter=run_adapter) for model in models]
    if data is not None:
        _require_fitting(data, [model for model in opened if model.task is None])
    _require_examples(on, [model.task for model in opened])
    titles = _titles([model.label or model.name for model in opened])
    subjects = tuple(
        _subject(model, each, on, data, n_examples, stored, quiet) for model, each in zip(opened, titles, strict=True)
    )
    names = titles[0] if len(titles) == 1 else f"{titles[0]} and {titles[1]}" if len(titles) == 2 else ""
    weights = ", ".join(f"{each.title} `{each.weights_sha256[:16]}`" for each in subjects)
    made = f"Made by headcount {__version__} from results of these weights: {weights}."
    return Material(title or f"The heads of {names or f'{len(titles)} models'}", subjects, made)


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
        if not any(_is_example(task, text) for task in known):
            known[0].parse(text)  # says what is wrong with it


def _titles(names: Sequence[str]) -> list[str]:
    """The last part of each name, unless two have the same."""
    short = [name.rstrip("/").rpartition("/")[2] or name for name in names]
    return [one if short.count(one) == 1 else name for one, name in zip(short, names, strict=True)]


def _subject(
    model: OpenModel, title: str, on: Sequence[str], data: Data, n_examples: int, stored: bool, quiet: bool
) -> Subject:
    say, found = announcer(quiet), dict[str, Any]()
    data = None if model.task is not None else data
    for wanted in WANTED:
        known = _read(model, wanted, data, say if stored else None)
        if known is None and _applies(model, wanted, data) and (wanted.is_quick or not stored):
            try:
                known = wanted.make(model, data, quiet)
            except HeadcountError as error:  # what this model cannot be asked is left out
                say(f"no {wanted.field}: {error.what}")
        found[wanted.field] = known
    settings, log = _recipe(model)
    patterns = tuple(_patterns(model, on, n_examples, quiet))
    return Subject(
        name=model.name,
        title=title,
        weights_sha256=model.weights_sha256,
        task=None if model.task is None else model.task.name,
        data_flags=_data_flags(data),
        texts=tuple(text for text in on if model.task is None or _is_example(model.task, text)),
        settings=settings,
        log=log,
        patterns=patterns,
        book=_text_book(model, on, patterns) if model.task is None else None,
        **found,
    )


def _data_flags(data: Data) -> str:
    """As commands are given them; nothing for what is no file."""
    if isinstance(data, TextLines):
        return f"--data {argument(data.file)} --lines"
    return f"--data {argument(data)}" if isinstance(data, str | Path) else ""


# --- results ----------------------------------------------------------------------------------------------------------


def _place(model: OpenModel) -> bool:
    return model.has_output


def _applies(model: OpenModel, wanted: Wanted, data: Data) -> bool:
    """Whether it makes sense to ask; whether it can be answered is for the answer to say."""
    kind = None if model.task is None else model.task.output_type
    if kind is None:
        return wanted.field in ("roles", "positions") or (data is not None and wanted.field in ON_DATA)
    if wanted.field in ("certificate", "stretch"):
        return kind == ("sequence" if wanted.field == "certificate" else "class")
    return wanted.field != "roles"


def _read(model: OpenModel, wanted: Wanted, data: Data, say: Callable[[str], None] | None = None) -> Result | None:
    """Return the stored result of these weights that was asked as the report would ask, on the data if there are any.

    With `say`, a result that was asked in another way, such as `--n 200`, is taken where there is no other: the newest,
    and what it is called is said.
    """
    if not model.has_output:
        return None
    folder: RunFolder = model.output
    stem = wanted.stem
    named = [f"{stem}-examples", f"{stem}-draw{REPORTED}", stem]  # as _ablated, _stretched and the others ask
    if data is not None and wanted.field in ON_DATA:
        stem = result_name(wanted.stem, data=asked_data(data))
        named = [stem, result_name(wanted.stem, data=asked_data(data), budget=f"{SEARCH_SECONDS}s")]
    results = folder.result_file("x").parent
    found = [file for file in results.glob(f"{escape(stem)}*.json") if not file.stem.startswith(f"{stem}-lines")]
    newest = sorted(found, key=lambda file: -file.stat().st_mtime) if say else []
    for file in (*(each for name in named if (each := results / f"{name}.json").exists()), *newest):
        for kind in wanted.types:
            try:
                result = folder.read_result(file.stem, kind)
            except HeadcountError:
                continue
            if getattr(result, "weights_sha256", model.weights_sha256) == model.weights_sha256:
                if say and file.stem not in named:
                    say(f"{wanted.field} of {model.label}: {file.name} is shown, which was not asked by the defaults")
                return result
    return None


def _result(verb: Callable[..., Saved[Any]], model: OpenModel, quiet: bool) -> Any:
    return verb(model, save=_place(model), quiet=quiet).result


def _ablated(model: OpenModel, data: Data, quiet: bool) -> Ablation:
    """With what broke, where a task can say so."""
    return ablate_heads(model, data, examples=model.task is not None, save=_place(model), quiet=quiet).result


def _pruned(model: OpenModel, data: Data, quiet: bool) -> Pruning | None:
    budget = None if data is None else SEARCH_SECONDS
    return prune_heads(model, data=data, budget=budget, save=_place(model), quiet=quiet).result


def _walked(model: OpenModel, quiet: bool) -> Certificate | None:
    if cast(SequenceTask, model.task).domain_size > LARGEST_WALK:
        return None
    return verify(model, save=_place(model), quiet=quiet)


def _stretched(model: OpenModel, quiet: bool) -> Stretch:
    return stretch(model, draw=REPORTED, save=_place(model), quiet=quiet).result[0]


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


# --- patterns ---------------------------------------------------------------------------------------------------------


def _text_book(model: OpenModel, on: Sequence[str], summaries: Sequence[Attention]) -> PatternBook | None:
    """Texts token by token, as many as there is room for; the others as results have pooled them."""
    pages, room = list[PatternPage](), MOST_CELLS
    for text, summary in zip(on, summaries, strict=True):
        if (size := n_cells(summary)) > room:
            pages.append(page_of(summary))
            continue
        room -= size
        weights = attention_of(model.module, model.sites, *model.text_input(text).inputs)
        found = {str(site): each[0].float().cpu().numpy() for site, each in weights.items()}
        pages.append(whole_page(summary, found))
    return PatternBook(sites_of(summaries[0]), tuple(pages)) if pages else None


def _patterns(model: OpenModel, on: Sequence[str], n_examples: int, quiet: bool) -> Iterator[Attention]:
    """The average, then examples of the task; of a model without one, the texts that were named."""
    if model.task is None:
        if on:
            yield from summarise_attention(model, on).result
        return
    try:
        yield average_patterns(model.task_attention(), "test")
    except HeadcountError:
        return
    task = model.task
    every = task.split("test")
    rows = np.sort(np.random.default_rng(0).permutation(len(every))[: max(0, n_examples)])
    asked = dict.fromkeys([*(text for text in on if _is_example(task, text)), *(task.show(every[row]) for row in rows)])
    if isinstance(model, RunModel):
        try:
            yield from patterns_on_each(model.run, list(asked))
        except HeadcountError as error:  # such as a sequence that is longer than its positions
            announcer(quiet)(f"no attention on single examples: {error.what}")
        return
    # One example at a time is too little work for two threads: they would mostly wait for each other.
    with n_threads(1), counting(f"reading attention of {model.label}", quiet=quiet) as progress:
        for i, text in enumerate(asked):
            try:
                found = _on_example(model, text)
            except HeadcountError:  # an adapter that reads no single example
                return
            yield found
            progress(i + 1, len(asked))


def _on_example(model: OpenModel, text: str) -> Attention:
    (found,) = summarise_attention(model, text).result
    return replace(found, example=text, title=found.note or found.title, note="")


def _is_example(task: Task, text: str) -> bool:
    """Of this task: in a report on several, a text may be for another one."""
    try:
        task.parse(text)
    except InputError:
        return False
    return True
