"""What does each head do for the adder? Silence one at a time and count the right sums.

python adder_ablation.py 37+81 5+99 ...     (without sums: 500 random ones)
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterator

import torch
from adder_model import EOS, PAD, SOS, AdderTransformer, Attention, load_adder, to_ids, to_text

Head = tuple[str, int, str, int]
"""Stack, layer, kind of attention, head: ("decoder", 1, "cross", 3)"""
LONGEST_ANSWER = 4

log = logging.getLogger("adder")


@torch.no_grad()
def solve(model: AdderTransformer, questions: list[str]) -> list[str]:
    """Greedy answers; each row goes on until its EOS."""
    src = to_ids(questions)
    tgt = torch.full((len(questions), 1), SOS)
    done = torch.zeros(len(questions), dtype=torch.bool)
    while tgt.size(1) <= LONGEST_ANSWER and not done.all():
        best = model(src, tgt)[:, -1].argmax(dim=-1)
        best[done] = PAD
        done |= best == EOS
        tgt = torch.cat([tgt, best[:, None]], dim=1)
    return [to_text(row) for row in tgt[:, 1:].tolist()]


def count_right(model: AdderTransformer, sums: list[tuple[str, str]]) -> int:
    """How many answers match exactly; `sums` are pairs of question and answer."""
    said = solve(model, [question for question, _ in sums])
    return sum(mine == answer for mine, (_, answer) in zip(said, sums, strict=True))


def attentions(model: AdderTransformer) -> Iterator[tuple[str, int, str, Attention]]:
    """Every attention block and where it is."""
    for i, layer in enumerate(model.encoder_layers):
        yield "encoder", i, "self", layer.self_attn
    for i, layer in enumerate(model.decoder_layers):
        yield "decoder", i, "self", layer.self_attn
        yield "decoder", i, "cross", layer.cross_attn


def ablate(model: AdderTransformer, sums: list[tuple[str, str]]) -> dict[Head | None, int]:
    """Right answers without each head, and (None) with all of them."""
    right: dict[Head | None, int] = {None: count_right(model, sums)}
    for stack, layer, kind, attention in attentions(model):
        for head in range(attention.num_heads):
            attention.silent_head = head
            right[stack, layer, kind, head] = count_right(model, sums)
        attention.silent_head = None
    return right


def main() -> None:
    """Print the table."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    rng = random.Random(1)
    questions = sys.argv[1:] or [f"{rng.randint(0, 99)}+{rng.randint(0, 99)}" for _ in range(500)]
    sums = [(question, str(sum(map(int, question.split("+"))))) for question in questions]
    for head, right in ablate(load_adder(), sums).items():
        log.info(
            "%-24s %d/%d", "all heads" if head is None else "without " + " ".join(map(str, head)), right, len(sums)
        )


if __name__ == "__main__":
    main()
