"""Run users' Python files, with separate imports for each folder, and with errors that name the failing line.

Several students' adapters may each import a `model.py` from their own folder. While code of one folder runs, this
folder is first in sys.path, modules that code of other folders imported are hidden, and the working directory is the
one that the folder's own code has chosen.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from headcount.errors import HeadcountError, InputError

if TYPE_CHECKING:
    from headcount.external.adapter import Adapter

_LIBRARIES = tuple(str(Path(path).resolve()) + os.sep for path in set(sysconfig.get_paths().values()))
"""Folders of installed packages, which all users' code shares; such a folder may be inside a user's (`.venv`)."""
T = TypeVar("T")


class UserCodeError(InputError, RuntimeError):
    """An error in the user's code.

    It is also a RuntimeError, as PyTorch raises if a model fails on a larger batch; both are handled in the same way.
    """


@contextmanager
def user_code_errors(adapter: Adapter | type[Adapter], method: str) -> Iterator[None]:
    """Turn an error of an adapter's method inside the context into a `UserCodeError` that names the failing line."""
    try:
        with isolated_imports(adapter.folder) if adapter.origin else nullcontext():
            yield
    except (HeadcountError, KeyboardInterrupt):
        raise
    except BaseException as error:  # user code may raise anything, and its exit(0) must not end headcount as a success
        name = (adapter if isinstance(adapter, type) else type(adapter)).__name__
        what, place = describe_failure(error, adapter.folder)
        cause = None if isinstance(error, StopIteration) else error  # contextlib would raise this cause instead
        raise UserCodeError(f"{method}() of the adapter {name} {what}", place) from cause


def import_file(file: Path) -> ModuleType:
    """Run a user's Python file as a module, and return the module.

    The file can import modules of its own folder and, if it belongs to a package, use relative imports.
    """
    path = file.resolve()
    name = f"headcount_adapter_{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
    importlib.invalidate_caches()
    if home := _HOMES.get(str(path.parent)):
        home.names = _siblings(str(path.parent))
    try:
        with isolated_imports(path.parent):
            package = package_of(path)
            return _run_file(path, name) if package is None else _run_in_package(path, package, name)
    except (HeadcountError, KeyboardInterrupt):
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        what, place = describe_failure(error, path.parent)
        raise InputError(f"{file} {what}", place, "headcount runs this file as a Python program") from error


def _run_file(path: Path, name: str, folders: list[str] | None = None) -> ModuleType:
    """Run a file as a module called `name`, and return it; if `folders` are given, the module is a package."""
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    assert spec is not None and spec.loader is not None, "a .py file"  # noqa: PT018
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up here
    spec.loader.exec_module(module)
    return module


def _run_in_package(path: Path, package: Path, name: str) -> ModuleType:
    """Run a file as part of its package, so that relative imports work, and return the module.

    The package gets a unique name, because packages in different folders may have the same name.
    """
    for known in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
        del sys.modules[known]
    sys.path.insert(0, str(package.parent))  # so that absolute imports of the package work too
    if (first := package / "__init__.py").is_file():
        _run_file(first, name, [str(package)])
    else:
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(package)]
    inside = path.relative_to(package).with_suffix("").parts
    return importlib.import_module(".".join((name, *inside)))


def package_of(file: Path) -> Path | None:
    """Return the folder of the package that a file's relative imports need; None if it has no relative imports.

    The folder is the topmost one with an `__init__.py`, or the one that the relative imports reach if it is higher up.
    """
    path = file.resolve()
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None  # running the file will report the error
    levels = max((node.level for node in nodes if isinstance(node, ast.ImportFrom)), default=0)
    if not levels:
        return None
    package = path.parents[min(levels, len(path.parents)) - 1]
    while (package.parent / "__init__.py").is_file():
        package = package.parent
    return package


def module_file(name: str) -> Path | None:
    """Find the file of a module such as `package.module` without running it; return None if there is none.

    The working directory and the installed packages are searched.
    """
    folders, spec = [str(Path.cwd()), *sys.path], None
    for part in name.split("."):
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or ())
    origin = None if spec is None else spec.origin
    return Path(origin) if origin and origin.endswith(".py") else None


def import_class(file: Path, class_name: str, base: type[T], what: str, advice: str) -> type[T]:
    """Run a user's file and return its class `class_name`, which must inherit `base`.

    If there is no such class, the error calls it `what` and ends with `advice`.
    """
    module = import_file(file)
    classes = {key: each for key, each in vars(module).items() if isinstance(each, type) and issubclass(each, base)}
    if class_name not in classes:
        others = ", ".join(key for key, each in classes.items() if each is not base)
        raise InputError(f"{file} has no {what} {class_name!r}", f"it has: {others}" if others else advice)
    return classes[class_name]


def relative_path(file: str | Path, folder: Path) -> str:
    """Return the path from a folder to a file, or the full path if it is on another drive."""
    try:
        return Path(os.path.relpath(file, folder)).as_posix()
    except ValueError:
        return Path(file).as_posix()


