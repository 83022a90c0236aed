"""Encodings that add a bias to the scores: both ALiBi variants, T5, clipped distances, FIRE."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headcount.encodings import EncodingSettings
from headcount.encodings.base import Encoding, build_encoding

with warnings.catch_warnings():
    # It decorates a function with torch.jit.script as it is imported.
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=DeprecationWarning)
    from x_transformers.x_transformers import (  # type: ignore[import-untyped]
        AlibiPositionalBias,
        RelativePositionBias,
    )

unhurried = settings(deadline=None, max_examples=40)
places = st.integers(0, 400)
both_ways = pytest.mark.parametrize("causal", [False, True])


def build(name: str, n_heads: int = 4, *, causal: bool = False, clip_distance: int = 4) -> Encoding:
    torch.manual_seed(0)
    chosen = EncodingSettings(encoding=name, clip_distance=clip_distance)
    return build_encoding(chosen, 4 * n_heads, n_heads, causal=causal)


def square(encoding: Encoding, length: int) -> Tensor:
    """Return the bias of every query and key, [head, query, key]."""
    ids = torch.arange(length)
    bias = encoding.bias(ids[:, None], ids[None, :])
    assert bias is not None
    return bias.detach().movedim(-1, 0)


def single(encoding: Encoding, query: int, key: int) -> list[float]:
    """Return the bias of one pair of ids for each head."""
    bias = encoding.bias(torch.tensor(query), torch.tensor(key))
    assert bias is not None
    return bias.tolist()


# --- ALiBi ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_heads", "slopes"), [(1, [1 / 256]), (2, [1 / 16, 1 / 256]), (8, [2**-i for i in range(1, 9)])]
)
def test_alibi_has_the_slopes_of_the_paper(n_heads: int, slopes: list[float]) -> None:
    for name in ("alibi", "alibi-symmetric"):
        assert single(build(name, n_heads), 1, 0) == pytest.approx([-slope for slope in slopes])


@unhurried
@given(places, places)
def test_alibi_falls_linearly_and_hides_what_lies_ahead(query: int, key: int) -> None:
    expected = [-math.inf] * 4 if key > query else [-(4.0 ** -(h + 1)) * (query - key) for h in range(4)]
    assert single(build("alibi"), query, key) == pytest.approx(expected)


@unhurried
@given(places, places)
def test_symmetric_alibi_is_alibi_looking_both_ways(query: int, key: int) -> None:
    found = single(build("alibi-symmetric"), query, key)
    assert found == single(build("alibi-symmetric"), key, query)
    assert found == single(build("alibi"), max(query, key), min(query, key))


def test_symmetric_alibi_cannot_tell_a_sequence_from_its_mirror_image() -> None:
    assert torch.equal(square(build("alibi-symmetric"), 9), square(build("alibi-symmetric"), 9).flip(1, 2))
    assert not torch.equal(square(build("alibi"), 9), square(build("alibi"), 9).flip(1, 2))


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8])
def test_another_library_has_the_same_alibi(n_heads: int) -> None:
    theirs = AlibiPositionalBias(n_heads)(50, 50)
    torch.testing.assert_close(square(build("alibi-symmetric", n_heads), 50), theirs)
    back = torch.ones(50, 50, dtype=torch.bool).tril()
    torch.testing.assert_close(square(build("alibi", n_heads), 50), theirs.masked_fill(~back, -torch.inf))


# --- T5 -------------------------------------------------------------------------------------------------------------


def plain_bucket(distance: int, n: int) -> int:
    """The first half one by one; then the k-th boundary lies at h (128 / h)^(k / h), compared without rounding."""
    half = n // 2
    if distance < half:
        return distance
    passed = [k for k in range(half) if Fraction(distance, half) ** half >= Fraction(128, half) ** k]
    return half + passed[-1]


@unhurried
@given(places, places)
def test_t5_looks_up_the_bucket_of_the_distance(query: int, key: int) -> None:
    forward, causal = build("t5"), build("t5", causal=True)
    ahead = 16 * (key > query) + plain_bucket(abs(key - query), 16)
    assert single(forward, query, key) == forward.rows.weight[ahead].tolist()
    assert single(causal, query, key) == causal.rows.weight[plain_bucket(max(query - key, 0), 32)].tolist()


@pytest.mark.parametrize(("n", "far"), [(16, [8, 16, 32, 64, 128, 10**6]), (32, [16, 128, 10**6])])
def test_t5_buckets_at_their_boundaries(n: int, far: list[int]) -> None:
    """At a boundary, rounding the logarithm down would give the previous bucket."""
    encoding = build("t5", causal=n == 32)
    for distance in far:
        assert single(encoding, distance, 0) == encoding.rows.weight[plain_bucket(distance, n)].tolist()


@both_ways
def test_another_library_has_the_same_t5_buckets(causal: bool) -> None:
    ours, theirs = build("t5", causal=causal), RelativePositionBias(1.0, causal=causal, heads=4)
    theirs.relative_attention_bias.load_state_dict(ours.rows.state_dict())
    expected, found = theirs(300, 300).detach(), square(ours, 300)
    assert torch.equal(found, expected)
    assert len(found[0].unique()) == 32 - (not causal)  # looking both ways, distance 0 ahead is nobody's


# --- clipped distances ----------------------------------------------------------------------------------------------


@unhurried
@given(places, places, st.integers(1, 6))
def test_relative_has_one_number_for_each_clipped_distance(query: int, key: int, clip: int) -> None:
    encoding = build("relative", clip_distance=clip)
    assert encoding.rows.weight.shape == (2 * clip + 1, 4)
    row = clip + max(-clip, min(clip, key - query))
    assert single(encoding, query, key) == encoding.rows.weight[row].tolist()


# --- FIRE -----------------------------------------------------------------------------------------------------------


def plain_fire(encoding: Encoding, query: int, key: int) -> list[float]:
    """The paper's f(psi(i - j) / psi(max(L, i))), for a key that does not lie ahead."""
    c, threshold = (math.log1p(math.exp(raw.item())) for raw in (encoding.raw_c, encoding.raw_threshold))
    near = math.log(c * (query - key) + 1) / math.log(c * max(threshold, query) + 1)
    return encoding.network(torch.tensor([near])).tolist()


