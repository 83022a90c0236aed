"""The rooms of the source, in their order, and which of them imports which.

    python -m tools.rooms            # the diagram, as docs/architecture.md shows it
    python -m tools.rooms --write    # put it into that page

A room is a folder of src/headcount, or a module that stands beside the folders. It imports from rooms before it only:
tests/test_architecture.py says so, and takes the order from here.
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
    *("headcount", "errors", "seeds", "registry", "config", "heads"),
    *("limits", "stats", "bands", "results", "files"),
)
"""Modules that stand beside the folders; `headcount` is the package's own `__init__`."""
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
    ("auditing",),
    ("figures",),
    ("describing",),
    ("rendering",),
    ("api",),
    ("cli", "__main__"),
)
"""From the ground up. Rooms of one row may import each other."""
FLOOR_OF = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}
GUARDS = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


@dataclass(frozen=True)
class Import:
    """`module` imports `target`; a name taken from a module counts as the module if it is none itself."""

    module: str
    target: str
    line: int
    for_types: bool
    """Whether it is under TYPE_CHECKING."""

    @property
    def is_export(self) -> bool:
        """Whether the package itself tells type checkers what it hands out lazily, which is above it."""
        return self.module == "headcount" and self.for_types


def room(module: str) -> str:
    """`headcount.models.masking` is in `models`; the package itself is a room of the base."""
    return module.split(".")[1] if "." in module else module


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Dotted name and file of every module below the package folder `source`."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(("headcount", *parts)).removesuffix(".__init__")] = path
    return found


def all_imports(source: Path = SOURCE) -> list[Import]:
    """Every import of every module below a package folder."""
    found = modules(source)
    return [item for module, path in found.items() for item in imports(module, path, set(found))]


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


# --- the diagram ------------------------------------------------------------------------------------------------------

Arrow = tuple[str, str]
"""From a row to one that imports from it."""


def label(rooms: tuple[str, ...]) -> str:
    """What a row is called: `base`, or its first room."""
    return "base" if rooms == BASE else rooms[0]


def arrows(source: Path = SOURCE) -> tuple[set[Arrow], set[Arrow]]:
    """Between rows, those of imports that happen when the program runs, and those that are for types alone."""
    row_of = {room: label(rooms) for rooms in ROOMS for room in rooms}
    running, for_types = set[Arrow](), set[Arrow]()
    for found in all_imports(source):
        if found.target.split(".")[0] != "headcount" or found.is_export:
            continue
        arrow = row_of[room(found.target)], row_of[room(found.module)]
        if arrow[0] != arrow[1]:
            (for_types if found.for_types else running).add(arrow)
    return running, for_types - running


def reduced(found: set[Arrow], others: Collection[Arrow] = ()) -> list[Arrow]:
    """Without those that a longer way, along these arrows and `others`, already tells."""
    order = [label(rooms) for rooms in ROOMS]
    kept = {arrow for arrow in found if arrow[1] not in _reached({*found, *others} - {arrow}, arrow[0])}
    return sorted(kept, key=lambda arrow: (order.index(arrow[0]), order.index(arrow[1])))


def _reached(along: set[Arrow], start: str) -> set[str]:
    """Every row that a way leads to."""
    seen, new = set[str](), {start}
    while new:
        seen |= new
        new = {end for begin, end in along if begin in new} - seen
    return seen - {start}


def sentence(rooms: tuple[str, ...], source: Path = SOURCE) -> str:
    """What is in a row: the first line of its room's docstring; of the base, its modules."""
    if rooms == BASE:
        return ", ".join(f"`{name}`" for name in BASE if name != "headcount")
    file = source / rooms[0] / "__init__.py"
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def diagram(source: Path = SOURCE) -> str:
    """A graph of the rows and a table of what is in them, as Markdown."""
    running, for_types = arrows(source)
    drawn = [f"    {begin} --> {end}" for begin, end in reduced(running)]
    drawn += [f"    {begin} -.->|types| {end}" for begin, end in reduced(for_types, running)]
    rows = [f"| `{label(rooms)}` | {sentence(rooms, source)} |" for rooms in ROOMS]
    graph = ["```mermaid", "flowchart TD", *drawn, "```"]
    return "\n".join([*graph, "", "| room | what is in it |", "|---|---|", *rows, ""])


def with_diagram(page: str, drawn: str) -> str:
    """The page with the diagram between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no markers {BEGIN.strip()} ... {END.strip()}")
    return f"{before}{begin}{drawn}{end}{after}"


def main(words: list[str]) -> int:
    """Print the diagram, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"put it into {PAGE.relative_to(ROOT)}")
    if parser.parse_args(words).write:
        PAGE.write_text(with_diagram(PAGE.read_text(encoding="utf-8"), diagram()), encoding="utf-8")
    else:
        print(diagram(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
