"""Is one place of the answer constant although right answers vary there?

Three published reports fed the decoder target[:-1] and used target[1:] as labels, without a start token. The first
digit was never a label, and generation began with a made-up 0. Their authors saw an accuracy of 99.9 % in training and
of 35 to 41 % when generating, and blamed cascading errors or rare carries.
"""

import numpy as np

from headcount.auditing.audited_model import AuditedSequenceModel
from headcount.auditing.check import Check, Finding, failed, passed, warned
from headcount.auditing.decoded_answers import Place, answer_places, is_constant_for_lack_of_others
from headcount.stats import Proportion

MIN_OTHER_TOKENS = 0.05
"""A place where decoded answers are constant is faulty only if this share of right answers has another token there."""
MIN_RIGHT_ELSEWHERE = 0.2
"""Smallest accuracy on examples whose right answer has the constant token. Below it, the model has further faults."""


def run(model: AuditedSequenceModel) -> Finding:
    """Check whether a place of the decoded answers always has the same token although the right token varies."""
    n, places = model.n, answer_places(model)
    constants = [(each, each.constant) for each in places if _is_faulty(model, each)]
    if not constants:
        return passed("every place of the decoded answers varies, as in right answers", places=len(places), n=n)
    sentences = [
        f"the {place.name} is {model.token(token or 0)} in {int((place.predicted == token).sum()):,} of {n:,} decoded "
        f"answers, and in {int((place.right == token).sum()):,} of the right answers"
        for place, token in constants
    ]
    still_right = np.all([(place.right == token) | (place.predicted < 0) for place, token in constants], axis=0)
    is_first = constants[0][0].is_first
    elsewhere = Proportion.count(model.right_when_readable[still_right]) if still_right.any() else None
    if elsewhere is not None and elsewhere.high < MIN_RIGHT_ELSEWHERE:
        return warned(
            f"{'; '.join(sentences)}; of the {elsewhere.n:,} answers that can be right despite this, only "
            f"{elsewhere.correct:,} are",
            cause="consistent with a model that has learned little: other tokens of the answer are wrong, too",
            fix="look at the loss first, and check that the trained weights are the ones that are measured",
            n=n,
        )
    return failed(
        "; ".join(sentences),
        cause="consistent with a decoder that was trained without a start token: with target[:-1] as input and "
        "target[1:] as labels it never learns the first token, and generation begins with a made-up one"
        if is_first
        else "consistent with a place of the answer that the loss leaves out",
        fix="feed [start, *answer[:-1]], use the whole answer as labels, and begin generation with the start token"
        if is_first
        else "include every place of the answer in the loss, and decode every place",
        right_despite_fault=still_right,
        places=", ".join(place.name.removesuffix(f" {model.task.words.place}") for place, _ in constants),
        predicted=float(still_right.mean()),
        measured=float(model.right.mean()),
    )


def _is_faulty(model: AuditedSequenceModel, place: Place) -> bool:
    """Return whether nearly all answers have one token at this place although the right answers do not."""
    rows, token = place.predicted >= 0, place.constant
    if token is None or not place.has_enough_answers or (place.right[rows] != token).mean() <= MIN_OTHER_TOKENS:
        return False
    return place.column is None or not is_constant_for_lack_of_others(model, place.column, token)


PART = Check(
    "HC101",
    "Is one place of the answer constant although right answers vary there?",
    sequences=run,
    needs_decoding=True,
    is_quick=True,
)
