"""Does the model give one answer to everything?

The published reports 002, 003 and 004 blamed an accuracy of "about 50 %" on weak encodings or on the pooling. Their
accuracies .454, .514, .518 and .512 in one report and .546, .486, .482 and .488 in another add up to 1 in pairs,
because they are the class shares of the test sets: each model gave one class to every sequence. The predicted classes
show this without a look at accuracy.
"""

from collections import Counter

import numpy as np

from headcount.auditing.audited_model import AuditedClassifier, AuditedModel, AuditedSequenceModel
from headcount.auditing.check import Check, Finding, failed, passed
from headcount.limits import RARELY
from headcount.stats import Proportion
from headcount.tasks.base import Tokens
from headcount.training.answers import constant_answer


def check_sequences(model: AuditedSequenceModel) -> Finding:
    """Fail if nearly all decoded answers are the same text although the right answers vary."""
    texts = model.readable_answers.texts

    def text_of(row: Tokens, i: int) -> str:
        return model.task.show_tokens(row) if (row >= 0).all() else texts[i] if len(texts) else "no answer"

    predicted = np.array([text_of(row, i) for i, row in enumerate(model.decoded)])
    right = np.array([model.task.show_tokens(row) for row in model.right_answers])
    return _finding(model, predicted, right, _constant_text(predicted, right))


def check_classes(model: AuditedClassifier) -> Finding:
    """Fail if nearly all predicted classes are the same although the right classes vary."""
    answers, names = model.answers, np.array(model.task.classes)
    constant = constant_answer(answers.predicted, answers.labels, model.task.classes)
    return _finding(model, names[answers.predicted], names[answers.labels], constant)


def _finding(model: AuditedModel, predicted: np.ndarray, right: np.ndarray, constant: str | None) -> Finding:
    n, count = model.n, int((predicted == constant).sum())
    if constant is None:
        return passed(f"{len(set(predicted.tolist())):,} different answers to {n:,} examples", n=n)
    still_right = np.asarray(right == constant)
    return failed(
        f"the model gives the answer {constant or 'empty'} to {count:,} of {n:,} examples, and this answer is right "
        f"for {int(still_right.sum()):,}",
        cause="consistent with a training loss that never fell below that of guessing, or with a fault in reading the "
        "model's output, such as answers read at a position that does not vary",
        fix="compare the loss with that of guessing, train longer or with a lower learning rate, and report accuracy "
        "by class beside the share of each answer",
        right_despite_fault=still_right,
        answer=constant,
        answer_share=count / n,
        predicted=float(still_right.mean()),
        measured=float(model.right.mean()),
    )


def _constant_text(predicted: np.ndarray, right: np.ndarray) -> str | None:
    """Return the text that nearly all answers share although the right answers vary; None if there is none."""
    answer = Counter(predicted.tolist()).most_common(1)[0][0]
    is_constant = Proportion.count(predicted != answer).high < RARELY < (right != answer).mean()
    return str(answer) if is_constant else None


PART = Check(
    "HC301",
    "Does the model give one answer to everything?",
    sequences=check_sequences,
    classes=check_classes,
    needs_decoding=True,
    is_quick=True,
)
