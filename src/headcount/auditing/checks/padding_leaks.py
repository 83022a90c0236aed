"""Does an answer change when an example is padded?

The older reports filled short sequences with 0 and masked nothing, so that attention and pooling read what was not
there. A short example is asked alone and beside a longer one, in one batch. Code that always fills up to one width
shows nothing that way; there the padding is cut off. And rows that change each other without any padding are told
apart: `nn.Transformer` takes the batch second unless it is told `batch_first=True`, and then attends across examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headcount.auditing.check import PADDED, Check, Finding, failed, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.auditing.padding import (
    LogitDifference,
    groups_without_padding,
    logits_by_length,
    logits_of,
    without_padding,
)
from headcount.data.adapter_task import AdapterSequences
from headcount.data.from_adapter import pairs_of, whole_answer
from headcount.errors import HeadcountError
from headcount.tasks.base import ClassTask

N, N_ALONE, N_DECODED = 64, 8, 16
"""Short examples that are padded, asked one by one, and decoded one by one."""


def run(observed: Observed) -> Finding:
    """Of classes, by logits; of written answers, by what is decoded."""
    return _classes(observed) if observed.task.output_type == "class" else _sequences(observed)


# --- classes ---


def _classes(observed: Observed) -> Finding:
    lengths = cast(ClassTask, observed.task).lengths(observed.examples)
    longest, rows = int(lengths.max()), np.flatnonzero(lengths < lengths.max())
    if not len(rows):
        return not_applicable(f"all examples have one length, {longest}, so none is padded")
    rows = observed.rng("padding").permutation(rows)[:N]
    short, n, ask = observed.examples[rows], len(rows), observed.logits_in_one_batch
    alone = np.concatenate([ask(short[i : i + 1]) for i in range(min(N_ALONE, n))])
    alike = logits_by_length(observed, short, lengths[rows])
    meeting = LogitDifference.between(alone, alike[: len(alone)])
    if meeting.is_beyond_rounding(observed):
        return _rows_meet(meeting, len(alone))
    padded = ask(np.concatenate([short, observed.examples[[lengths.argmax()]]]))[:n]
    padding = LogitDifference.between(alike, padded)
    if padding.is_beyond_rounding(observed):
        return _padding_is_read(padding, n, longest)
    told = f"{n} examples have the same answer alone and beside one of {longest}"
    return _always_padded(observed, lengths) or passed(told, changed=0, moved=padding.moved, n=n)


def _padding_is_read(found: LogitDifference, n: int, longest: int) -> Finding:
    failure = failed(
        f"beside a sequence of {longest}, {found.changed} of {n} shorter ones have another answer than alone, and "
        f"{found}",
        cause="padding is read: attention, the pooling or the positions do not leave it out",
        fix="hide padding from attention (key_padding_mask) and from the pooling, and count positions from the first "
        "token",
        changed=found.changed,
        moved=found.moved,
        n=n,
    )
    return replace(failure, affects=PADDED)


def _rows_meet(found: LogitDifference, n: int) -> Finding:
    return failed(
        f"beside others of their own length, {found.changed} of {n} examples have another answer than alone, and "
        f"{found}",
        cause="rows of a batch reach each other without any padding: consistent with attention over the batch axis, "
        "as in torch's layers without batch_first=True",
        fix="give torch's layers batch_first=True, or tensors with the sequence first",
        changed=found.changed,
        moved=found.moved,
        n=n,
    )


def _always_padded(observed: Observed, lengths: NDArray[np.int64]) -> Finding | None:
    """A warning if inputs always have one width and answers change when padding is cut off; None if not, or unknown."""
    short, longest = observed.examples[lengths == lengths.min()][:N], observed.examples[[lengths.argmax()]]
    inputs, width = observed.inputs(short), observed.inputs(longest)[0].shape[1:2]
    surplus = int(lengths.max() - lengths.min())
    if not width or inputs[0].shape[1:2] != width or not (cut := without_padding(inputs, surplus)):
        return None
    try:
        found = LogitDifference.between(logits_of(observed, inputs), logits_of(observed, cut))
    except (HeadcountError, RuntimeError):  # a model of one width cannot be asked that
        return None
    if not found.is_beyond_rounding(observed):
        return None
    return warned(
        f"sequences are always filled up to {width[0]} tokens, and {found.changed} of {len(short)} of {lengths.min()} "
        f"have another answer when that padding is cut off; {found}",
        cause="padding is read: it tells the length of a sequence, and beyond the usual width there is none of it",
        fix="hide padding from attention and from the pooling, and fill up no further than the longest of a batch",
        changed=found.changed,
        moved=found.moved,
        n=len(short),
    )


# --- written answers ---


def _sequences(observed: Observed) -> Finding:
    """Decoded alone, beside others that need no padding, and beside a longer one."""
    answers, task = observed.answers, observed.task
    if not isinstance(answers, AdapterSequences):
        return not_applicable("numbers are filled up with zeros to one width, so nothing is padded")
    questions = sorted(dict.fromkeys(question for question, _ in pairs_of(task, observed.examples)), key=len)
    longest, short = questions[-1], [each for each in questions if len(each) < len(questions[-1])][:N_DECODED]
    if not short:
        return not_applicable(f"all questions have one length, {len(longest)}, so none is padded")

    def written(*batches: Sequence[str]) -> dict[str, str]:
        texts = ((each, text) for batch in batches for each, text in zip(batch, answers.generate(batch), strict=True))
        return {question: whole_answer(task, text) for question, text in texts}

    alone, again = (written(*([each] for each in short)) for _ in range(2))  # twice, for some code draws its answers
    groups = [group for group in groups_without_padding(short) if len(group) > 1]
    for batches, beside in ((groups, None), ([[*short, longest]], longest)):
        there = written(*batches)
        asked = [each for each in short if each in there]
        changed = [(each, there[each], alone[each]) for each in asked if alone[each] == again[each] != there[each]]
        if changed:
            return _changed(changed, len(asked), beside)
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


PART = Check("HC202", "Does an answer change when an example is padded?", run, needs_decoding=True)
