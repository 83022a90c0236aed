"""The three transformers that headcount trains, and the layers they share.

An encoder-decoder encodes a source and decodes an answer, one token at a time:

    source          [3 7 4 + 8 1 4]  -> encoder -> memory
    decoder input   [<s> 1 1 8]      -> decoder, attending to the memory -> logits for [1 1 8 8]

A decoder-only model is one stack of layers that reads the question and the answer in one sequence:

    source and decoder input   [3 7 4 + 8 1 4 = 8 8 1]  -> layers, causal -> logits for [8 8 1 1] behind the =

A classifier consists of layers over a sequence, a pooling, and one logit per class:

    numbers         [3 5 5 9]        -> layers -> pooling -> logits [unsorted, sorted]
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.encodings.base import Encoding, Positions, build_encoding
from headcount.heads import HeadId, HeadSite
from headcount.models.attention import AttentionReader, KeyValueCache, MultiHeadAttention
from headcount.models.config import POOLINGS, ClassifierConfig, DecoderOnlyConfig, EncoderDecoderConfig, StackConfig
from headcount.models.masking import AttentionMask, Padding, padding_of
from headcount.models.poolings import Pooling
from headcount.models.windows import NearKeys, near_keys
from headcount.tasks.base import IdScheme

Stream = Float[Tensor, "batch length d_model"]
Rows = Float[Tensor, "#batch length d_model"]
"""A residual stream, which may have a single row (example) that attends to an encoder memory of many rows."""
SourceStream = Float[Tensor, "batch source d_model"]
Caches = dict[HeadSite, KeyValueCache]
Tokens = Int[Tensor, "batch length"]
DecoderInput = Int[Tensor, "#batch target"]
"""The tokens that the decoder gets; a single row is used for all sources."""
N_WAVES = 16
NEAR_FROM = 256
"""Number of tokens from which attention with a window on ids gathers the keys near each query."""


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


# --- all models -------------------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    """Base class of headcount's own models; a head keeps its name when other heads are cut out."""

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


# --- decoder-only -----------------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """The position ids of a question and of the answer behind it, up to some length."""

    ids: Int[Tensor, "#batch length"]
    is_token: Bool[Tensor, "#batch length"]
    """False at padding, which is in the question only."""
    near: NearKeys | None
    """The keys in the window of each query; None if they are not listed."""


@dataclass
class Prompt:
    """A question to a decoder-only model: its tokens, and what is known of their positions before any layer runs."""

    x: Tokens
    padding: Padding
    start: Int[Tensor, "batch 1"] | None = None
    """The number at which the ids of each row begin; None if all begin at 0."""
    layouts: dict[bool, Layout] = field(default_factory=dict)
    """The longest layout so far, without and with lists of near keys; decoding extends it by doubling."""


