"""What heads of strangers' models are for, by the command line; counted again in the models' own code."""

from __future__ import annotations

import importlib
import json
import math
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headcount.analysis.attention_measures import eval_inputs
from headcount.analysis.matching import Effort
from headcount.analysis.specialisation import specialise
from headcount.api import open_model
from headcount.cli import main
from headcount.models.attention import AttentionCache
from headcount.runs.run import load
from headcount.seeds import stream

pytestmark = pytest.mark.slow  # models of others, and their figures

HERE = Path(__file__).parents[1]
ADDER = f"{HERE / 'foreign_adder' / 'adder_adapter.py'}:Adder"
SORTER = f"{HERE / 'foreign_sorter' / 'sorter_adapter.py'}:Sorted"
LENGTH = 12


@pytest.fixture(autouse=True)
def _few(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Controls are made as always, but few."""
    monkeypatch.setattr("headcount.api.heads.specialise", partial(specialise, controls=(4, 1)))
    monkeypatch.setattr(Effort.__init__, "__defaults__", (19, 499, 0, 0))  # enough to call 24 heads alike at 5 %


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def mean_of(found: Any, short: str, measure: str, column: str = "all") -> tuple[float, float, int]:
    head = next(each for each in found["heads"] if each["short"] == short)
    wanted = measure, column, "all"
    m = next(m for m in head["measures"] if (m["measure"], m["column"], m["condition"]) == wanted)
    return m["mean"], m["even"], m["n"]


# --- the sorter: its weights, from what its fused projection gives ----------------------------------------------------


def sorter_weights(rows: list[list[int]]) -> list[torch.Tensor]:
    """Layer by layer, [row, head, query, key]; position 0 is its class token."""
    code = importlib.import_module("sorter_model")
    model, seen = code.load_sorter(), []

    def note(module: Any, args: Any, output: torch.Tensor) -> None:
        q, k, _ = (part.unflatten(2, (4, -1)).transpose(1, 2) for part in output.chunk(3, dim=2))
        seen.append((q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).softmax(dim=-1))

    for block in model.blocks:
        block.attn.qkv.register_forward_hook(note)
    with torch.no_grad():
        model(code.to_ids(rows))
    return seen


@pytest.fixture
def _sorter_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE / "foreign_sorter"))


@pytest.mark.usefixtures("_sorter_code")
def test_what_a_sorters_heads_attend_to(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "heads", SORTER, "--stats", "--length", str(LENGTH), "--quiet")
    rows = eval_inputs(open_model(SORTER).task_attention(), LENGTH).examples.tolist()
    assert (found["n"], len(rows), len(found["heads"])) == (1000, 1000, 8)
    weights = sorter_weights(rows)
    at, cls = range(1, LENGTH + 1), 0
    meant = {
        "left neighbour": lambda row, q, k: k == q - 1 and k > cls,
        "itself": lambda row, q, k: k == q,
        "right neighbour": lambda row, q, k: k == q + 1,
        "first token": lambda row, q, k: k == 1,
        "other tokens": lambda row, q, k: k == cls,
        "equal numbers": lambda row, q, k: k > cls and k != q and row[q - 1] == row[k - 1],
    }
    for short in ("L0H1", "L1H3"):
        layer, head = int(short[1]), int(short[3])
        for name, is_meant in meant.items():
            mass, even, n = list[float](), list[float](), set[int]()
            for i, row in enumerate(rows):
                for q in at:
                    keys = [k for k in range(LENGTH + 1) if is_meant(row, q, k)]
                    if keys:  # of 13 keys, never all
                        mass.append(float(weights[layer][i, head, q, keys].sum()))
                        even.append(len(keys) / (LENGTH + 1))
                        n.add(i)
            expected = np.mean(mass), np.mean(even), len(n)
            assert mean_of(found, short, name) == pytest.approx(expected, abs=2e-5), (short, name)
    entropy = -(weights[0][:, 1, 1:] * weights[0][:, 1, 1:].clamp(min=1e-30).log()).sum(dim=-1) / math.log(LENGTH + 1)
    head = next(each for each in found["heads"] if each["short"] == "L0H1")
    share = next(m["mean"] for m in head["measures"] if (m["measure"], m["condition"]) == ("entropy share", "all"))
    assert share == pytest.approx(float(entropy.mean()), abs=2e-5)
    assert found["calibration"]["controls"] == ["untrained", "shuffled"]


@pytest.mark.usefixtures("_sorter_code")
def test_a_sorters_averages_show_its_class_token(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "heads", SORTER, "--all-test")
    task = open_model(SORTER).task
    rows = [row.tolist() for row in task.split("test") if (row >= 0).sum() == 16]
    assert found["n"] == len(rows)
    assert found["title"].startswith("average over the sequences of 16 tokens in the test set")
    weights = sorter_weights(rows)
    for layer, site in enumerate(found["sites"]):
        assert site["keys"] == ["(0)", *map(str, range(16))]
        for i, head in enumerate(site["heads"]):
            np.testing.assert_allclose(head["weights"], weights[layer][:, i].mean(dim=0), atol=1e-5)
            spread = weights[layer][:, i].std(dim=0, correction=0)
            np.testing.assert_allclose(head["deviation"], spread, atol=1e-4)


def test_lengths_that_a_model_has_no_positions_for_are_told_in_its_own_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["heads", SORTER, "--stats", "--length", "80"]) == 2
    assert "the sorter has positions for 64" in capsys.readouterr().err


# --- the adder: sum by sum, so that nothing is padded -----------------------------------------------------------------


def adder_weights(question: str, answer: str) -> dict[str, torch.Tensor]:
    """By site, [head, query, key]."""
    code = importlib.import_module("adder_model")
    model, found = _adder(code), dict[str, torch.Tensor]()
    sites = {f"E{i}": layer.self_attn for i, layer in enumerate(model.encoder_layers)}
    sites |= {f"D{i}": layer.self_attn for i, layer in enumerate(model.decoder_layers)}
    sites |= {f"X{i}": layer.cross_attn for i, layer in enumerate(model.decoder_layers)}
    hooks = []
    for name, attention in sites.items():

        def note(module: Any, args: Any, output: Any, name: str = name) -> None:
            x, context, blocked = args
            q, k = module.split(module.W_q(x)), module.split(module.W_k(context))
            score = (q @ k.transpose(-2, -1) / math.sqrt(module.d_k)).masked_fill(blocked, -torch.inf)
            found[name] = score.softmax(dim=-1)[0]

        hooks.append(attention.register_forward_hook(note))
    with torch.no_grad():
        model(code.to_ids([question]), code.to_ids([answer], sos=True))
    for hook in hooks:
        hook.remove()
    return found


def _adder(code: Any, known: list[Any] = []) -> Any:  # noqa: B006, loaded once
    if not known:
        known.append(code.load_adder())
    return known[0]


def adder_count(sums: list[tuple[str, str]]) -> dict[tuple[str, str, str], list[tuple[float, float]]]:
    """By head, measure and column of the query: the mass on what is meant and what even attention gives."""
    found = defaultdict[tuple[str, str, str], list[tuple[float, float]]](list)
    place = {0: (1, "a"), 1: (0, "a"), 2: (None, ""), 3: (1, "b"), 4: (0, "b")}  # of 37+81: column and operand
    names = {0: "1s", 1: "10s", 2: "100s"}
    for question, answer in sums:
        for site, weights in adder_weights(question, answer).items():
            n_queries = 5 if site[0] == "E" else len(answer)  # after the last digit its end is predicted
            for q in range(n_queries):
                column, operand = place[q] if site[0] == "E" else (len(answer) - 1 - q, None)
                n_seen = q + 1 if site[0] == "D" else 5
                if site[0] == "D":
                    meant = {"previous output": [q] if q else [], "first token": [0]}
                else:
                    others = {k: at for k, at in place.items() if at[0] is not None}
                    meant = {
                        "operator": [2],
                        "first token": [0],
                        "aligned column": [k for k, (c, o) in others.items() if c == column and o != operand],
                        "carry column": [k for k, (c, _) in others.items() if column is not None and c == column - 1],
                    }
                for name, keys in meant.items():
                    if 0 < len(keys) < n_seen:
                        for head in range(4):
                            value = float(weights[head, q, keys].sum()), len(keys) / n_seen
                            found[f"{site}H{head}", name, "all"].append(value)
                            if column is not None:
                                found[f"{site}H{head}", name, names[column]].append(value)
    return found


def test_what_an_adders_heads_attend_to(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE / "foreign_adder"))
    found = run_json(capsys, "heads", ADDER, "--stats", "--quiet")
    assert (found["n"], len(found["heads"])) == (500, 24)
    task = open_model(ADDER).task
    sums = [(f"{a}+{b}", str(a + b)) for a, b in task.split("test").tolist()]
    assert {len(answer) for _, answer in sums} == {2, 3}, "short sums and long ones"
    counted = adder_count(sums)
    assert len(counted) > 200
    for (short, name, column), values in counted.items():
        mean, even, _ = mean_of(found, short, name, column)
        assert (mean, even) == pytest.approx(np.mean(values, axis=0), abs=2e-5), (short, name, column)
    head = next(each for each in found["heads"] if each["short"] == "X1H2")
    assert head["label"].startswith("mostly aligned column")
    assert {shift["column"] for shift in head["shifts"]} >= {"all", "10s"}


def test_an_adders_averages_are_over_sums_of_one_length(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE / "foreign_adder"))
    found = run_json(capsys, "heads", ADDER, "--all-test")
    task = open_model(ADDER).task
    sums = [(f"{a}+{b}", str(a + b)) for a, b in task.split("test").tolist() if a + b > 99]
    assert found["n"] == len(sums) < 500
    assert "as long as" in found["title"]
    weights = [adder_weights(*each) for each in sums]
    for site in found["sites"]:
        short = {"encoder.self": "E", "decoder.self": "D", "decoder.cross": "X"}[f"{site['stack']}.{site['kind']}"]
        expected = torch.stack([each[f"{short}{site['layer']}"] for each in weights]).mean(dim=0)
        np.testing.assert_allclose([head["weights"] for head in site["heads"]], expected, atol=1e-5)
    cross = found["sites"][-1]
    assert cross["queries"] == ["→ 100s", "→ 10s", "→ 1s", "→"]
    assert cross["keys"] == ["a 10s", "a 1s", "+", "b 10s", "b 1s"]
    assert found["sites"][2]["keys"] == ["<s>", "100s", "10s", "1s"]


# --- matching ---------------------------------------------------------------------------------------------------------


PERMUTED = f"""
import sys, torch
sys.path.insert(0, {str(HERE / "foreign_adder")!r})
from adder_adapter import Adder
from adder_ablation import attentions

class Permuted(Adder):
    checkpoint = {str(HERE / "foreign_adder" / "adder.pth")!r}

    def load(self, model):
        super().load(model)
        order = torch.tensor([2, 0, 3, 1])
        for *_, attention in attentions(model):
            for name in ("W_q", "W_k", "W_v"):
                layer = getattr(attention, name)
                for each in (layer.weight, layer.bias):
                    each.data = each.data.unflatten(0, (4, -1))[order].flatten(0, 1)
            attention.W_o.weight.data = attention.W_o.weight.data.unflatten(1, (4, -1))[:, order].flatten(1, 2)
"""


def test_heads_of_two_adapters_are_paired_by_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    Path("permuted.py").write_text(PERMUTED)
    found = run_json(capsys, "heads", "permuted.py:Permuted", "--stats", "--match", ADDER, "--quiet")["matches"][0]
    order = [2, 0, 3, 1]
    for kind in found["kinds"]:
        for pair in kind["pairs"]:
            site, _, index = pair["head"].rpartition(".")
            assert pair["partner"] == f"{site}.{order[int(index)]}"
            assert pair["attention"]["value"] == pytest.approx(1, abs=1e-4)
            assert (pair["verdict"], pair["outputs"], pair["transplant"]) == ("attend alike", None, None)
    assert "transplants of head outputs" in found["left_out"]
    assert found["overall"]["alike"] == 24
    assert found["data"].startswith("128 of ")


@pytest.mark.usefixtures("_sorter_code")
def test_a_run_and_a_strangers_model_of_one_task_are_matched(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "heads", SORTER, "--stats", "--match", "sample:sortedness", "--quiet")["matches"][0]
    run = load("sample:sortedness")
    (kind,) = found["kinds"]
    assert (found["other"], len(kind["heads"]), len(kind["others"])) == ("sample:sortedness", 8, 4)
    assert {pair["verdict"] for pair in kind["pairs"]} <= {"attend alike", "not alike", "no partner"}
    # The same overlaps in plain tensors: the run's 16 keys are the sorter's behind its class token.
    seen = eval_inputs(open_model(SORTER).task_attention()).examples
    rows = np.sort(stream(0, "matching").permutation(len(seen))[:128])
    kept = AttentionCache()
    with torch.no_grad():
        run.model(*map(torch.from_numpy, run.inputs(seen[rows])), weights=kept)
    ours, theirs = sorter_weights(seen[rows].tolist())[0][:, 1, 1:, 1:], kept[run.sites[0]][:, 1]
    shared = float(torch.minimum(ours, theirs).sum(dim=-1).mean())
    assert kind["overlaps"][1][1] == pytest.approx(shared, abs=1e-5)


def test_models_of_other_sums_are_not_matched(capsys: pytest.CaptureFixture[str]) -> None:
    for one, other, what in (
        (ADDER, "sample:addition", "cannot read the examples"),
        ("sample:addition", ADDER, "cannot read the examples"),
        (ADDER, SORTER, "their heads cannot be matched"),
    ):
        assert main(["heads", one, "--stats", "--match", other, "--quiet"]) == 2
        assert what in capsys.readouterr().err


# --- positions --------------------------------------------------------------------------------------------------------


def test_a_table_of_positions_is_found_by_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "positions", SORTER)
    weights = torch.load(HERE / "foreign_sorter" / "sorter.pth", weights_only=True)
    table = weights["places.weight"].numpy()
    assert (found["encoding"]["name"], found["n_trained"], found["n_positions"]) == ("places.weight", 17, 34)
    np.testing.assert_allclose(found["encoding"]["table"], table[:34], rtol=1e-5)
    assert [row["state"] for row in found["rows"]] == ["trained"] * 17 + ["never trained"] * 17
    np.testing.assert_allclose([row["norm"] for row in found["rows"]], np.linalg.norm(table[:34], axis=1), rtol=1e-5)
    assert main(["positions", SORTER, "--n", "66"]) == 2
    assert "3 to 65" in capsys.readouterr().err


def test_sinusoids_in_a_buffer_are_found_and_turn_alike_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "positions", ADDER)
    assert (found["encoding"]["name"], found["n_trained"], found["rows"]) == ("pos_table", 5, [])
    assert found["encoding"]["shift"]["rotation_error"] < 1e-5
    assert main(["positions", ADDER]) == 0
    assert "pos_table" in capsys.readouterr().out


WITHOUT = f"""
import sys
sys.path.insert(0, {str(HERE / "foreign_sorter")!r})
from sorter_adapter import Sorted
from sorter_model import Sorter

class Unplaced(Sorter):
    def forward(self, ids):
        places, self.places = self.places, lambda at: 0.0 * places.weight[: len(at)]
        try:
            return super().forward(ids)
        finally:
            self.places = places

class Nowhere(Sorted):
    checkpoint = {str(HERE / "foreign_sorter" / "sorter.pth")!r}
    def build(self):
        return Unplaced()

class Told(Nowhere):
    def positions(self, model):
        return model.places.weight
"""


def test_a_model_without_a_table_is_told_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    code = WITHOUT.replace("places, self.places = self.places,", "places, self._modules['places'] = self.places,")
    Path("mine.py").write_text(code.replace("self.places = places", "self._modules['places'] = places"))
    assert main(["positions", "mine.py:Nowhere"]) == 2
    assert "write positions(self, model)" in capsys.readouterr().err
    found = run_json(capsys, "positions", "mine.py:Told", "--n", "20")
    assert (found["encoding"]["name"], found["n_trained"], len(found["encoding"]["table"])) == ("positions()", 17, 20)


# --- what is missing is named -----------------------------------------------------------------------------------------


LOADED = f"""
import sys
sys.path.insert(0, {str(HERE / "foreign_sorter")!r})
from sorter_adapter import Sorted
from sorter_model import load_sorter

class Loaded(Sorted):
    checkpoint = None
    def build(self):
        return load_sorter()

class Taskless(Loaded):
    task = None
"""


def test_a_model_that_is_built_with_its_weights_has_no_untrained_controls(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("mine.py").write_text(LOADED)
    found = run_json(capsys, "heads", "mine.py:Loaded", "--stats", "--quiet")
    assert found["calibration"]["controls"] == ["shuffled"]
    assert main(["heads", "mine.py:Loaded", "--stats", "--quiet"]) == 0
    assert "let load() put in the trained ones" in " ".join(capsys.readouterr().out.split())
    assert main(["heads", "mine.py:Loaded", "--stats", "--match", SORTER]) == 2
    assert "needs untrained models" in capsys.readouterr().err


def test_an_adapter_without_a_task_is_told_to_name_one(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(LOADED)
    for verb in ("--stats", "--all-test"):
        assert main(["heads", "mine.py:Taskless", verb]) == 2
        assert 'task = "addition"' in capsys.readouterr().err
    assert main(["heads", SORTER, "--stats", "--norm-weighted"]) == 2
    assert "--norm-weighted needs a model that headcount trained" in capsys.readouterr().err
