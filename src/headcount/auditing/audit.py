"""Every check that applies, and what is at the bottom of what they find.

A fault that says which examples it leaves right is held against what was measured: if the two agree, it is the cause,
and the sentence has both figures. Checks that only follow from another one are told as explained by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from headcount.auditing import CHECKS
from headcount.auditing.check import (
    EXPLAINED,
    FAIL,
    IGNORED,
    NOT_APPLICABLE,
    PASS,
    WARN,
    Check,
    Finding,
    not_applicable,
)
from headcount.auditing.observed import Observed
from headcount.errors import HeadcountError, InputError, shortened
from headcount.experiments.models import OpenModel
from headcount.results import Result

Progress = Callable[[int, int], None]
STRICT = False
"""Whether what goes wrong in a check is raised, as in tests."""
QUICK = 500
"""Examples that are enough for checks beside another verb."""


@dataclass(frozen=True)
class Verdict:
    """One check, and what it said."""

    id: str
    check: str
    verdict: str
    """pass, warn, fail, not applicable; explained (by another check), or ignored (as the user said)."""
    finding: str
    cause: str
    fix: str
    evidence: dict[str, float | int | str | None]
    explained_by: str = ""
    reason: str = ""
    """Why it is ignored."""


@dataclass(frozen=True)
class Audit(Result):
    """What all checks say of one model."""

    ROWS: ClassVar[tuple[str, ...]] = ("verdicts",)
    name: str
    weights_sha256: str
    task: str
    n: int
    """Examples that were looked at."""
    is_quick: bool
    summary: str
    """The cause, in one sentence; or that nothing was found."""
    predicted: float | None
    """The share that is right if the faults that were found are all there is; None if they do not say."""
    measured: float
    """The share that is right."""
    verdicts: tuple[Verdict, ...]
    common_error: str = ""
    """What most wrong answers share: "94 of 94 errors: a 0 was right"; empty if none is wrong."""

    def of(self, verdict: str) -> list[Verdict]:
        """The checks that said this."""
        return [each for each in self.verdicts if each.verdict == verdict]

    @property
    def is_sound(self) -> bool:
        """Whether no check fails."""
        return not self.of(FAIL)


def checks_named(names: Sequence[str] | None = None) -> dict[str, Check]:
    """Checks by name, in the order of their ids; `names` are names or ids, None for all."""
    every = {name: CHECKS.get(name) for name in CHECKS.names()}
    every = dict(sorted(every.items(), key=lambda item: item[1].id))
    if names is None:
        return every
    by_id = {check.id: name for name, check in every.items()}
    for name in names:
        if by_id.get(name, name) not in every:
            raise InputError(f"no check {name!r}", f"there are: {', '.join(f'{i} ({n})' for i, n in by_id.items())}")
    wanted = {by_id.get(name, name) for name in names}
    return {name: check for name, check in every.items() if name in wanted}


def run_checks(
    observed: Observed,
    checks: Mapping[str, Check] | None = None,
    *,
    ignore: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Look at a model in every way that applies; what is to be ignored, by id or name, is told with its reason."""
    checks = checks_named() if checks is None else checks
    return _judged(observed, checks, _findings(observed, checks, progress), ignore or {}, is_quick=False)


def quick_audit(model: OpenModel, n: int | None = QUICK) -> str:
    """What is at the bottom of failing checks that take next to no time; empty if none fails, or there is no task."""
    try:
        return explain_errors(Observed(model, n))[0]
    except Exception as error:  # what cannot be asked is told by whoever needs it; advice never costs a result
        if STRICT and not isinstance(error, HeadcountError):
            raise
        return ""


def explain_errors(observed: Observed) -> tuple[str, list[str]]:
    """The same of a model that was observed, and for each example the check that explains why it is wrong, or none."""
    checks = {name: check for name, check in checks_named().items() if check.is_quick}
    found = _findings(observed, checks)
    audit, causes = _judged(observed, checks, found, {}, is_quick=True), [""] * observed.n
    for each in audit.of(FAIL):
        still_right = found[each.check].right_despite_fault
        for i in () if still_right is None else np.flatnonzero(~still_right & ~observed.right).tolist():
            causes[i] = causes[i] or f"{each.id} ({each.check.replace('-', ' ')}) explains it"
    return "" if audit.is_sound else audit.summary, causes


