"""An adapter: one class that makes your own model usable by every verb of headcount.

    python examples/my_adapter.py                          train for a few seconds: writes my_model.pt beside this file
    headcount ablate examples/my_adapter.py:Model
    headcount heads examples/my_adapter.py:Model --on "3 5 4 9"

The model classifies whether a sequence of numbers is sorted, which is one of headcount's own tasks. For your own data,
write `data()` instead of `task`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from headcount import Adapter, Sites

TASK = {"n_values": 20, "shortest": 3, "longest": 6, "n_validation": 200, "n_test": 200}
PAD = TASK["n_values"]


class Sorter(nn.Module):
    """Any module works; here one attention layer over numbers and their positions."""

    def __init__(self, d: int = 32, n_heads: int = 4) -> None:
        super().__init__()
        self.numbers, self.positions, self.n_heads = nn.Embedding(PAD + 1, d), nn.Embedding(16, d), n_heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.classify = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of unsorted and sorted, [row, 2]."""
        token_mask = ids != PAD
        x = self.numbers(ids) + self.positions.weight[: ids.shape[1]]
        q, k, v = (part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        z = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=token_mask[:, None, None])
        x = nn.functional.relu(x + self.out(z.transpose(1, 2).flatten(start_dim=2)))
        return self.classify((x * token_mask[..., None]).sum(dim=1))


class Model(Adapter):
    """The adapter: all that headcount needs to know about the model."""

    checkpoint = "my_model.pt"
    task, settings = "sortedness", TASK

    def build(self) -> nn.Module:
        """Return the model with random weights."""
        return Sorter()

    def sites(self, model: nn.Module) -> Sites:
        """Return the output projection, where the heads are joined."""
        return Sites.of(model, "out", n_heads=4)

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the inputs of the model and the labels that it should output."""
        rows = [torch.tensor([int(number) for number in question.split()]) for question in questions]
        labels = torch.tensor([["unsorted", "sorted"].index(answer) for answer in answers])
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD), labels


def train(file: Path, steps: int = 600) -> None:
    """Train the model on examples of headcount's task; your own training goes here."""
    from headcount.seeds import stream
    from headcount.tasks.sortedness import Sortedness, SortednessConfig

    torch.manual_seed(0)
    task, rng, model = Sortedness(SortednessConfig(**TASK)), stream(0, "my training"), Sorter()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        examples = task.sample(rng, 128)
        ids, labels = Model().encode([task.show(row) for row in examples], [task.answer(row) for row in examples])
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), file)
    print(f"wrote {file}, loss {loss.item():.3f}: now headcount ablate {Path(__file__)}:Model")


if __name__ == "__main__":
    train(Path(__file__).with_name("my_model.pt"))
