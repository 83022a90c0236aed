"""What the documents list is what there is."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from headcount.cli import VERBS, _parser
from headcount.cli._command import given_settings
from headcount.encodings import ENCODINGS
from headcount.errors import InputError
from headcount.models.config import POOLINGS
from headcount.runs.config import RunConfig
from headcount.runs.run import load

ROOT = Path(__file__).parents[1]
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")), *(ROOT / "docs").rglob("*.md")]
SOURCES = sorted((ROOT / "src" / "headcount").rglob("*.py"))
SORTEDNESS = (ROOT / "docs" / "sortedness.md").read_text()
PARSER = _parser()


def rows(section: str) -> dict[str, str]:
    """The last cell of each row of a section's table, by each name in its first cell."""
    (text,) = re.findall(rf"## {section}\n(.*?)(?=\n## |\Z)", SORTEDNESS, flags=re.DOTALL)
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {name: row[-1] for row in cells for name in re.findall(r"`([a-z0-9-]+)`", row[0])}


@pytest.mark.parametrize(("section", "registry"), [("Encodings", ENCODINGS), ("Poolings", POOLINGS)])
def test_every_part_is_listed_with_what_it_gives_away(section, registry):
    listed = rows(section)
    assert set(listed) == set(registry.names())
    nothing = {"Encodings": "generic", "Poolings": "nothing"}[section]
    for name, hard_codes in listed.items():
        assert hard_codes == (registry.get(name).hard_codes or nothing)


def test_the_poolings_that_know_no_order_are_listed_as_such():
    (text,) = re.findall(r"## Poolings\n(.*?)(?=\n## )", SORTEDNESS, flags=re.DOTALL)
    for line in (line for line in text.splitlines() if line.startswith("| `")):
        names, symmetric, _ = line.strip("| ").split(" | ")
        for name in re.findall(r"`([a-z0-9-]+)`", names):
            assert POOLINGS.get(name).symmetric == (symmetric == "yes")


# --- commands ---------------------------------------------------------------------------------------------------------

PLACEHOLDERS = {"TASK": "addition", "S": "0", "N": "1", "E": "rotary", "P": "far", "...": "x", "mine": "rotary"}
"""What a page leaves open."""
WORD = r"""(?:"[^"]*"|'[^']*'|[^\s"'`)]+)"""
COMMAND = re.compile(rf"headcount +({'|'.join(VERBS.names())})\b((?: {{1,2}}{WORD})*)")
"""A command within a sentence ends with it."""


def page_commands(text: str) -> Iterator[str]:
    """What a page shows as code and begins like a command: in blocks, and in the middle of a line."""
    for line in text.splitlines():
        if line.startswith("    ") and line.split()[:1] in (["headcount"], ["make"], ["python"]):
            yield line.strip()
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    for span in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", prose, flags=re.DOTALL)):
        if re.match(r"(headcount|make|python -m) ", span):
            yield " ".join(span.split())


def source_texts(file: Path) -> Iterator[str]:
    """Every text in a source file, with something plausible where a value is put in."""
    tree = ast.parse(file.read_text())
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(_filled(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def _filled(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    hole = ast.unparse(part)
    placeholders = {"task_name": "addition", "verb": "verify", "file": "x.py"}
    return next((value for name, value in placeholders.items() if name in hole), "run")


def source_commands(file: Path) -> Iterator[str]:
    """Commands in a source file's hints, errors and docstrings."""
    for text in source_texts(file):
        for verb, rest in COMMAND.findall(text):
            if "[" in rest:  # how a command is put together, not one
                continue
            yield f"headcount {verb}{rest.rstrip(':;,.')}"


@functools.cache
def commands_of(file: Path) -> list[str]:
    """Return the commands in a page or a source file."""
    if file.suffix == ".md":
        return list(page_commands(file.read_text()))
    return list(source_commands(file))


FILES = [*PAGES, *(file for file in SOURCES if "headcount " in file.read_text())]
"""Pages, and the source files that can hold a command."""
by_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def words(command: str) -> list[str]:
    """The arguments, with something in place of what is left open."""
    return [PLACEHOLDERS.get(word, word) for word in shlex.split(command, comments=True)]


def parsed(argv: list[str]) -> argparse.Namespace | None:
    """What the command line makes of it, or its error; a command that is only named gets its model."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        for more in ([], ["run"], ["addition"], ["sortedness"], ["run", "1+2"]):
            try:
                args, unknown = PARSER.parse_known_args([*argv[:1], *more, *argv[1:]])
            except SystemExit as stopped:
                if not stopped.code:
                    return None
                continue
            if not unknown:
                return args
            errors.write(f"no {unknown[0]}")
    raise AssertionError(f"{shlex.join(argv)}: {errors.getvalue()}")


@by_file
def test_every_command_that_is_shown_can_be_given(file):
    for command in (each for each in commands_of(file) if "headcount" in each):
        argv = words(command)
        args = parsed(argv[argv.index("headcount") + 1 :])
        if args is not None and getattr(args, "task_name", None):
            settings = given_settings(args, RunConfig.sections(args.task_name))
            RunConfig.build(args.task_name, seed=args.seed, preset=args.preset, **settings)


def asked(command: str) -> tuple[str, list[str]]:
    """The model that a command is about, and the examples that it is asked."""
    args = parsed(words(command)[1:])
    found = getattr(args, "example", None) or getattr(args, "on", None) or []
    return getattr(args, "model", ""), [each for each in ([found] if isinstance(found, str) else found) if each != "x"]


OURS = {"run": ["addition", "sortedness"], "sample:addition": ["addition"], "sample:sortedness": ["sortedness"]}


@by_file
def test_every_example_that_is_shown_fits_a_model(file):
    """The lab's own hint once asked a model of three digits for 999+1."""
    for command in (
        each for each in commands_of(file) if re.search(r" (predict|heads) ", each) and "37+81" not in each
    ):
        model, examples = asked(command)
        tasks = [task_of(f"sample:{name}") for name in OURS.get(model, ())]
        for example in examples:
            assert not tasks or any(_fits(task, example) for task in tasks), command


@functools.cache
def task_of(sample):
    return load(sample).task


def _fits(task, example):
    try:
        return task.parse(example) is not None
    except InputError:
        return False


@by_page
def test_every_other_command_that_is_shown_is_there(page):
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    tools = [f"tools.{file.stem}" for file in (ROOT / "tools").glob("[a-z]*.py")]
    for command in (each for each in commands_of(page) if not each.startswith("headcount")):
        first, *rest = shlex.split(command, comments=True)
        if first == "make":
            assert rest[0] in targets, command
        elif rest[:2] == ["-m", "benchmarks"] and rest[2:]:
            assert (ROOT / "benchmarks" / f"{rest[2]}.py").exists(), command
        else:
            assert rest[0] == "-m", command
            assert rest[1] in ("benchmarks", "headcount", *tools), command


def test_commands_were_found():
    shown = {page.name: commands_of(page) for page in PAGES}
    hints = [command for file in FILES if file.suffix == ".py" for command in commands_of(file)]
    assert sum(map(len, shown.values())) > 80
    assert len(hints) > 25
    assert "headcount train addition --no-start-token" in shown["reports.md"]
    assert any("--resume" in command for command in hints)


@pytest.mark.slow
def test_the_python_on_the_page_of_heads_runs(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "heads.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(code, "docs/heads.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[4] == "1199"
    assert "Without E0H2 the packaged adder answers 1199" in text
    assert printed[-1] == "torch.Size([1, 4, 7])"
    assert not list(in_tmp.iterdir()), "no folder was named"
