"""How does each number that the five published reports give compare with runs of ours that have the same fault?

`published.toml` has the published numbers. `comparison.toml` says which number of which model of ours is compared with
each of them.

The rule: a published number agrees if it lies in the 95 % prediction interval for one more training of ours, on a test
set of the report's size. That is mean ± sqrt(t² s² (1 + 1/k) + z² p (1 - p) (1/n + 1/m)), where k is the number of our
runs, s their standard deviation, t the quantile of Student's t for k - 1 degrees of freedom, p the mean as a share, and
n and m are the sizes of our test set and of the report's. The second term is 0 for numbers without a test set.
"""

from __future__ import annotations

import math
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict
from scipy.special import stdtrit

from headcount.config import type_adapter
from headcount.describing.extrapolation import EXERCISE
from headcount.exercise.published import WRONG_SEQUENCES, WRONG_SUMS, published_figures
from headcount.heads import HeadId
from headcount.results import Contradiction, Result, outside
from headcount.runs.folder import RunFolder
from headcount.stats import Z95
from headcount.studies.rows import Row, label_column, run_settings, tidy_rows
from headcount.studies.summary import FEWEST, Method, mean_interval

Verdict = Literal["agrees", "differs", "undecided", "not comparable", "not measured", "not published"]
Kind = Literal["value", "length", "drop", "share of heads", "index", "necessary", "answer", "right"]
SOUND = {"addition": "sound-adder", "sortedness": "sound-sorter"}
"""Maps each task to the name of our model without a fault, whose numbers are shown beside every published number."""
ORDINALS = {2: "nd", 3: "rd"}
NEEDED = 0.01
"""Smallest drop in accuracy (1 point) that a head must cause if carries depend on this head alone."""


@dataclass(frozen=True)
class ComparedFigure:
    """One published number of a report, and the same number of our runs."""

    report: str
    key: str
    """Key of the number in `published.toml`, such as `addition.baseline`; empty for a number that no report has."""
    task: str
    what: str
    unit: str
    published: str
    """The published number as text; empty if no report has it."""
    published_low: float | None
    published_high: float | None
    """The ends of the range that a report gives; both are equal if it gives a single number."""
    model: str
    """Name of our model that has the same fault as the model of the report."""
    values: tuple[float, ...]
    """Our number in each run of this model."""
    seeds: tuple[int | None, ...]
    names: tuple[str, ...]
    """For each of our numbers, what it belongs to, such as a head; empty if there is nothing to name."""
    mean: float | None
    low: float | None
    high: float | None
    """`mean` is over our runs, with the ends `low` and `high` of its 95 % CI; None without enough runs."""
    method: Method | None
    expected_low: float | None
    expected_high: float | None
    """The ends of the prediction interval that decides whether the published number agrees with our runs."""
    sound: tuple[float, ...]
    """The same number in each run of our model without a fault."""
    verdict: Verdict
    why: str
    """Why the published number cannot be compared, or what its verdict rests on; empty for an ordinary comparison."""
    cause: str

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield an error for each field of this comparison that contradicts another field."""
        if not len(self.values) == len(self.seeds) == len(self.names):
            yield "values", "as many values as seeds and names"
            return
        if self.mean is not None and self.low is not None and self.high is not None:
            yield from outside(self, "mean")
        if (self.verdict == "agrees") and self.expected_low is not None and self.published_low is not None:
            assert self.expected_high is not None
            assert self.published_high is not None
            if self.published_high < self.expected_low or self.published_low > self.expected_high:
                yield "verdict", "differs: the figure is outside of the prediction interval"


@dataclass(frozen=True)
class PublishedComparison(Result):
    """All numbers of the five published reports, each compared with the same number of our runs."""

    ROWS: ClassVar[tuple[str, ...]] = ("figures",)
    n_runs: int
    """Number of our runs that have the fault of a published model, or no fault."""
    figures: tuple[ComparedFigure, ...]


# --- the figures and the rules ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """One published number: its keys in `published.toml` and its value."""

    report: str
    task: str
    path: tuple[str, ...]
    """Keys in the table of the task: a name, then the key in a table or the index in a list."""
    value: Any
    siblings: Mapping[str, Any]
    """All published numbers of the same table, this one included, by key; for lists, those with the same index."""

    @property
    def key(self) -> str:
        """The keys of the published number without the report, joined with dots: `addition.drops.E1H1`."""
        return ".".join((self.task, *self.path))


@dataclass(frozen=True)
class Rule:
    """How a published number, or several of one kind, are compared with our runs (see `comparison.toml`)."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    what: str
    model: str
    at: str = ""
    report: str = ""
    task: str = ""
    kind: Kind = "value"
    measure: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    below: float = 0.0
    """For a share of heads: the limit below which the drop of a head is counted."""
    sites: tuple[str, ...] = ()
    rank: int = 0
    """Rank of our number that is compared: 1 the largest, -1 the smallest, 0 that of the published number."""
    n: int | None = None
    rounding: float = 0.0
    why: str = ""
    cause: str = ""


