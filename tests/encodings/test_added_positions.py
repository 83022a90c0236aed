"""Encodings that are added to the embeddings: sinusoidal, learned, length-normalised."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headcount.encodings import EncodingSettings
from headcount.encodings.base import Encoding, Positions, build_encoding
from headcount.errors import InputError

N_ROWS = 12
unhurried = settings(deadline=None, max_examples=25)
places = st.integers(0, 500)


def build(name: str, d_model: int = 16, past_table: str = "error") -> Encoding:
    torch.manual_seed(0)
    return build_encoding(EncodingSettings(encoding=name, n_positions=N_ROWS, past_table=past_table), d_model, 1)


def added(encoding: Encoding, ids: list[int], n_tokens: int = 1) -> Tensor:
    """Return the vectors that an encoding adds to tokens at these ids, [id, d_model]."""
    x = torch.randn(1, len(ids), encoding.d_model)
    return (encoding.add_to_embeddings(x, Positions(torch.tensor([ids]), torch.tensor([n_tokens]))) - x)[0]


# --- sinusoidal -----------------------------------------------------------------------------------------------------


def plain_sinusoid(position: int, i: int, d_model: int) -> float:
    """Return entry `i` of PE(position) by the formula in section 3.5 of the paper."""
    angle = position / 10000 ** (2 * (i // 2) / d_model)
    return math.sin(angle) if i % 2 == 0 else math.cos(angle)


@unhurried
@given(st.integers(1, 33), st.lists(places, min_size=1, max_size=6))
def test_sinusoidal_is_the_formula_of_the_paper(d_model: int, ids: list[int]) -> None:
    plain = torch.tensor([[plain_sinusoid(position, i, d_model) for i in range(d_model)] for position in ids])
    torch.testing.assert_close(added(build("sinusoidal", d_model), ids), plain, atol=2e-4, rtol=0)


def turned(pe: Tensor, k: int) -> Tensor:
    """Return R_k PE: the i-th pair (sin, cos) rotated by the angle k w_i."""
    d_model = pe.shape[-1]
    angle = torch.tensor([k / 10000 ** (2 * i / d_model) for i in range(d_model // 2)])
    sin, cos = pe[0::2], pe[1::2]
    pairs = [sin * angle.cos() + cos * angle.sin(), cos * angle.cos() - sin * angle.sin()]
    return torch.stack(pairs, dim=-1).flatten()


@unhurried
@given(st.integers(1, 16), places, st.integers(-100, 100))
def test_sinusoidal_positions_are_rotations_of_each_other(half: int, position: int, k: int) -> None:
    here, there = added(build("sinusoidal", 2 * half), [position, position + abs(k)])
    torch.testing.assert_close(there, turned(here, abs(k)), atol=5e-4, rtol=0)
    torch.testing.assert_close(here, turned(there, -abs(k)), atol=5e-4, rtol=0)


@unhurried
@given(st.integers(1, 16), places, places, st.integers(0, 300))
def test_sinusoidal_products_depend_on_the_difference_alone(half: int, t: int, s: int, shift: int) -> None:
    pe = added(build("sinusoidal", 2 * half), [t, s, t + shift, s + shift])
    plain = sum(math.cos((t - s) / 10000 ** (i / half)) for i in range(half))
    assert float(pe[0] @ pe[1]) == pytest.approx(plain, abs=2e-3)
    assert float(pe[2] @ pe[3]) == pytest.approx(plain, abs=2e-3)


def test_sinusoidal_has_no_table_to_run_out_of() -> None:
    encoding = build("sinusoidal")
    assert not list(encoding.parameters())
    assert added(encoding, [0, N_ROWS, 10**6]).isfinite().all()


# --- learned --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("past_table", ["error", "clamp", "untrained"])
def test_learned_adds_the_row_of_its_table(past_table: str) -> None:
    encoding = build("learned", past_table=past_table)
    (table,) = encoding.parameters()
    assert table.shape == (N_ROWS, 16)
    torch.testing.assert_close(added(encoding, [4, 0, N_ROWS - 1]), table[[4, 0, N_ROWS - 1]])


def test_learned_trains_the_rows_it_used_and_no_others() -> None:
    encoding = build("learned")
    (table,) = encoding.parameters()
    added(encoding, [1, 3]).sum().backward()
    assert table.grad is not None
    assert table.grad.abs().sum(dim=1).nonzero().flatten().tolist() == [1, 3]


@pytest.mark.parametrize("ids", [[N_ROWS], [0, 1, N_ROWS + 5], [10**6, 0]])
def test_learned_past_its_table_is_an_error(ids: list[int]) -> None:
    with pytest.raises(InputError) as caught:
        added(build("learned"), ids)
    assert (
        caught.value.what
        == f"position {max(ids)} is past the end of the learned position table, which has {N_ROWS} rows"
    )
    assert "--n-positions" in caught.value.advice[0]


def test_learned_clamped_repeats_its_last_row() -> None:
    encoding = build("learned", past_table="clamp")
    (table,) = encoding.parameters()
    torch.testing.assert_close(added(encoding, [N_ROWS, 2, 10**6]), table[[N_ROWS - 1, 2, N_ROWS - 1]])


@pytest.mark.parametrize("d_model", [6, 16])
def test_learned_goes_on_with_rows_that_depend_on_their_id_alone(d_model: int) -> None:
    """A row past the table depends on its id only: not on other ids, the model or training."""
    encoding = build("learned", d_model, "untrained")
    alone = torch.cat([added(encoding, [i]) for i in range(N_ROWS, N_ROWS + 9)])
    with torch.no_grad():
        next(encoding.parameters()).add_(1.0)
    for last in (N_ROWS + 8, 300):
        torch.testing.assert_close(added(encoding, [*range(N_ROWS, N_ROWS + 9), last])[:9], alone, atol=1e-5, rtol=0)


def test_learned_goes_on_with_rows_as_they_are_drawn() -> None:
    rows = added(build("learned", past_table="untrained"), list(range(N_ROWS, N_ROWS + 200))).detach()
    assert float(rows.mean()) == pytest.approx(0, abs=0.1)
    assert float(rows.std()) == pytest.approx(1, abs=0.1)
    assert torch.cdist(rows, rows).fill_diagonal_(9).min() > 1


# --- length-normalised ----------------------------------------------------------------------------------------------


@unhurried
@given(st.integers(1, 200), st.integers(2, 4))
def test_a_longer_sequence_has_the_same_places_in_between_its_own(n: int, times: int) -> None:
    encoding = build("length-normalised")
    longer = added(encoding, list(range(times * n)), n_tokens=times * n)
    torch.testing.assert_close(added(encoding, list(range(n)), n_tokens=n), longer[::times], atol=1e-3, rtol=0)


@unhurried
@given(st.integers(1, 64), st.data())
def test_the_place_of_a_token_is_its_share_of_512(n: int, data: st.DataObject) -> None:
    i, d_model = data.draw(st.integers(0, n - 1)), 6
    plain = [plain_sinusoid(512 * i / n, entry, d_model) for entry in range(d_model)]
    found = added(build("length-normalised", d_model), [i], n_tokens=n)
    torch.testing.assert_close(found[0], torch.tensor(plain), atol=1e-3, rtol=0)


def test_each_row_is_normalised_by_its_own_tokens() -> None:
    """Padding does not change the normalisation."""
    encoding, x = build("length-normalised"), torch.zeros(2, 8, 16)
    both = encoding.add_to_embeddings(x, Positions(torch.arange(8)[None], torch.tensor([4, 8])))
    torch.testing.assert_close(both[0, :4], both[1, ::2])
    assert not torch.allclose(both[0, 1], both[1, 1], atol=0.1)