def _judged(
    observed: Observed,
    checks: Mapping[str, Check],
    found: Mapping[str, Finding],
    ignore: Mapping[str, str],
    *,
    is_quick: bool,
) -> Audit:
    """Findings held against each other, and against what was measured."""
    ignored = _ignored(checks, ignore)
    roots = _roots(checks, found)
    verdicts = tuple(_verdict(name, checks[name], each, roots, ignored) for name, each in found.items())
    still_right = [found[each.check].right_despite_fault for each in verdicts if each.verdict == FAIL]
    told = [each for each in still_right if each is not None]
    predicted = np.all(told, axis=0) if told else None
    return Audit(
        name=observed.model.name,
        weights_sha256=observed.model.weights_sha256,
        task=observed.task.name,
        n=observed.n,
        is_quick=is_quick,
        summary=_summary(verdicts, found, predicted, observed.right),
        predicted=None if predicted is None else float(predicted.mean()),
        measured=float(observed.right.mean()),
        verdicts=verdicts,
        common_error=observed.common_error,
    )


def _findings(observed: Observed, checks: Mapping[str, Check], progress: Progress | None = None) -> dict[str, Finding]:
    found: dict[str, Finding] = {}
    for i, (name, check) in enumerate(checks.items()):
        found[name] = run_check(check, observed)
        if progress:
            progress(i + 1, len(checks))
    return found


def run_check(check: Check, observed: Observed) -> Finding:
    """One check; what somebody's code refuses to be asked does not apply, with the reason."""
    asked = observed.task.output_type
    if check.asks not in ("any", asked):
        return not_applicable(f"it is asked of models that answer by a {check.asks}")
    try:
        if check.needs_decoding and asked == "sequence" and not observed.decodes:
            return not_applicable("the adapter has no generate(), so its own answers are not known")
        return check.run(observed)
    except HeadcountError as error:
        return not_applicable(f"it could not be asked: {error.what}")
    except Exception as error:  # somebody's model: what one check trips over must cost neither the others nor a result
        if STRICT:
            raise
        return not_applicable(f"it could not be asked: {type(error).__name__}: {shortened(str(error))}")


def _ignored(checks: Mapping[str, Check], ignore: Mapping[str, str]) -> dict[str, str]:
    """By name, why."""
    found = {}
    for key, reason in ignore.items():
        if not reason.strip():
            raise InputError(f"{key} is ignored without a reason", f'say why: --ignore {key}="classes are skewed"')
        for name in checks_named([key]):
            found[name] = reason
    return {name: reason for name, reason in found.items() if name in checks}


def _roots(checks: Mapping[str, Check], found: Mapping[str, Finding]) -> dict[str, str]:
    """By the name of a check that follows from another, the id of that other one."""
    by_id, follows = {check.id: name for name, check in checks.items()}, dict[str, str]()

    def root(name: str) -> str:
        while name in follows:
            name = follows[name]
        return name

    for name in (name for name, each in found.items() if each.verdict == FAIL):
        for other in (by_id.get(each, "") for each in checks[name].explains):
            if other in found and other not in follows and root(name) != other:
                follows[other] = name
    return {name: checks[root(name)].id for name in follows}


def _verdict(
    name: str, check: Check, finding: Finding, roots: Mapping[str, str], ignored: Mapping[str, str]
) -> Verdict:
    verdict = Verdict(
        check.id, name, finding.verdict, finding.finding, finding.cause, finding.fix, dict(finding.evidence)
    )
    if finding.verdict not in (WARN, FAIL):
        return verdict
    if name in ignored:
        return replace(verdict, verdict=IGNORED, reason=ignored[name])
    return replace(verdict, verdict=EXPLAINED, explained_by=roots[name]) if name in roots else verdict


def _summary(
    verdicts: Sequence[Verdict], found: Mapping[str, Finding], predicted: np.ndarray | None, right: np.ndarray
) -> str:
    """The cause, with the figure that it predicts beside the one that was measured."""
    failing = [each for each in verdicts if each.verdict == FAIL]
    if not failing:
        counts = {name: sum(each.verdict == name for each in verdicts) for name in (PASS, WARN, NOT_APPLICABLE)}
        told = f"nothing found: {counts[PASS]} checks passed, {counts[NOT_APPLICABLE]} do not apply"
        warnings = "; ".join(each.finding for each in verdicts if each.verdict == WARN)
        return f"{told}, {counts[WARN]} warn: {warnings}" if warnings else told
    with_figures = [each for each in failing if found[each.check].right_despite_fault is not None]

    def percent(hits: np.ndarray) -> str:
        return f"{100 * hits.mean():.2f} %"

    causes = "; and ".join(each.finding for each in with_figures or failing[:1])
    if predicted is None:
        return causes
    others = f" (and {len(failing) - len(with_figures)} more)" if len(failing) > len(with_figures) else ""
    return f"{causes}: that leaves {percent(predicted)} right, measured {percent(right)}{others}"
