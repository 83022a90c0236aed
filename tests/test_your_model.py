"""The three journeys of docs/your-model.md work as they are shown."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import dataset_models as texts
import pytest
import torch

from headcount.cli import main
from headcount.data.from_file import FORMATS
from headcount.hooks import FAMILIES

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "your-model.md").read_text()
SUBMISSION, HUGGING_FACE, NOTEBOOK = (
    re.split(r"\n## ", TEXT.partition(f"\n## {title}\n")[2])[0]
    for title in ("A student's submission", "A Hugging Face model", "A module in a notebook")
)
ADDER, SORTER = ROOT / "tests/foreign_adder", ROOT / "tests/foreign_sorter"


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """Those that stand by themselves."""
    return [shlex.split(line)[1:] for line in re.findall(r"^    (headcount .*)$", text, flags=re.MULTILINE)]


@pytest.fixture(autouse=True)
def _little_work(little_work: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few draws, and small budgets."""
    monkeypatch.setattr("headcount.api.pruning.parse_seconds", lambda budget: 3.0)  # whatever the page says


@pytest.mark.slow
def test_a_students_submission(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in ("adder_model.py", "adder_ablation.py", "adder.pth"):
        shutil.copy(ADDER / file, in_tmp)
    for file in ("sorter_model.py", "sorter_adapter.py", "sorter.pth"):
        shutil.copy(SORTER / file, in_tmp)
    first, *others = commands(SUBMISSION)
    assert main(first) == 0
    assert "24, E0H0 to X1H3" in capsys.readouterr().out
    (adapter,) = blocks(SUBMISSION)
    assert adapter.count(": 500") == 2
    for name in ("alice", "bob"):
        shutil.copytree(ADDER, in_tmp / "submissions" / name)
    for home in (in_tmp, in_tmp / "submissions/alice", in_tmp / "submissions/bob"):
        (home / "adder_adapter.py").write_text(adapter.replace(": 500", ": 60"))  # fewer sums take less time
    codes, printed = dict[str, int](), dict[str, str]()
    for line in others:
        what = f"{line[0]} {' '.join(word for word in line[2:] if word.startswith('--'))}"
        codes[what], printed[what] = main(line), capsys.readouterr().out
    assert {what for what, code in codes.items() if code} == {"verify --quiet"}, "one sum of 8,100 is wrong"
    assert re.search(r"^ 98\+41 +149 +139 ", printed["verify --quiet"], flags=re.MULTILINE)
    assert "98+41 = 149  (wrong" in printed["predict "]
    assert re.search(r"^ bob +", printed["evaluate --quiet"], flags=re.MULTILINE)
    assert "refuses" not in printed["stretch --lengths --n --quiet"]


def test_the_adapter_is_the_one_that_is_tested() -> None:
    assert blocks(SUBMISSION) == [(ADDER / "adder_adapter.py").read_text()]


@pytest.mark.slow
def test_a_hugging_face_model(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small one of the same family stands in for the pretrained one, which takes minutes; it has learned nothing."""
    monkeypatch.setattr("headcount.api.pruning.CRITICAL", -1.0)
    texts.classifier(max_position_embeddings=600).bert.float().save_pretrained("minilm")
    texts.tokenizer().save_pretrained("minilm")
    shutil.copytree(ROOT / "examples/data", in_tmp / "examples/data")
    lines = [line for line in commands(HUGGING_FACE) if line[1] == "minilm"]
    assert len(lines) == 5
    for line in lines:
        assert main(line) == 0, line
    assert capsys.readouterr().out


@pytest.mark.slow
def test_a_module_in_a_notebook(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: dict[str, object] = {}
    for block in blocks(NOTEBOOK):
        exec(compile(block, "your-model.md", "exec"), told)
        written = {path.parts[0] for path in in_tmp.rglob("*")}
        assert not Path("runs").exists(), written
    out = capsys.readouterr().out
    assert "TransformerEncoder: 8 heads" in out
    assert "8 heads, L0H0 to L1H3: [batch, query, key] of [64, 10, 10]" in out
    assert "L0H1, L1H3 of TransformerEncoder" in out
    assert "BertModel: 72 heads" in out
    assert Path("smaller/headcount.safetensors").exists()
    for name in ("without", "patched"):
        changed = told[name]
        assert isinstance(changed, torch.Tensor)
        whole = told["model"](told["inputs"])
        assert not torch.allclose(changed, whole), "it acted"


def test_every_family_and_every_format_of_data_is_listed() -> None:
    assert FAMILIES.names()
    assert FORMATS.names()
    for name in FAMILIES.names():
        for each in FAMILIES.get(name).blocks:
            assert f"{each.projection.lstrip('.')}`" in TEXT, name
    for name in FORMATS.names():
        assert all(f"`{column}`" in TEXT for column in FORMATS.get(name).columns), name


def test_its_pictures_and_links_are_there() -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXT)
    assert targets
    for target in targets:
        assert (ROOT / "docs" / target).exists(), target
