"""The encoder-decoder: what padding, later tokens, caches and asking for weights must not change."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headcount.encodings import ENCODINGS
from headcount.errors import InputError
from headcount.models.blocks import AttentionBlock
from headcount.models.config import EncoderDecoderConfig
from headcount.models.decoding import greedy
from headcount.models.encoder_decoder import EncoderDecoder

N_TOKENS, PAD, START = 13, 12, 11
KINDS = list(product(["pre", "post"], ENCODINGS.names()))
close = {"atol": 1e-5, "rtol": 1e-5}
unhurried = settings(deadline=None, max_examples=15)
sources = st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=7), min_size=1, max_size=4)


def build(norm: str = "pre", encoding: str = "sinusoidal", **changes: Any) -> EncoderDecoder:
    """A small model whose weights are all away from 0 and 1, where a fault would not show."""
    shape = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 2, "n_decoder_layers": 3, "d_ff": 32, "n_positions": 16}
    torch.manual_seed(0)
    config = EncoderDecoderConfig(norm=norm, encoding=encoding, **shape | changes)
    model = EncoderDecoder(config, N_TOKENS, PAD).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


MODELS = {"-".join(kind): build(*kind) for kind in KINDS}
every_kind = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def padded(rows: list[list[int]], extra: int = 0) -> Tensor:
    length = max(map(len, rows)) + extra
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


def random_batch(n_rows: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(0, 11, (n_rows, 7), generator=generator)
    fed = torch.cat([torch.full((n_rows, 1), START), torch.randint(0, 10, (n_rows, 4), generator=generator)], dim=1)
    return source, fed


@every_kind
@unhurried
@given(sources, st.integers(1, 5))
@torch.no_grad()
def test_padding_and_company_change_nothing(model: EncoderDecoder, rows: list[list[int]], extra: int) -> None:
    _, fed = random_batch(len(rows))
    together, longer = model(padded(rows), fed), model(padded(rows, extra), fed)
    alone = torch.cat([model(torch.tensor([row]), fed[i : i + 1]) for i, row in enumerate(rows)])
    torch.testing.assert_close(together, alone, **close)
    torch.testing.assert_close(longer, alone, **close)
    said = greedy(model, model.encode(padded(rows, extra)), START, 5)
    each = [greedy(model, model.encode(torch.tensor([row])), START, 5) for row in rows]
    assert torch.equal(said, torch.cat(each))


@every_kind
@torch.no_grad()
def test_what_is_not_padding_does_change_the_answer(model: EncoderDecoder) -> None:
    source, fed = random_batch()
    for position in range(source.shape[1]):
        other = source.clone()
        other[:, position] = (other[:, position] + 1) % 10
        assert ((model(other, fed) - model(source, fed)).abs().amax(dim=(1, 2)) > 1e-3).all()


@every_kind
@torch.no_grad()
def test_later_tokens_never_change_earlier_logits(model: EncoderDecoder) -> None:
    source, fed = random_batch()
    logits = model(source, fed)
    for position in range(fed.shape[1]):
        other = fed.clone()
        other[:, position:] = (other[:, position:] + 1) % 10
        changed = (model(source, other) - logits).abs().amax(dim=(0, 2)) > 1e-5
        assert changed.tolist() == [False] * position + [True] * (fed.shape[1] - position)
        torch.testing.assert_close(model(source, fed[:, : position + 1]), logits[:, : position + 1], **close)


@every_kind
@torch.no_grad()
def test_greedy_says_the_same_with_and_without_a_cache(model: EncoderDecoder) -> None:
    rows = [[1, 2, 3, 10, 4], [9, 9, 10, 1], [7], [0, 10, 0, 5, 5, 5, 3], *torch.randint(0, 10, (12, 6)).tolist()]
    memory = model.encode(padded(rows))
    said = greedy(model, memory, START, 9)
    assert torch.equal(said, greedy(model, memory, START, 9, use_cache=False))
    # A third route: each token is the likeliest after what was said before it.
    fed = torch.cat([torch.full((len(rows), 1), START), said[:, :-1]], dim=1)
    assert torch.equal(model.decode(fed, memory).argmax(dim=-1), said)
    assert len({tuple(answer) for answer in said.tolist()}) > 1


@every_kind
@torch.no_grad()
def test_asking_for_weights_changes_nothing_and_gets_every_site(model: EncoderDecoder) -> None:
    source, fed = padded([[1, 2, 3], [4, 5, 6, 7, 8], [9]]), random_batch(3)[1]
    weights: dict[Any, Tensor] = {}
    torch.testing.assert_close(model(source, fed, weights=weights), model(source, fed), **close)
    assert set(weights) == set(model.sites)
    target = fed.shape[1]
    shapes = {"encoder.self": (5, 5), "decoder.self": (target, target), "decoder.cross": (target, 5)}
    for site, site_weights in weights.items():
        assert site_weights.shape == (3, 2, *shapes[f"{site.stack}.{site.kind}"])
        torch.testing.assert_close(site_weights.sum(dim=-1), torch.ones(site_weights.shape[:-1]), **close)
        if (site.stack, site.kind) == ("decoder", "self"):
            assert (site_weights.triu(diagonal=1) == 0).all()
        else:
            assert (site_weights.transpose(1, 3)[source == PAD] == 0).all()


@every_kind
@torch.no_grad()
def test_the_weights_are_those_that_were_used(model: EncoderDecoder) -> None:
    """What enters the output projection is the weights times the values, at every site."""
    (source, fed), weights, values, entered = random_batch(), {}, {}, {}
    hooks = []
    for block in (module for module in model.modules() if isinstance(module, AttentionBlock)):
        keep = values.__setitem__, entered.__setitem__
        hooks.append(block.attention.value.register_forward_hook(lambda _, i, o, s=block.site, k=keep: k[0](s, o)))
        hooks.append(block.attention.output.register_forward_hook(lambda _, i, o, s=block.site, k=keep: k[1](s, i[0])))
    model(source, fed, weights=weights)
    for hook in hooks:
        hook.remove()
    assert set(weights) == set(values) == set(entered) == set(model.sites)
    for site in model.sites:
        value_BKHE = values[site].unflatten(-1, (2, 8))
        z = torch.einsum("bhqk,bkhe->bqhe", weights[site], value_BKHE).flatten(start_dim=2)
        torch.testing.assert_close(entered[site], z, **close)


def test_sites_and_heads_are_named_encoder_first() -> None:
    model = build()
    names = ["E0", "E1", "D0", "D1", "D2", "X0", "X1", "X2"]
    assert [site.short for site in model.sites] == names
    assert [head.short for head in model.heads] == [f"{name}H{i}" for name in names for i in range(2)]
    built = {module.site for module in model.modules() if isinstance(module, AttentionBlock)}
    assert built == set(model.sites)


@every_kind
@torch.no_grad()
def test_precision_is_the_models_own(model: EncoderDecoder) -> None:
    source, fed = random_batch()
    expected = model(source, fed)
    for dtype, tolerance in ((torch.float64, 1e-4), (torch.bfloat16, 0.15)):
        copy = build(model.config.norm, model.config.encoding).to(dtype)
        for asked in (None, {}):
            logits = copy(source, fed, weights=asked)
            assert logits.dtype == dtype
            torch.testing.assert_close(logits.float(), expected, atol=tolerance, rtol=0)
        assert greedy(copy, copy.encode(source), START, 4).shape == (4, 4)


@every_kind
def test_a_row_of_nothing_but_padding_breaks_nothing(model: EncoderDecoder) -> None:
    logits = model(padded([[PAD], [1, 2, 3]]), random_batch(2)[1])
    gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
    assert logits.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_source_longer_than_a_learned_table_is_refused() -> None:
    with pytest.raises(InputError, match="position 16 is past the end"):
        MODELS["pre-learned"](torch.zeros(1, 17, dtype=torch.long), random_batch(1)[1])
