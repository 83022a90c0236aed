"""Does an answer change when an example is padded?

Some published reports padded short sequences with 0 and masked nothing, so that attention and pooling read the padding.
The check runs a short example alone and beside a longer one in one batch. If the code always pads to one width, the
check cuts the padding off instead. Examples that change each other's answers without any padding are reported
separately: `nn.Transformer` takes the second axis for the batch unless it has `batch_first=True`, and then attends
across examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.auditing.audited_model import AuditedClassifier, AuditedSequenceModel, Logits
from headcount.auditing.check import PADDED, Check, Evidence, Finding, failed, not_applicable, passed, warned
from headcount.data.from_adapter import whole_answer
from headcount.errors import HeadcountError
from headcount.tasks.base import Examples, past_end, widened

N_PADDED, N_ALONE, N_DECODED, N_MORE = 64, 8, 16, 5
"""Numbers of short examples that are padded in a batch, run one by one, and decoded one by one.

`N_MORE` is the number of places by which the examples of headcount's own models are padded more.
"""
MAX_LOGIT_CHANGE = 1e-3
"""Largest change of a logit, as a fraction of the largest logit, that rounding can cause in single precision."""
MAX_ROUNDINGS = 16
"""Largest change of a logit that rounding can cause in half precision, in units of machine epsilon."""


# --- classifiers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogitDifference:
    """The difference of two passes over the same examples, in their logits [example, class] and in their answers."""

    n: int
    """The number of examples."""
    n_changed: int
    """The number of examples whose answers differ."""
    moved: float
    """The largest difference of a logit, as a fraction of the largest logit."""

    @classmethod
    def between(cls, one: Logits, other: Logits) -> LogitDifference:
        """Return the difference of two arrays of logits; a constant added to all classes does not count.

        NaN in only one of the arrays is an infinite difference.
        """
        n, n_changed = len(one), int((one.argmax(axis=1) != other.argmax(axis=1)).sum())
        if (np.isfinite(one) != np.isfinite(other)).any():  # for example by a row that is all masked
            return cls(n, n_changed, np.inf)
        one, other = (np.nan_to_num(each - each.mean(axis=1, keepdims=True)) for each in (one, other))
        largest = max(float(np.abs(one).max()), float(np.abs(other).max()))
        return cls(n, n_changed, float(np.abs(one - other).max()) / largest if largest else 0.0)

    @property
    def evidence(self) -> Evidence:
        """The numbers that a finding reports: how many answers changed, by how much logits moved, and n."""
        return {"changed": self.n_changed, "moved": self.moved, "n": self.n}

    def __str__(self) -> str:
        moved = f"logits change by up to {100 * self.moved:.3g} % of the largest logit"
        return moved if self.moved < np.inf else "logits become NaN"

    def is_beyond_rounding(self, model: AuditedClassifier) -> bool:
        """Return whether the difference is larger than rounding in the model's precision can explain."""
        eps = torch.finfo(next(model.opened.module.parameters()).dtype).eps
        return self.moved > max(MAX_LOGIT_CHANGE, MAX_ROUNDINGS * eps)


