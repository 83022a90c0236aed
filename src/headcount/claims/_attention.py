"""Judge claims that a head attends to certain tokens and that the model needs the head, such as `reads the operator`.

Two things are measured: the head's attention to these tokens, compared with models that learned nothing, and the drop
in score without the head. Attention is measured as `specialisation` does on tasks and as `roles` does on texts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from headcount.analysis.head_labels import THRESHOLDS, above_even
from headcount.analysis.roles import REPEATED, TEXTS, HeadRoles, head_roles
from headcount.analysis.specialisation import Specialisation, specialise
from headcount.bands import IMPORTANT, limit_text
from headcount.claims._drops import drops_of
from headcount.claims.base import ClaimCase, ClaimKind, Evidence, Judgement, kinds
from headcount.errors import InputError
from headcount.heads import HeadId

COPIES = ("duplicate", "induction")
"""Roles of heads that are about copies of a token, and are therefore measured on repeated random tokens."""
UNUSED = "The head attends as claimed, but removing it costs less than the claim needs: the model does not need the "
UNUSED += "pattern."


def pattern_kind(name: str, phrase: str, targets: tuple[str, ...] = (), role: str = "") -> ClaimKind:
    """Return a kind of claim about attention, such as `reads the operator`, which is `phrase` in plain English.

    On a task, the claim is about attention to one of the task's `targets`, such as the operator. On texts, it is about
    attention to the keys of a `role`, such as the previous token.
    """
    return ClaimKind(
        grammar=f"SUBJECT {name}",
        phrase=phrase,
        supported_if="the attention of each head to the target, above uniform attention, is at least 0.25 and above "
        f"that of the controls, and removing the heads costs at least {limit_text(IMPORTANT)} (both with the whole "
        "95 % CI)",
        refuted_if="the attention of a head, above uniform attention, lies below 0.25 or that of the controls, "
        f"or the drop below {limit_text(IMPORTANT)} (whole 95 % CI); if the score is a loss, the limit is "
        f"{limit_text(IMPORTANT, 'nats')} instead of {limit_text(IMPORTANT)}",
        controls="untrained and shuffled models of the same shape set the threshold for the attention",
        measure=partial(measure, targets=targets, role=role),
    )


def measure(case: ClaimCase, targets: tuple[str, ...], role: str) -> Judgement:
    """Measure the attention of each head that the claim is about, and the drop in score without these heads."""
    if case.model.task is None and not role:
        raise InputError(
            f"a claim of the kind {case.claim.kind.name} is about token positions of a task, and {case.model.name} has "
            "no task of headcount",
            f"without a task, these kinds of claims can be judged: {_kinds_with('role')}",
        )
    if case.model.task is not None and not targets:
        raise InputError(
            f"a claim of the kind {case.claim.kind.name} is measured on texts, but {case.model.name} is measured on "
            "examples of its task",
            f"on a task, these kinds of claims can be judged: {_kinds_with('targets')}",
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
    """Return the names of the kinds of claims that can be judged on a task or on texts, as a list in words.

    `keyword` is `targets` for a task and `role` for texts.
    """
    patterns = {name: kind.measure for name, kind in kinds().items() if isinstance(kind.measure, partial)}
    return ", ".join(sorted(name for name, measurement in patterns.items() if measurement.keywords.get(keyword)))


def _task_weights(case: ClaimCase, head: HeadId, targets: tuple[str, ...]) -> Evidence:
    """Return a head's attention to the target, of several, that it attends to most, as evidence for a claim.

    `targets` are names of kinds of keys that the task defines, such as the operator.
    """
    stats: Specialisation = case.once("specialisation", lambda: specialise(case.model.task_attention()))
    (own,) = (each for each in stats.heads if each.short == head.short)
    measures = [each for each in map(own.find, targets) if each is not None and each.even is not None]
    if not measures:
        known = ", ".join(dict.fromkeys(m.measure for m in own.measures if m.even is not None))
        raise InputError(
            f"{head.short} never sees the tokens that this claim is about", f"the head can attend to: {known}"
        )
    best, bars = max(measures, key=lambda each: each.mean), stats.calibration.at(own.stack, own.kind)
    bounds = (best.mean, best.mean - best.half(), best.mean + best.half())
    return _weight(head, best.measure, bounds, best.even or 0.0, best.n, "examples", bars.get((best.measure, "all"), 0))


def _text_weights(case: ClaimCase, head: HeadId, roles: tuple[str, ...]) -> Evidence:
    """Return a head's attention to the keys of a role (such as the previous token) in texts as evidence for a claim."""
    for on in (REPEATED, TEXTS) if roles[0] in COPIES else (TEXTS, REPEATED):
        result: HeadRoles | None = case.once(("roles", on), partial(_roles, case, on))
        own = next((each for each in result.heads if each.short == head.short), None) if result else None
        score = own.find(roles[0], on) if own else None
        if result and own and score:
            break
    else:
        raise InputError(
            f"the texts have no {roles[0]} tokens that {head.short} could attend to", "give other texts: --data FILE"
        )
    bars = {(bar.stack, bar.kind, bar.role, bar.on): bar.least for bar in result.bars}
    bar = bars.get((own.stack, own.kind, score.role, score.on), 0.0)
    target = f"{score.role} tokens ({score.on})"
    return _weight(head, target, (score.mean, score.low, score.high), score.even, score.n, "queries", bar)


def _roles(case: ClaimCase, on: str) -> HeadRoles | None:
    """Return measures of every head on one kind of inputs, `texts` or `repeated tokens`; None without such inputs."""
    model, data = case.model, case.data if isinstance(case.data, str | Path) else None
    texts = model.texts((), data) if on == TEXTS else model.repeated_tokens()
    return head_roles(model.label, model.weights_sha256, model.module, model.sites, {on: texts}) if texts else None


def _weight(
    head: HeadId, target: str, bounds: tuple[float, float, float], even: float, n: int, of: str, bar: float
) -> Evidence:
    """Return a head's attention to a kind of key, compared with a threshold, as evidence for a claim.

    The attention is rescaled to 0 for uniform attention and 1 for all attention. `bounds` are the mean attention and
    the ends of its CI, `even` is uniform attention, and `bar` is the threshold from models that learned nothing.
    """
    value, low, high = (above_even(each, even) for each in bounds)
    words = f"{head.short} attends to the target “{target}” by {{}} more than uniform attention would"
    return Evidence(words, value, low, high, n, of, "share").at_least(round(max(THRESHOLDS.partly, bar), 4))
