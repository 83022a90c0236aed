"""Answers that are fed to a decoder: changed, written otherwise, or beside other questions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headcount.auditing.observed import Observed
from headcount.data.adapter_task import AdapterSequences
from headcount.data.from_adapter import Pairs, pairs_of, require_logits
from headcount.data.probing import AnswerTokens
from headcount.errors import HeadcountError
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE, SequenceTask, Tokens
from headcount.training.answers import BLOCK

TOLERANCE = 1e-4
"""Most that a logit may move by rounding, as a share of the largest."""


def share_moved(logits: Tensor, others: Tensor) -> Tensor:
    """[example, label]: the largest difference over tokens, as a share of the largest logit."""
    is_number = logits.isfinite() & others.isfinite()
    largest = logits.masked_fill(~is_number, 0).abs().max().clamp(min=torch.finfo(logits.dtype).tiny)
    return (logits - others).masked_fill(~is_number, 0).abs().amax(dim=-1) / largest


def other_tokens(observed: Observed, tokens: Tokens) -> Tokens:
    """For each token another one that answers have; never the first of all, a 0 that need not be written in front."""
    known = np.unique(observed.right_answers)
    known = known[1:] if len(known) > 2 else np.array([1, 2])
    return np.asarray(known[np.searchsorted(known, tokens, side="right") % len(known)])


def rows_of_one_length(observed: Observed, n: int) -> np.ndarray:
    """Rows of up to `n` examples whose questions and right answers are of the same length, the most frequent one."""
    task = cast(SequenceTask, observed.task)
    lengths = [(len(task.show(example)), len(task.answer(example))) for example in observed.examples]
    ((most, _),) = Counter(lengths).most_common(1)
    return np.array([row for row, each in enumerate(lengths) if each == most][:n])


# --- other ways to write questions and answers ------------------------------------------------------------------------

N_TRIED = 64
"""Examples that are written otherwise."""
FITS, BETTER = 0.5, 0.2
"""Share of examples that one pass has right in a format that fits, and by how much that is better."""


@dataclass(frozen=True)
class Format:
    """A way to write questions and answers, and how well one pass does with it."""

    name: str
    example: tuple[str, str]
    """A question and its answer, written so."""
    right: Proportion
    """Examples that one pass has right."""
    loss: float
    """Cross-entropy per token."""

    def __str__(self) -> str:
        question, answer = self.example
        told = f"with {self.name}, such as {answer} for {question}, one pass is right on {self.right.correct:,} of "
        return f"{told}{self.right.n:,} and the loss is {self.loss:.3f}"


def fitting_format(observed: Observed) -> Format | None:
    """Return the format in which one pass is right on most examples, if that is another one than encode() is given."""
    if not isinstance(observed.answers, AdapterSequences):
        return None
    ways = _ways_of_writing(observed)
    given = _measure(observed.answers, "", next(ways)[1])
    tried = [_measure(observed.answers, name, pairs) for name, pairs in ways]
    best = max((each for each in tried if each is not None), key=lambda each: each.right.rate, default=None)
    if best is None or best.right.low < FITS or (given is not None and best.right.low < given.right.rate + BETTER):
        return None
    return best


def _ways_of_writing(observed: Observed) -> Iterator[tuple[str, Pairs]]:
    """Yield names and pairs: as people write them, then zero-filled, unfilled and reversed."""
    task, examples = cast(SequenceTask, observed.task), observed.examples[:N_TRIED]
    plain = pairs_of(task, examples)
    full = [task.show_tokens(tokens) for tokens in task.encode(examples).answer]
    width = max(len(number) for question, _ in plain for number in re.findall(r"\d+", question) or [""])
    yield "", plain
    for where, asked in (
        ("", [question for question, _ in plain]),
        (" to zero-filled questions", [re.sub(r"\d+", lambda each: each[0].zfill(width), one) for one, _ in plain]),
    ):
        answers = [answer for _, answer in plain]
        yield f"zero-filled answers{where}", list(zip(asked, full, strict=True))
        yield f"unfilled answers{where}", list(zip(asked, answers, strict=True))
        yield f"reversed answers{where}", list(zip(asked, _reversed(task, answers), strict=True))
        yield f"reversed zero-filled answers{where}", list(zip(asked, _reversed(task, full), strict=True))


def _reversed(task: SequenceTask, answers: list[str]) -> list[str]:
    writing = AnswerTokens.of(task)
    return [writing.join(writing.split(answer)[::-1]) for answer in answers]


def _measure(model: AdapterSequences, name: str, pairs: Pairs) -> Format | None:
    """Ask in one pass; None if encode() or the model refuses the format."""
    with suppress(HeadcountError):
        hits, losses = [], []
        for logits, labels in model.passes(pairs, BLOCK):
            require_logits(logits, labels)
            hits.append(((logits.argmax(dim=-1) == labels) | (labels == IGNORE)).all(dim=1).cpu().numpy())
            loss = F.cross_entropy(logits.transpose(1, 2).float(), labels, ignore_index=IGNORE, reduction="none")
            losses.append(loss[labels != IGNORE].double().cpu().numpy())
        return Format(name, pairs[0], Proportion.count(np.concatenate(hits)), float(np.concatenate(losses).mean()))
    return None
