"""Is there one answer to everything?

Reports 002, 003 and 004 took "about 50 %" for weak encodings or for a bottleneck in the pooling: .454/.514/.518/.512
and .546/.486/.482/.488 add up to 1, for these are the class shares of the test sets. The models gave one class to every
sequence. It shows in the answers alone, without a look at accuracy.
"""

from collections import Counter
from typing import cast

import numpy as np

from headcount.auditing.check import Check, Finding, failed, passed
from headcount.auditing.observed import Observed
from headcount.stats import Proportion
from headcount.tasks.base import ClassTask, SequenceTask, Tokens
from headcount.training.answers import RARELY, constant_answer


def run(observed: Observed) -> Finding:
    """By classes, or by whole answers; right answers have to vary."""
    if observed.task.output_type == "class":
        predicted, right = _classes(observed)
        constant = constant_answer(
            observed.classes.predicted, observed.classes.labels, cast(ClassTask, observed.task).classes
        )
    else:
        predicted, right = _written(observed)
        constant = _most_common(predicted, right)
    n, count = observed.n, int((predicted == constant).sum())
    if constant is None:
        return passed(f"{len(set(predicted.tolist())):,} different answers to {n:,} examples", n=n)
    still_right = right == constant
    return failed(
        f"the answer is {constant or 'empty'} to {count:,} of {n:,} examples, and right for {int(still_right.sum()):,}",
        cause="consistent with training that never began to fall below the loss of guessing, or with a fault behind "
        "the model, such as answers read at a place that does not vary",
        fix="compare the loss with that of guessing, train with a lower learning rate or longer, and report accuracy "
        "by class beside the share of each answer",
        right_despite_fault=np.asarray(still_right),
        answer=constant,
        answer_share=count / n,
        predicted=float(still_right.mean()),
        measured=float(observed.right.mean()),
    )


def _classes(observed: Observed) -> tuple[np.ndarray, np.ndarray]:
    """Predicted and right, by name."""
    names = np.array(cast(ClassTask, observed.task).classes)
    return names[observed.classes.predicted], names[observed.classes.labels]


def _written(observed: Observed) -> tuple[np.ndarray, np.ndarray]:
    """Answers as texts; what is no answer of the task as it was written."""
    task, texts = cast(SequenceTask, observed.task), observed.readable.texts

    def shown(row: Tokens, i: int) -> str:
        return task.show_tokens(row) if (row >= 0).all() else texts[i] if len(texts) else "no answer"

    predicted = [shown(row, i) for i, row in enumerate(observed.free)]
    return np.array(predicted), np.array([task.show_tokens(row) for row in observed.right_answers])


def _most_common(predicted: np.ndarray, right: np.ndarray) -> str | None:
    """The answer that nearly all are, if others are rare by the upper end of the interval and should not be."""
    answer = Counter(predicted.tolist()).most_common(1)[0][0]
    is_rare = Proportion.count(predicted != answer).high < RARELY < (right != answer).mean()
    return str(answer) if is_rare else None


PART = Check(
    "HC301",
    "Is there one answer to everything?",
    run,
    needs_decoding=True,
    is_quick=True,
    explains=(
        "HC101",
        "HC102",
        "HC302",
        "HC303",
        "HC304",
        "HC505",
        "HC601",
        "HC602",
        "HC702",
        "HC703",
        "HC802",
    ),
)
