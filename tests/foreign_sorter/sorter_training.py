"""Train the sorter on fresh sequences: python sorter_training.py [--seed 0] [--steps 2500] [--out sorter.pth]"""

from __future__ import annotations

import argparse
import logging
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from sorter_model import N_VALUES, WEIGHTS, Sorter, to_ids

log = logging.getLogger("sorter")
BATCH_SIZE = 128
LEARNING_RATE = 3e-3
WARMUP = 100
SHORTEST, LONGEST = 8, 16


def random_sequence(rng: random.Random, length: int, *, in_order: bool) -> list[int]:
    """Numbers in order, or with two neighbours of different value swapped (or, one time in three, shuffled)."""
    numbers = sorted(rng.randrange(N_VALUES) for _ in range(length))
    rises = [i for i in range(length - 1) if numbers[i] < numbers[i + 1]]
    if in_order or not rises:
        return numbers
    if rng.random() < 1 / 3:
        rng.shuffle(numbers)
    if numbers == sorted(numbers):
        i = rng.choice(rises)
        numbers[i], numbers[i + 1] = numbers[i + 1], numbers[i]
    return numbers


def random_batch(rng: random.Random, n: int) -> tuple[list[list[int]], torch.Tensor]:
    """Sequences, and the class of each: 0 in order, 1 not."""
    rows = [random_sequence(rng, rng.randint(SHORTEST, LONGEST), in_order=bool(i % 2)) for i in range(n)]
    return rows, torch.tensor([int(row != sorted(row)) for row in rows])


@torch.no_grad()
def accuracy(model: Sorter, rows: list[list[int]], classes: torch.Tensor) -> float:
    """The share of sequences that are told right."""
    return (model(to_ids(rows)).argmax(dim=1) == classes).float().mean().item()


def learning_rate(step: int, steps: int) -> float:
    """Up during the warm-up, then down to zero in a straight line."""
    return LEARNING_RATE * min((step + 1) / WARMUP, 1 - step / steps)


def train(seed: int, steps: int) -> Sorter:
    """A trained model."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = Sorter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for step in range(steps):
        rows, classes = random_batch(rng, BATCH_SIZE)
        loss = F.cross_entropy(model(to_ids(rows)), classes)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            right = accuracy(model, *random_batch(random.Random(step), 1000))
            log.info("step %5d  loss %.4f  right %.1f %%", step + 1, loss.item(), 100 * right)
    return model.eval()


def main() -> None:
    """Train, test, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    start = time.time()
    model = train(args.seed, args.steps)
    right = accuracy(model, *random_batch(random.Random(-1), 5000))
    log.info("%.1f %% right, %.0f s", 100 * right, time.time() - start)
    torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
