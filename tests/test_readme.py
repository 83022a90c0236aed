"""What the README shows works as shown."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

from headcount.api import predict

EXAMPLES = {
    "addition": "374+814 = 1188",
    "sortedness": "3 5 4 9: unsorted",
    "heads": "my L0H3: ",
    "hf_encoder": "cut out 6 heads",
    "hf_decoder": "head_mask of zeros changes the logits by 0.0",
    "hf_encoder_decoder": "fedcba reversed is abcdef",
    "foreign_module": "L0H3, resample: -",
    "my_adapter": "now headcount ablate",
}
"""What each example script says."""
SMALLER = {
    "hf_encoder": ("N = 24\n", "N = 5\n"),
    "foreign_module": ("range(800)", "range(500)"),
    "hf_decoder": ("steps: int = 200", "steps: int = 20"),
    "my_adapter": ("steps: int = 600", "steps: int = 20"),
}
"""What is changed in a script so that it takes less time."""
SLOW = ("heads", "hf_encoder", "hf_decoder", "hf_encoder_decoder", "foreign_module", "my_adapter")
"""Those that train or load something first."""
README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
@pytest.mark.usefixtures("little_work")
def test_the_python_example_runs(in_tmp, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert "steps=50" in code
    exec(compile(code.replace("steps=50", "steps=5, n_test=200, n_validation=50"), "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-3:] == ["1188", "torch.Size([4, 7])", "1199"]
    assert Path("runs/mine/figures/curves.png").exists()


@pytest.mark.parametrize("page", ["README.md", "docs/heads.md", "examples/notebooks/adder.ipynb"])
def test_the_demonstration_is_what_the_sample_does(page):
    """One head is enough, and the carry is one too many, not one too few."""
    text = (README.parent / page).read_text()
    assert "a carry that is not there" in text or "a carry from the 10s that is not there" in text
    assert "no longer carries" not in text
    commands = re.findall(r"predict sample:addition 999\+100 --without (\S+)", text)
    ablated = re.findall(r"headcount\.ablated\(run, \[([^\]]+)\]", text)
    heads = {*commands, *(each.strip('\\"') for each in ablated)}
    assert heads == {"E0H2"}
    demonstration = predict("sample:addition", "999+100", without=["E0H2"])
    assert demonstration.without is not None
    assert demonstration.without.predicted == "1199"
    assert "made up a carry from the 10s" in demonstration.without.explanation


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in sorted(EXAMPLES)]
)
@pytest.mark.usefixtures("little_work")
def test_the_example_scripts_run(name, in_tmp, capsys):
    """As copies, for some write beside themselves."""
    shutil.copytree(README.parent / "examples", "examples")
    script = Path(f"examples/{name}.py")
    usual, smaller = SMALLER.get(name, ("", ""))
    assert usual in script.read_text()
    script.write_text(script.read_text().replace(usual, smaller) if usual else script.read_text())
    runpy.run_path(f"examples/{name}.py", run_name="__main__")
    assert EXAMPLES[name] in capsys.readouterr().out


def test_every_example_script_is_run():
    assert set(EXAMPLES) == {path.stem for path in (README.parent / "examples").glob("*.py")}


def test_its_pictures_and_links_are_there():
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert len(targets) > 5
    for target in targets:
        assert (README.parent / target).exists(), target
