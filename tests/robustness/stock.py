"""Tiny models of every kind that headcount opens, and files around them, in one folder."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import dataset_models as texts
import hub_models as hub
from crashing import Crash, CrashAt

from headcount import prune_heads
from headcount.runs.run import Run
from headcount.runs.train import train_run

MODEL = '''
"""A model of somebody's own: one attention layer over digits."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.n_heads = 2
        self.embed = nn.Embedding(10, 8)
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.answer = nn.Linear(8, 2)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = ((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.answer((x + 3 * self.out(mixed)).mean(1))
'''
ADAPTER = """
import itertools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from own_model import Net

from headcount import Adapter, Sites


class Model(Adapter):
    def build(self):
        return Net()

    def sites(self, model):
        return Sites.of(model, "out", n_heads=2)

    def encode(self, questions, answers):
        return torch.tensor([[int(c) for c in text] for text in questions]), torch.tensor([int(a) for a in answers])

    def data(self):
        asked = ["".join(each) for each in itertools.product("0259", repeat=3)]
        said = Net()(torch.tensor([[int(c) for c in text] for text in asked])).argmax(-1)
        return [(text, str(int(answer))) for text, answer in zip(asked, said)]
"""


def fill(folder: Path, run: Run, sorter: Run) -> Path:
    """One of everything, to be copied by tests that damage it."""
    folder.mkdir()
    shutil.copytree(run.folder.path, folder / "run")
    shutil.copytree(sorter.folder.path, folder / "sorter")
    with contextlib.suppress(Crash):
        train_run(run.config, folder / "unfinished", listeners=[CrashAt(8)])
    for name in ("run", "sorter", "unfinished"):
        for rest in (".lock", "tensorboard", "figures", "results"):
            there = folder / name / rest
            shutil.rmtree(there, ignore_errors=True) if there.is_dir() else there.unlink(missing_ok=True)
    (folder / "own_model.py").write_text(MODEL)
    (folder / "my_adapter.py").write_text(ADAPTER)
    (folder / "text.txt").write_text("\n".join(texts.TEXTS) + "\n")
    _fill_hugging_face(folder)
    return folder


def _fill_hugging_face(folder: Path) -> None:
    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
    bert = texts.classifier(**small).float()
    bert.save_pretrained(folder / "bert")
    texts.tokenizer().save_pretrained(folder / "bert")
    (folder / "data.tsv").write_text(texts.own_labels(bert, [f"{a} and {b}" for a in texts.TEXTS for b in texts.TEXTS]))
    settings, kind, shape = hub.FAMILIES["gpt2"]
    kind(settings(**shape | {"n_layer": 1, "n_head": 2})).float().save_pretrained(folder / "gpt2")
    texts.tokenizer("$A").save_pretrained(folder / "gpt2")
    data = folder / "data.tsv"
    with contextlib.chdir(folder):
        prune_heads("bert", "cut", data=data, heads=["L0H1"], n=8, quiet=True)
        prune_heads("my_adapter.py:Model", "adapted", heads=["L0H1"], n=8, quiet=True)
        shutil.rmtree("runs", ignore_errors=True)
