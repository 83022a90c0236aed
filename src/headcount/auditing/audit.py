"""Run every check that applies, and find the cause among the checks that fail.

A check that only follows from another one is reported as explained by it. The other failing checks are ranked by what
they explain of the measured accuracy:

1. faults that make every figure meaningless, such as an adapter that returns the answers it is given;
2. faults that predict which of the audited examples stay right, if their predictions together, or that of the best one,
   account for at least half of the wrong answers; the one that agrees with the measurement most comes first;
3. faults that change the answers to the audited examples and predict no figure;
4. faults that predict a figure which does not fit;
5. checks that tell a low accuracy in other words, such as one no better than a constant answer (HC303);
6. faults that cannot change the measured accuracy: those of padded examples (classifiers are measured without padding),
   then those beyond the trained lengths, then those of conclusions.

Among equals, the check that explains more of the others comes first, then the one with the lower id. The summary names
the first cause, or all causes whose figures fit together, and the ids of all other checks that fail or warn. Beside a
fault of padded examples it also tells what warnings say of longer sequences, for accuracy shows neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from headcount.auditing import CHECKS
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
from headcount.auditing.observed import Hits, Observed
from headcount.errors import HeadcountError, InputError, shortened
from headcount.experiments.models import OpenModel
from headcount.registry import suggestion
from headcount.results import Contradiction, Positive, Result, Share, is_hits

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

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the verdict with what explains it."""
        known = (PASS, WARN, FAIL, NOT_APPLICABLE, EXPLAINED, IGNORED)
        if self.verdict not in known:
            yield "verdict", f"one of {', '.join(known)}"
        if bool(self.explained_by) != (self.verdict == EXPLAINED):
            yield "explained_by", "a check if the verdict is explained, and empty otherwise"
        if bool(self.reason) != (self.verdict == IGNORED):
            yield "reason", "a text if the verdict is ignored, and empty otherwise"


