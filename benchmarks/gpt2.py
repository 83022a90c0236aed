"""Time four sweeps over the 32 heads of a GPT-2: by headcount, TransformerLens, nnsight and plain hooks.

All four get the same random weights, and as many rows of tokens as the command line says. headcount and the plain hooks
act on the same model. The others change the model that they are given, so each gets its own copy.
"""

from __future__ import annotations

import copy
import json
import sys

import torch
from nnsight import NNsight
from torch import Tensor
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks import sweeps
from benchmarks.lens import lens
from headcount.hooks.replay import rows_per_pass
from headcount.hooks.wrapping import wrap

LAYERS, HEADS, D_HEAD, TOKENS, WORDS = 4, 8, 8, 20, 500


def main(rows: int, rounds: int) -> None:
    """Run the race, and print its times as JSON."""
    torch.set_num_threads(1)
    model = gpt2()
    tokens = torch.randint(WORDS, (rows, TOKENS), generator=torch.Generator().manual_seed(0))
    plain = wrap(model, inputs=["input_ids"])
    sites = plain.head_sites
    at_once = rows_per_pass(sites, TOKENS)
    bridge = build_bridge_from_module(copy.deepcopy(model), type(model).__name__, hf_config=model.config)
    traced = NNsight(copy.deepcopy(model))
    ways = {
        "ours": lambda: sweeps.ours(plain, sites, tokens, at_once, at_once),
        "lens": lambda: lens(bridge, tokens),
        "nnsight": lambda: nnsight(traced, tokens),
        "hooks": lambda: sweeps.hooks(plain, sites, tokens),
    }
    print(json.dumps({**sweeps.race(ways, rounds), "d_model": HEADS * D_HEAD, "tokens": TOKENS}))


def gpt2() -> GPT2LMHeadModel:
    """Build an untrained GPT-2."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=TOKENS,
        n_embd=HEADS * D_HEAD,
        n_layer=LAYERS,
        n_head=HEADS,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    sweeps.enlarge(model)
    return model.eval()


def nnsight(model: NNsight, tokens: Tensor) -> Tensor:
    """Return the effect of each head on the loss, as in nnsight's documentation."""
    with model.trace(input_ids=tokens, use_cache=False):
        logits = model.output.logits.save()
    clean = sweeps.losses(logits, tokens).mean()
    effects = []
    for block in model.transformer.h:
        for head in range(HEADS):
            with model.trace(input_ids=tokens, use_cache=False):
                block.attn.c_proj.input[:, :, head * D_HEAD : (head + 1) * D_HEAD] = 0.0
                logits = model.output.logits.save()
            effects.append(sweeps.losses(logits, tokens).mean() - clean)
    return torch.stack(effects)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
