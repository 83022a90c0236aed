"""Look up parts (tasks, encodings, poolings, model families, commands, ...) by name, in registries.

A part is one interchangeable piece of headcount, such as one encoding. A registry finds its parts in a package or in a
module:

- In a package, each module defines one part, which it assigns to `PART`. The part's name is the module's name with `-`
  for `_`. The module `base`, and modules whose name begins with `_`, define no part.
- In a module, each entry of the dictionary `PARTS` is one part.

Names are read without importing any part, so that `headcount --help` does not wait for torch.

Other packages add parts with entry points, in a group named after the registry:

    [project.entry-points."headcount.encodings"]
    spiral = "my_package.spiral:Spiral"

>>> Registry("headcount.tasks").names(), Registry("headcount.models.poolings").names()[:2]
(('addition', 'addition-long', 'sortedness'), ('max', 'min'))
"""

import ast
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headcount.errors import InputError
from headcount.suggestions import suggestion


@dataclass(frozen=True)
class Registry:
    """All parts that one package or module defines, by name; a part is imported only when `get` asks for it."""

    home: str

    def names(self) -> tuple[str, ...]:
        """Return the names of all parts of the registry, without importing any part."""
        return tuple(_loaders(self.home))

    def get(self, name: str) -> Any:
        """Import and return the part called `name`."""
        loaders = _loaders(self.home)
        if name not in loaders:
            raise InputError(f"no {name!r} among the {self.home.rpartition('.')[2]}", suggestion(name, loaders))
        return loaders[name]()


@cache
def _loaders(home: str) -> dict[str, Callable[[], Any]]:
    """Return, by name, a function that imports each part of a registry; parts of other packages come last."""
    spec = find_spec(home)
    assert spec is not None and spec.origin is not None, f"no module {home}"  # noqa: PT018
    own: dict[str, Callable[[], Any]]
    if spec.submodule_search_locations:
        modules = sorted(module.name for module in pkgutil.iter_modules(spec.submodule_search_locations))
        parts = [name for name in modules if name != "base" and name[0] != "_"]
        own = {name.replace("_", "-"): partial(_load, f"{home}.{name}") for name in parts}
    else:
        own = {name: partial(_load, home, name) for name in _entries(home, spec.origin)}
    group = f"headcount.{home.rpartition('.')[2]}"
    for entry_point in entry_points(group=group):
        if entry_point.name in own:
            raise InputError(
                f"the name {entry_point.name!r} is taken already; it is also the name of {entry_point.value}, from "
                "another package",
                f"choose another name in that package's entry points, group {group!r}",
            )
        own[entry_point.name] = entry_point.load
    return own


def _entries(module: str, file: str) -> list[str]:
    """Return the keys of a module's dictionary `PARTS`, read from its source `file` without importing the module."""
    for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict) and ast.unparse(node.target) == "PARTS":
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    raise LookupError(f"the module {module} must define a dictionary with the name PARTS and a type annotation")


def _load(module: str, entry: str | None = None) -> Any:
    home = importlib.import_module(module)
    if entry is None and not hasattr(home, "PART"):
        file = f"{module.rpartition('.')[2]}.py"
        raise InputError(
            f"the module {module} defines no variable PART, which holds what the module adds to headcount",
            f"end {file} with PART = ..., as the other files in its folder do",
        )
    return home.PART if entry is None else home.PARTS[entry]
