"""A small model that learned to copy: its induction head is named, and without that head copying fails."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.analysis.roles import REPEATED, head_roles
from headcount.data.dataset import TokenizedText
from headcount.heads import HeadId
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import wrap

WORDS, LENGTH, WIDTH, STEPS = 64, 24, 64, 350


class AttentionOnly(nn.Module):
    """Two causal layers of attention, of four heads and of one, with learned positions and no other layers.

    (Of two heads in the second layer both learn induction, and either makes up for the other.)
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(nn.MultiheadAttention(WIDTH, n, batch_first=True) for n in (4, 1))
        self.norms, self.last = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2)), nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, WORDS)
        # Learned positions begin as waves: heads for the previous token then take seconds instead of minutes.
        angles = torch.arange(LENGTH)[:, None] / 100.0 ** (torch.arange(WIDTH // 2) / (WIDTH // 2))
        nn.init.normal_(self.tokens.weight, std=0.1)
        self.positions.weight.data = 0.3 * torch.cat([angles.sin(), angles.cos()], dim=1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        unseen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = norm(x)
            x = x + layer(y, y, y, attn_mask=unseen, need_weights=False)[0]
        logits: Tensor = self.output(self.last(x))
        return logits


def repeated(n: int, period: Tensor, draw: torch.Generator) -> Tensor:
    """Return random tokens that repeat after a random period, so that the copy has no fixed distance."""
    ids = torch.randint(WORDS, (n, LENGTH), generator=draw)
    return ids.gather(1, torch.arange(LENGTH)[None] % period)


def trained(seed: int) -> AttentionOnly:
    """Train on the tokens that a copy predicts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AttentionOnly()
    draw, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        period = torch.randint(4, LENGTH // 2 + 1, (64, 1), generator=draw)
        ids = repeated(64, period, draw)
        is_told = torch.arange(LENGTH - 1)[None] >= period
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (step + 1) / 50)
        optimizer.zero_grad()
        F.cross_entropy(model(ids)[:, :-1][is_told], ids[:, 1:][is_told]).backward()
        optimizer.step()
    return model.eval()


def gain(model: nn.Module, ids: Tensor) -> float:
    """Return how much lower the loss is on the second copy than on the first, in nats."""
    with torch.no_grad():
        loss = F.cross_entropy(model(ids)[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    half = LENGTH // 2
    return float(loss[:, : half - 1].mean() - loss[:, half:].mean())


@pytest.mark.slow
def test_the_induction_head_is_named_and_without_it_copies_tell_nothing() -> None:
    model = wrap(trained(0))
    draw = torch.Generator().manual_seed(1)
    ids = torch.stack([torch.randperm(WORDS, generator=draw)[: LENGTH // 2].repeat(2) for _ in range(16)])
    texts = [TokenizedText((row[None],), {"layer": list(map(str, row.tolist()))}) for row in ids]
    result = head_roles("copier", "digest", model, Sites.of(model), {REPEATED: texts}, n_controls=19)
    without = {}
    for head in result.heads:
        with Gates(model.head_sites, closed_gates(model.head_sites, [HeadId.parse(head.head)])):
            without[head.short] = gain(model, ids)
    whole, (induction,) = gain(model, ids), [each for each in result.heads if each.find("induction", REPEATED).is_named]
    assert induction.short == "L1H0"
    named = induction.named[0]
    assert (named.role, named.rank, named.rank_low, named.rank_high) == ("induction", 1, 1, 1)
    assert named.mean > 0.5 > 0.25 > named.even
    assert named.n_top is not None
    assert named.n_top > 0.9 * named.n
    assert whole > 3
    assert without["L1H0"] < 0.1 * whole, "the gain is gone"
    assert all(left > 0.5 * whole for short, left in without.items() if short != "L1H0"), "any other head may go"
