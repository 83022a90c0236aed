"""What did the audit find? Faults with their likely cause, then all checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headcount.describing.audit import ALL_KINDS, notices, urgent, verdict_tables
from headcount.describing.blocks import Block, Conclusions, Notice, Paragraph, Section, Sentence
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.words import counted, sentence, some
from headcount.errors import argument

if TYPE_CHECKING:
    from headcount.auditing.audit import Audit

TABLE = "audit-verdicts"
Audits = Sequence[tuple[str, "Audit"]]
"""Audits, each with the title of its model."""
RESULTS = ("evaluation", "certificate", "ablation", "pruning", "stretch")
"""Results that name the root cause which quick checks found."""


def section(results: ReportResults) -> Section | None:
    """Describe every audit; for models without an audit, the faults that quick checks found beside other results."""
    audited = [each for each in results.models if each.audit is not None]
    quick = [each for each in results.models if each.audit is None and quick_fault(each)]
    if not audited and not quick:
        return None
    blocks: list[Block] = [
        Paragraph(
            "The audit checks a model and its results for known mistakes, by the model's behaviour and not by its "
            "settings. A check fails where figures or conclusions are wrong, and warns where they may mislead. A "
            "finding about one section is repeated there."
        ),
        *(notice for model in audited for notice in notices(model, ALL_KINDS)),
        *(Notice("fail", f"{each.title}: {sentence(quick_fault(each))}") for each in quick),
    ]
    audits = [(each.title, each.audit) for each in audited if each.audit is not None]
    if not audits:
        return Section("audit", "What did the audit find?", tuple(blocks))
    sentences = conclusions(audits, TABLE)
    answer = sentences[0] if any(urgent(audit) for _, audit in audits) else None
    command = f"headcount audit {' '.join(argument(each.name) for each in audited)}"
    blocks += [Conclusions(tuple(sentences)), *verdict_tables(audits, TABLE, command)]
    return Section("audit", "What did the audit find?", tuple(blocks), answer)


def quick_fault(model: ModelResults) -> str:
    """Return the root cause that quick checks found; empty if every check passed or none was run."""
    faults = (getattr(getattr(model, name), "audit", "") for name in RESULTS)
    return next((fault for fault in faults if fault), "")


def conclusions(audits: Audits, rests_on: str) -> list[Sentence]:
    """Say which models have faults; then, for faults that predict an accuracy, compare it with the measured one."""
    faulty = [(title, audit) for title, audit in audits if not audit.is_sound]
    warned = [(title, audit) for title, audit in audits if audit.is_sound and urgent(audit)]
    n_checks = sum(each.verdict != "not applicable" for _, audit in audits for each in audit.verdicts)
    scope = f"{counted(n_checks, 'check')} of {counted(len(audits), 'model')}"
    if faulty:
        text = f"The audit finds faults in {len(faulty)} of {counted(len(audits), 'model')}: {_checks(faulty, 'fail')}."
    elif warned:
        text = f"The audit finds no fault ({scope}), but warns about {_checks(warned, 'warn')}."
    else:
        text = f"The audit finds no fault ({scope})."
    causes = [
        f"{title}: {sentence(audit.summary)} Measured on {audit.n:,} examples."
        for title, audit in faulty
        if audit.predicted is not None
    ]
    return [Sentence(each, rests_on) for each in (text, *causes)]


def _checks(audits: Audits, verdict: str) -> str:
    """List models with their checks of one verdict: `a (HC101 constant place) and b (HC502 past table)`."""
    parts = []
    for title, audit in audits:
        checks = some([f"{each.id} {each.check.replace('-', ' ')}" for each in audit.of(verdict)], 3)
        parts.append(f"{title} ({checks})")
    return some(parts)


PART = section
