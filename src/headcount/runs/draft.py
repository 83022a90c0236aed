"""A run folder that is there as a whole, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headcount.errors import RunError
from headcount.runs.folder import RunFolder
from headcount.runs.storage import explained


@contextmanager
def drafted(path: Path) -> Iterator[RunFolder]:
    """A hidden folder beside `path`, which becomes `path` in one move; if anything fails, nothing is left of it."""
    require_vacant(path)
    home = path.resolve()
    draft = RunFolder(home.with_name(f".{home.name}.draft"))
    with draft.locked(), _removed_on_failure(draft.path):
        yield draft
    with _removed_on_failure(draft.path), explained(f"write {path}"):
        if home.exists():
            home.rmdir()
        draft.path.rename(home)


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


@contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
