"""What does the audit say? What is wrong, with its likely cause; then everything that was checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headcount.describing.audit import ORDER
from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Notice, Paragraph, Section, Sentence
from headcount.describing.story import Material, Subject
from headcount.describing.verdicts import notices, urgent
from headcount.describing.words import counted, sentence, some
from headcount.errors import argument

if TYPE_CHECKING:
    from headcount.auditing.audit import Audit, Verdict

TABLE = "audit-verdicts"
EVERY = "12345678"
COLUMNS = ("model", "id", "check", "verdict", "evidence")
QUIET = ("pass", "not applicable")
MARKS = {"fail": "strong", "warn": "strong", "not applicable": "weak", "ignored": "weak"}
RESULTS = ("evaluation", "certificate", "ablation", "pruning", "stretch")
"""Which say in one line what quick checks found beside them."""


def section(material: Material) -> Section | None:
    """Every model that was audited; of others, what quick checks said beside other results."""
    audited = [(each, each.audit) for each in material.subjects if each.audit is not None]
    quick = [each for each in material.subjects if each.audit is None and quick_fault(each)]
    if not audited and not quick:
        return None
    blocks: list[Block] = [
        Paragraph(
            "Every known way of fooling oneself was looked for, by what the model does and not by its settings. A "
            "check fails where figures or conclusions are wrong, and warns where they may mislead. What concerns one "
            "section stands there as well."
        ),
        *(notice for subject, _ in audited for notice in notices(subject, EVERY)),
        *(Notice("fail", f"{each.title}: {sentence(quick_fault(each))}") for each in quick),
    ]
    if not audited:
        return Section("audit", "What the audit says", tuple(blocks))
    found = conclusions(audited, TABLE)
    answer = found[0] if any(urgent(audit) for _, audit in audited) else None
    return Section("audit", "What the audit says", (*blocks, Conclusions(tuple(found)), *_tables(audited)), answer)


def quick_fault(subject: Subject) -> str:
    """What is at the bottom of what quick checks found; empty if none fails, or none was made."""
    found = (getattr(getattr(subject, name), "audit", "") for name in RESULTS)
    return next((each for each in found if each), "")


def conclusions(audited: Sequence[tuple[Subject, Audit]], rests_on: str) -> list[Sentence]:
    """Of all models together; then each whose faults predict how much is right, beside what was measured."""
    failing = [(subject, audit) for subject, audit in audited if not audit.is_sound]
    warned = [(s, audit) for s, audit in audited if audit.is_sound and urgent(audit)]
    n_checks = sum(each.verdict != "not applicable" for _, audit in audited for each in audit.verdicts)
    over = f"{counted(n_checks, 'check')} of {counted(len(audited), 'model')}"
    if failing:
        first = (
            f"The audit finds faults in {len(failing)} of {counted(len(audited), 'model')}: {_whose(failing, 'fail')}"
        )
    elif warned:
        first = f"The audit finds no fault ({over}), and warns of {_whose(warned, 'warn')}"
    else:
        first = f"The audit finds nothing wrong in {over}"
    explained = [(subject, audit) for subject, audit in failing if audit.predicted is not None]
    return [Sentence(f"{first}.", rests_on), *(_cause(subject, audit, rests_on) for subject, audit in explained)]


def _whose(found: Sequence[tuple[Subject, Audit]], verdict: str) -> str:
    """`a (HC101 constant place) and b (HC502 past table)`."""
    told = []
    for subject, audit in found:
        checks = some([f"{each.id} {each.check.replace('-', ' ')}" for each in audit.of(verdict)], 3)
        told.append(f"{subject.title} ({checks})")
    return some(told)


def _cause(subject: Subject, audit: Audit, rests_on: str) -> Sentence:
    """Both figures stand in the summary."""
    return Sentence(f"{subject.title}: {sentence(audit.summary)} Looked at on {audit.n:,} examples.", rests_on)


def _tables(audited: Sequence[tuple[Subject, Audit]]) -> list[DataTable]:
    """What is urgent and what follows from it, of all models; then, folded, everything else that was checked."""
    every = [(subject, each) for verdict in ORDER for subject, audit in audited for each in audit.of(verdict)]
    told = [(subject, each) for subject, each in every if each.verdict not in QUIET]
    passed = [(subject, each) for subject, each in every if each.verdict == "pass"]
    left_out = sum(each.verdict == "not applicable" for _, each in every)
    note = f"{counted(left_out, 'check')} that do not apply are left out." if left_out else ""
    note += " Quick checks alone." if any(audit.is_quick for _, audit in audited) else ""
    command = f"headcount audit {' '.join(argument(subject.name) for subject, _ in audited)}"
    tables = []
    if told:
        rows = tuple(_row(*pair) for pair in told)
        tables.append(DataTable(TABLE, "What was found", COLUMNS, rows, "", command))
    if passed or not told:
        rows, name = tuple(_row(*pair) for pair in passed), f"{TABLE}-passed" if told else TABLE
        caption = f"{counted(len(passed), 'check')} that found nothing"
        tables.append(DataTable(name, caption, COLUMNS, rows, note.strip(), command, is_folded=True))
    return tables


def _row(subject: Subject, verdict: Verdict) -> tuple[Cell | str, ...]:
    told = verdict.finding
    if verdict.verdict == "explained":
        told = f"explained by {verdict.explained_by}: {told}"
    elif verdict.verdict == "ignored":
        told = f"{told} (ignored: {verdict.reason})"
    mark = MARKS.get(verdict.verdict, "")
    shown = Cell(verdict.verdict, ORDER.index(verdict.verdict), mark)  # type: ignore[arg-type]
    return subject.title, verdict.id, verdict.check.replace("-", " "), shown, told


PART = section
