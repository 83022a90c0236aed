"""dL/dg, compared with finite differences, and its rank agreement with ablation."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tensor_experiments import tensor_experiment
from torch import Tensor
from torch.nn import functional as F

from headcount.analysis.gradient_importance import Importance, agreements, importances
from headcount.data.dataset import EvalBatch
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.heads import HeadId
from headcount.hooks.gates import Gates
from headcount.hooks.sites import Sites
from headcount.models.config import ClassifierConfig
from headcount.models.transformer import Classifier
from headcount.runs.run import Run

N = 7
NUMBERS = torch.randint(20, (N, 5), generator=torch.Generator().manual_seed(3))
LABELS = torch.arange(N) % 2


@cache
def model() -> Classifier:
    torch.manual_seed(0)
    shape = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_layers": 2, "encoding": "alibi", "dropout": 0.5}
    made = Classifier(ClassifierConfig(**shape), 21, 2, pad_id=20)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.eval().double()


def right(logits: Tensor, rows: NDArray[np.int64]) -> Tensor:
    return -F.cross_entropy(logits, LABELS[torch.from_numpy(rows)], reduction="none")


def experiment(of: Classifier | None = None, at_once: int = 3) -> Experiment:
    of = of or model()
    return tensor_experiment(of, Sites.of(of), [NUMBERS], right, at_once=at_once)


@torch.no_grad()
def loss_at(gate: float, head: Any) -> NDArray[np.float64]:
    """Return the loss of each example with this head's gate slightly off 1, by scaling its weight columns."""
    copy = deepcopy(model())
    copy.projections[head.site].weight[:, head.index * 4 : head.index * 4 + 4] *= gate
    return -right(copy(NUMBERS), np.arange(N)).numpy()


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    step = 1e-5
    by_head = {each.head: each for each in importances(experiment())}
    assert set(by_head) == {str(head) for head in model().heads}
    for head in model().heads:
        slope = np.abs(loss_at(1 + step, head) - loss_at(1 - step, head)) / (2 * step)
        assert by_head[str(head)].importance == pytest.approx(slope.mean(), rel=1e-5)
        assert by_head[str(head)].se == pytest.approx(slope.std(ddof=1) / np.sqrt(N), rel=1e-5)
        assert slope.mean() > 1e-4


@pytest.mark.parametrize("at_once", [1, 2, 7])
def test_batches_change_nothing(at_once: int) -> None:
    rows = importances(experiment(at_once=at_once))
    assert len(rows) == len(model().heads)
    for one, other in zip(rows, importances(experiment()), strict=True):
        assert one.head == other.head
        assert one.importance == pytest.approx(other.importance, rel=1e-9)
        assert one.se == pytest.approx(other.se, rel=1e-9)


def test_a_head_that_nothing_reads_has_no_importance() -> None:
    unread = deepcopy(model())
    head = unread.heads[1]
    with torch.no_grad():
        unread.projections[head.site].weight[:, 4:8] = 0.0
    by_head = {each.head: each for each in importances(experiment(unread))}
    assert (by_head[str(head)].importance, by_head[str(head)].se) == (0.0, 0.0)
    assert all(each.importance > 0 for each in by_head.values() if each.head != str(head))


def test_nothing_is_left_behind() -> None:
    training = deepcopy(model()).train()
    with torch.no_grad():
        first, again = importances(experiment(training)), importances(experiment(training))
    assert first == again == importances(experiment()), "dropout is off, and gradients are on, whoever asks"
    assert training.training
    assert all(parameter.grad is None for parameter in training.parameters())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in training.modules())


def test_a_score_without_a_slope_has_no_importance() -> None:
    def hits(logits: Tensor, rows: NDArray[np.int64]) -> Tensor:
        return (logits.argmax(dim=-1) == LABELS[torch.from_numpy(rows)]).double()

    assert importances(tensor_experiment(model(), Sites.of(model()), [NUMBERS], hits)) == ()
    without = experiment()
    batches: tuple[EvalBatch, ...] = tuple(replace(batch, loss=None) for batch in without.batches)
    assert importances(replace(without, batches=batches)) == ()


