"""Check models for known mistakes, and write feedback for the students of a course."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headcount.api.courses import AT_ONCE, Submission, course_labels, run_course
from headcount.api.opening import AnyModel, open_on_task
from headcount.api.saving import Place, Saved, folder_for, result_name, save_in
from headcount.auditing.audit import Audit, checks_named, run_checks
from headcount.auditing.audited_model import audited_model
from headcount.describing.sections.audit import audit_page, course_page, feedback_page
from headcount.errors import InputError
from headcount.files import claim_output, write_atomically, write_outputs
from headcount.limits import TIMEOUT
from headcount.rendering.markdown import report_text
from headcount.rendering.progress import counting

SUMMARY = "_summary.md"
"""Name of the file with the summary for the teacher, beside the students' files. No submission can have this name."""


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
    """Check a model for known mistakes, and name the root cause of the checks that fail.

    * `model` is a run or an adapter's model. Only the checks that apply to it are run.
    * `n` is the number of test examples; the default is all.
    * `only` selects checks by id or name, such as `["HC101"]`.
    * `ignore` maps checks to the reason why their findings are not mistakes here.
    * `save` names a folder for the result and for feedback as Markdown; `save=True` means the model's own folder.

    The returned `result` is an `Audit`, with the outcome and the evidence of each check.

    >>> saved = audit("sample:sortedness", n=200, only=["one-answer"], quiet=True)
    >>> saved.result.is_sound
    True
    """
    _require_count(n)
    opened, checks = open_on_task(model, run_adapter=run_adapter), checks_named(only)
    folder = folder_for(opened, save)
    with counting(f"auditing {opened.name}", quiet=quiet) as progress:
        result = run_checks(audited_model(opened, n), checks, ignore=ignore, progress=progress)
    saved = save_in(
        folder, result_name("audit", n=n, only=["", *(each.id for each in checks.values())] if only else None), result
    )
    if folder is None:
        return saved
    feedback = saved.data[0].with_suffix(".md")
    write_atomically(feedback, report_text(audit_page(result)).encode(errors="replace"))
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
    """Audit several models, such as the submissions of a course, each in a process of its own.

    The returned mapping has one `Submission` per model, by the model's name. A submission that fails, takes more
    than `timeout` seconds or ends its process has an `error` instead of a result. `at_once` processes run at the
    same time. See `audit` for the other parameters.
    """
    _require_count(n)
    checks_named(only)
    settings: dict[str, Any] = {"n": n, "only": only, "ignore": dict(ignore or {}), "quiet": True}
    limits: dict[str, Any] = {"timeout": timeout, "at_once": at_once, "is_quiet": quiet}
    place = save if isinstance(save, bool) else str(save)
    return run_course(
        models, audit, [Audit], title="auditing models", run_adapter=run_adapter, **limits, save=place, **settings
    )


def write_feedback(course: Mapping[str, Submission[Audit]], folder: str | Path) -> tuple[Path, ...]:
    """Write a summary for the teacher and one Markdown file per student; return the paths, the summary first.

    Raise an error rather than replace a file that headcount did not write.
    """
    pages = {SUMMARY: course_page({submission.label: submission.outcome for submission in course.values()})}
    for submission in course.values():
        label = submission.label
        pages[f"{label}.md"] = feedback_page(label, submission.outcome, submission.name, submission.output)
    outputs = {Path(folder) / name: report_text(page).encode(errors="replace") for name, page in pages.items()}
    return tuple(write_outputs(outputs, force=None))


def require_feedback_folder(folder: str | Path, models: Sequence[str]) -> None:
    """Raise an error if a feedback folder cannot be written, or holds files which headcount did not write."""
    for name in (SUMMARY, *(f"{label}.md" for label in course_labels(models).values())):
        claim_output(Path(folder) / name, ".md", force=None)


def _require_count(n: int | None) -> None:
    if n is not None and n < 1:
        raise InputError(f"--n must be at least 1, got {n}", "it is the number of test examples to use")
