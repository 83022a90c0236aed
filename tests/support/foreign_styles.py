"""Attention as strangers write it: the same layers, heads counted and split in different ways."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

WIDTH, HEADS, TOKENS = 12, 3, 7


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[row, head, position, feature], looking back only."""
    future = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    score = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(future, -torch.inf)
    return score.softmax(-1) @ v


class Separate(nn.Module):
    """As textbooks have it."""

    def __init__(self) -> None:
        super().__init__()
        self.nhead, self.d_k = HEADS, WIDTH // HEADS
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.nhead, self.d_k)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


class Fused(nn.Module):
    """One layer for queries, keys and values, in that order; returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads = HEADS
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        q, k, v = (each.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=-1))
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2)), None


class Braided(nn.Module):
    """One layer, head by head: each head's query, key and value side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.to_qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(x).unflatten(-1, (self.heads, -1)).transpose(1, 2).chunk(3, dim=-1)
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


class ByWidth(nn.Module):
    """Its width is an attribute, from which the heads' size is computed every time."""

    def __init__(self) -> None:
        super().__init__()
        self.d_model, self.h = WIDTH, HEADS
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, length = x.shape[:2]
        q, k, v = (f(x).view(n, length, self.h, self.d_model // self.h).transpose(1, 2) for f in self.linears)
        return self.out(attend(q, k, v).transpose(1, 2).contiguous().view(n, length, self.d_model))


class ByInput(nn.Module):
    """As in nanoGPT: the width is that of the input, so a narrower z does not fit the code."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.n_embd = HEADS, WIDTH
        self.c_attn, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (each.view(n, length, self.n_head, width // self.n_head).transpose(1, 2) for each in parts)
        return self.out(attend(q, k, v).transpose(1, 2).contiguous().view(n, length, width))


class OneKey(nn.Module):
    """All queries share keys and values, which therefore stay; distances count differently for every head."""

    slopes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.size = HEADS, WIDTH // HEADS
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * self.size)
        self.out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))
        self.register_buffer("slopes", 0.5 ** torch.arange(1, HEADS + 1)[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.num_heads, self.size)).transpose(1, 2)
        k, v = (each[:, None] for each in self.kv(x).chunk(2, dim=-1))
        place = torch.arange(x.shape[1], dtype=torch.float32)
        score = q @ k.transpose(-2, -1) - self.slopes * (place[:, None] - place).abs()
        return self.out((score.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Raw(nn.Module):
    """No layers, only parameters: where a head's weights are is nobody's guess."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, HEADS, WIDTH, WIDTH // HEADS) / 4)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = torch.einsum("bld,shde->sbhle", x, self.w)
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


class Stack(nn.Module):
    """Two such blocks and what a language model has around them."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(nn.ModuleDict({"attn": kind(), "ff": nn.Linear(WIDTH, WIDTH)}) for _ in range(2))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            predicted = layer["attn"](x)
            x = x + (predicted[0] if isinstance(predicted, tuple) else predicted)
            x = x + torch.relu(layer["ff"](x))
        return self.head(x)


class Torch(nn.Module):
    """PyTorch's own, padding and all."""

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.embed, self.head, self.batch_first = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS), batch_first
        self.whole = nn.Transformer(WIDTH, 4, 2, 2, 16, batch_first=batch_first)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]).to(x)
        x = x if self.batch_first else x.transpose(0, 1)
        predicted = self.whole(x, x, tgt_mask=mask, src_key_padding_mask=ids == 0, memory_key_padding_mask=ids == 0)
        return self.head(predicted if self.batch_first else predicted.transpose(0, 1))
