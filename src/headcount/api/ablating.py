"""Which heads count: silence them one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.ablation import DONORS, Ablated, Ablation, Effect, ablate, decide, proof_of
from headcount.analysis.subjects import Subject, given, held_out, of_length, reference_for, subject_of, subject_on
from headcount.api._names import result_name
from headcount.api._run import AnyModel, label_of, ready
from headcount.errors import InputError
from headcount.guests.exams.base import Exam
from headcount.guests.guest import Guest
from headcount.guests.questions import some_of, subject_of_exam
from headcount.instruments.kinds import KINDS
from headcount.instruments.sites import HasSites, KnowsItsHeads, Sites
from headcount.instruments.sweep import BATCH
from headcount.instruments.wrapping import wrap
from headcount.runs.run import Run
from headcount.runs.storage import write_atomically
from headcount.seeds import stream
from headcount.tasks.base import SequenceTask
from headcount.views.ablation import draw_lengths, draw_map, draw_ranking
from headcount.views.export import ablation_csv, ablation_markdown
from headcount.views.progress import counting
from headcount.views.style import png

SPLITS = ("train", "validation", "test")
"""What a file of that name does not stand for."""
N_DECIDING = 40_000
"""Fresh examples on which heads are looked at again."""
Metric = str | Callable[[Tensor, NDArray[np.int64]], Tensor]


@dataclass(frozen=True)
class HeadsAblated:
    """What each head is worth, and where that was written."""

    result: Ablation
    data: Path | None = None
    figures: tuple[Path, ...] = ()
    tables: tuple[Path, ...] = ()
    """The same as Markdown and as CSV."""

    @property
    def heads(self) -> tuple[Effect, ...]:
        """Every head, silenced in every way."""
        return self.result.heads


def ablate_heads(
    model: AnyModel | nn.Module,
    data: str | Path | Exam | Sequence[Any] | NDArray[Any] | None = None,
    metric: Metric | None = None,
    *,
    kinds: Sequence[str] | None = None,
    sites: Sites | None = None,
    n: int | None = None,
    donors: int = DONORS,
    lengths: Sequence[int] = (),
    examples: bool = False,
    batch_size: int = BATCH,
    quiet: bool = False,
    run_adapter: bool = False,
) -> HeadsAblated:
    """Silence every head alone, in every way, and compare answers on the same examples.

    Asked for no number of examples, a run is tried on its test set, and those of its heads that change any answer
    there on 40,000 fresh examples (by resample on a quarter as many, each with four donors).

    `model` is a run (then `data` is the name of a split or examples of its task, and `metric` a name or a function), a
    model of others by its folder or adapter (then `data` is a file or the split of the adapter's task), or any PyTorch
    module: then `data` are its input tensors, `metric(output, rows)` gives one score per row, and `sites` says where
    its heads are unless it can say so itself. All kinds of silencing are tried unless `kinds` says which. A folder that
    was pruned from an adapter's model names the adapter's file, which is run only with `run_adapter`.
    """
    if isinstance(model, nn.Module):
        return HeadsAblated(_ablate_module(model, data, metric, kinds, sites, donors, batch_size, quiet))
    run = ready(model, run_adapter=run_adapter)
    if isinstance(run, Guest):
        _require_plain(run, lengths, examples)
        exam = run.exam(_file(run, data))
        asked = subject_of_exam(run.model, run.sites, exam, some_of(exam, n), metric, at_once=block_size(batch_size))
        subjects: list[tuple[int | None, Subject]] = [(None, asked)]
    else:
        if isinstance(data, Path | Exam) or (isinstance(data, str) and data not in SPLITS and Path(data).is_file()):
            raise InputError(f"{run.name} is asked for its own task", "leave --data out")
        subjects = _subjects(run, "test" if data is None else data, metric, n, lengths, batch_size)
    for kind in kinds or ():
        KINDS.get(kind)
    every = kinds is None or set(kinds) == set(KINDS.names())
    settings = {"n": n, "lengths": tuple(lengths) or None, "examples": examples}
    settings |= {"donors": _unless(DONORS, donors), "batch": _unless(BATCH, batch_size)}
    name = result_name("ablation", data=asked_data(data), metric=metric, kinds=None if every else kinds, **settings)
    run.output.require_writable()
    done = []
    for length, subject in subjects:
        at = "" if length is None else f" at length {length}"
        how = {"donors": donors, "batch_size": batch_size}
        with counting(f"silencing heads of {run.name}{at}", quiet=quiet) as progress:
            found = ablate(subject, kinds, length=length, examples=examples, progress=progress, **how)
        if found.unsettled and (more := _fresh(run, data, metric, n, length, batch_size)):
            what = f"looking again at {len(found.unsettled)} ablations{at}"
            with counting(what, quiet=quiet) as progress:
                found = decide(found, more, progress=progress, **how)
        done.append(found)
    result = _result(label_of(run), run.digest, subjects[0][1], done)
    figures = {f"{name}-by-length.png": draw_lengths(result)} if len(subjects) > 1 else {}
    for condition in result.conditions:
        at = f"-at-{condition.length}" if len(subjects) > 1 else ""
        figures |= {f"{name}{at}.png": draw_ranking(result, condition)}
        figures |= {f"{name}{at}-map.png": draw_map(result, condition)}
    written = tuple(run.output.write_figure(file, png(figure)) for file, figure in figures.items())
    data_file = run.output.write_result(name, result)
    return HeadsAblated(result, data_file, written, _write_tables(data_file, result))


def _unless(usual: int, asked: int) -> int | None:
    return None if asked == usual else asked


def _fresh(
    run: Run | Guest, data: Any, metric: Metric | None, n: int | None, length: int | None, batch_size: int
) -> Subject | None:
    """Many examples on which nothing was decided yet, or all there are; None if others were asked for."""
    usual = data is None or (isinstance(data, str) and data == "test")
    if isinstance(run, Guest) or not usual or n is not None or length is not None or callable(metric):
        return None
    if getattr(run.task.config, "n_train", 0):  # what it is trained on is no test of it
        return None
    size, task = getattr(run.task, "domain_size", math.inf), run.task
    if is_all := size <= 2 * N_DECIDING:
        examples, what = np.concatenate(list(cast(SequenceTask, task).walk())), "examples, all there are"
    else:
        examples, what = task.draw(stream(0, "deciding"), N_DECIDING), "fresh examples such as it was trained on"
    return subject_of(run, examples, what, metric, at_once=block_size(batch_size), is_all=is_all)


def _write_tables(data: Path, result: Ablation) -> tuple[Path, ...]:
    """Beside the result, under its name."""
    texts = {data.with_suffix(".md"): ablation_markdown(result), data.with_suffix(".csv"): ablation_csv(result)}
    for file, text in texts.items():
        write_atomically(file, text.encode(errors="replace"))
    return tuple(texts)


def asked_data(data: Any) -> Any:
    """What a result's name says of the examples; nothing if they are those that are taken unasked."""
    if data is None or (isinstance(data, str) and data == "test"):
        return None
    if isinstance(data, Exam):
        return data.data
    if isinstance(data, str | Path):
        return Path(data) if data not in SPLITS and Path(data).is_file() else str(data)
    return np.asarray(data)


def _file(guest: Guest, data: Any) -> str | Path | Exam | None:
    if data is None or isinstance(data, str | Path | Exam):
        return data
    raise InputError(f"{guest.name} cannot be asked {type(data).__name__}", "give a file, or the model and its tensors")


def _require_plain(guest: Guest, lengths: Sequence[int], examples: bool) -> None:
    if lengths or examples:
        what = "lengths" if lengths else "what broke"
        raise InputError(f"{what}: only for runs of headcount's own tasks, not for {guest.name}", "leave that out")


def _ablate_module(
    model: nn.Module,
    data: Any,
    metric: Metric | None,
    kinds: Sequence[str] | None,
    sites: Sites | None,
    donors: int,
    batch_size: int,
    quiet: bool,
) -> Ablation:
    if not callable(metric):
        raise InputError("a model of your own needs a metric", "give a function: metric(output, rows) -> [row]")
    inputs = [data] if isinstance(data, Tensor) else data
    if not isinstance(inputs, (list, tuple)) or not inputs or not all(isinstance(each, Tensor) for each in inputs):
        raise InputError("a model of your own needs its input tensors as data", "give one, or a list of them")
    subject = subject_on(model, sites or _sites_of(model), inputs, metric, at_once=block_size(batch_size))
    with counting("silencing heads", quiet=quiet) as progress:
        done = ablate(subject, kinds, donors=donors, batch_size=batch_size, progress=progress)
    return _result("", "", subject, [done])


def _sites_of(model: nn.Module) -> Sites:
    return Sites.of(model) if isinstance(model, KnowsItsHeads | HasSites) else wrap(model).head_sites


def _subjects(
    run: Run, data: Any, metric: Metric | None, n: int | None, lengths: Sequence[int], batch_size: int
) -> list[tuple[int | None, Subject]]:
    at_once = block_size(batch_size)
    if lengths:
        made = [(length, *of_length(run.task, length, n)) for length in dict.fromkeys(lengths)]
        return [
            (length, subject_of(run, rows, what, metric, at_once=at_once, reference=reference_for(run.task, length)))
            for length, rows, what in made
        ]
    rows, what = held_out(run.task, data, n) if isinstance(data, str) else (given(run.task, data), "given examples")
    return [(None, subject_of(run, rows, what, metric, at_once=at_once, reference=reference_for(run.task)))]


def block_size(batch_size: int) -> int:
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
