"""Are logits numbers?

A division by the norm of an empty row, an attention row whose every key is masked, a learning rate that was too high:
some logits are then NaN, every comparison with them is false, and `argmax` returns their place. Accuracy is that of one
answer to everything, and looks like a model that has learned nothing. It is seen in the loss, which is NaN too.
"""

import math

import numpy as np

from headcount.auditing.check import Check, Finding, failed, passed
from headcount.auditing.observed import Observed


def run(observed: Observed) -> Finding:
    """By the loss, and by the logits where they are kept."""
    is_class = observed.task.output_type == "class"
    loss = observed.classes.loss if is_class else observed.sequences.loss
    n = int((~np.isfinite(observed.classes.logits)).any(axis=1).sum()) if is_class else 0
    if math.isfinite(loss) and not n:
        return passed(f"logits are numbers; the loss is {loss:.3f}", loss=loss)
    told = (
        f"the logits of {n:,} of {observed.n:,} examples"
        if n
        else f"logits, and with them the loss on {observed.n:,} examples,"
    )
    return failed(
        f"{told} are no numbers (NaN or infinite)",
        cause="consistent with an attention row whose keys are all masked, a division by zero, or a diverged training",
        fix="find the first module whose output is no number (torch.autograd.set_detect_anomaly), and train again",
        n=observed.n,
    )


PART = Check(
    "HC306",
    "Are logits numbers?",
    run,
    is_quick=True,
    explains=(
        *("HC101", "HC102", "HC103", "HC104", "HC105", "HC106", "HC201", "HC202", "HC204"),
        *("HC301", "HC302", "HC303", "HC304", "HC305", "HC504", "HC505", "HC506", "HC601", "HC602"),
        *("HC701", "HC702", "HC703", "HC704", "HC802"),
    ),
)
