"""Measure how far models extrapolate beyond their training lengths."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from headcount.analysis.answer_lengths import (
    AnswerStretch,
    require_answer_lengths,
    stretch_answers,
    stretches_answers,
)
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
from headcount.errors import InputError
from headcount.experiments.models import OpenModel
from headcount.figures.answer_lengths import draw_answer_lengths
from headcount.figures.length_generalisation import draw_dispersion, draw_stretch
from headcount.limits import ANSWER_LENGTHS, LENGTHS, TIMEOUT
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
) -> Saved[tuple[Stretch | AnswerStretch, ...]]:
    """Measure the accuracy of models on examples far longer than those of training.

    * `lengths` are the lengths to test, and `negatives` the kinds of examples; the default is all kinds.
    * `n` is the number of examples per length and kind, and `batch_size` the number per forward pass.
    * `draw` is the number of a random draw of test sequences. Choose settings on one draw, and report results on
      another.
    * `save` names a folder for the results and their figures; `save=True` means each model's own folder.
    * `out` is the folder for a figure of several models.
    * `run_adapter` allows running the adapter (the user's Python file) that the folder of a pruned model names.

    The returned `result` has one `Stretch` per classifier, with one accuracy per length and kind, or one
    `AnswerStretch` per model that answers token by token, such as a model of `addition-long`.

    >>> [cell.accuracy for cell in stretch("sample:sortedness", lengths=[64], n=8, quiet=True).result[0].cells]
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    opened = [open_on_task(model, run_adapter=run_adapter) for model in models]
    settings: dict[str, Any] = {"lengths": lengths, "negatives": negatives, "n": n}
    settings |= {"batch_size": batch_size, "draw": draw}
    for model in opened:
        _require_stretch(model, lengths, negatives, n, batch_size, draw)
    if len({stretches_answers(model) for model in opened}) > 1:
        raise InputError(
            "classifiers and models that answer token by token do not fit into one figure",
            "measure them with two commands",
        )
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
) -> Saved[Stretch | AnswerStretch]:
    """Measure one model beyond its training lengths; draw its accuracy and, of a classifier, its attention."""
    opened, tried = open_on_task(model), LENGTHS if lengths is None else lengths
    _require_stretch(opened, lengths, negatives, n, batch_size, draw)
    name = partial(_stretch_name, lengths=lengths, negatives=negatives, n=n, batch_size=batch_size, draw=draw)
    folder = folder_for(opened, save)
    if stretches_answers(opened):
        tried = ANSWER_LENGTHS if lengths is None else lengths
        with counting(f"stretching {opened.name}, %", quiet=quiet) as progress:
            reach = stretch_answers(opened, tried, negatives, n, draw=draw or 0, progress=progress)
        reach = replace(reach, audit=quick_audit(opened))
        return cast(
            Any, save_in(folder, name("stretch"), reach, lambda stem, result: {stem: draw_answer_lengths([result])})
        )
    with counting(f"stretching {opened.name}, %", quiet=quiet) as progress:
        result = stretch_model(opened, tried, negatives, n, batch_size=batch_size, draw=draw or 0, progress=progress)
    result = replace(result, audit=quick_audit(opened))
    figures = lambda stem, result: {stem: draw_stretch([result]), name("dispersion"): draw_dispersion(result)}  # noqa: E731
    return cast(Any, save_in(folder, name("stretch"), result, figures))


def _require_stretch(
    model: OpenModel,
    lengths: Sequence[int] | None,
    negatives: Sequence[str] | None,
    n: int | None,
    batch_size: int | None,
    draw: int | None,
) -> None:
    """Raise an error if a model cannot be measured at these lengths."""
    if stretches_answers(model):
        require_answer_lengths(model, ANSWER_LENGTHS if lengths is None else lengths, negatives, n, draw or 0)
    else:
        require_possible(model, LENGTHS if lengths is None else lengths, negatives, n, batch_size, draw or 0)


def stretch_all(
    models: Sequence[str],
    *,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
    timeout: float = TIMEOUT,
    at_once: int = AT_ONCE,
    **settings: Any,
) -> dict[str, Submission[Stretch | AnswerStretch]]:
    """Measure several models beyond their training lengths, each in a process of its own.

    The returned mapping has one `Submission` per model, by the model's name. `settings` are those of `stretch_one`,
    and `at_once` processes run at the same time. A submission that fails, takes more than `timeout` seconds or ends
    its process has an `error` instead of a result.
    """
    settings |= {"save": save if isinstance(save, bool) else str(save), "quiet": True}
    limits: dict[str, Any] = {"timeout": timeout, "at_once": at_once, "is_quiet": quiet}
    kinds: list[Any] = [Stretch, AnswerStretch]
    return run_course(
        models, stretch_one, kinds, title="stretching models", run_adapter=run_adapter, **limits, **settings
    )


def join_stretches(saved: Sequence[Saved[Any]], folder: str | Path | None, **settings: Any) -> Saved[tuple[Any, ...]]:
    """Join the results of `stretch_one` for several models, and save one figure of all models in the folder.

    `settings` are those of `stretch_one` with which the models were measured.
    """
    draws_answers = any(isinstance(part.result, AnswerStretch) for part in saved)
    draw: Any = draw_answer_lengths if draws_answers else draw_stretch
    return join_with_figure(saved, folder, _stretch_name("stretch", **settings), draw)


def _stretch_name(stem: str, *, lengths: Any, negatives: Any, n: Any, batch_size: Any, draw: Any) -> str:
    return result_name(stem, lengths=lengths, negatives=negatives, n=n, batch=batch_size, draw=draw)
