"""Read and write files safely: atomic writes, no writing through symbolic links, and errors that say what to do.

A file is first written under a unique temporary name, and then moved into place in one step. Two writers never share a
temporary file. Files that other programs wrote are never changed, reused or removed.
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
"""Largest size in bytes of a configuration, a manifest or a tokenizer."""
MOST_BYTES = 2**34
"""Largest size in bytes of any file that is read."""

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, then try again (--resume continues a training)",
    errno.EDQUOT: "the disk quota is used up: free some space, then try again (--resume continues a training)",
    errno.EROFS: "the folder is read-only: work in another one",
    errno.EACCES: "permission denied: work in another folder",
    errno.EPERM: "permission denied: work in another folder",
    errno.ENOTDIR: "a folder in this path is in fact a file: choose another path",
    errno.EISDIR: "a folder of this name exists already: choose another path, or remove the folder",
    errno.EEXIST: "a file of this name exists already: choose another path",
    errno.ENOTEMPTY: "another program has written into this folder meanwhile: choose another path",
    errno.ENAMETOOLONG: "the path is too long: choose a shorter one",
    errno.ELOOP: "the path is a link, and headcount does not write through links: remove it, or choose another path",
}
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Flags for `os.open`: opening a pipe that has no writer returns at once instead of blocking."""


@contextmanager
def friendly_os_errors(doing: str) -> Iterator[None]:
    """Turn an OSError inside the context into a `RunError` that says what to do.

    `doing` describes the operation for the message, such as `write report.html`.
    """
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        raise RunError(f"could not {doing}", advice, "files that were saved before are unchanged") from error
    except ValueError as error:  # a name with a zero byte, or one that the file system cannot encode
        if "null byte" not in str(error) and not isinstance(error, UnicodeError):
            raise
        raise RunError(f"could not {doing}", f"no file can have that name: {error}") from error


# --- reading ----------------------------------------------------------------------------------------------------------


def read_bytes(file: Path, most: int = MOST_BYTES) -> bytes:
    """Return the contents of a regular file, following links; raise an error if it is larger than `most` bytes."""
    with friendly_os_errors(f"read {file}"), os.fdopen(_open_regular(file, os.O_RDONLY), "rb") as opened:
        if (size := os.fstat(opened.fileno()).st_size) > most:
            raise RunError(
                f"{file} is too large: {size:,} bytes", f"headcount reads at most {most:,} bytes of such a file"
            )
        return opened.read(size)  # read(most) would allocate `most` bytes first


def read_json(file: Path) -> Any:
    """Return the contents of a JSON file of at most `MOST_JSON` bytes."""
    return parse_json(read_bytes(file, MOST_JSON), file)


def parse_json(data: bytes | str, source: object) -> Any:
    """Parse JSON text and return its value; error messages name `source`, such as a path, as the origin of the text."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        explanation = "the JSON is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RunError(
            f"{source} is damaged: {explanation}", "restore the file from a copy, or create it again"
        ) from error


def require_regular(file: Path) -> None:
    """Raise an error if a path is not a regular file but, for example, a pipe, a device or a folder."""
    with friendly_os_errors(f"read {file}"):
        mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        raise _not_a_file(file, mode)


def _open_regular(file: Path, flags: int) -> int:
    """Open a regular file and return its file descriptor; raise an error for pipes, sockets, devices and folders."""
    handle = os.open(file, flags | _NO_WAITING, 0o666)
    if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
        os.close(handle)
        raise _not_a_file(file, mode)
    return handle


def _not_a_file(file: Path, mode: int) -> RunError:
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    kind = next((name for test, name in kinds.items() if test(mode)), "a device")
    return RunError(f"{file} is {kind}, not a file", "remove it, or choose the path of a regular file")


# --- writing ----------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to a file so that a crash at any moment leaves either the old or the new contents."""
    with friendly_os_errors(f"write {path}"), _draft(path, data) as draft:
        draft.replace(path)
        _sync_folder(path.parent)


def create_once(path: Path, data: bytes) -> None:
    """Create a file with the given contents in one step; if the file exists already, leave it as it is."""
    with friendly_os_errors(f"write {path}"), _draft(path, data) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        except (AttributeError, OSError):  # the file system has no hard links
            if not path.exists():
                draft.replace(path)