class DecoderOnly(Transformer):
    """A transformer of causal layers over a question and the answer to it, which it continues token by token.

    Without a scheme, the ids of positions count tokens. Padding may be anywhere in the question: it is masked, and it
    has no influence on ids.
    """

    config: DecoderOnlyConfig
    pad_id: int

    def __init__(self, config: DecoderOnlyConfig, n_tokens: int, pad_id: int, scheme: IdScheme | None = None) -> None:
        super().__init__(config, pad_id)
        self.scheme = scheme
        self.tokens = nn.Embedding(n_tokens, config.d_model)
        # With ids of the task, a key before a query may have a larger id.
        self.positions = build_encoding(config, config.d_model, config.n_heads, causal=scheme is None)
        self.layers = nn.ModuleList(Layer(config, site) for site in config.sites)
        self.norm = self._final_norm()
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
        """Return the logits of the next token at each position of the decoder input, which follows the source.

        `weights` receives the attention weights of all layers, over source and decoder input together.
        """
        return self.decode(decoder_input, self.encode(source, padding=padding), weights=weights)

    def encode(
        self, source: Tokens, *, weights: AttentionReader | None = None, padding: Padding | None = None
    ) -> Prompt:
        """Return the source as a prompt for `decode`; no layer runs, so `weights` receives nothing."""
        start = None
        if self.training and self.config.random_start is not None:
            start = torch.randint(self.config.random_start, (len(source), 1), device=source.device)
        return Prompt(source, padding or padding_of(source, self.pad_id), start)

    def decode(
        self,
        decoder_input: DecoderInput,
        memory: Prompt,
        *,
        n_past: int = 0,
        weights: AttentionReader | None = None,
        caches: Caches | None = None,
    ) -> Float[Tensor, "batch target n_tokens"]:
        """Return the logits of the next token at each position of the decoder input, which follows the prompt.

        With caches that have been used, the decoder input holds only new tokens, and the caches hold the prompt and the
        `n_past` tokens before them.
        """
        n_new = decoder_input.shape[1]
        tokens = decoder_input.expand(len(memory.x), -1)
        if not caches:
            tokens = torch.cat([memory.x, tokens], dim=1)
        n_known = memory.x.shape[1] + n_past + n_new
        first = n_known - tokens.shape[1]
        lists_keys = self.config.window is not None and n_known > NEAR_FROM and weights is None
        layout = self._layout(memory, n_past + n_new, lists_keys and not torch.compiler.is_compiling())
        n_tokens = memory.x.new_full((1,), n_known)
        queries, keys = (Positions(layout.ids[:, start:n_known], n_tokens) for start in (first, 0))
        masking = AttentionMask(
            None if memory.padding == "none" else layout.is_token[:, None, None, :n_known],
            causal=True,
            encoding=self.positions,
            queries=queries,
            keys=keys,
            padding=memory.padding,
            id_window=self.config.window,
            near=None if layout.near is None else layout.near.of_queries(slice(first, n_known)),
        )
        x = self.dropout(self.positions(self.tokens(tokens), queries))
        for layer in self.layers:
            x = layer(x, masking=masking, weights=weights, caches=caches)
        return self.to_logits(self.norm(x[:, -n_new:]))

    def _layout(self, prompt: Prompt, n_fed: int, lists_keys: bool) -> Layout:
        """Return the ids of a prompt and of at least `n_fed` tokens behind it."""
        n_source, known = prompt.x.shape[1], prompt.layouts.get(lists_keys)
        if known is None or known.ids.shape[1] < n_source + n_fed:
            n_fed = n_fed if known is None else 2 * n_fed
            ids = self.ids(prompt.x, n_fed, prompt.start)
            is_token = prompt.x != self.pad_id
            is_token = torch.cat([is_token, is_token.new_ones(len(is_token), n_fed)], dim=1)
            near = None
            if lists_keys and self.config.window is not None:
                near = near_keys(ids, self.config.window, None if prompt.padding == "none" else is_token)
            known = prompt.layouts[lists_keys] = Layout(ids, is_token, near)
        return known

    def ids(self, source: Tokens, n_fed: int, start: Int[Tensor, "batch 1"] | None = None) -> Int[Tensor, "#batch all"]:
        """Return the position ids of a source and of `n_fed` tokens behind it; `start` is added to each row's ids."""
        source_places, fed_places = (torch.arange(n, device=source.device)[None] for n in (source.shape[1], n_fed))
        if self.scheme is None:
            n_before = (source != self.pad_id).cumsum(dim=1)
            parts = (n_before - 1).clamp(min=0), n_before[:, -1:] + fed_places
        else:
            parts = self.scheme.ids(source, source_places, fed_places)
        n_rows = max(map(len, parts))
        ids = torch.cat([part.expand(n_rows, -1) for part in parts], dim=1)
        if start is None:
            return ids
        moves = (ids > 0) if self.scheme is not None and self.scheme.zero_is_fixed else torch.ones_like(ids)
        return ids + moves * start

    @property
    def hard_codes(self) -> tuple[str, ...]:
        """The structure of the task that the architecture gives to the model, in words; empty if it gives none."""
        window = f"window of ±{self.config.window} on the ids" if self.config.window else ""
        return tuple(filter(None, (self.scheme.hard_codes if self.scheme else "", window, self.positions.hard_codes)))


# --- decoding ---------------------------------------------------------------------------------------------------------

SequenceTransformer = EncoderDecoder | DecoderOnly
"""A transformer that answers token by token."""


@torch.no_grad()
def greedy(
    model: SequenceTransformer,
    memory: Memory | Prompt,
    first: int,
    n_tokens: int,
    *,
    use_cache: bool = True,
    end_id: int | None = None,
) -> Int[Tensor, "batch n_tokens"]:
    """Return `n_tokens` tokens decoded greedily, without the start token `first`.

    With the cache, each step passes one token through the decoder; without the cache, each step passes all tokens
    again. Both give the same tokens. Behind its first token `end_id`, a row is filled with this token, and decoding
    stops when all rows have it.
    """
    caches: Caches | None = {} if use_cache else None
    predicted = torch.full((len(memory.x), 1 + n_tokens), first, device=memory.x.device)
    has_ended = torch.zeros(len(predicted), dtype=torch.bool, device=predicted.device)
    for n_past in range(n_tokens):
        fed, n_before = (predicted[:, n_past : n_past + 1], n_past) if use_cache else (predicted[:, : n_past + 1], 0)
        token = model.decode(fed, memory, n_past=n_before, caches=caches)[:, -1].argmax(dim=-1)  # type: ignore[arg-type]
        if end_id is not None:
            token = token.masked_fill(has_ended, end_id)
            has_ended |= token == end_id
        predicted[:, n_past + 1] = token
        if end_id is not None and has_ended.all():
            predicted[:, n_past + 2 :] = end_id
            break
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


Model = EncoderDecoder | DecoderOnly | Classifier
