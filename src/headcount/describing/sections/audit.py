"""What did the audit (checks for known mistakes) find? Notices, tables of checks, and feedback pages for a course."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from string import ascii_uppercase
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from headcount.describing.blocks import (
    Block,
    Cell,
    Commands,
    Conclusions,
    DataTable,
    Notice,
    Paragraph,
    Row,
    Section,
    Sentence,
)
from headcount.describing.report import ModelResults, Report, ReportResults
from headcount.describing.words import counted, percent, sentence, some
from headcount.errors import HeadcountError, argument, shortened

if TYPE_CHECKING:
    from headcount.auditing.audit import Audit, Verdict

POSITIONS, SHORTCUTS = "5", "6"
"""First digit of the ids of two kinds of checks, as in HC501: checks of position encodings, checks for shortcuts."""
BEYOND = "302"
"""Number of the check (HC302) for models that give one answer to everything beyond the training lengths."""
URGENT = ("fail", "warn")
MARKS: dict[str, Literal["", "strong", "weak"]] = {
    "fail": "strong",
    "warn": "strong",
    "explained": "",
    "ignored": "weak",
    "pass": "",
    "not applicable": "weak",
}
"""Maps each verdict of a check, the most urgent first, to how a table prints it: bold, normal or grey."""
ORDER = tuple(MARKS)
QUIET = ("pass", "not applicable")
"""Verdicts of checks that found nothing."""
PAGE = "docs/traps.md"


def describe(audit: Audit) -> list[Block]:
    """Return report blocks on an audit: root cause, a notice per check that fails or warns, tables of all checks."""
    blocks: list[Block] = [Paragraph(sentence(audit.summary)), Paragraph(measured(audit))]
    blocks += [notice(each) for each in urgent(audit)]
    if anchors := [f"#{each.id.lower()}" for each in urgent(audit)]:
        blocks.append(Paragraph(f"What each check means: {PAGE}{', '.join(anchors)}"))
    return [*blocks, *verdict_tables([(audit.name, audit)], "audit", is_complete=True)]


def measured(audit: Audit) -> str:
    """Return sentences on how many answers are right, and on what most errors have in common."""
    text = f"{percent(audit.measured, 2)} of the answers to {audit.n:,} test examples of {audit.task} are right."
    return f"{text} Most common error: {sentence(audit.common_error)}" if audit.common_error else text


# --- notices ----------------------------------------------------------------------------------------------------------


def notices(model: ModelResults, kinds: Collection[str] = ("",)) -> list[Notice]:
    """Return a notice for each check of these kinds (such as `[POSITIONS, SHORTCUTS]`) that fails or warns."""
    return [] if model.audit is None else [notice(each, model.title) for each in urgent(model.audit, kinds)]


def urgent(audit: Audit, kinds: Collection[str] = ("",)) -> list[Verdict]:
    """Return the checks of these kinds that fail, with the root cause first, and then the checks that warn."""
    ranks = {id: rank for rank, id in enumerate(audit.causes)}
    verdicts = [each for each in audit.verdicts if each.verdict in URGENT]
    verdicts.sort(key=lambda each: (URGENT.index(each.verdict), ranks.get(each.id, len(ranks)), each.id))
    return [each for each in verdicts if each.id.lstrip(ascii_uppercase).startswith(tuple(kinds))]


def notice(verdict: Verdict, title: str = "") -> Notice:
    """Return a notice with what a check found, its likely cause and what to change."""
    cause = f" Likely cause: {sentence(verdict.cause)}" if verdict.cause else ""
    fix = f" What to change: {sentence(verdict.fix)}" if verdict.fix else ""
    text = f"{f'{title}: ' if title else ''}{sentence(verdict.finding)}{cause}{fix}"
    return Notice(cast(Literal["fail", "warn"], verdict.verdict), text, verdict.id)


# --- tables -----------------------------------------------------------------------------------------------------------


def verdict_tables(
    audits: Sequence[tuple[str, Audit]], name: str, command: str = "", *, is_complete: bool = False
) -> list[DataTable]:
    """Return two tables of the checks of audited models: checks that found something, and checks that found nothing.

    Checks that do not apply to a model are listed only if `is_complete`; otherwise, a note has their number.
    """
    verdicts = [(title, each) for verdict in ORDER for title, audit in audits for each in audit.of(verdict)]
    n_left_out = 0 if is_complete else sum(each.verdict == "not applicable" for _, each in verdicts)
    loud = [pair for pair in verdicts if pair[1].verdict not in QUIET]
    quiet = [pair for pair in verdicts if pair[1].verdict in (QUIET if is_complete else QUIET[:1])]
    note = f"Not listed: {counted(n_left_out, 'check')} that do not apply." if n_left_out else ""
    note += " Only the quick checks were run." if any(audit.is_quick for _, audit in audits) else ""
    columns = (*(["model"] if len(audits) > 1 else []), "id", "check", "verdict", "evidence")

    def rows(pairs: list[tuple[str, Verdict]]) -> tuple[Row, ...]:
        return tuple((*([title] if len(audits) > 1 else []), *_cells(verdict)) for title, verdict in pairs)

    tables = [DataTable(name, "Checks that found something", columns, rows(loud), "", command)] if loud else []
    if quiet or not loud:
        caption = f"{counted(len(quiet), 'check')} that found nothing"
        second, note = f"{name}-passed" if loud else name, note.strip()
        tables.append(DataTable(second, caption, columns, rows(quiet), note, command, is_folded=True))
    return tables


def _cells(verdict: Verdict) -> Row:
    """Return the cells of one check in a table: id, name, verdict and evidence."""
    evidence = verdict.finding
    if verdict.verdict == "explained":
        evidence = f"explained by {verdict.explained_by}: {evidence}"
    elif verdict.verdict == "ignored":
        evidence = f"{evidence} (ignored: {verdict.reason})"
    word = Cell(verdict.verdict, ORDER.index(verdict.verdict), MARKS[verdict.verdict])  # readers sort by urgency
    return verdict.id, verdict.check.replace("-", " "), word, evidence


# --- courses ----------------------------------------------------------------------------------------------------------

Outcome: TypeAlias = "Audit | HeadcountError"
"""The audit of a student's submission, or the error that prevented it."""
MOST_CAUSES = 5
"""Largest number of faults, and of reasons for broken submissions, that the summary of a course names."""


