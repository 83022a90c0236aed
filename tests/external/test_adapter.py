"""A stranger's adder by its adapter: the same numbers as by the stranger's own code."""

from __future__ import annotations

import re
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headcount import Sites, ablate_heads, ablated, load_external
from headcount.cli import main
from headcount.data.from_adapter import _up_to_the_last, encoded
from headcount.errors import CheckFailed, ConfigError, HeadcountError, InputError, RunError
from headcount.experiments.external_models import prune_external
from headcount.external.adapter import load_adapter
from headcount.heads import HeadId
from headcount.surgery.tracing import cut_traced

FOREIGN = Path(__file__).parents[1] / "foreign_adder"
ADDER = f"{FOREIGN / 'adder_adapter.py'}:Adder"
sys.path.insert(0, str(FOREIGN))

import adder_ablation  # noqa: E402
import adder_model  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_tmp")]  # strangers' code is run in full


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.stats.N_RESAMPLES", 199)


def test_heads_are_worth_what_the_strangers_own_code_says() -> None:
    model = load_external(ADDER)
    questions = [(question, str(sum(map(int, question.split("+"))))) for question in asked(model)]
    theirs = adder_ablation.ablate(adder_model.load_adder(), questions)
    found = ablate_heads(ADDER, replacements=["zero"], quiet=True)
    ours: dict[Any, float] = {None: found.result.conditions[0].clean * 500}
    for effect in found.result.heads:
        stack, layer, kind, head = effect.head.split(".")
        ours[stack, int(layer), kind, int(head)] = effect.ablated * 500
    assert len(model.dataset()) == len(questions) == 500
    assert len(ours) == 2 * 4 + 2 * 2 * 4 + 1
    assert {head: round(right, 6) for head, right in ours.items()} == theirs
    assert len(set(theirs.values())) > 10, "heads that all cost the same are no test"
    assert found.result.conditions[0].decoded == 8 * 24
    assert found.result.metric == "free-running"


def asked(model: Any) -> list[str]:
    """The questions as the stranger would read them, from the tensors."""
    source = model.dataset().encode(np.arange(500)).inputs[0]
    return [adder_model.to_text([*row, adder_model.EOS]).replace("?", "") for row in source.tolist()]


@cache
def ablated_by_its_author() -> tuple[list[tuple[str, str]], dict[Any, int]]:
    """Return sums, and how many are right without each head."""
    sums = [(f"{a}+{b}", str(a + b)) for a in range(3, 99, 12) for b in range(1, 99, 12)]
    return sums, adder_ablation.ablate(adder_model.load_adder(), sums)


@pytest.mark.parametrize("is_bare", [False, True], ids=["by its adapter", "as a bare module"])
def test_the_strangers_own_loop_inside_our_context(is_bare: bool) -> None:
    """Their decoding and counting, our hooks: what their own switch for silent heads gives, head by head."""
    sums, theirs = ablated_by_its_author()
    external = load_external(ADDER)
    model: Any = external
    if is_bare:
        model = adder_model.load_adder()
        paths = ("encoder_layers.*.self_attn.W_o", "decoder_layers.*.self_attn.W_o", "decoder_layers.*.cross_attn.W_o")
        sites = {"sites": Sites.of(model, *paths, n_heads=4)}
    ours = {None: adder_ablation.count_right(model if is_bare else external.inner, sums)}
    for head in external.sites.heads:
        with ablated(model, head, **(sites if is_bare else {})) as acting:
            right = adder_ablation.count_right(model if is_bare else external.inner, sums)
        assert acting.n_proven == (0 if is_bare else 1)
        ours[head.site.stack, head.site.layer, head.site.kind, head.index] = right
    assert ours == theirs
    assert len(set(theirs.values())) > 10


