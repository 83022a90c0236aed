"""Ablate a head with PyTorch hooks: on a block's output (thought-anchors issue 7), on queries, and on z.

python examples/interventions/pytorch_hooks.py
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import headcount

torch.manual_seed(0)
config = LlamaConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=64, vocab_size=50)
model, tokens = LlamaForCausalLM(config).eval(), torch.randint(50, (3, 7))
attention = model.model.layers[1].self_attn


def wrong():
    """Edit the block's output: wrong, because every head writes into each coordinate."""

    def hook(module, args, output):
        output[0].unflatten(-1, (4, -1))[..., 2, :] = 0

    return attention.register_forward_hook(hook)


def also_wrong():
    """Set the queries to zero: wrong, because the head then attends evenly and its values still pass through."""

    def hook(module, args, output):
        output.unflatten(-1, (4, -1))[..., 2, :] = 0

    return attention.q_proj.register_forward_hook(hook)


def right():
    """Edit the input of the output projection, which holds the heads' outputs side by side."""

    def hook(module, args):
        args[0].unflatten(-1, (4, -1))[..., 2, :] = 0

    return attention.o_proj.register_forward_pre_hook(hook)


for way in (wrong, also_wrong, right):
    print(f"{way.__name__}: {headcount.audit_intervention(model, tokens, way, ['L1H2']).summary}")
