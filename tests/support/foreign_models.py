"""Attention as other people write it: small models in styles that ours do not have, sound ones and faulty ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.heads import HeadSite
from headcount.hooks.sites import Site, Sites

D, N_HEADS, N_TOKENS, LONGEST = 8, 2, 11, 16


class Attention(nn.Module):
    """Heads and an output projection; what is done with them is the subclass's affair."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.out = nn.Linear(D, D)

    def z(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (N_HEADS, -1)).transpose(-3, -2) for part in self.qkv(x).chunk(3, dim=-1))
        weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        return (weights @ v).transpose(-3, -2).flatten(start_dim=-2)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.z(x))


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.attn, self.second_norm = nn.LayerNorm(D), attention, nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 12), nn.GELU(), nn.Linear(12, D))

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(self.norm(x))
        return x + self.mlp(self.second_norm(x))


class Model(nn.Module):
    """Tokens, blocks, logits: `block` and `attention` may be of any style."""

    block: type[nn.Module] = Block
    attention: type[nn.Module] = Attention

    def __init__(self, n_layers: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(N_TOKENS, D)
        self.blocks = nn.ModuleList(self.block(self.attention()) for _ in range(n_layers))
        self.norm, self.to_logits = nn.LayerNorm(D), nn.Linear(D, N_TOKENS)

    def forward(self, tokens: Tensor) -> Any:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.to_logits(self.norm(x))

    @property
    def attentions(self) -> list[Any]:
        return [block.attn for block in self.blocks]

    @property
    def sites(self) -> Sites:
        names = [HeadSite("layer", i) for i in range(len(self.attentions))]
        found = zip(names, self.attentions, strict=True)
        return Sites({name: Site(each.out, tuple(map(name.head, range(N_HEADS)))) for name, each in found})


def built(kind: type[Model], **shape: Any) -> Any:
    """No weight is left at 0 or 1; in double precision, where rounding hides no fault."""
    torch.manual_seed(0)
    model = kind(**shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval().double()


# --- sound ----------------------------------------------------------------------------------------------------------


class TupleAttention(Attention):
    """Returns its weights too, or rather something in their place."""

    def forward(self, x: Tensor) -> Any:
        z = self.z(x)
        return self.out(z), z.abs().mean(dim=-1)


class TupleBlock(Block):
    def forward(self, x: Tensor) -> Any:
        said, weights = self.attn(self.norm(x))
        return x + said * (1 + weights[..., None].tanh()) + self.mlp(self.second_norm(x))  # in parallel


class Tuples(Model):
    block, attention = TupleBlock, TupleAttention


class DecoderOnly(Model):
    """Positions by a table of [length, d], a mask of [length, length]: neither has rows."""

    def __init__(self, n_layers: int = 3) -> None:
        super().__init__(n_layers)
        self.positions = nn.Embedding(LONGEST, D)
        self.squares = nn.Linear(1, 1)

    def forward(self, tokens: Tensor) -> Any:
        where = torch.arange(tokens.shape[1])
        bias = self.squares((where[:, None] - where)[..., None].to(self.norm.weight)).squeeze(-1)
        hidden = bias.masked_fill(where[:, None] < where, -torch.inf)
        x = self.tokens(tokens) + self.positions(where)
        for block in self.blocks:
            normed = block.norm(x)
            q, k, v = (t.unflatten(-1, (N_HEADS, -1)).transpose(1, 2) for t in block.attn.qkv(normed).chunk(3, dim=-1))
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=hidden).transpose(1, 2).flatten(start_dim=2)
            x = torch.add(x, block.attn.out(z))
            x = torch.add(x, block.mlp(block.second_norm(x)))
        return self.to_logits(self.norm(x))


class InPlaceBlock(Block):
    def forward(self, x: Tensor) -> Any:
        x += self.attn(self.norm(x))
        x += self.mlp(self.second_norm(x))
        return x


class InPlaceResiduals(Model):
    block = InPlaceBlock


class OntoTheOutput(Attention):
    """The stream is added in place to what the projection returned."""

    def forward(self, x: Tensor) -> Any:
        said = self.out(self.z(x))
        said += x
        return said


class OntoTheOutputBlock(Block):
    def forward(self, x: Tensor) -> Any:
        x = self.attn(x)
        x += self.mlp(self.second_norm(x))
        return self.norm(x)


class InPlaceOnTheOutput(Model):
    block, attention = OntoTheOutputBlock, OntoTheOutput


class ReluInPlace(Model):
    """Written in one piece; each MLP begins with an activation in place, which changes the stream it was given."""

    def __init__(self, n_layers: int = 3) -> None:
        super().__init__(n_layers)
        for block in self.blocks:
            block.mlp = nn.Sequential(nn.LeakyReLU(0.3, inplace=True), nn.Linear(D, D), nn.ReLU(inplace=True))

    def forward(self, tokens: Tensor) -> Any:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = x + block.attn(block.norm(x))
            said = block.mlp(x)
            x = x + said
        return self.to_logits(self.norm(x))


class Add(nn.Module):
    """Changes what it is given and returns nothing."""

    def forward(self, x: Tensor, more: Tensor) -> None:
        x.add_(more)


class AddsAndReturnsNothing(Model):
    def __init__(self, n_layers: int = 3) -> None:
        super().__init__(n_layers)
        self.add = Add()

    def forward(self, tokens: Tensor) -> Any:
        x = self.tokens(tokens)
        for block in self.blocks:
            self.add(x, block.attn(block.norm(x)))
            self.add(x, block.mlp(block.second_norm(x)))
        return self.to_logits(self.norm(x))


class SharedLayers(Model):
    """One MLP and one norm serve all blocks, several times in each."""

    def __init__(self, n_layers: int = 3) -> None:
        super().__init__(n_layers)
        for block in self.blocks[1:]:
            block.mlp, block.norm = self.blocks[0].mlp, self.blocks[0].norm

    def forward(self, tokens: Tensor) -> Any:
        x = self.blocks[0].mlp(self.tokens(tokens))
        for block in self.blocks:
            x = block.mlp(block(block.norm(x)))
        return self.to_logits(self.blocks[0].norm(x))


class ReturnsDict(Model):
    def forward(self, tokens: Tensor) -> Any:
        logits = super().forward(tokens)
        return {"logits": logits, "loss": None, "states": (logits.mean(dim=-1),)}


class Said(NamedTuple):
    logits: Tensor
    cache: tuple[Tensor, ...]


class ReturnsNamedTuple(Model):
    def forward(self, tokens: Tensor) -> Any:
        logits = super().forward(tokens)
        return Said(logits, (logits.cumsum(dim=1),))


@dataclass
class Stream:
    x: Tensor


class DataclassBlock(Block):
    """What it returns cannot be looked into."""

    def forward(self, x: Any) -> Any:
        return Stream(super().forward(x.x if isinstance(x, Stream) else x))


class Dataclasses(Model):
    block = DataclassBlock

    def forward(self, tokens: Tensor) -> Any:
        x: Any = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.to_logits(self.norm(x.x))


class KeywordBlock(Block):
    """Everything is called by keywords, but for the projection."""

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(x=self.norm(input=x))
        return x + self.mlp(input=self.second_norm(input=x))


class Keywords(Model):
    block = KeywordBlock


class FlatAttention(Attention):
    """Rows and positions are one axis where the projection meets them."""

    def forward(self, x: Tensor) -> Any:
        return self.out(self.z(x).flatten(end_dim=1)).unflatten(0, x.shape[:2])


class FlatProjection(Model):
    attention = FlatAttention


class LengthFirst(Model):
    """Inside, the first axis is the position and the second the row."""

    def forward(self, tokens: Tensor) -> Any:
        x = self.tokens(tokens).transpose(0, 1)
        for block in self.blocks:
            x = x + block.attn.out(block.attn.z(block.norm(x).transpose(0, 1)).transpose(0, 1))
            x = x + block.mlp(block.second_norm(x))
        return self.to_logits(self.norm(x)).transpose(0, 1)


class Steered(Model):
    """Somebody left hooks that change what modules return."""

    def __init__(self, n_layers: int = 3) -> None:
        super().__init__(n_layers)
        for block in self.blocks:
            block.attn.register_forward_hook(lambda module, args, said: said * 1.5)
            block.register_forward_hook(lambda module, args, said: said.tanh())
