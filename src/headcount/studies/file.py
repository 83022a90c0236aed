"""Read a study: a TOML file that names a task, what varies between runs, and what is measured on each run.

    title = "Which encoding extrapolates?"
    task = "sortedness"
    seeds = 3                                  # seeds 0, 1 and 2; or a list: [0, 5, 7]

    [settings]                                 # the same for every run: flags of `headcount train sortedness`
    steps = 1000

    [grid]                                     # every combination of these values
    encoding = ["none", "rotary"]

    [variants.window]                          # or named sets of settings
    preset = "far"

    [measure]                                  # verbs that measure each run, with their flags
    stretch = { lengths = [16, 64], n = 100 }

`snapshots = [0, 100]` keeps the weights at these training steps and measures them as well. Several `[[part]]` tables,
each with the keys above, make one study of several tasks. `published = true` shows published results beside those of
the runs, if headcount has some for such runs. A study is checked whole before anything starts: one error lists every
fault.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headcount.errors import ConfigError, Fault, InputError
from headcount.runs.config import RunConfig
from headcount.runs.trackers import tracker_names
from headcount.suggestions import suggestion
from headcount.tasks import TASKS

if TYPE_CHECKING:
    from headcount.studies.running import JobPlan

HOME = Path(__file__).parent / "files"
"""The folder of the studies that come with headcount."""
PLUGINS = "headcount.studies"
"""Group of entry points by which other packages bring studies: each names the path of a file, or a `VerbStudy`."""
MEASURES = (
    *("evaluate", "verify", "stretch", "ablate", "prune", "heads"),
    *("routes", "audit", "claims", "positions", "weights", "report"),
)
"""Verbs (commands of headcount) that can measure a run of a study."""
PART_KEYS = ("name", "task", "seeds", "settings", "grid", "variants", "measure", "snapshots")
STUDY_KEYS = ("title", "question", "published", "part", *PART_KEYS)
FORM = "docs/studies.md shows a whole file"
MOST_RUNS = 100_000
"""Largest number of runs of one study."""

Flags = Mapping[str, Any]
"""The flags of a verb by name, with `_` for `-`."""


@dataclass(frozen=True)
class Variant:
    """One set of settings, which is trained with every seed."""

    labels: Mapping[str, str]
    """The settings that distinguish this variant from the others, as text, such as `encoding: none`."""
    settings: Mapping[str, Any]
    """Settings of the training, including `preset`."""


@dataclass(frozen=True)
class Part:
    """A part of a study: its runs on one task."""

    name: str
    """Name of the part; empty if the study has only one part."""
    task: str
    seeds: tuple[int, ...]
    variants: tuple[Variant, ...]
    measures: tuple[tuple[str, Flags], ...]
    """The verbs (commands of headcount) that measure each run, with their flags, in the order in which they run."""
    snapshots: tuple[int, ...] = ()
    """Training steps at which the weights are kept and measured."""
    trackers: tuple[str, ...] = ()
    """Experiment trackers, such as mlflow, that record the trainings; they do not change what is trained."""


@dataclass(frozen=True)
class Study:
    """A study (many runs that are trained, measured and compared), as its file describes it."""

    name: str
    title: str
    question: str
    parts: tuple[Part, ...]
    source: str
    """The path of the study's file or, for a study that comes with headcount, its name."""
    published: bool = False
    """Whether published results are shown beside the results of the runs."""


@dataclass(frozen=True)
class VerbStudy:
    """A study that has a plan and a verb (a command of headcount) of its own, such as the lab."""

    title: str
    verb: str
    """The verb that runs the plan; it has the flags --out, --processes, --quiet and --json."""
    plan: Callable[[Path], JobPlan]
    """A function that takes the folder for all results, and returns the plan of all jobs."""
    task: str
    """The name of a task; the weight (duration) of a job is given in training steps of this task's default model."""


@cache
def _shipped() -> dict[str, Path | VerbStudy]:
    """Return the studies that come with headcount, then those of other packages, by name: a file or a `VerbStudy`."""
    studies: dict[str, Path | VerbStudy] = {path.stem: path for path in sorted(HOME.glob("*.toml"))}
    for entry_point in sorted(entry_points(group=PLUGINS), key=lambda each: each.name):
        if entry_point.name in studies:
            what = f"the name {entry_point.name!r} of {entry_point.value}, a study of another package, is taken already"
            raise InputError(what, f"rename it in that package's entry points, group {PLUGINS!r}")
        studies[entry_point.name] = entry_point.load()
    return studies


