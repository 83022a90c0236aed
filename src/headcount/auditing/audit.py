"""Run every check that applies, and rank the causes among the checks that fail.

A check that only follows from another failing check is reported as explained by it (headcount.auditing.causes). The
other failing checks are ranked by what they explain of the measured accuracy:

1. faults that make every figure meaningless, such as an adapter that returns the answers it is given;
2. faults that predict which of the audited examples stay right, if their predictions together, or that of the best one,
   account for at least half of the wrong answers; the one that agrees best with the measurement comes first;
3. faults that change the answers to the audited examples and predict no figure;
4. faults that predict a figure which does not fit;
5. checks that only restate a low accuracy, such as one no better than a constant answer (HC303);
6. faults that cannot change the measured accuracy: first those of padded examples (classifiers are measured without
   padding), then those beyond the training lengths, then those of conclusions.

Among equals, the check that explains more of the others comes first, then the one with the lower id. The summary names
the first cause, or all causes whose figures fit together, and the ids of all other checks that fail or warn. Beside a
fault of padded examples it also states the warnings about longer sequences, for accuracy shows neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from headcount.auditing import CHECKS
from headcount.auditing.audited_model import AuditedModel, Hits, audited_model
from headcount.auditing.causes import CAUSES, Cause
from headcount.auditing.check import (
    AFFECTED,
    EXPLAINED,
    FAIL,
    IGNORED,
    LONGER,
    NOT_APPLICABLE,
    PADDED,
    PASS,
    WARN,
    Check,
    Finding,
    not_applicable,
)
from headcount.errors import HeadcountError, InputError, shortened
from headcount.experiments.models import OpenModel
from headcount.formatting import percent
from headcount.results import Contradiction, Positive, Result, Share, is_hits
from headcount.suggestions import suggestion

Progress = Callable[[int, int], None]
STRICT = False
"""Whether an error inside a check is raised. If not, the check counts as not applicable. Tests set this."""
N_QUICK = 500
"""Number of examples for the quick checks, which run as part of another command."""
MIN_EXPLAINED = 0.5
"""Smallest fraction of the wrong answers that the failing checks must account for to explain the measured accuracy."""
LOW_ACCURACY = 0.9
"""If accuracy is below this and no check fails, the summary says that no check explains the errors."""


@dataclass(frozen=True)
class Verdict:
    """The verdict of one check on one model, with the check's finding, cause and fix."""

    id: str
    check: str
    verdict: str
    """One of: pass, warn, fail, not applicable, explained (by another check), ignored (the user gave a reason)."""
    finding: str
    cause: str
    fix: str
    evidence: dict[str, float | int | str | None]
    explained_by: str = ""
    reason: str = ""
    """The user's reason for ignoring the check; empty if the check is not ignored."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if a field does not fit the verdict, such as `explained_by` of a check that passes."""
        known = (PASS, WARN, FAIL, NOT_APPLICABLE, EXPLAINED, IGNORED)
        if self.verdict not in known:
            yield "verdict", f"one of {', '.join(known)}"
        if bool(self.explained_by) != (self.verdict == EXPLAINED):
            yield "explained_by", "the id of a check if the verdict is `explained`, and empty otherwise"
        if bool(self.reason) != (self.verdict == IGNORED):
            yield "reason", "a text if the verdict is `ignored`, and empty otherwise"


@dataclass(frozen=True)
class Audit(Result):
    """The verdicts of all checks on one model."""

    ROWS: ClassVar[tuple[str, ...]] = ("verdicts",)
    name: str
    weights_sha256: str
    task: str
    n: Positive
    """The number of audited examples."""
    is_quick: bool
    summary: str
    """One sentence that states the cause of the model's wrong answers, or that no check fails."""
    predicted: Share | None
    """The accuracy that the reported faults predict, from 0 to 1; None if they predict no accuracy."""
    measured: Share
    """The measured accuracy, from 0 to 1: exact match for models that output sequences."""
    verdicts: tuple[Verdict, ...]
    causes: tuple[str, ...] = ()
    """The ids of failing checks; those that explain most of the measured accuracy come first."""
    common_error: str = ""
    """What most wrong answers have in common, such as "94 of 94 errors: a 0 would have been right"; "" if none."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if verdicts do not fit together, or if no count out of n examples gives an accuracy."""
        ids = [each.id for each in self.verdicts]
        if len(set(ids)) != len(ids):
            yield "verdicts", "one verdict per check"
        if any(each.explained_by not in ("", *ids) for each in self.verdicts):
            yield "verdicts", "each explained_by to name a check in this list"
        for name in ("measured", "predicted"):
            share = getattr(self, name)
            if share is not None and not is_hits(share, self.n):
                yield name, f"a whole number of right answers divided by {self.n:,} examples"

    def of(self, verdict: str) -> list[Verdict]:
        """Return the checks with this verdict, such as `fail`.

        Failing checks are ordered as in `causes`, others by id.
        """
        ranks = {id: rank for rank, id in enumerate(self.causes)}
        chosen = [each for each in self.verdicts if each.verdict == verdict]
        return sorted(chosen, key=lambda each: ranks.get(each.id, len(ranks)))

    @property
    def is_sound(self) -> bool:
        """Whether no check fails; warnings, and failures that another check explains, do not count."""
        return not self.of(FAIL)


