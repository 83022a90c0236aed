"""A small seq2seq transformer that adds: "37+81" goes in, "118" comes out, character by character.

Post-LN encoder-decoder as in "Attention is all you need". All tensors are batch-first.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn as nn

PAD, SOS, EOS = 0, 1, 2
CHARS = "0123456789+"
CHAR2ID = {char: i for i, char in enumerate(CHARS, start=3)}
ID2CHAR = {i: char for char, i in CHAR2ID.items()}
VOCAB_SIZE = 3 + len(CHARS)
WEIGHTS = Path(__file__).with_name("adder.pth")


class Attention(nn.Module):
    """Multi-head attention; the head number `silent_head`, if any, says nothing."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self.silent_head: int | None = None

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L, D] -> [B, heads, L, d_k]"""
        return x.view(x.size(0), x.size(1), self.num_heads, self.d_k).transpose(1, 2)

    def forward(self, x: torch.Tensor, context: torch.Tensor, blocked: torch.Tensor) -> torch.Tensor:
        """x asks, context answers; `blocked` is True where x must not look."""
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(context)), self.split(self.W_v(context))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        scores = scores.masked_fill(blocked, -1e9)
        out = torch.matmul(torch.softmax(scores, dim=-1), v)
        if self.silent_head is not None:
            out[:, self.silent_head] = 0.0
        out = out.transpose(1, 2).reshape(x.size(0), x.size(1), -1)
        return self.W_o(out)


def feed_forward(d_model: int, d_ff: int) -> nn.Sequential:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each followed by add & norm."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int) -> None:
        super().__init__()
        self.self_attn = Attention(d_model, num_heads)
        self.ff = feed_forward(d_model, d_ff)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x: torch.Tensor, src_blocked: torch.Tensor) -> torch.Tensor:
        """[B, S, D] -> [B, S, D]"""
        x = self.norm1(x + self.self_attn(x, x, src_blocked))
        return self.norm2(x + self.ff(x))


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention and feed-forward, each followed by add & norm."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int) -> None:
        super().__init__()
        self.self_attn = Attention(d_model, num_heads)
        self.cross_attn = Attention(d_model, num_heads)
        self.ff = feed_forward(d_model, d_ff)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))

    def forward(
        self, y: torch.Tensor, memory: torch.Tensor, tgt_blocked: torch.Tensor, src_blocked: torch.Tensor
    ) -> torch.Tensor:
        """[B, T, D] -> [B, T, D]"""
        y = self.norm1(y + self.self_attn(y, y, tgt_blocked))
        y = self.norm2(y + self.cross_attn(y, memory, src_blocked))
        return self.norm3(y + self.ff(y))


class AdderTransformer(nn.Module):
    """The whole network."""

    pos_table: torch.Tensor

    def __init__(
        self, d_model: int = 48, num_heads: int = 4, num_layers: int = 2, d_ff: int = 192, max_len: int = 16
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.embed = nn.Embedding(VOCAB_SIZE, d_model)
        self.register_buffer("pos_table", sinusoids(max_len, d_model), persistent=False)
        self.encoder_layers = nn.ModuleList([EncoderLayer(d_model, num_heads, d_ff) for _ in range(num_layers)])
        self.decoder_layers = nn.ModuleList([DecoderLayer(d_model, num_heads, d_ff) for _ in range(num_layers)])
        self.fc_out = nn.Linear(d_model, VOCAB_SIZE)
        nn.init.normal_(self.embed.weight, std=d_model**-0.5)  # PyTorch's std of 1 would drown the positions

    def forward(self, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
        """Ids [B, S] and [B, T] -> logits [B, T, V] of the character after each one in tgt."""
        src_blocked = (src == PAD)[:, None, None, :]
        future = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool, device=tgt.device).triu(diagonal=1)
        tgt_blocked = (tgt == PAD)[:, None, None, :] | future
        memory, y = self.add_positions(src), self.add_positions(tgt)
        for layer in self.encoder_layers:
            memory = layer(memory, src_blocked)
        for layer in self.decoder_layers:
            y = layer(y, memory, tgt_blocked, src_blocked)
        return self.fc_out(y)

    def add_positions(self, ids: torch.Tensor) -> torch.Tensor:
        """Scaled embeddings plus sinusoids."""
        return self.embed(ids) * math.sqrt(self.d_model) + self.pos_table[: ids.size(1)]


def sinusoids(max_len: int, d_model: int) -> torch.Tensor:
    """The usual position table, [max_len, d_model]."""
    angle = torch.arange(max_len)[:, None] * torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def to_ids(texts: list[str], *, sos: bool = False, eos: bool = False) -> torch.Tensor:
    """Texts as one padded batch of ids [B, L]."""
    rows = [[SOS] * sos + [CHAR2ID[char] for char in text] + [EOS] * eos for text in texts]
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def to_text(ids: list[int]) -> str:
    """The characters up to the first EOS; an id that is no character shows as a question mark."""
    end = ids.index(EOS) if EOS in ids else len(ids)
    return "".join(ID2CHAR.get(i, "?") for i in ids[:end])


def load_adder(path: Path = WEIGHTS) -> AdderTransformer:
    """The trained adder, ready to use."""
    model = AdderTransformer()
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()
