"""The rooms are in their order, imports point back along it only, and the page about it is true.

The order itself, and what reads imports, are in tools/rooms.py.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from tools import rooms
from tools.house import traced
from tools.rooms import BASE, FLOOR_OF, ROOMS, Import, all_imports, modules, room

import headcount
from headcount import registry
from headcount.cli import main
from headcount.registry import Registry
from headcount.runs.config import RunConfig
from headcount.runs.run import build

ROOT = Path(__file__).parents[1]
SOURCE = Path(headcount.__file__).parent
MADE_FROM_RESULTS = ("figures", "rendering")
KNOW_NO_TORCH = (*MADE_FROM_RESULTS, *BASE, "describing", "tasks")
MAY_RUN_THERE = (*BASE, "tasks", "figures", "describing", "rendering")
HOOKS_MAY_IMPORT = ("hooks", "errors", "heads", "limits", "registry", "suggestions")
"""Of headcount: they are usable alone, ..."""
HOOKS_MAY_NEED = ("torch", "numpy", "jaxtyping", *sys.stdlib_module_names)
"""... and of others."""


# --- imports ----------------------------------------------------------------------------------------------------------


def test_the_rooms_are_those_that_are_there() -> None:
    assert {room(name) for name in modules(SOURCE)} == set(FLOOR_OF)
    assert sum(map(len, ROOMS)) == len(FLOOR_OF)  # none is listed twice


def fault(found: Import) -> str | None:
    """Why this import is forbidden, if it is."""
    importer, target, package = room(found.module), room(found.target), found.target.split(".")[0]
    if package != "headcount":
        if package == "torch" and importer in KNOW_NO_TORCH:
            return "knows no torch"
        return "is nothing that hooks may need" if importer == "hooks" and package not in HOOKS_MAY_NEED else None
    if found.is_export:
        return None
    if importer not in FLOOR_OF or target not in FLOOR_OF:
        return "has a room without a place: put it into ROOMS"
    if FLOOR_OF[importer] < FLOOR_OF[target]:
        return "points the wrong way"
    if importer == "hooks" and target not in HOOKS_MAY_IMPORT:
        return "is not for hooks, which are usable alone"
    if importer in MADE_FROM_RESULTS and not found.for_types and target not in MAY_RUN_THERE:
        return "may only be imported under TYPE_CHECKING, for types"
    return None


@cache
def own_imports() -> list[Import]:
    return list(all_imports(SOURCE))


@cache
def own_modules() -> dict[str, Path]:
    return modules(SOURCE)


def faults(source: Path) -> list[str]:
    """Every forbidden import below a package folder."""
    told = [(item, fault(item)) for item in (own_imports() if source == SOURCE else all_imports(source))]
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
    "batches know no experiment": ("data/new.py", "import headcount.experiments.models", "points the wrong way"),
    "surgery knows no run": ("surgery/new.py", "from headcount.runs import run", "headcount.runs.run points the wrong"),
    "unknown room": ("attic/new.py", "from headcount import api", "put it into ROOMS"),
    "old room": ("analysis/new.py", "from headcount.instruments import gates", "put it into ROOMS"),
    "view": ("figures/new.py", "from headcount.training import loop", "under TYPE_CHECKING"),
    "view, not": ("figures/new.py", "if not TYPE_CHECKING: from headcount.runs import run", "under TYPE_CHECKING"),
    "view, else": (
        "figures/new.py",
        "if TYPE_CHECKING: ...\nelse: from headcount.runs import run",
        "under TYPE_CHECKING",
    ),
    "torch in a view": ("figures/new.py", "def f():\n    import torch.nn", "torch.nn knows no torch"),
    "torch in a task": ("tasks/new.py", "from torch import Tensor", "torch knows no torch"),
    "torch in statistics": ("stats.py", "import torch", "torch knows no torch"),
    "hooks and a task": ("hooks/new.py", "from headcount.tasks import TASKS", "is not for hooks"),
    "hooks and the base": ("hooks/new.py", "from headcount.config import config", "is not for hooks"),
    "hooks, for types": ("hooks/new.py", "if TYPE_CHECKING: import headcount.results", "is not for hooks"),
    "hooks and others": ("hooks/new.py", "def f():\n    import transformers", "is nothing that hooks may need"),
}
FINE = {
    "down": ("analysis/new.py", "from headcount.runs.run import Run"),
    "same room": ("training/new.py", "from .loop import fit"),
    "types in a view": ("figures/new.py", "if TYPE_CHECKING:\n    from headcount.training.loop import Listener"),
    "types at the door": ("__init__.py", "if TYPE_CHECKING:\n    from headcount.api import train"),
    "lazy door": ("cli/new.py", "from headcount import load"),
    "version": ("errors.py", "from headcount import __version__"),
    "torch in a model": ("models/new.py", "import torch"),
    "hooks": ("hooks/new.py", "import math, torch.nn, numpy, jaxtyping\nfrom headcount.heads import HeadId"),
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
printed = io.StringIO()
for arguments in ([], ["train", "addition"]):
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        headcount.cli.main([*arguments, "--help"])
assert "--n-heads" in printed.getvalue() and "verify" in printed.getvalue(), printed.getvalue()
for name in sys.argv[1:]:
    importlib.import_module(name)
print("torch" in sys.modules)
"""


