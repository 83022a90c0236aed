"""Ablate a head with transformers 5: by `head_mask`, which it ignores, and in a custom attention function.

python examples/interventions/transformers_attention.py
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import headcount

torch.manual_seed(0)
config = LlamaConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=64, vocab_size=50)
model, tokens = LlamaForCausalLM(config).eval(), torch.randint(50, (3, 7))
inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
inputs["attention_mask"][0, :3] = 0
mask = torch.ones(2, 4)
mask[1, 2] = 0


def without_head(attention, *args, **kwargs):
    """Return z, [row, position, head, d_head], with one head set to zero before the projection."""
    z, weights = sdpa_attention_forward(attention, *args, **kwargs)
    if attention.layer_idx == 1:
        z[:, :, 2] = 0
    return z, weights


@contextmanager
def attention_function(name):
    """Use an attention function inside a context."""
    model.set_attn_implementation(name)
    yield
    model.set_attn_implementation("sdpa")


AttentionInterface.register("unmasked", without_head)  # a name without a mask function: heads attend to padding
AttentionInterface.register("without_L1H2", without_head)
AttentionMaskInterface.register("without_L1H2", sdpa_mask)

for name, way in {
    "wrong": {"head_mask": mask},
    "wrong, too": attention_function("unmasked"),
    "right": attention_function("without_L1H2"),
}.items():
    print(f"{name}: {headcount.audit_intervention(model, inputs, way, ['L1H2']).summary}")
