"""The two transformers that headcount trains, and the layers they share.

An encoder-decoder encodes a source and decodes an answer, one token at a time:

    source          [3 7 4 + 8 1 4]  -> encoder -> memory
    decoder input   [<s> 1 1 8]      -> decoder, attending to the memory -> logits for [1 1 8 8]

A classifier consists of layers over a sequence, a pooling, and one logit per class:

    numbers         [3 5 5 9]        -> layers -> pooling -> logits [unsorted, sorted]
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.encodings.base import Encoding, Positions, build_encoding
from headcount.heads import HeadId, HeadSite
from headcount.models.attention import AttentionReader, KeyValueCache, MultiHeadAttention
from headcount.models.config import POOLINGS, ClassifierConfig, EncoderDecoderConfig, StackConfig
from headcount.models.masking import AttentionMask, Padding, padding_of
from headcount.models.poolings import Pooling

Stream = Float[Tensor, "batch length d_model"]
Rows = Float[Tensor, "#batch length d_model"]
"""A residual stream, which may have a single row (example) that attends to an encoder memory of many rows."""
SourceStream = Float[Tensor, "batch source d_model"]
Caches = dict[HeadSite, KeyValueCache]
Tokens = Int[Tensor, "batch length"]
DecoderInput = Int[Tensor, "#batch target"]
"""The tokens that the decoder gets; a single row is used for all sources."""
N_WAVES = 16


class Residual(nn.Module):
    """A residual connection, with LayerNorm before the block (pre) or after the sum (post).

    `reads=False` states that the block ignores its input; the LayerNorm before the block is then left out.
    """

    def __init__(self, config: StackConfig, *, reads: bool = True) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model) if reads or not self.pre else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Rows, block: Callable[[Tensor], Tensor]) -> Stream:
        """Return the residual stream after a block: x + block(x), with LayerNorm before the block or after the sum."""
        if self.pre:
            return x + self.dropout(block(self.norm(x)))
        return self.norm(x + self.dropout(block(x)))


class AttentionBlock(nn.Module):
    """One attention block: attention with its residual connection; `site` names its stack, layer and kind."""

    def __init__(self, config: StackConfig, site: HeadSite) -> None:
        super().__init__()
        self.site, kept = site, config.kept(site)
        scalable_softmax = config.softmax == "log-length"
        self.attention = (
            MultiHeadAttention(config.d_model, config.n_heads, kept=kept, scalable_softmax=scalable_softmax)
            if kept
            else HeadlessAttention(config.d_model)
        )
        self.residual = Residual(config, reads=bool(kept))

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """The heads of this block that are not cut out, in the order of their outputs."""
        return tuple(map(self.site.head, self.attention.kept))

    def drop_attention(self) -> None:
        """Cut all heads out of the block, in place: only the bias of its output projection stays.

        The LayerNorm before the block is removed as well.
        """
        assert isinstance(self.attention, MultiHeadAttention), "the block has heads"
        headless = HeadlessAttention(self.attention.output.out_features)
        headless.output["bias"] = self.attention.output.bias
        self.attention = headless
        if self.residual.pre:
            self.residual.norm = nn.Identity()

    def forward(
        self,
        x: Rows,
        memory: SourceStream | None = None,
        *,
        masking: AttentionMask | None = None,
        weights: AttentionReader | None = None,
        caches: Caches | None = None,
    ) -> Stream:
        """Return the residual stream after attention; `weights` receives the attention weights of this block."""
        cache = None if caches is None else caches.setdefault(self.site, KeyValueCache())
        read = None if weights is None else partial(weights.read, self.site)
        return self.residual(x, lambda normed: self.attention(normed, memory, masking=masking, read=read, cache=cache))


class ReLU(nn.Module):
    """The function max(x, 0), in place unless gradients are computed.

    A linear layer returns a view. When a view is changed in place, autograd copies its gradient several times, which
    took a fifth of each training step.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return max(x, 0), which replaces `x` if no gradients are computed."""
        return F.relu(x, inplace=not torch.is_grad_enabled())


class FeedForward(nn.Module):
    """Two linear layers, applied to each position separately, with a residual connection."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(config.d_model, config.d_ff), ReLU(), nn.Linear(config.d_ff, config.d_model)
        )
        self.residual = Residual(config)

    def forward(self, x: Stream) -> Stream:
        """Return the residual stream after the two layers."""
        return self.residual(x, self.layers)


