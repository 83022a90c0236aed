"""A sweep over the 144 heads of a model as large as GPT-2, one thread: ours, against a loop of plain hooks.

12 layers of 12 heads, 768 wide, drawn at random, on windows of 128 tokens. Its vocabulary has 500 words: with GPT-2's
50,257, a third of every pass would be the last layer, which no sweep can spare.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks import sweeps
from headcount.hooks.replay import rows_at_once
from headcount.hooks.wrapping import wrap
from headcount.training.device import n_threads

TOKENS, WORDS = 128, 500


def measure(windows: str = "32") -> Iterator[dict[str, Any]]:
    """Processor time of one sweep each, effects compared."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=TOKENS, bos_token_id=0, eos_token_id=0)).eval()
    for parameter in model.parameters():  # larger, for as they are drawn the heads do next to nothing
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=1.5 / parameter.shape[1] ** 0.5)
    plain = wrap(model, inputs=["input_ids"])
    tokens = torch.randint(WORDS, (int(windows), TOKENS), generator=torch.Generator().manual_seed(0))
    sites, at_once = plain.head_sites, rows_at_once(plain.head_sites, TOKENS)
    ways = {
        "ours": lambda: sweeps.ours(plain, sites, tokens, at_once, at_once),
        "hooks": lambda: sweeps.hooks(plain, sites, tokens),
    }
    effects, times = {}, {}
    with n_threads(1), torch.no_grad():
        for name, way in ways.items():  # once: a sweep takes minutes, and warming up a part of a second
            started = time.process_time()
            effects[name] = way()
            times[name] = [time.process_time() - started]
    apart = float((effects["ours"] - effects["hooks"]).abs().max())
    question = f"sweep over 144 heads (12x12, d_model 768), {windows} windows of {TOKENS} tokens"
    timed = {"times": times, "difference": {"hooks": apart}}
    yield sweeps.compare(timed, "hooks", f"{question}, against a loop of plain PyTorch hooks", 1.8)
