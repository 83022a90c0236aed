"""Measure how far classifiers extrapolate beyond their training lengths."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headcount.analysis.length_generalisation import Stretch, require_possible
from headcount.analysis.length_generalisation import stretch as stretch_model
from headcount.api.courses import AT_ONCE, Submission, run_course
from headcount.api.opening import AnyModel, open_on_task
from headcount.api.saving import (
    Place,
    Saved,
    folder_for,
    join_with_figure,
    places_for,
    result_name,
    save_in,
)
from headcount.auditing.audit import quick_audit
from headcount.figures.length_generalisation import draw_dispersion, draw_stretch
from headcount.limits import LENGTHS, TIMEOUT
from headcount.rendering.progress import counting


def stretch(
    *models: AnyModel,
    lengths: Sequence[int] | None = None,
    negatives: Sequence[str] | None = None,
    n: int | None = None,
    batch_size: int | None = None,
    draw: int | None = None,
    out: str | Path | None = None,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> Saved[tuple[Stretch, ...]]:
    """Measure the accuracy of classifiers on sequences far longer than those of training.

    * `lengths` are the lengths to test, and `negatives` the kinds of negative examples; the default is all kinds.
    * `n` is the number of examples per length and kind, and `batch_size` the number per forward pass.
    * `draw` is the number of a random draw of test sequences. Choose settings on one draw, and report results on
      another.
    * `save` names a folder for the results and their figures; `save=True` means each model's own folder.
    * `out` is the folder for a figure of several models.
    * `run_adapter` allows running the adapter (the user's Python file) that the folder of a pruned model names.

    The returned `result` has one `Stretch` per model, with one accuracy per length and kind.

    >>> [cell.accuracy for cell in stretch("sample:sortedness", lengths=[64], n=8, quiet=True).result[0].cells]
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    opened = [open_on_task(model, run_adapter=run_adapter) for model in models]
    settings: dict[str, Any] = {"lengths": lengths, "negatives": negatives, "n": n}
    settings |= {"batch_size": batch_size, "draw": draw}
    for model in opened:
        require_possible(model, LENGTHS if lengths is None else lengths, negatives, n, batch_size, draw or 0)
    places, shared = places_for(opened, save, out, "runs/stretch")
    pairs = zip(opened, places, strict=True)
    saved = [stretch_one(model, **settings, save=place, quiet=quiet) for model, place in pairs]
    return join_stretches(saved, shared, **settings)


def stretch_one(
    model: AnyModel,
    *,
    lengths: Sequence[int] | None,
    negatives: Sequence[str] | None,
    n: int | None,
    batch_size: int | None,
    draw: int | None,
    save: Place = False,
    quiet: bool = False,
) -> Saved[Stretch]:
    """Measure one classifier beyond its training lengths; draw its accuracy and the spread of its attention."""
    opened, tried = open_on_task(model), LENGTHS if lengths is None else lengths
    require_possible(opened, tried, negatives, n, batch_size, draw or 0)
    name = partial(_stretch_name, lengths=lengths, negatives=negatives, n=n, batch_size=batch_size, draw=draw)
    folder = folder_for(opened, save)
    with counting(f"stretching {opened.name}, %", quiet=quiet) as progress:
        result = stretch_model(opened, tried, negatives, n, batch_size=batch_size, draw=draw or 0, progress=progress)
    result = replace(result, audit=quick_audit(opened))
    figures = lambda stem, result: {stem: draw_stretch([result]), name("dispersion"): draw_dispersion(result)}  # noqa: E731
    return save_in(folder, name("stretch"), result, figures)


def stretch_all(
    models: Sequence[str],
    *,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
    timeout: float = TIMEOUT,
    at_once: int = AT_ONCE,
    **settings: Any,
) -> dict[str, Submission[Stretch]]:
    """Measure several classifiers beyond their training lengths, each in a process of its own.

    The returned mapping has one `Submission` per model, by the model's name. `settings` are those of `stretch_one`,
    and `at_once` processes run at the same time. A submission that fails, takes more than `timeout` seconds or ends
    its process has an `error` instead of a result.
    """
    settings |= {"save": save if isinstance(save, bool) else str(save), "quiet": True}
    limits: dict[str, Any] = {"timeout": timeout, "at_once": at_once, "is_quiet": quiet}
    return run_course(
        models, stretch_one, [Stretch], title="stretching models", run_adapter=run_adapter, **limits, **settings
    )


def join_stretches(
    saved: Sequence[Saved[Stretch]], folder: str | Path | None, **settings: Any
) -> Saved[tuple[Stretch, ...]]:
    """Join the results of `stretch_one` for several models, and save one figure of all models in the folder.

    `settings` are those of `stretch_one` with which the models were measured.
    """
    return join_with_figure(saved, folder, _stretch_name("stretch", **settings), draw_stretch)


def _stretch_name(stem: str, *, lengths: Any, negatives: Any, n: Any, batch_size: Any, draw: Any) -> str:
    return result_name(stem, lengths=lengths, negatives=negatives, n=n, batch=batch_size, draw=draw)
