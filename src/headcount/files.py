"""Files that a crash leaves whole, that no link leads astray, and errors that say what to do.

Whatever is written is drafted under a name of its own, made for this call alone, and moved into place in one step: two
writers never share a draft, and what somebody else left under any name is neither written to, adopted nor removed.
"""

import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from headcount.errors import InputError, RunError, argument

MOST_JSON = 2**24
"""Bytes of a configuration, a manifest or a tokenizer."""
MOST_BYTES = 2**34
"""Bytes of any file that is read as a whole."""

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, then try again (a training goes on with --resume)",
    errno.EDQUOT: "the disk quota is used up: free some space, then try again (a training goes on with --resume)",
    errno.EROFS: "the folder is read-only: work in another one",
    errno.EACCES: "permission denied: work in another folder",
    errno.EPERM: "permission denied: work in another folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder: choose another path",
    errno.EISDIR: "a folder of that name is in the way: choose another path, or remove it",
    errno.EEXIST: "a file of that name is in the way: choose another path",
    errno.ENOTEMPTY: "something else was put there meanwhile: choose another path",
    errno.ENAMETOOLONG: "the path is too long: choose a shorter one",
    errno.ELOOP: "it is a link, and headcount does not write through links: remove it, or choose another folder",
}
_HERE_ONLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""A pipe without a writer is opened at once, and then refused, instead of being waited for."""


@contextmanager
def friendly_os_errors(doing: str) -> Iterator[None]:
    """Turn an operating system's error into one that says what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        raise RunError(f"could not {doing}", advice, "nothing that was saved before is lost") from error
    except ValueError as error:  # a name with a zero byte, or one that the file system cannot encode
        if "null byte" not in str(error) and not isinstance(error, UnicodeError):
            raise
        raise RunError(f"could not {doing}", f"no file can have that name: {error}") from error


# --- reading ----------------------------------------------------------------------------------------------------------


def read_bytes(file: Path, most: int = MOST_BYTES) -> bytes:
    """All of a regular file, if it is no larger than `most`; links to one are followed."""
    with friendly_os_errors(f"read {file}"), os.fdopen(_open_regular(file, os.O_RDONLY), "rb") as opened:
        if (size := os.fstat(opened.fileno()).st_size) > most:
            raise RunError(f"{file} is too large: {size:,} bytes", f"at most {most:,} are read")
        return opened.read(size)  # read(most) would ask for that much memory first


def read_json(file: Path, most: int = MOST_JSON) -> Any:
    """What a JSON file says."""
    return parse_json(read_bytes(file, most), file)


