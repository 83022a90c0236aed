"""Masks and biases in chunks equal those of the whole sequence."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headcount.encodings import EncodingSettings
from headcount.encodings.base import Positions, build_encoding
from headcount.heads import HeadSite
from headcount.models import masking as masking_module
from headcount.models.attention import AttentionCache, MultiHeadAttention
from headcount.models.masking import AttentionMask

CPU, SITE = torch.device("cpu"), HeadSite("layer", 0)
N_TOKENS = [7, 1, 4]
unhurried = settings(deadline=None, max_examples=60)
maskings = st.fixed_dictionaries({"causal": st.booleans(), "window": st.none() | st.integers(1, 9)})
exactly = {"atol": 1e-6, "rtol": 1e-6}


def small_pieces(monkeypatch: pytest.MonkeyPatch, pairs: int, narrow: int = 64) -> None:
    monkeypatch.setattr(masking_module, "PAIRS", pairs)
    monkeypatch.setattr(masking_module, "NARROW", narrow)


def plain_open(n_queries: int, n_keys: int, *, causal: bool, window: int | None) -> Tensor:
    """Return the mask pair by pair; the last query is at the place of the last key."""
    past = n_keys - n_queries
    far = math.inf if window is None else window
    rows = [
        [abs(past + i - j) <= far and (j <= past + i or not causal) for j in range(n_keys)] for i in range(n_queries)
    ]
    return torch.tensor(rows)


def padding(n_tokens: list[int], width: int) -> Tensor:
    return (torch.arange(width) < torch.tensor(n_tokens)[:, None])[:, None, None]


# --- pieces and masks -----------------------------------------------------------------------------------------------


def test_the_example_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch, pairs=32, narrow=4)
    assert [*AttentionMask(causal=True).chunks(8, 8)] == [(slice(0, 4), slice(0, 4)), (slice(4, 8), slice(0, 8))]
    assert [*AttentionMask(window=1).chunks(8, 8)] == [(slice(0, 4), slice(0, 5)), (slice(4, 8), slice(3, 8))]


@unhurried
@given(maskings, st.integers(1, 40), st.integers(0, 5), st.integers(1, 200), st.integers(1, 8))
def test_pieces_together_open_what_may_be_seen(
    seen: dict[str, Any], n_queries: int, past: int, pairs: int, narrow: int
) -> None:
    masking, n_keys = AttentionMask(**seen), n_queries + past
    found, times = torch.zeros(n_queries, n_keys, dtype=torch.bool), torch.zeros(n_queries)
    with pytest.MonkeyPatch.context() as patch:
        small_pieces(patch, pairs, narrow)
        for queries, keys in masking.chunks(n_queries, n_keys):
            mask = masking.mask_for(queries, keys, n_queries, n_keys, CPU)
            found[queries, keys] = True if mask is None else mask[0, 0]
            times[queries] += 1
    assert (times == 1).all()
    assert torch.equal(found, plain_open(n_queries, n_keys, **seen))


@unhurried
@given(st.booleans(), st.integers(1, 60), st.integers(1, 500), st.integers(1, 3))
def test_chunks_are_small(causal: bool, length: int, pairs: int, batch: int) -> None:
    mask = torch.ones(batch, 1, 1, length, dtype=torch.bool)
    with pytest.MonkeyPatch.context() as patch:
        small_pieces(patch, pairs, narrow=4)
        chunks = list(AttentionMask(mask, causal=causal).chunks(length, length))
        assert sum(queries.stop - queries.start for queries, _ in chunks) == length
        for queries, keys in chunks:
            n = queries.stop - queries.start
            assert n == 1 or n * (keys.stop - keys.start) * batch <= pairs
        chunks = list(AttentionMask(mask, causal=causal, window=2).chunks(length, length))
        assert sum(queries.stop - queries.start for queries, _ in chunks) == length
        for queries, keys in chunks:
            assert queries.stop - queries.start <= 4
            assert keys.stop - keys.start <= 4 + 2 * 2


@unhurried
@given(maskings, st.integers(7, 12), st.booleans())
def test_n_visible_counts_the_open_keys(seen: dict[str, Any], length: int, padded: bool) -> None:
    mask = padding(N_TOKENS, length) if padded else None
    is_open = plain_open(length, length, **seen) & (torch.tensor(True) if mask is None else mask)
    counted = is_open.sum(dim=-1).clamp(min=1).reshape(-1, length)
    found = AttentionMask(mask, **seen).n_visible(length, length, CPU)
    assert torch.equal(found.expand(counted.shape), counted)


@unhurried
@given(maskings, st.integers(1, 8), st.integers(0, 8))
def test_n_visible_counts_what_went_before(seen: dict[str, Any], n_queries: int, past: int) -> None:
    counted = plain_open(n_queries, n_queries + past, **seen).sum(dim=-1)[None]
    found = AttentionMask(**seen).n_visible(n_queries, n_queries + past, CPU)
    assert torch.equal(found.expand(counted.shape), counted)


# --- attention in pieces is attention -------------------------------------------------------------------------------


def build_attention(*, scalable_softmax: bool) -> MultiHeadAttention:
    torch.manual_seed(0)
    attention = MultiHeadAttention(8, 2, scalable_softmax=scalable_softmax).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return attention


def known_positions(encoding: str, length: int) -> dict[str, Any]:
    """The part of a mask that an encoding is asked with."""
    torch.manual_seed(1)
    made = build_encoding(EncodingSettings(encoding=encoding), 8, 2).double()
    where = Positions.in_order(length, CPU)
    return {"encoding": made, "queries": where, "keys": where}


def look(attention: MultiHeadAttention, x: Tensor, masking: AttentionMask) -> tuple[Tensor, Tensor]:
    """The output and the weights; whether anybody reads them must not matter."""
    weights = AttentionCache()
    out = attention(x, masking=masking, read=partial(weights.read, SITE))
    torch.testing.assert_close(attention(x, masking=masking), out, **exactly)
    return out, weights[SITE]


@pytest.mark.slow
@pytest.mark.parametrize("scalable_softmax", [False, True])
@pytest.mark.parametrize("encoding", ["none", "rotary", "alibi", "alibi-symmetric", "t5"])
@pytest.mark.parametrize("length", [9, 150])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 3), (True, 3), (False, 70)])
def test_pieces_see_what_one_large_mask_shows(
    causal: bool,
    window: int | None,
    length: int,
    encoding: str,
    scalable_softmax: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attention, known = build_attention(scalable_softmax=scalable_softmax), known_positions(encoding, length)
    mask = padding([length, length // 2, 1], length)
    whole = mask & plain_open(length, length, causal=causal, window=window)
    x = torch.randn(3, length, 8, dtype=torch.float64)
    expected = look(attention, x, AttentionMask(whole, **known))
    small_pieces(monkeypatch, pairs=3 * length * 4)
    pieced = AttentionMask(mask, causal=causal, window=window, **known)
    assert (len([*pieced.chunks(length, length)]) > 1) == (window is None or length > 64)
    torch.testing.assert_close(look(attention, x, pieced), expected, **exactly)


def test_the_gradients_of_pieces_are_those_of_one_large_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, known = build_attention(scalable_softmax=True), known_positions("t5", 80)
    learned = [*attention.parameters(), *known["encoding"].parameters()]
    mask, x = padding([80, 30], 80), torch.randn(2, 80, 8, dtype=torch.float64)
    whole = AttentionMask(mask & plain_open(80, 80, causal=True, window=5), **known)
    expected = torch.autograd.grad(attention(x, masking=whole).sin().sum(), learned)
    small_pieces(monkeypatch, pairs=100)
    found = attention(x, masking=AttentionMask(mask, causal=True, window=5, **known))
    torch.testing.assert_close(torch.autograd.grad(found.sin().sum(), learned), expected, **exactly)


# --- softmax that knows the length ----------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["none", "alibi-symmetric", "t5"])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 2)])
def test_log_length_multiplies_the_whole_score(causal: bool, window: int | None, encoding: str) -> None:
    attention, known = build_attention(scalable_softmax=True), known_positions(encoding, 7)
    x, mask = torch.randn(3, 7, 8, dtype=torch.float64), padding(N_TOKENS, 7)
    is_open = mask & plain_open(7, 7, causal=causal, window=window)
    q, k = (part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in (attention.query, attention.key))
    ids = torch.arange(7)
    bias = known["encoding"].bias(ids[:, None], ids[None])
    score = q @ k.mT / 2 + (0.0 if bias is None else bias.movedim(-1, 0))
    n_visible = is_open.sum(dim=-1, keepdim=True).clamp(min=1)
    score = score * attention.log_n_scale[None, :, None, None] * n_visible.log()
    expected = score.masked_fill(~is_open, -1e300).softmax(dim=-1).masked_fill(~is_open, 0.0)
    _, weights = look(attention, x, AttentionMask(mask, causal=causal, window=window, **known))
    torch.testing.assert_close(weights, expected, **exactly)


@pytest.mark.parametrize("encoding", ["alibi", "t5"])
@pytest.mark.parametrize("seen", [{}, {"causal": True}, {"window": 1}])
def test_log_length_breaks_no_gradient(encoding: str, seen: dict[str, Any]) -> None:
    """Where a query sees one key its log is 0, which times a bias of -inf were NaN; where it sees none, -inf."""
    attention, x = build_attention(scalable_softmax=True), torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    out = attention(x, masking=AttentionMask(padding([5, 1, 0], 5), **seen, **known_positions(encoding, 5)))
    gradients = torch.autograd.grad(out.sin().sum(), [x, *attention.parameters()])
    assert out.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[-1].abs().sum() > 0


def test_the_multiple_of_the_log_is_learned_for_each_head() -> None:
    assert build_attention(scalable_softmax=False).log_n_scale is None
    attention, x = MultiHeadAttention(8, 2, scalable_softmax=True), torch.randn(1, 5, 8)
    assert attention.log_n_scale is not None
    assert attention.log_n_scale.tolist() == pytest.approx([0.4, 0.4])
    with torch.no_grad():
        attention.log_n_scale.copy_(torch.tensor([0.0, 1 / math.log(5)]))
    plain = MultiHeadAttention(8, 2)
    plain.load_state_dict(attention.state_dict(), strict=False)
    _, weights = look(attention, x, AttentionMask())
    torch.testing.assert_close(weights[:, 0], torch.full((1, 5, 5), 0.2))
    torch.testing.assert_close(weights[:, 1], look(plain, x, AttentionMask())[1][:, 1])