def test_means_are_those_of_the_position_in_a_loop_without_a_cache() -> None:
    """One pass over the whole answer and the stranger's own loop must agree: the loop feeds 1, 2, 3, ... tokens."""
    external, questions = load_external(ADDER), [f"{a}+{b}" for a in range(3, 99, 13) for b in range(1, 99, 13)]
    heads = [head for head in external.sites.heads if head.site.stack == "decoder"][:5]
    with ablated(external, heads, by="mean"), torch.no_grad():
        answers = adder_ablation.solve(external.inner, questions)
        written = [[adder_model.SOS, *adder_model.to_ids([answer])[0].tolist()] for answer in answers]
        width = max(map(len, written))
        fed = torch.tensor([row + [adder_model.PAD] * (width - len(row)) for row in written])
        again = external.inner(adder_model.to_ids(questions), fed).argmax(dim=-1)
    clean = adder_ablation.solve(external.inner, questions)
    assert answers != clean, "means that change nothing are no test"
    for row, answer in zip(again.tolist(), answers, strict=True):
        assert adder_model.to_text(row).startswith(answer)


def test_other_examples_and_other_metrics() -> None:
    some = ablate_heads(ADDER, "validation", "loss", replacements=["mean"], n=40, quiet=True).result
    assert (some.metric, some.unit, some.conditions[0].n) == ("loss", "nats", 40)
    assert some.conditions[0].data == "the validation set of addition"
    assert some.conditions[0].decoded == 0
    with pytest.raises(InputError, match="there are: validation, test"):
        ablate_heads(ADDER, "exam", quiet=True)
    with pytest.raises(InputError, match="did you mean 'loss'"):
        ablate_heads(ADDER, metric="los", quiet=True)


# --- adapters that do not work ----------------------------------------------------------------------------------------


def adapter(body: str, base: str = "Adder", name: str = "Mine") -> str:
    """A file of one more class, with the stranger's code beside it."""
    for file in (*FOREIGN.glob("*.py"), FOREIGN / "adder.pth"):
        shutil.copy(file, file.name)
    text = "import torch\nfrom adder_adapter import Adder\nfrom headcount import Adapter\n"
    Path("mine.py").write_text(f"{text}class {name}({base}):\n    {body}\n")
    return "mine.py:Mine"


ENCODE = "def encode(self, questions, answers):"
BROKEN: dict[str, tuple[str, str]] = {
    "nothing": (f"{ENCODE} return None", "should return inputs and labels, not NoneType"),
    "no labels": (
        f"{ENCODE} return torch.zeros(2, 3), 7",
        r"inputs and labels, not tuple \(Tensor, int\)",
    ),
    "no tensors": (f"{ENCODE} return [[1, 2]], torch.zeros(2)", r"should return input tensors, not list \(list\)"),
    "no inputs": (f"{ENCODE} return (), torch.zeros(2)", "should return input tensors, not tuple"),
    "rows": (f"{ENCODE} return torch.zeros(3, 2), torch.zeros(2)", r"tensors with \[3, 2\] rows for 2 questions"),
    "labels": (f"{ENCODE} return torch.zeros(2, 2), torch.zeros(2, 2, 2)", "labels with 3 axes"),
    "logits": ("def forward(self, model, *inputs): return model(*inputs)[:, 0]", "not one row of logits for each"),
    "no task": ("task = None", r"names no task, and has no data\(\)"),
    "one question": ("task = None\n    def data(self): return [('1+1', '2')]", "at least 2 pairs"),
    "no model": ("def build(self): return 7", "build.. of the adapter returned int"),
    "no heads": ("def sites(self, model): return super(Adder, self).sites(model)", "its module tree suggests"),
}


@pytest.mark.parametrize(("body", "explanation"), BROKEN.values(), ids=BROKEN)
def test_an_adapter_that_does_not_work_says_why(body: str, explanation: str) -> None:
    with pytest.raises(InputError, match=explanation):
        ablate_heads(adapter(body), n=8, replacements=["zero"], quiet=True)


def test_an_adapter_of_almost_nothing() -> None:
    with pytest.raises(InputError, match=r"has no encode\(\)"):
        encoded(load_adapter(adapter("task = 'addition'", "Adapter")), [("1+1", "2")])