def check_classes(model: AuditedClassifier) -> Finding:
    """Check whether logits of a short example change when longer or equally long examples share its batch."""
    lengths = model.lengths
    longest, rows = int(lengths.max()), np.flatnonzero(lengths < lengths.max())
    if not len(rows):
        return not_applicable(f"all examples have the same length, {longest}, so none is padded")
    rows = model.rng("padding").permutation(rows)[:N_PADDED]
    short, n, logits_of = model.examples[rows], len(rows), model.logits_in_one_batch
    alone = np.concatenate([logits_of(short[i : i + 1]) for i in range(min(N_ALONE, n))])
    unpadded = _logits_by_length(model, short, lengths[rows])
    by_others = LogitDifference.between(alone, unpadded[: len(alone)])
    if by_others.is_beyond_rounding(model):
        return failed(
            f"{by_others.n_changed} of {by_others.n} examples get another answer in a batch with others of their own "
            f"length than alone, and {by_others}",
            cause="examples of a batch influence each other without any padding: consistent with attention over the "
            "batch axis, as in torch's layers without batch_first=True",
            fix="give torch's layers batch_first=True, or tensors with the sequence first",
            **by_others.evidence,
        )
    padded = logits_of(np.concatenate([short, model.examples[[lengths.argmax()]]]))[:n]
    by_padding = LogitDifference.between(unpadded, padded)
    if by_padding.is_beyond_rounding(model):
        failure = failed(
            f"{by_padding.n_changed} of {n} shorter sequences get another answer in a batch with a sequence of length "
            f"{longest} than alone, and {by_padding}",
            cause="the model reads padding: attention, the pooling or the positions do not leave it out",
            fix="mask padding in attention (key_padding_mask) and in the pooling, and count positions from the first "
            "token",
            **by_padding.evidence,
        )
        return replace(failure, affects=PADDED)
    finding = f"{n} examples have the same answer alone and beside one of length {longest}"
    return _always_padded(model, lengths) or passed(finding, changed=0, moved=by_padding.moved, n=n)


def _logits_by_length(model: AuditedClassifier, examples: Examples, lengths: NDArray[np.int64]) -> Logits:
    """Return logits [example, class]; examples of one length share a batch, so that none is padded."""
    logits = np.empty((len(examples), len(model.task.classes)))
    for length in np.unique(lengths):
        logits[lengths == length] = model.logits_in_one_batch(examples[lengths == length])
    return logits


def _always_padded(model: AuditedClassifier, lengths: NDArray[np.int64]) -> Finding | None:
    """Return a warning if inputs always have one width and logits change without their padding; otherwise None."""
    short, longest = model.examples[lengths == lengths.min()][:N_PADDED], model.examples[[lengths.argmax()]]
    inputs, width = model.inputs(short), model.inputs(longest)[0].shape[1:2]
    n_padding = int(lengths.max() - lengths.min())
    if not width or inputs[0].shape[1:2] != width or not (cut := without_padding(inputs, n_padding)):
        return None
    try:
        difference = LogitDifference.between(model.logits_of(inputs), model.logits_of(cut))
    except (HeadcountError, RuntimeError):  # the model takes inputs of one width only
        return None
    if not difference.is_beyond_rounding(model):
        return None
    return warned(
        f"{difference.n_changed} of {len(short)} sequences of length {lengths.min()} get another answer when their "
        f"padding is cut off (inputs are always padded to {width[0]} tokens); {difference}",
        cause="the model reads padding, which reveals a sequence's length; sequences of the full width have no padding",
        fix="mask padding in attention and in the pooling, and pad no further than the longest sequence of a batch",
        **difference.evidence,
    )


def without_padding(inputs: tuple[Tensor, ...], n_padding: int) -> tuple[Tensor, ...]:
    """Return inputs without the `n_padding` positions of padding at their end or start; () if no padding is there."""
    ids, width = inputs[0], inputs[0].shape[1]
    for kept, rest in (
        (slice(0, width - n_padding), slice(width - n_padding, width)),
        (slice(n_padding, width), slice(n_padding)),
    ):
        if ids.dim() == 2 and n_padding < width and bool((ids[:, rest] == ids[0, rest.stop - 1]).all()):
            return tuple(each[:, kept] if each.shape[1:2] == (width,) else each for each in inputs)
    return ()


# --- models that output sequences -------------------------------------------------------------------------------------

BATCH_MIXED = (
    "examples of a batch influence each other without any padding: consistent with attention over the batch axis, or "
    "with decoding that ends for all examples when it ends for one",
    "give torch's layers batch_first=True, and end the decoding of each row separately",
)
PADDING_READ = (
    "the model reads padding: attention or the positions do not leave it out",
    "mask padding in attention (key_padding_mask, also over the encoder's output), and count positions from the first "
    "token",
)


