"""A wrapped model takes tensors, and can be wrapped again and copied."""

from __future__ import annotations

from copy import deepcopy

import hub_models as hub
import pytest
import torch

from headcount.errors import InputError
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import Wrapped, wrap

pytestmark = pytest.mark.slow  # models of others, or many processes


def test_too_many_tensors_are_an_error() -> None:
    wrapped, (tokens, mask) = wrap(hub.build("gpt2")), hub.inputs_of("gpt2")
    with pytest.raises(
        InputError,
        match=r"3 tensors were given, but the model takes at most 2\n  give these.*: input_ids, attention_mask",
    ):
        wrapped(tokens, mask, mask)


def test_names_may_be_given() -> None:
    wrapped, (tokens, mask) = wrap(hub.build("gpt2")), hub.inputs_of("gpt2")
    assert torch.equal(wrapped(input_ids=tokens, attention_mask=mask), wrapped(tokens, mask))
    torch.testing.assert_close(wrapped(tokens, mask, use_cache=True), wrapped(tokens, mask))


def test_what_is_wrapped_may_be_wrapped_again() -> None:
    wrapped = wrap(hub.build("gpt2"))
    assert isinstance(wrapped, Wrapped)
    assert wrap(wrapped) is wrapped
    few = Sites({site: wrapped.head_sites[site] for site in wrapped.sites[:1]})
    assert wrap(wrapped, few).heads == wrapped.heads[:4]
    assert wrap(wrapped, inputs=["inputs_embeds"]).inputs == ("inputs_embeds",)
    assert wrap(wrapped, few).inputs == wrapped.inputs


@torch.no_grad()
def test_a_copy_has_its_own_heads() -> None:
    wrapped, inputs = wrap(hub.build("albert")), hub.inputs_of("albert")
    copy = deepcopy(wrapped)
    assert not set(copy.head_sites.projections) & set(wrapped.head_sites.projections)
    with Gates(copy.head_sites, closed_gates(copy.head_sites, copy.heads[5:6])):
        output = copy(*inputs)
        clean = wrapped(*inputs)
    with Gates(wrapped.head_sites, closed_gates(wrapped.head_sites, wrapped.heads[5:6])):
        assert torch.equal(wrapped(*inputs), output)
    assert not torch.allclose(clean, output)


def test_a_family_that_is_laid_out_otherwise_is_refused() -> None:
    """As a model is whose modules another library has replaced."""
    model = hub.build("gpt2", torch.float32)
    model.transformer.h[1].attn.o = model.transformer.h[1].attn.c_proj
    del model.transformer.h[1].attn.c_proj
    with pytest.raises(InputError, match=r"GPT2LMHeadModel has no module at h\.\*\.attn\.c_proj, where .* \(decoders"):
        wrap(model)
