"""A small encoder that tells whether numbers are in order: [CLS] 3 5 4 9 goes in, one of two logits comes out.

Pre-LN, one fused projection for queries, keys and values, a learned table of positions. Class 0 is "sorted".
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

N_VALUES = 100
CLS, PAD = N_VALUES, N_VALUES + 1
CLASSES = ("sorted", "unsorted")
MAX_LEN = 64
WEIGHTS = Path(__file__).with_name("sorter.pth")


class SelfAttention(nn.Module):
    """Multi-head attention; the head number `silent_head`, if any, says nothing."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.silent_head: int | None = None

    def forward(self, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """[B, L, D] -> [B, L, D]; `visible` [B, 1, 1, L] is False at padding."""
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        if self.silent_head is not None:
            out = out.clone()
            out[:, self.silent_head] = 0.0
        return self.proj(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Self-attention and feed-forward, each behind a norm."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """[B, L, D] -> [B, L, D]"""
        x = x + self.attn(self.norm1(x), visible)
        return x + self.mlp(self.norm2(x))


class Sorter(nn.Module):
    """The whole network."""

    def __init__(self, dim: int = 32, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(N_VALUES + 2, dim)
        self.places = nn.Embedding(MAX_LEN + 1, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 2)
        nn.init.normal_(self.places.weight, std=0.3)
        with torch.no_grad():  # a number's size as a ramp, so that order is not to be learned 100 times over
            ramp = torch.linspace(-2, 2, N_VALUES)[:, None].expand(-1, 8)
            self.tokens.weight.mul_(0.1)[:N_VALUES, :8] = ramp

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids [B, L], the first of each row CLS -> logits [B, 2]."""
        visible = (ids != PAD)[:, None, None, :]
        x = self.tokens(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x, visible)
        return self.head(self.norm(x[:, 0]))


def to_ids(rows: list[list[int]]) -> torch.Tensor:
    """Sequences of numbers as one batch of ids, CLS first, padded behind."""
    longest = max(map(len, rows))
    if longest > MAX_LEN:
        raise ValueError(f"{longest} numbers; the sorter has positions for {MAX_LEN}")
    return torch.tensor([[CLS, *row] + [PAD] * (longest - len(row)) for row in rows])


def load_sorter(path: Path = WEIGHTS) -> Sorter:
    """The trained sorter, ready to use."""
    model = Sorter()
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()
