"""The types `Check` and `Finding`: a check tests a model for one known mistake and returns a finding.

A check looks at what a model does, not at its settings, so that it works on models that others wrote. Where it can only
infer a cause, it says "consistent with". Its numbers are what the fault predicts and what was measured.

    def run(model: AuditedSequenceModel) -> Finding:
        n = int((model.decoded[:, 0] == 0).sum())
        if n < model.n:
            return passed(f"{n:,} of {model.n:,} answers begin with 0")
        return failed(
            f"{n:,} of {model.n:,} answers begin with 0",
            cause="consistent with ...",
            fix="begin the decoder's input with a start token",
            right_despite_fault=model.right_answers[:, 0] == 0,
        )

    PART = Check("HC101", "Is one place of the answer constant?", sequences=run, needs_decoding=True)

A check of classifiers gives `classes=` instead, and a check of both kinds of model gives both.
headcount.auditing.causes lists which failing checks explain the failures of other checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headcount.auditing.audited_model import AuditedClassifier, AuditedModel, AuditedSequenceModel

PASS, WARN, FAIL, NOT_APPLICABLE = "pass", "warn", "fail", "not applicable"
EXPLAINED, IGNORED = "explained", "ignored"
"""Verdicts that replace `warn` or `fail` if another failing check is the cause, or if the user ignores the check."""
MEASUREMENT, ANSWERS, RESTATED, PADDED = "measurement", "answers", "restated", "padded"
LONGER, CONCLUSIONS = "longer", "conclusions"
AFFECTED = (MEASUREMENT, ANSWERS, RESTATED, PADDED, LONGER, CONCLUSIONS)
"""What a fault can change, the most important first: every figure; which audited examples are right (RESTATED: a
check that only restates a low accuracy); answers to padded examples, which the audited ones are not; answers beyond
the training lengths; conclusions from figures."""
Evidence = dict[str, Any]
"""Maps names to numbers or texts that JSON can hold."""


@dataclass(frozen=True)
class Finding:
    """The result of one check on one model: a verdict, with its cause, its fix and its numbers."""

    verdict: str
    finding: str
    """One sentence that states the result with its numbers, or the reason why the check does not apply."""
    cause: str = ""
    """The most likely cause; "consistent with ..." where it is inferred."""
    fix: str = ""
    """What to change in the code, the data or the report."""
    evidence: Evidence = field(default_factory=dict)
    right_despite_fault: NDArray[np.bool_] | None = None
    """[example]: whether the answer can be right despite the fault; None if the fault does not predict this."""
    explains_only: tuple[str, ...] | None = None
    """Ids of the checks whose failures this finding explains; None for all that headcount.auditing.causes lists."""
    affects: str = ""
    """What the fault can change, one of AFFECTED; empty to use `Check.affects`."""


def passed(finding: str, **evidence: Any) -> Finding:
    """Return the finding of a check that found nothing wrong; `evidence` has the numbers that show it."""
    return Finding(PASS, finding, evidence=evidence)


def warned(finding: str, *, cause: str, fix: str, **evidence: Any) -> Finding:
    """Return the finding of a check that found something that can mislead readers of the results."""
    return Finding(WARN, finding, cause, fix, evidence)


def failed(
    finding: str, *, cause: str, fix: str, right_despite_fault: NDArray[np.bool_] | None = None, **evidence: Any
) -> Finding:
    """Return the finding of a check that found a fault which makes figures or conclusions wrong."""
    return Finding(FAIL, finding, cause, fix, evidence, right_despite_fault)


def not_applicable(reason: str) -> Finding:
    """Return the finding of a check that cannot be run on this model, with the reason."""
    return Finding(NOT_APPLICABLE, reason)


@dataclass(frozen=True)
class Check:
    """A test for one known mistake; the name of its file is the name of the check."""

    id: str
    """Stable id, such as `HC101`. Its first digit is the kind of mistake, which is a heading of docs/traps.md."""
    question: str
    """The question that the check answers, in one sentence."""
    sequences: Callable[[AuditedSequenceModel], Finding] | None = None
    """The function that runs the check on a model that outputs sequences; None if the check is not about these."""
    classes: Callable[[AuditedClassifier], Finding] | None = None
    """The function that runs the check on a classifier; None if the check is not about classifiers."""
    _: KW_ONLY
    needs_decoding: bool = False
    """Whether the check needs decoded answers, which an adapter without `generate` does not have."""
    is_quick: bool = False
    """Whether the check needs no forward passes beyond those that every command makes anyway."""
    affects: str = ANSWERS
    """What the fault that this check looks for can change, such as the answers or only conclusions: one of AFFECTED."""

    @property
    def subject(self) -> str:
        """The kind of models that the check is about, in words; empty if it is about both kinds."""
        if self.sequences is not None and self.classes is not None:
            return ""
        return "models that output sequences" if self.classes is None else "classifiers"

    @property
    def module(self) -> str:
        """The name of the module that defines the check."""
        function = self.sequences or self.classes
        assert function is not None, "a check needs a function for sequences, for classes or for both"
        return function.__module__

    def run(self, model: AuditedModel) -> Finding:
        """Run the check on a model and return its finding; the finding may say that the check does not apply."""
        if isinstance(model, AuditedSequenceModel) and self.sequences is not None:
            if self.needs_decoding and not model.can_decode:
                return not_applicable("the headcount.Adapter class has no generate(), so there are no decoded answers")
            return self.sequences(model)
        if isinstance(model, AuditedClassifier) and self.classes is not None:
            return self.classes(model)
        return not_applicable(f"this check applies only to {self.subject}")
