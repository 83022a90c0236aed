"""Ablate a head with nnsight: slices of `o_proj.output` (its issue 525), and of `o_proj.input`.

    python examples/interventions/nnsight_traces.py

A trace runs the model itself, so headcount audits a function that runs the PyTorch module (`llm._module`).
"""

from __future__ import annotations

import torch
from nnsight import NNsight
from transformers import LlamaConfig, LlamaForCausalLM

import headcount

torch.manual_seed(0)
config = LlamaConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=64, vocab_size=50)
model, tokens = LlamaForCausalLM(config).eval(), torch.randint(50, (3, 7))
llm = NNsight(model)


def wrong():
    """Edit the output of the projection: wrong, because every head writes into each coordinate."""
    with llm.trace(input_ids=tokens):
        llm.model.layers[1].self_attn.o_proj.output[:, :, 16:24] = 0


def right():
    """Edit the input of the projection, which holds the heads' outputs side by side."""
    with llm.trace(input_ids=tokens):
        llm.model.layers[1].self_attn.o_proj.input[:, :, 16:24] = 0


for way in (wrong, right):
    print(f"{way.__name__}: {headcount.audit_intervention(model, tokens, way, ['L1H2']).summary}")
