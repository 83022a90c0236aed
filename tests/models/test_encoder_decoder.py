"""The encoder-decoder: what later tokens, caches and asking for weights must not change."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from headcount.errors import InputError
from headcount.heads import HeadSite
from headcount.models.attention import AttentionCache, KeyValueCache
from headcount.models.config import EncoderDecoderConfig
from headcount.models.transformer import AttentionBlock, EncoderDecoder, greedy

START = 11
MIRRORS = ("none", "alibi-symmetric")
"""Encodings that cannot tell left from right: a mirrored source gives a mirrored memory, which cross-attention,
without positions, reads alike."""
close = {"atol": 1e-5, "rtol": 1e-5}


def random_batch(n_rows: int = 4) -> tuple[Tensor, Tensor]:
    """Sources of 7 tokens, and 5 tokens of decoder input."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(0, 11, (n_rows, 7), generator=generator)
    decoder_input = torch.cat(
        [torch.full((n_rows, 1), START), torch.randint(0, 10, (n_rows, 4), generator=generator)], dim=1
    )
    return source, decoder_input


def blocks(model: EncoderDecoder) -> list[AttentionBlock]:
    return [module for module in model.modules() if isinstance(module, AttentionBlock)]


@torch.no_grad()
def test_every_source_token_changes_the_answer(model: EncoderDecoder) -> None:
    source, decoder_input = random_batch()
    for position in range(source.shape[1]):
        other = source.clone()
        other[:, position] = (other[:, position] + 1) % 10
        assert ((model(other, decoder_input) - model(source, decoder_input)).abs().amax(dim=(1, 2)) > 1e-3).all()


@torch.no_grad()
def test_the_order_of_the_source_changes_the_answer_if_the_encoding_knows_it(model: EncoderDecoder) -> None:
    source, decoder_input = torch.tensor([[1, 2, 3]]), torch.tensor([[START]])
    apart = (model(source.flip(1), decoder_input) - model(source, decoder_input)).abs().max()
    assert apart < 1e-5 if model.config.encoding in MIRRORS else apart > 1e-3


def skip_if_length_is_unknown(model: EncoderDecoder) -> None:
    if model.config.encoding == "length-normalised":
        pytest.skip("a decoder does not know how long its answer will be, so places shift as it decodes")


@torch.no_grad()
def test_later_tokens_never_change_earlier_logits(model: EncoderDecoder) -> None:
    skip_if_length_is_unknown(model)
    source, decoder_input = random_batch()
    logits = model(source, decoder_input)
    for position in range(decoder_input.shape[1]):
        other = decoder_input.clone()
        other[:, position:] = (other[:, position:] + 1) % 10
        changed = (model(source, other) - logits).abs().amax(dim=(0, 2)) > 1e-5
        assert changed.tolist() == [False] * position + [True] * (decoder_input.shape[1] - position)
        torch.testing.assert_close(model(source, decoder_input[:, : position + 1]), logits[:, : position + 1], **close)


@torch.no_grad()
def test_one_row_of_decoder_input_serves_all_sources(model: EncoderDecoder) -> None:
    source, decoder_input = random_batch()
    torch.testing.assert_close(
        model(source, decoder_input[:1]), model(source, decoder_input[:1].expand(len(source), -1)), **close
    )


@torch.no_grad()
def test_greedy_predicts_the_same_with_and_without_a_cache(model: EncoderDecoder) -> None:
    skip_if_length_is_unknown(model)
    memory = model.encode(random_batch(16)[0])
    predicted = greedy(model, memory, START, 9)
    assert torch.equal(predicted, greedy(model, memory, START, 9, use_cache=False))
    # A third route: each token is the likeliest after what was predicted before it.
    decoder_input = torch.cat([torch.full((16, 1), START), predicted[:, :-1]], dim=1)
    assert torch.equal(model.decode(decoder_input, memory).argmax(dim=-1), predicted)
    assert len({tuple(answer) for answer in predicted.tolist()}) > 1


@torch.no_grad()
def test_cached_steps_give_the_logits_of_the_whole(model: EncoderDecoder) -> None:
    skip_if_length_is_unknown(model)
    source, decoder_input = random_batch()
    memory = model.encode(source)
    caches: dict[HeadSite, KeyValueCache] = {}
    steps = [
        model.decode(decoder_input[:, start:end], memory, n_past=start, caches=caches)
        for start, end in ((0, 1), (1, 4), (4, 5))
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(source, decoder_input), **close)


