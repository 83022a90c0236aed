"""Rotary positions agree with rotations of complex numbers and with another library."""

from __future__ import annotations

import cmath

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rotary_embedding_torch import RotaryEmbedding  # type: ignore[import-untyped]
from torch import Tensor

from headcount.encodings import EncodingSettings
from headcount.encodings.base import Encoding, Positions, build_encoding

ROTARY = build_encoding(EncodingSettings(encoding="rotary"), 16, 2)
unhurried = settings(deadline=None, max_examples=40)
widths, places = st.integers(1, 9), st.integers(0, 300)


def turn(x: Tensor, ids: list[int]) -> Tensor:
    """Return vectors [id, d_head], each rotated by the angle of its id."""
    here = torch.tensor([ids])
    return ROTARY.rotate_qk(x[None, None], x[None, None], here, here)[0][0, 0]


def score(query: Tensor, key: Tensor, t: int, s: int) -> float:
    q, k = ROTARY.rotate_qk(query[None, None, None], key[None, None, None], torch.tensor([[t]]), torch.tensor([[s]]))
    return float((q * k).sum())


@unhurried
@given(widths, places)
def test_each_pair_is_turned_as_a_complex_number(d_head: int, position: int) -> None:
    x = torch.randn(1, d_head)
    plain = x[0].tolist()
    for i in range(d_head // 2):
        angle = position * 10000 ** (-2 * i / d_head)
        number = complex(plain[2 * i], plain[2 * i + 1]) * cmath.exp(1j * angle)
        plain[2 * i : 2 * i + 2] = number.real, number.imag
    torch.testing.assert_close(turn(x, [position])[0], torch.tensor(plain), atol=1e-3, rtol=0)


@unhurried
@given(widths, places, places, st.integers(1, 300))
def test_a_score_depends_on_the_difference_of_positions_alone(d_head: int, t: int, s: int, shift: int) -> None:
    query, key = torch.randn(d_head), torch.randn(d_head)
    assert score(query, key, t, s) == pytest.approx(score(query, key, t + shift, s + shift), abs=2e-3)


def test_a_score_does_depend_on_the_difference() -> None:
    query = torch.ones(8)
    assert len({round(score(query, query, 10, s), 2) for s in range(11)}) == 11


@unhurried
@given(widths, st.lists(places, min_size=1, max_size=5))
def test_lengths_are_kept_and_an_odd_last_dimension_stays(d_head: int, ids: list[int]) -> None:
    x = torch.randn(len(ids), d_head)
    found = turn(x, ids)
    torch.testing.assert_close(found.norm(dim=-1), x.norm(dim=-1))
    if d_head % 2:
        assert torch.equal(found[:, -1], x[:, -1])


def test_nothing_is_turned_at_position_0() -> None:
    x = torch.randn(3, 8)
    assert torch.equal(turn(x, [0, 0, 0]), x)


def test_queries_and_keys_are_turned_by_their_own_ids() -> None:
    query, key = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 3, 8)
    q, k = ROTARY.rotate_qk(query, key, torch.tensor([[2]]), torch.tensor([[0, 1, 2]]))
    torch.testing.assert_close(q[0, :, 0], torch.stack([turn(row, [2])[0] for row in query[0]]))
    torch.testing.assert_close(k[0], torch.stack([turn(row, [0, 1, 2]) for row in key[0]]))


@pytest.mark.parametrize("first", [0, 17])
@pytest.mark.parametrize("d_head", [4, 8, 32])
def test_another_library_turns_alike(d_head: int, first: int) -> None:
    x = torch.randn(2, 3, 40, d_head)
    ids = Positions.in_order(40, x.device, first).ids
    theirs = RotaryEmbedding(d_head).rotate_queries_or_keys(x, offset=first)
    for ours in ROTARY.rotate_qk(x, x, ids, ids):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_embeddings_and_scores_are_left_alone() -> None:
    assert type(ROTARY).add_to_embeddings is Encoding.add_to_embeddings
    assert type(ROTARY).bias is Encoding.bias
