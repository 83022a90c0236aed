"""What replaces a head where rows are padded: means of tokens, and tokens of donors; never padding."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.data.dataset import LOSS, EvalBatch
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import run_interventions
from headcount.heads import HeadSite
from headcount.hooks.replay import Intervention
from headcount.hooks.sites import Site, Sites

PAD, HUGE, SITE = 9, 1e6, HeadSite("layer", 0)
LENGTHS = ((2, 4, 3, 4), (6, 1, 5), (2, 2))
"""Of the texts of each batch."""


class Reader(nn.Module):
    """Two heads that say what a token means to them; what they say of padding is huge, and used by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(10, 6), nn.Linear(6, 1)
        with torch.no_grad():
            self.embed.weight[PAD] = HUGE

    def forward(self, tokens: Tensor) -> Tensor:
        predicted = self.out(self.embed(tokens))[..., 0]
        return predicted.masked_fill(tokens == PAD, 0.0).sum(dim=1)


@cache
def experiment() -> Experiment:
    torch.manual_seed(0)
    model = Reader().double()
    batches, first = [], 0
    for lengths in LENGTHS:
        tokens = torch.full((len(lengths), max(lengths)), PAD)
        for row, length in zip(tokens, lengths, strict=True):
            row[:length] = torch.randint(PAD, (length,))
        rows = np.arange(first, first := first + len(lengths))
        batches.append(EvalBatch(rows, (tokens,), {LOSS.name: lambda output: output}, None, {"layer": tokens != PAD}))
    sites = Sites({SITE: Site(model.out, (SITE.head(0), SITE.head(1)))})
    return Experiment.of_batches(model, sites, tuple(batches), LOSS, "texts")


def texts() -> list[NDArray[np.float64]]:
    """What both heads say of every text, [position, head, 3], without padding."""
    rows = [row[row != PAD] for batch in experiment().batches for row in batch.inputs[0]]
    with torch.no_grad():
        return [experiment().model.get_submodule("embed")(row).unflatten(-1, (2, 3)).numpy() for row in rows]


def score(z: NDArray[np.float64]) -> float:
    out = experiment().model.get_submodule("out")
    weight, bias = (each.detach().numpy() for each in out.parameters())
    return float((z.reshape(len(z), 6) @ weight[0] + bias[0]).sum())


def tried(replacement: str, head: int, batch_size: int = 512) -> NDArray[np.float64]:
    return run_interventions(
        experiment(), [Intervention((SITE.head(head),), replacement)], proven=True, batch_size=batch_size
    ).scores[0]


@pytest.mark.parametrize("head", [0, 1])
def test_the_mean_is_over_tokens(head: int) -> None:
    predicted = texts()
    for row, found in enumerate(tried("mean", head)):
        z = predicted[row].copy()
        for position in range(len(z)):
            there = [other[position, head] for other in predicted if len(other) > position]
            z[position, head] = np.mean(there, axis=0)
        assert found == pytest.approx(score(z), abs=1e-6)
        assert abs(found - score(predicted[row])) > 1e-6 or len(z) == 6, (
            "at the longest's end, the mean is what it says"
        )


@pytest.mark.parametrize("head", [0, 1])
def test_another_example_is_never_its_padding(head: int) -> None:
    predicted, found = texts(), tried("resample", head)
    assert np.abs(found).max() < HUGE / 1000
    for batch in experiment().batches:
        for row in batch.rows:
            possible = []
            for other in set(batch.rows.tolist()) - {row}:
                z = predicted[row].copy()
                again = np.resize(np.arange(len(predicted[other])), len(z))  # read again from its beginning
                z[:, head] = predicted[other][again, head]
                possible.append(score(z))
            assert min(abs(found[row] - each) for each in possible) < 1e-6


def test_nothing_replaces_a_zeroed_head_in_padded_rows_either() -> None:
    for row, found in enumerate(tried("zero", 1)):
        z = texts()[row].copy()
        z[:, 1] = 0
        assert found == pytest.approx(score(z), abs=1e-6)


@pytest.mark.parametrize("replacement", ["mean", "resample", "zero"])
def test_batches_of_any_size(replacement: str) -> None:
    np.testing.assert_allclose(tried(replacement, 0, batch_size=3), tried(replacement, 0), atol=1e-9)


def test_whoever_says_nothing_of_padding_has_none() -> None:
    """Then every position counts, and the mean is huge: this is what `token_mask` is for."""
    blind = replace(experiment(), batches=tuple(replace(batch, token_mask={}) for batch in experiment().batches))
    found = run_interventions(blind, [Intervention((SITE.head(0),), "mean")], proven=True).scores[0]
    assert np.abs(found).max() > HUGE / 100
