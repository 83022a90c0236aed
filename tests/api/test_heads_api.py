"""`ablate_heads` and `prune_heads` from Python: runs, models of one's own, metrics of one's own."""

from __future__ import annotations

import json
import math
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headcount.analysis.ablation import Ablation
from headcount.analysis.pruning import Pruning
from headcount.api import ablate_heads, prune_heads
from headcount.data.from_task import held_out
from headcount.errors import InputError, RunError
from headcount.heads import HeadSite
from headcount.hooks.sites import Site, Sites
from headcount.runs.run import Run, load
from headcount.tasks.base import SequenceTask
from headcount.training.answers import answer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_work")]  # together they take over 5 s

N = 10


class Foreign(nn.Module):
    """One layer of attention by PyTorch's own hand, and a sum over what it found."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.qkv, self.out = nn.Embedding(7, 6), nn.Linear(6, 18), nn.Linear(6, 6)
        self.drop = nn.Dropout(0.5)

    def forward(self, tokens: Tensor, weights: Tensor) -> Tensor:
        x = self.tokens(tokens)
        q, k, v = (part.unflatten(-1, (3, 2)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        z = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(start_dim=2)
        return ((x + self.drop(self.out(z))) * weights[:, :, None]).sum(dim=1)


SITE = HeadSite("layer", 0)
TOKENS = torch.randint(7, (N, 4), generator=torch.Generator().manual_seed(1))
WEIGHTS = torch.rand(N, 4, generator=torch.Generator().manual_seed(2))
TARGET = torch.arange(N) % 6


@pytest.fixture
def foreign() -> Foreign:
    return Foreign()


def sites_of(model: Foreign) -> Sites:
    return Sites({SITE: Site(model.out, tuple(map(SITE.head, range(3))))})


def height(output: Tensor, rows: Any) -> Tensor:
    """Of the right entry: rows are the examples' numbers."""
    return output[torch.arange(len(output)), TARGET[rows]]


# --- models of one's own --------------------------------------------------------------------------------------------


def test_any_module_with_its_sites(foreign: Foreign) -> None:
    foreign.train()
    shown = ablate_heads(foreign, [TOKENS, WEIGHTS], height, sites=sites_of(foreign), batch_size=16, quiet=True)
    assert foreign.training, "it is left as it was"
    assert (shown.data, shown.figures, shown.others) == ((), (), ())
    result = shown.result
    assert (result.metric, result.is_accuracy) == ("height", False)
    assert result.replacements == ("zero", "resample", "mean")
    assert [(effect.head, effect.replacement) for effect in result.heads] == [
        (f"layer.0.self.{i}", replacement) for replacement in result.replacements for i in range(3)
    ]
    (condition,) = result.conditions
    assert (condition.n, condition.data, condition.decoded) == (N, "given examples", 0)
    foreign.eval()
    with torch.no_grad():
        clean = height(foreign(TOKENS, WEIGHTS), np.arange(N))
        for effect in (each for each in result.heads if each.replacement == "zero"):
            copy = deepcopy(foreign)
            index = int(effect.head[-1])
            copy.out.weight[:, 2 * index : 2 * index + 2] = 0.0
            drop = float((clean - height(copy(TOKENS, WEIGHTS), np.arange(N))).mean())
            assert effect.drop == pytest.approx(drop, abs=1e-5)
            assert abs(effect.drop) > 1e-4
            assert effect.low <= effect.drop <= effect.high
            assert effect.band is None
    assert len(condition.importances) == 3
    assert Ablation.from_json(result.to_json()) == result


def test_one_tensor_is_enough(foreign: Foreign) -> None:
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 6), nn.Flatten(), nn.Linear(24, 2))
    sites = Sites({SITE: Site(model[1], tuple(map(SITE.head, range(2))))})
    shown = ablate_heads(
        model, TOKENS, lambda output, rows: output[:, 0], sites=sites, replacements=("zero",), quiet=True
    )
    assert [effect.short for effect in shown.result.heads] == ["L0H0", "L0H1"]


def test_our_own_models_say_where_their_heads_are(tiny_sorter: Run) -> None:
    numbers = torch.from_numpy(tiny_sorter.task.split("test")[:, :3].copy())
    shown = ablate_heads(
        tiny_sorter.model, numbers, lambda logits, rows: logits[:, 1], replacements=("mean",), quiet=True
    )
    assert [effect.short for effect in shown.result.heads] == ["L0H0", "L0H1"]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32], ids=str)
