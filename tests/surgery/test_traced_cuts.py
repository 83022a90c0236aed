"""Cutting heads out of models of others equals zeroing weights; cut models can be saved, loaded and cut again."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import foreign_styles as styles
import pytest
import torch
from torch import nn
from traced_cuts import SETS, STYLES, Styled, adapted, check, named, predicted, size, stack, tokens, without

from headcount.cli import main
from headcount.errors import CheckFailed, InputError
from headcount.external.adapter import Adapted
from headcount.external.user_code import UserCodeError
from headcount.heads import HeadId
from headcount.surgery.cut_proof import prove_cut
from headcount.surgery.tracing import cut_traced, head_of_output

pytestmark = pytest.mark.slow  # models of others, or many processes

# --- the cut ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["E0", "E1", "D0", "D1", "X0", "X1"])
def test_every_head_of_the_adder(adder, sums, site, pytestconfig):
    """The first and the last head of each block; `--long` cuts out those between them as well."""
    for place in range(4) if pytestconfig.getoption("--long") else (0, 3):
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
        torch.testing.assert_close(
            predicted(cut, tokens(3)), without(whole, named(heads), tokens(3)), atol=1e-5, rtol=1e-5
        )


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
    cut = cut_traced(whole, named("L0H1"), [tokens()])
    assert {each.dtype for each in cut.parameters()} == {torch.float16}


def test_a_head_that_is_deaf_is_still_found():
    seen = torch.zeros(3, 9, dtype=torch.bool)
    seen[0, 0] = seen[2, 8] = True
    assert head_of_output(seen).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    seen[0, 3] = True
    assert head_of_output(seen).tolist() == [0, 1, 2] * 3
    seen[1, 0] = True  # shared
    assert head_of_output(seen).tolist() == [-1, -1, -1, 0, -1, -1, -1, -1, 2]


def test_the_proof_can_fail(adder, sums):
    cut = cut_traced(adder.model, named("E0H1"), sums)
    for heads in ("E0H2", "E0H1,D0H0", "X1H1"):
        with pytest.raises(CheckFailed, match="differ by"):
            prove_cut(adder.model, cut, named(heads), sums)


# --- what cannot be cut -----------------------------------------------------------------------------------------------


def raw(adapter: type[Styled] = Styled) -> Adapted:
    torch.manual_seed(0)
    return adapted(adapter(styles.Stack(styles.Raw), layer="layers.*.attn.out"))


def test_no_way_is_found():
    with pytest.raises(CheckFailed, match=r"layer\.1\.self") as caught:
        cut_traced(raw(), named("L1H1"), [tokens()])
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
        cut_traced(raw(Miscutting), named("L0H1"), [tokens()])
    assert "keep=[0, 2]" in str(caught.value)
    assert "differ by" in str(caught.value)
    with pytest.raises(
        CheckFailed, match="changed the order of the remaining heads"
    ):  # the model says the same, but names would be wrong
        cut_traced(raw(Swapping), named("L0H1"), [tokens()])


def test_what_was_tried_is_told(monkeypatch):
    whole = stack("by width")
    monkeypatch.setattr(styles.ByWidth, "forward", lambda self, x: self.out(x + x.norm() * self.linears[0](x).tanh()))
    monkeypatch.setattr("headcount.surgery.layers.ZeroFilledLinear.forward", lambda self, x: 1 / 0)
    with pytest.raises(
        CheckFailed, match=r"narrow: layers\.0\.attn\.linears\.0 and layers\.0\.attn\.out; .*h = 2"
    ) as caught:
        cut_traced(whole, named("L0H1"), [tokens()])
    assert "ZeroDivisionError" in str(caught.value)


class Odd(Exception):
    """An exception that no code expects."""


ERRORS = [
    ValueError("planted"),
    AssertionError("planted"),
    Odd("planted"),
    StopIteration("planted"),
    OSError("planted"),
]


def faulty_cut(error: BaseException) -> type[Styled]:
    class Faulty(Styled):
        def cut(self, model, site, keep):
            raise error

    return Faulty


def faulty_forward(error: BaseException) -> type[Styled]:
    class Faulty(Styled):
        def forward(self, model, *inputs):
            if model.layers[0].attn.out.weight.shape[1] < styles.WIDTH:
                raise error
            return model(*inputs)

    return Faulty


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_cut_that_fails_is_told_or_left_to_headcount(error):
    whole = stack("fused", faulty_cut(error))
    with pytest.raises(CheckFailed, match=rf"tried cut\(\)(.|\n)*{type(error).__name__}: planted"):
        cut_traced(whole, named("L0H1"), [tokens()])
    cut = check(whole, named("L0H0,L0H1,L0H2"), tokens())
    assert [plan.way for plan in cut.cuts] == ["empty"], "a block that keeps none"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_forward_that_fails_on_the_smaller_layers_is_told(error):
    with pytest.raises(CheckFailed, match=rf"tried narrow(.|\n)*fails: {type(error).__name__}: planted"):
        cut_traced(stack("fused", faulty_forward(error)), named("L0H1"), [tokens()])


@pytest.mark.parametrize("faulty", [faulty_cut, faulty_forward])
def test_an_exit_surfaces_at_once(faulty):
    with pytest.raises(UserCodeError, match="ends the program: SystemExit: 3") as caught:
        cut_traced(stack("fused", faulty(SystemExit(3))), named("L0H1"), [tokens()])
    assert isinstance(caught.value.__cause__, SystemExit)
    with pytest.raises(KeyboardInterrupt):
        cut_traced(stack("fused", faulty(KeyboardInterrupt())), named("L0H1"), [tokens()])


@pytest.mark.parametrize("error", [AssertionError, AttributeError, Odd], ids=lambda error: error.__name__)
def test_modules_whose_numbers_cannot_be_set_are_cut_in_another_way(error, monkeypatch):
    def refuse(self, name, value):
        if name == "h" and "h" in vars(self):
            raise error("planted")
        nn.Module.__setattr__(self, name, value)

    whole = stack("by width")
    monkeypatch.setattr(styles.ByWidth, "__setattr__", refuse)
    assert [plan.way for plan in check(whole, named("L0H1"), tokens()).cuts] == ["spread"]


def test_modules_that_cannot_be_copied(monkeypatch):
    whole = stack("fused")

    def refuse(self, memo):
        raise Odd("planted")

    monkeypatch.setattr(styles.Fused, "__deepcopy__", refuse, raising=False)
    with pytest.raises(CheckFailed, match=r"could not trace .*cannot be copied: Odd: planted(.|\n)*def cut"):
        cut_traced(whole, named("L0H1"), [tokens()])


class Tracing(Styled):
    def forward(self, model, *inputs):
        if torch.is_grad_enabled():
            raise Odd("planted")
        return model(*inputs)


def test_a_forward_that_fails_while_it_is_traced():
    with pytest.raises(
        CheckFailed, match=r"could not trace which layers the heads at layer\.0\.self depend on: .*Odd: planted"
    ):
        cut_traced(stack("fused", Tracing), named("L0H1"), [tokens()])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("training", [True, False])
def test_what_is_left_trains_or_rests_as_before(style, training):
    whole = stack(style).train(training)
    for heads in ("L0H1", "L0H0,L0H1,L0H2"):
        cut = cut_traced(whole, named(heads), [tokens()])
        assert all(module.training == training for module in cut.model.modules())


def test_all_heads_cannot_go():
    whole = stack("fused")
    with pytest.raises(InputError, match="all heads"):
        cut_traced(whole, whole.head_sites.heads, [tokens()])


def test_nothing_is_written_when_nothing_is_proven(in_tmp, capsys):
    (in_tmp / "bring.py").write_text(
        f"import sys; sys.path.insert(0, {str(Path(styles.__file__).parent)!r})\n"
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
