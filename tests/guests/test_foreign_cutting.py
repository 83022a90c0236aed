"""Heads cut out of strangers' models: the same as weights set to zero, saved, loaded, and cut again."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path

import foreign_styles as styles
import pytest
import torch
from torch import Tensor, nn

from headcount import Adapter, HeadcountError, Sites, load_guest, prune_heads
from headcount.cli import main
from headcount.errors import CheckFailed, InputError
from headcount.guests.adapter import Adapted, load_adapted
from headcount.guests.foreign_cutting import cut_adapted, prove_adapted
from headcount.guests.foreign_plans import Chosen, Spread
from headcount.guests.foreign_tracing import owners
from headcount.guests.guest import looks_like_guest
from headcount.heads import HeadId

ADDER = Path(__file__).parents[1] / "foreign_adder"
ADAPTER = f"""
import sys
sys.path.insert(0, {str(ADDER)!r})
from adder_ablation import solve
from adder_model import PAD, AdderTransformer, to_ids
from headcount import Adapter, Sites

class Model(Adapter):
    checkpoint = {str(ADDER / "adder.pth")!r}
    task, settings = "addition", {{"digits": 2, "n_validation": 10, "n_test": 40}}

    def build(self):
        return AdderTransformer()

    def sites(self, model):
        stacks = ("encoder_layers.*.self_attn", "decoder_layers.*.self_attn", "decoder_layers.*.cross_attn")
        return Sites.of(model, *(f"{{path}}.W_o" for path in stacks), n_heads=4)

    def encode(self, questions, answers):
        labels = to_ids(list(answers), eos=True)
        return (to_ids(list(questions)), to_ids(list(answers), sos=True)), labels.masked_fill(labels == PAD, -100)

    def generate(self, model, questions):
        return solve(model, list(questions))
"""
STYLES = {
    "separate": (styles.Separate, "narrow", "layers.*.attn.out"),
    "fused": (styles.Fused, "narrow", "layers.*.attn.out"),
    "braided": (styles.Braided, "narrow", "layers.*.attn.out"),
    "by width": (styles.ByWidth, "narrow", "layers.*.attn.out"),
    "by input": (styles.ByInput, "spread", "layers.*.attn.out"),
    "one key": (styles.OneKey, "narrow", "layers.*.attn.out.0"),
}
SETS = ["L0H0", "L0H1", "L0H2", "L1H1", "L0H0,L0H2,L1H1", "L0H0,L0H1,L0H2"]


class Styled(Adapter):
    def __init__(self, model: nn.Module, **where: str) -> None:
        self.model, self.where = model, where

    def build(self) -> nn.Module:
        return self.model

    def sites(self, model: nn.Module) -> Sites:
        return Sites.of(model, n_heads=styles.HEADS, **self.where) if self.where else super().sites(model)


def adapted(adapter: Adapter) -> Adapted:
    return Adapted(adapter, *load_adapted(adapter))


def stack(style: str) -> Adapted:
    torch.manual_seed(0)
    kind, _, path = STYLES[style]
    return adapted(Styled(styles.Stack(kind), layer=path))


def named(heads: str) -> list[HeadId]:
    return [HeadId.parse(head) for head in heads.split(",")]


def without(whole: Adapted, heads: list[HeadId], *inputs: Tensor) -> Tensor:
    """By a route of its own: the heads' columns of the output projections are zeros."""
    copy = deepcopy(whole)
    for site, places in copy.head_sites.by_site(heads).items():
        weight = copy.head_sites[site].projection.weight
        for place in places:
            weight.data.unflatten(1, (len(copy.head_sites[site].heads), -1))[:, place] = 0
    return said(copy, *inputs)


