"""Cutting heads out with their means folded into biases equals replacing them by their means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import foreign_styles as styles
import hub_models as hub
import numpy as np
import pytest
import torch
from cuts import FAMILIES, apart, planned, says
from dataset_models import TEXTS, own_labels, table
from dataset_models import classifier as sorter
from dataset_models import model as external
from tensor_experiments import tensor_experiment
from torch import Tensor, nn
from traced_cuts import Styled, adapted, named

from headcount import ExternalModel, Sites, load_external, prune_heads
from headcount.errors import CheckFailed, InputError
from headcount.experiments.experiment import Experiment, experiment_on
from headcount.experiments.models import means_over
from headcount.external.hugging_face import load_model, save_model
from headcount.hooks.gates import Capture, Gates, closed_gates
from headcount.hooks.wrapping import BIASED, FOLDED, wrap
from headcount.surgery import cut_proof
from headcount.surgery.cut_proof import prove_cut, prove_folded
from headcount.surgery.cutting import Means, cut_heads, fold, fold_in_place, mean_outputs

pytestmark = pytest.mark.slow  # models of others, or many processes

FOLDABLE = [name for name in FAMILIES if "albert" not in name or name == "distilbert"]
PLANS = ("several", "a layer")


def experiment_of(model: nn.Module, inputs: tuple[Tensor, ...]) -> Experiment:
    wrapped = wrap(model)
    return tensor_experiment(
        wrapped, wrapped.head_sites, inputs, lambda output, rows: output.flatten(1).sum(1), at_once=2
    )


def means_and_n(experiment: Experiment) -> tuple[Means, int]:
    """Return the means for folding, and the number of examples."""
    batches = means_over(experiment)
    means = mean_outputs(experiment.model, experiment.sites, [(each.inputs, each.token_mask) for each in batches])
    return means, sum(len(each.rows) for each in batches)


@torch.no_grad()
def at_means(model: nn.Module, heads: Any, means: Any, inputs: tuple[Tensor, ...]) -> Tensor:
    wrapped = wrap(model)
    sites = wrapped.head_sites
    with Gates(sites, closed_gates(sites, heads), {site: means[site][None, None] for site in sites.head_slots(heads)}):
        return wrapped(*inputs)


@pytest.mark.parametrize("name", FOLDABLE)
def test_cut_and_folded_is_held_at_the_means(name: str, tmp_path: Path) -> None:
    """Also where a layer's attention goes as a whole, or the family has no biases; and it is read again."""
    model, inputs = hub.build(name), hub.inputs_of(name)
    for plan in PLANS:
        heads = planned(plan, model)
        means, n = means_and_n(experiment_of(model, inputs))
        kept = fold(wrap(model), heads, means, n)
        cut = cut_heads(kept.model, heads)
        expected = at_means(model, heads, means, inputs)
        assert apart(says(cut, inputs), expected) < 1e-9
        assert apart(says(cut_heads(model, heads), inputs), expected) > 1e-4, "the means are heard"
        assert getattr(cut.config, FOLDED) == n == len(inputs[0])
        if plan == "a layer":
            again: Any = load_model(save_model(cut, tmp_path / "cut"))
            assert apart(says(again, inputs), says(cut, inputs)) < 1e-12
            assert getattr(again.config, BIASED, []) == getattr(cut.config, BIASED)
            more = [head for head in wrap(again).heads if head.index == 1]
            twice = cut_heads(fold(wrap(again), more, means_and_n(experiment_of(again, inputs))[0], n).model, more)
            assert apart(says(twice, inputs), says(again, inputs)) > 1e-4


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_the_proof_holds_in_the_models_own_precision_and_can_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = hub.build(name, torch.float32), hub.inputs_of(name, torch.float32)
    heads = planned("several", model)
    means, n = means_and_n(experiment_of(model, inputs))
    kept = fold(wrap(model), heads, means, n)
    cut = cut_heads(kept.model, heads)
    prove_cut(kept, cut, heads, inputs)
    assert prove_folded(model, cut, heads, means, inputs) <= 1e-5
    with pytest.raises(CheckFailed, match=r"replaced by their mean outputs.* differ by"):
        prove_folded(model, cut_heads(model, heads), heads, means, inputs)
    with pytest.raises(CheckFailed, match=r"replaced by their mean outputs.* differ by"):
        prove_folded(model, cut, heads, {site: 1.1 * mean for site, mean in means.items()}, inputs)

    def askew(sites: Sites, gone: Any, given: Any) -> None:
        fold_in_place(sites, gone, {site: (1 + 1e-6) * mean for site, mean in given.items()})

    monkeypatch.setattr(cut_proof, "fold_in_place", askew)
    with pytest.raises(CheckFailed, match="in double precision"):
        prove_folded(model, cut, heads, means, inputs)


def test_blocks_that_share_a_bias_are_refused() -> None:
    model, inputs = hub.build("albert"), hub.inputs_of("albert")
    means, n = means_and_n(experiment_of(model, inputs))
    apart_already = wrap(cut_heads(model, ["L1H0"]))
    for shared in (wrap(model), apart_already):
        with pytest.raises(
            InputError, match=r"shares its bias with other attention blocks(.|\n)*leave --fold-mean out"
        ):
            fold(shared, wrap(model).heads[1:2], means, n)


