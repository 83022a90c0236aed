"""Ablate every head: of the packaged adder, and of your own module."""

from __future__ import annotations

import torch
from torch import nn

from headcount import HeadSite, ablate_heads
from headcount.hooks.sites import Site, Sites

# The packaged adder: ablate every head alone, and print the heads with the largest drop.
effects = ablate_heads("sample:addition", n=200, replacements=["zero"], quiet=True).result.heads
for effect in sorted(effects, key=lambda effect: -effect.drop)[:3]:
    print(f"{effect.short}: {100 * effect.drop:.1f} points [{100 * effect.low:.1f}, {100 * effect.high:.1f}]")


class MyModel(nn.Module):
    """Any module works if the input of its output projection holds the heads side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(10, 16), nn.Linear(16, 48)
        self.out, self.head = nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token."""
        x = self.embed(tokens)
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + self.out(z.transpose(1, 2).flatten(start_dim=2)))


torch.manual_seed(0)
model, tokens, site = MyModel(), torch.randint(10, (64, 12)), HeadSite("layer", 0)
sites = Sites({site: Site(model.out, tuple(site.head(i) for i in range(4)))})


def log_probability(logits: torch.Tensor, rows: object) -> torch.Tensor:
    """Return the mean log-probability of the next token for each row; larger is better."""
    predicted = logits[:, :-1].log_softmax(dim=-1)
    return predicted.gather(-1, tokens[rows][:, 1:, None]).mean(dim=(1, 2))


for effect in ablate_heads(model, tokens, log_probability, sites=sites, replacements=["zero"], quiet=True).result.heads:
    print(f"my {effect.short}: {effect.drop:+.4f} nats (p = {effect.p:.3f})")