@dataclass(frozen=True)
class KnownModel:
    """The task and the settings by which our runs of one model are recognised, such as an adder without start token."""

    task: str
    settings: Mapping[str, Any]

    def fits(self, settings: Mapping[str, Any]) -> bool:
        """Return whether a run with these settings is a run of this model."""
        wanted = {label_column(name): value for name, value in self.settings.items()}
        return settings["task"] == self.task and all(settings.get(name) == value for name, value in wanted.items())


@dataclass(frozen=True)
class Rules:
    """The content of `comparison.toml`: models of ours, rules for published numbers, and further numbers."""

    models: Mapping[str, KnownModel]
    figure: tuple[Rule, ...]
    extra: tuple[Rule, ...]

    def rule_for(self, figure: Figure) -> Rule | None:
        """Return the first rule in `comparison.toml` that applies to a published number, or None if there is none."""
        return next((rule for rule in self.figure if fnmatch(f"{figure.report}.{figure.key}", rule.at)), None)


@cache
def rules() -> Rules:
    """Return the content of `comparison.toml`, which says how published numbers are compared with our runs."""
    text = files("headcount.exercise").joinpath("comparison.toml").read_text(encoding="utf-8")
    read: Rules = type_adapter(Rules).validate_python(tomllib.loads(text))
    return read


def figures() -> Iterator[Figure]:
    """Yield every published number of `published.toml`; each entry of a list or table is a number of its own."""
    for report, parts in published_figures().items():
        for task, table in parts.items():
            for name, value in table.items():
                yield from _leaves(report, task, (name,), value, {})


def _leaves(report: str, task: str, path: tuple[str, ...], value: Any, siblings: Mapping[str, Any]) -> Iterator[Figure]:
    if not isinstance(value, dict | list) or _is_example(value):
        yield Figure(report, task, path, value, siblings)
        return
    parts = value if isinstance(value, dict) else {str(i): each for i, each in enumerate(value)}
    for key, each in parts.items():
        if isinstance(each, list):
            columns = {str(i): {other: row[i] for other, row in parts.items()} for i in range(len(each))}
            for i, cell in enumerate(each):
                yield Figure(report, task, (*path, key, str(i)), cell, columns[str(i)])
        else:
            yield from _leaves(report, task, (*path, key), each, parts)


def _is_example(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"question", "answer"}


# --- our numbers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """One measured number of one of our runs."""

    value: float
    unit: str
    n: int | None
    name: str = ""


@dataclass(frozen=True)
class KnownRun:
    """One of our runs that has the fault of a published model, or no fault, with its stored numbers."""

    seed: int | None
    rows: tuple[Row, ...]

    def stored(self, rule: Rule, **more: Any) -> list[Row]:
        """Return the rows of stored results that a rule selects; of several files, the one with most examples."""
        wanted = {"measure": rule.measure, **rule.where, **more}
        rows = [
            row
            for row in self.rows
            if row["step"] is None and row["value"] is not None and all(row[key] == wanted[key] for key in wanted)
        ]
        most = max((row["n"] or 0 for row in rows), default=0)
        file = next((row["file"] for row in rows if (row["n"] or 0) == most), None)
        return [row for row in rows if row["file"] == file]


