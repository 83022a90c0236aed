"""Does a later token of the answer, which is fed, move an earlier logit?

A decoder without a causal mask, with one that is off by one, or that is fed the very token it is to predict copies its
input: it is right on everything in one pass and in training, and on nothing when it has to write by itself. It is seen
by changing one token of the answers that are fed: logits up to the one that should predict it must not move.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.observed import Observed
from headcount.tasks.base import IGNORE, Examples, SequenceTask, Tokens

ROWS = 32
"""Examples that are tried."""
TOLERANCE = 1e-4
"""Most that a logit may move by rounding, as a share of the largest."""


@dataclass(frozen=True)
class Change:
    """What changing one token of the answers did."""

    place: int
    """Of the answer."""
    label: int
    """The first label that changes with it."""
    moved: Tensor
    """[example, label]: by how much logits moved, as a share of the largest."""

    @property
    def ahead(self) -> Tensor:
        """[example, label]: up to the label of the changed token, which must not move."""
        return self.moved[:, : self.label + 1] > TOLERANCE


def look(observed: Observed) -> Finding:
    """Place by place of the answer."""
    rows = alike(observed, ROWS)
    examples, answers = observed.examples[rows], observed.right_answers[rows]
    logits, labels = observed.fed(examples, answers)
    if (noise := float(share_moved(logits, observed.fed(examples, answers)[0]).max())) > TOLERANCE:
        return not_applicable(f"two passes on the same input differ by {noise:.2%} of the largest logit")
    tried = (_change(observed, examples, answers, place, logits, labels) for place in range(answers.shape[1]))
    changes = [each for each in tried if each is not None]
    if not any((each.moved > TOLERANCE).any() for each in changes):
        return not_applicable("its logits do not depend on the answer that it is fed")
    seen = [each for each in changes if each.ahead.any()]
    if not seen:
        return passed("no token of the answer moves an earlier logit", n=len(rows), places=len(changes))
    return _failed(observed, changes, seen, len(rows))


def _failed(observed: Observed, changes: list[Change], seen: list[Change], n: int) -> Finding:
    """With the earliest place that is affected, and what affects it most often."""
    names = {each.label: observed.places[each.place] for each in changes}
    earliest = min(int(each.ahead.any(dim=0).nonzero()[0]) for each in seen)
    later = [each for each in seen if each.label >= earliest]
    worst = max(later, key=lambda each: (int(each.ahead[:, earliest].sum()), each.label > earliest))
    count, most = int(worst.ahead[:, earliest].sum()), float(worst.moved[:, earliest].max())
    name = names.get(earliest, f"label {earliest}")
    is_itself = all(not each.ahead[:, :-1].any() for each in seen)
    moves = "the logits that should predict it" if worst.label == earliest else f"the logits of the {name}"
    return failed(
        f"the {observed.places[worst.place]} token that is fed moves {moves} in {count:,} of {n:,} examples, by up to "
        f"{most:.1%} of the largest logit",
        cause="consistent with a causal mask that is off by one, or a decoder that is fed the answer without shifting "
        "it: it can copy the token that it is to predict"
        if is_itself
        else "the decoder's self-attention has no causal mask, so that it can copy the tokens that it is to predict",
        fix="feed [start, *answer[:-1]] and mask what follows in the decoder's self-attention, "
        "torch.ones(n, n).triu(diagonal=1).bool(); then train again",
        earliest=name,
        moved=most,
        n=n,
    )


def _change(
    observed: Observed, examples: Examples, answers: Tokens, place: int, logits: Tensor, labels: Tensor
) -> Change | None:
    """Another token there; None if no label stands for it, as for a token that is handed to the decoder."""
    changed = answers.copy()
    changed[:, place] = other_tokens(observed, answers[:, place])
    new_logits, new_labels = observed.fed(examples, changed)
    if new_labels.shape != labels.shape or not (new_labels != labels).any():
        return None
    label = int((new_labels != labels).any(dim=0).nonzero()[0])
    is_asked = (labels != IGNORE).any(dim=0)
    return Change(place, label, share_moved(logits, new_logits) * is_asked)


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


def alike(observed: Observed, n: int) -> np.ndarray:
    """Rows of up to `n` examples whose questions and right answers are of the same length, the most frequent one."""
    task = cast(SequenceTask, observed.task)
    lengths = [(len(task.show(example)), len(task.answer(example))) for example in observed.examples]
    ((most, _),) = Counter(lengths).most_common(1)
    return np.array([row for row, each in enumerate(lengths) if each == most][:n])


PART = Check(
    "HC201",
    "Does a later token of the answer, which is fed, move an earlier logit?",
    look,
    asks="sequence",
    explains=(
        "HC101",
        "HC102",
        "HC103",
        "HC104",
        "HC105",
        "HC106",
        "HC301",
        "HC303",
        "HC304",
        "HC702",
        "HC703",
        "HC802",
    ),
)
