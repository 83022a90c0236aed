"""Which heads matter in a module that headcount does not know?

    python examples/foreign_module.py

A transformer with its own attention code learns a lookup: the last token is a position, and the answer is the digit at
that position. headcount only needs to know the output projections: `Sites.of(...)`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount import Sites, ablate_heads

DIGITS, D, HEADS = 8, 16, 4


class Layer(nn.Module):
    """Attention with one matrix for queries, keys and values, and unusual module names."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.back, self.norm = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        """Add the attention output to x, [row, position, D]."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.mix(self.norm(x)).chunk(3, dim=-1))
        z = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.back(z.transpose(1, 2).flatten(start_dim=2))


class Lookup(nn.Module):
    """A transformer: embeddings of digits and positions, one attention layer, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.digit, self.position, self.classify = nn.Embedding(10, D), nn.Embedding(DIGITS + 1, D), nn.Linear(D, 10)
        self.layers = nn.ModuleList([Layer()])

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the answer, [row, 10]."""
        x = self.digit(tokens) + self.position.weight
        for layer in self.layers:
            x = layer(x)
        return self.classify(x[:, -1])


def questions(n: int) -> tuple[Tensor, Tensor]:
    """Return n random rows of digits and a position, and the digit at that position."""
    tokens = torch.randint(10, (n, DIGITS + 1))
    tokens[:, -1] %= DIGITS
    return tokens, tokens[torch.arange(n), tokens[:, -1]]


def main() -> None:
    """Train for a few seconds, then ablate every head."""
    torch.manual_seed(0)
    model = Lookup()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(800):
        tokens, right = questions(128)
        loss = nn.functional.cross_entropy(model(tokens), right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tokens, right = questions(500)
    sites = Sites.of(model.eval(), "layers.*.back", n_heads=HEADS)

    def log_probability(logits: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Return the log-probability of the right answer for each row; larger is better."""
        return logits.log_softmax(dim=-1)[torch.arange(len(rows)), right[rows]]

    result = ablate_heads(model, tokens, log_probability, sites=sites, quiet=True).result
    clean = result.conditions[0]
    print(f"log-probability of the right answer: {clean.clean:.4f} on {clean.n} questions")
    for effect in result.heads:
        print(f"  {effect.short}, {effect.replacement}: {-effect.drop:+.3f} [{-effect.high:+.3f}, {-effect.low:+.3f}]")


if __name__ == "__main__":
    main()
