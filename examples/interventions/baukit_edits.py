"""A head ablated with baukit: `edit_output` at `o_proj` (honest_llama issue 42), and at `v_proj`.

    python examples/interventions/baukit_edits.py

It edits outputs only, and a head's own is the input of `o_proj`. A head whose values are zero finds nothing: that is as
good, unless heads share values; then all of them that do are removed, and the audit says so.
"""

from __future__ import annotations

import torch
from baukit import TraceDict
from transformers import LlamaConfig, LlamaForCausalLM

import headcount

torch.manual_seed(0)
config = LlamaConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=64, vocab_size=50)
model, tokens = LlamaForCausalLM(config).eval(), torch.randint(50, (3, 7))


def zero(output, layer):
    """Of what leaves a module, the part that is taken for one of four heads."""
    output[..., 16:24] = 0
    return output


def wrong():
    """What is projected already: every head writes into each of its coordinates."""
    return TraceDict(model, ["model.layers.1.self_attn.o_proj"], edit_output=zero)


def right():
    """The head's values."""
    return TraceDict(model, ["model.layers.1.self_attn.v_proj"], edit_output=zero)


for way in (wrong, right):
    print(f"{way.__name__}: {headcount.audit_intervention(model, tokens, way, ['L1H2']).summary}")
