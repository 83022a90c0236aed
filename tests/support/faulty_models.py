"""Models on which an instrument would not act, or a pass cannot begin late: such must be found out."""

from __future__ import annotations

import math
from typing import Any

import torch
from foreign_models import N_HEADS, Attention, D, Model
from torch import Tensor, nn
from torch.nn import functional as F

# --- what depends on more than what it is called with ---------------------------------------------------------------


class KeepsState(Model):
    """The middle layer leaves something on `self` that the last one reads."""

    def forward(self, tokens: Tensor) -> Any:
        x = self.tokens(tokens)
        for i, block in enumerate(self.blocks):
            x = block(x) if i < 2 else block(x + self.blocks[1].mlp.kept)
        return self.to_logits(self.norm(x))

    def __init__(self, n_layers: int = 3) -> None:
        super().__init__(n_layers)
        self.blocks[1].mlp = Keeper()


class Keeper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D, D)
        self.kept: Any = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.kept = x.tanh()
        return self.layer(x)


class KeepsPooledState(KeepsState):
    """What is left has one row per example and no positions, and one row serves many."""

    def __init__(self, n_layers: int = 3) -> None:
        super().__init__(n_layers)
        self.blocks[1].mlp = PooledKeeper()


class PooledKeeper(Keeper):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = x.mean(dim=1, keepdim=True).tanh()
        return self.layer(x)


class Chooses(Model):
    """Which of two early streams is read again at the end depends on the late stream."""

    def __init__(self, n_layers: int = 2) -> None:
        super().__init__(n_layers)
        self.reread, self.threshold = nn.Linear(D, D), 0.0

    def forward(self, tokens: Tensor) -> Any:
        early = self.tokens(tokens)
        other = self.norm(early)
        x = early
        for block in self.blocks:
            x = block(x)
        again = self.reread(early if float(x.mean()) > self.threshold else other)
        return self.to_logits(x + again)


# --- the instrument does not act ------------------------------------------------------------------------------------


class BypassingAttention(Attention):
    """Uses the projection's weights and never calls it."""

    def forward(self, x: Tensor) -> Any:
        return F.linear(self.z(x), self.out.weight, self.out.bias)


class Bypasses(Model):
    attention = BypassingAttention


class BypassingBesides(Attention):
    """Calls the projection, throws away what it says and computes the same by hand."""

    def forward(self, x: Tensor) -> Any:
        z = self.z(x)
        self.out(z)
        return F.linear(z, self.out.weight, self.out.bias)


class ThrowsAway(Model):
    attention = BypassingBesides


class CopyingBesides(Attention):
    """Calls the projection, throws away what it says and gives z to a copy of it."""

    def forward(self, x: Tensor) -> Any:
        z = self.z(x)
        self.out(z)
        return F.linear(z, self.out.weight.detach().clone(), self.out.bias.detach().clone())


class ThrowsAwayForACopy(Model):
    attention = CopyingBesides


class FusedBesides(Attention):
    """Calls the projection, throws away what it says and computes everything once more, as fused code does."""

    def forward(self, x: Tensor) -> Any:
        self.out(self.z(x))
        return F.linear(self.z(x), self.out.weight, self.out.bias)


class ThrowsAwayForFusedCode(Model):
    attention = FusedBesides


class WholeCopyBesides(Attention):
    """Calls the projection, throws away what it says and runs a copy of itself, whose heads nobody knows."""

    def forward(self, x: Tensor) -> Any:
        self.out(self.z(x))
        twin = Attention().to(x)
        twin.load_state_dict(self.state_dict())
        return twin(x)


class ThrowsAwayForAWholeCopy(Model):
    attention = WholeCopyBesides


class DroppingAttention(Attention):
    """Calls the projection and makes nothing of it."""

    def forward(self, x: Tensor) -> Any:
        return torch.zeros_like(self.out(self.z(x)))


class DropsItsBlocks(Model):
    """No head has any effect, and that is the truth."""

    attention = DroppingAttention


class DropsWithoutGradients(DropsItsBlocks):
    """Neither has any effect here, but a model without gradients could hide anything."""

    @torch.no_grad()
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens)


class Torchs(nn.Module):
    """PyTorch's own attention, whose output projection is a module that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(D, N_HEADS, batch_first=True)
        self.out = self.inner.out_proj

    def forward(self, x: Tensor) -> Any:
        return self.inner(x, x, x, need_weights=False)[0]


class TorchsAttention(Model):
    attention = Torchs


class Bent(nn.Linear):
    """Not linear: heads' contributions do not add up."""

    def forward(self, z: Tensor) -> Tensor:
        return super().forward(z).tanh()


class BentAttention(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.out = Bent(D, D)


class NotLinear(Model):
    attention = BentAttention


class RestoringAttention(Attention):
    """Puts its own z back in the last moment, as another instrument might."""

    def forward(self, x: Tensor) -> Any:
        z = self.z(x)
        handle = self.out.register_forward_pre_hook(lambda module, args: (z,))
        try:
            return self.out(z)
        finally:
            handle.remove()


class PutsBack(Model):
    attention = RestoringAttention


class TwiceAttention(Attention):
    def forward(self, x: Tensor) -> Any:
        z = self.z(x)
        return self.out(z) + self.out(z.flip(1))


class CallsTwice(Model):
    attention = TwiceAttention


class KeywordAttention(Attention):
    def forward(self, x: Tensor) -> Any:
        return self.out(input=self.z(x))


class ByKeyword(Model):
    attention = KeywordAttention


class NotANumber(Model):
    """Its last position is no number at all, and nobody looks there: neither heads nor the answer."""

    def forward(self, tokens: Tensor) -> Any:
        x = self.tokens(tokens)
        for block in self.blocks:
            z = F.pad(block.attn.z(x[:, :-1]), (0, 0, 0, 1), value=math.nan)
            x = x + block.attn.out(z)
        return self.to_logits(self.norm(x))[:, :-1]
