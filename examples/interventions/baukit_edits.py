"""Ablate a head with baukit: `edit_output` at `o_proj` (honest_llama issue 42), and at `v_proj`.

    python examples/interventions/baukit_edits.py

baukit edits only the outputs of modules, but a head's output is an input: that of `o_proj`. Setting the head's values
to zero has the same effect, unless heads share values. Then all heads that share them are removed, as the audit says.
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
    """Set the slice of a module's output to zero that is taken for one of four heads."""
    output[..., 16:24] = 0
    return output


def wrong():
    """Edit the output of the projection: wrong, because every head writes into each coordinate."""
    return TraceDict(model, ["model.layers.1.self_attn.o_proj"], edit_output=zero)


def right():
    """Edit the head's values."""
    return TraceDict(model, ["model.layers.1.self_attn.v_proj"], edit_output=zero)


for way in (wrong, right):
    print(f"{way.__name__}: {headcount.audit_intervention(model, tokens, way, ['L1H2']).summary}")
