"""The example notebooks run from their first cell to their last, and what they end a cell with can be shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"


def shown(code: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does: the value of its last line, if that is an expression."""
    tree = ast.parse(code)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        return exec(compile(tree, "cell", "exec"), names)
    exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")))
def test_a_notebook_runs(name: str, in_tmp: Path) -> None:
    names: dict[str, Any] = {}
    found = []
    for cell in json.loads((NOTEBOOKS / name).read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "kept without outputs, which come from runs"
            value = shown("".join(cell["source"]), names)
            found += [value] if hasattr(value, "_repr_html_") else []
    assert found
    assert all(each._repr_html_().startswith("<iframe") for each in found)
    assert not list(in_tmp.iterdir()), "nothing is written"


def test_there_are_two() -> None:
    assert len(list(NOTEBOOKS.glob("*.ipynb"))) == 2
