"""Which heads can go together, and a smaller model without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headcount.analysis.bands import CRITICAL
from headcount.analysis.cost import Cost, compare_cost
from headcount.analysis.pruning import ORDERS, Pruning, prune_curves
from headcount.analysis.subjects import Subject, held_out, of_length, reference_for, subject_of
from headcount.analysis.trials import run_trials
from headcount.api._names import result_name
from headcount.api._run import AnyModel, label_of, ready
from headcount.api.ablating import asked_data, block_size
from headcount.errors import InputError, argument
from headcount.guests.exams.base import Exam
from headcount.guests.guest import Guest
from headcount.guests.pruned import prune_guest
from headcount.guests.questions import halves, some_of, subject_of_exam
from headcount.heads import HeadId
from headcount.instruments.sweep import BATCH
from headcount.runs.draft import require_vacant
from headcount.runs.prune import prune_run
from headcount.runs.run import Run
from headcount.views.progress import TrainingProgress, announcer, counting
from headcount.views.pruning import draw_pruning
from headcount.views.style import png

LOSS = 0.01
"""What may be lost, unless told otherwise."""
N_CHOOSING = 1000
"""Examples that heads to remove are chosen on."""
MOST_ORDERS = 10_000
N_CHANCE = 500
"""Examples that each random order is measured on."""


@dataclass(frozen=True)
class HeadsPruned:
    """What can go, and (if it was asked for) the run without it."""

    result: Pruning | None
    """The curves; None if the heads were given."""
    cost: Cost | None
    """Size and speed before and after; None if nothing was cut."""
    run: Run | Guest | None
    data: Path | None
    figure: Path | None


def prune_heads(
    run: AnyModel,
    out: str | Path | None = None,
    *,
    data: str | Path | Exam | None = None,
    metric: str | None = None,
    loss: float = LOSS,
    heads: Sequence[str | HeadId] | None = None,
    fold_mean: bool = False,
    fine_tune: int = 0,
    length: int | None = None,
    n: int | None = None,
    n_orders: int = ORDERS,
    batch_size: int = BATCH,
    quiet: bool = False,
    run_adapter: bool = False,
) -> HeadsPruned:
    """Find the heads that can go together for at most `loss`, and cut them out into a new run `out`.

    Without `out` nothing is cut; with `heads`, those are cut and nothing is searched. With `fold_mean`, what the heads
    said on average over unlabelled training inputs stays, in the biases of their output projections. For models of
    others `data` and `metric` say what is asked: half of the examples serve to choose heads, the other half to measure.
    """
    run = ready(run, run_adapter=run_adapter)
    _require_sense(run, out, heads, fine_tune, fold_mean)
    result = file = figure = None
    subjects = _subjects_of(run, data, metric, length, n, batch_size) if heads is None or isinstance(run, Guest) else ()
    if heads is None:
        name = result_name(
            "pruning",
            data=asked_data(data),
            metric=metric,
            loss=None if loss == LOSS else loss,
            length=length,
            n=n,
            orders=None if n_orders == ORDERS else n_orders,
            batch=None if batch_size == BATCH else batch_size,
        )
        result = _search(run, subjects, loss, n_orders, batch_size, quiet)
        file = run.output.write_result(name, result)
        figure = run.output.write_figure(f"{name}.png", png(draw_pruning(result)))
        heads = result.chosen
    if out is None or not heads or (isinstance(run, Guest) and len(heads) == len(run.sites.heads)):
        if out is not None:
            which = "all heads" if heads else "no head"
            announcer(quiet)(f"{which} can go for a loss of {loss:g}: nothing was cut")
        return HeadsPruned(result, None, None, file, figure)
    if isinstance(run, Guest):
        cut_guest = prune_guest(run, heads, Path(out), subjects[1], fold_mean=fold_mean)
        return HeadsPruned(result, cut_guest.cost, cut_guest.guest, file, figure)
    with TrainingProgress(fine_tune, quiet=quiet or not fine_tune) as progress:
        cut = prune_run(run, heads, Path(out), fold_mean=fold_mean, fine_tune=fine_tune, listeners=[progress])
    return HeadsPruned(result, compare_cost(run, cut), cut.run, file, figure)


def _require_sense(
    run: Run | Guest, out: str | Path | None, heads: Sequence[str | HeadId] | None, fine_tune: int, fold_mean: bool
) -> None:
    """Find out before a long search what could not be done after it."""
    if fine_tune and isinstance(run, Guest):
        raise InputError(f"{run.name} is a model that others wrote", "fine-tune what is left with their own code")
    if fine_tune < 0:
        raise InputError(f"{fine_tune} steps of fine-tuning are none", "at least 0")
    if heads is not None:
        if not heads:
            raise InputError("no heads to cut out", f"list the heads: headcount heads {argument(run.name)}")
        for head in heads:
            run.find_head(head)
    if out is not None:
        require_vacant(Path(out))
    elif heads is not None or fine_tune or fold_mean:
        what = "heads to cut" if heads is not None else "fine-tuning" if fine_tune else "means to fold"
        raise InputError(f"{what}, but no folder for the run that it makes", "add -o DIR")


def _subjects_of(
    run: Run | Guest,
    data: str | Path | Exam | None,
    metric: str | None,
    length: int | None,
    n: int | None,
    batch_size: int,
) -> tuple[Subject, ...]:
    """To choose on, to measure on, and to try random orders on."""
    if isinstance(run, Guest):
        return _guest_subjects(run, data, metric, n, batch_size)
    if data is not None or metric is not None:
        raise InputError(f"{run.name} is asked for its own task", "leave --data and --metric out")
    counts = (("validation", N_CHOOSING), ("test", None), ("test", N_CHANCE))
    return tuple(_subject(run, name, length, _smaller(n, most), batch_size) for name, most in counts)


def _guest_subjects(
    guest: Guest, data: str | Path | Exam | None, metric: str | None, n: int | None, batch_size: int
) -> tuple[Subject, ...]:
    at_once = block_size(batch_size)

    def asked(exam: Exam, rows: NDArray[np.int64], what: str) -> Subject:
        return subject_of_exam(guest.model, guest.sites, exam, rows, metric, data=what + exam.data, at_once=at_once)

    if data is None and guest.adapter is not None and guest.adapter.task is not None:
        first, second = guest.exam("validation"), guest.exam("test")
        rows, others = some_of(first, _smaller(n, N_CHOOSING)), some_of(second, n)
        names = ("", "")
    else:
        first = second = guest.exam(data)
        rows, others = halves(first, n)
        names = ("one half of ", "the other half of ")
    parts = (first, rows[:N_CHOOSING], names[0]), (second, others, names[1]), (second, others[:N_CHANCE], names[1])
    return tuple(asked(*part) for part in parts)


def _search(
    run: Run | Guest, subjects: tuple[Subject, ...], loss: float, n_orders: int, batch_size: int, quiet: bool
) -> Pruning:
    choosing, measuring, chancing = subjects
    if not (0 <= loss < 1 or (loss >= 0 and not choosing.metric.in_points)):
        raise InputError(f"a loss of {loss} is no share", "give a share of 1, such as 0.01 for one point")
    if not 1 <= n_orders <= MOST_ORDERS:
        raise InputError(f"{n_orders:,} random orders cannot be tried", f"from 1 to {MOST_ORDERS:,}")
    _require_something_to_lose(run, choosing)
    run.output.require_writable()
    with counting(f"removing heads of {run.name}, %", quiet=quiet) as progress:
        return prune_curves(
            label_of(run),
            run.digest,
            choosing,
            measuring,
            chancing,
            loss,
            n_orders=n_orders,
            batch_size=batch_size,
            progress=progress,
        )


def _smaller(n: int | None, most: int | None) -> int | None:
    return min((each for each in (n, most) if each is not None), default=None)


def _require_something_to_lose(run: Run | Guest, subject: Subject) -> None:
    found = run_trials(subject, [])
    clean = float(subject.figure(found.clean))
    if subject.metric.is_loss and clean <= found.floor:
        raise InputError(
            f"{run.name} has a loss of {-clean:.3f} nats on {subject.data}, guessing {-found.floor:.3f}",
            "it has nothing to lose there, so any head could go: choose a model or data that work",
        )
    if subject.metric.in_points and clean - subject.floor < CRITICAL:
        raise InputError(
            f"{run.name} scores {clean:.3f} on {subject.data}, one answer to everything {subject.floor:.3f}",
            "it has nothing to lose there, so any head could go: choose a model or a length that works",
        )


def _subject(run: Run, name: str, length: int | None, n: int | None, batch_size: int) -> Subject:
    asked = held_out(run.task, name, n) if length is None else of_length(run.task, length, n, name)
    return subject_of(run, *asked, at_once=block_size(batch_size), reference=reference_for(run.task, length))