def shipped() -> dict[str, str]:
    """Return the studies that come with headcount, or with other packages: their names and titles."""
    return {
        name: study.title if isinstance(study, VerbStudy) else tomllib.loads(study.read_text(encoding="utf-8"))["title"]
        for name, study in sorted(_shipped().items())
    }


def verb_study(source: str | Path) -> VerbStudy | None:
    """Return the study of this name that comes with headcount if it is run by its own verb; None if it is a file."""
    study = _shipped().get(str(source))
    return study if isinstance(study, VerbStudy) else None


def study_path(source: str | Path) -> Path:
    """Return the file of a study, given by its path or by the name of a study that comes with headcount."""
    study = _shipped().get(str(source), Path(source))
    if isinstance(study, VerbStudy):
        raise InputError(
            f"the study {source} is a command of its own, without a study file", f"run it with: headcount {study.verb}"
        )
    path = study
    if not path.is_file():
        known = tuple(_shipped())
        raise InputError(f"there is no study {str(source)!r}", suggestion(str(source), known), FORM)
    return path


def read_study(source: str | Path, check_flags: Callable[[str, Flags], str | None] = lambda *_: None) -> Study:
    """Read and check a study; one error lists all faults.

    `check_flags` returns what is wrong with the flags of a verb, or None.
    """
    path = study_path(source)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}", FORM) from error
    faults = [*_unknown("", data, STUDY_KEYS), *_texts(data, ("title", "question"))]
    tables = data.get("part", [{key: value for key, value in data.items() if key in PART_KEYS}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables) or not tables:
        faults.append(Fault("part", tables, "write each part of the study as a table that begins with [[part]]"))
        tables = []
    elif "part" in data:
        beside = [key for key in data if key in PART_KEYS]
        faults += [
            Fault(key, data[key], "must be inside a [[part]] table, because this study has such tables")
            for key in beside
        ]
    parts, names = list[Part](), list[str]()
    for i, table in enumerate(tables):
        where = f"part {table.get('name', i + 1)}." if "part" in data else ""
        part = _part(where, table, faults, check_flags, needs_name=len(tables) > 1)
        if part is not None:
            parts.append(part)
            names.append(part.name)
    faults += [Fault("name", name, "two parts of the study have this name") for name in names if names.count(name) > 1][
        :1
    ]
    if not isinstance(data.get("published", False), bool):
        faults.append(Fault("published", data["published"], "must be true or false"))
    n_runs = sum(len(part.variants) * len(part.seeds) for part in parts)
    if n_runs > MOST_RUNS:
        faults.append(Fault("grid", n_runs, f"the study has too many training runs: at most {MOST_RUNS:,} are allowed"))
    if faults:
        raise ConfigError(faults, f"in {path}", FORM)
    title, question = str(data.get("title", path.stem)), str(data.get("question", ""))
    return Study(path.stem, title, question, tuple(parts), str(source), bool(data.get("published", False)))


def _part(
    where: str,
    table: Mapping[str, Any],
    faults: list[Fault],
    check_flags: Callable[[str, Flags], str | None],
    *,
    needs_name: bool,
) -> Part | None:
    """Return one part of a study, or None if it has faults, which are added to `faults`."""
    before = len(faults)
    faults += _unknown(where, table, PART_KEYS) if where else []
    faults += _texts(table, ("name",), where)
    if needs_name and "name" not in table:
        faults.append(Fault(f"{where}name", None, "is missing: in a study of several parts, each part needs a name"))
    task = table.get("task")
    if task not in TASKS.names():
        faults.append(Fault(f"{where}task", task, suggestion(str(task), TASKS.names())))
        return None
    seeds = _integers(f"{where}seeds", table.get("seeds", 1), faults, counts=True)
    snapshots = _integers(f"{where}snapshots", table.get("snapshots", []), faults)
    common = dict(_table(f"{where}settings", table.get("settings", {}), faults))
    trackers = _trackers(f"{where}settings.tracker", common.pop("tracker", []), faults)
    variants = [
        Variant(labels, {**common, **settings, **({"snapshots": snapshots} if snapshots else {})})
        for labels, settings in _variants(where, table, faults)
    ]
    for variant in variants:
        faults += _setting_faults(where, task, variant, faults)
    measures = tuple(_measures(where, table.get("measure", {}), faults, check_flags))
    if len(faults) > before:
        return None
    return Part(str(table.get("name", "")), task, seeds, tuple(variants), measures, snapshots, trackers)


def _trackers(where: str, given: Any, faults: list[Fault]) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        faults.append(Fault(where, given, 'give names, such as "mlflow" or ["mlflow", "wandb"]'))
        return ()
    try:
        return tuple(tracker_names(names))
    except InputError as error:
        faults.append(Fault(where, given, ": ".join([error.what, *error.advice])))
        return ()


def _variants(
    where: str, table: Mapping[str, Any], faults: list[Fault]
) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Yield the labels and settings of each variant: every named variant with every combination of the grid."""
    grid = _table(f"{where}grid", table.get("grid", {}), faults)
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            faults.append(Fault(f"{where}grid.{name}", values, 'give a list of values, such as ["none", "rotary"]'))
        elif len({str(value) for value in values}) < len(values):
            faults.append(Fault(f"{where}grid.{name}", values, "a value is listed twice"))
    named = _table(f"{where}variants", table.get("variants", {}), faults)
    for name, settings in named.items():
        _table(f"{where}variants.{name}", settings, faults)
    grid = {name: values for name, values in grid.items() if isinstance(values, list) and values}
    for name, settings in (named or {"": {}}).items():
        for values in product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            labels = ({"variant": name} if named else {}) | {key: _text(value) for key, value in chosen.items()}
            yield labels, {**(settings if isinstance(settings, dict) else {}), **chosen}


def _setting_faults(where: str, task: str, variant: Variant, known: Sequence[Fault]) -> list[Fault]:
    """Return the faults of a variant's settings that are not in `known`, which are the faults of other variants."""
    try:
        build_config(task, variant, 0)
    except ConfigError as error:
        faults = error.faults
    except InputError as error:
        faults = (
            Fault("settings.preset", variant.settings.get("preset"), " ".join(map(str, (error.what, *error.advice)))),
        )
    else:
        return []
    named = [Fault(f"{where}{fault.where}", fault.given, fault.why) for fault in faults]
    return [fault for fault in named if str(fault) not in map(str, known)]


def build_config(task: str, variant: Variant, seed: int) -> RunConfig:
    """Return all settings of the run that trains a variant with one seed."""
    settings = dict(variant.settings)
    return RunConfig.build(task, seed=seed, preset=settings.pop("preset", ()), **settings)


def _measures(
    where: str, table: Any, faults: list[Fault], check_flags: Callable[[str, Flags], str | None]
) -> Iterator[tuple[str, Flags]]:
    for verb, flags in _table(f"{where}measure", table, faults).items():
        if verb not in MEASURES:
            faults.append(
                Fault(
                    f"{where}measure.{verb}",
                    flags,
                    f"no such measure; {suggestion(verb, MEASURES)}",
                )
            )
            continue
        several = flags if isinstance(flags, list) else [flags]
        for one in several:
            settings = {} if one is True else one
            if not isinstance(settings, dict):
                faults.append(
                    Fault(
                        f"{where}measure.{verb}",
                        one,
                        "give the flags of this command, such as { n = 100 }, or true for the defaults",
                    )
                )
            elif (why := check_flags(verb, settings)) is not None:
                faults.append(Fault(f"{where}measure.{verb}", settings, why))
            else:
                yield verb, settings


def _unknown(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> list[Fault]:
    return [
        Fault(f"{where}{key}", table[key], f"no such key; {suggestion(key, known)}")
        for key in table
        if key not in known
    ]


def _texts(table: Mapping[str, Any], keys: tuple[str, ...], where: str = "") -> list[Fault]:
    return [
        Fault(f"{where}{key}", table[key], "must be a text in quotes")
        for key in keys
        if not isinstance(table.get(key, ""), str)
    ]


def _table(where: str, table: Any, faults: list[Fault]) -> dict[str, Any]:
    if not isinstance(table, dict):
        faults.append(Fault(where, table, "must be a table, such as { key = value }"))
        return {}
    return table


def _integers(where: str, given: Any, faults: list[Fault], *, counts: bool = False) -> tuple[int, ...]:
    """Return a list of different integers of at least 0 from a study file; with `counts`, a number n means 0 to n - 1.

    If the list is not valid, add a fault to `faults` and return an empty list.
    """
    if counts and isinstance(given, int) and not isinstance(given, bool) and 0 < given <= MOST_RUNS:
        return tuple(range(given))
    numbers = given if isinstance(given, list) else [None]
    if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in numbers) or (
        counts and not numbers
    ):
        faults.append(
            Fault(
                where, given, f"give {'a number of at least 1 or ' if counts else ''}a list of integers of at least 0"
            )
        )
        return ()
    if len(set(numbers)) < len(numbers):
        faults.append(Fault(where, given, "a number is listed twice"))
    return tuple(numbers)


def _text(value: Any) -> str:
    """Return the value of a setting as a label: lists are joined with `+`, and true becomes `true`."""
    return "+".join(map(str, value)) if isinstance(value, list) else str(value).lower() if value is True else str(value)