@dataclass(frozen=True)
class Audit(Result):
    """What all checks say of one model."""

    ROWS: ClassVar[tuple[str, ...]] = ("verdicts",)
    name: str
    weights_sha256: str
    task: str
    n: Positive
    """Examples that were looked at."""
    is_quick: bool
    summary: str
    """The cause, in one sentence; or that nothing was found."""
    predicted: Share | None
    """The share that is right if the faults that were found are all there is; None if they do not say."""
    measured: Share
    """The share that is right."""
    verdicts: tuple[Verdict, ...]
    causes: tuple[str, ...] = ()
    """The ids of failing checks, ranked by what they explain of the measured accuracy."""
    common_error: str = ""
    """What most wrong answers share: "94 of 94 errors: a 0 was right"; empty if none is wrong."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the verdicts with each other, and the share that is right with the number of examples."""
        ids = [each.id for each in self.verdicts]
        if len(set(ids)) != len(ids):
            yield "verdicts", "different checks"
        if any(each.explained_by not in ("", *ids) for each in self.verdicts):
            yield "verdicts", "explanations by checks that are in the list"
        for name in ("measured", "predicted"):
            share = getattr(self, name)
            if share is not None and not is_hits(share, self.n):
                yield name, f"a share of {self.n:,} examples"

    def of(self, verdict: str) -> list[Verdict]:
        """Return the checks with this verdict: failing ones as they are ranked, others by id."""
        ranks = {id: rank for rank, id in enumerate(self.causes)}
        found = [each for each in self.verdicts if each.verdict == verdict]
        return sorted(found, key=lambda each: ranks.get(each.id, len(ranks)))

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
            every_check = f"there are: {', '.join(f'{i} ({n})' for i, n in by_id.items())}"
            named = suggestion(name, every)  # of numbers none is near another
            raise InputError(f"no check {name!r}", named if named.startswith("did you mean") else every_check)
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
    """Return the root cause as `quick_audit` does, and for each example the check that explains why it is wrong."""
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
    roots = _roots(checks, found, observed.right)
    verdicts = tuple(_verdict(name, checks[name], each, roots, ignored) for name, each in found.items())
    ranking = Ranking.of(observed.right, checks, found, verdicts)
    return Audit(
        name=observed.model.name,
        weights_sha256=observed.model.weights_sha256,
        task=observed.task.name,
        n=observed.n,
        is_quick=is_quick,
        summary=_summary(ranking, verdicts),
        predicted=None if ranking.predicted is None else float(ranking.predicted.mean()),
        measured=float(observed.right.mean()),
        verdicts=verdicts,
        causes=tuple(each.id for each in ranking.failing),
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


def _roots(checks: Mapping[str, Check], found: Mapping[str, Finding], right: Hits) -> dict[str, str]:
    """Map the name of each check that follows from another to the id of that other one."""
    by_id, follows = {check.id: name for name, check in checks.items()}, dict[str, str]()

    def root(name: str) -> str:
        while name in follows:
            name = follows[name]
        return name

    def fits_better(other: str, name: str) -> bool:
        """Whether the check that should follow accounts for more of the wrong answers by itself."""
        left, still = found[other].right_despite_fault, found[name].right_despite_fault
        return left is not None and still is not None and _share_explained(left, right) > _share_explained(still, right)

    for name in (name for name, each in found.items() if each.verdict == FAIL):
        fewer = found[name].explains
        for other in (by_id.get(each, "") for each in (checks[name].explains if fewer is None else fewer)):
            if other in found and other not in follows and root(name) != other and not fits_better(other, name):
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


MOSTLY = 0.5
"""Share of the wrong answers that predictions have to account for."""


@dataclass(frozen=True)
class Ranking:
    """Failing checks in the order of what they explain of the measured accuracy: see the module's docstring."""

    failing: tuple[Verdict, ...]
    right: Hits
    """[example]: which answers are right."""
    predicted: Hits | None
    """[example]: which answers these checks leave right, or all checks if none fits; None if no check says so."""
    fitting: frozenset[str]
    """Names of checks whose predictions account for most of the wrong answers: all together, or else the best one."""
    first_affects: str
    """What the first cause can change; empty if no check fails."""
    beyond: tuple[Verdict, ...]
    """Warnings of answers beyond the trained lengths."""

    @classmethod
    def of(
        cls, right: Hits, checks: Mapping[str, Check], found: Mapping[str, Finding], verdicts: Sequence[Verdict]
    ) -> Ranking:
        """Rank the failing checks."""
        failing = [each for each in verdicts if each.verdict == FAIL]
        left = {each.check: hits for each in failing if (hits := found[each.check].right_despite_fault) is not None}
        fitting = _fitting(left, right)
        predicted = np.all([left[name] for name in fitting or left], axis=0) if left else None
        explained = Counter(each.explained_by for each in verdicts)

        def affects(verdict: Verdict) -> str:
            return found[verdict.check].affects or checks[verdict.check].affects

        def key(verdict: Verdict) -> tuple[int, int, float, int]:
            hits = left.get(verdict.check)
            group = 1 if hits is None else 0 if verdict.check in fitting else 2
            agreement = 0.0 if hits is None else float((hits == right).mean())
            return AFFECTED.index(affects(verdict)), group, -agreement, -explained[verdict.id]

        ranked = tuple(sorted(failing, key=key))
        beyond = tuple(each for each in verdicts if each.verdict == WARN and affects(each) == LONGER)
        return cls(ranked, right, predicted, fitting, affects(ranked[0]) if ranked else "", beyond)

    @property
    def named(self) -> list[Verdict]:
        """The first cause, and all others whose figures fit together with it."""
        first = self.failing[0]
        return [each for each in self.failing if each is first or {first.check, each.check} <= self.fitting]


def _fitting(left: Mapping[str, Hits], right: Hits) -> frozenset[str]:
    """Return the names of all checks if their predictions together fit, else of the best one, else of none."""
    if left and _share_explained(np.all(list(left.values()), axis=0), right) >= MOSTLY:
        return frozenset(left)
    best = max(left, key=lambda name: _share_explained(left[name], right), default=None)
    return frozenset() if best is None or _share_explained(left[best], right) < MOSTLY else frozenset({best})


def _share_explained(predicted: Hits, right: Hits) -> float:
    """Return the share of wrong answers that a prediction accounts for, less right answers that it takes for wrong."""
    n_wrong = int((~right).sum())
    if not n_wrong:
        return float((predicted == right).all())
    return (int((~predicted & ~right).sum()) - int((~predicted & right).sum())) / n_wrong


def _summary(ranking: Ranking, verdicts: Sequence[Verdict]) -> str:
    """Name the cause, with the figure that it predicts beside the measured one, and the ids of everything else."""
    warnings = [each for each in verdicts if each.verdict == WARN]
    warn = f"{len(warnings)} {'warns' if len(warnings) == 1 else 'warn'}"
    if not ranking.failing:
        counts = Counter(each.verdict for each in verdicts)
        if warnings:
            return f"no check fails; {warn}: {'; '.join(each.finding for each in warnings)}"
        return f"nothing found: {counts[PASS]} checks passed, {counts[NOT_APPLICABLE]} do not apply"
    named, measured = ranking.named, f"{100 * ranking.right.mean():.2f} %"
    told = "; and ".join(each.finding for each in named)
    if named[0].check in ranking.fitting and ranking.predicted is not None:
        told += f": that leaves {100 * ranking.predicted.mean():.2f} % right, measured {measured}"
    elif ranking.first_affects == PADDED:
        told += f"; accuracy is measured without padding, {measured}"
        told += "".join(f"; and {each.finding}" for each in ranking.beyond)
    others = [each.id for each in ranking.failing if each not in named]
    more = [f"and {len(others)} more: {', '.join(others)}"] if others else []
    more += [f"{warn}: {', '.join(each.id for each in warnings)}"] if warnings else []
    return f"{told} ({'; '.join(more)})" if more else told
