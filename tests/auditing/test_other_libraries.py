"""Heads ablated with the libraries of others: the audit names what is wrong in an example, and what is right.

Those that the test environment lacks are tested where they are: pip install -c constraints.txt transformer-lens
"""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tools.traps import IN_LIBRARIES

pytestmark = pytest.mark.slow  # every library takes seconds to import

EXAMPLES = Path(__file__).parents[2] / "examples" / "interventions"
MISSING = {
    "transformer_lens": "TransformerLens brings 280 MB of other packages",
    "nnsight": "nnsight is no requirement",
    "pyvene": "pyvene is no requirement",
    "baukit": "baukit is not on PyPI",
}


def printed_by(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    if path.stem.startswith("nnsight"):  # it gives every object of its process a method save()
        return subprocess.run([sys.executable, path], capture_output=True, text=True, check=True).stdout
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("name", IN_LIBRARIES)
def test_wrong_and_right_are_told_apart(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    library = next((each for each in MISSING if name.startswith(each)), "torch")
    if importlib.util.find_spec(library) is None:
        pytest.skip(MISSING[library])
    _, wrong, _ = IN_LIBRARIES[name]
    told = [line.partition(": ")[2] for line in printed_by(EXAMPLES / f"{name}.py", capsys).splitlines()]
    assert told[-1] == "exactly L1H2 removed by zero ablation"
    assert [each.partition(": ")[0] for each in told[:-1]] == list(wrong.values())


def test_every_example_is_in_the_table() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(IN_LIBRARIES)
