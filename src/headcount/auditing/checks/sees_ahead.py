"""Does a later token of the answer, which is fed, move an earlier logit?

A decoder without a causal mask, with one that is off by one, or that is fed the very token it is to predict copies its
input: it is right on everything in one pass and in training, and on nothing when it has to write by itself. It is seen
by changing one token of the answers that are fed: logits up to the one that should predict it must not move.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.fed_answers import TOLERANCE, other_tokens, rows_of_one_length, share_moved
from headcount.auditing.observed import Observed
from headcount.tasks.base import IGNORE, Examples, Tokens

ROWS = 32
"""Examples that are tried."""


@dataclass(frozen=True)
class TokenChange:
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


def run(observed: Observed) -> Finding:
    """Place by place of the answer."""
    rows = rows_of_one_length(observed, ROWS)
    examples, answers = observed.examples[rows], observed.right_answers[rows]
    logits, labels = observed.logits_when_fed(examples, answers)
    if (noise := float(share_moved(logits, observed.logits_when_fed(examples, answers)[0]).max())) > TOLERANCE:
        return not_applicable(f"two passes on the same input differ by {noise:.2%} of the largest logit")
    tried = (_token_change(observed, examples, answers, place, logits, labels) for place in range(answers.shape[1]))
    changes = [each for each in tried if each is not None]
    if not any((each.moved > TOLERANCE).any() for each in changes):
        return not_applicable("its logits do not depend on the answer that it is fed")
    seen = [each for each in changes if each.ahead.any()]
    if not seen:
        return passed("no token of the answer moves an earlier logit", n=len(rows), places=len(changes))
    return _failed(observed, changes, seen, len(rows))


def _failed(observed: Observed, changes: list[TokenChange], seen: list[TokenChange], n: int) -> Finding:
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


def _token_change(
    observed: Observed, examples: Examples, answers: Tokens, place: int, logits: Tensor, labels: Tensor
) -> TokenChange | None:
    """Another token there; None if no label stands for it, as for a token that is handed to the decoder."""
    changed = answers.copy()
    changed[:, place] = other_tokens(observed, answers[:, place])
    new_logits, new_labels = observed.logits_when_fed(examples, changed)
    if new_labels.shape != labels.shape or not (new_labels != labels).any():
        return None
    label = int((new_labels != labels).any(dim=0).nonzero()[0])
    is_asked = (labels != IGNORE).any(dim=0)
    return TokenChange(place, label, share_moved(logits, new_logits) * is_asked)


PART = Check(
    "HC201",
    "Does a later token of the answer, which is fed, move an earlier logit?",
    run,
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
