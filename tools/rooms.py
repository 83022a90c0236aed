"""List the rooms of the source in order, and draw which room imports which.

    python -m tools.rooms            # print the diagram of docs/architecture.md
    python -m tools.rooms --write    # write the diagram into that page

A room is a folder of src/headcount, or a module beside the folders. It imports only from rooms before it;
tests/test_architecture.py checks this with the order below.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import headcount

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headcount"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms:begin -->\n", "<!-- rooms:end -->\n"

BASE = (
    *("headcount", "errors", "seeds", "suggestions", "registry", "config", "heads", "attention_roles"),
    *("limits", "formatting", "stats", "bands", "result_tables", "results", "files"),
)
"""Modules beside the folders; `headcount` is the package's own `__init__`."""
ROOMS: tuple[tuple[str, ...], ...] = (
    BASE,
    ("tasks",),
    ("encodings",),
    ("models",),
    ("hooks",),
    ("surgery",),
    ("training",),
    ("runs",),
    ("external",),
    ("data",),
    ("experiments",),
    ("analysis",),
    ("claims",),
    ("auditing",),
    ("studies",),
    ("figures",),
    ("describing",),
    ("rendering",),
    ("api",),
    ("cli", "__main__"),
    ("exercise",),
)
"""Rows of rooms, from the lowest to the highest. Rooms of one row may import each other."""
FLOOR_OF = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}
GUARDS = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


@dataclass(frozen=True)
class Import:
    """One import: `module` imports the module `target`, or a name from it."""

    module: str
    target: str
    line: int
    for_types: bool
    """Whether the import is under TYPE_CHECKING."""

    @property
    def is_export(self) -> bool:
        """Whether the package declares one of its lazy exports for type checkers."""
        return self.module == "headcount" and self.for_types


def room(module: str) -> str:
    """Return the room of a module: `models` for `headcount.models.masking`."""
    return module.split(".")[1] if "." in module else module


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Return the files of all modules below the package folder `source`, by dotted name."""
    files = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        files[".".join(("headcount", *parts)).removesuffix(".__init__")] = path
    return files


def all_imports(source: Path = SOURCE) -> list[Import]:
    """Return all imports of all modules below a package folder."""
    files = modules(source)
    return [item for module, path in files.items() for item in imports(module, path, set(files))]


def imports(module: str, path: Path, known: set[str]) -> Iterator[Import]:
    """Yield all imports of a file, also those inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ifs = [n for n in ast.walk(tree) if isinstance(n, ast.If) and isinstance(n.test, ast.Name | ast.Attribute)]
    guards = [n for n in ifs if ast.unparse(n.test) in GUARDS]
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
    """Return the module that `from origin import name` imports from, also for lazy exports of the package."""
    if f"{origin}.{name}" in known:
        return f"{origin}.{name}"
    return headcount._HOMES.get(name, origin) if origin == "headcount" else origin


# --- the diagram ------------------------------------------------------------------------------------------------------

Arrow = tuple[str, str]
"""A row, and a row that imports from it."""


def label(rooms: tuple[str, ...]) -> str:
    """Return the name of a row: `base`, or its first room."""
    return "base" if rooms == BASE else rooms[0]


def arrows(source: Path = SOURCE) -> tuple[set[Arrow], set[Arrow]]:
    """Return the arrows between rows: those of imports at run time, and those of imports for types only."""
    row_of = {room: label(rooms) for rooms in ROOMS for room in rooms}
    running, for_types = set[Arrow](), set[Arrow]()
    for item in all_imports(source):
        if item.target.split(".")[0] != "headcount" or item.is_export:
            continue
        arrow = row_of[room(item.target)], row_of[room(item.module)]
        if arrow[0] != arrow[1]:
            (for_types if item.for_types else running).add(arrow)
    return running, for_types - running


def reduced(given: set[Arrow], others: Collection[Arrow] = ()) -> list[Arrow]:
    """Return the arrows, without those that follow from a longer path along these arrows and `others`."""
    order = [label(rooms) for rooms in ROOMS]
    kept = {arrow for arrow in given if arrow[1] not in _reached({*given, *others} - {arrow}, arrow[0])}
    return sorted(kept, key=lambda arrow: (order.index(arrow[0]), order.index(arrow[1])))


def _reached(along: set[Arrow], start: str) -> set[str]:
    """Return all rows that can be reached from `start` along the arrows."""
    seen, new = set[str](), {start}
    while new:
        seen |= new
        new = {end for begin, end in along if begin in new} - seen
    return seen - {start}


def sentence(rooms: tuple[str, ...], source: Path = SOURCE) -> str:
    """Return the first line of the docstring of a row's room; for the base, the names of its modules."""
    if rooms == BASE:
        return ", ".join(f"`{name}`" for name in BASE if name != "headcount")
    file = source / rooms[0] / "__init__.py"
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def diagram(source: Path = SOURCE) -> str:
    """Return a graph of the rows and a table of their contents, as Markdown."""
    running, for_types = arrows(source)
    drawn = [f"    {begin} --> {end}" for begin, end in reduced(running)]
    drawn += [f"    {begin} -.->|types| {end}" for begin, end in reduced(for_types, running)]
    rows = [f"| `{label(rooms)}` | {sentence(rooms, source)} |" for rooms in ROOMS]
    graph = ["```mermaid", "flowchart TD", *drawn, "```"]
    return "\n".join([*graph, "", "| room | what is in it |", "|---|---|", *rows, ""])


def with_diagram(page: str, drawn: str) -> str:
    """Return the page with the diagram between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no markers {BEGIN.strip()} ... {END.strip()}")
    return f"{before}{begin}{drawn}{end}{after}"


def main(words: list[str]) -> int:
    """Print the diagram, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write the diagram into {PAGE.relative_to(ROOT)}")
    if parser.parse_args(words).write:
        PAGE.write_text(with_diagram(PAGE.read_text(encoding="utf-8"), diagram()), encoding="utf-8")
    else:
        print(diagram(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