@pytest.mark.slow
def test_help_and_the_torchless_rooms_do_not_load_torch() -> None:
    names = [name for name in modules(SOURCE) if room(name) in KNOW_NO_TORCH]
    assert "headcount.figures.attention" in names
    ran = subprocess.run([sys.executable, "-c", HELP, *names], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("False\n", "")


ALONE = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({name.split(".")[1] for name in sys.modules if name.startswith("headcount.")}))
"""


@pytest.mark.slow
def test_hooks_load_nothing_else_of_headcount() -> None:
    """What they import may import more."""
    names = [name for name in modules(SOURCE) if room(name) == "hooks"]
    ran = subprocess.run([sys.executable, "-c", ALONE, *names], capture_output=True, text=True, check=False)
    assert (ran.stdout.split(), ran.stderr) == (sorted(HOOKS_MAY_IMPORT), "")


# --- parts and exported names -----------------------------------------------------------------------------------------


def test_nothing_imports_the_exercise() -> None:
    """It is a plugin: only entry points lead to it."""
    assert [each for each in own_imports() if room(each.target) == "exercise" != room(each.module)] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert all(value.startswith("headcount.exercise.") for group in project.values() for value in group.values())


@pytest.mark.parametrize("folder", ["tasks", "encodings", "data/formats", "cli"])
def test_every_part_module_has_a_part(folder: str) -> None:
    found = Registry(f"headcount.{folder.replace('/', '.')}")
    files = {path.stem for path in (SOURCE / folder).glob("*.py")} - {"base"}
    parts = {stem.replace("_", "-") for stem in files if not stem.startswith("_")}
    of_plugins = {each.name for each in entry_points(group=f"headcount.{folder.rpartition('/')[2]}")}
    assert set(found.names()) == parts | of_plugins != set()
    assert all(found.get(name) is not None for name in parts)


@pytest.mark.parametrize("home", ["models.poolings", "hooks.families", "hooks.replacements"])
def test_every_entry_of_a_table_is_a_part(home: str) -> None:
    """Names are read off the source, so the table has to be written out there."""
    found, table = Registry(f"headcount.{home}"), importlib.import_module(f"headcount.{home}").PARTS
    assert found.names() == tuple(table) != ()
    assert all(found.get(name) is part for name, part in table.items())


@pytest.mark.parametrize("name", headcount.__all__)
def test_exported_names_resolve_to_where_they_live(name: str) -> None:
    exported = getattr(headcount, name)
    home = headcount._HOMES.get(name)
    assert home is None or exported is getattr(importlib.import_module(home), name)


def test_every_lazy_name_is_exported_and_nothing_else_resolves() -> None:
    assert {*headcount._HOMES, "__version__"} == set(headcount.__all__)
    assert set(dir(headcount)) < set(headcount.__all__), "completion shows the names that most people want"
    assert 18 <= len(dir(headcount)) <= 25
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        headcount.nonsense  # noqa: B018


# --- the page ---------------------------------------------------------------------------------------------------------

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
DECISIONS = {file.name: file.read_text() for file in sorted((ROOT / "docs" / "adr").glob("*.md"))}
PAGES = {
    "docs/architecture.md": ARCHITECTURE,
    "CONTRIBUTING.md": (ROOT / "CONTRIBUTING.md").read_text(),
    "docs/adr/0010-one-house.md": DECISIONS["0010-one-house.md"],
}
"""Pages that name nothing that is gone; of older decisions, what they add about today."""
FULL_PAGES = tuple(PAGES)
"""Those that surely name some."""
PAGES |= {
    f"docs/adr/{name}": added
    for name, text in DECISIONS.items()
    if (added := "\n\n".join(part for part in text.split("\n\n") if part.startswith("**Amended 2026-11-17")))
}
TO_BE_WRITTEN = ("mine", "my_package", "my_adapter")
"""What stands for the reader's own."""
FILE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|md|toml|yml|txt)))`")
DOTTED = re.compile(r"`([a-z_]\w*(?:\.\w+)+)`")


def names_of_files(text: str) -> list[str]:
    """Paths in backticks."""
    return [name for name in FILE.findall(text) if not any(own in name for own in TO_BE_WRITTEN)]


def names_in_code(text: str) -> list[str]:
    """Dotted names in backticks that are no files."""
    return [name for name in DOTTED.findall(text) if not FILE.fullmatch(f"`{name}`")]


def resolve(name: str) -> Any:
    """`models.transformer.greedy`: the longest module, then attributes."""
    parts = name.removeprefix("headcount.").split(".")
    module = headcount
    while parts and f"{module.__name__}.{parts[0]}" in own_modules():
        module = importlib.import_module(f"{module.__name__}.{parts.pop(0)}")
    found: Any = module
    for part in parts:
        found = getattr(found, part)
    return found


def test_the_diagram_is_printed_and_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert rooms.main([]) == 0
    printed = capsys.readouterr().out
    assert rooms.with_diagram(ARCHITECTURE, printed) == ARCHITECTURE, "run: python -m tools.rooms --write"


def test_the_diagram_shows_what_is_imported(tmp_path: Path) -> None:
    for name in (*(f"{each}/__init__" for (each, *_) in ROOMS[1:]), "__init__", "heads"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text('"""What it is.\n\nAnd more."""\n')
    (tmp_path / "tasks" / "one.py").write_text("import headcount.heads")
    (tmp_path / "models" / "one.py").write_text("import headcount.tasks, headcount.heads")
    (tmp_path / "figures" / "one.py").write_text("if TYPE_CHECKING: import headcount.models, headcount.tasks")
    graph = re.findall(r"^    (.+)$", rooms.diagram(tmp_path), flags=re.MULTILINE)
    assert graph == ["base --> tasks", "tasks --> models", "models -.->|types| figures"]
    assert "| `tasks` | What it is. |" in rooms.diagram(tmp_path)


@pytest.mark.slow
def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="no markers"):
        rooms.with_diagram("a page", "a diagram")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    names = names_of_files(PAGES[page])
    assert names or page not in FULL_PAGES
    for name in names:
        assert any((home / name).exists() for home in (ROOT, SOURCE, ROOT / "docs")), name
    for name in re.findall(r"\]\(([^)#:]+)\)", PAGES[page]):
        assert ((ROOT / page).parent / name).exists(), name


@pytest.mark.parametrize("page", PAGES)
def test_every_function_that_a_page_names_is_there(page: str) -> None:
    groups = {f"headcount.{each.rpartition('.')[2]}" for each in registry_homes()}
    names = names_in_code(PAGES[page])
    assert names or page != "docs/architecture.md"
    for name in names:
        assert name in groups or resolve(name) is not None


@cache
def registry_homes() -> tuple[str, ...]:
    """Every registry in the source."""
    return tuple(_registry_homes())


def _registry_homes() -> Iterator[str]:
    for path in own_modules().values():
        yield from re.findall(r"^\w+ = Registry\(\"([\w.]+)\"\)", path.read_text(), flags=re.MULTILINE)


def test_the_page_lists_every_registry() -> None:
    row = r"^\| [\w ]+ \| .*`src/headcount/([\w/.]+)` \| `headcount\.(\w+)` \|$"
    listed = re.findall(row, ARCHITECTURE, flags=re.MULTILINE)
    homes = {path.removesuffix(".py").strip("/").replace("/", "."): group for path, group in listed}
    assert {f"headcount.{home}" for home in homes} == set(registry_homes())
    assert all(home.rpartition(".")[2] == group for home, group in homes.items())


def test_names_were_found() -> None:
    assert len(names_of_files(ARCHITECTURE)) > 15
    assert len(names_in_code(ARCHITECTURE)) > 40
    assert len(PAGES) > 8


def test_the_encoding_of_the_page_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,), (settings,) = (re.findall(rf"```{kind}\n(.*?)```", ARCHITECTURE, re.DOTALL) for kind in ("python", "toml"))
    ((group, points),) = tomllib.loads(settings)["project"]["entry-points"].items()
    info, package = tmp_path / "my_package-1.0.dist-info", tmp_path / "my_package"
    for folder in (info, package):
        folder.mkdir()
    (package / "kerple.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in points.items()))
    monkeypatch.syspath_prepend(tmp_path)
    registry._loaders.cache_clear()
    try:
        _, model = build(RunConfig.build("sortedness", encoding="kerple", d_model=16, n_heads=2, d_ff=16))
        assert any(type(module).__name__ == "Kerple" for module in model.modules())
        scores = model.eval()(importlib.import_module("torch").tensor([[3, 5, 5, 9], [9, 5, 5, 3]]))
        assert scores.isfinite().all()
    finally:
        registry._loaders.cache_clear()


def steps_of(command: str) -> dict[str, Any]:
    """What the page says a command goes through, by name."""
    (text,) = re.findall(rf"^### `{re.escape(command)}`\n(.*?)(?=^#|\Z)", ARCHITECTURE, re.DOTALL | re.MULTILINE)
    return {name: resolve(name) for name in names_in_code(text)}


def missed(command: str, arguments: list[str]) -> list[str]:
    """Steps of the page that the command does not go through; of a class, any of its methods will do."""
    steps = steps_of(command)
    with traced(SOURCE) as calls:
        assert main(arguments) == 0
    called = {(Path(file).relative_to(SOURCE), name) for _, (file, name) in calls}

    def is_called(step: Any) -> bool:
        home = Path(str(sys.modules[step.__module__].__file__)).relative_to(SOURCE)
        names = [name for file, name in called if file == home]
        begins = f"{step.__qualname__}." if isinstance(step, type) else None
        return any(name.startswith(begins) if begins else name == step.__qualname__ for name in names)

    return [name for name, step in steps.items() if not is_called(step)]


PATHS = {
    "headcount heads sample:addition --on 374+814": [],
    "headcount ablate sample:addition": ["--replacements", "zero"],
}
"""By command, what makes it quicker and leaves its path as it is."""


@pytest.mark.usefixtures("painted")
@pytest.mark.slow
@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize("command", PATHS)
def test_the_path_to_a_picture_is_as_the_page_says(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda *args, **kwargs: None)
    assert missed(command, [*command.split()[1:], *PATHS[command]]) == []
