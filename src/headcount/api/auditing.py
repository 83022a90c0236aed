"""Name every known way in which a model, its figures or an intervention may mislead."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headcount.api.opening import AnyModel, open_on_task
from headcount.api.saving import Place, Saved, folder_for, result_name, save_in
from headcount.auditing.audit import Audit, checks_named, run_checks
from headcount.auditing.observed import Observed
from headcount.errors import HeadcountError, InputError
from headcount.files import write_atomically
from headcount.views.audit import audit_markdown
from headcount.views.progress import counting


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
    if n is not None and n < 1:
        raise InputError(f"--n must be at least 1, got {n}", "it is examples of the test set")
    opened, checks = open_on_task(model, run_adapter=run_adapter), checks_named(only)
    folder = folder_for(opened, save)
    with counting(f"auditing {opened.name}", quiet=quiet) as progress:
        found = run_checks(Observed(opened, n), checks, ignore=ignore, progress=progress)
    saved = save_in(folder, result_name("audit", n=n, only=tuple(checks) if only else None), found)
    if folder is None:
        return saved
    feedback = saved.data[0].with_suffix(".md")
    write_atomically(feedback, audit_markdown(found).encode(errors="replace"))
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
) -> dict[str, Saved[Audit] | HeadcountError]:
    """Several models, such as a course's submissions, by name; what is wrong with a broken one stands in its place."""
    checks_named(only)
    found: dict[str, Saved[Audit] | HeadcountError] = {}
    with counting("auditing models", quiet=quiet) as progress:
        for i, name in enumerate(models):
            try:
                found[name] = audit(name, n=n, only=only, ignore=ignore, save=save, quiet=True, run_adapter=run_adapter)
            except HeadcountError as error:
                found[name] = error
            progress(i + 1, len(models))
    return found