def test_a_runs_importance_is_of_its_loss_whatever_is_scored(tiny_run: Run, tiny_sorter: Run) -> None:
    for run in (tiny_run, tiny_sorter):
        examples = run.task.split("test")
        plain, loss = (importances(task_experiment(run, examples, "", metric)) for metric in (None, "loss"))
        assert plain == loss
        assert {each.head for each in plain} == {str(head) for head in run.model.heads}
        assert all(each.importance > 0 for each in plain)


def test_gradients_by_example_are_those_of_one_gate_for_each() -> None:
    """The sum of gradients over examples is the gradient of one gate that all examples share."""
    sites = Sites.of(model())
    shared = {site: torch.ones(1, 2, dtype=torch.float64, requires_grad=True) for site in sites}
    with Gates(sites, shared):
        loss = -right(model()(NUMBERS[:1]), np.arange(1)).sum()
    shared_gradients = torch.autograd.grad(loss, list(shared.values()))
    one = tensor_experiment(model(), sites, [NUMBERS[:1]], right)
    expected = torch.cat([each[0].abs() for each in shared_gradients])
    assert [each.importance for each in importances(one)] == pytest.approx(expected.tolist(), rel=1e-6)
    assert all(each.se is None for each in importances(one)), "one example says nothing of the spread"


# --- agreement ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drop:
    head: str
    replacement: str
    drop: float


def test_agreement_is_spearmans_replacement_by_replacement() -> None:
    names = ["L0H0", "L0H1", "L1H0", "L1H1", "L2H0"]
    sizes = [0.1, 0.5, 0.3, 0.2, 0.9]
    drops = {"zero": [0.0, 0.4, 0.4, 0.1, 0.2], "mean": [5.0, 1.0, 3.0, 4.0, 0.0]}
    divided = [0.9, 0.1, 0.2, 0.4, 0.3]
    gradients = [Importance(name, size, 0.0, own) for name, size, own in zip(names, sizes, divided, strict=True)]
    effects = [Drop(name, kind, drop) for kind in drops for name, drop in zip(names, drops[kind], strict=True)][::-1]
    rows = agreements(gradients, effects, ["zero", "mean"])
    assert [(each.replacement, each.normalised) for each in rows] == [
        ("zero", False),
        ("zero", True),
        ("mean", False),
        ("mean", True),
    ]
    for each in rows:
        assert each.found is not None
        assert each.found.rho == pytest.approx(
            spearmanr(divided if each.normalised else sizes, drops[each.replacement])[0]
        )
        assert each.found.tied == (2 if each.replacement == "zero" else 0)
        assert each.n_heads == 5
    mean = rows[2].found
    assert mean is not None
    assert mean.rho == pytest.approx(-1.0)
    assert mean.p == pytest.approx(2 / 120, abs=0.006)


def test_normalised_importances_have_norm_one_at_each_site(tiny_sorter: Any) -> None:
    experiment = task_experiment(tiny_sorter, tiny_sorter.task.split("test"), "")
    head_slots: dict[Any, list[float]] = {}
    for each in importances(experiment):
        head_slots.setdefault(HeadId.parse(each.head).site, []).append(each.normalised)
    assert [sum(size**2 for size in sizes) for sizes in head_slots.values()] == pytest.approx([1.0] * len(head_slots))


def test_heads_that_all_drop_alike_agree_with_nothing() -> None:
    gradients = [Importance(f"L0H{i}", float(i), 0.0, float(i)) for i in range(4)]
    effects = [Drop(f"L0H{i}", "zero", 0.25) for i in range(4)]
    assert [each.found for each in agreements(gradients, effects, ["zero"])] == [None, None]
    assert agreements([], effects, ["zero"]) == ()
