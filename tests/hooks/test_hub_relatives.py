"""Families that share a layout with those of hub_models: found, proven, and cut as those are."""

from __future__ import annotations

from typing import Any

import hub_models as hub
import pytest
import torch
import transformers as T

from headcount.hooks.attention import attention_of
from headcount.hooks.intervention_proof import prove
from headcount.hooks.wrapping import wrap

RELATIVES = {
    "xlm-roberta": ("roberta", T.XLMRobertaConfig, T.XLMRobertaForMaskedLM),
    "camembert": ("roberta", T.CamembertConfig, T.CamembertForMaskedLM),
    "mt5": ("t5", T.MT5Config, T.MT5ForConditionalGeneration),
    "mbart": ("bart", T.MBartConfig, T.MBartForConditionalGeneration),
}
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", RELATIVES)
def test_it_is_laid_out_like_its_relative(name: str) -> None:
    relative, config, kind = RELATIVES[name]
    torch.manual_seed(0)
    model: Any = kind(config(**hub.FAMILIES[relative][2])).double().eval()
    wrapped, inputs = wrap(model), hub.inputs_of(relative)
    assert wrapped.heads == wrap(hub.build(relative)).heads
    assert len(prove(wrapped, wrapped.head_sites, inputs)) == len(wrapped.sites)
    shown = attention_of(wrapped, wrapped.head_sites, *inputs)
    model.set_attn_implementation("eager")
    told = hub.called(relative, model, inputs, output_attentions=True)
    theirs = told.attentions if "attentions" in told else told.encoder_attentions
    torch.testing.assert_close(shown[wrapped.sites[0]], theirs[0], atol=1e-5, rtol=0)