def course_table(course: Mapping[str, Outcome]) -> DataTable:
    """Return a table with one row per student's submission: its accuracy, failed checks and most common error."""
    columns = ("submission", "right", "fails", "warns", "most common error", "cause")
    rows = tuple((name, *_course_cells(outcome)) for name, outcome in course.items())
    return DataTable("submissions", f"Audit of {counted(len(course), 'submission')}", columns, rows)


def _course_cells(outcome: Outcome) -> Row:
    """Return the table cells of one submission in the table of a course, except for its name."""
    if isinstance(outcome, HeadcountError):
        return Cell(""), "", "", "", f"broken: {outcome.what}"
    ids = (", ".join(each.id for each in outcome.of(verdict)) for verdict in URGENT)
    return Cell(percent(outcome.measured, 2), outcome.measured), *ids, outcome.common_error, outcome.summary


def course_summary(course: Mapping[str, Outcome]) -> list[str]:
    """Return sentences on how many submissions are sound, faulty or broken, and on the most common causes."""
    audits = [each for each in course.values() if not isinstance(each, HeadcountError)]
    errors = [each for each in course.values() if isinstance(each, HeadcountError)]
    n_sound = sum(each.is_sound for each in audits)
    n = counted(len(course), "submission")
    lines = [f"{n}: {n_sound:,} sound, {len(audits) - n_sound:,} with faults, {len(errors):,} that cannot be run"]
    faults = Counter(f"{each.id} ({each.check.replace('-', ' ')})" for audit in audits for each in audit.of("fail"))
    for what, counts in (("faults", faults), ("reasons why submissions cannot be run", Counter(map(_reason, errors)))):
        named = ", ".join(f"{cause}: {count:,}" for cause, count in counts.most_common(MOST_CAUSES))
        lines += [f"most common {what}: {named}"] if named else []
    return lines


def _reason(error: HeadcountError) -> str:
    """Return the name of the Python exception in an error message, so that equal errors are counted together."""
    exception = re.search(r"(?:fails|ends the program): (\w+)", error.what)
    return exception[1] if exception else shortened(error.what, 60)


