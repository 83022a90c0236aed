"""What the documents list is what there is."""

from __future__ import annotations

import argparse
import ast
import contextlib
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


SHOWN = [(page.name, command) for page in PAGES for command in page_commands(page.read_text())]
HINTS = [(str(file.relative_to(ROOT)), command) for file in SOURCES for command in source_commands(file)]


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


@pytest.mark.parametrize(("where", "command"), [each for each in SHOWN + HINTS if "headcount" in each[1]])
def test_every_command_that_is_shown_can_be_given(where, command):
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


ASKED = {command: asked(command) for where, command in SHOWN + HINTS if re.search(r" (predict|heads) ", command)}
OURS = {"run": ["addition", "sortedness"], "sample:addition": ["addition"], "sample:sortedness": ["sortedness"]}


@pytest.mark.parametrize(
    "command", [each for each, (model, examples) in ASKED.items() if model in OURS and examples and "37+81" not in each]
)
def test_every_example_that_is_shown_fits_a_model(command):
    """The lab's own hint once asked a model of three digits for 999+1."""
    model, examples = ASKED[command]
    tasks = [load(f"sample:{name}").task for name in OURS[model]]
    for example in examples:
        assert any(_fits(task, example) for task in tasks), example


def _fits(task, example):
    try:
        return task.parse(example) is not None
    except InputError:
        return False


@pytest.mark.parametrize(("where", "command"), [each for each in SHOWN if not each[1].startswith("headcount")])
def test_every_other_command_that_is_shown_is_there(where, command):
    first, *rest = shlex.split(command, comments=True)
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    if first == "make":
        assert rest[0] in targets
    elif rest[:2] == ["-m", "benchmarks"] and rest[2:]:
        assert (ROOT / "benchmarks" / f"{rest[2]}.py").exists()
    else:
        tools = [f"tools.{file.stem}" for file in (ROOT / "tools").glob("[a-z]*.py")]
        assert rest[0] == "-m"
        assert rest[1] in ("benchmarks", "headcount", *tools)


def test_commands_were_found():
    assert len(SHOWN) > 80
    assert len(HINTS) > 25
    assert ("reports.md", "headcount train addition --no-start-token") in SHOWN
    assert any("--resume" in command for _, command in HINTS)


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
