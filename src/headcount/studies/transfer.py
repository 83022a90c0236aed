"""Send a run folder to another machine, and write the files that come back into the run folder here.

A folder travels as the names and the bytes of its files. Locks and other hidden files stay where they are.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from headcount.errors import RunError
from headcount.files import friendly_os_errors, read_bytes
from headcount.runs.folder import RunFolder
from headcount.studies.plan import RECEIPTS

Files = Mapping[str, bytes]
"""The files of a folder: relative paths with `/`, and contents."""
INCOMING = ".incoming"
"""Name of the hidden folder, inside a run folder, into which files are received before they replace older files."""
FIRST = ("config.json", "environment.json", "log.jsonl", "timings.jsonl")
"""Files that a checkpoint needs, and that are therefore moved into the run folder before it."""


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return all files of a run folder that are not hidden; links are left out."""
    files = dict[str, bytes]()
    for home, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(home, name)
            if not name.startswith(".") and stat.S_ISREG(file.lstat().st_mode):
                files[file.relative_to(folder).as_posix()] = read_bytes(file)
    return files


def write_folder(folder: Path, files: Files) -> None:
    """Write files into a new folder."""
    for name, data in files.items():
        path = folder / _safe(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def receive(folder: Path, files: Files) -> None:
    """Write a run folder that was completed or continued on another machine; the caller has locked the folder.

    All files are first written into a hidden folder and flushed to the disk. If that fails, nothing has changed. Then
    each file is moved to its place: what a checkpoint needs, checkpoints and weights, the manifest, and the receipts
    last. After a crash at any moment, the folder is therefore in the state of a training that was killed, which can be
    resumed.
    """
    run = RunFolder(folder)
    with run.locked():  # nobody trains in it
        if run.is_finished and read_bytes(run.manifest_file) != files.get("manifest.json"):
            raise RunError(
                f"{folder} was changed on this machine while its training was continued on another machine",
                "start the study again",
            )
        incoming = folder / INCOMING
        shutil.rmtree(incoming, ignore_errors=True)  # left by a launcher that was killed
        try:
            with friendly_os_errors(f"write {folder}"):
                for name, data in files.items():
                    _write_flushed(incoming / _safe(name), data)
                for name in sorted(files, key=_rank):
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (incoming / name).replace(folder / name)
                for checkpoint in run.checkpoints():
                    if checkpoint.name not in files:
                        checkpoint.unlink()
        finally:
            shutil.rmtree(incoming, ignore_errors=True)


def _rank(name: str) -> tuple[int, str]:
    """Return a sort key for the order in which received files are moved into a run folder."""
    begin = name.partition("/")[0]
    rank = 0 if name in FIRST else 3 if begin == RECEIPTS else 2 if name == "manifest.json" else 1
    return rank, name


def _safe(name: str) -> str:
    """Return a relative path unchanged; raise an error for a path that would lead out of the run folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or any(part.startswith(".") for part in path.parts):
        raise RunError(f"a worker sent a file whose path is outside of the run's folder: {name!r}")
    return name


def _write_flushed(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
