"""Compare several runs over their seeds."""

from collections.abc import Sequence
from pathlib import Path

from headcount.api.saving import Saved, result_name, write_figures
from headcount.errors import InputError, RunError
from headcount.figures.comparison import draw_comparison
from headcount.files import require_writable
from headcount.registry import suggestion
from headcount.runs.folder import RunFolder
from headcount.studies.plan import planned_folders
from headcount.studies.summary import SeedSummary, summarise, varying_labels
from headcount.studies.tidy import Row, label_column, run_settings, tidy_rows, write_rows

MACHINE = ("device", "threads", "checkpoint_every")
"""Settings that do not change what is trained; runs that differ in them only are the same variant."""
MAIN = (
    *("exact match", "accuracy", "proved", "wrong answers", "removable heads", "redundant heads", "failed checks"),
    *("accuracy by length", "validation loss"),
)
"""The measures that are shown by default, in this order, if they are stored."""


def compare_runs(
    runs: Sequence[str | Path],
    *,
    by: str | Sequence[str] = (),
    measures: Sequence[str] = (),
    csv: str | Path | None = None,
    out: str | Path | None = None,
) -> Saved[SeedSummary]:
    """Compare what is stored in several run folders, over seeds, and measure nothing.

    A folder whose subfolders are runs stands for these runs. `by` names the settings that define a variant (default:
    all that differ), and `measures` the measures (default: those of the whole model). `csv` names a file for all rows,
    and `out` a folder for the result and one figure per measure.
    """
    folders = run_folders(runs)
    rows = labelled_rows(folders, [by] if isinstance(by, str) else list(by))
    if len(folders) < 2:
        raise InputError(f"nothing varies: {folders[0].path} is the only run", "name at least two runs")
    chosen = shown_measures(rows, measures)
    if csv is not None:
        write_rows(rows, Path(csv))
    summary = summarise(rows, by, chosen)
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


def run_folders(names: Sequence[str | Path]) -> list[RunFolder]:
    """Return the finished runs that paths mean: runs, studies with their runs, or folders whose subfolders are runs."""
    folders: dict[Path, RunFolder] = {}
    for name in names:
        path = Path(name)
        folder = RunFolder(path)
        places = planned_folders(path) or sorted(file.parent for file in path.glob("*/manifest.json"))
        below = [] if folder.holds_a_run else [each for each in places if RunFolder(each).is_finished]
        if not folder.holds_a_run and not below:
            raise RunError(f"no run in {path}, and none in its subfolders", "train one: headcount train addition")
        for each in below or [path]:
            folders[each.resolve()] = RunFolder(each)
    return list(folders.values())


def labelled_rows(folders: Sequence[RunFolder], by: Sequence[str]) -> list[Row]:
    """Return the rows of all runs, labelled with the settings that differ between them and with those in `by`."""
    settings = [run_settings(folder) for folder in folders]
    tasks = list(dict.fromkeys(str(each["task"]) for each in settings))
    if len(tasks) > 1:
        raise InputError(f"the runs have different tasks: {', '.join(tasks)}", "compare runs of one task")
    labels = [{name: value for name, value in each.items() if name not in ("task", "seed")} for each in settings]
    varying = [name for name in varying_labels(labels) if name not in MACHINE]
    for name in by:
        column = label_column(name)
        if column == "seed":
            raise InputError("runs cannot be compared by seed", "seeds are what is averaged over: name a setting")
        if not any(column in each for each in labels):
            known = dict.fromkeys(setting for each in labels for setting in each)
            raise InputError(f"--by {name}: these runs have no setting of this name", suggestion(name, known))
        if len(folders) > 1 and len({each.get(column) for each in labels}) == 1:
            value = labels[0].get(column)
            differ = f"the runs differ in: {', '.join(varying) or 'the seed only'}"
            raise InputError(f"nothing varies: {name} is {value} in all runs", differ)
    kept = dict.fromkeys([*map(label_column, by), *varying])
    return [
        row
        for folder, each in zip(folders, labels, strict=True)
        for row in tidy_rows(folder, **{name: each.get(name) for name in kept})
    ]


def shown_measures(rows: Sequence[Row], measures: Sequence[str]) -> list[str]:
    """Return the measures to show: those that are named, or the main ones that are stored."""
    stored = dict.fromkeys(row["measure"] for row in rows)
    return list(measures) or [name for name in MAIN if name in stored] or list(stored)
