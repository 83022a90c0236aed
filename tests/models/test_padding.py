"""Padding and other rows of the batch must not change a sequence's output."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headcount.models.attention import AttentionCache
from headcount.models.transformer import EncoderDecoder, greedy

pytestmark = pytest.mark.slow  # seconds together

START, PAD = 11, 12
DECODER_INPUT = torch.tensor([[START, 3, 1, 4], [START, 1, 5, 9], [START, 2, 6, 5], [START, 3, 5, 8]])
MIXED = [[1, 2, 3, 10, 4], [9, 9, 10, 1], [7], [0, 10, 0, 5, 5, 5, 3]]
close = {"atol": 1e-5, "rtol": 1e-5}


def padded(rows: list[list[int]], extra: int = 0) -> Tensor:
    length = max(map(len, rows)) + extra
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


@settings(deadline=None, max_examples=5)
@given(st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=7), min_size=1, max_size=4), st.integers(1, 5))
@torch.no_grad()
def test_logits_are_those_of_each_row_alone(model: EncoderDecoder, rows: list[list[int]], extra: int) -> None:
    decoder_input = DECODER_INPUT[: len(rows)]
    alone = torch.cat([model(torch.tensor([row]), decoder_input[i : i + 1]) for i, row in enumerate(rows)])
    torch.testing.assert_close(model(padded(rows), decoder_input), alone, **close)
    torch.testing.assert_close(model(padded(rows, extra), decoder_input), alone, **close)


@torch.no_grad()
def test_answers_are_those_of_each_row_alone(model: EncoderDecoder) -> None:
    for use_cache in (True, False):
        memories = [model.encode(torch.tensor([row])) for row in MIXED]
        alone = torch.cat([greedy(model, memory, START, 5, use_cache=use_cache) for memory in memories])
        for extra in (0, 3):
            together = greedy(model, model.encode(padded(MIXED, extra)), START, 5, use_cache=use_cache)
            assert torch.equal(together, alone)
        assert len({tuple(answer) for answer in alone.tolist()}) > 1


@torch.no_grad()
def test_another_token_in_the_place_of_padding_is_seen(model: EncoderDecoder) -> None:
    source = padded(MIXED, 1)
    seen = source.clone()
    seen[:, -1] = 0
    assert ((model(seen, DECODER_INPUT) - model(source, DECODER_INPUT)).abs().amax(dim=(1, 2)) > 1e-3).all()


@torch.no_grad()
def test_no_weight_falls_on_padding(model: EncoderDecoder) -> None:
    source, weights = padded(MIXED), AttentionCache()
    logits = model(source, DECODER_INPUT, weights=weights)
    torch.testing.assert_close(logits, model(source, DECODER_INPUT), **close)
    for site, weights_BHQK in weights.items():
        torch.testing.assert_close(weights_BHQK.sum(dim=-1), torch.ones(weights_BHQK.shape[:-1]), **close)
        if (site.stack, site.kind) != ("decoder", "self"):
            weights_BKQH = weights_BHQK.transpose(1, 3)
            assert (weights_BKQH[source == PAD] == 0).all()
            assert (weights_BKQH[source != PAD] > 0).any()


def test_a_row_of_nothing_but_padding_breaks_nothing(model: EncoderDecoder) -> None:
    for weights in (None, AttentionCache()):
        logits = model(padded([[PAD], [1, 2, 3]]), DECODER_INPUT[:2], weights=weights)
        gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
        assert logits.isfinite().all()
        assert all(gradient.isfinite().all() for gradient in gradients)
