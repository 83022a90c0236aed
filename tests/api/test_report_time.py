"""A report measures in the order of what people look at, and names what it had no time for: on a clock by hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headcount import api
from headcount.api import report_measurements, reporting
from headcount.api.report_measurements import MEASUREMENTS, Measurement
from headcount.api.reporting import TIME_LIMIT, gather
from headcount.api.saving import Saved
from headcount.describing.blocks import Commands
from headcount.describing.report import ReportResults, build_report
from headcount.errors import InputError, OutOfTime
from headcount.rendering.progress import TimeLimit, counting, limited, time_limit
from headcount.runs.run import Run, load

STEPS = 1000


class Clock:
    """Seconds that tests let pass."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(tiny_run: Run, in_tmp: Path) -> Run:
    shutil.copytree(tiny_run.folder.path, "adder", ignore=shutil.ignore_patterns("results", "figures"))
    return load("adder")


def taking(clock: Clock, begun: list[str], **seconds: float) -> tuple[Measurement, ...]:
    """The measurements of a report, each of which lets these seconds pass and finds nothing."""

    def make(field: str) -> Callable[..., Any]:
        def work(model: object, data: object, quiet: bool) -> None:
            begun.append(field)
            with counting(field, quiet=True) as progress:
                for i in range(STEPS):
                    clock.now += seconds.get(field, 1.0) / STEPS
                    progress(i + 1, STEPS)

        return work

    return tuple(Measurement(each.field, each.words, each.stem, each.types, make(each.field)) for each in MEASUREMENTS)


def test_what_people_look_at_comes_first_and_what_takes_too_long_is_named(
    run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[str]()
    monkeypatch.setattr(reporting, "MEASUREMENTS", taking(clock, begun, pruning=1000.0, stats=12.0, positions=60.0))
    report_results = gather(run, n_examples=0, quiet=True, clock=clock)
    order = ["evaluation", "audit", "ablation", "pruning", "routes", "stats", "certificate", "positions"]
    assert begun[: len(order)] == order
    assert clock.now <= TIME_LIMIT
    assert report_results.models[0].not_measured == ("the removal of several heads", "position encodings")
    first = build_report(report_results).sections[0]
    (left_out,) = (each for each in first.blocks if isinstance(each, Commands))
    assert left_out.words.startswith(
        "To save time, this report leaves out the removal of several heads and position encodings."
    )
    assert left_out.commands == ("headcount report adder --thorough",)


def test_what_is_measured_when_time_is_up_is_not_begun(run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[str]()
    monkeypatch.setattr(reporting, "MEASUREMENTS", taking(clock, begun))
    monkeypatch.setattr(reporting, "TIME_LIMIT", 0.0)
    (model_results,) = gather(run, n_examples=0, quiet=True, clock=clock).models
    assert not begun
    assert model_results.not_measured[:2] == ("accuracy on the test set", "the audit")


def test_thorough_measures_everything(run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[str]()
    monkeypatch.setattr(reporting, "MEASUREMENTS", taking(clock, begun, pruning=1000.0, certificate=5000.0))
    (model_results,) = gather(run, thorough=True, n_examples=0, quiet=True, clock=clock).models
    assert "certificate" in begun
    assert clock.now > 6000
    assert not model_results.not_measured
    assert not any(
        isinstance(each, Commands) for each in build_report(ReportResults("", (model_results,), "")).sections[0].blocks
    )
    with pytest.raises(InputError, match="leave one of them out"):
        gather(run, thorough=True, stored=True)


def test_models_of_one_report_share_its_time(run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree("adder", "second")
    ends = list[float]()

    def work(*_: object) -> None:
        limit = time_limit()
        assert limit is not None
        ends.append(limit.end)

    measurement = Measurement("evaluation", "accuracy", "evaluation-test", (), work)
    monkeypatch.setattr(reporting, "MEASUREMENTS", (measurement, *taking(clock, [])[1:]))
    gather(run, "second", n_examples=0, quiet=True, clock=clock)
    assert ends[0] <= TIME_LIMIT / 2 < ends[1] <= TIME_LIMIT


def test_work_on_fewer_examples_where_all_take_too_long(clock: Clock) -> None:
    asked = list[int | None]()

    def measure(fewer: int | None) -> str:
        asked.append(fewer)
        n = 1000 if fewer is None else fewer
        with counting("ablating", quiet=True) as progress:
            for i in range(n):
                clock.now += 0.1
                progress(i + 1, n)
        return "done"

    with limited(TimeLimit(30.0, clock)):
        assert report_measurements._on_fewer(measure, 1000, 100) == "done"
    assert clock.now <= 30
    assert asked[0] is None
    assert 100 <= (asked[1] or 0) < 300
    clock.now = 0.0
    with limited(TimeLimit(5.0, clock)), pytest.raises(OutOfTime, match="ablating would take about 100 s"):
        report_measurements._on_fewer(measure, 1000, 100)


@pytest.mark.parametrize(
    ("seconds", "replacements"), [(0.5, ("zero", "mean", "resample")), (10.0, ("zero",))], ids=["quick", "slow"]
)
def test_heads_are_set_to_zero_before_anything_else_replaces_them(
    run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, replacements: tuple[str, ...]
) -> None:
    """What removing a head costs is known, whatever there is time for."""
    asked = list[tuple[list[str] | None, int | None]]()
    found = api.ablate_heads(run, n=5, quiet=True).result

    def ablate(*_: object, n: int | None, replacements: Any = None, **others: object) -> Saved[Any]:
        asked.append((replacements, n))
        clock.now += seconds
        return Saved(replace(found, replacements=tuple(replacements or found.replacements)))

    monkeypatch.setattr(report_measurements, "ablate_heads", ablate)
    with limited(TimeLimit(30.0, clock)):
        result = report_measurements._ablate(api.open_model(run), None, True)
    assert asked[0] == (["zero"], 10), "on the test set, and on no further examples"
    assert set(result.replacements) == set(replacements)
    named = reporting._shortened(result, None, None)
    assert named == ([] if seconds < 1 else ["resample and mean ablation of each head"])


def test_a_search_for_removable_heads_has_the_time_of_a_quick_report(
    run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = list[float | None]()

    def prune(*_: object, budget: float | None, **others: object) -> Any:
        budgets.append(budget)
        raise InputError("nothing to lose")

    monkeypatch.setattr(report_measurements, "prune_heads", prune)
    model = api.open_model(run)
    for limit in (None, TimeLimit(45.0, clock), TimeLimit(8.0, clock)):
        with limited(limit), pytest.raises(InputError):
            report_measurements._prune(model, None, True)
    assert budgets == [None, *report_measurements.BRIEF_SEARCHES]
    with limited(TimeLimit(1.0, clock)), pytest.raises(OutOfTime):
        report_measurements._prune(model, None, True)


def test_a_thorough_report_does_not_take_a_shorter_measurement_for_the_whole(run: Run) -> None:
    model = api.open_model(run)
    measurement = next(each for each in MEASUREMENTS if each.field == "ablation")
    api.ablate_heads(run, n=5, replacements=["zero"], save=True, quiet=True)
    assert reporting._read(model, measurement, None, thorough=False) is None, "no report asks for this"
    api.ablate_heads(run, n=run.task.config.n_test, examples=True, save=True, quiet=True)  # as in limited time
    assert reporting._read(model, measurement, None, thorough=False) is not None
    assert reporting._read(model, measurement, None, thorough=True) is None
