"""Randomised positions, around every encoding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.encodings import ENCODINGS, EncodingSettings
from headcount.encodings.base import Encoding, Positions, build_encoding
from headcount.errors import InputError

N_IDS = 50


def build(name: str, n_ids: int | None = N_IDS) -> Encoding:
    torch.manual_seed(0)
    return build_encoding(EncodingSettings(encoding=name, n_positions=N_IDS), 8, 2, random_positions=n_ids)


def place(encoding: Encoding, length: int) -> list[int]:
    """Return the ids of a sequence of this length."""
    return encoding.assign_ids(Positions.in_order(length, torch.device("cpu"))).ids[0].tolist()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, N_IDS), st.booleans())
def test_ids_are_distinct_in_order_and_below_n(length: int, training: bool) -> None:
    ids = place(build("none").train(training), length)
    assert len(ids) == length
    assert ids == sorted(set(ids))
    assert 0 <= ids[0] <= ids[-1] < N_IDS


def test_ids_change_in_training_until_each_has_been_met() -> None:
    encoding = build("none").train()
    drawn = [tuple(place(encoding, 5)) for _ in range(200)]
    assert len(set(drawn)) > 190
    assert {id_ for ids in drawn for id_ in ids} == set(range(N_IDS))


def test_ids_depend_on_the_length_alone_otherwise() -> None:
    encoding, other = build("none").eval(), build("sinusoidal").eval()
    before = torch.get_rng_state()
    assert place(encoding, 5) == place(encoding, 5) == place(other, 5)
    assert place(encoding, 5) != place(encoding, 6)[:5]
    assert torch.equal(before, torch.get_rng_state()), "a test must not move the random numbers of training"


def test_as_many_tokens_as_ids_get_all_of_them_and_more_are_refused() -> None:
    encoding = build("none")
    assert place(encoding, N_IDS) == list(range(N_IDS))
    with pytest.raises(
        InputError, match=f"{N_IDS + 1} tokens needs {N_IDS + 1} different position ids, but .* from only {N_IDS}"
    ) as caught:
        place(encoding, N_IDS + 1)
    assert "--random-positions" in caught.value.advice[0]


def test_order_and_number_of_tokens_are_kept() -> None:
    encoding = build("none").eval()
    counted = Positions(torch.tensor([[0, 1, 2, 3], [3, 1, 0, 2]]), torch.tensor([4]))
    found = encoding.assign_ids(counted)
    assert found.n_tokens.tolist() == [4]
    assert found.ids[0].tolist() == place(encoding, 4)
    assert torch.equal(found.ids[1], found.ids[0][counted.ids[1]])


def test_padding_does_not_change_the_ids_of_the_tokens() -> None:
    encoding = build("none").eval()
    counted = Positions.in_order(6, torch.device("cpu"))._replace(n_tokens=torch.tensor([4, 6, 1]))
    for row, n in zip(encoding.assign_ids(counted).ids.tolist(), (4, 6, 1), strict=True):
        assert row[:n] == place(encoding, n)


@pytest.mark.parametrize("name", ENCODINGS.names())
def test_every_encoding_is_asked_about_the_random_ids(name: str) -> None:
    wrapped, plain = build(name).eval(), build(name, None)
    positions = wrapped.assign_ids(Positions.in_order(6, torch.device("cpu")))
    x, query, key, ids = torch.randn(2, 6, 8), torch.randn(2, 2, 6, 4), torch.randn(2, 2, 6, 4), positions.ids
    assert torch.equal(wrapped.add_to_embeddings(x, positions), plain.add_to_embeddings(x, positions))
    for ours, theirs in zip(
        wrapped.rotate_qk(query, key, ids, ids), plain.rotate_qk(query, key, ids, ids), strict=True
    ):
        assert torch.equal(ours, theirs)
    biases = wrapped.bias(ids[:, :, None], ids[:, None]), plain.bias(ids[:, :, None], ids[:, None])
    assert biases == (None, None) or torch.equal(*biases)
    assert wrapped.hard_codes == plain.hard_codes
    assert len(list(wrapped.parameters())) == len(list(plain.parameters()))
