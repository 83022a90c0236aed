"""Does an answer change when an example is padded?

The older reports filled short sequences with 0 and masked nothing, so that attention and pooling read what was not
there. A short example is asked alone and beside a longer one, in one batch. Code that always fills up to one width
shows nothing that way; there the padding is cut off. And rows that change each other without any padding are told
apart: `nn.Transformer` takes the batch second unless it is told `batch_first=True`, and then attends across examples.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.auditing.check import Check, Finding, failed, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.data.adapter_task import AdapterClasses, AdapterSequences
from headcount.data.from_adapter import pairs_of, whole_answer
from headcount.errors import HeadcountError
from headcount.hooks.gates import eval_mode
from headcount.tasks.base import ClassTask, Examples

Logits = NDArray[np.float64]
N, N_ALONE, N_DECODED = 64, 8, 16
"""Short examples that are padded, asked one by one, and decoded one by one."""
MOVED = 1e-3
"""Of the largest logit: what rounding never reaches in single precision."""


def look(observed: Observed) -> Finding:
    """Of classes, by logits; of written answers, by what is decoded."""
    return _classes(observed) if observed.task.output_type == "class" else _sequences(observed)


# --- classes ---


def _classes(observed: Observed) -> Finding:
    lengths = cast(ClassTask, observed.task).lengths(observed.examples)
    rows = np.flatnonzero(lengths < lengths.max())
    if not len(rows):
        return not_applicable(f"all examples have one length, {lengths.max()}, so none is padded")
    rows = observed.rng("padding").permutation(rows)[:N]
    short, longest = observed.examples[rows], observed.examples[[lengths.argmax()]]
    alone = np.concatenate([observed.together(short[i : i + 1]) for i in range(min(N_ALONE, len(rows)))])
    alike = _by_length(observed, short, lengths[rows])
    changed, moved = _difference(alone, alike[: len(alone)])
    if _is_moved(observed, moved):
        return _rows_meet(changed, moved, len(alone))
    changed, moved = _difference(alike, observed.together(np.concatenate([short, longest]))[: len(short)])
    if _is_moved(observed, moved):
        return _leak(changed, moved, len(rows), int(lengths.max()))
    told = f"{len(rows)} examples have the same answer alone and beside one of {lengths.max()}"
    return _read_padding(observed, lengths) or passed(told, changed=0, moved=moved, n=len(rows))


def _by_length(observed: Observed, examples: Examples, lengths: NDArray[np.int64]) -> Logits:
    """Those of one length together, so that none is padded to another's."""
    found = np.empty((len(examples), len(cast(ClassTask, observed.task).classes)))
    for length in np.unique(lengths):
        found[lengths == length] = observed.together(examples[lengths == length])
    return found


def _difference(one: Logits, other: Logits) -> tuple[int, float]:
    """How many answers differ, and the largest difference of a logit as a share of the largest one.

    What is added to all classes alike is no difference; a number that becomes none, such as by a row that is all
    masked, is an infinite one.
    """
    changed = int((one.argmax(axis=1) != other.argmax(axis=1)).sum())
    if (np.isfinite(one) != np.isfinite(other)).any():
        return changed, np.inf
    one, other = (np.nan_to_num(each - each.mean(axis=1, keepdims=True)) for each in (one, other))
    largest = max(float(np.abs(one).max()), float(np.abs(other).max()))
    return changed, float(np.abs(one - other).max()) / largest if largest else 0.0


def _in_words(moved: float) -> str:
    return f"logits move by up to {100 * moved:.3g} % of the largest" if moved < np.inf else "logits become NaN"


def _is_moved(observed: Observed, moved: float) -> bool:
    """More than rounding, which half precision does more of: a tie may change sides by that."""
    eps = torch.finfo(next(observed.model.module.parameters()).dtype).eps
    return moved > max(MOVED, 16 * eps)


def _leak(changed: int, moved: float, n: int, longest: int) -> Finding:
    return failed(
        f"beside a sequence of {longest}, {changed} of {n} shorter ones have another answer than alone, and "
        f"{_in_words(moved)}",
        cause="padding is read: attention, the pooling or the positions do not leave it out",
        fix="hide padding from attention (key_padding_mask) and from the pooling, and count positions from the first "
        "token",
        changed=changed,
        moved=moved,
        n=n,
    )


def _rows_meet(changed: int, moved: float, n: int) -> Finding:
    return failed(
        f"beside others of their own length, {changed} of {n} examples have another answer than alone, and "
        f"{_in_words(moved)}",
        cause="rows of a batch reach each other without any padding: consistent with attention over the batch axis, "
        "as in torch's layers without batch_first=True",
        fix="give torch's layers batch_first=True, or tensors with the sequence first",
        changed=changed,
        moved=moved,
        n=n,
    )


