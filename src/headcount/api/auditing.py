"""Name every known way in which a model, its figures or an intervention may mislead."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headcount.api.courses import AT_ONCE, Submission, course_labels, run_course
from headcount.api.opening import AnyModel, open_on_task
from headcount.api.saving import Place, Saved, folder_for, result_name, save_in
from headcount.auditing.audit import Audit, checks_named, run_checks
from headcount.auditing.audited_model import audited_model
from headcount.describing.audit import audit_page, course_page, feedback_page
from headcount.errors import InputError
from headcount.files import claim_output, write_atomically, write_outputs
from headcount.limits import TIMEOUT
from headcount.rendering.markdown import report_text
from headcount.rendering.progress import counting

SUMMARY = "_summary.md"
"""The teacher's file beside the students' files; no submission is called so."""


def audit(
    model: AnyModel,
    *,
    n: int | None = None,
    only: Sequence[str] | None = None,
    ignore: Mapping[str, str] | None = None,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
) -> Saved[Audit]:
    """Run every check that applies to a run or to an adapter's model, and say what is at the bottom of what they find.

    `n` test examples are looked at, all unless it is given. `only` names checks, by id or name; `ignore` says of some
    why what they find is no fault here. With `save`, feedback is written as Markdown, too.

    >>> found = audit("sample:sortedness", n=200, only=["one-answer"], quiet=True)
    >>> found.result.is_sound
    True
    """
    _require_count(n)
    opened, checks = open_on_task(model, run_adapter=run_adapter), checks_named(only)
    folder = folder_for(opened, save)
    with counting(f"auditing {opened.name}", quiet=quiet) as progress:
        found = run_checks(audited_model(opened, n), checks, ignore=ignore, progress=progress)
    saved = save_in(folder, result_name("audit", n=n, only=tuple(checks) if only else None), found)
    if folder is None:
        return saved
    feedback = saved.data[0].with_suffix(".md")
    write_atomically(feedback, report_text(audit_page(found)).encode(errors="replace"))
    return replace(saved, others=(feedback,))


def audit_all(
    models: Sequence[str],
    *,
    n: int | None = None,
    only: Sequence[str] | None = None,
    ignore: Mapping[str, str] | None = None,
    save: Place = False,
    quiet: bool = False,
    run_adapter: bool = False,
    timeout: float = TIMEOUT,
    at_once: int = AT_ONCE,
) -> dict[str, Submission[Audit]]:
    """Audit several models, such as a course's submissions, each in a process of its own, and return them by name.

    A submission that fails, never returns (`timeout` seconds) or ends its process has an `error` instead of a result.
    """
    _require_count(n)
    checks_named(only)
    how: dict[str, Any] = {"n": n, "only": only, "ignore": dict(ignore or {}), "quiet": True}
    clock: dict[str, Any] = {"timeout": timeout, "at_once": at_once, "is_quiet": quiet}
    place = save if isinstance(save, bool) else str(save)
    return run_course(
        models, audit, [Audit], title="auditing models", run_adapter=run_adapter, **clock, save=place, **how
    )


def write_feedback(course: Mapping[str, Submission[Audit]], folder: str | Path) -> tuple[Path, ...]:
    """Write one Markdown file for each student, with what to mend, and a summary for the teacher, which comes first.

    A file that headcount did not write is left alone, and is an error.
    """
    place, labels = Path(folder), {each.label: each for each in course.values()}
    pages = {SUMMARY: course_page({label: each.outcome for label, each in labels.items()})}
    for label, each in labels.items():
        pages[f"{label}.md"] = feedback_page(label, each.outcome, each.name, each.output)
    outputs = {place / name: report_text(page).encode(errors="replace") for name, page in pages.items()}
    return tuple(write_outputs(outputs, force=None))


def require_feedback_folder(folder: str | Path, models: Sequence[str]) -> None:
    """Find out before long work that the folder can be written, and that no file there is somebody else's."""
    for name in (SUMMARY, *(f"{label}.md" for label in course_labels(models).values())):
        claim_output(Path(folder) / name, ".md", force=None)


def _require_count(n: int | None) -> None:
    if n is not None and n < 1:
        raise InputError(f"--n must be at least 1, got {n}", "it is examples of the test set")
