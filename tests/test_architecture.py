"""Imports point back along the arrow task -> model -> training -> run -> analysis -> view -> command line, only."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import headcount
from headcount.registry import Registry

SOURCE = Path(headcount.__file__).parent
BASE = ("headcount", "errors", "seeds", "registry", "heads", "limits", "statistics", "results", "config")
FLOORS = (
    BASE,
    ("tasks",),
    ("encodings", "poolings"),
    ("models",),
    ("training",),
    ("runs",),
    ("instruments",),
    ("analysis",),
    ("guests",),
    ("audit", "studies"),
    ("views",),
    ("api",),
    ("lab",),
    ("cli", "__main__"),
)
FLOOR_OF = {room: majority_baseline for majority_baseline, rooms in enumerate(FLOORS) for room in rooms}
KNOW_NO_TORCH = ("views", "heads", "results", "statistics", "config", "tasks")
VIEWS_MAY_RUN = (*BASE, "tasks", "views")
GUARDS = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


@dataclass(frozen=True)
class Import:
    """`module` imports `target`; a name taken from a module counts as the module if it is none itself."""

    module: str
    target: str
    line: int
    for_types: bool


def room(module: str) -> str:
    """`headcount.models.blocks` lives in `models`; the package itself is a room of the base."""
    return module.split(".")[1] if "." in module else module


def modules(source: Path) -> dict[str, Path]:
    """Dotted name and file of every module below the package folder `source`."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(("headcount", *parts)).removesuffix(".__init__")] = path
    return found


