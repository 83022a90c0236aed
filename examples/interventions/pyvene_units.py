"""Ablate a head with pyvene: a subspace of `attention_output`, and a head of `head_attention_value_output`.

python examples/interventions/pyvene_units.py
"""

from __future__ import annotations

import pyvene
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import headcount

torch.manual_seed(0)
config = LlamaConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=64, vocab_size=50)
model, tokens = LlamaForCausalLM(config).eval(), torch.randint(50, (3, 7))


def zeroed(component, unit):
    """Return the model with zeros in a component of its second layer."""
    places = {"layer": 1, "component": component, "unit": unit, "intervention_type": pyvene.ZeroIntervention}
    return pyvene.IntervenableModel(places, model=model)


def wrong():
    """Edit the output of the projection: wrong, because every head writes into each coordinate."""
    of_every_row = [[list(range(16, 24))] * len(tokens)]
    places = {"base": list(range(tokens.shape[1]))}
    zeroed("attention_output", "pos")({"input_ids": tokens}, unit_locations=places, subspaces=of_every_row)


def right():
    """Edit the third head at every position."""
    zeroed("head_attention_value_output", "h")({"input_ids": tokens}, unit_locations={"base": 2})


for way in (wrong, right):
    print(f"{way.__name__}: {headcount.audit_intervention(model, tokens, way, ['L1H2']).summary}")
