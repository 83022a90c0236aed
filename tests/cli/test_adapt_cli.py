"""`headcount adapt`: a file for people to go on with, one object for programs, refusals that say why."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from headcount.cli import main

pytestmark = pytest.mark.slow  # models of others, or many processes

ADDER = Path(__file__).parents[1] / "foreign_adder"


@pytest.fixture
def adder(in_tmp, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "adder_model", raising=False)
    for name in ("adder_model.py", "adder.pth"):
        shutil.copy(ADDER / name, in_tmp)
    return "adder_model.py:AdderTransformer"


def test_for_people(adder, capsys):
    assert main(["adapt", adder, "--checkpoint", "adder.pth"]) == 0
    out = capsys.readouterr().out
    assert "decoder_layers.*.cross_attn.W_o" in out
    assert "24, E0H0 to X1H3" in out
    assert "headcount ablate my_adapter.py:Model" in out
    assert main(["heads", "my_adapter.py:Model"]) == 0
    assert "AdderTransformer, 24 heads" in capsys.readouterr().out
    assert main(["ablate", "my_adapter.py:Model"]) == 2
    assert "error: data() of the adapter is still to be written" in capsys.readouterr().err


@pytest.mark.parametrize("relative", [False, True])
def test_a_module_of_a_package(adder, in_tmp, capsys, relative):
    """By its dotted name, and by its file: the adapter imports the package, relative imports included."""
    inner = in_tmp / "hand_in" / "models"
    inner.mkdir(parents=True)
    text = (in_tmp / "adder_model.py").read_text()
    (inner / "adder.py").write_text(
        text.replace("import math\n", "import math\nfrom ..sizes import SIZE\n") if relative else text
    )
    assert ("from ..sizes import SIZE" in (inner / "adder.py").read_text()) == relative
    (in_tmp / "hand_in" / "sizes.py").write_text("SIZE = 3\n")
    (in_tmp / "hand_in" / "__init__.py").write_text("")
    names = ["hand_in.models.adder:AdderTransformer", "hand_in/models/adder.py:AdderTransformer"]
    for i, name in enumerate(names[: 1 + relative]):
        assert main(["adapt", name, "--checkpoint", "adder.pth", "-o", f"bring{i}.py"]) == 0, capsys.readouterr().err
        assert "from hand_in.models.adder import AdderTransformer" in Path(f"bring{i}.py").read_text()
        assert main(["heads", f"bring{i}.py:Model"]) == 0
        assert "AdderTransformer, 24 heads" in capsys.readouterr().out
    assert main(["adapt", "hand_in.models.nothing:Net", "-o", "bring.py"]) == 2
    assert "package.module:Class" in capsys.readouterr().err


def test_for_programs(adder, capsys):
    assert main(["adapt", adder, "-o", "bring.py", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == "bring.py"
    assert told["guesses"][2] == {
        "pattern": "decoder_layers.*.cross_attn.W_o",
        "n_layers": 2,
        "n_heads": 4,
        "role": "cross",
    }
    assert (told["heads"][0], len(told["heads"])) == ("encoder.0.self.0", 24)
    assert told["notes"] == ["the model has no weights yet: set checkpoint, or load them in build()"]


def test_nothing_is_overwritten(adder, in_tmp, capsys):
    (in_tmp / "my_adapter.py").write_text("mine")
    assert main(["adapt", adder]) == 2
    assert capsys.readouterr().err == (
        "error: the file my_adapter.py already exists, and is not overwritten\n  choose another name with -o\n"
    )
    assert (in_tmp / "my_adapter.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "explanation"),
    [
        (["nowhere.py:Model"], "no file nowhere.py"),
        (["adder_model.py:Nobody"], "it has: Attention, EncoderLayer, DecoderLayer, AdderTransformer"),
        (["adder_model.py"], "adder_model.py does not say which class to adapt"),
        (["adder_model.py:AdderTransformer", "--checkpoint", "no.pth"], "no file no.pth"),
        (["adder_model.py:AdderTransformer", "--checkpoint", "adder_model.py"], "holds more than weights"),
    ],
)
def test_wrong_usage(adder, in_tmp, capsys, arguments, explanation):
    assert main(["adapt", *arguments]) == 2
    assert explanation in capsys.readouterr().err
    assert not (in_tmp / "my_adapter.py").exists()


# --- classes as people write them -------------------------------------------------------------------------------------

TEXTS = """
import torch
from torch import nn

