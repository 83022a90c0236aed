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
from headcount.hooks.replay import rows_per_pass
from headcount.hooks.wrapping import wrap
from headcount.training.device import n_threads

TOKENS, WORDS = 128, 500
AT_ONCE = 4
"""Windows of a turn; plain hooks pass all of them at once."""


def measure(windows: str = "32") -> Iterator[dict[str, Any]]:
    """Processor time of both sweeps, a few windows at a time in turn, so that other work hits both alike."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=TOKENS, bos_token_id=0, eos_token_id=0)).eval()
    for parameter in model.parameters():  # larger, for as they are drawn the heads do next to nothing
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=1.5 / parameter.shape[1] ** 0.5)
    plain = wrap(model, inputs=["input_ids"])
    tokens = torch.randint(WORDS, (int(windows), TOKENS), generator=torch.Generator().manual_seed(0))
    sites, at_once = plain.head_sites, rows_per_pass(plain.head_sites, TOKENS)
    ways = {
        "ours": lambda some, is_first: sweeps.ours(plain, sites, some, at_once, at_once, checked=is_first),
        "hooks": lambda some, is_first: sweeps.hooks(plain, sites, some),
    }
    times = dict.fromkeys(ways, 0.0)
    apart = 0.0
    with n_threads(1), torch.no_grad():
        for i, some in enumerate(tokens.split(AT_ONCE)):
            effects = {}
            for name, way in ways.items():
                started = time.process_time()
                effects[name] = way(some, i == 0)
                times[name] += time.process_time() - started
            apart = max(apart, float((effects["ours"] - effects["hooks"]).abs().max()))
    question = f"sweep over 144 heads (12x12, d_model 768), {windows} windows of {TOKENS} tokens"
    timed = {"times": {name: [each] for name, each in times.items()}, "difference": {"hooks": apart}}
    yield sweeps.compare(timed, "hooks", f"{question}, against a loop of plain PyTorch hooks", 1.8)
