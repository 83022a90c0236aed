"""What is left of an adapted model, as a folder: read in a new process, moved, damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import foreign_styles
import pytest
import torch
from traced_cuts import ADAPTER, named, predicted, tokens, without

from headcount import HeadcountError, load_external, prune_heads
from headcount.cli import main
from headcount.errors import CheckFailed, InputError
from headcount.external.models import is_external
from headcount.surgery.layers import InputSubset, ZeroFilledLinear

pytestmark = pytest.mark.slow  # models of others, or many processes


@pytest.fixture(scope="module")
def smaller(home, adder):
    """A folder without some heads, and one that was cut out of it."""
    prune_heads(adder, home / "smaller", heads=["E0H1", "X1H2"], quiet=True)
    shown = prune_heads(
        home / "smaller", home / "again", heads=["E0H0", "X1H0", "X1H1", "X1H3"], quiet=True, run_adapter=True
    )
    assert shown.cost is not None
    assert (shown.cost.n_heads, shown.cost.lost_blocks) == ((22, 18), ("decoder.1.cross",))
    assert shown.cost.parameters[0] > shown.cost.parameters[1]
    return home / "smaller"


NEW = """
import sys, json, headcount
from headcount.data.from_adapter import adapter_dataset
for folder in sys.argv[1:]:
    model = headcount.load_external(folder, run_adapter=True)
    inputs = model.dataset().encode(list(range(12))).inputs
    print(json.dumps([[head.short for head in model.sites.heads], model.weights_sha256, model.model(*inputs).tolist()]))