def known_runs(folders: Sequence[RunFolder]) -> dict[str, list[KnownRun]]:
    """Return our runs that have the fault of a published model, or no fault, grouped by the name of the model."""
    runs, seen = defaultdict[str, list[KnownRun]](list), set[str]()
    for folder in folders:
        settings, place = run_settings(folder), str(folder.path.resolve())
        names = [name for name, model in rules().models.items() if model.fits(settings)]
        if names and place not in seen:
            seen.add(place)
            run = KnownRun(settings["seed"], tuple(tidy_rows(folder)))
            for name in names:
                runs[name].append(run)
    return {name: sorted(each, key=lambda run: -1 if run.seed is None else run.seed) for name, each in runs.items()}


def _plain(rule: Rule, figure: Figure | None, run: KnownRun) -> Number | None:
    rows = run.stored(rule)
    return _of_row(rows[0]) if rows else None


def _of_row(row: Row, name: str = "") -> Number:
    return Number(float(row["value"]), row["unit"] or "", row["n"], name or (row["verdict"] or ""))


def _at_length(rule: Rule, figure: Figure | None, run: KnownRun) -> Number | None:
    assert figure is not None, "lengths are compared for published figures only"
    rows = run.stored(rule, length=int(figure.path[0]))
    return _of_row(rows[0]) if rows else None


def _drop(rule: Rule, figure: Figure | None, run: KnownRun) -> Number | None:
    """Return our drop of the same rank as a published drop, as names of heads cannot be compared between trainings."""
    assert figure is not None, "ranks are those of published figures"
    rows = sorted(run.stored(rule), key=lambda row: -row["value"])
    rank = drop_rank(figure)
    if len(rows) < abs(rank):
        return None
    row = rows[rank - 1 if rank > 0 else rank]
    return _of_row(row, row["head"])


def drop_rank(figure: Figure) -> int:
    """Return the rank of a published drop among its report's drops: 1 for the largest, -1 for the smallest.

    Drops of 0 or below get a negative rank.
    """
    drops = figure.siblings
    order = sorted(drops, key=lambda head: -drops[head])
    place = order.index(figure.path[-1])
    return place + 1 if figure.value > 0 else place - len(order)


def _share_of_heads(rule: Rule, figure: Figure | None, run: KnownRun) -> Number | None:
    rows = run.stored(rule)
    harmless = [row for row in rows if row["value"] < rule.below]
    return Number(len(harmless) / len(rows), "share", None, f"{len(harmless)} of {len(rows)}") if rows else None


def _by_index(rule: Rule, figure: Figure | None, run: KnownRun) -> Number | None:
    """Return the mean of a measure over all heads with one index; the index has the rank of the published number."""
    assert figure is not None, "ranks are those of published figures"
    by_index = defaultdict[int, list[Row]](list)
    for row in run.stored(rule):
        by_index[HeadId.parse(row["head"]).index].append(row)
    means = sorted(((fmean(row["value"] for row in rows), index) for index, rows in by_index.items()), reverse=True)
    rank = rule.rank or index_rank(figure)
    if len(means) < abs(rank):
        return None
    mean, index = means[rank - 1 if rank > 0 else rank]
    unit = next(iter(by_index.values()))[0]["unit"]
    return Number(mean, unit, None, f"index {index}")


def index_rank(figure: Figure) -> int:
    """Return the rank of a published number on one head index among all head indices: 1 for the largest."""
    return sorted(figure.siblings, key=lambda index: -figure.siblings[index]).index(figure.path[-2]) + 1


def _largest_at(rule: Rule, figure: Figure | None, run: KnownRun) -> Number | None:
    rows = [row for row in run.stored(rule) if row["site"] in rule.sites]
    row = max(rows, key=lambda each: each["value"], default=None)
    return None if row is None else _of_row(row, row["head"])


def _answer(rule: Rule, figure: Figure | None, run: KnownRun) -> Number | None:
    assert figure is not None, "answers are compared for published examples only"
    rows = run.stored(rule, group=figure.value["question"])
    same = [float(row["verdict"] == figure.value["answer"]) for row in rows[:1]]
    return Number(same[0], "share", None, rows[0]["verdict"]) if same else None


def _right(rule: Rule, figure: Figure | None, run: KnownRun) -> Number | None:
    rows = run.stored(rule)
    return Number(1 - rows[0]["value"] / rows[0]["n"], "share", rows[0]["n"]) if rows else None


