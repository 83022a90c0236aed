"""The contract of all encodings: what holds for each of the three methods."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from headcount.encodings import ENCODINGS, EncodingSettings
from headcount.encodings.base import Encoding, Positions, build_encoding

D_MODEL, N_HEADS = 12, 2
CPU = torch.device("cpu")
close = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(params=product(ENCODINGS.names(), ["both ways", "causal"]), ids="-".join)
def encoding(request: pytest.FixtureRequest) -> Encoding:
    """Build an encoding; a learned table is shorter than the sequences, so `past_table` matters."""
    name, direction = request.param
    torch.manual_seed(0)
    settings = EncodingSettings(encoding=name, n_positions=8, past_table="untrained")
    return build_encoding(settings, D_MODEL, N_HEADS, causal=direction == "causal")


def sequence(batch: int, length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, queries and keys."""
    generator = torch.Generator().manual_seed(length)
    shapes = (batch, length, D_MODEL), *[(batch, N_HEADS, length, D_MODEL // N_HEADS)] * 2
    x, query, key = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    return x, query, key


def touches(encoding: Encoding, given: tuple[Tensor, Tensor, Tensor], positions: Positions) -> dict[str, Tensor]:
    """Return everything that an encoding computes for a sequence at these positions."""
    x, query, key = given
    ids = positions.ids
    turned, bias = encoding.rotate_qk(query, key, ids, ids), encoding.bias(ids[:, :, None], ids[:, None, :])
    found = {"embedding": encoding.add_to_embeddings(x, positions), "query": turned[0], "key": turned[1]}
    return found if bias is None else found | {"bias": bias}


def same_tokens(batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return one token repeated, so that only positions distinguish the places."""
    x, query, key = sequence(1, 1)
    shape = batch, N_HEADS, length, -1
    return x.expand(batch, length, -1), query.expand(shape), key.expand(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1, 5, 300])
def test_shape_dtype_and_device_are_those_of_the_sequence(encoding: Encoding, length: int, dtype: torch.dtype) -> None:
    given = sequence(3, length, dtype)
    before = [tensor.clone() for tensor in given]
    found = touches(encoding.to(dtype), given, Positions.in_order(length, CPU))
    for name, tensor in zip(("embedding", "query", "key"), given, strict=True):
        assert (found[name].shape, found[name].dtype, found[name].device) == (tensor.shape, dtype, CPU)
        assert found[name].isfinite().all()
    if "bias" in found:
        assert found["bias"].shape == (1, length, length, N_HEADS)
        assert found["bias"].is_floating_point()
        assert found["bias"].device == CPU
        assert (found["bias"].isfinite() | found["bias"].isneginf()).all()
    assert all(torch.equal(*pair) for pair in zip(given, before, strict=True))


def test_positions_stay_where_they_are_unless_they_are_randomised(encoding: Encoding) -> None:
    positions = Positions.in_order(5, CPU)
    assert encoding.assign_ids(positions) is positions


@pytest.mark.parametrize("ids", [[7, 0, 7, 11, 3], [299, 1, 20], [19]])
def test_any_ids_may_be_given_in_any_order(encoding: Encoding, ids: list[int]) -> None:
    """An encoding takes ids, not lengths: a token at id 7 is encoded equally at any place."""
    n_tokens = torch.tensor([300])
    whole = touches(encoding, same_tokens(1, 300), Positions(torch.arange(300)[None], n_tokens))
    found = touches(encoding, same_tokens(1, len(ids)), Positions(torch.tensor([ids]), n_tokens))
    torch.testing.assert_close(found["embedding"], whole["embedding"][:, ids], **close)
    torch.testing.assert_close(found["query"], whole["query"][:, :, ids], **close)
    torch.testing.assert_close(found["key"], whole["key"][:, :, ids], **close)
    if "bias" in whole:
        torch.testing.assert_close(found["bias"], whole["bias"][:, ids][:, :, ids], **close)


def test_rows_of_a_batch_are_the_rows_alone(encoding: Encoding) -> None:
    given = sequence(3, 5)
    ids = torch.tensor([[0, 1, 2, 3, 4], [9, 4, 11, 0, 2], [30, 31, 32, 33, 34]])
    positions = Positions(ids, torch.tensor([5, 3, 4]))
    together = touches(encoding, given, positions)
    for row in range(3):
        here = slice(row, row + 1)
        alone = touches(encoding, tuple(t[here] for t in given), Positions(ids[here], positions.n_tokens[here]))
        for name, found in alone.items():
            torch.testing.assert_close(together[name][here], found, **close)


def test_rows_at_the_same_positions_may_share_one_row_of_ids(encoding: Encoding) -> None:
    given, shared = sequence(3, 5), Positions.in_order(5, CPU)
    spelled = touches(encoding, given, Positions(shared.ids.expand(3, -1), shared.n_tokens.expand(3)))
    for name, found in touches(encoding, given, shared).items():
        torch.testing.assert_close(found.expand(spelled[name].shape), spelled[name], **close)


def test_only_none_does_not_tell_positions_apart(encoding: Encoding) -> None:
    given, n_tokens = same_tokens(1, 5), torch.tensor([12])
    here = touches(encoding, given, Positions(torch.tensor([[0, 1, 2, 3, 4]]), n_tokens))
    there = touches(encoding, given, Positions(torch.tensor([[1, 3, 4, 6, 11]]), n_tokens))
    changed = {name for name in here if not torch.allclose(here[name], there[name], atol=1e-3)}
    assert bool(changed) == (not isinstance(encoding, ENCODINGS.get("none")))


def test_gradients_reach_the_sequence_and_every_weight(encoding: Encoding) -> None:
    given = tuple(tensor.requires_grad_() for tensor in sequence(2, 40))
    found = touches(encoding, given, Positions.in_order(40, CPU))
    total = sum(tensor[tensor.isfinite()].sin().sum() for tensor in found.values())
    gradients = torch.autograd.grad(total, [*given, *encoding.parameters()])
    for gradient in gradients:
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0


def test_what_it_hard_codes_is_told_in_words(encoding: Encoding) -> None:
    assert isinstance(encoding.hard_codes, str)
    assert (encoding.hard_codes == "relative place") == isinstance(encoding, ENCODINGS.get("length-normalised"))
