"""Compare several runs, or the runs of studies, over their seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headcount.api.saving import Saved, result_name, write_figures
from headcount.errors import InputError, RunError
from headcount.figures.comparison import draw_comparison
from headcount.files import read_json, require_writable
from headcount.runs.folder import RunFolder
from headcount.studies.file import shipped
from headcount.studies.plan import PLAN, POOL, results_of
from headcount.studies.rows import Row, label_column, run_settings, tidy_rows, write_rows
from headcount.studies.summary import SeedSummary, summarise, varying_labels
from headcount.suggestions import suggestion

MACHINE = ("device", "threads", "checkpoint_every")
"""Settings that do not change what is trained; runs that differ in them only are the same variant."""
MAIN = (
    *("exact match", "accuracy", "proved", "wrong answers", "removable heads", "redundant heads", "failed checks"),
    *("accuracy by length", "validation loss"),
)
"""The measures that a comparison shows by default, in this order; those that no run has are left out."""


@dataclass(frozen=True)
class StudyRuns:
    """The trained runs of a study, as its `plan.json` lists them."""

    name: str
    folder: Path
    parts: tuple[str, ...]
    """The names of the parts of the study (its `[[part]]` tables) that are compared."""
    runs: tuple[tuple[RunFolder, frozenset[str] | None, str, dict[str, str]], ...]
    """The folder, the study's result files in it (None: all), the name and the labels of each trained run."""
    n_planned: int


def compare_runs(
    runs: Sequence[str | Path],
    *,
    by: str | Sequence[str] = (),
    measures: Sequence[str] = (),
    part: str | None = None,
    csv: str | Path | None = None,
    out: str | Path | None = None,
) -> Saved[SeedSummary]:
    """Compare the stored results of several runs over their seeds; nothing is measured.

    * `runs` are run folders, folders whose subfolders are runs, or studies by name or folder.
    * `by` names the settings that define a variant; the default is all that differ, or the variants of the study.
    * `measures` names the measures; the default are those of the whole model.
    * `part` chooses one part of a study that has several parts.
    * `csv` names a file for all rows, and `out` a folder for the result and one figure per measure.
    """
    names = [by] if isinstance(by, str) else list(by)
    studies = [study for name in runs if (study := find_study(name, part)) is not None]
    if len(studies) == len(runs):
        rows, n_planned = _study_rows(studies, names), sum(study.n_planned for study in studies)
    elif part is not None:
        raise InputError(f"--part {part} chooses a part of a study, but {runs[0]} is a single run", "leave --part out")
    else:
        folders = run_folders(runs)
        rows, n_planned = labelled_rows(folders, names), 0
        if len(folders) < 2:
            raise InputError(
                f"only one run was given, {folders[0].path}, so there is nothing to compare", "name at least two runs"
            )
    chosen = shown_measures(rows, measures)
    if csv is not None:
        write_rows(rows, Path(csv))
    summary = replace(summarise(rows, by, chosen), n_planned=n_planned)
    others = () if csv is None else (Path(csv),)
    if out is None:
        return Saved(summary, others=others)
    require_writable(Path(out))
    folder = RunFolder(Path(out))
    name = result_name("comparison", by=list(summary.by) or None, measure=list(measures) or None)
    figures = write_figures(
        folder, lambda: {f"{name}-{i}": draw_comparison(summary, each) for i, each in enumerate(chosen)}
    )
    return Saved(summary, (folder.write_result(name, summary),), figures, others)


# --- studies ----------------------------------------------------------------------------------------------------------


def find_study(name: str | Path, part: str | None = None) -> StudyRuns | None:
    """Return the runs of a study, given by its folder or by the name of a folder in `runs`; None if it is no study."""
    for folder in (Path(name), Path("runs") / name):
        if (folder / PLAN).is_file() and not RunFolder(folder).holds_a_run:
            return _read_plan(folder, part)
    if str(name) in shipped() and not Path(name).exists():
        raise InputError(
            f"the study {name} has no trained models in the working directory", f"run it: headcount study {name}"
        )
    return None


def _read_plan(folder: Path, part: str | None) -> StudyRuns:
    """Read a study's plan and return its finished runs, which are in the folder `models` beside the study's folder."""
    plan = read_json(folder / PLAN)
    try:
        title, planned = str(plan["study"]), [dict(run) for run in plan["runs"]]
        parts = list(dict.fromkeys(str(run["part"]) for run in planned))
        if part is not None and part not in parts:
            advice = suggestion(part, parts) if any(parts) else "leave --part out: the study has only one part"
            raise InputError(f"the study {title} has no part {part!r}", advice)
        chosen = [run for run in planned if part is None or run["part"] == part]
        trained = []
        for run in chosen:
            place = RunFolder(folder.parent / POOL / Path(run["folder"]).name)
            if place.is_finished:
                labels = {**({"part": str(run["part"])} if len(parts) > 1 else {}), **run["labels"]}
                files = results_of(place.path, map(str, run["receipts"]))
                trained.append((place, files, str(run["run"]), {key: str(value) for key, value in labels.items()}))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"{folder / PLAN} is damaged: {error!r}", "start the study again: it then writes a new plan"
        ) from error
    return StudyRuns(title, folder, tuple(parts if part is None else [part]), tuple(trained), len(chosen))


