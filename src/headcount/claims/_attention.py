"""Claims that a head attends to something, and that the model needs the head: a pattern and an effect.

The pattern is measured as `specialisation` and `roles` do, against models that learned nothing.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from headcount.analysis.labels import THRESHOLDS, above_even
from headcount.analysis.roles import REPEATED, TEXTS, HeadRoles, head_roles
from headcount.analysis.specialisation import Specialisation, specialise
from headcount.bands import IMPORTANT
from headcount.claims._drops import drops_of
from headcount.claims.base import ClaimCase, ClaimKind, Evidence, Judgement
from headcount.errors import InputError
from headcount.heads import HeadId

COPIES = ("duplicate", "induction")
"""Roles that are about copies of a token, which repeated tokens show best."""
UNUSED = "The head attends as claimed, but removing it costs less than the claim needs: the model does not need the "
UNUSED += "pattern."


def pattern_kind(name: str, phrase: str, targets: tuple[str, ...] = (), role: str = "") -> ClaimKind:
    """Return a kind of claim about attention to a target of a task, or to keys of a role in texts.

    Of several targets, the head must attend to one.
    """
    return ClaimKind(
        grammar=f"SUBJECT {name}",
        phrase=phrase,
        supported_if="the attention of each head to the target exceeds uniform attention by at least 0.25 and by more "
        "than in control models, and removing the heads costs at least 1 point (both whole 95 % CIs)",
        refuted_if="the attention of a head lies below that threshold, or the drop below 1 point (whole 95 % CI)",
        controls="untrained and shuffled models of the same shape set the threshold",
        measure=partial(measure, targets=targets, role=role),
    )


def measure(case: ClaimCase, targets: tuple[str, ...], role: str) -> Judgement:
    """Measure the pattern of each head of the subject, and the drop without all of them."""
    if not (targets if case.model.task is not None else role):
        raise InputError(
            f"this claim is about a pattern that does not exist for {case.model.name}",
            "make a claim of another kind; docs/claims.md lists them",
        )
    weights = _task_weights if case.model.task is not None else _text_weights
    patterns = tuple(weights(case, head, targets if case.model.task is not None else (role,)) for head in case.heads)
    drops = drops_of(case)
    removed = "it" if len(case.heads) == 1 else "them together"
    cost = drops.evidence(f"removing {removed} costs {{}}", drops.drop(case.heads))
    effect = cost.at_least(IMPORTANT) if drops.unit == "points" else cost.above(0.0)
    is_unused = effect.outcome == "refutes" and all(pattern.outcome == "supports" for pattern in patterns)
    return Judgement((*patterns, effect), note=UNUSED if is_unused else "")


def _task_weights(case: ClaimCase, head: HeadId, targets: tuple[str, ...]) -> Evidence:
    """Return the weight of a head on the target that it attends to most, on examples of the task."""
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
    """Return the weight of a head on the keys of a role, on texts or on repeated tokens."""
    result: HeadRoles = case.once("roles", lambda: _roles(case))
    (own,) = (each for each in result.heads if each.short == head.short)
    inputs = (REPEATED, TEXTS) if roles[0] in COPIES else (TEXTS, REPEATED)
    scores = [score for on in inputs if (score := own.find(roles[0], on)) is not None]
    if not scores:
        raise InputError(
            f"{head.short} never sees the tokens that this claim is about in these texts",
            "give other texts: --data FILE",
        )
    score = scores[0]
    bars = {(bar.stack, bar.kind, bar.role, bar.on): bar.least for bar in result.bars}
    bar = bars.get((own.stack, own.kind, score.role, score.on), 0.0)
    target = f"{score.role} tokens ({score.on})"
    return _weight(head, target, (score.mean, score.low, score.high), score.even, score.n, "queries", bar)


def _roles(case: ClaimCase) -> HeadRoles:
    model, data = case.model, case.data if isinstance(case.data, str | Path) else None
    texts = {TEXTS: model.texts((), data), REPEATED: model.repeated_tokens()}
    return head_roles(model.label, model.weights_sha256, model.module, model.sites, texts)


def _weight(
    head: HeadId, target: str, bounds: tuple[float, float, float], even: float, n: int, of: str, bar: float
) -> Evidence:
    """Return a weight above uniform attention, against the threshold of the controls."""
    value, low, high = (above_even(each, even) for each in bounds)
    words = f"{head.short} attends to the target “{target}” by {{}} more than uniform attention would"
    return Evidence(words, value, low, high, n, of, "share").at_least(round(max(THRESHOLDS.partly, bar), 4))