def test_a_metric_may_say_right_or_wrong(foreign: Foreign, dtype: torch.dtype) -> None:
    def right(output: Tensor, rows: Any) -> Tensor:
        return (output.argmax(dim=-1) == TARGET[rows]).to(dtype)

    shown = ablate_heads(foreign, [TOKENS, WEIGHTS], right, sites=sites_of(foreign), replacements=("zero",), quiet=True)
    foreign.eval()
    clean = (foreign(TOKENS, WEIGHTS).argmax(dim=1) == TARGET).double().mean()
    assert shown.result.conditions[0].clean == pytest.approx(float(clean))
    assert shown.result.conditions[0].importances == (), "no gradient can be taken of that"


@pytest.mark.parametrize(
    ("data", "metric", "explanation"),
    [
        ([TOKENS, WEIGHTS], None, "needs a metric"),
        ([TOKENS, WEIGHTS], "loss", "needs a metric"),
        ("test", height, "needs its input tensors"),
        (TOKENS.numpy(), height, "needs its input tensors"),
        ([TOKENS, WEIGHTS.numpy()], height, "needs its input tensors"),
        ([], height, "needs its input tensors"),
        (None, height, "needs its input tensors"),
        ([TOKENS, WEIGHTS[:3]], height, "first axis counts the same examples"),
        ([TOKENS, WEIGHTS], lambda output, rows: output, "one score for each example"),
        (
            [TOKENS, WEIGHTS],
            lambda output, rows: torch.full((len(rows),), math.nan),
            "the metric returned nan for example 0",
        ),
    ],
)
def test_what_a_module_needs_is_told(foreign: Foreign, data: Any, metric: Any, explanation: str) -> None:
    with pytest.raises(InputError, match=explanation):
        ablate_heads(foreign, data, metric, sites=sites_of(foreign), quiet=True)


def test_a_module_that_cannot_say_where_its_heads_are(foreign: Foreign) -> None:
    with pytest.raises(InputError, match=r"Foreign is of no family[\s\S]*say where its heads are"):
        ablate_heads(foreign, [TOKENS, WEIGHTS], height, quiet=True)


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_run_with_a_metric_of_ones_own(tiny_run: Run) -> None:
    test = tiny_run.task.split("test")
    seen = []

    def first_digit(logits: Tensor, rows: Any) -> Tensor:
        seen.append(sorted(rows.tolist()))
        return logits[:, 0, 0] + torch.from_numpy(test[rows].sum(axis=1))

    shown = ablate_heads(tiny_run, metric=first_digit, replacements=("zero",), save=True, quiet=True)
    assert {tuple(rows) for rows in seen} == {tuple(range(10))}
    assert (shown.result.metric, shown.result.unit, shown.result.is_accuracy) == ("first_digit", "", False)
    batch = cast(SequenceTask, tiny_run.task).encode(test)
    with torch.no_grad():
        logits = tiny_run.model(torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input))
    assert shown.result.conditions[0].clean == pytest.approx(float(logits[:, 0, 0].mean()) + test.sum(axis=1).mean())
    (data,) = shown.data
    assert Ablation.from_json(data.read_text()) == shown.result


@pytest.mark.slow
def test_given_examples(good_run: Run) -> None:
    sums = [(a, b) for a in range(5) for b in range(5)]
    shown = ablate_heads(good_run, sums, replacements=("zero",), quiet=True)
    (condition,) = shown.result.conditions
    right = answer(good_run.model, good_run.task, np.array(sums)).free_hits.all(axis=1)
    assert (condition.n, condition.data, condition.clean) == (25, "given examples", right.mean())
    assert condition.decoded == 8 * 10
    assert ablate_heads(good_run, np.array(sums), replacements=("zero",), quiet=True).result == shown.result


@pytest.mark.parametrize("examples", [np.empty((0, 2), dtype=int), [1, 2, 3], [[1.5, 2.0], [3.0, 4.0]]], ids=str)
def test_examples_that_are_none_are_told(tiny_run: Run, examples: Any) -> None:
    with pytest.raises(InputError):
        ablate_heads(tiny_run, examples, quiet=True)


@pytest.mark.parametrize("size", [1, 6, 8])
def test_no_batch_is_too_small(tiny_sorter: Run, size: int) -> None:
    small = ablate_heads(tiny_sorter, batch_size=size, quiet=True)
    assert len(small.result.heads) == 6


def test_no_replacements_are_told(tiny_run: Run) -> None:
    with pytest.raises(InputError, match="choose at least one of zero, resample, mean"):
        ablate_heads(tiny_run, replacements=(), quiet=True)


def test_the_loss_of_a_run_by_its_name(tiny_sorter: Run) -> None:
    by_name = ablate_heads(str(tiny_sorter.folder.path), metric="loss", replacements=("zero",), quiet=True)
    by_run = ablate_heads(tiny_sorter, metric="loss", replacements=("zero",), quiet=True)
    assert by_name.result.heads == by_run.result.heads
    assert by_run.result.weights_sha256 == tiny_sorter.weights_sha256


