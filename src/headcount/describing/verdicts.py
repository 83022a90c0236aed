"""What the audit says, at the place that it concerns."""

from __future__ import annotations

from collections.abc import Collection
from string import ascii_uppercase
from typing import TYPE_CHECKING, Literal, cast

from headcount.describing.blocks import Notice
from headcount.describing.words import sentence

if TYPE_CHECKING:
    from headcount.auditing.audit import Audit, Verdict
    from headcount.describing.story import Subject

DECODING, MASKING, COLLAPSE, DATA, POSITIONS, SHORTCUTS, ABLATION, FIGURES = "12345678"
"""Kinds of checks: the first digit of their ids, such as HC101. All digits stand for one check."""
BEYOND = "302"
"""One answer to everything, beyond the trained lengths."""
URGENT = ("fail", "warn")


def notices(subject: Subject, kinds: Collection[str]) -> list[Notice]:
    """What fails or warns among checks of these kinds, `[POSITIONS, SHORTCUTS]`; nothing if there was no audit."""
    return [] if subject.audit is None else [_notice(subject, each) for each in urgent(subject.audit, kinds)]


def urgent(audit: Audit, kinds: Collection[str] = "12345678") -> list[Verdict]:
    """The checks that fail, then those that warn, by id."""
    found = [each for each in audit.verdicts if each.verdict in URGENT and _digits(each).startswith(tuple(kinds))]
    return sorted(found, key=lambda each: (URGENT.index(each.verdict), each.id))


def _digits(verdict: Verdict) -> str:
    """`101` of HC101."""
    return verdict.id.lstrip(ascii_uppercase)


def _notice(subject: Subject, verdict: Verdict) -> Notice:
    cause = f" Likely cause: {sentence(verdict.cause)}" if verdict.cause else ""
    fix = f" What to change: {sentence(verdict.fix)}" if verdict.fix else ""
    words = cast(Literal["fail", "warn"], verdict.verdict)
    return Notice(words, f"{subject.title}: {sentence(verdict.finding)}{cause}{fix}", verdict.id)
