"""The classifier: layers over a sequence, a pooling, and one logit per class.

numbers [3 5 5 9] -> layers -> pooling -> logits [unsorted, sorted]
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headcount.encodings.base import Positions, build_encoding
from headcount.models.attention import AttentionReader
from headcount.models.blocks import EncoderLayer, Transformer, initialise
from headcount.models.config import POOLINGS, ClassifierConfig
from headcount.models.masking import AttentionMask, Padding, padding_mask, padding_of
from headcount.models.poolings import Pooling


class Classifier(Transformer):
    """Built from its settings and the task's vocabulary; without a `pad_id`, padding is read like anything else."""

    config: ClassifierConfig

    def __init__(self, config: ClassifierConfig, n_tokens: int, n_classes: int, pad_id: int | None) -> None:
        super().__init__()
        self.config = config
        self.pad_id = pad_id
        numbers = FourierNumberEmbedding if config.numbers == "fourier" else nn.Embedding
        self.tokens = numbers(n_tokens, config.d_model)
        self.positions = build_encoding(
            config, config.d_model, config.n_heads, causal=config.causal, random_positions=config.random_positions
        )
        self.layers = nn.ModuleList(EncoderLayer(config, site) for site in config.sites)
        # Pre-LN leaves the stream unnormalised at the end of a stack; post-LN has just normalised it.
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.pooling: Pooling = POOLINGS.get(config.pooling)(config.d_model)
        self.to_logits = nn.Linear(self.pooling.d_pooled, n_classes)
        self.apply(initialise)

    def forward(
        self,
        source: Int[Tensor, "batch length"],
        *,
        weights: AttentionReader | None = None,
        first: int = 0,
        padding: Padding | None = None,
    ) -> Float[Tensor, "batch n_classes"]:
        """One logit per class; `weights` is shown each site's attention weights, `first` is added to every id.

        Unless `padding` says where there may be some, the tokens are read to find out, which waits for a GPU.
        """
        is_token = self._is_token(source)
        padding = padding or padding_of(source, self.pad_id)
        where = self.positions.assign_ids(Positions.of_tokens(is_token, padded=padding != "none")).shifted(first)
        masking = AttentionMask(
            padding_mask(is_token, padding),
            causal=self.config.causal or self.positions.forces_causal,
            window=self.config.window,
            encoding=self.positions,
            queries=where,
            keys=where,
            padding=padding,
        )
        x = self.dropout(self.positions(self.tokens(source), where))
        for layer in self.layers:
            x = layer(x, masking, weights)
        return self.to_logits(self.pooling(self.norm(x), is_token))

    def _is_token(self, source: Tensor) -> Bool[Tensor, "batch length"]:
        return source == source if self.pad_id is None else source != self.pad_id

    @property
    def hard_codes(self) -> tuple[str, ...]:
        """The structure of the task that this model was given; nothing if it is generic."""
        window = f"window of ±{self.config.window}" if self.config.window else ""
        return tuple(filter(None, (window, self.positions.hard_codes, self.pooling.hard_codes)))


# --- numbers ----------------------------------------------------------------------------------------------------------
# How numbers enter a model: by a table, or by waves of their value.


N_WAVES = 16


class FourierNumberEmbedding(nn.Module):
    """A linear map of v, sin(k pi v / n) and cos(k pi v / n) for k = 1 .. 16, of the value v among n.

    Near numbers get near vectors, which a table would have to learn number by number (after Tancik et al. 2020,
    "Fourier features let networks learn high frequency functions in low dimensional domains", arXiv 2006.10739).
    """

    waves: Tensor

    def __init__(self, n_tokens: int, d_model: int) -> None:
        super().__init__()
        share = torch.arange(n_tokens)[:, None] / n_tokens
        angle = math.pi * share * torch.arange(1, N_WAVES + 1)
        self.register_buffer("waves", torch.cat([2 * share - 1, angle.sin(), angle.cos()], dim=1), persistent=False)
        self.mix = nn.Linear(1 + 2 * N_WAVES, d_model)

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length d_model"]:
        """The vector of each number."""
        return self.mix(self.waves[tokens].to(self.mix.weight.dtype))
