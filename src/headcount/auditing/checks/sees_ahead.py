"""Does the decoder see the answer tokens that it has to predict? (causal mask missing or shifted)

A decoder copies its input if it has no causal mask, if the mask is off by one, or if it is fed the token that it has to
predict. It is then right on all examples in training and under teacher forcing, and on none when it decodes. The check
changes one token of the answers that the decoder is fed. Logits up to the one that predicts this token must not change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from headcount.auditing.audited_model import MAX_LOGIT_CHANGE, AuditedSequenceModel, logit_changes
from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.formatting import percent
from headcount.tasks.base import IGNORE, Examples, Tokens

N_EXAMPLES = 32
"""Number of examples whose answers are changed: without a causal mask, the logits of nearly all of them change."""


@dataclass(frozen=True)
class TokenChange:
    """The changes of the logits when one token of the answers that are fed to the decoder is changed."""

    place: int
    """The index of the changed token in the answer."""
    label: int
    """The index of the first label that changes together with the token."""
    moved: Tensor
    """[example, label]: largest change of the label's logits, as a fraction of the largest logit."""

    @property
    def ahead(self) -> Tensor:
        """[example, label]: whether the logits change of a label that must not depend on the changed token."""
        return self.moved[:, : self.label + 1] > MAX_LOGIT_CHANGE


def run(model: AuditedSequenceModel) -> Finding:
    """Change one token of the answers fed to the decoder at a time; fail if an earlier logit changes."""
    rows = model.rows_of_one_length(N_EXAMPLES)
    examples, answers = model.examples[rows], model.right_answers[rows]
    logits, labels = model.logits_when_fed(examples, answers)
    noise = float(logit_changes(logits, model.logits_when_fed(examples, answers)[0]).max())
    if noise > MAX_LOGIT_CHANGE:
        return not_applicable(f"two passes on the same input differ by {percent(noise, 2)} of the largest logit")
    by_place = (_token_change(model, examples, answers, place, logits, labels) for place in range(answers.shape[1]))
    changes = [each for each in by_place if each is not None]
    if not any((each.moved > MAX_LOGIT_CHANGE).any() for each in changes):
        return not_applicable("the logits do not depend on the answer that the decoder is fed")
    leaks = [each for each in changes if each.ahead.any()]
    if not leaks:
        return passed("no token of the answer changes an earlier logit", n=len(rows), places=len(changes))
    return _failure(model, changes, leaks, len(rows))


def _failure(model: AuditedSequenceModel, changes: list[TokenChange], leaks: list[TokenChange], n: int) -> Finding:
    """Return the failure: the earliest place whose logits see a later token, and the token that changes them most."""
    names = {each.label: model.places[each.place] for each in changes}
    earliest = min(int(each.ahead.any(dim=0).nonzero()[0]) for each in leaks)
    later = [each for each in leaks if each.label >= earliest]
    worst = max(later, key=lambda each: (int(each.ahead[:, earliest].sum()), each.label > earliest))
    count, largest = int(worst.ahead[:, earliest].sum()), float(worst.moved[:, earliest].max())
    name = names.get(earliest, f"label {earliest}")
    sees_only_itself = all(not each.ahead[:, :-1].any() for each in leaks)
    moved = "the logits that predict it" if worst.label == earliest else f"the logits of the {name}"
    return failed(
        f"the {model.places[worst.place]} token that the decoder is fed changes {moved} in {count:,} of {n:,} "
        f"examples, by up to {percent(largest)} of the largest logit",
        cause="consistent with a causal mask that is off by one, or a decoder that is fed the answer without shifting "
        "it: it can copy the token that it has to predict"
        if sees_only_itself
        else "the decoder's self-attention has no causal mask, so it can copy the tokens that it has to predict",
        fix="feed [start, *answer[:-1]] and mask later positions in the decoder's self-attention, "
        "torch.ones(n, n).triu(diagonal=1).bool(); then train again",
        earliest=name,
        moved=largest,
        n=n,
    )


def _token_change(
    model: AuditedSequenceModel, examples: Examples, answers: Tokens, place: int, logits: Tensor, labels: Tensor
) -> TokenChange | None:
    """Return the effect of changing the answers' token at one place; None if no label changes with it."""
    changed = answers.copy()
    changed[:, place] = _other_tokens(model, answers[:, place])
    new_logits, new_labels = model.logits_when_fed(examples, changed)
    if new_labels.shape != labels.shape or not (new_labels != labels).any():
        return None
    label = int((new_labels != labels).any(dim=0).nonzero()[0])
    is_asked = (labels != IGNORE).any(dim=0)
    return TokenChange(place, label, logit_changes(logits, new_logits) * is_asked)


def _other_tokens(model: AuditedSequenceModel, tokens: Tokens) -> Tokens:
    """Return answers with each token replaced by another one, but never by 0, which may be omitted when it leads."""
    known = np.unique(model.right_answers)
    known = known[1:] if len(known) > 2 else np.array([1, 2])
    return np.asarray(known[np.searchsorted(known, tokens, side="right") % len(known)])


PART = Check("HC201", "Does the decoder see the answer tokens that it has to predict?", sequences=run)
