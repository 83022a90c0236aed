"""What docs/your-model.md shows works as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headcount.data.from_file import FORMATS
from headcount.hooks import FAMILIES

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "your-model.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.slow
def test_the_python_examples_run(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: dict[str, object] = {}
    for block in BLOCKS[:-1]:
        exec(compile(block, "your-model.md", "exec"), told)
    out = capsys.readouterr().out
    assert "BertModel: 72 heads" in out
    assert "TransformerEncoder: 8 heads" in out
    assert Path("smaller/headcount.safetensors").exists()


def test_the_adapter_is_the_one_that_is_tested() -> None:
    assert BLOCKS[-1] == (ROOT / "tests" / "foreign_adder" / "adder_adapter.py").read_text()


def test_every_family_and_every_format_of_data_is_listed() -> None:
    assert FAMILIES.names()
    assert FORMATS.names()
    for name in FAMILIES.names():
        for blocks in FAMILIES.get(name).blocks:
            assert f"{blocks.projection.lstrip('.')}`" in TEXT, name
    for name in FORMATS.names():
        assert all(f"`{column}`" in TEXT for column in FORMATS.get(name).columns), name


def test_its_pictures_and_links_are_there() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert targets
    for target in targets:
        assert (ROOT / "docs" / target).exists(), target
