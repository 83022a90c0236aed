"""What every encoding promises; and what each one adds, worked out a second time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.encodings import ENCODINGS
from headcount.encodings.base import Encoding
from headcount.errors import InputError

N_POSITIONS = 12
unhurried = settings(deadline=None, max_examples=25)


def build(name: str, d_model: int = 16, n_positions: int = N_POSITIONS) -> Encoding:
    torch.manual_seed(0)
    made: Encoding = ENCODINGS.get(name)(d_model, n_positions)
    return made


@pytest.fixture(params=ENCODINGS.names())
def encoding(request: pytest.FixtureRequest) -> Encoding:
    return build(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 5, N_POSITIONS])
def test_shape_and_dtype_are_those_of_the_embeddings(encoding: Encoding, length: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, length, 16, dtype=dtype)
    before = x.clone()
    out = encoding.to(dtype).embed(x, torch.arange(length))
    assert (out.shape, out.dtype, out.device) == (x.shape, dtype, x.device)
    assert out.isfinite().all()
    assert torch.equal(x, before)


def test_any_ids_may_be_given_in_any_order(encoding: Encoding) -> None:
    """An encoding takes ids, not lengths: what stands at id 7 is the same wherever it stands."""
    x = torch.randn(1, 1, 16).expand(2, N_POSITIONS, 16)
    in_order = encoding.embed(x, torch.arange(N_POSITIONS))
    ids = torch.tensor([7, 0, 7, 11, 3])
    assert torch.equal(encoding.embed(x[:, :5], ids), in_order[:, ids])


def test_rows_of_a_batch_are_the_rows_alone(encoding: Encoding) -> None:
    x, ids = torch.randn(3, 5, 16), torch.arange(5)
    together = encoding.embed(x, ids)
    assert torch.equal(together, torch.cat([encoding.embed(row[None], ids) for row in x]))


@pytest.mark.parametrize("name", ENCODINGS.names())
def test_different_ids_are_told_apart(name: str) -> None:
    if ENCODINGS.get(name).embed is Encoding.embed:
        pytest.skip("this encoding leaves the embeddings alone")
    rows = build(name).embed(torch.zeros(1, N_POSITIONS, 16), torch.arange(N_POSITIONS))[0]
    apart = torch.cdist(rows, rows) + torch.eye(N_POSITIONS) * 9
    assert apart.min() > 0.1


def test_gradients_reach_the_embeddings(encoding: Encoding) -> None:
    x = torch.randn(2, 5, 16, requires_grad=True)
    encoding.embed(x, torch.arange(5)).square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad.abs().sum() > 0


def plain_sinusoid(position: int, i: int, d_model: int) -> float:
    """Entry `i` of PE(position), straight from section 3.5 of the paper."""
    angle = position / 10000 ** (2 * (i // 2) / d_model)
    return math.sin(angle) if i % 2 == 0 else math.cos(angle)


@unhurried
@given(st.integers(1, 33), st.lists(st.integers(0, 500), min_size=1, max_size=6))
def test_sinusoidal_is_the_formula_of_the_paper(d_model: int, ids: list[int]) -> None:
    added = build("sinusoidal", d_model).embed(torch.zeros(1, len(ids), d_model), torch.tensor(ids))[0]
    plain = torch.tensor([[plain_sinusoid(position, i, d_model) for i in range(d_model)] for position in ids])
    torch.testing.assert_close(added, plain, atol=2e-4, rtol=0)


def test_sinusoidal_is_added_and_has_no_table_to_run_out_of() -> None:
    x, ids = torch.randn(2, 3, 16), torch.tensor([0, N_POSITIONS, 4096])
    encoding = build("sinusoidal")
    torch.testing.assert_close(encoding.embed(x, ids) - x, encoding.embed(torch.zeros_like(x), ids))
    assert not list(encoding.parameters())


def test_learned_adds_the_row_of_its_table() -> None:
    encoding = build("learned")
    (table,) = encoding.parameters()
    x, ids = torch.randn(2, 3, 16), torch.tensor([4, 0, N_POSITIONS - 1])
    assert table.shape == (N_POSITIONS, 16)
    assert torch.equal(encoding.embed(x, ids), x + torch.stack([table[4], table[0], table[N_POSITIONS - 1]]))


def test_learned_trains_the_rows_it_used_and_no_others() -> None:
    encoding = build("learned")
    (table,) = encoding.parameters()
    encoding.embed(torch.zeros(2, 2, 16), torch.tensor([1, 3])).sum().backward()
    assert table.grad is not None
    assert table.grad.abs().sum(dim=1).nonzero().flatten().tolist() == [1, 3]


@pytest.mark.parametrize("ids", [[N_POSITIONS], [0, 1, N_POSITIONS + 5], [10**6, 0]])
def test_learned_past_its_table_is_an_error(ids: list[int]) -> None:
    with pytest.raises(InputError) as caught:
        build("learned").embed(torch.zeros(1, len(ids), 16), torch.tensor(ids))
    assert caught.value.what == f"position {max(ids)} is past the end of a learned table of {N_POSITIONS} rows"
    assert "--n-positions" in caught.value.advice[0]