def _study_rows(studies: Sequence[StudyRuns], by: Sequence[str]) -> list[Row]:
    """Return a row for each stored measure of the studies' trained runs, with their labels and the settings in `by`."""
    for study in studies:
        if len(study.runs) < 2:
            what = f"the study {study.name} has {len(study.runs)} of {study.n_planned:,} runs trained"
            raise InputError(f"{what}; a comparison needs at least 2", f"continue it: headcount study {study.name}")
    every = [(study, *run) for study in studies for run in study.runs]
    tasks = list(dict.fromkeys(str(run_settings(folder)["task"]) for _, folder, *_ in every))
    if len(tasks) > 1:
        parts = [part for study in studies for part in study.parts if part]
        advice = f"choose a part with --part: {', '.join(parts)}" if parts else "compare runs of one task"
        raise InputError(f"the runs have different tasks: {', '.join(tasks)}", advice)
    known = {label_column(name) for *_, labels in every for name in labels} | ({"study"} if len(studies) > 1 else set())
    wanted = [label_column(name) for name in by if label_column(name) not in known]
    if "seed" in wanted:
        raise InputError(
            "runs cannot be compared by seed, because results are averaged over seeds",
            "name another setting, such as encoding",
        )
    rows = []
    for study, folder, files, name, labels in every:
        columns: dict[str, Any] = {**({"study": study.name} if len(studies) > 1 else {}), **labels}
        if wanted:
            settings = run_settings(folder)
            for setting in wanted:
                if setting not in settings:
                    advice = suggestion(setting, sorted(known | settings.keys() - {"task", "seed"}))
                    raise InputError(f"--by {setting}: these runs have no label or setting of this name", advice)
                columns[setting] = settings[setting]
        rows += tidy_rows(folder, files, run=name, **columns)
    return rows


# --- runs -------------------------------------------------------------------------------------------------------------


def run_folders(names: Sequence[str | Path]) -> list[RunFolder]:
    """Return the finished runs at these paths; a path is a run, a study, or a folder whose subfolders are runs."""
    folders: dict[Path, RunFolder] = {}
    for name in names:
        path = Path(name)
        folder = RunFolder(path)
        study = None if folder.holds_a_run else find_study(name)
        places = (
            [run.path for run, *_ in study.runs] if study else [each.parent for each in path.glob("*/manifest.json")]
        )
        below = [] if folder.holds_a_run else [each for each in sorted(places) if RunFolder(each).is_finished]
        if not folder.holds_a_run and not below:
            what = f"no run in {path}, none in its subfolders, and no study of this name"
            raise RunError(what, "train one: headcount train addition", "or list the studies: headcount study")
        for each in below or [path]:
            folders[each.resolve()] = RunFolder(each)
    return list(folders.values())


def labelled_rows(folders: Sequence[RunFolder], by: Sequence[str]) -> list[Row]:
    """Return a row per stored measure of all runs, with columns for the settings that differ and those in `by`."""
    settings = [run_settings(folder) for folder in folders]
    tasks = list(dict.fromkeys(str(each["task"]) for each in settings))
    if len(tasks) > 1:
        raise InputError(f"the runs have different tasks: {', '.join(tasks)}", "compare runs of one task")
    labels = [{name: value for name, value in each.items() if name not in ("task", "seed")} for each in settings]
    varying = [name for name in varying_labels(labels) if name not in MACHINE]
    for name in by:
        column = label_column(name)
        if column == "seed":
            raise InputError(
                "runs cannot be compared by seed, because results are averaged over seeds",
                "name another setting, such as encoding",
            )
        if not any(column in each for each in labels):
            known = dict.fromkeys(setting for each in labels for setting in each)
            raise InputError(f"--by {name}: these runs have no setting of this name", suggestion(name, known))
        if len(folders) > 1 and len({each.get(column) for each in labels}) == 1:
            value = labels[0].get(column)
            differ = f"the runs differ in: {', '.join(varying) or 'the seed only'}"
            raise InputError(f"runs cannot be compared by {name}, which is {value} in all of them", differ)
    kept = dict.fromkeys([*map(label_column, by), *varying])
    return [
        row
        for folder, each in zip(folders, labels, strict=True)
        for row in tidy_rows(folder, **{name: each.get(name) for name in kept})
    ]


def shown_measures(rows: Sequence[Row], measures: Sequence[str]) -> list[str]:
    """Return the names of the measures to show: the given ones or, without any, the main ones among the stored ones."""
    stored = dict.fromkeys(row["measure"] for row in rows)
    return list(measures) or [name for name in MAIN if name in stored] or list(stored)
