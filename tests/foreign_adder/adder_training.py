"""Train the adder on fresh random sums: python adder_training.py [--seed 0] [--steps 1000] [--out adder.pth]"""

from __future__ import annotations

import argparse
import logging
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from adder_ablation import count_right
from adder_model import PAD, WEIGHTS, AdderTransformer, to_ids

log = logging.getLogger("adder")
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
WARMUP = 200
BIGGEST = 99


def random_sums(rng: random.Random, n: int) -> list[tuple[str, str]]:
    """Questions and answers such as ("37+81", "118")."""
    pairs = [(rng.randint(0, BIGGEST), rng.randint(0, BIGGEST)) for _ in range(n)]
    return [(f"{a}+{b}", str(a + b)) for a, b in pairs]


def all_sums() -> list[tuple[str, str]]:
    """Every question there is, with its answer."""
    numbers = range(BIGGEST + 1)
    return [(f"{a}+{b}", str(a + b)) for a in numbers for b in numbers]


def learning_rate(step: int, steps: int) -> float:
    """Up during the warm-up, then down to zero in a straight line."""
    return LEARNING_RATE * min((step + 1) / WARMUP, 1 - step / steps)


def train(seed: int, steps: int) -> AdderTransformer:
    """A trained model."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = AdderTransformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    for step in range(steps):
        questions, answers = map(list, zip(*random_sums(rng, BATCH_SIZE), strict=True))
        logits = model(to_ids(questions), to_ids(answers, sos=True))
        loss = F.cross_entropy(logits.transpose(1, 2), to_ids(answers, eos=True), ignore_index=PAD)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            right = count_right(model, random_sums(random.Random(step), 500))
            log.info("step %5d  loss %.4f  right %d/500", step + 1, loss.item(), right)
    return model.eval()


def main() -> None:
    """Train, test on everything, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    start = time.time()
    model = train(args.seed, args.steps)
    right, n = count_right(model, all_sums()), len(all_sums())
    log.info("%d of all %d sums right, %.0f s", right, n, time.time() - start)
    torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
