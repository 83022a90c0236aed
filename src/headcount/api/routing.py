"""Follow an event of a task, such as the carry, through the heads of a model."""

from __future__ import annotations

from dataclasses import replace

from headcount.analysis.routes import N_SCAN, Routes
from headcount.analysis.routes import routes as measure_routes
from headcount.api.opening import AnyModel, open_on_task
from headcount.api.saving import Place, Saved, folder_for, result_name, save_in, unless_default
from headcount.auditing.audit import quick_audit
from headcount.errors import InputError
from headcount.figures.routes import draw_routes
from headcount.rendering.progress import counting

FEWEST = 20
"""Smallest number of quartets (of examples) per way of the event."""


def routes(
    model: AnyModel,
    *,
    n: int = N_SCAN,
    seed: int = 0,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> Saved[Routes]:
    """Measure which heads move an event of the task, such as the carry, and where it is held on its way.

    `n` is the number of quartets (of examples) per way, such as `1s to 10s`, and `seed` is the seed with which they are
    drawn. `save` names a folder for the result and its figure; `save=True` means the model's own folder. `run_adapter`
    allows running the adapter's Python file that a pruned folder names. The returned `result` is a `Routes`.

        carried = headcount.routes("sample:addition").result
        [(each.what, each.moved.share) for each in carried.movers("1s to 10s")]
    """
    if n < FEWEST:
        raise InputError(
            f"--n must be at least {FEWEST}, got {n}",
            "it is the number of sets of four examples; fewer give no usable interval",
        )
    opened = open_on_task(model, run_adapter=run_adapter)
    folder = folder_for(opened, save)
    with counting(f"patching heads of {opened.name}", quiet=quiet) as progress:
        result = measure_routes(opened, n, seed=seed, progress=progress)
    result = replace(result, audit=quick_audit(opened))
    name = result_name("routes", n=unless_default(N_SCAN, n), seed=unless_default(0, seed))
    return save_in(folder, name, result, lambda stem, measured: {stem: draw_routes([measured], [opened.label])})
