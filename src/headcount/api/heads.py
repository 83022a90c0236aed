"""Which heads count: silence them one by one, remove them together, cut them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.ablation import Ablated, Ablation, Effect, ablate, proof_of
from headcount.analysis.bands import CRITICAL
from headcount.analysis.cost import Cost, compare_cost
from headcount.analysis.pruning import ORDERS, Pruning, prune_curves
from headcount.analysis.subjects import Subject, given, held_out, of_length, subject_of, subject_on
from headcount.analysis.trials import run_trials
from headcount.api._run import AnyRun, loaded
from headcount.errors import InputError
from headcount.heads import HeadId
from headcount.instruments.kinds import KINDS
from headcount.instruments.sites import Sites
from headcount.instruments.sweep import BATCH
from headcount.runs.draft import require_vacant
from headcount.runs.prune import prune_run
from headcount.runs.run import Run
from headcount.views.ablation import draw_lengths, draw_map, draw_ranking
from headcount.views.progress import TrainingProgress, announcer, counting
from headcount.views.pruning import draw_pruning
from headcount.views.style import png

Metric = str | Callable[[Tensor, NDArray[np.int64]], Tensor]
N_CHOOSING = 1000
"""Examples that heads to remove are chosen on."""
N_CHANCE = 500
"""Examples that each random order is measured on."""


@dataclass(frozen=True)
class HeadsAblated:
    """What each head is worth, and where that was written."""

    result: Ablation
    data: Path | None = None
    figures: tuple[Path, ...] = ()

    @property
    def heads(self) -> tuple[Effect, ...]:
        """Every head, silenced in every way."""
        return self.result.heads


def ablate_heads(
    model: AnyRun | nn.Module,
    data: str | Sequence[Any] | NDArray[Any] = "test",
    metric: Metric | None = None,
    *,
    kinds: Sequence[str] | None = None,
    sites: Sites | None = None,
    n: int | None = None,
    lengths: Sequence[int] = (),
    examples: bool = False,
    batch_size: int = BATCH,
    quiet: bool = False,
) -> HeadsAblated:
    """Silence every head alone, in every way, and compare answers on the same examples.

    `model` is a run (then `data` is the name of a split or examples of its task, and `metric` a name or a function) or
    any PyTorch module: then `data` are its input tensors, `metric(output, rows)` gives one score per row, and `sites`
    says where its heads are unless it can say so itself. All kinds of silencing are tried unless `kinds` says which.
    """
    if isinstance(model, nn.Module):
        return HeadsAblated(_ablate_module(model, data, metric, kinds, sites, batch_size, quiet))
    run = loaded(model)
    subjects = _subjects(run, data, metric, n, lengths, batch_size)
    for kind in kinds or ():
        KINDS.get(kind)
    run.output.require_writable()
    done = []
    for length, subject in subjects:
        at = "" if length is None else f" at length {length}"
        with counting(f"silencing heads of {run.name}{at}", quiet=quiet) as progress:
            done.append(
                ablate(subject, kinds, length=length, examples=examples, batch_size=batch_size, progress=progress)
            )
    result = _result(run.name, run.digest, subjects[0][1], done)
    figures = {"ablation-lengths.png": draw_lengths(result)} if len(subjects) > 1 else {}
    for condition in result.conditions:
        at = "" if condition.length is None else f"-{condition.length}"
        figures |= {f"ablation{at}.png": draw_ranking(result, condition)}
        figures |= {f"ablation-map{at}.png": draw_map(result, condition)}
    written = tuple(run.output.write_figure(name, png(figure)) for name, figure in figures.items())
    return HeadsAblated(result, run.output.write_result("ablation", result), written)


def _ablate_module(
    model: nn.Module,
    data: Any,
    metric: Metric | None,
    kinds: Sequence[str] | None,
    sites: Sites | None,
    batch_size: int,
    quiet: bool,
) -> Ablation:
    if not callable(metric):
        raise InputError("a model of your own needs a metric", "give a function: metric(output, rows) -> [row]")
    inputs = [data] if isinstance(data, Tensor) else data
    if not isinstance(inputs, (list, tuple)) or not inputs or not all(isinstance(each, Tensor) for each in inputs):
        raise InputError("a model of your own needs its input tensors as data", "give one, or a list of them")
    subject = subject_on(model, sites or Sites.of(model), inputs, metric, at_once=_block(batch_size))
    with counting("silencing heads", quiet=quiet) as progress:
        done = ablate(subject, kinds, batch_size=batch_size, progress=progress)
    return _result("", "", subject, [done])


def _subjects(
    run: Run, data: Any, metric: Metric | None, n: int | None, lengths: Sequence[int], batch_size: int
) -> list[tuple[int | None, Subject]]:
    at_once = _block(batch_size)
    if lengths:
        made = [(length, *of_length(run.task, length, n)) for length in dict.fromkeys(lengths)]
        return [(length, subject_of(run, rows, what, metric, at_once=at_once)) for length, rows, what in made]
    rows, what = held_out(run.task, data, n) if isinstance(data, str) else (given(run.task, data), "given examples")
    return [(None, subject_of(run, rows, what, metric, at_once=at_once))]


def _block(batch_size: int) -> int:
    """Examples per block, so that four ablations of them ride in a batch."""
    if batch_size < 1:
        raise InputError(f"a batch of {batch_size} is none", "at least 1 row per forward pass")
    return max(1, batch_size // 4)


def _result(name: str, digest: str, subject: Subject, done: Sequence[Ablated]) -> Ablation:
    metric = subject.metric
    return Ablation(
        run=name,
        model=digest,
        metric=metric.name,
        unit=metric.unit,
        is_share=metric.is_share,
        kinds=tuple(dict.fromkeys(effect.kind for effect in done[0].effects)),
        heads=tuple(effect for each in done for effect in each.effects),
        conditions=tuple(each.condition for each in done),
        proof=proof_of(subject),
    )


@dataclass(frozen=True)
class HeadsPruned:
    """What can go, and (if it was asked for) the run without it."""

    result: Pruning | None
    """The curves; None if the heads were given."""
    cost: Cost | None
    """Size and speed before and after; None if nothing was cut."""
    run: Run | None
    data: Path | None
    figure: Path | None


def prune_heads(
    run: AnyRun,
    out: str | Path | None = None,
    *,
    loss: float = 0.01,
    heads: Sequence[str | HeadId] | None = None,
    fine_tune: int = 0,
    length: int | None = None,
    n: int | None = None,
    n_orders: int = ORDERS,
    batch_size: int = BATCH,
    quiet: bool = False,
) -> HeadsPruned:
    """Find the heads that can go together for at most `loss`, and cut them out into a new run `out`.

    Without `out` nothing is cut; with `heads`, those are cut and nothing is searched.
    """
    run = loaded(run)
    _require_sense(run, out, heads, fine_tune)
    result = data = figure = None
    if heads is None:
        result = _search(run, loss, length, n, n_orders, batch_size, quiet)
        data = run.output.write_result("pruning", result)
        figure = run.output.write_figure("pruning.png", png(draw_pruning(result)))
        heads = result.chosen
    if out is None or not heads:
        if out is not None:
            announcer(quiet)(f"no head can go for {100 * loss:g} points: nothing was cut")
        return HeadsPruned(result, None, None, data, figure)
    with TrainingProgress(fine_tune, run.config.training.batch_size, quiet=quiet or not fine_tune) as progress:
        cut = prune_run(run, heads, Path(out), fine_tune=fine_tune, listeners=[progress])
    return HeadsPruned(result, compare_cost(run, cut), cut.run, data, figure)


def _require_sense(run: Run, out: str | Path | None, heads: Sequence[str | HeadId] | None, fine_tune: int) -> None:
    """Find out before a long search what could not be done after it."""
    if fine_tune < 0:
        raise InputError(f"{fine_tune} steps of fine-tuning are none", "at least 0")
    if heads is not None:
        if not heads:
            raise InputError("no heads to cut out", f"list the heads: headcount heads {run.name}")
        for head in heads:
            run.find_head(head)
    if out is not None:
        require_vacant(Path(out))
    elif heads is not None or fine_tune:
        what = "fine-tuning" if heads is None else "heads to cut"
        raise InputError(f"{what}, but no folder for the run that it makes", "add -o DIR")


def _search(
    run: Run, loss: float, length: int | None, n: int | None, n_orders: int, batch_size: int, quiet: bool
) -> Pruning:
    if not 0 <= loss < 1:
        raise InputError(f"a loss of {loss} is no share", "give a share of 1, such as 0.01 for one point")
    if n_orders < 1:
        raise InputError(f"{n_orders} random orders are too few", "at least 1")
    counts = (("validation", N_CHOOSING), ("test", None), ("test", N_CHANCE))
    choosing, measuring, chancing = (
        _subject(run, name, length, _smaller(n, most), batch_size) for name, most in counts
    )
    _require_something_to_lose(run, choosing)
    run.output.require_writable()
    with counting(f"removing heads of {run.name}, %", quiet=quiet) as progress:
        return prune_curves(
            run.name,
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


def _require_something_to_lose(run: Run, subject: Subject) -> None:
    clean = float(run_trials(subject, []).clean.mean())
    if clean - subject.floor < CRITICAL:
        raise InputError(
            f"{run.name} is right on {clean:.1%} of {subject.data}, one answer to everything on {subject.floor:.1%}",
            "it has nothing to lose there, so any head could go: choose a model or a length that works",
        )


def _subject(run: Run, name: str, length: int | None, n: int | None, batch_size: int) -> Subject:
    asked = held_out(run.task, name, n) if length is None else of_length(run.task, length, n, name)
    return subject_of(run, *asked, at_once=_block(batch_size))