NUMBERS: dict[Kind, Callable[[Rule, Figure | None, KnownRun], Number | None]] = {
    "value": _plain,
    "length": _at_length,
    "drop": _drop,
    "share of heads": _share_of_heads,
    "index": _by_index,
    "necessary": _largest_at,
    "answer": _answer,
    "right": _right,
}
"""Maps the kind of a rule (how our number is chosen) to the function that reads it from the results of one run."""


# --- the comparison ---------------------------------------------------------------------------------------------------


def compare(folders: Sequence[RunFolder]) -> PublishedComparison | None:
    """Compare every published number with these runs; return None if no run resembles a published model."""
    runs = known_runs(folders)
    if not runs:
        return None
    compared = []
    for figure in figures():
        rule = rules().rule_for(figure)
        assert rule is not None, f"comparison.toml has no rule for {figure.report}.{figure.key}"
        compared.append(_compared(rule, figure, runs))
    compared += [_compared(rule, None, runs) for rule in rules().extra]
    n_runs = len({id(run) for same in runs.values() for run in same})
    ordered = sorted(compared, key=lambda each: (each.task, each.report, not each.key))
    return PublishedComparison(n_runs, tuple(ordered))


def _compared(rule: Rule, figure: Figure | None, runs: Mapping[str, Sequence[KnownRun]]) -> ComparedFigure:
    task = figure.task if figure else rule.task
    measured = rule.measure != ""
    ours = runs.get(rule.model, ()) if measured else ()
    pairs = [(run.seed, number) for run in ours if (number := NUMBERS[rule.kind](rule, figure, run)) is not None]
    beside = runs.get(SOUND[task], ()) if measured else ()
    sound = [number.value for run in beside if (number := NUMBERS[rule.kind](rule, figure, run)) is not None]
    values = [number.value for _, number in pairs]
    first = pairs[0][1] if pairs else None
    unit = first.unit if first else usual_unit(rule)
    low, high = published_range(figure)
    mean, mean_low, mean_high, method = mean_interval(values, is_share=unit == "share") if values else (None,) * 4
    expected = (
        None if rule.kind in ("answer", "necessary") else prediction(values, unit, first.n if first else None, rule)
    )
    verdict, why = _verdict(rule, figure, values, (mean_low, mean_high), (low, high), expected)
    return ComparedFigure(
        report=figure.report if figure else rule.report,
        key=figure.key if figure else "",
        task=task,
        what=what_words(rule, figure),
        unit=unit,
        published=published_text(figure, unit),
        published_low=low,
        published_high=high,
        model=rule.model,
        values=tuple(values),
        seeds=tuple(seed for seed, _ in pairs),
        names=tuple(number.name for _, number in pairs),
        mean=mean,
        low=mean_low,
        high=mean_high,
        method=method,
        expected_low=expected[0] if expected else None,
        expected_high=expected[1] if expected else None,
        sound=tuple(sound),
        verdict=verdict,
        why=why,
        cause=rule.cause or _cause(figure, rule),
    )


def usual_unit(rule: Rule) -> str:
    """Return the unit of the numbers that a rule compares, for a rule for which none of our runs has a number."""
    units = {"validation loss": "nats", "attention: entropy": "nats", "seconds of training": "s", "drop": "points"}
    return "share" if rule.kind == "share of heads" else units.get(rule.measure, "share")


def _cause(figure: Figure | None, rule: Rule) -> str:
    """Return the fault that explains the published number, as `published.py` gives it for each published model."""
    report, task = (figure.report, figure.task) if figure else (rule.report, rule.task)
    if task == "addition":
        return WRONG_SUMS[report]
    encoding = int(figure.path[-1]) if figure else 0
    return WRONG_SEQUENCES[report][encoding]


