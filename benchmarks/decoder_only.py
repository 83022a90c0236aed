"""A usual decoder-only transformer: pre-LN, fused causal attention, GELU."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(z.transpose(1, 2).flatten(start_dim=2))


class Feed(nn.Module):
    """The feed-forward block."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.fc_in, self.fc_out = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_out(F.gelu(self.fc_in(x)))


class Layer(nn.Module):
    """Causal self-attention, then the feed-forward block."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn, self.mlp = Attention(d_model, n_heads), Feed(d_model)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class DecoderOnly(nn.Module):
    """The whole model, which returns the logits of the next token; weights have the names of TransformerLens' model."""

    def __init__(self, n_layers: int, d_model: int, n_heads: int, n_words: int, n_tokens: int) -> None:
        super().__init__()
        self.tok_embed, self.pos = nn.Embedding(n_words, d_model), nn.Embedding(n_tokens, d_model)
        self.layers = nn.ModuleList(Layer(d_model, n_heads) for _ in range(n_layers))
        self.ln_out = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embed(tokens) + self.pos.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.ln_out(x))