@contextmanager
def written_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a new temporary file for writing, which replaces `path` when the `with` block ends without an error.

    If the block raises an error, the temporary file is removed and `path` is unchanged.
    """
    with friendly_os_errors(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = _draft_name(path)
        file = _create(draft)
    try:
        with file:
            yield file
            with friendly_os_errors(f"write {path}"):
                file.flush()
                os.fsync(file.fileno())
        with friendly_os_errors(f"write {path}"):
            draft.replace(path)
            _sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _draft(path: Path, data: bytes) -> Iterator[Path]:
    """Write `data` to a temporary file beside `path`, flush it to the disk and yield its path; remove it at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_name(path)
    file = _create(draft)  # outside the `try`: a file that existed before must not be removed
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _create(path: Path) -> IO[bytes]:
    """Create a new file and open it for writing; raise an error if the path exists already."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS, 0o666), "wb")


def open_in_place(path: Path, flags: int) -> int:
    """Open a regular file for changing its contents, and return its file descriptor; raise an error for a link."""
    return _open_regular(path, flags | _NO_LINKS)


def require_writable(folder: Path) -> None:
    """Raise an error if files cannot be written into a folder; call this before a long computation."""
    with friendly_os_errors(f"write into {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        probe = _draft_name(folder / "probe")
        _create(probe).close()
        probe.unlink()


# --- files that the user names ----------------------------------------------------------------------------------------

MARK = "written by headcount"
"""Mark in every file that headcount writes to a path chosen by the user; files without the mark are not overwritten."""
_COMMENTS = {".html": "<!-- {} -->", ".md": "<!-- {} -->", ".svg": "<!-- {} -->", ".tex": "% {}", ".txt": "{}"}
_MARKED = 4096
"""Number of bytes at the beginning and at the end of a file that are searched for the mark of headcount's own files."""


def claim_output(path: Path, suffix: str, *, force: bool | None = False, flag: str = "-o") -> None:
    """Raise an error unless headcount may write to an output path that the user chose.

    Call this before a long measurement begins. An existing file may be replaced if headcount wrote it, or if `force` is
    set; `force` is None for commands without an option --force. The path must end in `suffix`. `flag` is the option
    that names the path in messages. Links, folders, pipes and devices are always refused.
    """
    rename = f"choose another name with {flag}"
    if path.suffix.lower() != suffix:
        raise InputError(
            f"{path} does not end in {suffix}",
            f"choose a name that does, such as {flag} {argument(_example(path, suffix))}",
        )
    with friendly_os_errors(f"write {path}"):
        mode = path.lstat().st_mode if os.path.lexists(path) else None
    if mode is not None and stat.S_ISLNK(mode):
        raise InputError(
            f"{path} is a symbolic link, and headcount does not write through links", f"remove it, or {rename}"
        )
    if mode is not None and not stat.S_ISREG(mode):
        raise _not_a_file(path, mode)
    if mode is not None and not force and not _is_marked(path):
        advice = rename if force is None else f"{rename}, or give --force to replace the file"
        raise InputError(f"{path} exists, and headcount replaces only files that it wrote", advice)
    require_writable(path.parent)


def write_outputs(outputs: Mapping[Path, bytes], *, force: bool | None = False, flag: str = "-o") -> list[Path]:
    """Write files to paths chosen by the user and return the paths; write none of them if one path is refused.

    Each file gets a mark, so that a later call may overwrite it (see `claim_output`). `flag` is the option that names
    the paths in messages.
    """
    for path in outputs:
        claim_output(path, path.suffix.lower(), force=force, flag=flag)
    for path, data in outputs.items():
        write_atomically(path, _marked(data, path.suffix.lower()))
    return list(outputs)


def _example(path: Path, suffix: str) -> Path:
    """Return an example of a valid output path for an error message: `path` with the right suffix."""
    return path / f"report{suffix}" if path.is_dir() or not path.suffix else path.with_suffix(suffix)


def _is_marked(path: Path) -> bool:
    with friendly_os_errors(f"read {path}"), os.fdopen(_open_regular(path, os.O_RDONLY), "rb") as file:
        begin = file.read(_MARKED)
        file.seek(max(0, os.fstat(file.fileno()).st_size - _MARKED))
        return MARK.encode() in begin + file.read(_MARKED)


def _marked(data: bytes, suffix: str) -> bytes:
    """Return a file's contents with `MARK` added, as a comment or as a field of a JSON object.

    PNG files are returned unchanged, because `figures.style.png` has marked them already.
    """
    if suffix == ".json":
        return data.replace(b"{", f'{{"generator": "{MARK}",'.encode(), 1)
    comment = _COMMENTS.get(suffix)
    return data if comment is None else data + f"{comment.format(MARK)}\n".encode()


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield a new hidden folder to write into, which is renamed to `path` when the `with` block ends.

    If anything fails, the hidden folder is removed.
    """
    home = path.resolve()
    draft = _draft_name(home)
    with friendly_os_errors(f"write {path}"):
        home.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
    try:
        yield draft
        with friendly_os_errors(f"write {path}"):
            if os.name != "posix" and home.exists():
                home.rmdir()  # Windows does not move a folder onto an empty one
            draft.rename(home)
            _sync_folder(home.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _draft_name(path: Path) -> Path:
    """Return a unique hidden path in the folder of `path`, for a temporary file."""
    return path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.draft")


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # other systems cannot open a folder, and do not need to
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
