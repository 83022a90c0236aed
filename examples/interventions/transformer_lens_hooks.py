"""Ablate a head with TransformerLens 4: at `hook_attn_out`, along a wrong axis of `hook_z`, and along the right one.

    python examples/interventions/transformer_lens_hooks.py

`bridge.hooks(...)` is a context. The audit also takes a function that runs the model with
`bridge.run_with_hooks(...)`.
"""

from __future__ import annotations

import torch
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import LlamaConfig, LlamaForCausalLM

import headcount

torch.manual_seed(0)
config = LlamaConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=64, vocab_size=50)
model, tokens = LlamaForCausalLM(config).eval(), torch.randint(50, (3, 7))
bridge = build_bridge_from_module(model, "LlamaForCausalLM", hf_config=config)


def residual(x, hook):
    """Edit the block's output, [row, position, d_model]: wrong, because it is projected already."""
    x[..., 16:24] = 0
    return x


def position(z, hook):
    """Edit the third position of every head: wrong, because z is not [row, head, ...] as a pattern is."""
    z[:, 2] = 0
    return z


def head(z, hook):
    """Edit the third head of z, [row, position, head, d_head]."""
    z[:, :, 2] = 0
    return z


for name, hook in {
    "wrong": ("blocks.1.hook_attn_out", residual),
    "wrong, too": ("blocks.1.attn.hook_z", position),
    "right": ("blocks.1.attn.hook_z", head),
}.items():
    context = bridge.hooks(fwd_hooks=[hook])
    print(f"{name}: {headcount.audit_intervention(bridge, tokens, context, ['L1H2']).summary}")
