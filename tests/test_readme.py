"""What the README shows works as shown."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from headcount.cli._main import _parser

EXAMPLES = {"addition": "374+814 = 1188", "sortedness": "3 5 4 9: unsorted", "heads": "my L0H3: "}
"""What each example script says."""
README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_the_python_example_runs(in_tmp, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-2:] == ["1188", "torch.Size([4, 7])"]
    assert Path("runs/mine/figures/curves.png").exists()


@pytest.mark.parametrize("example", sorted((README.parent / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_example_scripts_run(example, in_tmp, capsys):
    runpy.run_path(str(example))
    assert EXAMPLES[example.stem] in capsys.readouterr().out


def test_the_shell_examples_are_possible():
    commands = [line.strip() for line in README.read_text().splitlines() if line.startswith("    headcount ")]
    assert len(commands) >= 5
    for command in commands:
        _, unknown = _parser().parse_known_args(shlex.split(command, comments=True)[1:])
        assert not unknown, command


def test_its_pictures_and_links_are_there():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