def checks_named(names: Sequence[str] | None = None) -> dict[str, Check]:
    """Return the checks with these names or ids (default: all checks), by name and in the order of their ids."""
    checks = {name: CHECKS.get(name) for name in CHECKS.names()}
    checks = dict(sorted(checks.items(), key=lambda item: item[1].id))
    _require_unique_ids(checks)
    if names is None:
        return checks
    by_id = {check.id: name for name, check in checks.items()}
    for name in names:
        if by_id.get(name, name) not in checks:
            every_check = f"the checks are: {', '.join(f'{i} ({n})' for i, n in by_id.items())}"
            advice = suggestion(name, checks)  # for a wrong number, no name is similar
            raise InputError(
                f"the audit has no check {name!r}", advice if advice.startswith("did you mean") else every_check
            )
    wanted = {by_id.get(name, name) for name in names}
    return {name: check for name, check in checks.items() if name in wanted}


def _require_unique_ids(checks: Mapping[str, Check]) -> None:
    """Raise an error if two checks have the same id, because an id names one check in results and in the docs."""
    names: dict[str, str] = {}
    for name, check in checks.items():
        if other := names.get(check.id):
            taken = ", ".join(each.id for each in checks.values())
            raise InputError(
                f"the checks {other!r} and {name!r} have the same id, {check.id}",
                f"give one of them an id that is not taken; these are: {taken}",
            )
        names[check.id] = name


def run_checks(
    model: AuditedModel,
    checks: Mapping[str, Check] | None = None,
    *,
    ignore: Mapping[str, str] | None = None,
    causes: Sequence[Cause] = CAUSES,
    progress: Progress | None = None,
) -> Audit:
    """Run checks on a model and return the audit with all verdicts.

    `ignore` maps ids or names of checks to the user's reasons for ignoring them. `causes` says which failing checks
    explain the failures of other checks.
    """
    checks = checks_named() if checks is None else checks
    findings = _findings(model, checks, progress)
    return _audit(model, checks, findings, ignore or {}, causes, is_quick=False)


def quick_audit(opened: OpenModel, n: int | None = N_QUICK) -> str:
    """Run the quick checks and return the cause of errors that they find, in words.

    Return an empty text if no check fails, or if the model has no task.
    """
    try:
        return explain_errors(audited_model(opened, n))[0]
    except Exception as error:  # a failing audit must not cost the result of the command it is part of
        if STRICT and not isinstance(error, HeadcountError):
            raise
        return ""


def explain_errors(model: AuditedModel) -> tuple[str, list[str]]:
    """Run the quick checks; return the cause that they find and, for each wrong example, the check that explains it."""
    checks = {name: check for name, check in checks_named().items() if check.is_quick}
    findings = _findings(model, checks)
    audit, explanations = _audit(model, checks, findings, {}, CAUSES, is_quick=True), [""] * model.n
    for verdict in audit.of(FAIL):
        still_right = findings[verdict.check].right_despite_fault
        for i in () if still_right is None else np.flatnonzero(~still_right & ~model.right).tolist():
            explanations[i] = explanations[i] or f"explained by {verdict.id} ({verdict.check.replace('-', ' ')})"
    return "" if audit.is_sound else audit.summary, explanations