def describe_failure(error: BaseException, folder: Path) -> tuple[str, str]:
    """Return two texts about an error in the user's code: what went wrong, and the failing line in the user's folder.

    The second text is empty if no line of the user's folder is in the traceback.
    """
    what = f"fails: {type(error).__name__}: {error}".removesuffix(": ")
    if "ellipsis" in what:
        what += " (the adapter still has a ... that must be filled in)"
    if isinstance(error, SystemExit):
        what = f"ends the program: SystemExit: {error.code}"
    if isinstance(error, SyntaxError) and error.filename:
        return what, f"at line {error.lineno} of {Path(error.filename).name}: {(error.text or '').strip()}"
    frames = extract_tb(error.__traceback__)
    last = ([frame for frame in frames if _is_in(frame.filename, [str(folder.resolve())])] or frames)[-1]
    return what, f"at line {last.lineno} of {Path(last.filename).name}: {last.line}"


# --- one folder's modules ---------------------------------------------------------------------------------------------


@dataclass
class _Home:
    """A folder with a user's code, and the modules that this code has imported."""

    path: list[str]
    """The folder itself, followed by the entries that its code has added to sys.path."""
    names: set[str] = field(default_factory=set)
    """The names of the modules that can be imported from the folder."""
    modules: dict[str, ModuleType] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    """Names of modules that only this folder's code may import, as other folders may have modules of the same names."""
    directory: str | None = None
    """The working directory that the folder's code has changed to; None if it has not."""


_HOMES: dict[str, _Home] = {}
_CURRENT: list[_Home] = []
"""The folders whose code is running at the moment; the folder that was entered last comes last."""


@contextmanager
def isolated_imports(folder: Path) -> Iterator[None]:
    """Return a context in which imports are searched in this folder first, hiding modules of other users' folders."""
    place = str(folder)
    home = _HOMES.get(place) or _HOMES.setdefault(place, _Home([place], _siblings(place)))
    if _CURRENT and _CURRENT[-1] is home:
        yield
        return
    _CURRENT.append(home)
    away = _hide_modules(home)
    sys.modules.update(home.modules)
    known, path, directory = set(sys.modules), list(sys.path), _working_directory()
    sys.path[:0] = home.path
    _change_directory(home.directory)
    try:
        yield
    finally:
        chosen = _working_directory()
        home.directory = None if chosen == directory else chosen
        if home.directory is not None:
            _change_directory(directory)
        home.path += [entry for entry in sys.path if entry not in path and entry not in home.path]
        new = {name: sys.modules[name] for name in sys.modules.keys() - known} if len(sys.modules) > len(known) else {}
        files = {name: _users_file(name, each) for name, each in new.items()}
        home.modules |= {name: new[name] for name, file in files.items() if _is_in(file, home.path)}
        sys.path[:] = path
        home.hidden |= {name for name in home.modules.keys() & new.keys() if not _can_be_imported(name)}
        for name in home.hidden:
            sys.modules.pop(name, None)
        sys.modules.update(away)  # restore the modules that were loaded before
        _CURRENT.pop()


def _working_directory() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # the directory was deleted
        return None


def _change_directory(directory: str | None) -> None:
    with suppress(OSError):
        if directory is not None:
            os.chdir(directory)


def _hide_modules(home: _Home) -> dict[str, ModuleType]:
    """Remove from sys.modules the modules that belong to other users' folders or have the name of a file in this one.

    Return the removed modules by name.
    """
    others = (item for other in _HOMES.values() if other is not home for item in other.modules.items())
    names = {name for name, module in others if sys.modules.get(name) is module}
    for top in home.names & sys.modules.keys():
        file = _users_file(top, sys.modules[top])
        if file and not _is_in(file, home.path):
            inside = top + "."
            names |= {top} | {name for name in sys.modules if name.startswith(inside)}
    return {name: sys.modules.pop(name) for name in names if sys.modules[name] is not home.modules.get(name)}


def _can_be_imported(name: str) -> bool:
    """Return whether importing `name` now would find the module that is already loaded under this name."""
    top = name.partition(".")[0]
    spec = PathFinder.find_spec(top)
    return spec is not None and spec.origin == getattr(sys.modules.get(top), "__file__", None)


def _siblings(folder: str) -> set[str]:
    """Return the names of the modules and packages in a folder."""
    try:
        names = [each.name for each in Path(folder).iterdir()]
    except OSError:
        return set()
    return {name.removesuffix(".py") for name in names if name.endswith(".py") or "." not in name}


def _users_file(name: str, module: Any) -> str:
    """Return the path of a user's module or namespace package; empty if it is installed or has no file."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("__main__", "headcount") or top.startswith("headcount_adapter_"):
        return ""
    spread = vars(module).get("__path__") if isinstance(module, ModuleType) else None
    file = getattr(module, "__file__", None) or next(iter(spread or ()), "")
    path = str(Path(file).resolve()) if isinstance(file, str) and file else ""
    return "" if path.startswith(_LIBRARIES) else path


def is_installed(folder: Path) -> bool:
    """Return whether a folder belongs to the installed packages, which can be imported from anywhere."""
    return f"{folder.resolve()}{os.sep}".startswith(_LIBRARIES)


def _is_in(file: str, folders: list[str]) -> bool:
    return any(file.startswith(str(Path(folder).resolve()).rstrip(os.sep) + os.sep) for folder in folders)