class Layer(nn.Module):
    """One layer: self-attention, cross-attention to the memory (in a decoder only), and a feed-forward network."""

    def __init__(self, config: StackConfig, site: HeadSite, cross_site: HeadSite | None = None) -> None:
        super().__init__()
        self.self_attention = AttentionBlock(config, site)
        self.cross_attention = None if cross_site is None else AttentionBlock(config, cross_site)
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x: Rows,
        memory: SourceStream | None = None,
        *,
        masking: AttentionMask | None = None,
        memory_masking: AttentionMask | None = None,
        weights: AttentionReader | None = None,
        caches: Caches | None = None,
    ) -> Stream:
        """Return the residual stream after this layer."""
        x = self.self_attention(x, masking=masking, weights=weights, caches=caches)
        if self.cross_attention is not None:
            x = self.cross_attention(x, memory, masking=memory_masking, weights=weights, caches=caches)
        return self.feed_forward(x)


def initialise(module: nn.Module) -> None:
    """Initialise a linear layer as in Glorot and Bengio 2010, with zero bias."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


class HeadlessAttention(nn.Module):
    """Attention whose heads are all cut out: only the bias of the output projection remains."""

    kept: tuple[int, ...] = ()

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.output = nn.ParameterDict({"bias": torch.zeros(d_model)})  # keeps the parameter's name, output.bias

    def forward(self, x: Rows, memory: SourceStream | None = None, **ignored: object) -> Stream:
        """Return the bias alone for every row and position: the output of an attention block without heads."""
        rows = x if memory is None else memory
        return self.output["bias"].expand(len(rows), x.shape[1], -1)


# --- both models ------------------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    """Base class of the encoder-decoder and the classifier; a head keeps its name when other heads are cut out."""

    blocks: dict[HeadSite, AttentionBlock]
    """All attention blocks by their names (sites), including blocks whose heads are all cut out."""

    def __init__(self, config: StackConfig, pad_id: int | None) -> None:
        super().__init__()
        self.config, self.pad_id = config, pad_id
        self.dropout = nn.Dropout(config.dropout)

    def _complete(self) -> None:
        """Initialise all layers, and list the attention blocks; the last step of building a model."""
        self.apply(initialise)
        blocks = {module.site: module for module in self.modules() if isinstance(module, AttentionBlock)}
        self.blocks = {site: blocks[site] for site in self.config.sites}

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """The names of all attention blocks that have heads."""
        return tuple(site for site, block in self.blocks.items() if block.heads)

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """All heads of the model that were not cut out, in the order of its layers."""
        return tuple(head for block in self.blocks.values() for head in block.heads)

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """Return the heads of one attention block, in their order in the attention weights and head outputs."""
        return self.blocks[site].heads

    @property
    def projections(self) -> dict[HeadSite, nn.Linear]:
        """The output projection of every attention block that has heads; its input is the concatenated head outputs."""
        attentions = {site: block.attention for site, block in self.blocks.items()}
        return {site: module.output for site, module in attentions.items() if isinstance(module, MultiHeadAttention)}

    def _encode(
        self,
        source: Tokens,
        embed: nn.Module,
        encoding: Encoding,
        layers: nn.ModuleList,
        weights: AttentionReader | None,
        padding: Padding | None,
        *,
        causal: bool = False,
        first: int = 0,
    ) -> tuple[Stream, Bool[Tensor, "batch length"], AttentionMask]:
        """Embed and encode tokens; return the residual stream, a mask of tokens (not padding), and the attention mask.

        Padding is masked, so it never changes an answer. If `padding` does not say where there is padding, the tokens
        are read to find out, which has to wait for a GPU. `first` is added to every position id.
        """
        is_token = source == source if self.pad_id is None else source != self.pad_id
        padding = padding or padding_of(source, self.pad_id)
        where = Positions.in_order(source.shape[1], source.device)
        where = where._replace(padded=False) if padding == "none" else where._replace(n_tokens=is_token.sum(dim=1))
        where = encoding.assign_ids(where).shifted(first)
        mask = None if padding == "none" else is_token[:, None, None, :]  # kernels are faster without a mask
        causal = causal or encoding.forces_causal
        masking = AttentionMask(mask, causal, self.config.window, encoding, queries=where, keys=where, padding=padding)
        x = self.dropout(encoding(embed(source), where))
        for layer in layers:
            x = layer(x, masking=masking, weights=weights)
        return x, is_token, masking

    def _final_norm(self) -> nn.Module:
        """Return the last layer of a stack: a LayerNorm in a pre-LN model, or an identity in a post-LN model."""
        return nn.LayerNorm(self.config.d_model) if self.config.norm == "pre" else nn.Identity()


# --- encoder-decoder --------------------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """The encoder's output, with the mask for the decoder's cross-attention."""

    x: SourceStream
    masking: AttentionMask


class EncoderDecoder(Transformer):
    """A transformer that encodes a source (such as a sum's digits) and decodes the answer token by token."""

    config: EncoderDecoderConfig
    pad_id: int

    def __init__(self, config: EncoderDecoderConfig, n_tokens: int, pad_id: int) -> None:
        super().__init__(config, pad_id)
        self.source_tokens = nn.Embedding(n_tokens, config.d_model)
        self.target_tokens = nn.Embedding(n_tokens, config.d_model)
        self.source_positions = build_encoding(config, config.d_model, config.n_heads)
        self.target_positions = build_encoding(config, config.d_model, config.n_heads, causal=True)
        self.encoder = nn.ModuleList(Layer(config, HeadSite("encoder", i)) for i in range(config.n_encoder_layers))
        self.decoder = nn.ModuleList(
            Layer(config, HeadSite("decoder", i), HeadSite("decoder", i, "cross"))
            for i in range(config.n_decoder_layers)
        )
        self.encoder_norm, self.decoder_norm = self._final_norm(), self._final_norm()
        self.to_logits = nn.Linear(config.d_model, n_tokens)
        self._complete()

    def forward(
        self,
        source: Tokens,
        decoder_input: DecoderInput,
        *,
        weights: AttentionReader | None = None,
        padding: Padding | None = None,
    ) -> Float[Tensor, "batch target n_tokens"]:
        """Return the logits of the next token at each position of the decoder input.

        `weights` receives the attention weights of all attention blocks.
        """
        return self.decode(decoder_input, self.encode(source, weights=weights, padding=padding), weights=weights)

    def encode(
        self, source: Tokens, *, weights: AttentionReader | None = None, padding: Padding | None = None
    ) -> Memory:
        """Run the encoder on the source, and return its output with the mask that hides padding."""
        x, _, masking = self._encode(source, self.source_tokens, self.source_positions, self.encoder, weights, padding)
        return Memory(self.encoder_norm(x), AttentionMask(masking.mask, padding=masking.padding))

    def decode(
        self,
        decoder_input: DecoderInput,
        memory: Memory,
        *,
        n_past: int = 0,
        weights: AttentionReader | None = None,
        caches: Caches | None = None,
    ) -> Float[Tensor, "batch target n_tokens"]:
        """Return the logits of the next token at each position of the decoder input, given the encoder's output.

        With caches, the decoder input holds only new tokens, and the caches hold the `n_past` tokens before them.
        """
        new = Positions.in_order(decoder_input.shape[1], decoder_input.device, first=n_past)
        known = Positions.in_order(n_past + decoder_input.shape[1], decoder_input.device)
        masking = AttentionMask(
            causal=True, window=self.config.window, encoding=self.target_positions, queries=new, keys=known
        )
        x = self.dropout(self.target_positions(self.target_tokens(decoder_input), new))
        for layer in self.decoder:
            x = layer(x, memory.x, masking=masking, memory_masking=memory.masking, weights=weights, caches=caches)
        return self.to_logits(self.decoder_norm(x))


@torch.no_grad()
def greedy(
    model: EncoderDecoder, memory: Memory, first: int, n_tokens: int, *, use_cache: bool = True
) -> Int[Tensor, "batch n_tokens"]:
    """Return `n_tokens` tokens decoded greedily, without the start token `first`.

    With the cache, each step passes one token through the decoder; without the cache, each step passes all tokens
    again. Both give the same tokens.
    """
    caches: Caches | None = {} if use_cache else None
    predicted = torch.full((len(memory.x), 1), first, device=memory.x.device)
    for n_past in range(n_tokens):
        fed, n_before = (predicted[:, -1:], n_past) if use_cache else (predicted, 0)
        logits = model.decode(fed, memory, n_past=n_before, caches=caches)
        predicted = torch.cat([predicted, logits[:, -1:].argmax(dim=-1)], dim=1)
    return predicted[:, 1:]


# --- classifier -------------------------------------------------------------------------------------------------------


class Classifier(Transformer):
    """A transformer that classifies sequences; if `pad_id` is None, padding is treated like any other token."""

    config: ClassifierConfig

    def __init__(self, config: ClassifierConfig, n_tokens: int, n_classes: int, pad_id: int | None) -> None:
        super().__init__(config, pad_id)
        numbers = FourierNumberEmbedding if config.numbers == "fourier" else nn.Embedding
        self.tokens = numbers(n_tokens, config.d_model)
        self.positions = build_encoding(
            config, config.d_model, config.n_heads, causal=config.causal, random_positions=config.random_positions
        )
        self.layers = nn.ModuleList(Layer(config, site) for site in config.sites)
        self.norm = self._final_norm()
        self.pooling: Pooling = POOLINGS.get(config.pooling)(config.d_model)
        self.to_logits = nn.Linear(self.pooling.d_pooled, n_classes)
        self._complete()
        self.pooling.initialise_readout(self.to_logits)

    def forward(
        self, source: Tokens, *, weights: AttentionReader | None = None, first: int = 0, padding: Padding | None = None
    ) -> Float[Tensor, "batch n_classes"]:
        """Return one logit per class; `weights` receives the attention weights, `first` is the first position id."""
        parts = self.tokens, self.positions, self.layers
        x, is_token, _ = self._encode(source, *parts, weights, padding, causal=self.config.causal, first=first)
        return self.to_logits(self.pooling(self.norm(x), is_token))

    @property
    def hard_codes(self) -> tuple[str, ...]:
        """The structure of the task that the architecture gives to the model, in words; empty if it gives none."""
        window = f"window of ±{self.config.window}" if self.config.window else ""
        return tuple(filter(None, (window, self.positions.hard_codes, self.pooling.hard_codes)))


class FourierNumberEmbedding(nn.Module):
    """Embed a number v < n by a linear map of v, sin(k pi v / n) and cos(k pi v / n) for k = 1 .. 16.

    Close numbers get close vectors, which a table would have to learn number by number (after Tancik et al. 2020,
    "Fourier features let networks learn high frequency functions in low dimensional domains", arXiv 2006.10739).
    """

    waves: Tensor

    def __init__(self, n_tokens: int, d_model: int) -> None:
        super().__init__()
        share = torch.arange(n_tokens)[:, None] / n_tokens
        angle = math.pi * share * torch.arange(1, N_WAVES + 1)
        self.register_buffer("waves", torch.cat([2 * share - 1, angle.sin(), angle.cos()], dim=1), persistent=False)
        self.mix = nn.Linear(1 + 2 * N_WAVES, d_model)

    def forward(self, tokens: Tokens) -> Float[Tensor, "batch length d_model"]:
        """Return the embedding of each number: a linear mix of its sine and cosine waves."""
        return self.mix(self.waves[tokens].to(self.mix.weight.dtype))


Model = EncoderDecoder | Classifier
