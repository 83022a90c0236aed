"""Parts that are found by their names: tasks, encodings, poolings, families of models, verbs, ...

A registry has a home. If that is a package, a part is one module in it: the module names its part `PART`, and its own
name is the part's name (`_` reads as `-`); modules whose name begins with `_`, and `base`, hold what the parts share.
If it is a module, a part is one entry of the table `PARTS` in it. Names are read without importing any part, so that
`headcount --help` does not wait for torch.

Other packages add parts by entry points, in a group named after the registry:

    [project.entry-points."headcount.encodings"]
    spiral = "my_package.spiral:Spiral"

>>> Registry("headcount.tasks").names(), Registry("headcount.models.poolings").names()[:2]
(('addition', 'sortedness'), ('max', 'min'))
"""

import ast
import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headcount.errors import InputError

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "sinusoidal": ("sin", "cos", "sin/cos", "sin-cos", "sincos", "sine", "sinus", "fourier", "vaswani"),
    "rotary": ("rope", "roformer"),
    "none": ("nope", "no", "off", "nopos"),
    "learned": ("absolute", "abs", "learnable", "trained", "table", "embedding", "lookup", "gpt2", "bert"),
    "relative": ("shaw", "rel", "rpe"),
    "alibi-symmetric": ("alibi-bidirectional",),
    "mean": ("average", "avg"),
    "first": ("cls",),
    "zero": ("zeros", "knockout", "zero-ablation"),
    "resample": ("resampling", "interchange", "swap", "random", "resample-ablation"),
    "addition": ("add", "adder", "sum", "sums"),
    "sortedness": ("sort", "sorted", "sorter", "sorting"),
    "predict": ("answer", "infer", "ask", "generate"),
    "evaluate": ("eval", "test", "accuracy", "score"),
    "heads": ("attention", "attn", "show", "plot", "draw", "list"),
    "ablate": ("ablation", "knockout"),
    "prune": ("cut", "remove"),
    "audit": ("check", "lint"),
    "stretch": ("extrapolate", "lengths"),
    "adapt": ("adapter", "scaffold", "init"),
    "teacher-forced": ("forced",),
    "free-running": ("free", "decoded"),
}
"""What parts are called elsewhere; which of them are meant is told by what is looked for."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Say which known name was meant: one that is called so elsewhere, or the nearest; else list all of them.

    >>> suggestion("rope", ["learned", "rotary"]), suggestion("predit", ["audit", "predict"])
    ("did you mean 'rotary'?", "did you mean 'predict'?")
    """
    names, asked = list(known), str(name).lower()
    meant = [each for each in names if asked in OTHER_NAMES.get(each, ())]
    near = meant or difflib.get_close_matches(str(name), names, n=1) or difflib.get_close_matches(asked, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"


@dataclass(frozen=True)
class Registry:
    """The parts at one home; a part is imported when it is first asked for."""

    home: str

    def names(self) -> tuple[str, ...]:
        """Every part's name, without importing any."""
        return tuple(_loaders(self.home))

    def get(self, name: str) -> Any:
        """The part called `name`."""
        loaders = _loaders(self.home)
        if name not in loaders:
            raise InputError(f"no {name!r} among the {self.home.rpartition('.')[2]}", suggestion(name, loaders))
        return loaders[name]()


@cache
def _loaders(home: str) -> dict[str, Callable[[], Any]]:
    """By name, what imports a part: ours, then those of other packages."""
    spec = find_spec(home)
    assert spec is not None and spec.origin is not None, f"no module {home}"  # noqa: PT018
    own: dict[str, Callable[[], Any]]
    if spec.submodule_search_locations:
        modules = sorted(found.name for found in pkgutil.iter_modules(spec.submodule_search_locations))
        parts = [name for name in modules if name != "base" and name[0] != "_"]
        own = {name.replace("_", "-"): partial(_load, f"{home}.{name}") for name in parts}
    else:
        own = {name: partial(_load, home, name) for name in _entries(home, spec.origin)}
    group = f"headcount.{home.rpartition('.')[2]}"
    for found in entry_points(group=group):
        if found.name in own:
            raise InputError(
                f"two parts are called {found.name!r}: {found.value} of another package, and one that was there before",
                f"rename it in that package's entry points, group {group!r}",
            )
        own[found.name] = found.load
    return own


def _entries(module: str, file: str) -> list[str]:
    """The keys of the table `PARTS`, read off the source."""
    for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict) and ast.unparse(node.target) == "PARTS":
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    raise LookupError(f"{module} has no table PARTS")


def _load(module: str, entry: str | None = None) -> Any:
    found = importlib.import_module(module)
    return found.PART if entry is None else found.PARTS[entry]
