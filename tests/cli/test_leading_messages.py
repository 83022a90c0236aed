"""Messages that lead on, as they are met at the command line: each names the mistake and what to write instead."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headcount.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_tmp")]  # strangers' code is run in full

FOREIGN = Path(__file__).parents[1] / "foreign_adder"
Fails = Callable[..., str]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Standard error of a command that ends with this exit code."""

    def run(*arguments: str, code: int = 2) -> str:
        assert main(list(arguments)) == code
        return capsys.readouterr().err

    return run


def adapter(body: str, base: str = "Adder") -> str:
    """A file of one more class, with the stranger's adder beside it; `generate` and `tokens` are the stranger's."""
    for file in (*FOREIGN.glob("*.py"), FOREIGN / "adder.pth"):
        shutil.copy(file, file.name)
    text = "import torch\nfrom adder_adapter import Adder\nfrom adder_ablation import solve\n"
    text += "from adder_model import to_ids\nfrom headcount import Adapter, Sites\n"
    Path("mine.py").write_text(f"{text}class Mine({base}):\n    {body}\n")
    return "mine.py:Mine"


# --- one pass and generate() ------------------------------------------------------------------------------------------

ENCODE = "def encode(self, questions, answers):\n        inputs, labels = super().encode(questions, answers)\n        "
GENERATE = "def generate(self, model, questions): return [{} for each in solve(model, questions)]"
DISAGREEING = {
    "shifted": (
        f"{ENCODE}sos = to_ids(answers, sos=True); return inputs, sos.masked_fill(sos == 0, -100)",
        ("<1>97", "97<2>", "97"),
        "one token ahead of the labels",
    ),
    "padding": (f"{ENCODE}return inputs, labels.clamp(min=0)", ("97<2><0>", "97<2><2>", "97"), "should be -100"),
    "backwards": (GENERATE.format("each[::-1]"), ("97<2>", "97<2>", "79"), "reverse order: reverse them"),
    "zeros": (GENERATE.format("each.zfill(4)"), ("97<2>", "97<2>", "0097"), "padded with zeros"),
    "further": (GENERATE.format("each + '!'"), ("97<2>", "97<2>", "97!"), "cut its output off at the end token"),
    "other": (GENERATE.format("'12'"), ("97<2>", "97<2>", "12"), "check that the decoder's mask is causal"),
}


ASKED = [
    pytest.param("prune" if is_pruned else "ablate", *values, id=f"{name}-{is_pruned}", marks=marks)
    for name, values in DISAGREEING.items()
    for is_pruned, marks in ((False, ()), (True, () if name == "zeros" else pytest.mark.long))
]
"""Both verbs say what the same function finds: one disagreement shows that prune asks it."""


