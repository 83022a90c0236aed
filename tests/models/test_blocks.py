"""Our layers and PyTorch's, with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headcount.heads import HeadSite
from headcount.models.attention import AttentionCache, MultiHeadAttention
from headcount.models.config import EncoderDecoderConfig
from headcount.models.masking import AttentionMask
from headcount.models.transformer import FeedForward, Layer, Residual

close = {"atol": 1e-5, "rtol": 1e-5}
norms = pytest.mark.parametrize("norm", ["pre", "post"])


def config(norm: str, dropout: float = 0.0) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(d_model=16, n_heads=2, d_ff=24, norm=norm, dropout=dropout)


def scattered(module: nn.Module) -> nn.Module:
    """No weight left at 0 or 1, where a swap or an omission would not show."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copy_feed_forward(ours: FeedForward, theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> None:
    theirs.linear1.load_state_dict(ours.layers[0].state_dict())
    theirs.linear2.load_state_dict(ours.layers[2].state_dict())


@norms
@torch.no_grad()
def test_an_encoder_layer_is_pytorchs(norm: str) -> None:
    site = HeadSite("layer", 0)
    ours = scattered(Layer(config(norm), site))
    theirs = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    copy_attention(ours.self_attention.attention, theirs.self_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    theirs.norm1.load_state_dict(ours.self_attention.residual.norm.state_dict())
    theirs.norm2.load_state_dict(ours.feed_forward.residual.norm.state_dict())
    x, is_padding = torch.randn(3, 5, 16), torch.arange(5) >= torch.tensor([[5], [3], [4]])
    expected = theirs(x, src_key_padding_mask=is_padding)
    masking, weights = AttentionMask(~is_padding[:, None, None]), AttentionCache()
    torch.testing.assert_close(ours(x, masking=masking), expected, **close)
    torch.testing.assert_close(ours(x, masking=masking, weights=weights), expected, **close)
    assert {shown: tuple(kept.shape) for shown, kept in weights.items()} == {site: (3, 2, 5, 5)}


@norms
@torch.no_grad()
def test_a_decoder_layer_is_pytorchs(norm: str) -> None:
    ours = scattered(Layer(config(norm), HeadSite("decoder", 0), HeadSite("decoder", 0, "cross")))
    theirs = nn.TransformerDecoderLayer(16, 2, 24, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    copy_attention(ours.self_attention.attention, theirs.self_attn)
    copy_attention(ours.cross_attention.attention, theirs.multihead_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    blocks = (ours.self_attention, ours.cross_attention, ours.feed_forward)
    for block, their_norm in zip(blocks, (theirs.norm1, theirs.norm2, theirs.norm3), strict=True):
        their_norm.load_state_dict(block.residual.norm.state_dict())
    x, memory = torch.randn(3, 4, 16), torch.randn(3, 5, 16)
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    expected = theirs(x, memory, tgt_mask=~causal)
    torch.testing.assert_close(ours(x, memory, masking=AttentionMask(causal=True)), expected, **close)


@norms
def test_a_zeroed_block_leaves_the_stream_as_it_was(norm: str) -> None:
    residual, x = scattered(Residual(config(norm))), torch.randn(2, 3, 16)
    expected = x if norm == "pre" else residual.norm(x)
    assert torch.equal(residual(x, torch.zeros_like), expected)


@norms
def test_dropout_acts_on_the_block_and_only_in_training(norm: str) -> None:
    residual, x = Residual(config(norm, dropout=0.5)), torch.randn(2, 3, 16)

    def block(normed: Tensor) -> Tensor:
        return torch.ones_like(normed)

    torch.manual_seed(0)
    dropped = residual(x, block)
    assert not torch.allclose(dropped, residual.eval()(x, block))
    if norm == "pre":
        assert {round(added, 4) for added in (dropped - x).flatten().tolist()} == {0.0, 2.0}