def said(model: nn.Module, *inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model(*inputs)


def check(whole: Adapted, heads: list[HeadId], *inputs: Tensor) -> Adapted:
    before = said(whole, *inputs)
    cut = cut_adapted(whole, heads, inputs)
    expected = without(whole, heads, *inputs)
    assert not torch.allclose(expected, before, atol=1e-4)
    torch.testing.assert_close(said(cut, *inputs), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(said(whole, *inputs), before), "the whole model was changed"
    assert cut.head_sites.heads == tuple(head for head in whole.head_sites.heads if head not in heads)
    assert size(cut) < size(whole)
    return cut


def size(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


def tokens(n: int = 5) -> Tensor:
    return torch.randint(1, styles.TOKENS, (4, n), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adder")
    (folder / "my_adapter.py").write_text(ADAPTER)
    return folder


@pytest.fixture(scope="module")
def adder(home):
    return load_guest(f"{home / 'my_adapter.py'}:Model")


@pytest.fixture(scope="module")
def sums(adder):
    return adder.exam().ask(list(range(12))).inputs


# --- the cut ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["E0", "E1", "D0", "D1", "X0", "X1"])
def test_every_head_of_the_adder(adder, sums, site):
    for place in range(4):
        cut = check(adder.model, named(f"{site}H{place}"), *sums)
        assert [plan.way for plan in cut.cuts] == ["narrow"]
        assert size(adder.model) - size(cut) == 12 * 48 * 4 + 3 * 12


@pytest.mark.parametrize("heads", ["E0H1,X1H2", "E0H0,E0H3,D1H1,X0H0", "X1H0,X1H1,X1H2,X1H3,E1H1"])
def test_sets_of_the_adder(adder, sums, heads):
    cut = check(adder.model, named(heads), *sums)
    again = check(cut, named("D0H1,E1H0"), *sums)
    assert len(again.head_sites.heads) == 24 - len(heads.split(",")) - 2


@pytest.mark.parametrize("style", STYLES)
def test_styles(style):
    whole = stack(style)
    for heads in SETS:
        cut = check(whole, named(heads), tokens())
        assert all(plan.way in (STYLES[style][1], "empty") for plan in cut.cuts)
        torch.testing.assert_close(said(cut, tokens(3)), without(whole, named(heads), tokens(3)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("style", STYLES)
def test_cut_again_and_to_the_end(style):
    cut = check(stack(style), named("L0H1"), tokens())
    cut = check(cut, named("L0H0,L1H1"), tokens())
    cut = check(cut, named("L0H2"), tokens())  # the last of its block
    assert [str(head) for head in cut.head_sites.heads] == ["layer.1.self.0", "layer.1.self.2"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_of_pytorch(batch_first):
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="nested_tensor") if not batch_first else nullcontext():
        whole = adapted(Styled(styles.Torch(batch_first=batch_first)))
    ids = tokens()
    ids[0, 3:] = 0
    for heads in ("E0H1", "D1H2", "E1H0,X1H1,X1H2", "D0H0,D0H1,D0H2,D0H3"):
        cut = check(whole, named(heads), ids)
        assert {plan.way for plan in cut.cuts} == {"torch"}
    check(cut, named("E0H1,E1H0"), ids)


def test_half_precision():
    whole = stack("fused").to(torch.float16)
    cut = cut_adapted(whole, named("L0H1"), [tokens()])
    assert {each.dtype for each in cut.parameters()} == {torch.float16}


def test_a_head_that_is_deaf_is_still_found():
    seen = torch.zeros(3, 9, dtype=torch.bool)
    seen[0, 0] = seen[2, 8] = True
    assert owners(seen).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    seen[0, 3] = True
    assert owners(seen).tolist() == [0, 1, 2] * 3
    seen[1, 0] = True  # shared
    assert owners(seen).tolist() == [-1, -1, -1, 0, -1, -1, -1, -1, 2]


def test_the_proof_can_fail(adder, sums):
    cut = cut_adapted(adder.model, named("E0H1"), sums)
    for heads in ("E0H2", "E0H1,D0H0", "X1H1"):
        with pytest.raises(CheckFailed, match="differ by"):
            prove_adapted(adder.model, cut, named(heads), sums)


# --- what cannot be cut -----------------------------------------------------------------------------------------------


def raw(adapter: type[Styled] = Styled) -> Adapted:
    torch.manual_seed(0)
    return adapted(adapter(styles.Stack(styles.Raw), layer="layers.*.attn.out"))


def test_no_way_is_found():
    with pytest.raises(CheckFailed, match=r"layer\.1\.self") as caught:
        cut_adapted(raw(), named("L1H1"), [tokens()])
    assert "no linear layer" in str(caught.value)
    assert "def cut(self, model, site, keep)" in str(caught.value)


class Cutting(Styled):
    def cut(self, model, site, keep):
        block = model.layers[site.layer]["attn"]
        block.w = nn.Parameter(block.w.data[:, keep])
        block.out.weight = nn.Parameter(block.out.weight.data.unflatten(1, (-1, 4))[:, keep].flatten(1))


class Miscutting(Styled):
    def cut(self, model, site, keep):
        Cutting.cut(self, model, site, [each - 1 for each in keep])


class Swapping(Styled):
    def cut(self, model, site, keep):
        Cutting.cut(self, model, site, keep[::-1])


def test_the_adapter_cuts_itself():
    cut = check(raw(Cutting), named("L0H1,L1H0,L1H1"), tokens())
    check(cut, named("L0H2"), tokens())
    cut = check(cut, named("L0H0,L0H2"), tokens())
    assert cut.head_sites.heads == (HeadId.parse("L1H2"),)


def test_a_wrong_cut_is_not_taken():
    with pytest.raises(CheckFailed, match="tried cut") as caught:
        cut_adapted(raw(Miscutting), named("L0H1"), [tokens()])
    assert "keep=[0, 2]" in str(caught.value)
    assert "differ by" in str(caught.value)
    with pytest.raises(CheckFailed, match="in their old order"):  # the model says the same, but names would be wrong
        cut_adapted(raw(Swapping), named("L0H1"), [tokens()])


def test_what_was_tried_is_told(monkeypatch):
    whole = stack("by width")
    monkeypatch.setattr(styles.ByWidth, "forward", lambda self, x: self.out(x + x.norm() * self.linears[0](x).tanh()))
    monkeypatch.setattr("headcount.guests.foreign_plans.Spread.forward", lambda self, x: 1 / 0)
    with pytest.raises(
        CheckFailed, match=r"narrow: layers\.0\.attn\.linears\.0 and layers\.0\.attn\.out; .*h = 2"
    ) as caught:
        cut_adapted(whole, named("L0H1"), [tokens()])
    assert "ZeroDivisionError" in str(caught.value)


def test_all_heads_cannot_go():
    whole = stack("fused")
    with pytest.raises(InputError, match="all the heads"):
        cut_adapted(whole, whole.head_sites.heads, [tokens()])


def test_nothing_is_written_when_nothing_is_proven(in_tmp, capsys):
    (in_tmp / "bring.py").write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import torch\nfrom foreign_styles import Raw, Stack\nfrom headcount import Adapter, Sites\n"
        "class Model(Adapter):\n"
        "    def build(self):\n        torch.manual_seed(0)\n        return Stack(Raw)\n"
        "    def sites(self, model): return Sites.of(model, layer='layers.*.attn.out', n_heads=3)\n"
        "    def data(self): return [(f'{a}{b}{a}', str(b)) for a in range(7) for b in range(7)]\n"
        "    def encode(self, questions, answers):\n"
        "        return torch.tensor([[*map(int, each)] for each in questions]), torch.tensor([*map(int, answers)])\n"
        "    def forward(self, model, ids): return model(ids)[:, -1]\n"
    )
    assert main(["prune", "bring.py:Model", "--heads", "L0H1", "-o", "small", "--quiet"]) == 1
    assert "def cut(self" in capsys.readouterr().err
    assert [path.name for path in in_tmp.iterdir() if "small" in path.name] == []


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smaller(home, adder):
    """A folder without some heads, and one that was cut out of it."""
    prune_heads(adder, home / "smaller", heads=["E0H1", "X1H2"], quiet=True)
    shown = prune_heads(home / "smaller", home / "again", heads=["E0H0", "X1H0", "X1H1", "X1H3"], quiet=True)
    assert shown.cost is not None
    assert (shown.cost.n_heads, shown.cost.lost_blocks) == ((22, 18), ("decoder.1.cross",))
    assert shown.cost.parameters[0] > shown.cost.parameters[1]
    return home / "smaller"


NEW = """
import sys, json, headcount
for folder in sys.argv[1:]:
    guest = headcount.load_guest(folder)
    inputs = guest.exam().ask(list(range(12))).inputs
    print(json.dumps([[head.short for head in guest.sites.heads], guest.digest, guest.model(*inputs).tolist()]))
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
    assert (told["heads"], told["parent"]) == (["decoder.1.cross.2", "encoder.0.self.1"], adder.digest)
    again = json.loads((smaller.with_name("again") / "headcount.json").read_bytes())
    assert again["parent"] == told["digest"]
    assert len(again["heads"]) == 6
    assert {path.name for path in smaller.iterdir()} - {".lock"} == {"headcount.json", "model.safetensors"}
    assert looks_like_guest(smaller)


def test_verbs(smaller, in_tmp, capsys):
    assert main(["heads", str(smaller)]) == 0
    assert "E0H0  E0H2  E0H3" in capsys.readouterr().out
    assert main(["ablate", str(smaller), "--kinds", "zero", "--n", "20", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == load_guest(smaller).digest
    assert main(["heads", str(smaller), "--on", "37+81", "--json"]) == 0
    assert main(["prune", str(smaller), "--heads", "E0H1", "-o", "none"]) == 2
    assert "no head 'encoder.0.self.1'" in capsys.readouterr().err


def test_a_spread_model_is_saved(home, in_tmp, capsys):
    (home / "spread.py").write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
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
    whole = load_guest(f"{home / 'spread.py'}:Model")
    prune_heads(whole, home / "spread", heads=["L0H1", "L1H0"], quiet=True)
    prune_heads(home / "spread", home / "spread2", heads=["L0H2"], quiet=True)
    left = load_guest(home / "spread2")
    assert {each.dtype for each in left.inner.parameters()} == {torch.float64}
    assert sum(isinstance(each, Spread | Chosen) for each in left.inner.modules()) == 6
    expected = without(whole.model, named("L0H1,L1H0,L0H2"), tokens(3))
    torch.testing.assert_close(said(left.model, tokens(3)), expected)
    assert main(["ablate", str(home / "spread2"), "--kinds", "zero", "--json", "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "layer.0.self.1" not in json.dumps(told)
    assert "layer.0.self.0" in json.dumps(told)


def test_a_load_that_does_more_is_noticed(home, in_tmp):
    more = "    def load(self, model):\n        super().load(model)\n        model.d_model = 1\n"
    (in_tmp / "more.py").write_text(ADAPTER + more)
    with pytest.raises(CheckFailed, match="would say something else"):
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
    with pytest.raises(InputError, match="has it moved") as caught:
        load_guest(folder)
    assert str(tmp_path / "my_adapter.py") in str(caught.value)
    (folder / "headcount.json").write_text(
        (folder / "headcount.json").read_text().replace("../my_adapter.py", str(smaller.parent / "my_adapter.py"))
    )
    assert load_guest(folder).digest == load_guest(smaller).digest


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"schema": 2}, "another kind or version"),
        ({"class": "Nobody"}, "no adapter 'Nobody'"),
        ({"digest": "0"}, "not those that were written"),
        ({"cuts": []}, "do not fit the model"),
        ({"cuts": [{"site": "E0"}]}, "'cuts' in .* is damaged"),
        ({"cuts": None, "adapter": 3}, "does not say 'adapter', 'cuts'"),
    ],
)
def test_damage_is_told(smaller, tmp_path, told, why):
    with pytest.raises(HeadcountError, match=why):
        load_guest(damaged(smaller, tmp_path, **told))


def test_damaged_files(smaller, tmp_path):
    folder = damaged(smaller, tmp_path)
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(InputError, match="damaged or cut short"):
        load_guest(folder)
    (folder / "headcount.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        load_guest(folder)


def test_a_model_that_changed(smaller, tmp_path):
    (tmp_path / "my_adapter.py").write_text(ADAPTER.replace("AdderTransformer()", "AdderTransformer(num_layers=1)"))
    with pytest.raises(InputError, match="no longer builds"):
        load_guest(damaged(smaller, tmp_path, adapter="../my_adapter.py"))