# --- padding that is always there ---


def _read_padding(observed: Observed, lengths: NDArray[np.int64]) -> Finding | None:
    """A warning if inputs always have one width and answers change when padding is cut off; None if not, or unknown."""
    short, longest = observed.examples[lengths == lengths.min()][:N], observed.examples[[lengths.argmax()]]
    inputs, width = observed.inputs(short), observed.inputs(longest)[0].shape[1:2]
    surplus = int(lengths.max() - lengths.min())
    if not width or inputs[0].shape[1:2] != width or not (cut := _without_padding(inputs, surplus)):
        return None
    try:
        changed, moved = _difference(_logits(observed, inputs), _logits(observed, cut))
    except (HeadcountError, RuntimeError):  # a model of one width cannot be asked that
        return None
    if not _is_moved(observed, moved):
        return None
    return warned(
        f"sequences are always filled up to {width[0]} tokens, and {changed} of {len(short)} of {lengths.min()} have "
        f"another answer when that padding is cut off; {_in_words(moved)}",
        cause="padding is read: it tells the length of a sequence, and beyond the usual width there is none of it",
        fix="hide padding from attention and from the pooling, and fill up no further than the longest of a batch",
        changed=changed,
        moved=moved,
        n=len(short),
    )


def _without_padding(inputs: tuple[Tensor, ...], surplus: int) -> tuple[Tensor, ...]:
    """Inputs without so many positions at the end or else the beginning, if all hold one id there; none if not."""
    ids, width = inputs[0], inputs[0].shape[1]
    for kept, rest in (
        (slice(0, width - surplus), slice(width - surplus, width)),
        (slice(surplus, width), slice(surplus)),
    ):
        if ids.dim() == 2 and surplus < width and bool((ids[:, rest] == ids[0, rest.stop - 1]).all()):
            return tuple(each[:, kept] if each.shape[1:2] == (width,) else each for each in inputs)
    return ()


def _logits(observed: Observed, inputs: tuple[Tensor, ...]) -> Logits:
    """By the task's classes."""
    columns = observed.answers.columns if isinstance(observed.answers, AdapterClasses) else slice(None)
    with eval_mode(observed.model.module, gradients=False):
        return np.asarray(observed.model.module(*inputs)[:, columns].double().cpu().numpy())


# --- written answers ---


def _sequences(observed: Observed) -> Finding:
    """Decoded alone and beside a longer question; twice alone, for some code draws its answers."""
    answers, task = observed.answers, observed.task
    if not isinstance(answers, AdapterSequences):
        return not_applicable("numbers are filled up with zeros to one width, so nothing is padded")
    if not answers.generates:
        return not_applicable("the adapter has no generate(), so its own answers are not known")
    questions = sorted((question for question, _ in pairs_of(task, observed.examples)), key=len)
    longest, short = questions[-1], [each for each in questions if len(each) < len(questions[-1])][:N_DECODED]
    if not short:
        return not_applicable(f"all questions have one length, {len(longest)}, so none is padded")

    def written(questions: list[str]) -> list[str]:
        return [whole_answer(task, text) for text in answers.generate(questions)]

    alone, again = ([written([each])[0] for each in short] for _ in range(2))
    alike, beside = written([each for each in short if len(each) == len(short[0])]), written([*short, longest])
    for answers_there, is_padded in ((alike, False), (beside[: len(short)], True)):
        asked = zip(short, answers_there, alone, again, strict=False)
        changed = [(question, there, once) for question, there, once, twice in asked if once == twice != there]
        if changed:
            return _changed(changed, len(answers_there), longest if is_padded else None)
    return passed(f"{len(short)} questions have the same answer alone and beside a longer one", n=len(short))


def _changed(changed: list[tuple[str, str, str]], n: int, longest: str | None) -> Finding:
    """By a longer question, or by others of one length if there is none."""
    question, there, alone = changed[0]
    told = (
        f"{len(changed)} of {n} questions have another answer than alone: {question} gives {there}, and {alone} alone"
    )
    if longest is None:
        return failed(
            f"beside others of their own length, {told}",
            cause="rows of a batch reach each other without any padding: consistent with attention over the batch "
            "axis, or with decoding that ends for all when it ends for one",
            fix="give torch's layers batch_first=True, and end the decoding of each row by itself",
            changed=len(changed),
            n=n,
        )
    return failed(
        f"beside {longest}, {told}",
        cause="padding is read: attention or the positions do not leave it out",
        fix="hide padding from attention (key_padding_mask, also over the encoder's output), and count positions from "
        "the first token",
        changed=len(changed),
        n=n,
    )


PART = Check("HC202", "Does an answer change when an example is padded?", look)
