"""First adapters: valid Python, right where the class tells, plain about what it does not tell."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from headcount import HeadcountError, load_external
from headcount.errors import InputError
from headcount.external.adapter import load_adapted, load_adapter
from headcount.external.scaffold import guessed_values, tree_of, write_scaffold

pytestmark = pytest.mark.slow  # models of others, or many processes

ADDER = Path(__file__).parents[1] / "foreign_adder"
SMALL = """
import torch
from torch import nn

class {name}(nn.Module):
    def __init__(self, {wants}):
        super().__init__()
        self.embed = nn.Embedding(n_tokens, d_model)
        self.layers = nn.ModuleList([Block(d_model, d_ff) for _ in range(n_layers)])

    def forward(self, ids, mask=None):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x

class Block(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.attention, self.ff = Attention(d_model), nn.Sequential(nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model))

    def forward(self, x):
        return self.ff(self.attention(x))

class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.n_heads, self.o_proj = 2, nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.o_proj(x)
"""
SIZES = "n_tokens{0}, d_model{1}, d_ff{2}, n_layers{3}"
GIVEN, WANTED = SIZES.format("=7", "=8", "=20", "=3"), SIZES.format("", ": int", "", "")


def small(folder: Path, file: str = "small.py", name: str = "Small", wants: str = GIVEN, more: str = "") -> str:
    (folder / file).write_text(SMALL.format(name=name, wants=wants) + more)
    return f"{folder / file}:{name}"


@pytest.fixture(autouse=True)
def _modules_of_one_test(monkeypatch):
    """Files of the same names are in other folders."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] not in ("headcount", "torch", "numpy"):
            del sys.modules[name]


@pytest.fixture
def adder(tmp_path):
    for file in ADDER.glob("adder*"):
        shutil.copy(file, tmp_path)
    return tmp_path


@pytest.mark.parametrize("beside", [True, False])
def test_the_adder(adder, beside):
    (adder / "deep").mkdir()
    out = adder / "my_adapter.py" if beside else adder / "deep" / "my_adapter.py"
    made = write_scaffold(f"{adder / 'adder_model.py'}:AdderTransformer", out, adder / "adder.pth")
    assert [head.short for head in made.heads[::4]] == ["E0H0", "E1H0", "D0H0", "D1H0", "X0H0", "X1H0"]
    assert (len(made.heads), made.notes) == (24, ())
    assert [(each.role, each.n_layers, each.n_heads) for each in made.guesses] == [
        ("encoder", 2, 4),
        ("decoder", 2, 4),
        ("cross", 2, 4),
    ]
    adapted = load_adapted(load_adapter(f"{out}:Model"))
    assert adapted.head_sites.heads == made.heads
    weights = torch.load(adder / "adder.pth", weights_only=True)
    assert torch.equal(adapted.model.state_dict()["fc_out.weight"], weights["fc_out.weight"])
    text = out.read_text()
    assert "return (src, tgt), labels" in text
    assert "def forward(self, model, src, tgt):" in text
    assert "-100" in text
    assert "#   encoder_layers.*.self_attn.W_q   Linear [48, 48], 2 of them" in text
    assert max(map(len, text.splitlines())) <= 120


def test_filled_in_it_works(adder):
    out = adder / "my_adapter.py"
    write_scaffold(f"{adder / 'adder_model.py'}:AdderTransformer", out, adder / "adder.pth")
    with pytest.raises(HeadcountError, match=r"data\(\) of the adapter is still to be written"):
        load_external(f"{out}:Model").dataset()
    text = out.read_text().replace("    task = None", '    task = "addition"')
    text = text.replace("    settings = {}", '    settings = {"digits": 2, "n_validation": 10, "n_test": 30}')
    out.write_text(text)
    with pytest.raises(HeadcountError, match=r"encode\(\) of the adapter is still to be written"):
        load_external(f"{out}:Model").dataset()
    start = text.index("        raise HeadcountError(")
    body = (
        "        from adder_model import to_ids\n        labels = to_ids(answers, eos=True)\n"
        "        labels[labels == 0] = -100\n        return (to_ids(questions), to_ids(answers, sos=True)), labels\n"
    )
    out.write_text(text[:start] + body + text[text.index("\n", start) + 1 :])
    model = load_external(f"{out}:Model")
    batch = model.dataset().encode(np.arange(30))
    right = batch.scores["free-running"](model.model(*batch.inputs)).float().mean()
    assert right > 0.9


