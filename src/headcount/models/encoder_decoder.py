"""The encoder-decoder transformer: reads a source, writes an answer one token at a time.

source [3 7 4 + 8 1 4] -> encoder -> memory
fed    [<s> 1 1 8]     -> decoder, looking at the memory -> logits for [1 1 8 8]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headcount.encodings.base import Positions, build_encoding
from headcount.models.attention import AttentionReader
from headcount.models.blocks import Caches, DecoderLayer, EncoderLayer, Transformer, initialise
from headcount.models.config import EncoderDecoderConfig
from headcount.models.masking import AttentionMask, Padding, padding_mask, padding_of


class Memory(NamedTuple):
    """What the encoder hands to the decoder, and where it is padding."""

    x: Float[Tensor, "batch source d_model"]
    mask: Bool[Tensor, "batch 1 1 source"] | None
    padding: Padding = "anywhere"


class EncoderDecoder(Transformer):
    """Built from its settings and the task's vocabulary."""

    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig, n_tokens: int, pad_id: int) -> None:
        super().__init__()
        self.config = config
        self.pad_id = pad_id
        self.source_tokens = nn.Embedding(n_tokens, config.d_model)
        self.target_tokens = nn.Embedding(n_tokens, config.d_model)
        self.source_positions = build_encoding(config, config.d_model, config.n_heads)
        self.target_positions = build_encoding(config, config.d_model, config.n_heads, causal=True)
        sites = [site for site in config.sites if site.stack == "encoder"]
        self.encoder = nn.ModuleList(EncoderLayer(config, site) for site in sites)
        self.decoder = nn.ModuleList(DecoderLayer(config, i) for i in range(config.n_decoder_layers))
        # Pre-LN leaves the stream unnormalised at the end of a stack; post-LN has just normalised it.
        final = nn.LayerNorm if config.norm == "pre" else nn.Identity
        self.encoder_norm = final(config.d_model)
        self.decoder_norm = final(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.to_logits = nn.Linear(config.d_model, n_tokens)
        self.apply(initialise)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        decoder_input: Int[Tensor, "#batch target"],
        *,
        weights: AttentionReader | None = None,
        padding: Padding | None = None,
    ) -> Float[Tensor, "batch target n_tokens"]:
        """Logits after every fed token; `weights` is shown each site's attention weights.

        One row of fed tokens serves all sources. Unless `padding` says where sources may have some, they are read to
        find out, which waits for a GPU.
        """
        memory = self.encode(source, weights=weights, padding=padding)
        return self.decode(decoder_input, memory, weights=weights)

    def encode(
        self,
        source: Int[Tensor, "batch source"],
        *,
        weights: AttentionReader | None = None,
        padding: Padding | None = None,
    ) -> Memory:
        """Read the source. Padding is masked, so it never changes an answer."""
        is_token = source != self.pad_id
        padding = padding or padding_of(source, self.pad_id)
        mask, encoding = padding_mask(is_token, padding), self.source_positions
        where = Positions.of_tokens(is_token, padded=padding != "none")
        masking = AttentionMask(
            mask, encoding.forces_causal, self.config.window, encoding, queries=where, keys=where, padding=padding
        )
        x = self.dropout(self.source_positions(self.source_tokens(source), where))
        for layer in self.encoder:
            x = layer(x, masking, weights)
        return Memory(self.encoder_norm(x), mask, padding)

    def decode(
        self,
        decoder_input: Int[Tensor, "#batch target"],
        memory: Memory,
        *,
        n_past: int = 0,
        weights: AttentionReader | None = None,
        caches: Caches | None = None,
    ) -> Float[Tensor, "batch target n_tokens"]:
        """Logits after each fed token; with caches, `n_past` tokens went before and are not fed again."""
        new = Positions.in_order(decoder_input.shape[1], decoder_input.device, first=n_past)
        heard = Positions.in_order(n_past + decoder_input.shape[1], decoder_input.device)
        masking = AttentionMask(
            causal=True, window=self.config.window, encoding=self.target_positions, queries=new, keys=heard
        )
        memory_masking = AttentionMask(memory.mask, padding=memory.padding)
        x = self.dropout(self.target_positions(self.target_tokens(decoder_input), new))
        for layer in self.decoder:
            x = layer(x, memory.x, masking=masking, memory_masking=memory_masking, weights=weights, caches=caches)
        logits: Tensor = self.to_logits(self.decoder_norm(x))
        return logits


# --- decoding ---------------------------------------------------------------------------------------------------------
# Greedy decoding: the model hears only what it said itself.


@torch.no_grad()
def greedy(
    model: EncoderDecoder,
    memory: Memory,
    first: int,
    n_tokens: int,
    *,
    use_cache: bool = True,
) -> Int[Tensor, "batch n_tokens"]:
    """The `n_tokens` tokens that the model writes about `memory` after it is fed `first`.

    With the cache each step feeds one token; without it each step feeds all tokens again. Same tokens either way.
    """
    caches: Caches | None = {} if use_cache else None
    predicted = torch.full((len(memory.x), 1), first, device=memory.x.device)
    for n_past in range(n_tokens):
        if use_cache:
            logits = model.decode(predicted[:, -1:], memory, n_past=n_past, caches=caches)
        else:
            logits = model.decode(predicted, memory)
        predicted = torch.cat([predicted, logits[:, -1:].argmax(dim=-1)], dim=1)
    return predicted[:, 1:]
