"""Are all logits finite numbers?

Dividing by the norm of an empty row, masking every key of an attention row or training with too high a learning rate
can make logits NaN. Every comparison with NaN is false, and `argmax` returns NaN's index. Accuracy is then that of one
answer to everything, as if the model had learned nothing. The loss reveals the cause, because it is NaN as well.
"""

import math

import numpy as np

from headcount.auditing.audited_model import AuditedClassifier, AuditedModel
from headcount.auditing.check import Check, Finding, failed, passed


def run(model: AuditedModel) -> Finding:
    """Look for NaN or infinity in the loss and, for classifiers, in the logits (those of sequences are not kept)."""
    n_bad, where = 0, f"logits, and with them the loss on {model.n:,} examples,"
    if isinstance(model, AuditedClassifier):
        n_bad = int((~np.isfinite(model.answers.logits)).any(axis=1).sum())
        where = f"the logits of {n_bad:,} of {model.n:,} examples"
    if math.isfinite(model.loss) and not n_bad:
        return passed(f"all logits are finite numbers; the loss is {model.loss:.3f}", loss=model.loss)
    return failed(
        f"{where} are NaN or infinite",
        cause="consistent with an attention row whose keys are all masked, a division by zero, or a diverged training",
        fix="find the first module whose output is NaN (torch.autograd.set_detect_anomaly), and train again",
        n=model.n,
    )


PART = Check("HC306", "Are all logits finite numbers?", sequences=run, classes=run, is_quick=True)