@torch.no_grad()
def test_a_window_is_the_same_with_and_without_a_cache() -> None:
    shape = {"d_model": 16, "n_heads": 2, "d_ff": 32}
    config = EncoderDecoderConfig(encoding="rotary", window=1, softmax="log-length", **shape)
    torch.manual_seed(0)
    windowed = EncoderDecoder(config, n_tokens=13, pad_id=12).eval()
    source, decoder_input = random_batch()
    memory, weights = windowed.encode(source), AttentionCache()
    caches: dict[HeadSite, KeyValueCache] = {}
    steps = [windowed.decode(decoder_input[:, i : i + 1], memory, n_past=i, caches=caches) for i in range(5)]
    torch.testing.assert_close(torch.cat(steps, dim=1), windowed(source, decoder_input, weights=weights), **close)
    near = {"encoder.self": 1, "decoder.self": 1, "decoder.cross": 6}
    for site, weights_BHQK in weights.items():
        _, _, query, key = weights_BHQK.nonzero().T
        assert (query - key).abs().max() == near[f"{site.stack}.{site.kind}"]


@torch.no_grad()
def test_asking_for_weights_changes_nothing_and_gets_every_site(model: EncoderDecoder) -> None:
    (source, decoder_input), weights = random_batch(), AttentionCache()
    torch.testing.assert_close(model(source, decoder_input, weights=weights), model(source, decoder_input), **close)
    assert set(weights) == set(model.sites)
    shapes = {"encoder.self": (7, 7), "decoder.self": (5, 5), "decoder.cross": (5, 7)}
    for site, weights_BHQK in weights.items():
        assert weights_BHQK.shape == (4, 2, *shapes[f"{site.stack}.{site.kind}"])
        torch.testing.assert_close(weights_BHQK.sum(dim=-1), torch.ones(weights_BHQK.shape[:-1]), **close)
        looks_ahead = bool((weights_BHQK.triu(diagonal=1) > 0).any())
        # ALiBi as published hides what lies ahead from an encoder too.
        back_only = (site.stack == "decoder" or model.config.encoding == "alibi") and site.kind == "self"
        assert looks_ahead != back_only


@torch.no_grad()
def test_the_weights_are_those_that_were_used(model: EncoderDecoder) -> None:
    """What enters the output projection is the weights times the values, at every site."""
    (source, decoder_input), weights = random_batch(), AttentionCache()
    values: dict[Any, Tensor] = {}
    entered: dict[Any, Tensor] = {}
    hooks = []
    for block in blocks(model):
        keep_value = lambda _, given, made, site=block.site: values.update({site: made})  # noqa: E731
        keep_entered = lambda _, given, made, site=block.site: entered.update({site: given[0]})  # noqa: E731
        hooks.append(block.attention.value.register_forward_hook(keep_value))
        hooks.append(block.attention.output.register_forward_hook(keep_entered))
    model(source, decoder_input, weights=weights)
    for hook in hooks:
        hook.remove()
    assert set(weights) == set(values) == set(entered) == set(model.sites)
    for site in model.sites:
        value_BKHE = values[site].unflatten(-1, (2, 8))
        z_BQHE = torch.einsum("bhqk,bkhe->bqhe", weights[site], value_BKHE)
        torch.testing.assert_close(entered[site], z_BQHE.flatten(start_dim=2), **close)


def test_sites_and_heads_are_named_encoder_first(model: EncoderDecoder) -> None:
    names = ["E0", "E1", "D0", "D1", "D2", "X0", "X1", "X2"]
    assert [site.short for site in model.sites] == names
    assert [head.short for head in model.heads] == [f"{name}H{i}" for name in names for i in range(2)]
    assert {block.site for block in blocks(model)} == set(model.sites)
    assert model.decoder[1].cross_attention.site.short == "X1"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-4), (torch.bfloat16, 0.15)])
@torch.no_grad()
def test_precision_is_the_models_own(
    model: EncoderDecoder, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, decoder_input = random_batch()
    expected, copy = model(source, decoder_input), deepcopy(model).to(dtype)
    # oneDNN's bfloat16 kernels die of an illegal instruction where a virtual machine claims AMX and has none.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    for weights in (None, AttentionCache()):
        logits = copy(source, decoder_input, weights=weights)
        assert logits.dtype == dtype
        torch.testing.assert_close(logits.float(), expected, atol=tolerance, rtol=0)
    assert greedy(copy, copy.encode(source), START, 4).shape == (4, 4)


def test_a_source_longer_than_a_learned_table_is_refused(model: EncoderDecoder) -> None:
    source, decoder_input = torch.zeros(1, 17, dtype=torch.long), torch.tensor([[START]])
    if model.config.encoding == "learned":
        with pytest.raises(InputError, match="position 16 is past the end"):
            model(source, decoder_input)
    else:
        assert model(source, decoder_input).isfinite().all()