def _check_own_padding(model: AuditedSequenceModel) -> Finding:
    """Check whether more padding changes the answers to questions, for headcount's own models of mixed lengths."""
    examples = model.examples[:N_PADDED]
    right = model.task.encode(examples).answer
    one, other = (
        model.logits_when_fed(each, model.task.encode(each).answer)[0][:, : right.shape[1]].double().numpy()
        for each in (examples, widened(examples, N_MORE))
    )
    is_asked = ~past_end(right, model.task.end_id)
    difference = LogitDifference.between(one[is_asked], other[is_asked])
    if difference.moved > MAX_LOGIT_CHANGE:
        cause, fix = PADDING_READ
        finding = f"{N_MORE} more places of padding change {difference.n_changed} of {difference.n} tokens"
        return failed(f"{finding}, and {difference}", cause=cause, fix=fix, **difference.evidence)
    finding = f"{len(examples)} questions have the same answer with {N_MORE} more places of padding"
    return passed(finding, changed=0, moved=difference.moved, n=len(examples))


def check_sequences(model: AuditedSequenceModel) -> Finding:
    """Check whether the decoded answer to a short question changes when longer or equally long ones share its batch."""
    adapted = model.adapted
    if adapted is None and model.task.end_id is None:
        return not_applicable(
            "headcount encodes all questions of this task with equally many tokens, so nothing is padded"
        )
    if adapted is None:
        return _check_own_padding(model)
    questions = sorted(dict.fromkeys(question for question, _ in model.pairs), key=len)
    longest, short = questions[-1], [each for each in questions if len(each) < len(questions[-1])][:N_DECODED]
    if not short:
        return not_applicable(f"all questions have the same length, {len(longest)}, so none is padded")

    def decode(*batches: Sequence[str]) -> dict[str, str]:
        texts = ((each, text) for batch in batches for each, text in zip(batch, adapted.generate(batch), strict=True))
        return {question: whole_answer(model.task, text) for question, text in texts}

    alone, again = (decode(*([each] for each in short)) for _ in range(2))  # twice, because decoding may be random
    groups = [group for group in groups_without_padding(short) if len(group) > 1]
    for batches, beside in ((groups, None), ([[*short, longest]], longest)):
        decoded = decode(*batches)
        compared = [each for each in short if each in decoded]
        changed = [
            (each, decoded[each], alone[each]) for each in compared if alone[each] == again[each] != decoded[each]
        ]
        if changed:
            return _changed_answers(changed, len(compared), beside)
    return passed(f"{len(short)} questions have the same answer alone and beside a longer one", n=len(short))


def _changed_answers(changed: list[tuple[str, str, str]], n: int, longest: str | None) -> Finding:
    """Return the failure for answers that change in a batch with a longer question.

    If `longest` is None, the other questions have equal lengths.
    """
    question, there, alone = changed[0]
    beside = "others of their own length" if longest is None else longest
    cause, fix = BATCH_MIXED if longest is None else PADDING_READ
    return failed(
        f"{len(changed)} of {n} questions get another answer in a batch with {beside} than alone: the answer to "
        f"{question} is {there} in the batch, and {alone} alone",
        cause=cause,
        fix=fix,
        changed=len(changed),
        n=n,
    )


def groups_without_padding(questions: Iterable[str]) -> list[list[str]]:
    """Return the questions in groups in which all numbers have equally many digits, so that nothing has to be padded.

    >>> groups_without_padding(["1+22", "3+44", "11+2"])
    [['1+22', '3+44'], ['11+2']]
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for question in questions:
        numbers = re.findall(r"\d+", question)
        groups.setdefault((len(question), *map(len, numbers)), []).append(question)
    return list(groups.values())


PART = Check(
    "HC202",
    "Does an answer change when an example is padded?",
    sequences=check_sequences,
    classes=check_classes,
    needs_decoding=True,
)
