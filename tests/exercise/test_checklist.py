"""The checklist of docs/report.md has a row for each thing that the exercise asks for; what a row names is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from exercise_files import EXERCISE, PATTERNS, PRUNING

from headcount.tasks import TASKS

ROOT = Path(__file__).parents[2]
ASKED = (
    "addition: training log",
    "addition: heat maps of every head",
    "addition: heat maps of test examples",
    "addition: head statistics (operator, diagonal, carry positions, entropy, sparsity)",
    "addition: ablation of each head",
    "addition: importance ranking",
    "addition: critical heads, redundant heads",
    "addition: how heads specialise for carry propagation",
    "addition: share of heads that can be pruned",
    "sortedness: training log of each encoding",
    "sortedness: training curves of each encoding",
    "sortedness: accuracy at every length",
    "sortedness: extrapolation curves, training range marked",
    "sortedness: learned position embeddings, last trained position marked",
    "sortedness: encodings side by side",
    "sortedness: table of accuracies",
    "sortedness: why sinusoidal can extrapolate and learned cannot, mathematically",
    "both: training time and final losses",
    "both: published figures beside ours",
)
"""What five people were asked for in two experiments, and what a reader of their reports asks for."""
COLUMNS = ["asked for", "command", "section of the report", "file of `--exercise`", "test"]
NONE = "–"


def checklist() -> list[list[str]]:
    """Rows of the table, the names of its columns first."""
    (text,) = re.findall(
        r"^## Where to find what the exercise asks for\n(.*?)^## ",
        (ROOT / "docs/report.md").read_text(),
        re.M | re.S,
    )
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


ROWS = checklist()[1:]


@cache
def titles() -> set[str]:
    """Every text in the sections of the report, their titles among them, and titles that tasks name."""
    rooms = ROOT / "src/headcount"
    files = (*(rooms / "describing/sections").glob("*.py"), rooms / "exercise/published_section.py")
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    events = (TASKS.get(name).words.event for name in TASKS.names())
    return texts | {event.question for event in events if event is not None}


def test_every_deliverable_has_a_row() -> None:
    assert checklist()[0] == COLUMNS
    for asked in ASKED:
        assert any(row[0].startswith(asked) for row in ROWS), asked
    assert len({row[0] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_is_there(row: list[str]) -> None:
    assert len(row) == len(COLUMNS)
    _, command, section, files, test = row
    assert re.fullmatch(r"`(headcount|make) [^`]+`", command), "tests/test_docs.py gives it to the command line"
    assert section in titles()
    named = [] if files == NONE else re.findall(r"`([^`]+)`", files)
    assert set(named) <= {*EXERCISE, PATTERNS, PRUNING}
    assert named or files == NONE
    path, _, name = test.strip("`").partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), test


def test_every_file_that_is_written_has_a_row() -> None:
    named = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[3])}
    assert named >= {*EXERCISE, PATTERNS, PRUNING}
