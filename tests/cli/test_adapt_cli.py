"""`headcount adapt`: a file for people to go on with, one object for programs, refusals that say why."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

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
    assert told["notes"] == ["no weights yet: say checkpoint = ..., or load them in build()"]


def test_nothing_is_overwritten(adder, in_tmp, capsys):
    (in_tmp / "my_adapter.py").write_text("mine")
    assert main(["adapt", adder]) == 2
    assert capsys.readouterr().err == (
        "error: my_adapter.py exists\n  it is not overwritten: choose another name with -o\n"
    )
    assert (in_tmp / "my_adapter.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "explanation"),
    [
        (["nowhere.py:Model"], "no file nowhere.py"),
        (["adder_model.py:Nobody"], "it has: Attention, EncoderLayer, DecoderLayer, AdderTransformer"),
        (["adder_model.py"], "which class of adder_model.py?"),
        (["adder_model.py:AdderTransformer", "--checkpoint", "no.pth"], "no file no.pth"),
        (["adder_model.py:AdderTransformer", "--checkpoint", "adder_model.py"], "holds more than weights"),
    ],
)
def test_wrong_usage(adder, in_tmp, capsys, arguments, explanation):
    assert main(["adapt", *arguments]) == 2
    assert explanation in capsys.readouterr().err
    assert not (in_tmp / "my_adapter.py").exists()