def test_arguments_with_values(tmp_path):
    made = write_scaffold(small(tmp_path), tmp_path / "bring.py")
    assert len(made.heads) == 6
    assert made.notes == ("the model has no weights yet: set checkpoint, or load them in build()",)
    text = (tmp_path / "bring.py").read_text()
    assert "return (ids,), labels" in text
    assert 'Sites.of(model, layer="layers.*.attention.o_proj", n_heads=2)' in text


def test_arguments_that_are_wanted(tmp_path):
    made = write_scaffold(small(tmp_path, wants=WANTED), tmp_path / "bring.py")
    assert (made.heads, made.guesses) == ((), ())
    assert made.notes == (
        "in build(): Small needs the arguments n_tokens, d_model: int, d_ff, n_layers",
        "sizes can be read from its weights: give the file with --checkpoint",
    )
    text = (tmp_path / "bring.py").read_text()
    assert "# TODO: Small needs the arguments n_tokens, d_model: int, d_ff, n_layers" in text
    assert "return Small(n_tokens=..., d_model=..., d_ff=..., n_layers=...)" in text
    load_adapter(f"{tmp_path / 'bring.py'}:Model")


def saved(folder: Path, **sizes: int) -> Path:
    found: dict[str, type[torch.nn.Module]] = {}
    exec(SMALL.format(name="Small", wants=WANTED), found)
    torch.save({"model": found["Small"](**sizes).state_dict(), "step": 3}, folder / "some.pth")
    return folder / "some.pth"


def test_arguments_are_guessed_from_weights(tmp_path):
    weights = saved(tmp_path, n_tokens=11, d_model=6, d_ff=10, n_layers=2)
    made = write_scaffold(small(tmp_path, wants=WANTED), tmp_path / "bring.py", weights)
    assert "return Small(n_tokens=11, d_model=6, d_ff=10, n_layers=2)" in (tmp_path / "bring.py").read_text()
    assert len(made.heads) == 4
    assert "they fit: check it" in made.notes[0]
    assert len(load_external(f"{tmp_path / 'bring.py'}:Model").sites.heads) == 4


def test_sites_are_guessed_from_the_names_of_weights(tmp_path):
    weights = saved(tmp_path, n_tokens=11, d_model=6, d_ff=10, n_layers=2)
    made = write_scaffold(small(tmp_path, wants=f"{WANTED}, eps"), tmp_path / "bring.py", weights)
    assert [(each.pattern, each.n_heads) for each in made.guesses] == [("layers.*.attention.o_proj", None)]
    text = (tmp_path / "bring.py").read_text()
    assert "Small(n_tokens=11, d_model=6, d_ff=10, n_layers=2, eps=...)" in text
    assert 'Sites.of(model, layer="layers.*.attention.o_proj", n_heads=...)' in text


def test_weights_that_do_not_fit(tmp_path):
    weights = saved(tmp_path, n_tokens=11, d_model=6, d_ff=10, n_layers=2)
    made = write_scaffold(small(tmp_path), tmp_path / "bring.py", weights)
    assert "return Small(n_tokens=11, d_model=6, d_ff=10, n_layers=2)" in (tmp_path / "bring.py").read_text()
    assert len(made.heads) == 4
    known = torch.load(weights, weights_only=True)["model"]
    known |= {"layers.0.attention.o_proj.bias": torch.zeros(7), "extra.weight": torch.zeros(2)}
    torch.save({f"module.{name}": each for name, each in known.items() if name != "embed.weight"}, weights)
    made = write_scaffold(small(tmp_path), tmp_path / "other.py", weights)
    assert len(made.heads) == 6, "those of the class as it is"
    assert "do not fit" in made.notes[0]
    assert made.notes[1].startswith("not in the file: embed.weight, layers.*.attention.o_proj.weight (3 of them)")
    assert "module.extra.weight" in made.notes[2]


def test_weights_under_a_name_of_ones_own(tmp_path):
    weights = saved(tmp_path, n_tokens=7, d_model=8, d_ff=20, n_layers=3)
    known = torch.load(weights, weights_only=True)["model"]
    torch.save({"net": known, "epoch": 3, "optimizer": {"state": {}, "lr": 0.1}}, weights)
    assert write_scaffold(small(tmp_path), tmp_path / "bring.py", weights).notes == ()