def _audit(
    model: AuditedModel,
    checks: Mapping[str, Check],
    findings: Mapping[str, Finding],
    ignore: Mapping[str, str],
    causes: Sequence[Cause],
    *,
    is_quick: bool,
) -> Audit:
    """Turn the findings of all checks into verdicts, rank the failing checks, and return the `Audit`."""
    reasons = _reasons_to_ignore(checks, ignore)
    roots = _root_causes({checks[name].id: finding for name, finding in findings.items()}, causes, model.right)
    verdicts = tuple(_verdict(name, checks[name].id, finding, roots, reasons) for name, finding in findings.items())
    ranking = Ranking.of(model.right, checks, findings, verdicts)
    return Audit(
        name=model.opened.name,
        weights_sha256=model.opened.weights_sha256,
        task=model.task.name,
        n=model.n,
        is_quick=is_quick,
        summary=_summary(ranking, verdicts),
        predicted=None if ranking.predicted is None else float(ranking.predicted.mean()),
        measured=float(model.right.mean()),
        verdicts=verdicts,
        causes=tuple(each.id for each in ranking.failing),
        common_error=model.common_error,
    )


def _findings(model: AuditedModel, checks: Mapping[str, Check], progress: Progress | None = None) -> dict[str, Finding]:
    findings: dict[str, Finding] = {}
    for i, (name, check) in enumerate(checks.items()):
        findings[name] = run_check(check, model)
        if progress:
            progress(i + 1, len(checks))
    return findings


def run_check(check: Check, model: AuditedModel) -> Finding:
    """Run one check and return its finding; a check that raises an error counts as not applicable."""
    try:
        return check.run(model)
    except HeadcountError as error:
        return not_applicable(f"this check could not run: {error.what}")
    except Exception as error:  # user code may fail: the other checks must still run
        if STRICT:
            raise
        return not_applicable(f"this check could not run: {type(error).__name__}: {shortened(str(error))}")


def _reasons_to_ignore(checks: Mapping[str, Check], ignore: Mapping[str, str]) -> dict[str, str]:
    """Return the user's reason for each ignored check, by the check's name; raise an error if a reason is empty."""
    reasons = {}
    for key, reason in ignore.items():
        if not reason.strip():
            raise InputError(
                f"no reason is given to ignore the check {key}", f'say why: --ignore {key}="classes are skewed"'
            )
        for name in checks_named([key]):
            reasons[name] = reason
    return {name: reason for name, reason in reasons.items() if name in checks}


def _root_causes(findings: Mapping[str, Finding], causes: Sequence[Cause], right: Hits) -> dict[str, str]:
    """Return, for each check that follows from another failing check, the id of its root cause; by the check's id."""
    roots: dict[str, str] = {}

    def fits_better(effect: str, cause: str) -> bool:
        """Return whether the effect explains more of the wrong answers than its supposed cause, and so is no effect."""
        own, other = findings[effect].right_despite_fault, findings[cause].right_despite_fault
        return own is not None and other is not None and _share_explained(own, right) > _share_explained(other, right)

    for cause in causes:  # from top to bottom, so that the root of a cause is known before its effects
        if cause.id not in findings or findings[cause.id].verdict != FAIL:
            continue
        only = findings[cause.id].explains_only
        for effect in (each for each in cause.effects if only is None or each in only):
            if effect in findings and effect not in roots and not fits_better(effect, cause.id):
                roots[effect] = roots.get(cause.id, cause.id)
    return roots


def _verdict(name: str, id: str, finding: Finding, roots: Mapping[str, str], reasons: Mapping[str, str]) -> Verdict:
    verdict = Verdict(id, name, finding.verdict, finding.finding, finding.cause, finding.fix, dict(finding.evidence))
    if finding.verdict not in (WARN, FAIL):
        return verdict
    if name in reasons:
        return replace(verdict, verdict=IGNORED, reason=reasons[name])
    return replace(verdict, verdict=EXPLAINED, explained_by=roots[id]) if id in roots else verdict


