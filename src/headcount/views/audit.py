"""What checks say of models: a table of all of them, a row for each model of a course, and feedback to hand back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Column, Table

from headcount.errors import HeadcountError
from headcount.views.style import table_of

if TYPE_CHECKING:
    from headcount.auditing.audit import Audit, Verdict

ORDER = ("fail", "warn", "explained", "ignored", "pass", "not applicable")
"""Of verdicts, the most urgent first."""
URGENT = ("fail", "warn")
PAGE = "docs/traps.md"


def audit_tables(audit: Audit) -> list[Table]:
    """What to mend or to look at, with its cause; then everything else that was checked."""
    urgent = [each for each in _sorted(audit) if each.verdict in URGENT]
    rest = [each for each in _sorted(audit) if each.verdict not in URGENT]
    marks = Column("id", no_wrap=True), "check", Column("verdict", no_wrap=True), "evidence"
    title = f"audit of {audit.name}: {audit.n:,} examples of {audit.task}"
    causes = [(*_row(each), each.cause, each.fix) for each in urgent]
    tables = [table_of(title, (*marks, "likely cause", "fix"), causes)] if urgent else []
    return [*tables, table_of("everything else that was checked" if urgent else title, marks, map(_row, rest))]


def _row(verdict: Verdict) -> tuple[str, str, str, str]:
    return verdict.id, verdict.check, verdict.verdict, _told(verdict)


def audit_notes(audit: Audit) -> list[str]:
    """Where each check that fails or warns is described, in one line."""
    anchors = [f"#{each.id.lower()}" for each in _sorted(audit) if each.verdict in URGENT]
    return [f"what each check means: {PAGE}{', '.join(anchors)}"] if anchors else []


def course_table(found: Mapping[str, Audit | HeadcountError]) -> Table:
    """One row per model, in the order given."""
    columns = (Column("model"), Column("right", justify="right"), "fails", "warns", "cause")
    return table_of("audit", columns, [_course_row(name, each) for name, each in found.items()])


def _course_row(name: str, found: Audit | HeadcountError) -> tuple[str, ...]:
    if isinstance(found, HeadcountError):
        return name, "", "", "", f"broken: {found.what}"
    ids = (", ".join(each.id for each in found.of(verdict)) for verdict in URGENT)
    return name, f"{100 * found.measured:.2f} %", *ids, found.summary


def audit_markdown(audit: Audit) -> str:
    """Feedback that a teacher can hand back: what is wrong, how that was found, and what to change."""
    lines = [f"# Audit of {audit.name}", "", _sentence(audit.summary), ""]
    lines += [f"Looked at on {audit.n:,} test examples of {audit.task}; {100 * audit.measured:.2f} % are right.", ""]
    for title, verdict in (("To mend", "fail"), ("To look at", "warn")):
        some = audit.of(verdict)
        lines += [f"## {title}", ""] if some else []
        for each in some:
            lines += [f"### {each.id}: {each.check.replace('-', ' ')}", "", _sentence(each.finding), ""]
            lines += [f"**Likely cause.** {_sentence(each.cause)}", ""] if each.cause else []
            lines += [f"**What to change.** {_sentence(each.fix)}", ""] if each.fix else []
    lines += [line for note in audit_notes(audit) for line in (_sentence(note), "")]
    rest = [each for each in _sorted(audit) if each.verdict not in URGENT]
    if rest:
        lines += ["## Everything else that was checked", "", "| id | check | verdict | |", "|---|---|---|---|"]
        lines += [f"| {each.id} | {each.check} | {each.verdict} | {_cell(_told(each))} |" for each in rest]
    return "\n".join(lines).rstrip() + "\n"


def _sorted(audit: Audit) -> list[Verdict]:
    """Sort verdicts by urgency; failing checks as they are ranked, others by id."""
    return [each for verdict in ORDER for each in audit.of(verdict)]


def _told(verdict: Verdict) -> str:
    if verdict.verdict == "explained":
        return f"explained by {verdict.explained_by}: {verdict.finding}"
    return f"{verdict.finding} (ignored: {verdict.reason})" if verdict.verdict == "ignored" else verdict.finding


def _sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?', '!')) else '.'}" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