def test_an_adapters_projection_without_a_bias_is_refused() -> None:
    torch.manual_seed(0)
    model = styles.Stack(styles.Separate)
    for layer in model.layers:
        layer.attn.out.bias = None
    mine = adapted(Styled(model, layer="layers.*.attn.out"))
    with pytest.raises(
        InputError,
        match=r"layer.0.self has no bias, to which the mean outputs(.|\n)* could be added(.|\n)*bias=True",
    ):
        fold(mine, named("L0H1"), {}, 1)


def test_means_are_over_tokens_that_nothing_is_measured_on(in_tmp: Path) -> None:
    model = external(sorter(max_position_embeddings=64))
    many = [f"{a} and {b}" for a in TEXTS for b in TEXTS]
    Path("data.tsv").write_text(own_labels(model.inner, many))
    dataset = model.dataset("data.tsv")
    rows = np.arange(0, len(dataset), 3)
    others = np.setdiff1d(np.arange(len(dataset)), rows)
    means, n = means_and_n(experiment_on(model.model, model.sites, dataset, rows, at_once=4))
    assert n == len(others)
    found = []
    for row in others:  # alone, without padding
        with torch.no_grad(), Capture(model.sites) as seen:
            model.model(*dataset.encode(np.array([row])).inputs)
        found.append(seen.z(model.model.sites[1]).flatten(0, 1))
    torch.testing.assert_close(means[model.model.sites[1]], torch.cat(found).mean(dim=0), atol=1e-9, rtol=1e-9)
    whole = means_and_n(experiment_on(model.model, model.sites, dataset))
    assert whole[1] == len(dataset), "all there are"


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_model_need_not_be_wrapped(name: str) -> None:
    model, inputs = hub.build(name), hub.inputs_of(name)
    heads, (means, n) = planned("several", model), means_and_n(experiment_of(model, inputs))
    bare, wrapped = fold(model, heads, means, n), fold(wrap(model), heads, means, n).model
    assert torch.equal(says(bare, inputs), says(wrapped, inputs))
    for setting in (FOLDED, BIASED):
        assert getattr(bare.config, setting) == getattr(wrapped.config, setting)
        assert not hasattr(model.config, setting)


# --- from the shell's side --------------------------------------------------------------------------------------------


def test_a_folder_says_that_means_were_folded(in_tmp: Path) -> None:
    made = sorter(max_position_embeddings=64)
    model = external(made)
    Path("data.tsv").write_text(own_labels(made, [f"{a} and {b}" for a in TEXTS for b in TEXTS]))
    for out, fold_mean in (("plain", False), ("folded", True)):
        shown = prune_heads(model, out, data="data.tsv", heads=["L0H1", "L2H0"], fold_mean=fold_mean, quiet=True)
        assert shown.cost is not None
        assert shown.cost.folded_over == (18 if fold_mean else 0)
        assert shown.cost.difference < 1e-5
        assert json.loads(Path(out, "config.json").read_text()).get(FOLDED) == (18 if fold_mean else None)
    given = model.dataset("data.tsv").encode(np.arange(6)).inputs
    with torch.no_grad():
        plain, folded = (load_external(name).model(*given) for name in ("plain", "folded"))
    assert (plain - folded).abs().max() > 1e-3
    with pytest.raises(InputError, match=r"--fold-mean needs a folder"):
        prune_heads(model, data="data.tsv", fold_mean=True, quiet=True)


def test_examples_of_several_rows_count_once(in_tmp: Path) -> None:
    model = external(hub.build("bert alone"))
    Path("pairs.tsv").write_text(
        table(("first", "second", "score"), *((a, b, str(len(a) % 7)) for a in TEXTS for b in TEXTS))
    )
    cost = prune_heads(model, "cut", data="pairs.tsv", heads=["L0H1"], fold_mean=True, quiet=True).cost
    assert cost is not None
    assert cost.folded_over == json.loads(Path("cut/config.json").read_text())[FOLDED] == 18


def test_an_adapters_model_is_folded_too(adder: ExternalModel, in_tmp: Path) -> None:
    heads = ["E0H1", "D1H0", "D1H1", "D1H2", "D1H3", "X0H2"]
    cost = prune_heads(adder, "cut", heads=heads, fold_mean=True, n=20, quiet=True).cost
    assert cost is not None
    assert cost.folded_over == 256
    assert cost.lost_blocks == ("decoder.1.self",)
    assert json.loads(Path("cut/headcount.json").read_text())["folded_over"] == 256
    dataset = adder.dataset()
    experiment = experiment_on(adder.model, adder.sites, dataset)
    means, _ = means_and_n(experiment)
    inputs = dataset.encode(np.arange(10)).inputs
    expected = at_means(adder.model, [adder.find_head(head) for head in heads], means, inputs)
    with torch.no_grad():
        predicted = load_external("cut", run_adapter=True).model(*inputs)
    torch.testing.assert_close(predicted, expected, atol=1e-4, rtol=1e-4)