class Positions(nn.Module):
    def __init__(self, encoding_type):
        super().__init__()
        if encoding_type == "learned":
            self.table = nn.Embedding(16, 8)
        elif encoding_type in ("none", "sinusoidal"):
            self.table = None
        else:
            raise ValueError(encoding_type)

class Net(nn.Module):
    def __init__(self, encoding_type):
        super().__init__()
        self.embed, self.positions = nn.Embedding(9, 8), Positions(encoding_type)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.again = self.encoder

    def forward(self, ids):
        return self.encoder(self.embed(ids))

def make_net(kind: "str" = "learned"):
    return Net(kind)

def make_nothing():
    return 7
"""


@pytest.fixture
def net(in_tmp, monkeypatch):
    (in_tmp / "net.py").write_text(TEXTS)
    return "net.py"


def told(capsys, *arguments):
    assert main(["adapt", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_texts_that_a_class_wants_are_tried(net, in_tmp, capsys):
    found = told(capsys, f"{net}:Net")
    assert 'return Net(encoding_type="learned")'.replace('"', "'") in (in_tmp / "my_adapter.py").read_text()
    assert len(found["heads"]) == 4
    assert "was guessed from its source code: check it" in found["notes"][0]


def test_with_weights_the_text_that_fits_is_taken(net, in_tmp, capsys):
    spoilt: dict = {}
    exec(TEXTS, spoilt)
    torch.save(spoilt["Net"]("none").state_dict(), "net.pth")
    found = told(capsys, f"{net}:Net", "--checkpoint", "net.pth")
    assert "encoding_type='none'" in (in_tmp / "my_adapter.py").read_text()
    assert len(found["heads"]) == 4
    assert "they fit" in found["notes"][0]


def test_a_function_that_makes_the_model(net, in_tmp, capsys):
    found = told(capsys, f"{net}:make_net")
    assert len(found["heads"]) == 4
    text = (in_tmp / "my_adapter.py").read_text()
    assert "return make_net()" in text
    assert "def forward(self, model, ids):" in text
    assert main(["heads", "my_adapter.py:Model"]) == 0
    assert "4 heads" in capsys.readouterr().out


def test_a_function_that_makes_something_else(net, capsys):
    assert (
        "make_nothing() fails: it returns int instead of a torch.nn.Module"
        in told(capsys, f"{net}:make_nothing")["notes"][0]
    )
    assert main(["adapt", f"{net}:Nobody", "-o", "b.py"]) == 2
    assert "it has: Positions, Net, make_net" in capsys.readouterr().err


def test_no_block_is_listed_twice(net, capsys):
    """PyTorch's attention and its own output projection, a stack under two names."""
    patterns = [each["pattern"] for each in told(capsys, f"{net}:make_net")["guesses"]]
    assert patterns == ["encoder.layers.*.self_attn"]


def test_weights_beside_are_named(in_tmp, capsys):
    (in_tmp / "wants.py").write_text(
        "from torch import nn\nclass Wants(nn.Module):\n"
        "    def __init__(self, vocab_size, d_model): super().__init__()\n"
    )
    (in_tmp / "wants.pth").write_bytes(b"")
    notes = told(capsys, "wants.py:Wants")["notes"]
    assert notes[1] == "sizes can be read from its weights: give the file with --checkpoint (such as wants.pth)"


def test_keys_that_do_not_fit_are_named_at_once(adder, capsys):
    weights = torch.load("adder.pth", weights_only=True)
    weights["fc_out.weight"], weights["extra"] = torch.zeros(3, 4), weights.pop("fc_out.bias")
    torch.save(weights, "adder.pth")
    notes = "\n".join(told(capsys, adder, "--checkpoint", "adder.pth")["notes"])
    assert "not in the file: fc_out.bias" in notes
    assert "not in the model: extra" in notes
    assert "of another shape: fc_out.weight (file [3, 4], model [14, 48])" in notes
    assert main(["heads", "my_adapter.py:Model"]) == 2
    assert "of another shape: fc_out.weight (file [3, 4], model [14, 48])" in capsys.readouterr().err
