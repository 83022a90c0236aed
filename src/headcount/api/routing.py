"""Measure which heads move an event of a task, such as the carry of a sum, in one or more models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headcount.analysis.routes import Routes, require_event
from headcount.analysis.routes import routes as measure_routes
from headcount.api.opening import AnyModel, open_on_task
from headcount.api.saving import (
    Place,
    Saved,
    folder_for,
    join_with_figure,
    places_for,
    result_name,
    save_in,
    unless_default,
)
from headcount.auditing.audit import quick_audit
from headcount.errors import InputError
from headcount.experiments.models import OpenModel
from headcount.figures.routes import draw_routes
from headcount.limits import MIN_N, N_SCAN
from headcount.rendering.progress import counting


def routes(
    model: AnyModel,
    *,
    n: int = N_SCAN,
    seed: int = 0,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> Saved[Routes]:
    """Measure which heads move an event of the task, such as the carry, and which positions represent it on its way.

    `n` is the number of quartets (sets of four examples that differ in the event) for each way, such as `1s to 10s`;
    `seed` is the seed with which they are drawn. `save` names a folder for the result and its figure; `save=True` means
    the model's own folder. `run_adapter` allows running the adapter (the user's Python file) that the folder of a
    pruned model names. The returned `result` is a `Routes`.

        carried = headcount.routes("sample:addition").result
        [(each.what, each.moved.share) for each in carried.movers("1s to 10s")]
    """
    _require(n)
    return _routes_of(open_on_task(model, run_adapter=run_adapter), n, seed, save, quiet=quiet)


def routes_all(
    models: Sequence[AnyModel],
    *,
    n: int = N_SCAN,
    seed: int = 0,
    out: str | Path | None = None,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> Saved[tuple[Routes, ...]]:
    """Measure in several models which heads move an event of the task, such as the carry; draw one map of all models.

    `save` names a folder for the map, with a subfolder for each model; `save=True` means each model's own folder, and
    `runs/routes` for the map. `out` is another folder for the map. The other arguments are those of `routes`. The
    returned `result` has one `Routes` per model.
    """
    _require(n)
    opened = [open_on_task(model, run_adapter=run_adapter) for model in models]
    if not opened:
        raise InputError("no model was given", "give one or more")
    for model in opened:
        require_event(model)
    places, shared = places_for(opened, save, out, "runs/routes")
    pairs = zip(opened, places, strict=True)
    saved = [_routes_of(model, n, seed, place, quiet=quiet) for model, place in pairs]
    labels = [model.label for model in opened]
    return join_with_figure(saved, shared, _name(n, seed), lambda results: draw_routes(results, labels))


def _routes_of(model: OpenModel, n: int, seed: int, save: Place, *, quiet: bool) -> Saved[Routes]:
    folder = folder_for(model, save)
    with counting(f"patching heads of {model.name}", quiet=quiet) as progress:
        result = measure_routes(model, n, seed=seed, progress=progress)
    result = replace(result, audit=quick_audit(model))
    draw = lambda stem, measured: {stem: draw_routes([measured], [model.label])}  # noqa: E731
    return save_in(folder, _name(n, seed), result, draw)


def _name(n: int, seed: int) -> str:
    return result_name("routes", n=unless_default(N_SCAN, n), seed=unless_default(0, seed))


def _require(n: int) -> None:
    if n < MIN_N:
        raise InputError(
            f"--n must be at least {MIN_N}, got {n}",
            "it is the number of sets of four examples for each pair of digits, such as a carry from the 1s to the "
            "10s; with fewer sets, confidence intervals are too wide to be of use",
        )