def prediction(values: Sequence[float], unit: str, n_ours: int | None, rule: Rule) -> tuple[float, float] | None:
    """Return the 95 % prediction interval of one more training on the report's test set; None for under three runs.

    >>> rule = Rule("accuracy", "model", n=2000)
    >>> prediction([0.3895, 0.3895, 0.3895], "share", 2000, rule)
    (0.359..., 0.419...)
    >>> prediction([0.7, 0.8, 0.75], "share", None, Rule("share", "model"))
    (0.501..., 0.998...)
    """
    k = len(values)
    if k < FEWEST:
        return None
    mean, seeds = fmean(values), float(stdtrit(k - 1, 0.975)) * stdev(values) * math.sqrt(1 + 1 / k)
    sampling = 0.0
    if rule.n is not None and n_ours:
        # As for an Agresti-Coull interval, so that a score of 100 % has a width.
        p = (min(1.0, abs(mean)) * n_ours + 2) / (n_ours + 4)
        sampling = Z95 * math.sqrt(p * (1 - p) * (1 / rule.n + 1 / n_ours))
    half = math.hypot(seeds, sampling) + rule.rounding
    return (max(0.0, mean - half), min(1.0, mean + half)) if unit == "share" else (mean - half, mean + half)


def _verdict(
    rule: Rule,
    figure: Figure | None,
    values: Sequence[float],
    ci: tuple[float | None, float | None],
    published: tuple[float | None, float | None],
    expected: tuple[float, float] | None,
) -> tuple[Verdict, str]:
    """Return whether a published number agrees with our values, and what that rests on (see the top of this file)."""
    if figure is None:
        return ("not published", "") if values else ("not measured", "none of our runs has this number")
    if rule.why:
        return "not comparable", rule.why
    if not values:
        return "not measured", "none of our runs has this number"
    few = f"only {len(values)} of our runs have this number, and a prediction interval needs {FEWEST}"
    if rule.kind == "answer":
        k, n = round(math.fsum(values)), len(values)
        verdict: Verdict = "undecided" if n < FEWEST or 0 < k < n else "agrees" if k else "differs"
        return verdict, f"the model gives the same answer in {k} of {n} runs"
    if rule.kind == "necessary":
        high = ci[1] if ci[1] is not None else max(values) if len(values) >= FEWEST else math.inf
        if high < NEEDED:
            return "differs", f"no such head costs {100 * NEEDED:g} point, so none of them handles carries alone"
        return "undecided", "the report has only words: a drop is necessary for its statement, but does not prove it"
    least, most = published
    assert least is not None, f"{figure.key} is no number"
    assert most is not None
    if expected is None:
        return "undecided", few
    return ("agrees" if expected[0] <= most and least <= expected[1] else "differs"), ""


def published_range(figure: Figure | None) -> tuple[float | None, float | None]:
    """Return the lowest and the highest value of a published range such as `0.48 to 0.54`; None for words."""
    if figure is None:
        return None, None
    if isinstance(figure.value, int | float):
        return float(figure.value), float(figure.value)
    try:
        low, high = map(float, str(figure.value).split(" to "))
    except ValueError:
        return None, None
    return low, high


def published_text(figure: Figure | None, unit: str) -> str:
    """Return a published number as text, with shares in percent and drops in points."""
    if figure is None:
        return ""
    if _is_example(figure.value):
        return f"{figure.value['question']} = {figure.value['answer']}"
    low, high = published_range(figure)
    if low is None or high is None:
        return str(figure.value)
    scale, sign = (100, " %" if unit == "share" else " points") if unit in ("share", "points") else (1, "")
    texts = dict.fromkeys(f"{scale * each:.6g}" for each in (low, high))
    return f"{' to '.join(texts)}{sign or (f' {unit}' if unit else '')}"


def what_words(rule: Rule, figure: Figure | None) -> str:
    """Return in words what a published number measures, with its length, encoding, rank or head if it has one."""
    words = rule.what
    if figure is None:
        return words
    if figure.task == "sortedness":
        words = f"{EXERCISE[int(figure.path[-1])]}: {words}"
    if rule.kind == "length":
        return f"{words} of {figure.path[0]}"
    if rule.kind == "drop":
        return f"{rank_words(drop_rank(figure))} {words} ({figure.path[-1]})"
    if rule.kind == "index" and not rule.rank:
        return f"{words}: {rank_words(index_rank(figure))} (index {figure.path[-2]})"
    return words


def rank_words(rank: int) -> str:
    """Return a rank in words; negative ranks count from the smallest.

    >>> rank_words(1), rank_words(3), rank_words(-1), rank_words(-4)
    ('largest', '3rd largest', 'smallest', '4th smallest')
    """
    words, place = "largest" if rank > 0 else "smallest", abs(rank)
    return words if place == 1 else f"{place}{ORDINALS.get(place, 'th')} {words}"
