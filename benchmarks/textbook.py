"""A forward pass with headcount's weights, written as in the exercise's solutions.

Masks are always built and applied, and attention weights are always computed. For every token, decoding runs the whole
model again on the source and on all tokens so far.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.encodings.base import Positions
from headcount.models.attention import MultiHeadAttention
from headcount.models.transformer import AttentionBlock, EncoderDecoder, FeedForward

ZeroedHead = tuple[MultiHeadAttention, int]
"""A head whose output is set to zero: its attention module and its index."""


def attention(
    module: MultiHeadAttention, x: Tensor, source: Tensor, mask: Tensor, zeroed: ZeroedHead | None = None
) -> Tensor:
    """Return the output of multi-head attention with a 0/1 mask, and with one head's output set to zero."""
    batch, heads = len(x), module.n_heads
    q = module.query(x).view(batch, -1, heads, x.shape[-1] // heads).transpose(1, 2)
    k = module.key(source).view(batch, -1, heads, x.shape[-1] // heads).transpose(1, 2)
    v = module.value(source).view(batch, -1, heads, x.shape[-1] // heads).transpose(1, 2)
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores.masked_fill(mask == 0, -1e9), dim=-1)
    z = torch.matmul(weights, v)
    if zeroed is not None and zeroed[0] is module:
        head_mask = torch.ones(1, heads, 1, 1)
        head_mask[:, zeroed[1]] = 0
        z = z * head_mask
    return module.output(z.transpose(1, 2).contiguous().view(batch, -1, x.shape[-1]))


def forward(model: EncoderDecoder, source: Tensor, decoder_input: Tensor, zeroed: ZeroedHead | None = None) -> Tensor:
    """Return the logits of a pre-LN model."""
    source_mask = (source != model.pad_id).unsqueeze(1).unsqueeze(2)
    causal = torch.tril(torch.ones(decoder_input.shape[1], decoder_input.shape[1])).unsqueeze(0).unsqueeze(0)
    x = model.source_positions(model.source_tokens(source), Positions.in_order(source.shape[1], source.device))
    for layer in model.encoder:
        x = _attend(layer.self_attention, x, None, source_mask, zeroed)
        x = _transform(layer.feed_forward, x)
    memory = model.encoder_norm(x)
    x = model.target_positions(
        model.target_tokens(decoder_input), Positions.in_order(decoder_input.shape[1], decoder_input.device)
    )
    for layer in model.decoder:
        x = _attend(layer.self_attention, x, None, causal, zeroed)
        x = _attend(layer.cross_attention, x, memory, source_mask, zeroed)
        x = _transform(layer.feed_forward, x)
    return model.to_logits(model.decoder_norm(x))


@torch.no_grad()
def generate(
    model: EncoderDecoder, source: Tensor, first: int, n_tokens: int, zeroed: ZeroedHead | None = None
) -> Tensor:
    """Return the answer tokens of greedy decoding without a cache."""
    predicted = torch.full((len(source), 1), first)
    for _ in range(n_tokens):
        predicted = torch.cat([predicted, forward(model, source, predicted, zeroed)[:, -1:].argmax(dim=-1)], dim=1)
    return predicted[:, 1:]


def _attend(block: AttentionBlock, x: Tensor, memory: Tensor | None, mask: Tensor, zeroed: ZeroedHead | None) -> Tensor:
    normed = block.residual.norm(x)
    return x + attention(block.attention, normed, normed if memory is None else memory, mask, zeroed)


def _transform(block: FeedForward, x: Tensor) -> Tensor:
    return x + block.layers(block.residual.norm(x))
