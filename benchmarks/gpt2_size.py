"""How much faster is a sweep over the 144 heads of a GPT-2 by headcount than a loop of plain hooks, on one thread?

The model has GPT-2's 12 layers of 12 heads, d_model 768 and random weights. It reads windows of 128 tokens. The
vocabulary has 500 words: with GPT-2's 50,257, the last layer, which no sweep can skip, would take a third of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks import Ratio, sweeps, timed
from headcount.hooks.replay import rows_per_pass
from headcount.hooks.wrapping import wrap
from headcount.training.device import n_threads

TOKENS, WORDS = 128, 500
AT_ONCE = 4
"""Number of windows that the two sweeps take in turn; plain hooks pass all of them at once."""


def measure(windows: str = "32") -> Iterator[Ratio]:
    """Compare processor times; the sweeps alternate, so that other work on the machine slows both alike."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=TOKENS, bos_token_id=0, eos_token_id=0)).eval()
    sweeps.enlarge(model)
    plain = wrap(model, inputs=["input_ids"])
    tokens = torch.randint(WORDS, (int(windows), TOKENS), generator=torch.Generator().manual_seed(0))
    sites, at_once = plain.head_sites, rows_per_pass(plain.head_sites, TOKENS)
    own_time, other_time, difference = 0.0, 0.0, 0.0
    with n_threads(1), torch.no_grad():
        for i, part in enumerate(tokens.split(AT_ONCE)):
            own, seconds = timed(partial(sweeps.ours, plain, sites, part, at_once, at_once, checked=i == 0))
            other, other_seconds = timed(partial(sweeps.hooks, plain, sites, part))
            own_time, other_time = own_time + seconds, other_time + other_seconds
            difference = max(difference, float((own - other).abs().max()))
    question = f"sweep over 144 heads (12x12, d_model 768), {windows} windows of {TOKENS} tokens"
    outcome = {"times": {"ours": [own_time], "hooks": [other_time]}, "difference": {"hooks": difference}}
    yield sweeps.compare(outcome, "hooks", f"{question}, against a loop of plain PyTorch hooks", 1.8)
