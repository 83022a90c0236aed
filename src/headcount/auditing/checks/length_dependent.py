"""Does what is added at a place depend on the length of the sequence?

Report 000 multiplied positions by 512 / length and said "sinusoidal": 100 % at every length on shuffled sequences, and
0 % of single adjacent swaps detected. The vectors that the first attention block reads are compared between a sequence
and the same sequence with more numbers behind: before attention mixes anything, those of the first numbers must stay.
Two controls: the same sequence again (positions may be drawn at random), and other numbers behind (something else may
mix the tokens).
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.observed import Observed
from headcount.errors import HeadcountError
from headcount.hooks.gates import eval_mode, unfused
from headcount.tasks.base import ClassTask, Examples

N_ROWS = 7
"""Sequences that are compared; odd, so that rows are not taken for positions."""
TOLERANCE = 1e-3
"""Share of their own size that vectors may move."""
UNSEEN = "where its first attention block reads the embeddings was not found"
MIXED = "tokens are mixed before the first attention block, so that what is added for a place cannot be told"


def look(observed: Observed) -> Finding:
    """From the shortest to the longest sequence in training."""
    task = cast(ClassTask, observed.task)
    short, long = _lengths(observed)
    longer = task.sample_of_length(observed.rng("length dependent"), long, task.negatives[0], N_ROWS)
    shorter, others = longer[:, :short], np.concatenate([longer[:, :short], np.roll(longer[:, short:], 1, 0)], axis=1)
    first = max(1, short // 2)
    if not _begins_alike(observed.inputs(shorter), observed.inputs(longer), first):
        return not_applicable("a longer sequence is encoded with its first numbers at other places")
    asked = (shorter, shorter, longer, others)
    streams = [_first_vectors(first_stream(observed, each), first) for each in asked]
    if any(each is None for each in streams):
        return not_applicable(UNSEEN)
    one, again, grown, refilled = (cast(Tensor, each) for each in streams)
    if _moved(one, again) > TOLERANCE / 10:
        return not_applicable("the embeddings of one sequence change from pass to pass")
    moved, mixed = _moved(one, grown), _moved(grown, refilled)
    if moved > max(TOLERANCE, 3 * mixed):
        if _is_counted_from_the_end(observed, longer, short, first):
            return passed("positions are counted from the end, where embeddings stay", moved=moved, n=N_ROWS)
        return _told(observed, moved, short, long)
    if mixed > TOLERANCE:
        return not_applicable(MIXED)
    return passed(
        f"the embeddings of the first {first} numbers stay when a sequence grows from {short} to {long}",
        moved=moved,
        n=N_ROWS,
    )


def _told(observed: Observed, moved: float, short: int, long: int) -> Finding:
    """Unless ids are drawn at random, from many more than there are tokens, and known to be."""
    if n_ids := _random_ids(observed):
        return passed(f"positions are drawn from {n_ids:,} at random, as in training, and so differ between lengths")
    return failed(
        f"the embeddings of the first numbers move by {100 * moved:.0f} % of their size when a sequence grows from "
        f"{short} to {long} numbers, though the numbers and their places stay",
        cause="consistent with positions that are divided by the length of the sequence: a place then says how far "
        "along it is, which gives shuffles away and says little of neighbours",
        fix="count positions 0, 1, 2, ... whatever the length, or call the encoding length-normalised",
        moved=moved,
        shorter=short,
        longer=long,
        n=N_ROWS,
    )


def _is_counted_from_the_end(observed: Observed, longer: Examples, short: int, last: int) -> bool:
    """Whether the last numbers keep their embeddings when there are more before them."""
    streams = [first_stream(observed, each) for each in (longer[:, -short:], longer)]
    one, other = (None if each is None or each.shape[1] < last else each[:, -last:] for each in streams)
    return one is not None and other is not None and _moved(one, other) <= TOLERANCE


def _lengths(observed: Observed) -> tuple[int, int]:
    """Both in training where that has several."""
    short, long = observed.model.trained or cast(ClassTask, observed.task).trained_lengths
    return (short, long) if short < long else (long, 2 * long)


def _begins_alike(one: Sequence[Tensor], other: Sequence[Tensor], first: int) -> bool:
    """Whether the model is given the same at the first places: an encoder may fill up in front."""
    return any(
        a.dim() > 1 and a.shape[1] >= first and torch.equal(a[:, :first], b[:, :first])
        for a, b in zip(one, other, strict=True)
    )


def _first_vectors(stream: Tensor | None, first: int) -> Tensor | None:
    return None if stream is None or stream.shape[1] < first else stream[:, :first]


def _moved(one: Tensor, other: Tensor) -> float:
    return float((other - one).norm() / one.norm().clamp(min=1e-30))


def _random_ids(observed: Observed) -> int | None:
    try:
        return observed.model.positions().encoding_in_use().random_positions
    except HeadcountError:
        return None


# --- what the first attention block reads -----------------------------------------------------------------------------


def first_stream(observed: Observed, examples: Examples) -> Tensor | None:
    """[row, position, width]: the input of the first attention block, or of its first linear layer if it has some.

    None where that cannot be told, such as in a model without heads.
    """
    sites, module, inputs = observed.model.sites, observed.model.module, observed.inputs(examples)
    if not sites:
        return None
    with eval_mode(module, gradients=False), unfused(sites), StreamReader(module, sites.projections) as seen:
        module(*inputs)
    if seen.stream is not None and len(set(seen.stream.shape[:2])) == 1 < len(examples) == len(seen.stream):
        return first_stream(observed, examples[:-1])  # else rows and positions could not be told apart
    return _rows_first(seen.stream, len(examples))


def is_mixed(observed: Observed, examples: Examples) -> bool:
    """Whether other numbers in the second half of the examples change more than what stands there."""
    half, others = examples.shape[1] // 2, examples.copy()
    others[:, half:] = np.roll(examples[:, half:], 1, axis=0)
    one, other = first_stream(observed, examples), first_stream(observed, others)
    if one is None or other is None or one.shape != other.shape:
        return False
    moved = (other - one).abs().amax(dim=(0, 2)) > 1e-6 * one.abs().max()
    for before, after in zip(observed.inputs(examples), observed.inputs(others), strict=True):
        if before.dim() == 2 and before.shape == after.shape and before.shape[1] == one.shape[1]:
            return bool((moved & ~(before != after).any(dim=0).cpu()).any())
    return observed.task.output_type == "class" and int(moved.sum()) > examples.shape[1] - half


class StreamReader:
    """Follows a pass through its modules until the first output projection of heads is called."""

    def __init__(self, model: nn.Module, projections: Iterable[nn.Module]) -> None:
        self._model, self._projections = model, set(projections)
        self._open: list[tuple[Tensor | None, int]] = []  # modules that have not returned: input, linear inputs before
        self._linear: list[Tensor] = []
        self._is_done = False
        self.stream: Tensor | None = None
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        for module in self._model.modules():
            self._hooks.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
            self._hooks.callback(module.register_forward_hook(self._leave).remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_done:
            return
        if module in self._projections:
            self.stream, self._is_done = self._found(), True
            return
        given = next(filter(_is_stream, (*args, *kwargs.values())), None)
        copied = None if given is None else given.detach().clone()  # what comes later may write into it
        self._open.append((copied, len(self._linear)))
        if isinstance(module, nn.Linear) and copied is not None:
            self._linear.append(copied)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not self._is_done:
            self._open.pop()

    def _found(self) -> Tensor | None:
        """Of the innermost block around the projection; without blocks, what the last linear layer read: values."""
        for given, n_before in reversed(self._open):
            if given is not None:
                return self._linear[n_before] if len(self._linear) > n_before else given
        return self._linear[-1] if self._linear else None


def _is_stream(given: Any) -> bool:
    return isinstance(given, Tensor) and given.dim() == 3 and given.is_floating_point()


def _rows_first(stream: Tensor | None, n_rows: int) -> Tensor | None:
    """Some models have positions first."""
    if stream is None or n_rows not in stream.shape[:2]:
        return None
    return (stream if stream.shape[0] == n_rows else stream.transpose(0, 1)).double().cpu()


PART = Check(
    "HC504",
    "Does what is added at a place depend on the length of the sequence?",
    look,
    asks="class",
    explains=("HC202",),
)
