"""Attention whose output projection is a parameter, or whose heads have an axis of their own in z."""

from __future__ import annotations

import math
from typing import Any

import torch
from foreign_models import N_TOKENS
from torch import Tensor, nn
from torch.nn import functional as F

D_MODEL, N_HEADS, D_HEAD, N_CLASSES = 16, 4, 8, 5


class Attention(nn.Module):
    """Queries, keys, values and output projection as parameters, z as [batch, head, position, d_head]."""

    def __init__(self) -> None:
        super().__init__()
        self.W_QKV = nn.Parameter(torch.randn(3, N_HEADS, D_MODEL, D_HEAD) / math.sqrt(D_MODEL))
        self.W_O = nn.Parameter(torch.randn(N_HEADS, D_HEAD, D_MODEL) / math.sqrt(N_HEADS * D_HEAD))
        self.b_O = nn.Parameter(torch.randn(D_MODEL) / 4)
        self.hook_z = nn.Identity()

    def heads(self, x: Tensor) -> Tensor:
        """The heads' outputs, [batch, head, position, d_head]."""
        q, k, v = torch.einsum("bpm,thmd->tbhpd", x, self.W_QKV)
        return (3 * q @ k.transpose(-2, -1) / math.sqrt(D_HEAD)).softmax(dim=-1) @ v

    def forward(self, x: Tensor) -> Tensor:
        return self.projected(self.hook_z(self.heads(x)))

    def projected(self, z: Tensor) -> Tensor:
        return torch.einsum("bhpd,hdm->bpm", z, self.W_O) + self.b_O


class PositionFirst(Attention):
    """z as [batch, position, head, d_head]."""

    def heads(self, x: Tensor) -> Tensor:
        return super().heads(x).transpose(1, 2)

    def projected(self, z: Tensor) -> Tensor:
        return torch.einsum("bphd,hdm->bpm", z, self.W_O) + self.b_O


class HeadByHead(Attention):
    """Each head is projected by its own matrix; the sum over heads comes afterwards."""

    def projected(self, z: Tensor) -> Tensor:
        return (z @ self.W_O).sum(dim=1) + self.b_O


class SideBySide(Attention):
    """z as [batch, position, head * d_head], and a view of the parameter."""

    def heads(self, x: Tensor) -> Tensor:
        return super().heads(x).transpose(1, 2).flatten(start_dim=2)

    def projected(self, z: Tensor) -> Tensor:
        return F.linear(z, self.W_O.flatten(end_dim=1).T, self.b_O)


class Projection(nn.Module):
    """A module that projects z of four axes."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(N_HEADS, D_HEAD, D_MODEL) / math.sqrt(N_HEADS * D_HEAD))
        self.bias = nn.Parameter(torch.randn(D_MODEL) / 4)

    def forward(self, z: Tensor) -> Tensor:
        return torch.tensordot(z.transpose(1, 2), self.kernel, dims=2) + self.bias


class ByModule(Attention):
    """z as [batch, head, position, d_head] is given to a module."""

    def __init__(self) -> None:
        super().__init__()
        self.out = Projection()

    def projected(self, z: Tensor) -> Tensor:
        projected: Tensor = self.out(z)
        return projected


class Block(nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.norm, self.attn, self.second_norm = nn.LayerNorm(D_MODEL), attention, nn.LayerNorm(D_MODEL)
        self.mlp = nn.Sequential(nn.Linear(D_MODEL, 24), nn.GELU(), nn.Linear(24, D_MODEL))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.mlp(self.second_norm(x))


class ParameterModel(nn.Module):
    """A classifier of sequences; `without` sets the outputs of heads (layer, head) to zero by hand."""

    def __init__(self, attention: type[Attention], n_layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(N_TOKENS, D_MODEL), nn.Embedding(16, D_MODEL)
        self.layers = nn.ModuleList(Block(attention()) for _ in range(n_layers))
        self.to_logits = nn.Linear(D_MODEL, N_CLASSES)

    def forward(self, tokens: Tensor) -> Any:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.to_logits(x.mean(dim=1))


def parameter_model(attention: type[Attention]) -> ParameterModel:
    """A model of fixed random weights, in double precision."""
    torch.manual_seed(0)
    return ParameterModel(attention).eval().double()