def parse_json(data: bytes | str, source: object) -> Any:
    """What a JSON text says; `source` is what errors call it."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:  # nested too deeply
        explanation = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RunError(f"{source} is damaged: {explanation}", "restore it, or make it again") from error


def require_regular(file: Path) -> None:
    """Refuse what is there but is no plain file (a pipe, a device, a folder), before anything opens it."""
    with friendly_os_errors(f"read {file}"):
        mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        raise _no_file(file, mode)


def _open_regular(file: Path, flags: int) -> int:
    handle = os.open(file, flags | _AT_ONCE, 0o666)
    if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
        os.close(handle)
        raise _no_file(file, mode)
    return handle


def _no_file(file: Path, mode: int) -> RunError:
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    kind = next((name for test, name in kinds.items() if test(mode)), "a device")
    return RunError(f"{file} is {kind}, not a file", "remove it, or choose another path")


# --- writing ----------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, data: bytes) -> None:
    """All of `data` or, after a crash at any moment, what was there before."""
    with friendly_os_errors(f"write {path}"), _draft(path, data) as draft:
        draft.replace(path)
        _sync_folder(path.parent)


def create_once(path: Path, data: bytes) -> None:
    """A new file that is never half-written; if another process was first, its file stays."""
    with friendly_os_errors(f"write {path}"), _draft(path, data) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        except (AttributeError, OSError):  # a file system without links
            if not path.exists():
                draft.replace(path)


@contextmanager
def _draft(path: Path, data: bytes) -> Iterator[Path]:
    """A file of this call's own beside `path`, with all of `data` on the disk; gone afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_name(path)
    file = _create(draft)  # a name that is taken is nobody's to remove
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _create(path: Path) -> IO[bytes]:
    """A new file of this very name, or an error."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _HERE_ONLY, 0o666), "wb")


def open_in_place(path: Path, flags: int) -> int:
    """A handle on a regular file of this very name, for what cannot be drafted; never through a link."""
    return _open_regular(path, flags | _HERE_ONLY)


def require_writable(folder: Path) -> None:
    """Find out before long work, not after it, that its result has no place."""
    with friendly_os_errors(f"write into {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        probe = _draft_name(folder / "probe")
        _create(probe).close()
        probe.unlink()


# --- files that the user names ----------------------------------------------------------------------------------------

MARK = "written by headcount"
"""Stands in every file that a verb writes where the user points: only a file with this mark is ever replaced."""
_COMMENTS = {".html": "<!-- {} -->", ".md": "<!-- {} -->", ".svg": "<!-- {} -->", ".tex": "% {}", ".txt": "{}"}
_MARKED = 4096
"""Bytes at either end of a file in which the mark is looked for."""


def claim_output(path: Path, suffix: str, *, force: bool | None = False) -> None:
    """Refuse a path that cannot be written, or that holds anything but an older output of headcount.

    Call this before the measuring begins. `force` replaces a file that headcount did not write; None says that the
    caller has no such option. Links, folders, pipes and devices are refused either way.
    """
    elsewhere = "choose another name with -o"
    if path.suffix.lower() != suffix:
        raise InputError(
            f"{path} does not end in {suffix}", f"name the file, such as -o {argument(_example(path, suffix))}"
        )
    with friendly_os_errors(f"write {path}"):
        mode = path.lstat().st_mode if os.path.lexists(path) else None
    if mode is not None and stat.S_ISLNK(mode):
        raise InputError(f"{path} is a link, and headcount does not write through links", f"remove it, or {elsewhere}")
    if mode is not None and not stat.S_ISREG(mode):
        raise _no_file(path, mode)
    if mode is not None and not force and not _is_marked(path):
        advice = elsewhere if force is None else f"{elsewhere}, or replace the file with --force"
        raise InputError(f"{path} exists, and headcount did not write it", advice)
    require_writable(path.parent)


def write_outputs(outputs: Mapping[Path, bytes], *, force: bool | None = False) -> list[Path]:
    """Write files where the user points, each with the mark; if any of them is refused, none is written."""
    for path in outputs:
        claim_output(path, path.suffix.lower(), force=force)
    for path, data in outputs.items():
        write_atomically(path, _marked(data, path.suffix.lower()))
    return list(outputs)


def _example(path: Path, suffix: str) -> Path:
    """A name with the right suffix that means what the user may have meant."""
    return path / f"report{suffix}" if path.is_dir() or not path.suffix else path.with_suffix(suffix)


def _is_marked(path: Path) -> bool:
    with friendly_os_errors(f"read {path}"), os.fdopen(_open_regular(path, os.O_RDONLY), "rb") as file:
        begin = file.read(_MARKED)
        file.seek(max(0, os.fstat(file.fileno()).st_size - _MARKED))
        return MARK.encode() in begin + file.read(_MARKED)


def _marked(data: bytes, suffix: str) -> bytes:
    """The data with the mark in a comment, or in a field of a JSON object; a PNG has it from `views.style.png`."""
    if suffix == ".json":
        return data.replace(b"{", f'{{"generator": "{MARK}",'.encode(), 1)
    comment = _COMMENTS.get(suffix)
    return data if comment is None else data + f"{comment.format(MARK)}\n".encode()


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """A new hidden folder beside `path`, which becomes `path` in one move; if anything fails, nothing is left of it."""
    home = path.resolve()
    draft = _draft_name(home)
    with friendly_os_errors(f"write {path}"):
        home.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
    try:
        yield draft
        with friendly_os_errors(f"write {path}"):
            if os.name != "posix" and home.exists():
                home.rmdir()  # elsewhere a folder does not move onto an empty one
            draft.rename(home)
            _sync_folder(home.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _draft_name(path: Path) -> Path:
    """A hidden name beside `path` that nobody else has."""
    return path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.draft")


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # other systems cannot open a folder, and need not
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
