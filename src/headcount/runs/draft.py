"""A run folder that is there as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headcount.errors import RunError
from headcount.runs.folder import RunFolder
from headcount.runs.storage import staged_folder


@contextmanager
def drafted(path: Path) -> Iterator[RunFolder]:
    """A hidden folder of this call's own that becomes `path` in one move; if anything fails, nothing is left of it."""
    require_vacant(path)
    with staged_folder(path) as draft:
        yield RunFolder(draft)


def require_vacant(path: Path) -> None:
    """Refuse a folder that another cannot be put in the place of."""
    folder = RunFolder(path)
    if folder.holds_a_run and not folder.is_finished:
        raise RunError(
            f"{path} is not empty: it holds a model, or a run that is unfinished",
            "choose a folder that does not exist yet with -o",
        )
    folder.require_free()
    if path.exists() and (any(path.iterdir()) or path.samefile(Path.cwd())):
        raise RunError(f"{path} is in use", "choose a folder that does not exist yet with -o")