"""


def test_a_new_process(adder, sums, smaller):
    folders = {smaller: "E0H1,X1H2", smaller.with_name("again"): "E0H1,X1H2,E0H0,X1H0,X1H1,X1H3"}
    ran = subprocess.run([sys.executable, "-c", NEW, *folders], capture_output=True, text=True, check=True)
    for (folder, gone), line in zip(folders.items(), ran.stdout.splitlines(), strict=True):
        heads, digest, logits = json.loads(line)
        assert heads == [head.short for head in adder.sites.heads if head not in named(gone)]
        assert digest == json.loads((folder / "headcount.json").read_bytes())["digest"]
        torch.testing.assert_close(torch.tensor(logits), without(adder.model, named(gone), *sums), atol=1e-4, rtol=1e-4)


def test_the_folder(adder, smaller):
    told = json.loads((smaller / "headcount.json").read_bytes())
    assert (told["schema"], told["adapter"], told["class"]) == (1, "../my_adapter.py", "Model")
    assert (told["heads"], told["parent"]) == (["decoder.1.cross.2", "encoder.0.self.1"], adder.weights_sha256)
    again = json.loads((smaller.with_name("again") / "headcount.json").read_bytes())
    assert again["parent"] == told["digest"]
    assert len(again["heads"]) == 6
    assert {path.name for path in smaller.iterdir()} - {".lock"} == {"headcount.json", "model.safetensors"}
    assert is_external(smaller)


def test_verbs(smaller, in_tmp, capsys):
    assert main(["heads", str(smaller), "--run-adapter"]) == 0
    assert "E0H0  E0H2  E0H3" in capsys.readouterr().out
    assert (
        main(["ablate", str(smaller), "--run-adapter", "--replacements", "zero", "--n", "20", "--json", "--quiet"]) == 0
    )
    assert (
        json.loads(capsys.readouterr().out)["weights_sha256"] == load_external(smaller, run_adapter=True).weights_sha256
    )
    assert main(["heads", str(smaller), "--run-adapter", "--on", "37+81", "--json"]) == 0
    assert main(["prune", str(smaller), "--run-adapter", "--heads", "E0H1", "-o", "none"]) == 2
    assert "no head 'encoder.0.self.1'" in capsys.readouterr().err


def test_a_spread_model_is_saved(home, in_tmp, capsys):
    (home / "spread.py").write_text(
        f"import sys; sys.path.insert(0, {str(Path(foreign_styles.__file__).parent)!r})\n"
        "import torch\nfrom foreign_styles import ByInput, Stack\nfrom headcount import Adapter, Sites\n"
        "class Model(Adapter):\n"
        "    def build(self): return Stack(ByInput)\n"
        "    def load(self, model):\n"
        "        torch.manual_seed(5)\n        [torch.nn.init.normal_(each) for each in model.parameters()]\n"
        "        model.double()\n"
        "    def sites(self, model): return Sites.of(model, layer='layers.*.attn.out', n_heads=3)\n"
        "    def data(self): return [(f'{a}{b}{a}', str(b)) for a in range(7) for b in range(7)]\n"
        "    def encode(self, questions, answers):\n"
        "        return torch.tensor([[*map(int, each)] for each in questions]), torch.tensor([*map(int, answers)])\n"
        "    def forward(self, model, ids): return model(ids)[:, -1]\n"
    )
    whole = load_external(f"{home / 'spread.py'}:Model")
    prune_heads(whole, home / "spread", heads=["L0H1", "L1H0"], quiet=True)
    prune_heads(home / "spread", home / "spread2", heads=["L0H2"], quiet=True, run_adapter=True)
    left = load_external(home / "spread2", run_adapter=True)
    assert {each.dtype for each in left.inner.parameters()} == {torch.float64}
    assert sum(isinstance(each, ZeroFilledLinear | InputSubset) for each in left.inner.modules()) == 6
    expected = without(whole.model, named("L0H1,L1H0,L0H2"), tokens(3))
    torch.testing.assert_close(predicted(left.model, tokens(3)), expected)
    assert main(["ablate", str(home / "spread2"), "--run-adapter", "--replacements", "zero", "--json", "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "layer.0.self.1" not in json.dumps(told)
    assert "layer.0.self.0" in json.dumps(told)


def test_a_load_that_does_more_is_noticed(home, in_tmp):
    more = "    def load(self, model):\n        super().load(model)\n        model.d_model = 1\n"
    (in_tmp / "more.py").write_text(ADAPTER + more)
    with pytest.raises(CheckFailed, match="read again, but then its output differs"):
        prune_heads("more.py:Model", "small", heads=["E0H1"], quiet=True)
    assert not (in_tmp / "small").exists()


def damaged(smaller: Path, tmp_path: Path, **told: object) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((smaller / "model.safetensors").read_bytes())
    old = json.loads((smaller / "headcount.json").read_bytes()) | {"adapter": str(smaller.parent / "my_adapter.py")}
    (folder / "headcount.json").write_text(json.dumps(old | told))
    return folder


def test_a_moved_adapter(smaller, tmp_path):
    folder = damaged(smaller, tmp_path, adapter="../my_adapter.py")
    with pytest.raises(InputError, match="if the file has moved") as caught:
        load_external(folder, run_adapter=True)
    assert str(tmp_path / "my_adapter.py") in str(caught.value)
    (folder / "headcount.json").write_text(
        (folder / "headcount.json").read_text().replace("../my_adapter.py", str(smaller.parent / "my_adapter.py"))
    )
    assert (
        load_external(folder, run_adapter=True).weights_sha256
        == load_external(smaller, run_adapter=True).weights_sha256
    )


@pytest.mark.parametrize(
    ("told", "explanation"),
    [
        ({"schema": 2}, "another version of it"),
        ({"class": "Nobody"}, "no adapter 'Nobody'"),
        ({"digest": "0"}, "have changed since they were written"),
        ({"cuts": []}, "do not fit the model"),
        ({"cuts": [{"site": "E0"}]}, "'cuts' .* in .* is damaged"),
        ({"cuts": None, "adapter": 3}, "has no valid entry 'adapter', 'cuts'"),
    ],
)
def test_damage_is_told(smaller, tmp_path, told, explanation):
    with pytest.raises(HeadcountError, match=explanation):
        load_external(damaged(smaller, tmp_path, **told), run_adapter=True)


def test_damaged_files(smaller, tmp_path):
    folder = damaged(smaller, tmp_path)
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(InputError, match="damaged or cut short"):
        load_external(folder, run_adapter=True)
    (folder / "headcount.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        load_external(folder, run_adapter=True)


CUT = """
    def cut(self, model, site, keep):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "explanation"),
    [
        (None, r"were cut out by cut\(\) of its adapter class, but the class"),
        ("raise KeyError('planted')", r"cut\(\) of the adapter Model fails: KeyError: 'planted'[\s\S]*at line"),
        ("raise StopIteration('planted')", "fails: StopIteration: planted"),
        ("sys.exit(3)", "ends the program: SystemExit: 3"),
    ],
)
def test_a_cut_that_changed(smaller, tmp_path, body, explanation):
    """The adapter may come to cut in another way, or not at all."""
    (tmp_path / "my_adapter.py").write_text(ADAPTER + (CUT.format(body=body) if body else ""))
    cuts = json.loads((smaller / "headcount.json").read_bytes())["cuts"]
    by_adapter = [each | {"way": "adapter", "layers": {}, "numbers": {}, "tensors": {}} for each in cuts]
    folder = damaged(smaller, tmp_path, adapter="../my_adapter.py", cuts=by_adapter)
    with pytest.raises(
        InputError, match=f"no longer has the parts[\\s\\S]*or they are removed in another way[\\s\\S]*{explanation}"
    ):
        load_external(folder, run_adapter=True)


def test_a_model_that_changed(smaller, tmp_path):
    (tmp_path / "my_adapter.py").write_text(ADAPTER.replace("AdderTransformer()", "AdderTransformer(num_layers=1)"))
    with pytest.raises(InputError, match="no longer has the parts"):
        load_external(damaged(smaller, tmp_path, adapter="../my_adapter.py"), run_adapter=True)
