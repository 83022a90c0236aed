"""Test whether a model is right if its adapter wrote answers in another format, such as with leading zeros."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from torch.nn import functional as F

from headcount.auditing.audited_model import AuditedSequenceModel
from headcount.data.adapter_task import AdapterSequences
from headcount.data.from_adapter import Pairs, pairs_of, require_logits
from headcount.errors import HeadcountError
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE
from headcount.training.answers import BLOCK

N_TRIED = 64
"""Number of examples to write in each format: enough to tell a format that fits from one that does not."""
MIN_RIGHT, MIN_GAIN = 0.5, 0.2
"""A format fits if exact match is at least the first value, and above that in encode()'s format by the second."""


@dataclass(frozen=True)
class Format:
    """A way of writing questions and answers, such as with leading zeros, and how well the model does in it.

    Exact match and loss come from one teacher-forced pass in this format.
    """

    name: str
    example: tuple[str, str]
    """A question and its answer in this format."""
    right: Proportion
    """The fraction of examples on which one teacher-forced pass is right."""
    loss: float
    """Cross-entropy per token of the answer, in nats."""

    def __str__(self) -> str:
        question, answer = self.example
        return (
            f"with {self.name}, such as {answer} for {question}, teacher forcing is right on {self.right.correct:,} of "
            f"{self.right.n:,} examples and the loss is {self.loss:.3f}"
        )


def fitting_format(model: AuditedSequenceModel) -> Format | None:
    """Return the answer format in which the model is right far more often than in encode()'s; None without one."""
    if model.adapted is None:
        return None
    formats = _formats(model)
    given = _measure(model.adapted, "", next(formats)[1])
    measured = [_measure(model.adapted, name, pairs) for name, pairs in formats]
    best = max((each for each in measured if each is not None), key=lambda each: each.right.rate, default=None)
    if best is None or best.right.low < MIN_RIGHT:
        return None
    return None if given is not None and best.right.low < given.right.rate + MIN_GAIN else best


def _formats(model: AuditedSequenceModel) -> Iterator[tuple[str, Pairs]]:
    """Yield the name of each answer format with examples written in it; encode()'s own comes first, without a name."""
    task, examples = model.task, model.examples[:N_TRIED]
    plain = pairs_of(task, examples)
    full = [task.show_tokens(tokens) for tokens in task.encode(examples).answer]
    width = max(len(number) for question, _ in plain for number in re.findall(r"\d+", question) or [""])

    def backwards(answer: str) -> str:
        return model.answer_tokens.join(model.answer_tokens.split(answer)[::-1])

    yield "", plain
    for suffix, questions in (
        ("", [question for question, _ in plain]),
        (" to zero-filled questions", [re.sub(r"\d+", lambda each: each[0].zfill(width), one) for one, _ in plain]),
    ):
        answers = [answer for _, answer in plain]
        yield f"zero-filled answers{suffix}", list(zip(questions, full, strict=True))
        yield f"unfilled answers{suffix}", list(zip(questions, answers, strict=True))
        yield f"reversed answers{suffix}", list(zip(questions, map(backwards, answers), strict=True))
        yield f"reversed zero-filled answers{suffix}", list(zip(questions, map(backwards, full), strict=True))


def _measure(model: AdapterSequences, name: str, pairs: Pairs) -> Format | None:
    """Return exact match and loss of one teacher-forced pass in a format; None if encode() or the model refuses it."""
    with suppress(HeadcountError):
        hits, losses = [], []
        for logits, labels in model.passes(pairs, BLOCK):
            require_logits(logits, labels)
            hits.append(((logits.argmax(dim=-1) == labels) | (labels == IGNORE)).all(dim=1).cpu().numpy())
            loss = F.cross_entropy(logits.transpose(1, 2).float(), labels, ignore_index=IGNORE, reduction="none")
            losses.append(loss[labels != IGNORE].double().cpu().numpy())
        return Format(name, pairs[0], Proportion.count(np.concatenate(hits)), float(np.concatenate(losses).mean()))
    return None
