"""Claims that a head attends to something, and that the model needs the head: a pattern of attention and a drop.

The pattern is measured as `specialisation` does on tasks and `roles` on texts, against models that learned nothing.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from headcount.analysis.head_labels import THRESHOLDS, above_even
from headcount.analysis.roles import REPEATED, TEXTS, HeadRoles, head_roles
from headcount.analysis.specialisation import Specialisation, specialise
from headcount.bands import IMPORTANT
from headcount.claims._drops import drops_of
from headcount.claims.base import ClaimCase, ClaimKind, Evidence, Judgement, kinds
from headcount.errors import InputError
from headcount.heads import HeadId

COPIES = ("duplicate", "induction")
"""Roles about copies of a token, which are measured on repeated random tokens."""
UNUSED = "The head attends as claimed, but removing it costs less than the claim needs: the model does not need the "
UNUSED += "pattern."


def pattern_kind(name: str, phrase: str, targets: tuple[str, ...] = (), role: str = "") -> ClaimKind:
    """Return a kind of claim about attention to one of the `targets` of a task, or to the keys of a `role` in texts.

    `phrase` is the claim in plain English, such as `reads the operator`.
    """
    return ClaimKind(
        grammar=f"SUBJECT {name}",
        phrase=phrase,
        supported_if="the weight of each head on the target, above uniform attention, is at least 0.25 and above the "
        "controls, and removing the heads costs at least 1 point (both whole 95 % CIs)",
        refuted_if="a weight lies below that threshold, or the drop below 1 point (whole 95 % CI); a loss must rise by "
        "0.01 nats instead",
        controls="untrained and shuffled models of the same shape set the threshold of the weight",
        measure=partial(measure, targets=targets, role=role),
    )


def measure(case: ClaimCase, targets: tuple[str, ...], role: str) -> Judgement:
    """Measure the attention of each head that the claim is about, and the drop without all of them together."""
    if case.model.task is None and not role:
        raise InputError(
            f"{case.claim.kind.name} is about positions of a task, and {case.model.name} names no task",
            f"patterns without a task: {_kinds_with('role')}",
        )
    if case.model.task is not None and not targets:
        raise InputError(
            f"{case.claim.kind.name} is measured on texts, and {case.model.name} has a task",
            f"patterns on a task: {_kinds_with('targets')}",
        )
    drops = drops_of(case)  # first, because without data this raises an error at once
    weights = _task_weights if case.model.task is not None else _text_weights
    patterns = tuple(weights(case, head, targets if case.model.task is not None else (role,)) for head in case.heads)
    removed = "it" if len(case.heads) == 1 else "them together"
    cost = drops.evidence(f"removing {removed} costs {{}}", drops.drop(case.heads))
    effect = cost.at_least(IMPORTANT)
    is_unused = effect.outcome == "refutes" and all(pattern.outcome == "supports" for pattern in patterns)
    return Judgement((*patterns, effect), note=UNUSED if is_unused else "")


def _kinds_with(keyword: str) -> str:
    """Return the names of the patterns that are measured on a task (`targets`) or on texts (`role`), as a list."""
    patterns = {name: kind.measure for name, kind in kinds().items() if isinstance(kind.measure, partial)}
    return ", ".join(sorted(name for name, measurement in patterns.items() if measurement.keywords.get(keyword)))


def _task_weights(case: ClaimCase, head: HeadId, targets: tuple[str, ...]) -> Evidence:
    """Return the head's weight on the one of the task's `targets` that it attends to most, as evidence."""
    stats: Specialisation = case.once("specialisation", lambda: specialise(case.model.task_attention()))
    (own,) = (each for each in stats.heads if each.short == head.short)
    measures = [each for each in map(own.find, targets) if each is not None and each.even is not None]
    if not measures:
        known = ", ".join(dict.fromkeys(m.measure for m in own.measures if m.even is not None))
        raise InputError(f"{head.short} never sees the tokens that this claim is about", f"its targets are: {known}")
    best, bars = max(measures, key=lambda each: each.mean), stats.calibration.at(own.stack, own.kind)
    bounds = (best.mean, best.mean - best.half(), best.mean + best.half())
    return _weight(head, best.measure, bounds, best.even or 0.0, best.n, "examples", bars.get((best.measure, "all"), 0))


def _text_weights(case: ClaimCase, head: HeadId, roles: tuple[str, ...]) -> Evidence:
    """Return the head's weight on the keys of a role (such as the previous token) in texts, as evidence."""
    for on in (REPEATED, TEXTS) if roles[0] in COPIES else (TEXTS, REPEATED):
        result: HeadRoles | None = case.once(("roles", on), partial(_roles, case, on))
        own = next((each for each in result.heads if each.short == head.short), None) if result else None
        score = own.find(roles[0], on) if own else None
        if result and own and score:
            break
    else:
        raise InputError(f"{head.short} has no such keys in these texts", "give texts: --data FILE")
    bars = {(bar.stack, bar.kind, bar.role, bar.on): bar.least for bar in result.bars}
    bar = bars.get((own.stack, own.kind, score.role, score.on), 0.0)
    target = f"{score.role} tokens ({score.on})"
    return _weight(head, target, (score.mean, score.low, score.high), score.even, score.n, "queries", bar)


def _roles(case: ClaimCase, on: str) -> HeadRoles | None:
    """Return measures of every head on one kind of inputs (`texts`, `repeated tokens`); None without such inputs."""
    model, data = case.model, case.data if isinstance(case.data, str | Path) else None
    texts = model.texts((), data) if on == TEXTS else model.repeated_tokens()
    return head_roles(model.label, model.weights_sha256, model.module, model.sites, {on: texts}) if texts else None


def _weight(
    head: HeadId, target: str, bounds: tuple[float, float, float], even: float, n: int, of: str, bar: float
) -> Evidence:
    """Return a weight as evidence against the threshold `bar`, rescaled to 0 for uniform attention."""
    value, low, high = (above_even(each, even) for each in bounds)
    words = f"{head.short} attends to the target “{target}” by {{}} more than uniform attention would"
    return Evidence(words, value, low, high, n, of, "share").at_least(round(max(THRESHOLDS.partly, bar), 4))
