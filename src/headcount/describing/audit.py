"""What checks say of models: a table of all of them, a row for each model of a course, and feedback to hand back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from rich.table import Column, Table

from headcount.errors import HeadcountError, argument, shortened
from headcount.figures.style import table_of

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


# --- courses ----------------------------------------------------------------------------------------------------------

Outcome: TypeAlias = "Audit | HeadcountError"
"""What became of a submission: its audit, or the error that stands in its place."""
COMMON = 5
"""Causes that a summary names."""


def course_table(course: Mapping[str, Outcome]) -> Table:
    """Make one row per model, in the order given."""
    columns = (Column("model"), Column("right", justify="right"), "fails", "warns", "most common error", "cause")
    return table_of("audit", columns, [_course_row(name, each) for name, each in course.items()])


def _course_row(name: str, found: Outcome) -> tuple[str, ...]:
    if isinstance(found, HeadcountError):
        return name, "", "", "", "", f"broken: {found.what}"
    ids = (", ".join(each.id for each in found.of(verdict)) for verdict in URGENT)
    return name, f"{100 * found.measured:.2f} %", *ids, found.common_error, found.summary


def course_summary(course: Mapping[str, Outcome]) -> list[str]:
    """Count sound, faulty and broken submissions, and name the most common causes."""
    audits = [each for each in course.values() if not isinstance(each, HeadcountError)]
    errors = [each for each in course.values() if isinstance(each, HeadcountError)]
    n_sound = sum(each.is_sound for each in audits)
    n = f"{len(course):,} submission{'' if len(course) == 1 else 's'}"
    lines = [f"{n}: {n_sound:,} sound, {len(audits) - n_sound:,} with faults, {len(errors):,} broken"]
    faults = Counter(f"{each.id} ({each.check.replace('-', ' ')})" for audit in audits for each in audit.of("fail"))
    for what, counts in (("faults", faults), ("reasons why submissions are broken", Counter(map(_reason, errors)))):
        named = ", ".join(f"{cause}: {count:,}" for cause, count in counts.most_common(COMMON))
        lines += [f"most common {what}: {named}"] if named else []
    return lines


def _reason(error: HeadcountError) -> str:
    """Name the exception, so that the same mistake of several students counts as one."""
    exception = re.search(r"(?:fails|ends the program): (\w+)", error.what)
    return exception[1] if exception else shortened(error.what, 60)


def course_markdown(course: Mapping[str, Outcome]) -> str:
    """Write the teacher's page: the summary, then a line for each submission."""
    lines = [
        "# Summary of the course",
        "",
        *(line for each in course_summary(course) for line in (_sentence(each), "")),
    ]
    rows = (_course_row(name, each) for name, each in course.items())
    lines += ["| submission | right | fails | warns | most common error | cause |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join([*lines, ""]) + "\n"


def feedback_markdown(label: str, found: Outcome, name: str, output: str = "") -> str:
    """Write a student's page: only what to mend and to look at, or why nothing could be measured."""
    lines = [f"# Feedback for {label}", ""]
    if isinstance(found, HeadcountError):
        lines += ["Your submission could not be measured.", "", f"**What failed.** {found.what}", ""]
        lines += [line for each in found.advice for line in (f"- {each}", "")]
        lines += [f"**What to do.** Run this, and mend what it shows: `headcount audit {argument(name)}`", ""]
    else:
        lines += [f"{_sentence(found.summary)}", ""] if not found.is_sound else ["Nothing has to be mended.", ""]
        lines += _measured_lines(found) + _urgent_lines(found)
        lines += [line for note in audit_notes(found) for line in (_sentence(note), "")]
    if output:
        lines += ["What your code printed:", "", *(f"    {line}" for line in output.splitlines()), ""]
    return "\n".join(lines) + "\n"


# --- one model --------------------------------------------------------------------------------------------------------


def audit_markdown(audit: Audit) -> str:
    """Write feedback that a teacher can hand back: what is wrong, how that was found, and what to change."""
    lines = [f"# Audit of {audit.name}", "", _sentence(audit.summary), "", *_measured_lines(audit)]
    lines += _urgent_lines(audit)
    lines += [line for note in audit_notes(audit) for line in (_sentence(note), "")]
    rest = [each for each in _sorted(audit) if each.verdict not in URGENT]
    if rest:
        lines += ["## Everything else that was checked", "", "| id | check | verdict | |", "|---|---|---|---|"]
        lines += [f"| {each.id} | {each.check} | {each.verdict} | {_cell(_told(each))} |" for each in rest]
    return "\n".join(lines).rstrip() + "\n"


def _measured_lines(audit: Audit) -> list[str]:
    """Say how much is right, and what most errors share."""
    lines = [f"Looked at on {audit.n:,} test examples of {audit.task}; {100 * audit.measured:.2f} % are right.", ""]
    return [*lines, f"Most common error: {_sentence(audit.common_error)}", ""] if audit.common_error else lines


def _urgent_lines(audit: Audit) -> list[str]:
    """Explain each check that fails or warns."""
    lines = list[str]()
    for title, verdict in (("To mend", "fail"), ("To look at", "warn")):
        some = audit.of(verdict)
        lines += [f"## {title}", ""] if some else []
        for each in some:
            lines += [f"### {each.id}: {each.check.replace('-', ' ')}", "", _sentence(each.finding), ""]
            lines += [f"**Likely cause.** {_sentence(each.cause)}", ""] if each.cause else []
            lines += [f"**What to change.** {_sentence(each.fix)}", ""] if each.fix else []
    return lines


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