# --- pages that are handed back ---------------------------------------------------------------------------------------


def course_page(course: Mapping[str, Outcome]) -> Report:
    """Return the teacher's page on a course: a summary, and a table with a row for each student's submission."""
    first, *others = map(sentence, course_summary(course))
    blocks: list[Block] = [*map(Paragraph, others), course_table(course)]
    return Report("Summary of the course", first, (Section("course", "Submissions", tuple(blocks)),), "")


def feedback_page(label: str, outcome: Outcome, name: str, output: str = "") -> Report:
    """Return a student's page: only what to change and what to check, or why the submission could not be measured."""
    if isinstance(outcome, HeadcountError):
        summary = "Your submission could not be measured."
        command = Commands((f"headcount audit {argument(name)}",), "Run this command, and fix what it shows:")
        reasons = [Paragraph(text) for text in (outcome.what, *outcome.advice)]
        sections = [Section("failed", "What failed", (*reasons, command))]
    else:
        summary = "Nothing needs to be fixed." if outcome.is_sound else sentence(outcome.summary)
        sections = _urgent_sections(outcome)
    if output:
        sections.append(Section("output", "What your code printed", (Commands(tuple(output.splitlines())),)))
    return Report(f"Feedback for {label}", summary, tuple(sections), "")


def audit_page(audit: Audit) -> Report:
    """Return a page about one audited model: what is wrong, how it was found, what to change, and all other checks."""
    rest = Section("others", "All checks", tuple(verdict_tables([(audit.name, audit)], "audit", is_complete=True)))
    return Report(f"Audit of {audit.name}", sentence(audit.summary), (*_urgent_sections(audit), rest), "")


def _urgent_sections(audit: Audit) -> list[Section]:
    """Return a section on what was measured, then one section for each check that fails or warns."""
    sections = [Section("measured", "What was measured", (Paragraph(measured(audit)),))]
    for each in urgent(audit):
        texts = [sentence(each.finding)]
        texts += [f"Likely cause: {sentence(each.cause)}"] if each.cause else []
        texts += [f"What to change: {sentence(each.fix)}"] if each.fix else []
        texts.append(f"What this check means: {PAGE}#{each.id.lower()}")
        title = f"{'To fix' if each.verdict == 'fail' else 'To check'}: {each.id}, {each.check.replace('-', ' ')}"
        sections.append(Section(each.id.lower(), title, tuple(map(Paragraph, texts))))
    return sections


# --- the section of a report ------------------------------------------------------------------------------------------

TABLE = "audit-verdicts"
Audits = Sequence[tuple[str, "Audit"]]
"""Pairs of a model's title and the audit of this model."""
RESULTS = ("evaluation", "certificate", "ablation", "pruning", "stretch")
"""Names of the results of a model that also store the fault found by the quick audit (a few fast checks)."""


def section(results: ReportResults) -> Section | None:
    """Return the section on audits, or None if no model was audited and no fault is known.

    For a model without an audit, the section has the fault that a quick audit (a few fast checks) stored.
    """
    audited = [each for each in results.models if each.audit is not None]
    quick = [each for each in results.models if each.audit is None and quick_fault(each)]
    if not audited and not quick:
        return None
    blocks: list[Block] = [
        Paragraph(
            "The audit checks a model and its results for known mistakes. It looks at how the model behaves, and not "
            "at its settings. A check fails if numbers or conclusions are wrong, and warns if they may mislead. A "
            "finding that concerns one section of this report is repeated in that section."
        ),
        *(notice for model in audited for notice in notices(model)),
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
    """Return the fault that the quick audit (a few fast checks) stored with a model's results; empty if none."""
    faults = (getattr(getattr(model, name), "audit", "") for name in RESULTS)
    return next((fault for fault in faults if fault), "")


def conclusions(audits: Audits, rests_on: str) -> list[Sentence]:
    """Return sentences on which models have faults, and on the accuracy that a fault predicts and that was measured."""
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
    """Return the models with their checks of one verdict, as text: `add (HC101 constant place) and sort (...)`."""
    parts = []
    for title, audit in audits:
        checks = some([f"{each.id} {each.check.replace('-', ' ')}" for each in audit.of(verdict)], 3)
        parts.append(f"{title} ({checks})")
    return some(parts)


PART = section
