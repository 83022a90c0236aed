"""Parts that are found by themselves: a part is one file in its folder.

A folder such as `encodings` holds one module per part. Each module names its part `PART`; the module's own name is
the part's name (`_` reads as `-`). Modules whose name begins with `_`, and `base`, hold what the parts share.

>>> Registry("headcount.tasks").names()
('addition', 'sortedness')
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import Any

from headcount.errors import InputError


@cache
def _modules(package: str) -> dict[str, str]:
    folder = importlib.import_module(package).__path__
    names = sorted(found.name for found in pkgutil.iter_modules(folder))
    return {name.replace("_", "-"): f"{package}.{name}" for name in names if name != "base" and name[0] != "_"}


@dataclass(frozen=True)
class Registry:
    """The parts in one package folder; a part is imported when it is first asked for."""

    package: str

    def names(self) -> tuple[str, ...]:
        """Every part's name, without importing any."""
        return tuple(_modules(self.package))

    def get(self, name: str) -> Any:
        """The part called `name`."""
        modules = _modules(self.package)
        if name not in modules:
            kind = self.package.rpartition(".")[2]
            raise InputError(f"no {name!r} among the {kind}", f"there are: {', '.join(modules)}")
        return importlib.import_module(modules[name]).PART
