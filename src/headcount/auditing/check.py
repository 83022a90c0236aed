"""What a check is, and what it may say of a model.

A check looks at what a model does and not at its settings, so that it works on models that others wrote; where a cause
can only be inferred, it says "consistent with". It names numbers: what the fault predicts, and what was measured.

    def run(observed):
        n = int((observed.free[:, 0] == 0).sum())
        if n < observed.n:
            return passed(f"the first digit is not always 0: in {n:,} of {observed.n:,} answers")
        return failed(
            f"the first digit is 0 in {n:,} of {observed.n:,} answers",
            cause="consistent with ...",
            fix="begin the decoder's input with a start token",
            right_despite_fault=observed.right_answers[:, 0] == 0,
        )

    PART = Check("HC101", "Is a place of the answer constant?", run, asks="sequence", needs_decoding=True)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from headcount.auditing.observed import Observed

PASS, WARN, FAIL, NOT_APPLICABLE = "pass", "warn", "fail", "not applicable"
EXPLAINED, IGNORED = "explained", "ignored"
"""What became of a warning or a failure: another one is its cause, or the user said why it is none."""
MEASUREMENT, ANSWERS, RESTATED, PADDED = "measurement", "answers", "restated", "padded"
LONGER, CONCLUSIONS = "longer", "conclusions"
AFFECTED = (MEASUREMENT, ANSWERS, RESTATED, PADDED, LONGER, CONCLUSIONS)
"""What a fault can change, the most telling first: every figure; which audited examples are right (RESTATED: a low
accuracy, told in other words); answers to examples that are padded, which the audited ones are not; answers beyond the
trained lengths; what is concluded from figures."""
Evidence = Mapping[str, float | int | str | None]


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    verdict: str
    finding: str
    """One sentence with its numbers; for what does not apply, why."""
    cause: str = ""
    """What is the likeliest reason; "consistent with ..." where that is inferred."""
    fix: str = ""
    """What to change."""
    evidence: Evidence = field(default_factory=dict)
    right_despite_fault: NDArray[np.bool_] | None = None
    """[example]: which of the audited examples the fault leaves right; None if it does not say."""
    explains: tuple[str, ...] | None = None
    """Checks that follow from this finding, where these are fewer than those that its check names."""
    affects: str = ""
    """What the fault can change, one of AFFECTED, where that is another thing than its check says."""


def passed(finding: str, **evidence: float | int | str | None) -> Finding:
    """Nothing wrong, and what that rests on."""
    return Finding(PASS, finding, evidence=evidence)


def warned(finding: str, *, cause: str, fix: str, **evidence: float | int | str | None) -> Finding:
    """Something that may mislead."""
    return Finding(WARN, finding, cause, fix, evidence)


def failed(
    finding: str,
    *,
    cause: str,
    fix: str,
    right_despite_fault: NDArray[np.bool_] | None = None,
    **evidence: float | int | str | None,
) -> Finding:
    """Something that makes figures or conclusions wrong."""
    return Finding(FAIL, finding, cause, fix, evidence, right_despite_fault)


def not_applicable(reason: str) -> Finding:
    """What cannot be asked of this model, and why."""
    return Finding(NOT_APPLICABLE, reason)


@dataclass(frozen=True)
class Check:
    """One way of fooling oneself; its name is that of its file."""

    id: str
    """Stable, such as `HC101`: the first digit is the kind, as in the table of docs/traps.md."""
    question: str
    """What it asks, in one sentence."""
    run: Callable[[Observed], Finding]
    asks: Literal["sequence", "class", "any"] = "any"
    """Of which tasks it can be asked."""
    needs_decoding: bool = False
    """Whether it looks at answers as a model writes them itself, where it writes any: an adapter need not have that."""
    is_quick: bool = False
    """Whether it needs no more passes than the answers that every verb has anyway."""
    explains: tuple[str, ...] = ()
    """Checks that fail whenever this one does, and then say nothing of their own."""
    affects: str = ANSWERS
    """What the fault that it looks for can change, one of AFFECTED."""