# --- pruning --------------------------------------------------------------------------------------------------------


def test_a_pruned_run_scores_what_was_promised(good_run: Run, tmp_path: Path) -> None:
    shown = prune_heads(good_run, tmp_path / "cut", loss=0.1, n=40, n_orders=1, quiet=True)
    assert shown.result is not None
    assert shown.cost is not None
    cut = load(tmp_path / "cut")
    kept = [str(head) for head in good_run.model.heads if str(head) not in shown.result.chosen]
    assert [str(head) for head in cut.model.heads] == kept
    assert 0 < len(kept) < 10
    for n, promised in ((40, (shown.result.clean, shown.result.kept.score)), (None, shown.cost.score)):
        examples, what = held_out(cut.task, "test", n)
        right = [answer(run.model, run.task, examples).free_hits.all(axis=1) for run in (good_run, cut)]
        assert promised == pytest.approx([each.mean() for each in right])
        assert what in (shown.result.measured_on, shown.cost.data)
    assert cut.folder.read_manifest()["pruned_from"] == good_run.weights_sha256


def test_what_is_harmless_alone_is_asked_of_the_stored_ablation(
    tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ablate` and `prune` answered the same question on other examples: 16 heads and 15."""
    run = load(shutil.copytree(tiny_run.folder.path, tmp_path / "run"))
    asked = list[Ablation | None]()
    monkeypatch.setattr("headcount.api.pruning.CRITICAL", -1.0)  # hardly trained, it is hardly better than guessing
    monkeypatch.setattr("headcount.api.pruning.prune_curves", lambda *_, ablation, **__: asked.append(ablation))
    for how in ({}, {"n": 10}):
        with pytest.raises(TypeError):  # there is no result to go on with
            prune_heads(run, quiet=True, **how)
    stored = ablate_heads(run, save=True, quiet=True).result
    for how in ({}, {"n": 10}):
        with pytest.raises(TypeError):
            prune_heads(run, quiet=True, **how)
    assert asked == [None, None, stored, None]


def test_without_a_folder_nothing_is_cut(in_tmp: Path) -> None:
    shown = prune_heads("sample:sortedness", length=5, n=12, n_orders=2, save=True, quiet=True)
    assert (shown.model, shown.cost) == (None, None)
    assert shown.result is not None
    assert shown.result.measured_on == "new sequences of length 5, half of them sorted"
    assert (shown.result.n, shown.result.n_orders) == (12, 2)
    (data,) = shown.data
    assert Pruning.from_json(data.read_text()) == shown.result
    assert [path.name for path in in_tmp.iterdir()] == ["runs"]


def test_a_model_that_has_nothing_to_lose_is_not_searched(tiny_sorter: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.api.pruning.prune_curves", lambda *a, **k: pytest.fail("it was searched"))
    with pytest.raises(InputError, match="is hardly better than guessing"):
        prune_heads(tiny_sorter, n=10, n_orders=1, quiet=True)


def test_given_heads_are_cut_without_a_search(tiny_run: Run, tmp_path: Path) -> None:
    head = tiny_run.model.heads[0]
    shown = prune_heads(tiny_run, tmp_path / "cut", heads=[head, "X1H1"], fine_tune=4, quiet=True)
    assert (shown.result, shown.data, shown.figures) == (None, (), ())
    assert shown.cost is not None
    assert (shown.cost.heads, shown.cost.fine_tuned) == ((str(head), "decoder.1.cross.1"), 4)
    assert json.loads((tmp_path / "cut" / "manifest.json").read_text())["fine_tuned"] == 4


@pytest.mark.parametrize(
    "asked",
    [
        {"heads": []},
        {"heads": ["E9H9"], "out": None},
        {"heads": ["E0H0"], "out": None},
        {"fine_tune": 3, "out": None},
        {"fine_tune": -3},
        {"loss": 1.0},
        {"loss": -0.1},
        {"loss": float("nan")},
        {"n_orders": 0},
        {"n": 1},
        {"length": 4},
    ],
    ids=str,
)
def test_what_cannot_be_is_told_before_the_search(
    good_run: Run, tmp_path: Path, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headcount.api.pruning.prune_curves", lambda *a, **k: pytest.fail("it was searched"))
    with pytest.raises(InputError):
        prune_heads(good_run, **{"out": tmp_path / "cut", "n": 40, "quiet": True} | asked)
    assert not any(tmp_path.iterdir())


def test_a_folder_in_use_is_told_before_the_search(tiny_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.api.pruning.prune_curves", lambda *a, **k: pytest.fail("it was searched"))
    with pytest.raises(RunError, match="already holds a finished run"):
        prune_heads(tiny_run, tiny_run.folder.path, quiet=True)