@pytest.mark.parametrize(("verb", "body", "cells", "cause"), ASKED)
def test_answers_stand_beside_each_other(
    fails: Fails, monkeypatch: pytest.MonkeyPatch, verb: str, body: str, cells: tuple[str, ...], cause: str
) -> None:
    """The whole model is asked first: no head is ablated before it is told."""
    monkeypatch.setattr("headcount.experiments.interventions.sweep", None)
    lines = fails(verb, adapter(body), "--n", "80" if verb == "prune" else "40", code=1).splitlines()
    at = next(
        i for i, line in enumerate(lines) if "with all heads, one forward pass and real decoding disagree" in line
    )
    header, first = lines[at + 1], lines[at + 2]
    names = ("question", "right answer", "labels", "one pass", "generate")
    starts = [header.index(name) for name in names]
    shown = [first[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
    assert shown[1] == str(sum(map(int, shown[0].split("+"))))
    if shown[1] == "97":
        assert tuple(shown[2:]) == cells
    assert cause in "\n".join(lines[at + 3 :])


def test_ids_without_names_are_shown_as_they_are(fails: Fails) -> None:
    """Labels that no alignment with the answers explains."""
    body = f"{ENCODE}return inputs, torch.where(labels > 2, torch.randint(3, 12, labels.shape), labels)"
    told = fails("ablate", adapter(body), "--n", "40", code=1)
    assert "<" in told.splitlines()[3]
    assert "disagree" in told


def test_a_disagreement_of_ablated_models_is_shown_too(fails: Fails) -> None:
    """With all heads both agree: what answers is another model, whose heads nobody ablates."""
    body = "def generate(self, model, questions):\n        from adder_model import load_adder\n"
    body += "        solve(model, questions)\n        return solve(load_adder(), questions)"
    told = fails("ablate", adapter(body), "--n", "40", code=1)
    assert "with encoder." in told or "with decoder." in told
    assert "question  right answer  labels" in told


# --- forward() that decodes -------------------------------------------------------------------------------------------

FORWARD = "def forward(self, model, *inputs): "
DECODING = {
    "texts": (f"{FORWARD}return solve(model, ['1+1'] * len(inputs[0]))", "returned a list of str"),
    "ids": (f"{FORWARD}return model(*inputs).argmax(-1)", "returned whole numbers"),
    "chosen": (
        f"{FORWARD}return model(*inputs).amax(-1)",
        "not one row of logits for each label, which is the shape [2, 4, size of the vocabulary]",
    ),
    "longer": (f"{FORWARD}return model(*inputs).repeat(1, 2, 1)", "not one row of logits for each label"),
    "unfed": (
        f"{FORWARD}\n        fed = torch.full_like(inputs[1][:, :1], 1)\n"
        "        while fed.shape[1] <= inputs[1].shape[1]:\n"
        "            logits = model(inputs[0], fed)\n            fed = torch.cat([fed, logits[:, -1:].argmax(-1)], 1)\n"
        "        return logits",
        "gives the same logits whatever answer is in the inputs from encode()",
    ),
}


@pytest.mark.parametrize(("body", "what"), DECODING.values(), ids=DECODING)
def test_a_forward_that_decodes_is_told_to_generate(fails: Fails, body: str, what: str) -> None:
    told = fails("ablate", adapter(body), "--n", "20")
    assert what in told
    assert "move that code into generate()" in told


def test_a_model_whose_own_forward_decodes(fails: Fails) -> None:
    """forward() of the adapter is not written; the model's returns texts."""
    body = (
        "def build(self):\n        model = super().build(); model.forward = lambda *inputs: ['12'] * len(inputs[0])\n"
    )
    assert "move that code into generate()" in fails("ablate", adapter(f"{body}        return model"), "--n", "20")


SHAPES = {
    "rows last": (f"{FORWARD}return model(*inputs).transpose(0, 1)", "return logits.transpose(0, 1)"),
    "tokens in the middle": (f"{FORWARD}return model(*inputs).transpose(1, 2)", "return logits.transpose(1, 2)"),
    "one number": (
        f"{ENCODE}return inputs, (labels[:, 0] > 5).long()\n    {FORWARD}return model(*inputs)[:, 0, 0]",
        "torch.stack([torch.zeros_like(x), x], -1)",
    ),
    "float labels": (
        f"{ENCODE}return inputs, labels.float()",
        "labels must be whole numbers, the ids of classes or tokens: labels.long()",
    ),
    "too large": (f"{ENCODE}return inputs, labels + 90", "but forward() has logits for 0 to 13 only"),
}


@pytest.mark.parametrize(("body", "advice"), SHAPES.values(), ids=SHAPES)
def test_logits_of_another_shape(fails: Fails, body: str, advice: str) -> None:
    assert advice in fails("ablate", adapter(body), "--n", "20")


# --- attention of an encoder, and labels of positions -----------------------------------------------------------------

CLASSIFIER = """
import torch
from torch import nn
from headcount import Adapter

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(40, 8), nn.Linear(8, 2)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids):
        x = self.embed(ids)
        return self.out((x + self.attn(x, x, x, need_weights=False)[0]).mean(1))

class Mine(Adapter):
    def build(self):
        torch.manual_seed(0)
        return Classifier()

    def encode(self, questions, answers):
        longest = max(map(len, questions))
        rows = [[37, *(ord(char) - 96 for char in each), 38] + [0] * (longest - len(each)) for each in questions]
        return torch.tensor(rows), torch.tensor([["no", "yes"].index(answer) for answer in answers])
"""
DATA = "    def data(self): return [('abba', 'yes'), ('cab', 'no'), ('deed', 'yes'), ('beda', 'no')]\n"


def tokens_on(capsys: pytest.CaptureFixture[str], name: str, question: str) -> list[Any]:
    assert main(["heads", name, "--on", question, "--json"]) == 0
    return [axis["tokens"] for axis in json.loads(capsys.readouterr().out)["axes"]]


def test_an_encoder_is_looked_at_without_generate(capsys: pytest.CaptureFixture[str]) -> None:
    """On a question whose right answer nobody knows; its characters are on the axes, for they go with the ids."""
    Path("mine.py").write_text(CLASSIFIER + DATA)
    assert tokens_on(capsys, "mine.py:Mine", "bad") == [["<37>", "b", "a", "d", "<38>"]]


def test_nor_needs_it_data(capsys: pytest.CaptureFixture[str], fails: Fails) -> None:
    Path("mine.py").write_text(CLASSIFIER.replace('["no", "yes"].index(answer)', "0"))
    assert tokens_on(capsys, "mine.py:Mine", "bad") == [["0", "1", "2", "3", "4"]], "too little to learn from"
    Path("mine.py").write_text(CLASSIFIER)
    assert "encode() of the adapter Mine fails: ValueError: '' is not in list" in fails(
        "heads", "mine.py:Mine", "--on", "bad"
    )


def test_a_decoder_is_fed_something(fails: Fails) -> None:
    name = adapter("task, generate = None, Adapter.generate\n    def data(self): return [('1+1', '2'), ('2+3', '5')]")
    told = fails("heads", name, "--on", "4+4")
    assert "needs an answer as input, and no answer to '4+4' is known" in told
    assert "add generate()" in told


def test_positions_of_a_stranger_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """What its author would write in tokens(), but for the start token's name."""
    named = tokens_on(capsys, adapter("pass"), "64+96")
    assert named == [["6", "4", "+", "9", "6"], ["<s>", "1", "6", "0"]]
    assert tokens_on(capsys, adapter("tokens = Adapter.tokens"), "64+96") == [named[0], ["<1>", *named[1][1:]]]