def test_weights_that_a_wrapper_named(tmp_path):
    """As DataParallel and torch.compile save them."""
    weights = saved(tmp_path, n_tokens=7, d_model=8, d_ff=20, n_layers=3)
    known = torch.load(weights, weights_only=True)["model"]
    torch.save({f"module.{name}": each for name, each in known.items()}, weights)
    made = write_scaffold(small(tmp_path), tmp_path / "bring.py", weights)
    assert (len(made.heads), made.notes) == (6, ())
    loaded = load_external(f"{tmp_path / 'bring.py'}:Model")
    assert torch.equal(loaded.inner.state_dict()["embed.weight"], known["embed.weight"])


@pytest.mark.parametrize(("file", "name"), [("small.py", "Model"), ("odd-name.py", "Small"), ("odd name.py", "Sites")])
def test_awkward_names(tmp_path, file, name):
    (tmp_path / "deep").mkdir()
    for out in (tmp_path / "bring.py", tmp_path / "deep" / "bring.py"):
        made = write_scaffold(small(tmp_path, file, name), out)
        assert len(made.heads) == 6
        compile(out.read_text(), str(out), "exec")


def test_a_model_without_attention(tmp_path):
    made = write_scaffold(
        small(tmp_path, more="class Plain(Attention):\n    pass\n").replace("Small", "Block"), tmp_path / "b.py"
    )
    assert made.heads == ()
    assert "Block needs the arguments d_model, d_ff" in made.notes[0]
    (tmp_path / "plain.py").write_text("from torch import nn\nclass Plain(nn.Sequential): pass\n")
    made = write_scaffold(f"{tmp_path / 'plain.py'}:Plain", tmp_path / "c.py")
    assert (made.guesses, made.heads) == ((), ())
    assert "the heads of the model are not found yet" in made.notes[0]
    assert "TODO: nothing was found" in (tmp_path / "c.py").read_text()


def test_refusals(tmp_path):
    name = small(tmp_path)
    (tmp_path / "there.py").write_text("mine")
    for given, out, explanation in (
        (name, "there.py", "exists"),
        (name, "there", "must be a Python file"),
        (name.replace("Small", "Large"), "new.py", "it has: Small, Block, Attention"),
        ("nowhere.py:Small", "new.py", "no file nowhere.py"),
        (name.rpartition(":")[0], "new.py", r"no file|names no class|which class"),
    ):
        with pytest.raises(InputError, match=explanation):
            write_scaffold(given, tmp_path / out)
    for checkpoint in ("none.pth", "there.py"):
        with pytest.raises(InputError):
            write_scaffold(name, tmp_path / "new.py", tmp_path / checkpoint)
    assert (tmp_path / "there.py").read_text() == "mine"
    assert not (tmp_path / "new.py").exists()


def test_a_class_that_fails(tmp_path):
    (tmp_path / "bad.py").write_text("from torch import nn\nclass Bad(nn.Module):\n    def __init__(self): 1 / 0\n")
    made = write_scaffold(f"{tmp_path / 'bad.py'}:Bad", tmp_path / "bring.py")
    assert made.notes[0] == "in build(): Bad() fails: ZeroDivisionError: division by zero"


def test_guesses():
    weights = {
        "tok.weight": torch.zeros(9, 4),
        "h.0.attn.o.weight": torch.zeros(4, 4),
        "h.1.mlp.up.weight": torch.zeros(16, 4),
    }
    assert guessed_values(["vocab_size", "dim", "depth", "d_ff", "eps"], weights) == {
        "vocab_size": 9,
        "dim": 4,
        "depth": 2,
        "d_ff": 16,
    }
    fused = {"h.0.self_attn.in_proj_weight": torch.zeros(24, 4)}
    assert guessed_values(["dim_feedforward"], weights | fused) == {"dim_feedforward": 16}
    assert guessed_values(["dim"], {}) == {}
    tables = {"src_emb.weight": torch.zeros(9, 4), "tgt_emb.weight": torch.zeros(8, 4), "pos.pe": torch.zeros(50, 1, 4)}
    assert guessed_values(["src_vocab", "tgt_vocab", "max_len", "dropout"], tables) == {
        "src_vocab": 9,
        "tgt_vocab": 8,
        "max_len": 50,
        "dropout": 0.0,
    }
    assert [path for path, _ in tree_of(weights).named_modules()][-2:] == ["h.1.mlp", "h.1.mlp.up"]