def fire_asked(encoding: Encoding, length: int) -> Tensor:
    """Return the inputs of FIRE's network, [query, key]."""
    asked: list[Tensor] = []
    hook = encoding.network.register_forward_pre_hook(lambda _, given: asked.append(given[0].detach()[..., 0]))
    square(encoding, length)
    hook.remove()
    return asked[0]


@both_ways
@unhurried
@given(places, places, st.floats(-2, 2), st.floats(-2, 40))
def test_fire_is_the_formula_of_the_paper(causal: bool, one: int, other: int, c: float, threshold: float) -> None:
    encoding, query, key = build("fire", causal=causal), max(one, other), min(one, other)
    with torch.no_grad():
        encoding.raw_c.fill_(c)
        encoding.raw_threshold.fill_(threshold)
    assert single(encoding, query, key) == pytest.approx(plain_fire(encoding, query, key), abs=1e-4)


def test_fire_squeezes_any_length_into_one_range() -> None:
    asked = fire_asked(build("fire"), 300)
    assert asked.abs().max() <= 1
    assert (asked.tril(-1) >= 0).all()
    assert (asked.triu(1) <= 0).all()
    torch.testing.assert_close(asked, -asked.T)


def test_fire_keeps_short_sequences_apart_and_normalises_long_ones() -> None:
    """max(L, i): below the threshold (16) the first key is not yet at 1; min would put it beyond."""
    first = fire_asked(build("fire"), 64)[:, 0]
    assert (first[1:17].diff() > 0).all()
    assert (first[1:16] < 1).all()
    torch.testing.assert_close(first[17:], torch.ones(47))