@dataclass(frozen=True)
class Ranking:
    """The failing checks, ranked by how well they explain the measured accuracy (see the module's docstring)."""

    failing: tuple[Verdict, ...]
    right: Hits
    """[example]: whether the answer is right."""
    predicted: Hits | None
    """[example]: whether the answer should be right according to the fitting checks; None without predictions."""
    fitting: frozenset[str]
    """Names of the checks whose predictions explain most wrong answers: all checks together, or the single best one."""
    first_affects: str
    """What the fault of the first failing check can change (one of AFFECTED); empty if no check fails."""
    beyond: tuple[Verdict, ...]
    """Checks that warn about answers beyond the training lengths."""

    @classmethod
    def of(
        cls, right: Hits, checks: Mapping[str, Check], findings: Mapping[str, Finding], verdicts: Sequence[Verdict]
    ) -> Ranking:
        """Rank the failing checks by what they affect, how well they predict wrong answers, and what they explain."""
        failing = [each for each in verdicts if each.verdict == FAIL]
        predictions = {
            each.check: hits for each in failing if (hits := findings[each.check].right_despite_fault) is not None
        }
        fitting = _fitting(predictions, right)
        predicted = np.all([predictions[name] for name in fitting or predictions], axis=0) if predictions else None
        n_explained = Counter(each.explained_by for each in verdicts)

        def affects(verdict: Verdict) -> str:
            return findings[verdict.check].affects or checks[verdict.check].affects

        def key(verdict: Verdict) -> tuple[int, int, float, int]:
            hits = predictions.get(verdict.check)
            group = 1 if hits is None else 0 if verdict.check in fitting else 2
            agreement = 0.0 if hits is None else float((hits == right).mean())
            return AFFECTED.index(affects(verdict)), group, -agreement, -n_explained[verdict.id]

        ranked = tuple(sorted(failing, key=key))
        beyond = tuple(each for each in verdicts if each.verdict == WARN and affects(each) == LONGER)
        return cls(ranked, right, predicted, fitting, affects(ranked[0]) if ranked else "", beyond)

    @property
    def named(self) -> list[Verdict]:
        """The first failing check, and all others that together with it explain the wrong answers."""
        first = self.failing[0]
        return [each for each in self.failing if each is first or {first.check, each.check} <= self.fitting]


def _fitting(predictions: Mapping[str, Hits], right: Hits) -> frozenset[str]:
    """Return the names of the checks whose predictions explain the wrong answers: all checks, the best one, or none."""
    if predictions and _share_explained(np.all(list(predictions.values()), axis=0), right) >= MIN_EXPLAINED:
        return frozenset(predictions)
    shares = {name: _share_explained(hits, right) for name, hits in predictions.items()}
    best = max(shares, key=lambda name: shares[name], default=None)
    return frozenset() if best is None or shares[best] < MIN_EXPLAINED else frozenset({best})


def _share_explained(predicted: Hits, right: Hits) -> float:
    """Return the fraction of wrong answers that a prediction explains, less a penalty for false alarms."""
    n_wrong = int((~right).sum())
    if not n_wrong:
        return float((predicted == right).all())
    return (int((~predicted & ~right).sum()) - int((~predicted & right).sum())) / n_wrong


def _summary(ranking: Ranking, verdicts: Sequence[Verdict]) -> str:
    """Return one sentence: the cause, predicted and measured accuracy, and ids of other checks that fail or warn."""
    warnings = [each for each in verdicts if each.verdict == WARN]
    n_warn = f"{len(warnings)} {'check warns' if len(warnings) == 1 else 'checks warn'}"
    if not ranking.failing:
        return _summary_without_failures(ranking.right, verdicts, warnings, n_warn)
    named, measured = ranking.named, percent(ranking.right.mean(), 2)
    summary = "; and ".join(each.finding for each in named)
    if named[0].check in ranking.fitting and ranking.predicted is not None:
        summary += f"; this predicts an accuracy of {percent(ranking.predicted.mean(), 2)}, and {measured} is measured"
    elif ranking.first_affects == PADDED:
        summary += f"; accuracy is measured without padding, {measured}"
        summary += "".join(f"; and {each.finding}" for each in ranking.beyond)
    others = [each.id for each in ranking.failing if each not in named]
    more = [f"also failing: {', '.join(others)}"] if others else []
    more += [f"{n_warn}: {', '.join(each.id for each in warnings)}"] if warnings else []
    return f"{summary} ({'; '.join(more)})" if more else summary


def _summary_without_failures(
    right: Hits, verdicts: Sequence[Verdict], warnings: Sequence[Verdict], n_warn: str
) -> str:
    """Return one sentence for an audit without failures: the accuracy, and whether errors remain unexplained."""
    accuracy = f"{percent(right.mean(), 2)} of {len(right):,} answers are right"
    counts = Counter(each.verdict for each in verdicts)
    if warnings:
        return f"no check fails, and {accuracy}; {n_warn}: {'; '.join(each.finding for each in warnings)}"
    passed, others = counts[PASS], counts[NOT_APPLICABLE]
    n_passed, verb = f"{passed} {'check' if passed == 1 else 'checks'}", "does" if others == 1 else "do"
    n_checks = f"{n_passed} passed, {others} {verb} not apply"
    if right.mean() < LOW_ACCURACY:
        return f"{accuracy}, and no check explains the {int((~right).sum()):,} errors: {n_checks}"
    return f"no known mistake found: {accuracy}; {n_checks}"
