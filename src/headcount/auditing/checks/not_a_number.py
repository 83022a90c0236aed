"""Are all logits finite numbers?

Dividing by the norm of an empty row, masking every key of an attention row or training with too high a learning rate
can make logits NaN. Every comparison with NaN is false, and `argmax` returns its index. Accuracy is then that of one
answer to everything and looks like a model that has learned nothing. The loss shows it, because it is NaN as well.
"""

import math

import numpy as np

from headcount.auditing.audited_model import AuditedClassifier, AuditedModel, AuditedSequenceModel
from headcount.auditing.check import Check, Finding, failed, passed


def check_sequences(model: AuditedSequenceModel) -> Finding:
    """Look at the loss, because logits are not kept."""
    if math.isfinite(model.loss):
        return _passed(model)
    return _failed(f"logits, and with them the loss on {model.n:,} examples,", model.n)


def check_classes(model: AuditedClassifier) -> Finding:
    """Look at the logits and the loss."""
    n = int((~np.isfinite(model.answers.logits)).any(axis=1).sum())
    if math.isfinite(model.loss) and not n:
        return _passed(model)
    return _failed(f"the logits of {n:,} of {model.n:,} examples", model.n)


def _passed(model: AuditedModel) -> Finding:
    return passed(f"all logits are finite numbers; the loss is {model.loss:.3f}", loss=model.loss)


def _failed(subject: str, n: int) -> Finding:
    return failed(
        f"{subject} are NaN or infinite",
        cause="consistent with an attention row whose keys are all masked, a division by zero, or a diverged training",
        fix="find the first module whose output is NaN (torch.autograd.set_detect_anomaly), and train again",
        n=n,
    )


PART = Check("HC306", "Are all logits finite numbers?", sequences=check_sequences, classes=check_classes, is_quick=True)
