"""Writing files so that a crash leaves nothing half-true, and errors that say what to do."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headcount.errors import RunError

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, then try again (a training goes on with --resume)",
    errno.EDQUOT: "the disk quota is used up: free some space, then try again (a training goes on with --resume)",
    errno.EROFS: "the folder is read-only: work in another one",
    errno.EACCES: "that is not permitted to you: work in another folder",
    errno.EPERM: "that is not permitted to you: work in another folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder: choose another path",
    errno.EEXIST: "a file of that name is in the way: choose another path",
    errno.ENAMETOOLONG: "the path is too long: choose a shorter one",
}


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn an operating system's error into one that says what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        raise RunError(f"could not {doing}", advice, "nothing that was saved before is lost") from error


def write_atomically(path: Path, data: bytes) -> None:
    """All of `data` or, after a crash at any moment, what was there before."""
    draft = path.with_name(f".{path.name}.draft")
    with explained(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


MOST_JSON = 2**24
"""Bytes of a JSON file."""
MOST_BYTES = 2**34


def read_bytes(file: Path, most: int = MOST_BYTES) -> bytes:
    """All of a regular file of at most so many bytes; pipes, sockets and devices are not even opened."""
    require_regular(file)
    with explained(f"read {file}"):
        if (size := file.stat().st_size) > most:
            raise RunError(f"{file} is too large: {size:,} bytes", f"at most {most:,} are read")
        return file.read_bytes()


def require_regular(file: Path) -> None:
    """Refuse what is there but is no plain file (a pipe, a device, a folder), before anything opens it."""
    with explained(f"read {file}"):
        mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        raise RunError(f"{file} is no regular file", "copy it again")


def read_json(file: Path, most: int = MOST_JSON) -> Any:
    """What a JSON file holds; damage is told."""
    data = read_bytes(file, most)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{file} is damaged: {error}", "copy it again, or make it again") from error


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # other systems cannot open a folder, and need not
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