def test_labels_of_padding_are_found_out() -> None:
    """Asked for padding, the quick way finds wrong what the stranger's decoding finds right."""
    name = adapter(f"{ENCODE}\n        inputs, labels = super().encode(questions, answers)\n"
                   "        return inputs, labels.clamp(min=0)")  # fmt: skip
    with pytest.raises(CheckFailed, match=r"real decoding disagree[\s\S]*labels of padding are -100"):
        ablate_heads(name, n=100, replacements=["zero"], quiet=True)


def test_without_generate_nothing_is_decoded() -> None:
    found = ablate_heads(adapter("from headcount import Adapter as A; generate = A.generate"), n=40, quiet=True)
    assert found.result.conditions[0].decoded == 0
    assert found.result.metric == "free-running"


def test_settings_that_the_task_does_not_have() -> None:
    with pytest.raises(ConfigError, match="digit"):
        ablate_heads(adapter("settings = {'digit': 2}"), quiet=True)
    with pytest.raises(HeadcountError, match="additon"):
        ablate_heads(adapter("task = 'additon'"), quiet=True)


@pytest.mark.parametrize(
    ("text", "name", "explanation"),
    [
        (None, "Mine", "no file mine.py"),
        ("", "Mine", r"no adapter 'Mine'\s+write a class"),
        ("Mine = 7", "Mine", "no adapter 'Mine'"),
        ("class Mine: pass", "Mine", "no adapter 'Mine'"),
        ("from headcount import Adapter\nclass Yours(Adapter): pass", "Mine", r"no adapter 'Mine'\s+it has: Yours"),
        ("1 / 0", "Mine", "mine.py fails: ZeroDivisionError: division by zero"),
        ("def (", "Mine", "mine.py fails: SyntaxError"),
        ("x = 1\ndef (", "Mine", r"at line 2 of mine.py: def \("),
        ("import no_such_module", "Mine", "mine.py fails: ModuleNotFoundError"),
    ],
)
def test_files_that_hold_no_adapter(
    text: str | None, name: str, explanation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        Path("mine.py").write_text(text)
    with pytest.raises(InputError, match=explanation):
        load_external(f"mine.py:{name}")
    assert main(["ablate", f"mine.py:{name}"]) == 2
    assert re.search(f"error: (.|\\n)*{explanation}", capsys.readouterr().err)


# --- checkpoints ------------------------------------------------------------------------------------------------------


class Code:
    """Unpickling this would run it."""

    def __reduce__(self) -> Any:
        return Path("ran").touch, ()


def test_nothing_in_a_checkpoint_is_run() -> None:
    name = adapter("checkpoint = 'code.pth'")
    torch.save({"weights": Code()}, "code.pth")
    with pytest.raises(InputError, match="holds more than weights"):
        load_external(name)
    assert not Path("ran").exists()


def test_weights_below_one_of_the_usual_names() -> None:
    name, weights = adapter("checkpoint = 'nested.pth'"), torch.load("adder.pth", weights_only=True)
    for nested in ({"state_dict": weights, "step": 7}, {"model_state_dict": weights}, {"model": weights}):
        torch.save(nested, "nested.pth")
        assert load_external(name).weights_sha256 == load_external(ADDER).weights_sha256


def test_checkpoints_that_do_not_fit() -> None:
    name, weights = adapter("checkpoint = 'other.pth'"), torch.load("adder.pth", weights_only=True)
    with pytest.raises(RunError, match=r"could not read .*other\.pth"):
        load_external(name)
    torch.save(weights | {"fc_out.bias": torch.zeros(3)}, "other.pth")
    with pytest.raises(InputError, match=r"do not fit AdderTransformer[\s\S]*fc_out\.bias"):
        load_external(name)
    torch.save({key: each for key, each in weights.items() if key != "embed.weight"}, "other.pth")
    with pytest.raises(InputError, match=r"do not fit AdderTransformer[\s\S]*embed\.weight"):
        load_external(name)
    torch.save(torch.zeros(3), "other.pth")
    with pytest.raises(InputError, match="holds a Tensor instead of a state_dict"):
        load_external(name)
    for rubbish in (b"weights", Path("adder.pth").read_bytes()[:5000]):
        Path("other.pth").write_bytes(rubbish)
        with pytest.raises(HeadcountError, match=r"or is damaged|could not read"):
            load_external(name)


# --- other data, other tasks ------------------------------------------------------------------------------------------


def test_data_of_its_own() -> None:
    name = adapter("task = None\n    def data(self): return [(f'{a}+7', str(a + 7)) for a in range(30)]")
    found = ablate_heads(name, replacements=["zero"], quiet=True).result
    assert (found.conditions[0].data, found.conditions[0].n) == ("the adapter's data", 30)
    sums = [(f"{a}+7", str(a + 7)) for a in range(30)]
    assert found.conditions[0].clean * 30 == adder_ablation.count_right(adder_model.load_adder(), sums)
    with pytest.raises(InputError, match="no 'validation' split"):
        ablate_heads(name, "validation", quiet=True)


SORTER = """
import torch
from torch import nn
from headcount import Adapter

class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(101, 8), nn.Linear(8, 2)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
    def forward(self, ids):
        x = self.embed(ids)
        pad = ids == 100
        z = self.attn(x, x, x, key_padding_mask=pad, need_weights=False)[0]
        return self.out((x + 3 * z).masked_fill(pad[..., None], 0).sum(1))

class Mine(Adapter):
    task, settings = "sortedness", {"n_test": 60, "n_validation": 20, "n_values": 100}
    def build(self):
        torch.manual_seed(1)
        return Sorter()
    def encode(self, questions, answers):
        rows = [torch.tensor([int(each) for each in question.split()]) for question in questions]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=100)
        return ids, torch.tensor([["unsorted", "sorted"].index(answer) for answer in answers])
"""


def test_a_classifier_is_asked_for_classes() -> None:
    Path("mine.py").write_text(SORTER)
    model = load_external("mine.py:Mine")
    assert list(map(str, model.sites.heads)) == ["layer.0.self.0", "layer.0.self.1"]
    found = ablate_heads(model, quiet=True).result
    dataset = model.dataset()
    with torch.no_grad():
        asked = [dataset.encode(np.array([row])) for row in range(len(dataset))]
        right = np.mean([bool(each.scores["accuracy"](model.model(*each.inputs))) for each in asked])
    assert (found.metric, found.conditions[0].n, found.conditions[0].decoded) == ("accuracy", 60, 0)
    assert found.conditions[0].clean == pytest.approx(right)
    assert found.conditions[0].majority_baseline == 0.5
    assert len(found.heads) == 2 * 3


def test_who_does_not_generate_is_fed_the_right_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.py").write_text(SORTER)
    model = load_external("mine.py:Mine")
    given, kind = list[Any](), type(model.adapter)

    def noted(self: Any, *texts: Any, encode: Any = kind.encode) -> Any:
        given.append(texts)
        return encode(self, *texts)

    monkeypatch.setattr(kind, "encode", noted)
    for question in ("3 5 4 9", "3 5 5 9"):
        assert model.text_input(question).note == "", "it generates nothing"
    assert [each for each in given if len(each[0]) == 1] == [(["3 5 4 9"], ["unsorted"]), (["3 5 5 9"], ["sorted"])]
    own = load_external(
        adapter("task, generate = None, Adapter.generate\n    def data(self): return [('1+1', '2')] * 2")
    )
    assert own.text_input("1+1").inputs[1].tolist() == adder_model.to_ids(["2"], sos=True).tolist()
    with pytest.raises(InputError, match=r"add generate\(\) to the headcount.Adapter class"):
        own.text_input("1+2")


def test_what_is_asked_for_last_ends_the_tokens() -> None:
    asked = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0]]).bool()
    assert _up_to_the_last(asked).long().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]


def test_a_cut_that_is_not_proven_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    other = HeadId.parse("E0H0")
    monkeypatch.setattr("headcount.runs.prune.cut_traced", lambda model, _, inputs: cut_traced(model, [other], inputs))
    model = load_external(ADDER)
    with pytest.raises(CheckFailed, match=r"the model without these heads .* differ by .*: nothing was written"):
        prune_external(model, ["E0H1"], Path("cut"), model.dataset().encode(np.arange(12)).inputs)
    assert not any(Path().iterdir())
