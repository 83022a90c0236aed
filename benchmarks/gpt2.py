"""A sweep over the 32 heads of a Hugging Face GPT-2: ours, TransformerLens', nnsight's, and a loop of plain hooks.

All four get the same weights, drawn at random, and as many rows of tokens as the command line says. Ours and the plain
hooks act on one and the same model; the others change the model they are given, so each gets a copy of its own.
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
from benchmarks.lens import enlarge, lens
from headcount.hooks.replay import rows_per_pass
from headcount.hooks.wrapping import wrap

LAYERS, HEADS, D_HEAD, TOKENS, WORDS = 4, 8, 8, 20, 500


def main(rows: int, rounds: int) -> None:
    """Race, and say how it went."""
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
    """A model of its kind that nobody trained."""
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
    enlarge(model)
    return model.eval()


def nnsight(model: NNsight, tokens: Tensor) -> Tensor:
    """As its documentation changes an activation, head by head."""
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