def imports(module: str, path: Path, known: set[str]) -> Iterator[Import]:
    """Every import in a file, also those inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) in GUARDS]
    for_types = {id(node) for guard in guards for part in guard.body for node in ast.walk(part)}
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            origin = ".".join(filter(None, (above, node.module)))
            targets = [_home(origin, alias.name, known) for alias in node.names]
        else:
            continue
        yield from (Import(module, target, node.lineno, id(node) in for_types) for target in targets)


def _home(origin: str, name: str, known: set[str]) -> str:
    """The module that `from origin import name` is about; what the package hands out lazily lives elsewhere."""
    if f"{origin}.{name}" in known:
        return f"{origin}.{name}"
    return headcount._HOMES.get(name, origin) if origin == "headcount" else origin


def fault(found: Import) -> str | None:
    """Why this import is forbidden, if it is."""
    importer, target = room(found.module), found.target
    if target.split(".")[0] == "torch":
        return "knows no torch" if importer in KNOW_NO_TORCH else None
    if target.split(".")[0] != "headcount" or (found.module == "headcount" and found.for_types):
        return None
    if importer not in FLOOR_OF or room(target) not in FLOOR_OF:
        return "has a room without a floor: put it into FLOORS"
    if FLOOR_OF[importer] < FLOOR_OF[room(target)]:
        return "points the wrong way"
    if importer == "views" and not found.for_types and room(target) not in VIEWS_MAY_RUN:
        return "may only be imported by a view under TYPE_CHECKING"
    return None


def faults(source: Path) -> list[str]:
    """Every forbidden import below a package folder."""
    found = modules(source)
    everything = [item for module, path in found.items() for item in imports(module, path, set(found))]
    told = [(item, fault(item)) for item in everything]
    return [f"{item.module}:{item.line}: {item.target} {why}" for item, why in told if why]


def test_no_import_points_the_wrong_way() -> None:
    assert faults(SOURCE) == []


PLANTS = {
    "up": ("models/new.py", "from headcount.runs.run import Run", "headcount.runs.run points the wrong way"),
    "plain import": ("tasks/new.py", "import headcount.api", "headcount.api points the wrong way"),
    "submodule by name": ("runs/new.py", "from headcount import api", "headcount.api points the wrong way"),
    "relative": ("models/new.py", "from ..training import loop", "headcount.training.loop points the wrong way"),
    "inside a function": ("heads.py", "def f():\n    from headcount.tasks import TASKS", "points the wrong way"),
    "types only": ("seeds.py", "if TYPE_CHECKING:\n    from headcount.api import train", "points the wrong way"),
    "lazy door": ("models/new.py", "from headcount import load", "headcount.runs.run points the wrong way"),
    "unknown room": ("attic/new.py", "from headcount import api", "put it into FLOORS"),
    "view": ("views/new.py", "from headcount.training import loop", "under TYPE_CHECKING"),
    "view, not": ("views/new.py", "if not TYPE_CHECKING: from headcount.runs import run", "under TYPE_CHECKING"),
    "view, else": (
        "views/new.py",
        "if TYPE_CHECKING: ...\nelse: from headcount.runs import run",
        "under TYPE_CHECKING",
    ),
    "torch in a view": ("views/new.py", "def f():\n    import torch.nn", "torch.nn knows no torch"),
    "torch in a task": ("tasks/new.py", "from torch import Tensor", "torch knows no torch"),
}
FINE = {
    "down": ("analysis/new.py", "from headcount.runs.run import Run"),
    "same room": ("training/new.py", "from .loop import fit"),
    "types in a view": ("views/new.py", "if TYPE_CHECKING:\n    from headcount.training.loop import Listener"),
    "types at the door": ("__init__.py", "if TYPE_CHECKING:\n    from headcount.api import train"),
    "lazy door": ("cli/new.py", "from headcount import load"),
    "version": ("errors.py", "from headcount import __version__"),
    "torch in a model": ("models/new.py", "import torch"),
}


def planted(package: Path, file: str, code: str) -> list[str]:
    """The faults of a small, clean package after `code` was written into `file`."""
    for name in ("__init__", "api", "tasks/__init__", "training/__init__", "training/loop", "runs/run"):
        (package / name).parent.mkdir(exist_ok=True)
        (package / f"{name}.py").touch()
    assert faults(package) == []
    (package / file).parent.mkdir(exist_ok=True)
    (package / file).write_text(code)
    return faults(package)


@pytest.mark.parametrize(("file", "code", "why"), PLANTS.values(), ids=PLANTS)
def test_a_planted_import_is_caught(tmp_path: Path, file: str, code: str, why: str) -> None:
    (caught,) = planted(tmp_path, file, code)
    assert why in caught


@pytest.mark.parametrize(("file", "code"), FINE.values(), ids=FINE)
def test_an_allowed_import_is_let_through(tmp_path: Path, file: str, code: str) -> None:
    assert planted(tmp_path, file, code) == []


HELP = """
import contextlib, importlib, io, sys
import headcount.cli
said = io.StringIO()
for arguments in ([], ["train", "addition"]):
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        headcount.cli.main([*arguments, "--help"])
assert "--n-heads" in said.getvalue() and "verify" in said.getvalue(), said.getvalue()
for name in sys.argv[1:]:
    importlib.import_module(name)
print("torch" in sys.modules)
"""


def test_help_and_the_torchless_rooms_do_not_load_torch() -> None:
    names = [name for name in modules(SOURCE) if room(name) in KNOW_NO_TORCH]
    assert "headcount.views.attention" in names
    ran = subprocess.run([sys.executable, "-c", HELP, *names], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("False\n", "")


@pytest.mark.parametrize("folder", ["tasks", "encodings", "poolings", "cli"])
def test_every_part_module_has_a_part(folder: str) -> None:
    registry = Registry(f"headcount.{folder}")
    files = {path.stem for path in (SOURCE / folder).glob("*.py")} - {"base"}
    parts = {stem.replace("_", "-") for stem in files if not stem.startswith("_")}
    assert set(registry.names()) == parts != set()
    assert all(registry.get(name) is not None for name in parts)


@pytest.mark.parametrize("name", headcount.__all__)
def test_exported_names_resolve_to_where_they_live(name: str) -> None:
    exported = getattr(headcount, name)
    home = headcount._HOMES.get(name)
    assert home is None or exported is getattr(importlib.import_module(home), name)


def test_every_lazy_name_is_exported_and_nothing_else_resolves() -> None:
    assert {*headcount._HOMES, "__version__"} == set(headcount.__all__) == set(dir(headcount))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        headcount.nonsense  # noqa: B018
