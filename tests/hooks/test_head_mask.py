"""Why headcount does not use what transformers offers: `head_mask` does nothing, and nothing says so.

These tests are about transformers, not about headcount. If one fails, a new version behaves differently, and what the
documentation says of it should change.
"""

from __future__ import annotations

import inspect
from typing import Any

import hub_models as hub
import pytest
import torch
import transformers
from hub_by_hand import SHAPES, answer, places, without

from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.wrapping import wrap

pytestmark = pytest.mark.skipif(int(transformers.__version__.split(".")[0]) < 5, reason="before 5 it did something")
every_family = pytest.mark.parametrize("name", hub.FAMILIES)


def masks(name: str) -> dict[str, torch.Tensor]:
    """0 for every head, as the documentation of transformers 4 has it."""
    argument = {"L": "head_mask", "E": "head_mask", "D": "decoder_head_mask", "X": "cross_attn_head_mask"}
    return {argument[stack]: torch.zeros(shape, dtype=torch.float64) for stack, shape in SHAPES[name].items()}


@pytest.mark.parametrize("mode", ["sdpa", "eager"])
@every_family
def test_a_mask_for_all_heads_changes_no_bit(name: str, mode: str) -> None:
    if (name, mode) == ("gpt_neo", "sdpa"):
        pytest.skip("transformers has no sdpa for GPT-Neo")
    model, inputs = hub.build(name, attn_implementation=mode), hub.inputs_of(name)
    clean = answer(hub.called(name, model, inputs))
    assert torch.equal(answer(hub.called(name, model, inputs, **masks(name))), clean)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_all_heads_do_matter(name: str) -> None:
    """What such a mask should have done, by gates and by hand."""
    model, inputs = hub.build(name), hub.inputs_of(name)
    wrapped, clean = wrap(model), answer(hub.called(name, model, inputs))
    ablated = without(name, model, places(name), inputs)
    with torch.no_grad(), Gates(wrapped.head_sites, closed_gates(wrapped.head_sites, wrapped.heads)):
        torch.testing.assert_close(wrapped(*inputs), ablated, atol=1e-9, rtol=0)
    assert (ablated - clean).abs().max() > 0.1


@every_family
def test_no_forward_knows_a_head_mask(name: str) -> None:
    """It is swallowed with whatever else one gives, so no misspelling is an error either."""
    model, inputs = hub.build(name), hub.inputs_of(name)
    takes = inspect.signature(model.forward).parameters
    assert not [each for each in takes if "head_mask" in each]
    assert takes["kwargs"].kind is inspect.Parameter.VAR_KEYWORD
    output = answer(hub.called(name, model, inputs, hed_mask=torch.zeros(1)))
    assert torch.equal(output, answer(hub.called(name, model, inputs)))


@every_family
def test_no_model_cuts_heads(name: str) -> None:
    model: Any = hub.build(name)
    assert not [each for module in model.modules() for each in dir(module) if "prune" in each and "head" in each]


@every_family
def test_attention_weights_are_empty_unless_in_eager_mode(name: str) -> None:
    """An empty tuple, not None; the only word on it is a line in the log, once."""
    model, inputs = hub.build(name), hub.inputs_of(name)
    output = hub.called(name, model, inputs, output_attentions=True)
    kinds = (
        ["attentions"] if "L" in SHAPES[name] else [f"{each}_attentions" for each in ("encoder", "decoder", "cross")]
    )
    n_layers = [n for n, _ in SHAPES[name].values()]
    expected = n_layers if model.config._attn_implementation == "eager" else [0] * len(kinds)
    assert [len(output[kind]) for kind in kinds] == expected
    assert model.config._attn_implementation == ("eager" if name == "gpt_neo" else "sdpa")
